// What is asked about recorded graphs, in the vendor's names: apart from gpu_api.h, which every kernel includes. Included by device/gpu alone.
#pragma once

#include "device/gpu_api.h"

namespace baleen {

#ifdef __HIP_PLATFORM_AMD__
inline constexpr auto gpuGraphGetNodes = &hipGraphGetNodes;
#else
inline constexpr auto gpuGraphGetNodes = &cudaGraphGetNodes;
#endif

}  // namespace baleen
