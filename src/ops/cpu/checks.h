// Argument checks the CPU operations share. Shapes are promises of the layers, so a wrong one is a programming error.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>

#include "base/error.h"
#include "tensor/tensor.h"

namespace baleen::ops::cpu {

// CPU operations compute in fp32. A model in another dtype is the user's choice, so the message says what to change.
inline void require_fp32(const char* operation, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors)
    if (tensor->defined() && tensor->dtype() != DType::f32)
      throw Error(ExitCode::bad_config,
                  std::string(operation) + " has no " + std::string(dtype_name(tensor->dtype())) + " version on the CPU", "training.dtype",
                  "use dtype = \"fp32\" with device = \"cpu\"");
}

// Activations and weights are fp32 or bf16.
inline void require_compute_dtype(const char* operation, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors)
    if (tensor->defined() && tensor->dtype() != DType::bf16) require_fp32(operation, {tensor});
}

// Gradients of weights are fp32, or bf16 where activations are.
inline void require_gradient_dtype(const char* operation, std::initializer_list<const Tensor*> gradients, DType compute) {
  const DType dtype = (*gradients.begin())->dtype();
  for (const Tensor* gradient : gradients)
    BALEEN_CHECK(gradient->dtype() == dtype && (dtype == DType::f32 || (dtype == DType::bf16 && compute == DType::bf16)), operation,
                 dtype_name(gradient->dtype()), dtype_name(compute));
}

// One dtype for all of them: layers promise it.
inline void require_dtype(const char* operation, DType dtype, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors)
    BALEEN_CHECK(!tensor->defined() || tensor->dtype() == dtype, operation, dtype_name(tensor->dtype()), dtype_name(dtype));
}

// The elements of a tensor from number `begin` on; null where the tensor is undefined.
template <class T>
T* elements_from(const Tensor& tensor, std::int64_t begin) {
  return tensor.defined() ? tensor.as<T>() + begin : nullptr;
}

// Each of the indices in [0, limit), or equal to `except`. A wrong one would read or write outside the array.
inline void check_indices(const Tensor& indices, std::int64_t limit, std::optional<std::int32_t> except = {}) {
  const std::int32_t* values = indices.as<std::int32_t>();
  const std::int64_t count = indices.elements();
  std::int64_t bad = -1;
  for (std::int64_t i = 0; i < count; ++i)
    if ((values[i] < 0 || values[i] >= limit) && values[i] != except) bad = i;
  BALEEN_CHECK(bad < 0, "index", values[bad], "at", bad, "limit", limit);
}

}  // namespace baleen::ops::cpu
