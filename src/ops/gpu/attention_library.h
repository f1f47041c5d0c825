// Attention through the vendor's library of fused kernels, where it is on the machine and takes the shape. Loaded when first asked: a
// binary starts without it.
#pragma once

#include <optional>

#include "ops/attention.h"

namespace baleen::ops::gpu {

enum class AttentionPass { forward, backward };

// Bytes of workspace the library needs for the pass; nothing where there is no library, where it refuses the shape, or where the mask is
// not plainly causal. Chooses a kernel, which takes a moment, for each shape once: ask before a graph is recorded.
std::optional<std::size_t> attention_library_workspace(Stream& stream, const AttentionShape& shape, DType dtype, bool documents,
                                                       AttentionPass pass);

struct AttentionTensors {
  Tensor out, lse, q, k, v;     // lse [B, H, Tq] fp32, written by the forward pass
  Tensor d_out, d_q, d_k, d_v;  // the backward pass's
};
// False, with nothing enqueued, where the library cannot run it after all, because of how the arrays are aligned.
bool attention_library_run(Stream& stream, const AttentionShape& shape, AttentionPass pass, const AttentionTensors& tensors,
                           void* workspace);

}  // namespace baleen::ops::gpu
