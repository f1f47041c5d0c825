// Communicators for buffers in GPU memory, made from communicators of the host.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "device/device.h"

namespace baleen {

// NCCL's or RCCL's version here, such as "2.28.9 (/usr/lib/libnccl.so.2)"; empty, with the reason in `why`, where this build or machine has
// none.
std::string nccl_version(std::string& why);

struct GpuCommunicatorOptions {
  std::string backend = "auto";                                  // as [comm] backend
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // bounds every wait for another rank
  // Beside the library, large gathers and reduce-scatters of announced memory go by the GPUs' copy engines where all members can reach
  // each other's memory (comm/gpu/peer_communicator.h).
  bool peer_copies = true;
};

// Collective over `host`'s members. With backend "nccl": the vendor's library, or Error(bad_config) where some member has none or two
// share a GPU. "auto": the same where it can, and several ranks are there to talk; else, and for every other backend, copies through the
// host (staged_communicator.h). Buffers in host memory go to `host` either way.
std::unique_ptr<Communicator> for_gpu_buffers(std::unique_ptr<Communicator> host, Device& device, const GpuCommunicatorOptions& options);

}  // namespace baleen
