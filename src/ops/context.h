// What every operation runs with: the stream it is enqueued on and the scratch stack its workspace comes from.
#pragma once

#include "base/error.h"
#include "device/arena.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace baleen::ops {

struct Context {
  Stream& stream;
  Arena& scratch;
};

// In a build without GPU support the GPU's implementations do not exist; nothing below refers to them there.
#ifdef BALEEN_GPU
inline constexpr bool gpu_build = true;
#else
inline constexpr bool gpu_build = false;
#endif

// Calls the one of the two that is for the stream's device, and returns what it returns.
template <class Cpu, class Gpu>
auto on_device(const Context& context, Cpu&& cpu, Gpu&& gpu) {
  if constexpr (gpu_build) {
    if (context.stream.kind() == DeviceKind::gpu) return gpu();
  } else {
    BALEEN_CHECK(context.stream.kind() == DeviceKind::cpu, "a GPU stream in a build without GPU support");
  }
  return cpu();
}

// Sends an operation to its implementation for the stream's device; in a dry run it does nothing. Operations allocate their workspace
// from the scratch before they dispatch, so that a dry run counts it.
template <class Cpu, class Gpu>
void dispatch(Context& context, Cpu&& cpu, Gpu&& gpu) {
  if (!context.stream.measuring()) on_device(context, cpu, gpu);
}

// An operation that only the CPU has as yet. Models with it are refused on a GPU before a step runs; this is the second line of defence.
template <class Cpu>
void dispatch(Context& context, Cpu&& cpu) {
  if (context.stream.kind() == DeviceKind::gpu)
    throw Error(ExitCode::bad_config, "the model has an operation without a GPU version", "training.device", "use device = \"cpu\"");
  if (!context.stream.measuring()) cpu();
}

// An operation's workspace, of the size that the implementation for the stream's device asks for; undefined where it asks for none.
template <class Cpu, class Gpu>
Tensor workspace(Context& context, std::string_view name, Cpu&& cpu_bytes, Gpu&& gpu_bytes) {
  const std::size_t bytes = on_device(context, cpu_bytes, gpu_bytes);
  return bytes == 0 ? Tensor() : allocate(context.scratch, name, DType::u8, {static_cast<std::int64_t>(bytes)});
}
inline constexpr auto no_bytes = [] { return std::size_t{0}; };

}  // namespace baleen::ops
