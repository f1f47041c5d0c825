#include "ops/gpu/launch.h"

#include <string>

#include "device/gpu_api.h"

namespace baleen::ops::gpu {

void refuse_dtype(const char* operation, DType dtype) {
  throw Error(ExitCode::bad_config, std::string(operation) + " has no " + std::string(dtype_name(dtype)) + " version on the GPU",
              "training.dtype", "use dtype = \"fp32\"");
}

void require_fp32(const char* operation, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors)
    if (tensor->defined() && tensor->dtype() != DType::f32) refuse_dtype(operation, tensor->dtype());
}

void check_launch(const char* operation) {
  gpu_check(gpuGetLastError(), operation);
}

unsigned blocks_for(std::int64_t count, std::int64_t size) {
  const std::int64_t blocks = (count + size - 1) / size;
  BALEEN_CHECK(blocks <= 0x7fffffff, count, size);
  return static_cast<unsigned>(blocks);
}

}  // namespace baleen::ops::gpu
