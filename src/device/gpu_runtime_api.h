// What the host asks of the vendor's runtime beyond what kernels need: graphs' sizes, streams' priorities, memory of other processes, words
// that streams write and wait for. Apart from gpu_api.h, which every kernel includes. Included by device/gpu and comm/gpu alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/gpu_api.h"

namespace baleen {

#ifdef __HIP_PLATFORM_AMD__
#define BALEEN_GPU_NAME(name) hip##name
#else
#define BALEEN_GPU_NAME(name) cuda##name
#endif

inline constexpr auto gpuGraphGetNodes = &BALEEN_GPU_NAME(GraphGetNodes);

// The highest priority has the smallest number.
inline constexpr auto gpuDeviceGetStreamPriorityRange = &BALEEN_GPU_NAME(DeviceGetStreamPriorityRange);
inline constexpr auto gpuStreamCreateWithPriority = &BALEEN_GPU_NAME(StreamCreateWithPriority);

using gpuIpcMemHandle_t = BALEEN_GPU_NAME(IpcMemHandle_t);
inline constexpr auto gpuIpcGetMemHandle = &BALEEN_GPU_NAME(IpcGetMemHandle);
inline constexpr auto gpuIpcCloseMemHandle = &BALEEN_GPU_NAME(IpcCloseMemHandle);
inline gpuError_t gpuIpcOpenMemHandle(void** memory, gpuIpcMemHandle_t handle) {
  return BALEEN_GPU_NAME(IpcOpenMemHandle)(memory, handle, BALEEN_GPU_NAME(IpcMemLazyEnablePeerAccess));
}

#undef BALEEN_GPU_NAME

// Whether this machine's driver has the following two.
bool gpu_streams_have_words();
// Where the allocation that holds `memory` begins, which is what another process maps.
gpuError_t gpuAllocationBegin(std::byte** begin, void* memory);
// First behind what the stream does before, *word = value for each of `written`, seen by every GPU of the machine; then what comes on the
// stream waits until each word of `awaited`, counted on from the value round the whole circle of 32 bits, has come to it. Waiting takes no
// multiprocessor.
gpuError_t gpuStreamWords(gpuStream_t stream, std::uint32_t value, std::span<std::uint32_t* const> written,
                          std::span<std::uint32_t* const> awaited);

}  // namespace baleen
