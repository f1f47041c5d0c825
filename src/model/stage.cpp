#include "model/stage.h"

#include <utility>

#include "model/family.h"

namespace baleen {
namespace {

constexpr int embedding_unit = 0;

std::vector<TransformerBlock> make_blocks(const ModelConfig& config, const UnitStorage& units) {
  std::vector<TransformerBlock> blocks;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) blocks.push_back(family_of(config).block(config, units, layer));
  return blocks;
}

}  // namespace

Stage::Stage(const ModelConfig& config, const UnitStorage& units)
    : width_(config.hidden_size),
      embedding_(family_of(config).embedding(units)),
      blocks_(make_blocks(config, units)),
      final_norm_(family_of(config).final_norm(config, units)),
      head_(units, units.find(config.tie_word_embeddings ? family_of(config).embedding_table : "lm_head.weight")),
      head_unit_(units.units() - 1) {}

Stage::Saved Stage::forward(const LayerContext& context, const MicroBatch& batch) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const Arena::Scope scope(context.ops.scratch);
  const BlockDeltas deltas{context.scratch("attention delta", DType::f32, {tokens, width_}),
                           context.scratch("mlp delta", DType::f32, {tokens, width_})};
  Saved saved;
  ResidualStream stream{context.save("embedding out", DType::f32, {tokens, width_}), Tensor()};
  embedding_.forward(context, batch.sequences, stream.residual, batch.ids);
  for (const TransformerBlock& block : blocks_) saved.blocks.push_back(block.forward(context, batch.sequences, deltas, stream));
  saved.final_norm = final_norm_.forward(context, stream);
  return saved;
}

void Stage::loss(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum) const {
  head_.loss(context, loss_sum, saved.final_norm.out, batch.targets);
}

void Stage::loss_and_backward(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum,
                              const Tensor& gradient_scale, const UnitComplete& complete) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const Arena::Scope scope(context.ops.scratch);
  Tensor d_out = context.scratch("stream gradient", DType::f32, {tokens, width_});
  Tensor d_in = context.scratch("stream gradient", DType::f32, {tokens, width_});

  head_.loss_and_backward(context, loss_sum, d_in, saved.final_norm.out, batch.targets, gradient_scale, BackwardHalves{});
  final_norm_.backward_input(context, saved.final_norm, d_out, d_in, Tensor());
  final_norm_.backward_weight(context, saved.final_norm, d_in);
  complete(head_unit_);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    const Arena::Scope block_scope(context.ops.scratch);
    const auto gradients = blocks_[l].backward_input(context, batch.sequences, saved.blocks[l], d_in, d_out);
    blocks_[l].backward_weight(context, saved.blocks[l], gradients);
    complete(embedding_unit + 1 + static_cast<int>(l));
    std::swap(d_in, d_out);
  }
  embedding_.backward_weight(context, batch.sequences, d_out, batch.ids);
  complete(embedding_unit);
}

void Stage::next_logits(const LayerContext& context, const MicroBatch& batch, std::vector<KvCache>& caches, const Tensor& logits) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const Arena::Scope saved_scope(context.saved);
  const Arena::Scope scope(context.ops.scratch);
  const BlockDeltas deltas{context.scratch("attention delta", DType::f32, {tokens, width_}),
                           context.scratch("mlp delta", DType::f32, {tokens, width_})};
  ResidualStream stream{context.save("embedding out", DType::f32, {tokens, width_}), Tensor()};
  embedding_.forward(context, batch.sequences, stream.residual, batch.ids);
  for (std::size_t l = 0; l < blocks_.size(); ++l) blocks_[l].forward_cached(context, batch.sequences, caches[l], deltas, stream);
  const Norm::Saved last = final_norm_.forward(context, stream);
  head_.logits(context, logits.reshape({1, logits.elements()}), last.out.rows(tokens - 1, 1));
}

}  // namespace baleen
