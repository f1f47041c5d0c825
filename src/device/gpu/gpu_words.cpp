// Words that streams write and wait for: the vendor's driver has them, which is asked for when first used, so that this program starts
// without it.
#include "device/gpu_runtime_api.h"

#ifndef __HIP_PLATFORM_AMD__
#include <cuda.h>
#endif

namespace baleen {

#ifdef __HIP_PLATFORM_AMD__

// AMD's words are memory of their own kind (hipMallocSignalMemory), and nobody has tried that between GPUs.
bool gpu_streams_have_words() {
  return false;
}
gpuError_t gpuAllocationBegin(std::byte** begin, void* memory) {
  hipDeviceptr_t base = nullptr;
  std::size_t bytes = 0;
  const gpuError_t status = hipMemGetAddressRange(&base, &bytes, memory);
  *begin = static_cast<std::byte*>(base);
  return status;
}
gpuError_t gpuStreamWriteWord(gpuStream_t stream, std::uint32_t* word, std::uint32_t value) {
  return hipStreamWriteValue32(stream, word, value, 0);
}
gpuError_t gpuStreamAwaitWord(gpuStream_t stream, std::uint32_t* word, std::uint32_t value) {
  return hipStreamWaitValue32(stream, word, value, hipStreamWaitValueGte, 0xffffffff);
}

#else

namespace {

// Of the driver; nullptr where it is missing or too old.
struct DriverCalls {
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuStreamWriteValue32) write = nullptr;
  decltype(&cuStreamWaitValue32) await = nullptr;
  bool all() const { return address_range != nullptr && write != nullptr && await != nullptr; }
};

template <class Call>
void find(Call& call, const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result) == cudaSuccess &&
      result == cudaDriverEntryPointSuccess)
    call = reinterpret_cast<Call>(found);
  cudaGetLastError();
}

const DriverCalls& driver() {
  static const DriverCalls calls = [] {
    DriverCalls found;
    find(found.address_range, "cuMemGetAddressRange", 3020);
    find(found.write, "cuStreamWriteValue32", 11070);
    find(found.await, "cuStreamWaitValue32", 11070);
    return found;
  }();
  return calls;
}

CUdeviceptr address(void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}
gpuError_t as_runtime(CUresult status) {
  return status == CUDA_SUCCESS ? gpuSuccess : status == CUDA_ERROR_NOT_SUPPORTED ? gpuErrorNotSupported : cudaErrorUnknown;
}

}  // namespace

bool gpu_streams_have_words() {
  return driver().all();
}
gpuError_t gpuAllocationBegin(std::byte** begin, void* memory) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const gpuError_t status = as_runtime(driver().address_range(&base, &bytes, address(memory)));
  *begin = reinterpret_cast<std::byte*>(base);  // NOLINT(performance-no-int-to-ptr): the driver counts addresses
  return status;
}
gpuError_t gpuStreamWriteWord(gpuStream_t stream, std::uint32_t* word, std::uint32_t value) {
  return as_runtime(driver().write(stream, address(word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}
gpuError_t gpuStreamAwaitWord(gpuStream_t stream, std::uint32_t* word, std::uint32_t value) {
  return as_runtime(driver().await(stream, address(word), value, CU_STREAM_WAIT_VALUE_GEQ));
}

#endif

}  // namespace baleen
