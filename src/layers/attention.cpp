#include "layers/attention.h"

#include <cmath>
#include <utility>

#include "layers/ring_attention.h"
#include "ops/head_norm.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace baleen {
namespace {

// Heads that begin `offset` columns into the rows of a fused tensor. Consecutive rows stay qkv.size(1) elements apart.
Tensor heads_at(const Tensor& qkv, std::int64_t offset, std::int64_t heads, std::int64_t head_dim) {
  std::byte* data = static_cast<std::byte*>(qkv.data());
  if (data != nullptr) data += static_cast<std::size_t>(offset) * dtype_bytes(qkv.dtype());
  return Tensor(data, qkv.dtype(), {qkv.size(0), heads, head_dim});
}

}  // namespace

Attention::Attention(AttentionDimensions dimensions, Linear qkv, Linear output, bool rotary, std::optional<QkNorm> norm)
    : dimensions_(dimensions), qkv_projection_(std::move(qkv)), output_projection_(std::move(output)), rotary_(rotary), norm_(norm) {
  BALEEN_CHECK(qkv_projection_.outputs() == dimensions.qkv_columns(), qkv_projection_.outputs(), dimensions.qkv_columns());
  BALEEN_CHECK(output_projection_.inputs() == dimensions.query_columns(), output_projection_.inputs(), dimensions.query_columns());
}

Tensor Attention::query_of(const Tensor& qkv) const {
  return heads_at(qkv, 0, dimensions_.heads, dimensions_.head_dim);
}
Tensor Attention::key_of(const Tensor& qkv) const {
  return heads_at(qkv, dimensions_.query_columns(), dimensions_.kv_heads, dimensions_.head_dim);
}
Tensor Attention::value_of(const Tensor& qkv) const {
  return heads_at(qkv, dimensions_.query_columns() + dimensions_.kv_columns(), dimensions_.kv_heads, dimensions_.head_dim);
}

ops::AttentionShape Attention::shape(const Sequences& sequences) const {
  ops::AttentionShape shape;
  shape.batch = sequences.batch;
  shape.query_length = shape.key_length = sequences.length;
  shape.heads = dimensions_.heads;
  shape.kv_heads = dimensions_.kv_heads;
  shape.head_dim = dimensions_.head_dim;
  shape.query_stride = shape.key_stride = dimensions_.qkv_columns();
  shape.out_stride = dimensions_.query_columns();
  shape.scale = 1.0f / std::sqrt(static_cast<float>(dimensions_.head_dim));
  return shape;
}

void Attention::rotate(const LayerContext& context, const Sequences& sequences, const Tensor& qkv, bool inverse) const {
  if (!rotary_) return;
  const Tensor queries_and_keys = heads_at(qkv, 0, dimensions_.heads + dimensions_.kv_heads, dimensions_.head_dim);
  ops::rope(context.ops, queries_and_keys, dimensions_.qkv_columns(), sequences.cosines, sequences.sines, sequences.positions, inverse);
}

void Attention::rotate_back(const LayerContext& context, const Sequences& sequences, Gradients& gradients, bool with_bias) const {
  const Tensor d_bias = rotary_ && with_bias ? qkv_projection_.bias_gradient(context) : Tensor();
  gradients.bias_added = d_bias.defined();
  if (!d_bias.defined()) return rotate(context, sequences, gradients.d_qkv, /*inverse=*/true);
  ops::rope_backward_with_bias(context.ops, gradients.d_qkv, dimensions_.heads + dimensions_.kv_heads, sequences.cosines, sequences.sines,
                               sequences.positions, d_bias);
}

void Attention::normalise(const LayerContext& context, const Tensor& qkv, const SavedNorms& saved) const {
  const std::int64_t stride = dimensions_.qkv_columns();
  ops::head_norm_forward(context.ops, query_of(qkv), stride, saved.query, saved.query_rstd, context.units.weight(norm_->query), norm_->eps);
  ops::head_norm_forward(context.ops, key_of(qkv), stride, saved.key, saved.key_rstd, context.units.weight(norm_->key), norm_->eps);
}

