// What comm/gpu_communicator.h says in a build without NCCL or RCCL.
#include "base/error.h"
#include "comm/gpu_communicator.h"
#include "comm/staged_communicator.h"

namespace baleen {

std::string nccl_version(std::string& why) {
  why = "this build was made without its header nccl.h";
  return "";
}

std::unique_ptr<Communicator> for_gpu_buffers(std::unique_ptr<Communicator> host, Device& device, const GpuCommunicatorOptions& options) {
  std::string why;
  nccl_version(why);
  if (options.backend == "nccl")
    throw Error(ExitCode::bad_config, "NCCL cannot be used: " + why, "[comm] backend = \"nccl\"",
                "install NCCL and build again, or use backend = \"auto\"");
  return std::make_unique<StagedCommunicator>(std::move(host), device);
}

}  // namespace baleen
