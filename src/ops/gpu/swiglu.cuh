// The arithmetic of SwiGLU, of the own kernels (swiglu.cu) and of those behind products (matmul_swiglu.cu, matmul_swiglu_backward.cu).
#pragma once

#include "device/gpu_api.h"

namespace baleen::ops::gpu {

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
// By the instructions' own accuracy, about 22 bits: enough for what is rounded to bf16.
__device__ inline float fast_sigmoid(float x) {
  constexpr float log2_e = 1.4426950408889634f;
  return __fdividef(1.0f, 1.0f + gpu_fast_exp2(-log2_e * x));
}

// Gradients of silu(gate) · up, of which d is the gradient; slope: sigmoid(gate).
__device__ inline float gate_gradient(float d, float gate, float up, float slope) {
  return d * up * slope * (1.0f + gate * (1.0f - slope));
}
__device__ inline float up_gradient(float d, float gate, float slope) {
  return d * (gate * slope);
}

}  // namespace baleen::ops::gpu