Attention::Saved Attention::forward(const LayerContext& context, const Sequences& sequences, const Tensor& y, const Tensor& x) const {
  const std::int64_t tokens = sequences.tokens();
  const TensorParallel& tensor = context.tensor;
  Saved saved;
  saved.qkv = context.save("attention qkv", x.dtype(), {tokens, dimensions_.qkv_columns()});
  saved.out = context.save("attention out", x.dtype(), {tokens, dimensions_.query_columns()});
  saved.lse = context.save("attention lse", DType::f32, {sequences.batch, dimensions_.heads, sequences.length});
  tensor.gather_through(context.ops, x, "attention input", [&](std::int64_t first, const Tensor& rows) {
    qkv_projection_.forward(context, saved.qkv.rows(first, rows.size(0)), rows);
  });
  if (norm_) {
    const std::int64_t heads = dimensions_.heads, kv_heads = dimensions_.kv_heads, width = dimensions_.head_dim;
    saved.norms = {context.save("attention query input", x.dtype(), {tokens, heads, width}),
                   context.save("attention key input", x.dtype(), {tokens, kv_heads, width}),
                   context.save("attention query rstd", DType::f32, {tokens, heads}),
                   context.save("attention key rstd", DType::f32, {tokens, kv_heads})};
    normalise(context, saved.qkv, saved.norms);
  }
  rotate(context, sequences, saved.qkv);
  attend(context, sequences, saved);
  tensor.sum_through(context.ops, y, "attention summand", [&](std::int64_t first, const Tensor& rows) {
    output_projection_.forward(context, rows, saved.out.rows(first, rows.size(0)));
  });
  return saved;
}

void Attention::attend(const LayerContext& context, const Sequences& sequences, const Saved& saved) const {
  const Tensor q = query_of(saved.qkv), k = key_of(saved.qkv), v = value_of(saved.qkv);
  if (context.ring == nullptr)
    return ops::attention_forward(context.ops, shape(sequences), saved.out, saved.lse, q, k, v, sequences.document_begin);
  BALEEN_CHECK(!sequences.document_begin.defined(), "packed documents under context parallelism");
  context.ring->forward(context.ops, shape(sequences), saved.out, saved.lse, q, k, v);
}

void Attention::attend_backward(const LayerContext& context, const Sequences& sequences, const Saved& saved, const Tensor& d_qkv,
                                const Tensor& d_heads) const {
  const Tensor q = query_of(saved.qkv), k = key_of(saved.qkv), v = value_of(saved.qkv);
  const Tensor d_q = query_of(d_qkv), d_k = key_of(d_qkv), d_v = value_of(d_qkv);
  if (context.ring == nullptr)
    return ops::attention_backward(context.ops, shape(sequences), d_q, d_k, d_v, d_heads, q, k, v, saved.out, saved.lse,
                                   sequences.document_begin);
  context.ring->backward(context.ops, shape(sequences), d_q, d_k, d_v, d_heads, q, k, v, saved.out, saved.lse);
}

