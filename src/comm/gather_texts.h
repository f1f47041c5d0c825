// Each rank's text, on every rank.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace baleen {

// Of any length each. Collective over `axis`; waits for the result.
std::vector<std::string> gather_texts(Communicator& axis, const std::string& mine);

}  // namespace baleen
