// The GPUs of this machine as devices, and graphs recorded from their streams. A build without GPU support has the same functions and finds
// no GPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace baleen {

// Streams share the hardware's queues, eight unless the runtime is told otherwise before it begins, and where two share one, what waits for
// another rank in one may hold up work of the other that this rank must do first. This asks for as many as there can be, unless the
// environment says how many. To be called before anything else of this file, and before the process' second thread.
void prepare_gpus();

struct GpuList {
  struct Gpu {
    std::string name;
    int number = 0;       // the driver's, which create_gpu_device() takes
    std::string address;  // where it sits on the PCI bus, such as "0000:1b:00.0"
  };
  std::vector<Gpu> gpus;  // those that this build has kernels for
  std::string why_none;   // for people, when there are none

  // Of the rank with this place on its machine. There are some.
  const Gpu& of(int local_rank) const { return gpus[static_cast<std::size_t>(local_rank) % gpus.size()]; }
};
// Never throws: a machine without a GPU or without its driver is no error.
GpuList list_gpus();
bool gpu_available();
// Whether `pointer` points into memory of a GPU.
bool is_gpu_memory(const void* pointer);

struct GpuOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of every wait of the host for the device
  bool deterministic = false;  // operations give the same bits twice: products are not chosen by timing, attention adds in a fixed order
};
// Throws Error (ExitCode::bad_config) when there is no such GPU, or when this build has no kernels for it.
std::unique_ptr<Device> create_gpu_device(int index, const GpuOptions& options = {});

// Memory of the host that GPUs copy from and to at the full speed of the link, without the processor's help: page-locked.
std::unique_ptr<Device> create_pinned_host();
// How often the host has waited for work of a GPU that was not done yet, since the device was created; 0 for other devices.
std::uint64_t host_waits(const Device& device);
// What device/timing.h does on GPU streams.
Event record_gpu_time(Stream& stream);
double gpu_seconds_between(const Event& begin, const Event& end);
// A stream whose kernels come before those of other streams when both wait for multiprocessors: for communication, which others wait for.
std::unique_ptr<Stream> create_urgent_stream(Device& device);
// Bytes that could still be allocated on a GPU; the largest number for other devices.
std::size_t free_bytes(const Device& device);

// Work recorded from a stream, to be run any number of times at the cost of one launch. Addresses and constants are those of the recording:
// what changes from run to run lies in device memory.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void replay(Stream& stream) = 0;
  // How many kernels, copies and fills it holds.
  virtual std::size_t nodes() const = 0;
};
// Records what `enqueue` puts on the GPU stream, without running it. Inside, waiting for the stream on the host is an error. Shapes that
// the operations have not met yet may be looked up while recording, so run `enqueue` once before.
std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& enqueue);

}  // namespace baleen
