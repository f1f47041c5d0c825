// NCCL or RCCL, loaded when first asked for, so that the same program starts where it is missing.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "device/gpu_collectives_api.h"

namespace baleen::nccl {

// Buffers that the library is told about before they are used: NCCL 2.19.
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
#define BALEEN_NCCL_REGISTERS 1
#else
#define BALEEN_NCCL_REGISTERS 0
#endif

struct Library {
  int version = 0;   // as NCCL_VERSION counts
  std::string path;  // of the file that was loaded
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
#if BALEEN_NCCL_REGISTERS
  decltype(&ncclCommRegister) register_buffer = nullptr;  // both or neither
  decltype(&ncclCommDeregister) deregister_buffer = nullptr;
#endif
};

// nullptr, with `why` set, where it is not on this machine or older than what this program was built with.
const Library* find_library(std::string& why);

ncclDataType_t type_of(DType dtype);
ncclRedOp_t op_of(ReduceOp op);

}  // namespace baleen::nccl
