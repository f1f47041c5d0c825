// Causal self-attention with grouped KV heads; rotary positions and a norm of each query and key head where the model has them.
#pragma once

#include <optional>

#include "layers/linear.h"
#include "ops/attention.h"

namespace baleen {

struct AttentionDimensions {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;  // H, Hkv, D
  std::int64_t query_columns() const { return heads * head_dim; }
  std::int64_t kv_columns() const { return kv_heads * head_dim; }
  std::int64_t qkv_columns() const { return query_columns() + 2 * kv_columns(); }
};

// RMSNorm of each head of q and of k before they are rotated (Qwen3); weights [D], one for all heads.
struct QkNorm {
  ParameterId query, key;
  float eps = 0;
};

// Keys and values of the tokens so far, for generation. [capacity, Hkv · D] each, for one sequence.
struct KvCache {
  Tensor keys, values;
  std::int64_t length = 0;
};

class Attention {
 public:
  // Of QK-norm: q [N, H, D] and k [N, Hkv, D] before it, and their rstd [N, H], [N, Hkv] fp32. Undefined without.
  struct SavedNorms {
    Tensor query, key, query_rstd, key_rstd;
  };
  struct Saved {
    Tensor qkv;  // [N, (H + 2·Hkv)·D], normalised and rotated
    SavedNorms norms;
    Tensor out;  // [N, H·D], before the output projection
    Tensor lse;  // [B, H, T] fp32
  };
  // Gradients that the weight half of backward needs.
  struct Gradients {
    Tensor d_out;                         // [N, C]
    Tensor d_qkv;                         // [N, (H + 2·Hkv)·D], of the projection's output
    Tensor d_query_normed, d_key_normed;  // [N, H, D], [N, Hkv, D], of QK-norm's outputs; undefined without
    bool bias_added = false;              // QKV's bias has its gradient already
  };

  // `qkv` stacks Q, K and V. `rotary`: q and k are rotated by the sequences' cosines and sines.
  Attention(AttentionDimensions dimensions, Linear qkv, Linear output, bool rotary, std::optional<QkNorm> norm = {});

  // y = attention(x), parts of [N, C] (TensorParallel).
  Saved forward(const LayerContext& context, const Sequences& sequences, const Tensor& y, const Tensor& x) const;
  // The same for the next tokens of one sequence, whose keys and values are appended to the cache.
  void forward_cached(const LayerContext& context, const Sequences& sequences, KvCache& cache, const Tensor& y, const Tensor& x) const;
  // d_x, a part of [N, C], from gradients.d_out; fills gradients.d_qkv and those of the norms. `together`: the weight half follows at once;
  // a gradient that costs less here may then be added here.
  void backward_input(const LayerContext& context, const Sequences& sequences, const Saved& saved, Gradients& gradients, const Tensor& d_x,
                      bool together) const;
  void backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const;

 private:
  ops::AttentionShape shape(const Sequences& sequences) const;
  // The attention itself, of the projected tokens; round the ring where ranks share sequences.
  void attend(const LayerContext& context, const Sequences& sequences, const Saved& saved) const;
  void attend_backward(const LayerContext& context, const Sequences& sequences, const Saved& saved, const Tensor& d_qkv,
                       const Tensor& d_heads) const;
  // The columns of q, k or v in a fused [N, (H + 2·Hkv)·D] tensor, as [N, heads, D].
  Tensor query_of(const Tensor& qkv) const;
  Tensor key_of(const Tensor& qkv) const;
  Tensor value_of(const Tensor& qkv) const;
  void rotate(const LayerContext& context, const Sequences& sequences, const Tensor& qkv, bool inverse = false) const;
  // Rotates gradients back, and adds up that of QKV's bias where the same pass can.
  void rotate_back(const LayerContext& context, const Sequences& sequences, Gradients& gradients, bool with_bias) const;
  void normalise(const LayerContext& context, const Tensor& qkv, const SavedNorms& saved) const;

  AttentionDimensions dimensions_;
  Linear qkv_projection_, output_projection_;
  bool rotary_;
  std::optional<QkNorm> norm_;
};

}  // namespace baleen
