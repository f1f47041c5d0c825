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

// Collective over `host`'s members. With `backend` "nccl": the vendor's library, or Error(bad_config) where some member has none or two
// share a GPU. "auto": the same where it can, and several ranks are there to talk; else, and for every other backend, copies through the
// host (staged_communicator.h). Buffers in host memory go to `host` either way. `timeout` bounds every wait for another rank.
std::unique_ptr<Communicator> for_gpu_buffers(std::unique_ptr<Communicator> host, Device& device, const std::string& backend,
                                              std::chrono::milliseconds timeout);

}  // namespace baleen
