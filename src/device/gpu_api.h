// The GPU vendor's runtime and matrix library under neutral names. The only file of the project that says whose they are; for sources that
// the GPU compiler reads and for their host-side helpers. Included by device/gpu and ops/gpu alone.
#pragma once

#include <cublasLt.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif

namespace baleen {

class Stream;

// Runtime types.
using gpuError_t = cudaError_t;
using gpuStream_t = cudaStream_t;
using gpuEvent_t = cudaEvent_t;
using gpuGraph_t = cudaGraph_t;
using gpuGraphExec_t = cudaGraphExec_t;
using gpuDeviceProp = cudaDeviceProp;

using gpuStreamCaptureStatus = cudaStreamCaptureStatus;

inline constexpr auto gpuSuccess = cudaSuccess;
inline constexpr auto gpuStreamCaptureStatusNone = cudaStreamCaptureStatusNone;
inline constexpr auto gpuEventDefault = cudaEventDefault;
inline constexpr auto gpuErrorMemoryAllocation = cudaErrorMemoryAllocation;
inline constexpr auto gpuErrorNotReady = cudaErrorNotReady;
inline constexpr auto gpuMemcpyDefault = cudaMemcpyDefault;
inline constexpr auto gpuStreamNonBlocking = cudaStreamNonBlocking;
inline constexpr auto gpuEventDisableTiming = cudaEventDisableTiming;
inline constexpr auto gpuStreamCaptureModeThreadLocal = cudaStreamCaptureModeThreadLocal;
inline constexpr auto gpuFuncAttributeMaxDynamicSharedMemorySize = cudaFuncAttributeMaxDynamicSharedMemorySize;

// Runtime functions.
inline constexpr auto gpuGetErrorString = &cudaGetErrorString;
inline constexpr auto gpuGetLastError = &cudaGetLastError;
inline constexpr auto gpuGetDeviceCount = &cudaGetDeviceCount;
inline constexpr auto gpuSetDevice = &cudaSetDevice;
inline constexpr auto gpuFree = &cudaFree;
inline constexpr auto gpuMemset = &cudaMemset;
inline constexpr auto gpuMemsetAsync = &cudaMemsetAsync;
inline constexpr auto gpuMemset2DAsync = &cudaMemset2DAsync;
inline constexpr auto gpuMemcpyAsync = &cudaMemcpyAsync;
inline constexpr auto gpuMemGetInfo = &cudaMemGetInfo;
inline constexpr auto gpuDeviceSynchronize = &cudaDeviceSynchronize;
inline constexpr auto gpuStreamDestroy = &cudaStreamDestroy;
inline constexpr auto gpuStreamBeginCapture = &cudaStreamBeginCapture;
inline constexpr auto gpuStreamEndCapture = &cudaStreamEndCapture;
inline constexpr auto gpuStreamIsCapturing = &cudaStreamIsCapturing;
inline constexpr auto gpuEventSynchronize = &cudaEventSynchronize;
inline constexpr auto gpuEventElapsedTime = &cudaEventElapsedTime;
inline constexpr auto gpuEventDestroy = &cudaEventDestroy;
inline constexpr auto gpuEventQuery = &cudaEventQuery;
inline constexpr auto gpuGraphDestroy = &cudaGraphDestroy;
inline constexpr auto gpuGraphExecDestroy = &cudaGraphExecDestroy;
inline constexpr auto gpuGraphLaunch = &cudaGraphLaunch;
inline constexpr auto gpuProfilerStart = &cudaProfilerStart;
inline constexpr auto gpuProfilerStop = &cudaProfilerStop;
// Those that the vendor overloads or gives default arguments, which a pointer cannot carry.
inline gpuError_t gpuMalloc(void** data, std::size_t bytes) {
  return cudaMalloc(data, bytes);
}
// A pointer that the runtime has never seen is the host's.
inline bool gpuIsDevicePointer(const void* pointer) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess) return attributes.type == cudaMemoryTypeDevice;
  cudaGetLastError();
  return false;
}
inline gpuError_t gpuGetDeviceProperties(gpuDeviceProp* properties, int index) {
  return cudaGetDeviceProperties(properties, index);
}
// Page-locks memory of the host, so that copies from and to it need no help of the processor.
inline gpuError_t gpuPinHost(void* data, std::size_t bytes) {
  return cudaHostRegister(data, bytes, cudaHostRegisterPortable);
}
inline gpuError_t gpuUnpinHost(void* data) {
  return cudaHostUnregister(data);
}
inline gpuError_t gpuStreamCreateWithFlags(gpuStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithFlags(stream, flags);
}
inline gpuError_t gpuEventCreateWithFlags(gpuEvent_t* event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}
inline gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream) {
  return cudaEventRecord(event, stream);
}
inline gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event) {
  return cudaStreamWaitEvent(stream, event, 0);
}
inline gpuError_t gpuGraphInstantiate(gpuGraphExec_t* executable, gpuGraph_t graph) {
  return cudaGraphInstantiate(executable, graph, 0);
}
// A kernel that uses more shared memory than the default limit must say so once.
template <class Kernel>
gpuError_t gpuAllowSharedMemory(Kernel* kernel, int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), gpuFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

