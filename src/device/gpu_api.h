// The GPU vendor's runtime and matrix library under neutral names. The only file of the project that says whose they are; for sources that
// the GPU compiler reads and for their host-side helpers. Included by device/gpu and ops/gpu alone.
#pragma once

#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime.h>
#ifndef __HIPCC__
#include <hipblas/hipblas.h>
#endif
#else
#include <cublasLt.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif
#endif

#include <string>

namespace baleen {

class Stream;

// AMD's runtime has NVIDIA's functions under a prefix of its own; where it differs the two stand side by side below.
#ifdef __HIP_PLATFORM_AMD__
#define BALEEN_GPU_NAME(name) hip##name
#else
#define BALEEN_GPU_NAME(name) cuda##name
#endif

// Runtime types.
using gpuError_t = BALEEN_GPU_NAME(Error_t);
using gpuStream_t = BALEEN_GPU_NAME(Stream_t);
using gpuEvent_t = BALEEN_GPU_NAME(Event_t);
using gpuGraph_t = BALEEN_GPU_NAME(Graph_t);
using gpuGraphExec_t = BALEEN_GPU_NAME(GraphExec_t);
#ifdef __HIP_PLATFORM_AMD__
using gpuDeviceProp = hipDeviceProp_t;
#else
using gpuDeviceProp = cudaDeviceProp;
#endif

using gpuStreamCaptureStatus = BALEEN_GPU_NAME(StreamCaptureStatus);

inline constexpr auto gpuSuccess = BALEEN_GPU_NAME(Success);
inline constexpr auto gpuStreamCaptureStatusNone = BALEEN_GPU_NAME(StreamCaptureStatusNone);
inline constexpr auto gpuEventDefault = BALEEN_GPU_NAME(EventDefault);
inline constexpr auto gpuErrorMemoryAllocation = BALEEN_GPU_NAME(ErrorMemoryAllocation);
inline constexpr auto gpuErrorNotReady = BALEEN_GPU_NAME(ErrorNotReady);
inline constexpr auto gpuMemcpyDefault = BALEEN_GPU_NAME(MemcpyDefault);
inline constexpr auto gpuStreamNonBlocking = BALEEN_GPU_NAME(StreamNonBlocking);
inline constexpr auto gpuEventDisableTiming = BALEEN_GPU_NAME(EventDisableTiming);
inline constexpr auto gpuStreamCaptureModeThreadLocal = BALEEN_GPU_NAME(StreamCaptureModeThreadLocal);
inline constexpr auto gpuFuncAttributeMaxDynamicSharedMemorySize = BALEEN_GPU_NAME(FuncAttributeMaxDynamicSharedMemorySize);

// Runtime functions.
inline constexpr auto gpuGetErrorString = &BALEEN_GPU_NAME(GetErrorString);
inline constexpr auto gpuGetLastError = &BALEEN_GPU_NAME(GetLastError);
inline constexpr auto gpuGetDeviceCount = &BALEEN_GPU_NAME(GetDeviceCount);
inline constexpr auto gpuSetDevice = &BALEEN_GPU_NAME(SetDevice);
inline constexpr auto gpuFree = &BALEEN_GPU_NAME(Free);
inline constexpr auto gpuMemset = &BALEEN_GPU_NAME(Memset);
inline constexpr auto gpuMemsetAsync = &BALEEN_GPU_NAME(MemsetAsync);
inline constexpr auto gpuMemset2DAsync = &BALEEN_GPU_NAME(Memset2DAsync);
inline constexpr auto gpuMemcpyAsync = &BALEEN_GPU_NAME(MemcpyAsync);
inline constexpr auto gpuMemGetInfo = &BALEEN_GPU_NAME(MemGetInfo);
inline constexpr auto gpuDeviceSynchronize = &BALEEN_GPU_NAME(DeviceSynchronize);
inline constexpr auto gpuStreamDestroy = &BALEEN_GPU_NAME(StreamDestroy);
inline constexpr auto gpuStreamBeginCapture = &BALEEN_GPU_NAME(StreamBeginCapture);
inline constexpr auto gpuStreamEndCapture = &BALEEN_GPU_NAME(StreamEndCapture);
inline constexpr auto gpuStreamIsCapturing = &BALEEN_GPU_NAME(StreamIsCapturing);
inline constexpr auto gpuEventSynchronize = &BALEEN_GPU_NAME(EventSynchronize);
inline constexpr auto gpuEventElapsedTime = &BALEEN_GPU_NAME(EventElapsedTime);
inline constexpr auto gpuEventDestroy = &BALEEN_GPU_NAME(EventDestroy);
inline constexpr auto gpuEventQuery = &BALEEN_GPU_NAME(EventQuery);
inline constexpr auto gpuGraphDestroy = &BALEEN_GPU_NAME(GraphDestroy);
inline constexpr auto gpuGraphExecDestroy = &BALEEN_GPU_NAME(GraphExecDestroy);
inline constexpr auto gpuGraphLaunch = &BALEEN_GPU_NAME(GraphLaunch);
#ifdef __HIP_PLATFORM_AMD__
// Its profiler is told by a library of its own.
inline gpuError_t gpuProfilerStart() {
  return gpuSuccess;
}
inline gpuError_t gpuProfilerStop() {
  return gpuSuccess;
}
#else
inline constexpr auto gpuProfilerStart = &cudaProfilerStart;
inline constexpr auto gpuProfilerStop = &cudaProfilerStop;
#endif
// Those that the vendor overloads or gives default arguments, which a pointer cannot carry.
inline gpuError_t gpuMalloc(void** data, std::size_t bytes) {
  return BALEEN_GPU_NAME(Malloc)(data, bytes);
}
// A pointer that the runtime has never seen is the host's.
inline bool gpuIsDevicePointer(const void* pointer) {
#ifdef __HIP_PLATFORM_AMD__
  hipPointerAttribute_t attributes{};
  if (hipPointerGetAttributes(&attributes, pointer) == hipSuccess) return attributes.memoryType == hipMemoryTypeDevice;
#else
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess) return attributes.type == cudaMemoryTypeDevice;
#endif
  BALEEN_GPU_NAME(GetLastError)();
  return false;
}
inline gpuError_t gpuGetDeviceProperties(gpuDeviceProp* properties, int index) {
  return BALEEN_GPU_NAME(GetDeviceProperties)(properties, index);
}
// The instruction set of a GPU, for people, and whether this build's kernels are compiled for it.
inline std::string gpu_instruction_set(const gpuDeviceProp& properties) {
#ifdef __HIP_PLATFORM_AMD__
  return properties.gcnArchName;
#else
  return "compute capability " + std::to_string(properties.major) + "." + std::to_string(properties.minor);
#endif
}
inline bool gpu_runs_kernels(const gpuDeviceProp& properties) {
#ifdef __HIP_PLATFORM_AMD__
  return std::string(properties.gcnArchName).starts_with("gfx90a");  // cmake/hip.cmake; features such as xnack stand behind it
#else
  return properties.major == 9 && properties.minor == 0;  // cmake/cuda.cmake
#endif
}
// Page-locks memory of the host, so that copies from and to it need no help of the processor.
inline gpuError_t gpuPinHost(void* data, std::size_t bytes) {
  return BALEEN_GPU_NAME(HostRegister)(data, bytes, BALEEN_GPU_NAME(HostRegisterPortable));
}
inline gpuError_t gpuUnpinHost(void* data) {
  return BALEEN_GPU_NAME(HostUnregister)(data);
}
inline gpuError_t gpuStreamCreateWithFlags(gpuStream_t* stream, unsigned flags) {
  return BALEEN_GPU_NAME(StreamCreateWithFlags)(stream, flags);
}
inline gpuError_t gpuEventCreateWithFlags(gpuEvent_t* event, unsigned flags) {
  return BALEEN_GPU_NAME(EventCreateWithFlags)(event, flags);
}
inline gpuError_t gpuEventRecord(gpuEvent_t event, gpuStream_t stream) {
  return BALEEN_GPU_NAME(EventRecord)(event, stream);
}
inline gpuError_t gpuStreamWaitEvent(gpuStream_t stream, gpuEvent_t event) {
  return BALEEN_GPU_NAME(StreamWaitEvent)(stream, event, 0);
}
inline gpuError_t gpuGraphInstantiate(gpuGraphExec_t* executable, gpuGraph_t graph) {
#ifdef __HIP_PLATFORM_AMD__
  return hipGraphInstantiate(executable, graph, nullptr, nullptr, 0);
#else
  return cudaGraphInstantiate(executable, graph, 0);
#endif
}
// A kernel that uses more shared memory than the default limit must say so once.
template <class Kernel>
gpuError_t gpuAllowSharedMemory(Kernel* kernel, int bytes) {
  return BALEEN_GPU_NAME(FuncSetAttribute)(reinterpret_cast<const void*>(kernel), gpuFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

// For kernels. Warps are 32 lanes everywhere: on a wavefront of 64 the shuffles stay inside their half.
#if defined(__HIP_PLATFORM_AMD__) && defined(__HIPCC__)
__device__ inline unsigned short gpu_bfloat16_bits(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<unsigned short>(bits >> 16 | 0x40u);  // stays not a number
  return static_cast<unsigned short>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
__device__ inline float gpu_fast_exp2(float x) {
  return exp2f(x);
}
template <class V>
__device__ V gpu_shuffle(V value, int lane) {
  return __shfl(value, lane, 32);
}
template <class V>
__device__ V gpu_shuffle_xor(V value, int distance) {
  return __shfl_xor(value, distance, 32);
}
__device__ inline unsigned gpu_ballot(bool vote) {
  return static_cast<unsigned>(__ballot(vote) >> (__lane_id() & 32u));
}
__device__ inline void gpu_sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}
__device__ inline void gpu_copy_16(void* shared, const void* from) {
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(from);
}
__device__ inline void gpu_end_group() {}
__device__ inline void gpu_await_all_but_last_group() {}
#elif defined(__CUDACC__)
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
// The value of another lane of the warp, all of which take part.
template <class V>
__device__ V gpu_shuffle(V value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <class V>
__device__ V gpu_shuffle_xor(V value, int distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}
// A bit for each lane that votes.
__device__ inline unsigned gpu_ballot(bool vote) {
  return __ballot_sync(0xffffffffu, vote);
}
// What a lane wrote to shared memory before is seen by the others of its warp after.
__device__ inline void gpu_sync_warp() {
  __syncwarp();
}
// Copies 16 bytes to shared memory while the thread goes on. Copies form groups; after waiting, the thread itself sees what they wrote.
__device__ inline void gpu_copy_16(void* shared, const void* from) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void gpu_end_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ inline void gpu_await_all_but_last_group() {
  asm volatile("cp.async.wait_group 1;" ::: "memory");
}
#endif

#ifdef __HIP_PLATFORM_AMD__
#ifndef __HIPCC__
// The matrix library, linked (ops/gpu/plain_matmul.cpp).
using gpublasStatus_t = hipblasStatus_t;
using gpublasHandle_t = hipblasHandle_t;
using gpublasOperation_t = hipblasOperation_t;
using gpublasDataType_t = hipblasDatatype_t;
inline constexpr auto gpublas_success = HIPBLAS_STATUS_SUCCESS;
inline constexpr auto gpublas_normal = HIPBLAS_OP_N;
inline constexpr auto gpublas_transpose = HIPBLAS_OP_T;
inline constexpr auto gpublas_f32 = HIPBLAS_R_32F;
inline constexpr auto gpublas_bf16 = HIPBLAS_R_16B;
inline constexpr auto gpublasCreate = &hipblasCreate;
inline constexpr auto gpublasDestroy = &hipblasDestroy;
inline constexpr auto gpublasSetStream = &hipblasSetStream;
// Columns of columns, sums in fp32.
inline gpublasStatus_t gpublasGemm(gpublasHandle_t handle, gpublasOperation_t a_operation, gpublasOperation_t b_operation, int m, int n,
                                   int k, const float* alpha, const void* a, gpublasDataType_t a_type, int a_stride, const void* b,
                                   gpublasDataType_t b_type, int b_stride, const float* beta, void* c, gpublasDataType_t c_type,
                                   int c_stride) {
  return hipblasGemmEx(handle, a_operation, b_operation, m, n, k, alpha, a, a_type, a_stride, b, b_type, b_stride, beta, c, c_type,
                       c_stride, HIPBLAS_R_32F, HIPBLAS_GEMM_DEFAULT);
}
#endif
#else
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
// How a product that is cut along its sum adds the parts: a mask. In the compute type, and nothing else.
inline constexpr auto gpublas_pref_reductions = CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
inline constexpr std::uint32_t gpublas_reduction_in_compute_type = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

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
#endif

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

#undef BALEEN_GPU_NAME

}  // namespace baleen
