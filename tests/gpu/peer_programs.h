// What the ranks of peer_communicator_test.cpp do.
#pragma once

#include "launch/rank_programs.h"

namespace baleen::testing {

RankPrograms peer_programs();

}  // namespace baleen::testing
