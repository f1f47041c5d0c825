#include "comm/gpu_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/machine.h"
#include "comm/gpu/peer_communicator.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/staged_communicator.h"

namespace baleen {
namespace {

// The same for two devices only if they are one GPU.
std::uint64_t identity_of(Device& device) {
  const auto stream = device.create_stream();
  gpuDeviceProp properties{};
  gpu_check(gpuGetDeviceProperties(&properties, gpu_stream_traits(*stream).device), "asking for a GPU's properties");
  const std::string text =
      fmt::format("{} {} {} {}", machine_identity(), properties.pciDomainID, properties.pciBusID, properties.pciDeviceID);
  return hash_bytes(text.data(), text.size());
}

// Why the members cannot use the library; empty when they can. The same on every member.
std::string obstacle(Communicator& host, Device& device, const nccl::Library* library, const std::string& why) {
  struct Member {
    std::uint64_t gpu = 0, version = 0;
  };
  const Member mine{identity_of(device), library == nullptr ? 0 : static_cast<std::uint64_t>(library->version)};
  std::vector<Member> members(static_cast<std::size_t>(host.size()));
  host.all_gather(&mine, members.data(), sizeof mine, DType::u8).wait();
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].version == 0)
      return library == nullptr ? why : fmt::format("member {} of '{}' has no such library", rank, host.name());
    if (members[rank].version != members[0].version)
      return fmt::format("members 0 and {} of '{}' have different versions", rank, host.name());
    for (std::size_t other = 0; other < rank; ++other)
      if (members[other].gpu == members[rank].gpu) return fmt::format("members {} and {} of '{}' share a GPU", other, rank, host.name());
  }
  return "";
}

}  // namespace

std::string nccl_version(std::string& why) {
  const nccl::Library* library = nccl::find_library(why);
  if (library == nullptr) return "";
  const int v = library->version;
  const int unit = v < 10000 ? 1000 : 10000;  // 2.8.4 was 2804, 2.9.6 is 20906
  return fmt::format("{}.{}.{} ({})", v / unit, v % unit / 100, v % 100, library->path);
}

std::unique_ptr<Communicator> for_gpu_buffers(std::unique_ptr<Communicator> host, Device& device, const GpuCommunicatorOptions& options) {
  const bool asked = options.backend == "nccl";
  if (asked || (options.backend == "auto" && host->size() > 1)) {
    std::string why;
    const nccl::Library* library = nccl::find_library(why);
    const std::string reason = obstacle(*host, device, library, why);
    if (reason.empty()) {
      auto communicator = std::make_unique<nccl::NcclCommunicator>(*library, std::move(host), device, options);
      if (!options.peer_copies || communicator->size() == 1) return communicator;
      return std::make_unique<PeerCommunicator>(std::move(communicator), device, options.timeout);
    }
    if (asked)
      throw Error(ExitCode::bad_config, "NCCL cannot be used: " + reason, "[comm] backend = \"nccl\"",
                  "one GPU a rank and libnccl.so.2 on every host (`baleen doctor` says what is here), or backend = \"auto\"");
  }
  return std::make_unique<StagedCommunicator>(std::move(host), device);
}

}  // namespace baleen
