// Words that streams write and wait for: the vendor's driver has them, which is asked for when first used, so that this program starts
// without it.
#include "device/gpu_runtime_api.h"

#ifndef __HIP_PLATFORM_AMD__
#include <cuda.h>

#include <vector>
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
gpuError_t gpuStreamWords(gpuStream_t stream, std::uint32_t value, std::span<std::uint32_t* const> written,
                          std::span<std::uint32_t* const> awaited) {
  gpuError_t status = gpuSuccess;
  for (std::uint32_t* const word : written)
    if (status == gpuSuccess) status = hipStreamWriteValue32(stream, word, value, 0);
  for (std::uint32_t* const word : awaited)
    if (status == gpuSuccess) status = hipStreamWaitValue32(stream, word, value, hipStreamWaitValueGte, 0xffffffff);
  return status;
}

#else

namespace {

// Of the driver; nullptr where it is missing or too old.
struct DriverCalls {
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuStreamBatchMemOp) words = nullptr;
  bool all() const { return address_range != nullptr && words != nullptr; }
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
    find(found.words, "cuStreamBatchMemOp", 11070);
    return found;
  }();
  return calls;
}

CUdeviceptr address(void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}
gpuError_t as_runtime(CUresult status) {
  return static_cast<gpuError_t>(status);  // the runtime counts errors as the driver does
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
gpuError_t gpuStreamWords(gpuStream_t stream, std::uint32_t value, std::span<std::uint32_t* const> written,
                          std::span<std::uint32_t* const> awaited) {
  std::vector<CUstreamBatchMemOpParams> batch;
  batch.reserve(written.size() + awaited.size());
  for (std::uint32_t* const word : written) {
    CUstreamBatchMemOpParams& one = batch.emplace_back();
    one.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    one.writeValue.address = address(word);
    one.writeValue.value = value;
    one.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // with a barrier before it: this version of the call has no other
  }
  for (std::uint32_t* const word : awaited) {
    CUstreamBatchMemOpParams& one = batch.emplace_back();
    one.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    one.waitValue.address = address(word);
    one.waitValue.value = value;
    one.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  return as_runtime(driver().words(stream, static_cast<unsigned>(batch.size()), batch.data(), 0));
}

#endif

}  // namespace baleen
