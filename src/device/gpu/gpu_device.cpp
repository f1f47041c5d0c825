// A GPU as a device: memory from the runtime's allocator, streams that run asynchronously, graphs.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/gpu.h"
#include "device/gpu_api.h"
#include "device/gpu_runtime_api.h"

namespace baleen {

void gpu_check(gpuError_t status, const char* call) {
  if (status == gpuSuccess) return;
  gpuGetLastError();  // it has been reported
  const bool memory = status == gpuErrorMemoryAllocation;
  throw Error(memory ? ExitCode::out_of_memory : ExitCode::rank_failed, std::string("the GPU failed: ") + gpuGetErrorString(status), call,
              memory ? "use a smaller micro_batch_size or sequence_length, or more ranks"
                     : "run again; if it stays, see the system's log for GPU errors");
}

namespace {

using Clock = std::chrono::steady_clock;

// Events that nobody holds any more, to be recorded again: making one and ending it takes as long as recording it.
class EventPool {
 public:
  EventPool() = default;
  ~EventPool() {
    for (const gpuEvent_t event : free_) gpuEventDestroy(event);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  gpuEvent_t take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const gpuEvent_t event = free_.back();
        free_.pop_back();
        return event;
      }
    }
    gpuEvent_t event = nullptr;
    gpu_check(gpuEventCreateWithFlags(&event, gpuEventDisableTiming), "creating an event");
    return event;
  }
  void give(gpuEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<gpuEvent_t> free_;
};

// What a device's streams and events share with it.
struct Shared {
  GpuOptions options;
  std::atomic<std::uint64_t> host_waits{0};
  EventPool events;
};

class GpuEvent final : public EventState {
 public:
  GpuEvent(gpuStream_t stream, std::shared_ptr<Shared> shared, bool timed = false) : shared_(std::move(shared)), timed_(timed) {
    if (timed_)
      gpu_check(gpuEventCreateWithFlags(&event_, gpuEventDefault), "creating an event");
    else
      event_ = shared_->events.take();
    if (const gpuError_t status = gpuEventRecord(event_, stream); status != gpuSuccess) {
      gpuEventDestroy(event_);
      gpu_check(status, "recording an event");
    }
  }
  ~GpuEvent() override {
    if (timed_)
      gpuEventDestroy(event_);
    else
      shared_->events.give(event_);
  }
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  gpuEvent_t native() const { return event_; }
  bool ready() const override {
    const gpuError_t status = gpuEventQuery(event_);
    if (status == gpuErrorNotReady) return false;
    gpu_check(status, "work on a GPU stream");
    return true;
  }
  void wait() override {
    if (ready()) return;
    ++shared_->host_waits;
    const auto begin = Clock::now();
    // Most waits are short: look often at first, then leave the core to others.
    for (int looks = 0; !ready(); ++looks) {
      if (Clock::now() - begin > shared_->options.timeout)
        throw Error(ExitCode::rank_failed, "the GPU did not finish its work in " + std::to_string(shared_->options.timeout.count()) + " ms",
                    "waiting for a GPU stream",
                    "raise comm.timeout_s if a step takes that long; otherwise see the system's log for GPU errors");
      if (looks < 1000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  gpuEvent_t event_ = nullptr;
  std::shared_ptr<Shared> shared_;
  bool timed_;
};

class GpuStream final : public Stream {
 public:
  GpuStream(int index, std::shared_ptr<Shared> shared, bool measuring, bool urgent = false)
      : Stream(DeviceKind::gpu, measuring), index_(index), shared_(std::move(shared)) {
    if (measuring) return;
    int lowest = 0, highest = 0;  // 0 is what streams have that nobody asked anything of
    gpu_check(gpuDeviceGetStreamPriorityRange(&lowest, &highest), "asking for the priorities of streams");
    gpu_check(gpuStreamCreateWithPriority(&stream_, gpuStreamNonBlocking, urgent ? highest : 0), "creating a stream");
  }
  ~GpuStream() override {
    if (stream_ != nullptr) gpuStreamDestroy(stream_);
  }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  gpuStream_t native() const {
    BALEEN_CHECK(stream_ != nullptr, "a measuring stream runs nothing");
    gpu_check(gpuSetDevice(index_), "choosing a GPU");
    return stream_;
  }
  GpuStreamTraits traits() const {
    gpu_check(gpuSetDevice(index_), "choosing a GPU");
    gpuStreamCaptureStatus status = gpuStreamCaptureStatusNone;
    if (stream_ != nullptr) gpu_check(gpuStreamIsCapturing(stream_, &status), "asking whether a graph is recorded");
    return {index_, shared_->options.deterministic, status != gpuStreamCaptureStatusNone};
  }
  Event record_time() { return measuring() || traits().recording ? Event() : Event(std::make_shared<GpuEvent>(native(), shared_, true)); }
  Event record() override { return measuring() ? Event() : Event(std::make_shared<GpuEvent>(native(), shared_)); }
  void wait(const Event& event) override {
    if (measuring()) return;
    if (const auto* gpu = dynamic_cast<const GpuEvent*>(event.state()); gpu != nullptr)
      gpu_check(gpuStreamWaitEvent(native(), gpu->native()), "waiting for another stream");
    else
      event.wait();  // work of the host, such as a collective through shared memory
  }
  void synchronize() override { record().wait(); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (!measuring() && bytes != 0) gpu_check(gpuMemcpyAsync(to, from, bytes, gpuMemcpyDefault, native()), "a copy");
  }
  void fill_zero(void* to, std::size_t bytes) override {
    if (!measuring() && bytes != 0) gpu_check(gpuMemsetAsync(to, 0, bytes, native()), "filling with zeros");
  }

 private:
  int index_;
  std::shared_ptr<Shared> shared_;
  gpuStream_t stream_ = nullptr;
};

class GpuDevice final : public Device {
 public:
  GpuDevice(int index, const GpuOptions& options, std::string name)
      : index_(index), shared_(std::make_shared<Shared>()), name_(std::move(name)) {
    shared_->options = options;
  }

  DeviceKind kind() const override { return DeviceKind::gpu; }
  std::string description() const override { return name_; }
  std::unique_ptr<Stream> create_stream() override {
    gpu_check(gpuSetDevice(index_), "choosing a GPU");
    return std::make_unique<GpuStream>(index_, shared_, false);
  }
  std::unique_ptr<Stream> create_measuring_stream() override { return std::make_unique<GpuStream>(index_, shared_, true); }
  std::unique_ptr<Stream> create_urgent_stream() {
    gpu_check(gpuSetDevice(index_), "choosing a GPU");
    return std::make_unique<GpuStream>(index_, shared_, false, true);
  }
  std::uint64_t host_waits() const { return shared_->host_waits; }
  std::size_t free_bytes() const {
    gpu_check(gpuSetDevice(index_), "choosing a GPU");
    std::size_t free = 0, total = 0;
    gpu_check(gpuMemGetInfo(&free, &total), "asking for free memory");
    return free;
  }

 protected:
  void* allocate_bytes(std::size_t bytes) override {
    gpu_check(gpuSetDevice(index_), "choosing a GPU");
    void* data = nullptr;
    const gpuError_t status = gpuMalloc(&data, bytes);
    if (status == gpuErrorMemoryAllocation) {
      gpuGetLastError();  // Device::allocate reports it
      return nullptr;
    }
    gpu_check(status, "allocating memory");
    gpu_check(gpuMemset(data, 0, bytes), "filling with zeros");
    gpu_check(gpuDeviceSynchronize(), "filling with zeros");  // streams do not wait for the default one
    return data;
  }
  // Called while a failure may be under way: a second one has nobody to report to.
  void free_bytes(void* data, std::size_t) override {
    gpuSetDevice(index_);
    gpuFree(data);
  }

 private:
  int index_;
  std::shared_ptr<Shared> shared_;
  std::string name_;
};

// Fresh pages of the system are zero; huge ones are pinned much faster.
class PinnedHost final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return "page-locked host memory"; }
  std::unique_ptr<Stream> create_stream() override { return create_cpu_device()->create_stream(); }
  std::unique_ptr<Stream> create_measuring_stream() override { return create_cpu_device()->create_measuring_stream(); }

 protected:
  void* allocate_bytes(std::size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    madvise(data, bytes, MADV_HUGEPAGE);
    if (gpuPinHost(data, bytes) == gpuSuccess) return data;
    gpuGetLastError();  // Device::allocate reports it
    munmap(data, bytes);
    return nullptr;
  }
  void free_bytes(void* data, std::size_t bytes) override {
    gpuUnpinHost(data);
    munmap(data, bytes);
  }
};

class RecordedGraph final : public Graph {
 public:
  explicit RecordedGraph(gpuGraph_t graph) : graph_(graph) {
    if (const gpuError_t status = gpuGraphInstantiate(&executable_, graph_); status != gpuSuccess) {
      gpuGraphDestroy(graph_);
      gpu_check(status, "making a graph executable");
    }
    gpuGraphGetNodes(graph_, nullptr, &nodes_);
  }
  ~RecordedGraph() override {
    gpuGraphExecDestroy(executable_);
    gpuGraphDestroy(graph_);
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;
  void replay(Stream& stream) override { gpu_check(gpuGraphLaunch(executable_, native_stream(stream)), "launching a graph"); }
  std::size_t nodes() const override { return nodes_; }

 private:
  gpuGraph_t graph_;
  gpuGraphExec_t executable_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace

gpuStream_t native_stream(Stream& stream) {
  auto* gpu = dynamic_cast<GpuStream*>(&stream);
  BALEEN_CHECK(gpu != nullptr, "not a GPU stream");
  return gpu->native();
}

GpuStreamTraits gpu_stream_traits(Stream& stream) {
  auto* gpu = dynamic_cast<GpuStream*>(&stream);
  BALEEN_CHECK(gpu != nullptr, "not a GPU stream");
  return gpu->traits();
}

void prepare_gpus() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("NCCL_COMM_BLOCKING", "1", 1);  // NcclCommunicator bounds its calls itself
}

GpuList list_gpus() {
  GpuList list;
  int count = 0;
  if (const gpuError_t status = gpuGetDeviceCount(&count); status != gpuSuccess) {
    gpuGetLastError();
    list.why_none = gpuGetErrorString(status);
    return list;
  }
  list.why_none = "no device is detected";
  for (int index = 0; index < count; ++index) {
    gpuDeviceProp properties{};
    if (gpuGetDeviceProperties(&properties, index) != gpuSuccess) continue;
    if (gpu_runs_kernels(properties)) {
      std::array<char, 32> address{};
      std::snprintf(address.data(), address.size(), "%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID,
                    properties.pciDeviceID);
      list.gpus.push_back({properties.name, index, address.data()});
    } else {
      list.why_none = std::string("this build has no kernels for ") + properties.name + " (" + gpu_instruction_set(properties) + ")";
    }
  }
  if (!list.gpus.empty()) list.why_none.clear();
  return list;
}

bool gpu_available() {
  return !list_gpus().gpus.empty();
}

bool is_gpu_memory(const void* pointer) {
  return pointer != nullptr && gpuIsDevicePointer(pointer);
}

std::unique_ptr<Device> create_gpu_device(int index, const GpuOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ExitCode::bad_config, "GPU " + std::to_string(index) + " cannot be used: " + why, "training.device",
                "`baleen doctor` lists the GPUs; device = \"cpu\" needs none");
  };
  int count = 0;
  if (const gpuError_t status = gpuGetDeviceCount(&count); status != gpuSuccess) {
    gpuGetLastError();
    refuse(gpuGetErrorString(status));
  }
  if (index < 0 || index >= count) refuse("this machine has " + std::to_string(count));
  gpuDeviceProp properties{};
  gpu_check(gpuGetDeviceProperties(&properties, index), "asking for a GPU's properties");
  if (!gpu_runs_kernels(properties)) refuse("this build has no kernels for " + gpu_instruction_set(properties));
  return std::make_unique<GpuDevice>(index, options, properties.name);
}

std::unique_ptr<Device> create_pinned_host() {
  return std::make_unique<PinnedHost>();
}

std::uint64_t host_waits(const Device& device) {
  const auto* gpu = dynamic_cast<const GpuDevice*>(&device);
  return gpu == nullptr ? 0 : gpu->host_waits();
}

Event record_gpu_time(Stream& stream) {
  auto* gpu = dynamic_cast<GpuStream*>(&stream);
  BALEEN_CHECK(gpu != nullptr, "not a GPU stream");
  return gpu->record_time();
}

double gpu_seconds_between(const Event& begin, const Event& end) {
  const auto *from = dynamic_cast<const GpuEvent*>(begin.state()), *to = dynamic_cast<const GpuEvent*>(end.state());
  BALEEN_CHECK(from != nullptr && to != nullptr, "not the times of a GPU");
  float milliseconds = 0;
  gpu_check(gpuEventElapsedTime(&milliseconds, from->native(), to->native()), "reading the time between two events");
  return milliseconds / 1e3;
}

std::unique_ptr<Stream> create_urgent_stream(Device& device) {
  auto* gpu = dynamic_cast<GpuDevice*>(&device);
  return gpu == nullptr ? device.create_stream() : gpu->create_urgent_stream();
}

std::size_t free_bytes(const Device& device) {
  const auto* gpu = dynamic_cast<const GpuDevice*>(&device);
  return gpu == nullptr ? std::numeric_limits<std::size_t>::max() : gpu->free_bytes();
}

std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& enqueue) {
  const gpuStream_t native = native_stream(stream);
  gpu_check(gpuStreamBeginCapture(native, gpuStreamCaptureModeThreadLocal), "beginning to record a graph");
  gpuGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    gpuStreamEndCapture(native, &graph);
    if (graph != nullptr) gpuGraphDestroy(graph);
    gpuGetLastError();
    throw;
  }
  gpu_check(gpuStreamEndCapture(native, &graph), "recording a graph");
  return std::make_unique<RecordedGraph>(graph);
}

}  // namespace baleen
