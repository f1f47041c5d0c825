#include "ops/libraries.h"

#include <hwy/highway.h>
#include <hwy/targets.h>
#include <dnnl.hpp>

namespace baleen::ops {

std::string onednn_version() {
  const dnnl_version_t* version = dnnl::version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch);
}

std::string instruction_set() {
  const std::int64_t supported = hwy::SupportedTargets();
  return hwy::TargetName(supported & -supported);  // the lowest bit is the best
}

}  // namespace baleen::ops
