// Causal self-attention with rotary positions and grouped KV heads.
#pragma once

#include "layers/linear.h"
#include "ops/attention.h"

namespace baleen {

struct AttentionDimensions {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;  // H, Hkv, D
  std::int64_t query_columns() const { return heads * head_dim; }
  std::int64_t kv_columns() const { return kv_heads * head_dim; }
  std::int64_t qkv_columns() const { return query_columns() + 2 * kv_columns(); }
};

// Keys and values of the tokens so far, for generation. [capacity, Hkv · D] each, for one sequence.
struct KvCache {
  Tensor keys, values;
  std::int64_t length = 0;
};

class Attention {
 public:
  struct Saved {
    Tensor qkv;  // [N, (H + 2·Hkv)·D], rotated
    Tensor out;  // [N, H·D], before the output projection
    Tensor lse;  // [B, H, T] fp32
  };
  // Gradients that the weight half of backward needs.
  struct Gradients {
    Tensor d_out;  // [N, C]
    Tensor d_qkv;  // [N, (H + 2·Hkv)·D]
  };

  Attention(const UnitStorage& units, AttentionDimensions dimensions, ParameterId q, ParameterId k, ParameterId v, ParameterId output);

  // y [N, C] = attention(x [N, C]).
  Saved forward(const LayerContext& context, const Sequences& sequences, const Tensor& y, const Tensor& x) const;
  // The same for the next tokens of one sequence, whose keys and values are appended to the cache.
  void forward_cached(const LayerContext& context, const Sequences& sequences, KvCache& cache, const Tensor& y, const Tensor& x) const;
  // d_x [N, C] from gradients.d_out; fills gradients.d_qkv.
  void backward_input(const LayerContext& context, const Sequences& sequences, const Saved& saved, Gradients& gradients, const Tensor& d_x) const;
  void backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const;

 private:
  ops::AttentionShape shape(const Sequences& sequences) const;
  // The columns of q, k or v in a fused [N, (H + 2·Hkv)·D] tensor, as [N, heads, D].
  Tensor query_of(const Tensor& qkv) const;
  Tensor key_of(const Tensor& qkv) const;
  Tensor value_of(const Tensor& qkv) const;
  void rotate(const LayerContext& context, const Sequences& sequences, const Tensor& qkv, bool inverse) const;

  AttentionDimensions dimensions_;
  Linear qkv_projection_, output_projection_;
};

}  // namespace baleen