#ifdef __CUDACC__
// The nearest bfloat16, ties to even, in one instruction.
__device__ inline unsigned short gpu_bfloat16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
// 2ˣ to about 22 bits, in one instruction.
__device__ inline float gpu_fast_exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif

// The matrix library, which is loaded when the first product runs: a program that multiplies on the CPU starts without it.
using gpublasStatus_t = cublasStatus_t;
using gpublasLtHandle_t = cublasLtHandle_t;
using gpublasLtMatmulDesc_t = cublasLtMatmulDesc_t;
using gpublasLtMatrixLayout_t = cublasLtMatrixLayout_t;
using gpublasLtMatmulPreference_t = cublasLtMatmulPreference_t;
using gpublasLtMatmulAlgo_t = cublasLtMatmulAlgo_t;
using gpublasLtMatmulHeuristicResult_t = cublasLtMatmulHeuristicResult_t;
using gpublasOperation_t = cublasOperation_t;
using gpublasDataType_t = cudaDataType_t;
inline constexpr auto gpublas_success = CUBLAS_STATUS_SUCCESS;
inline constexpr auto gpublas_not_supported = CUBLAS_STATUS_NOT_SUPPORTED;
inline constexpr auto gpublas_normal = CUBLAS_OP_N;
inline constexpr auto gpublas_transpose = CUBLAS_OP_T;
inline constexpr auto gpublas_f32 = CUDA_R_32F;
inline constexpr auto gpublas_bf16 = CUDA_R_16BF;
inline constexpr auto gpublas_compute_f32 = CUBLAS_COMPUTE_32F;  // full fp32 products, no TF32
using gpublasLtEpilogue_t = cublasLtEpilogue_t;
inline constexpr auto gpublas_epilogue_bias = CUBLASLT_EPILOGUE_BIAS;
inline constexpr auto gpublas_epilogue_bias_and_gelu = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
inline constexpr auto gpublas_epilogue_gelu_gradient = CUBLASLT_EPILOGUE_DGELU;
inline constexpr auto gpublas_desc_before = CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER;
inline constexpr auto gpublas_desc_before_stride = CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD;
inline constexpr auto gpublas_desc_epilogue = CUBLASLT_MATMUL_DESC_EPILOGUE;
inline constexpr auto gpublas_desc_bias = CUBLASLT_MATMUL_DESC_BIAS_POINTER;
inline constexpr auto gpublas_desc_transa = CUBLASLT_MATMUL_DESC_TRANSA;
inline constexpr auto gpublas_desc_transb = CUBLASLT_MATMUL_DESC_TRANSB;
inline constexpr auto gpublas_pref_workspace = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
inline constexpr auto gpublas_pref_align_a = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
inline constexpr auto gpublas_pref_align_b = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES;
inline constexpr auto gpublas_pref_align_c = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES;
inline constexpr auto gpublas_pref_align_d = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES;

struct GpuBlasFunctions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
};
// Throws Error (ExitCode::bad_config) when the library is not on this machine.
const GpuBlasFunctions& gpu_blas();

// Throws Error naming `call` when it did not succeed.
void gpu_check(gpuError_t status, const char* call);
// The runtime's handle of a GPU stream, whose device becomes the calling thread's current one.
gpuStream_t native_stream(Stream& stream);

struct GpuStreamTraits {
  int device = 0;              // becomes the calling thread's current one
  bool deterministic = false;  // operations give the same bits twice, at the price of speed
  bool recording = false;      // a graph is being recorded: nothing may run or be allocated
};
// Of a GPU stream, a measuring one too.
GpuStreamTraits gpu_stream_traits(Stream& stream);

}  // namespace baleen