void Attention::forward_cached(const LayerContext& context, const Sequences& sequences, KvCache& cache, const Tensor& y,
                               const Tensor& x) const {
  BALEEN_CHECK(sequences.batch == 1 && cache.length + sequences.length <= cache.keys.size(0), cache.length, sequences.length);
  const Arena::Scope scope(context.ops.scratch);
  const std::int64_t tokens = sequences.length, kv = dimensions_.kv_columns();
  const Tensor qkv = context.scratch("attention qkv", x.dtype(), {tokens, dimensions_.qkv_columns()});
  const Tensor out = context.scratch("attention out", x.dtype(), {tokens, dimensions_.query_columns()});
  const Tensor lse = context.scratch("attention lse", DType::f32, {1, dimensions_.heads, tokens});
  qkv_projection_.forward(context, qkv, x);
  if (norm_)
    normalise(context, qkv,
              {Tensor(), Tensor(), context.scratch("attention query rstd", DType::f32, {tokens, dimensions_.heads}),
               context.scratch("attention key rstd", DType::f32, {tokens, dimensions_.kv_heads})});
  rotate(context, sequences, qkv);
  const std::size_t row_bytes = static_cast<std::size_t>(kv) * dtype_bytes(x.dtype());
  for (std::int64_t t = 0; t < tokens; ++t) {
    context.ops.stream.copy(cache.keys.rows(cache.length + t, 1).data(), key_of(qkv.rows(t, 1)).data(), row_bytes);
    context.ops.stream.copy(cache.values.rows(cache.length + t, 1).data(), value_of(qkv.rows(t, 1)).data(), row_bytes);
  }
  ops::AttentionShape cached = shape(sequences);
  cached.query_offset = cache.length;
  cache.length += tokens;
  cached.key_length = cache.length;
  cached.key_stride = kv;
  ops::attention_forward(context.ops, cached, out, lse, query_of(qkv),
                         cache.keys.reshape({cache.keys.size(0), dimensions_.kv_heads, dimensions_.head_dim}),
                         cache.values.reshape({cache.values.size(0), dimensions_.kv_heads, dimensions_.head_dim}), Tensor());
  output_projection_.forward(context, y, out);
}

void Attention::backward_input(const LayerContext& context, const Sequences& sequences, const Saved& saved, Gradients& gradients,
                               const Tensor& d_x, bool together) const {
  const std::int64_t tokens = sequences.tokens();
  gradients.d_qkv = context.scratch("attention d_qkv", saved.qkv.dtype(), {tokens, dimensions_.qkv_columns()});
  if (norm_) {
    gradients.d_query_normed = context.scratch("attention d_query", saved.qkv.dtype(), {tokens, dimensions_.heads, dimensions_.head_dim});
    gradients.d_key_normed = context.scratch("attention d_key", saved.qkv.dtype(), {tokens, dimensions_.kv_heads, dimensions_.head_dim});
  }
  {
    const Arena::Scope scope(context.ops.scratch);
    const Tensor d_heads = context.scratch("attention d_heads", saved.qkv.dtype(), {tokens, dimensions_.query_columns()});
    output_projection_.backward_input(context, d_heads, gradients.d_out);
    attend_backward(context, sequences, saved, gradients.d_qkv, d_heads);
  }
  rotate_back(context, sequences, gradients, together && !norm_);
  if (norm_) {
    const std::int64_t stride = dimensions_.qkv_columns();
    ops::head_norm_backward_input(context.ops, query_of(gradients.d_qkv), stride, gradients.d_query_normed, saved.norms.query,
                                  saved.norms.query_rstd, context.units.weight(norm_->query));
    ops::head_norm_backward_input(context.ops, key_of(gradients.d_qkv), stride, gradients.d_key_normed, saved.norms.key,
                                  saved.norms.key_rstd, context.units.weight(norm_->key));
  }
  context.tensor.sum_through(context.ops, d_x, "attention d_input", [&](std::int64_t first, const Tensor& rows) {
    qkv_projection_.backward_input(context, rows, gradients.d_qkv.rows(first, rows.size(0)));
  });
}

void Attention::backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const {
  output_projection_.backward_weight(context, gradients.d_out, saved.out);
  qkv_projection_.backward_weight(context, gradients.d_qkv, x, /*biases=*/!gradients.bias_added);
  if (!norm_) return;
  const auto norm_weight = [&](ParameterId id, const Tensor& d_normed, const Tensor& input, const Tensor& rstd) {
    if (context.units.parameter(id).trainable)
      ops::rms_norm_backward_weight(context.ops, context.units.gradient_to_add(context.ops.stream, id), d_normed, input, rstd);
  };
  norm_weight(norm_->query, gradients.d_query_normed, saved.norms.query, saved.norms.query_rstd);
  norm_weight(norm_->key, gradients.d_key_normed, saved.norms.key, saved.norms.key_rstd);
}

}  // namespace baleen
