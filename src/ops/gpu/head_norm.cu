#include "ops/head_norm.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256, warps_of_block = threads / warp_size;

// A warp has one head of one token; heads lie side by side in rows that are row_stride elements apart.
struct HeadPlace {
  std::int64_t row, at, compact;  // index of the head; where it begins in the rows, and in a compact array
  int lane;
};
__device__ HeadPlace head_place(std::int64_t heads, std::int64_t head_dim, std::int64_t row_stride) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps_of_block + threadIdx.x / warp_size;
  return {row, row / heads * row_stride + row % heads * head_dim, row * head_dim, static_cast<int>(threadIdx.x) % warp_size};
}

template <class T>
__global__ void forward_heads(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, T* x, std::int64_t row_stride, T* input,
                              float* rstd, const T* weight, float eps) {
  const HeadPlace head = head_place(heads, head_dim, row_stride);
  if (head.row >= rows) return;
  float squares = 0;
  for (std::int64_t i = head.lane; i < head_dim; i += warp_size) {
    const T value = x[head.at + i];
    if (input != nullptr) input[head.compact + i] = value;
    squares += as_float(value) * as_float(value);
  }
  const float scale = 1.0f / sqrtf(warp_reduce<Sum>(squares) / static_cast<float>(head_dim) + eps);
  if (head.lane == 0) rstd[head.row] = scale;
  for (std::int64_t i = head.lane; i < head_dim; i += warp_size)
    x[head.at + i] = rounded<T>(as_float(x[head.at + i]) * scale * as_float(weight[i]));
}

// With x̂ = x · rstd and g = weight · d_out, the gradient of a head is rstd · (g - x̂ · mean(g · x̂)).
template <class T>
__global__ void backward_heads(std::int64_t rows, std::int64_t heads, std::int64_t head_dim, T* d_x, std::int64_t row_stride, T* d_out,
                               const T* input, const float* rstd, const T* weight) {
  const HeadPlace head = head_place(heads, head_dim, row_stride);
  if (head.row >= rows) return;
  const float scale = rstd[head.row];
  float products = 0;
  for (std::int64_t i = head.lane; i < head_dim; i += warp_size) {
    const T d = d_x[head.at + i];
    d_out[head.compact + i] = d;
    products += as_float(weight[i]) * as_float(d) * as_float(input[head.compact + i]);
  }
  const float along_x = -scale * scale * scale * (warp_reduce<Sum>(products) / static_cast<float>(head_dim));
  for (std::int64_t i = head.lane; i < head_dim; i += warp_size)
    d_x[head.at + i] = rounded<T>(as_float(input[head.compact + i]) * along_x + as_float(weight[i]) * as_float(d_x[head.at + i]) * scale);
}

}  // namespace

void head_norm_forward(Stream& stream, const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd,
                       const Tensor& weight, float eps) {
  BALEEN_CHECK(x.dims() == 3, x.dims());
  const std::int64_t heads = x.size(1), head_dim = x.size(2), rows = x.size(0) * heads;
  BALEEN_CHECK(weight.elements() == head_dim && row_stride >= heads * head_dim && rstd.elements() == rows, weight.elements(), row_stride,
               rstd.elements());
  BALEEN_CHECK(!input.defined() || input.elements() == x.elements(), input.elements(), x.elements());
  if (rows == 0) return;
  for_element_type(x.dtype(), "the norm of heads", [&](auto zero) {
    using T = decltype(zero);
    forward_heads<T><<<blocks_for(rows, warps_of_block), threads, 0, native_stream(stream)>>>(
        rows, heads, head_dim, x.as<T>(), row_stride, input.defined() ? input.as<T>() : nullptr, rstd.as<float>(), weight.as<T>(), eps);
  });
  check_launch("the norm of heads");
}

void head_norm_backward_input(Stream& stream, const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input,
                              const Tensor& rstd, const Tensor& weight) {
  BALEEN_CHECK(d_x.dims() == 3, d_x.dims());
  const std::int64_t heads = d_x.size(1), head_dim = d_x.size(2), rows = d_x.size(0) * heads;
  BALEEN_CHECK(weight.elements() == head_dim && row_stride >= heads * head_dim && rstd.elements() == rows, weight.elements(), row_stride,
               rstd.elements());
  BALEEN_CHECK(d_out.elements() == d_x.elements() && input.elements() == d_x.elements(), d_out.elements(), input.elements(),
               d_x.elements());
  if (rows == 0) return;
  for_element_type(d_x.dtype(), "the norm of heads", [&](auto zero) {
    using T = decltype(zero);
    backward_heads<T><<<blocks_for(rows, warps_of_block), threads, 0, native_stream(stream)>>>(
        rows, heads, head_dim, d_x.as<T>(), row_stride, d_out.as<T>(), input.as<T>(), rstd.as<float>(), weight.as<T>());
  });
  check_launch("the norm of heads backward");
}

}  // namespace baleen::ops::gpu
