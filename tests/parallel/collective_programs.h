// What the ranks of collectives_test.cpp do.
#pragma once

#include "launch/rank_programs.h"

namespace baleen::testing {

RankPrograms collective_programs();

}  // namespace baleen::testing
