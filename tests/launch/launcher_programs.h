// What the ranks of launcher_test.cpp do.
#pragma once

#include "launch/rank_programs.h"

namespace baleen::testing {

RankPrograms launcher_programs();

}  // namespace baleen::testing
