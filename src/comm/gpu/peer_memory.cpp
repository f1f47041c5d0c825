#include "comm/gpu/peer_memory.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/machine.h"
#include "device/gpu_runtime_api.h"

namespace baleen {
namespace {

// What a member tells the others of its memory. Plain bytes: it travels between processes.
struct Exported {
  gpuIpcMemHandle_t handle{};
  std::uint64_t host = 0, process = 0;
  std::uint64_t offset = 0, bytes = 0;  // the offset from where the allocation begins, which is what others map
  std::uint64_t failed = 0;
};

std::uint64_t this_process() {
  static const std::uint64_t token = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return token;
}

// What went wrong; empty: nothing.
std::string problem(gpuError_t status, const char* call) {
  if (status == gpuSuccess) return "";
  gpuGetLastError();
  return fmt::format("{}: {}", call, gpuGetErrorString(status));
}

std::string describe_own(Exported& own, void* memory, std::size_t bytes) {
  std::byte* begin = nullptr;
  own.host = machine_identity();
  own.process = this_process();
  own.bytes = bytes;
  if (std::string wrong = problem(gpuAllocationBegin(&begin, memory), "asking where an allocation begins"); !wrong.empty()) return wrong;
  own.offset = static_cast<std::uint64_t>(static_cast<std::byte*>(memory) - begin);
  return problem(gpuIpcGetMemHandle(&own.handle, begin), "exporting memory to other processes");
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::exchange(Communicator& host, int device, void* memory, std::size_t bytes, std::string& why) {
  Exported own;
  gpu_check(gpuSetDevice(device), "choosing a GPU");
  std::string wrong = why.empty() ? describe_own(own, memory, bytes) : why;
  own.failed = wrong.empty() ? 0 : 1;
  std::vector<Exported> all(static_cast<std::size_t>(host.size()));
  host.all_gather(&own, all.data(), sizeof own, DType::u8).wait();

  std::unique_ptr<PeerMemory> reached(new PeerMemory(static_cast<std::byte*>(memory), bytes));
  for (const Exported& member : all) {
    if (!wrong.empty()) break;
    if (member.failed != 0) {
      wrong = "another rank's memory cannot be exported";
    } else if (member.host != own.host) {
      wrong = "ranks are on several hosts";
    } else if (member.bytes != bytes) {
      wrong = fmt::format("this rank's memory has {} bytes and another's {}", bytes, member.bytes);
    } else if (&member == &all[static_cast<std::size_t>(host.rank())]) {
      reached->members_.push_back(reached->own_);
    } else if (member.process == own.process) {
      wrong = "ranks are threads of one process";  // whose copies wait for each other
    } else {
      void* opened = nullptr;
      wrong = problem(gpuIpcOpenMemHandle(&opened, member.handle), "opening another process' memory");
      if (!wrong.empty()) break;
      reached->opened_.push_back(opened);
      reached->members_.push_back(static_cast<std::byte*>(opened) + member.offset);
    }
  }
  std::int32_t failures = wrong.empty() ? 0 : 1;
  host.all_reduce(&failures, &failures, 1, DType::i32, ReduceOp::sum).wait();
  if (failures == 0) return reached;
  why = wrong.empty() ? "another rank cannot reach this one's memory" : wrong;
  return nullptr;
}

PeerMemory::~PeerMemory() {
  for (void* memory : opened_) gpuIpcCloseMemHandle(memory);
}

bool PeerMemory::holds(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  return begin >= own_ && begin + bytes <= own_ + bytes_;
}

std::byte* PeerMemory::of(int rank, const void* data) const {
  return members_[static_cast<std::size_t>(rank)] + (static_cast<const std::byte*>(data) - own_);
}

}  // namespace baleen
