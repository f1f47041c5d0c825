// What the CPU operations run on, for reports.
#pragma once

#include <string>

namespace baleen::ops {

std::string onednn_version();   // of the library loaded
std::string instruction_set();  // the best that Highway's dispatch finds on this processor

}  // namespace baleen::ops
