// How large a stream's GPU is, for kernels whose blocks stay and walk over the work.
#pragma once

#include "device/gpu_api.h"

namespace baleen::ops::gpu {

// Multiprocessors of the stream's GPU. A rank has one, and a machine's are alike.
inline int multiprocessors(Stream& stream) {
  static const int count = [&] {
    gpuDeviceProp properties{};
    gpu_check(gpuGetDeviceProperties(&properties, gpu_stream_traits(stream).device), "asking for a GPU's properties");
    return properties.multiProcessorCount;
  }();
  return count;
}

}  // namespace baleen::ops::gpu
