#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <array>
#include <memory>

#include "base/error.h"

namespace baleen::nccl {
namespace {

struct Found {
  std::unique_ptr<Library> library;
  std::string why;
};

template <class Function>
bool bind(void* handle, const char* name, Function& to, std::string& missing) {
  to = reinterpret_cast<Function>(dlsym(handle, name));
  if (to == nullptr) missing = name;
  return to != nullptr;
}

bool bind_all(void* handle, Library& to, std::string& missing) {
  return bind(handle, "ncclGetErrorString", to.error_string, missing) && bind(handle, "ncclGetUniqueId", to.get_unique_id, missing) &&
         bind(handle, "ncclCommGetAsyncError", to.async_error, missing) && bind(handle, "ncclCommAbort", to.abort, missing) &&
         bind(handle, "ncclCommDestroy", to.destroy, missing) && bind(handle, "ncclAllReduce", to.all_reduce, missing) &&
         bind(handle, "ncclReduceScatter", to.reduce_scatter, missing) && bind(handle, "ncclAllGather", to.all_gather, missing) &&
         bind(handle, "ncclBroadcast", to.broadcast, missing) && bind(handle, "ncclSend", to.send, missing) &&
         bind(handle, "ncclRecv", to.recv, missing) && bind(handle, "ncclGroupStart", to.group_start, missing) &&
         bind(handle, "ncclGroupEnd", to.group_end, missing) && bind(handle, "ncclCommInitRank", to.init_rank, missing);
}

Found load() {
  Found out;
  void* handle = nullptr;
  for (const char* name : {BALEEN_NCCL_NAME, BALEEN_NCCL_PATH}) {
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    if (out.why.empty()) out.why = dlerror();
  }
  if (handle == nullptr) return out;
  auto library = std::make_unique<Library>();
  decltype(&ncclGetVersion) get_version = nullptr;
  std::string missing;
  if (!bind(handle, "ncclGetVersion", get_version, missing) || !bind_all(handle, *library, missing) ||
      get_version(&library->version) != ncclSuccess) {
    out.why = fmt::format("{} lacks {}: it is older than version {}, which this program was built with", BALEEN_NCCL_NAME, missing,
                          NCCL_VERSION_CODE);
    dlclose(handle);
    return out;
  }
  constexpr int oldest = 21003;  // has bf16 and averages
  if (library->version < oldest) {
    out.why = fmt::format("{} is version {}, and {} is the oldest that has averages of bf16", BALEEN_NCCL_NAME, library->version, oldest);
    dlclose(handle);
    return out;
  }
#if BALEEN_NCCL_REGISTERS
  // RCCL has the names in its header before it has the functions: without them buffers are used as they are.
  if (!bind(handle, "ncclCommRegister", library->register_buffer, missing) ||
      !bind(handle, "ncclCommDeregister", library->deregister_buffer, missing))
    library->register_buffer = nullptr;
#endif
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr) library->path = map->l_name;
  out.why.clear();
  out.library = std::move(library);
  return out;
}

}  // namespace

const Library* find_library(std::string& why) {
  static const Found found = load();
  why = found.why;
  return found.library.get();
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return ncclFloat32;
    case DType::bf16: return ncclBfloat16;
    case DType::f64: return ncclFloat64;
    case DType::i32: return ncclInt32;
    case DType::u8: return ncclUint8;
    case DType::u64: return ncclUint64;
  }
  BALEEN_CHECK(false, static_cast<int>(dtype));
  return ncclUint8;
}

ncclRedOp_t op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::avg: return ncclAvg;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::min: return ncclMin;
  }
  BALEEN_CHECK(false, static_cast<int>(op));
  return ncclSum;
}

}  // namespace baleen::nccl
