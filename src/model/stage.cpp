#include "model/stage.h"

#include <utility>

#include "model/family.h"

namespace baleen {
namespace {

constexpr int embedding_unit = 0;
int block_unit(std::size_t layer) {
  return embedding_unit + 1 + static_cast<int>(layer);
}

std::vector<TransformerBlock> make_blocks(const ModelConfig& config, const UnitStorage& units) {
  std::vector<TransformerBlock> blocks;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) blocks.push_back(family_of(config).block(config, units, layer));
  return blocks;
}

}  // namespace

Stage::Stage(const ModelConfig& config, const UnitStorage& units, Recompute recompute)
    : width_(config.hidden_size),
      recompute_(recompute),
      embedding_(family_of(config).embedding(units)),
      blocks_(make_blocks(config, units)),
      final_norm_(family_of(config).final_norm(config, units)),
      head_(units, units.find(config.tie_word_embeddings ? family_of(config).embedding_table : "lm_head.weight")),
      last_unit_(units.units() - 1),
      head_unit_(config.tie_word_embeddings ? embedding_unit : last_unit_) {}

void Stage::head_needed(UnitAccess& access, int next) const {
  const bool tied = head_unit_ != last_unit_;
  access.weights_needed(last_unit_, tied ? head_unit_ : next);
  if (tied) access.weights_needed(head_unit_, next);
}

void Stage::head_done(UnitAccess& access) const {
  if (head_unit_ != last_unit_) access.weights_done(head_unit_);
  access.weights_done(last_unit_);
}

BlockDeltas Stage::block_deltas(const LayerContext& context, std::int64_t tokens, Recompute recompute) const {
  const auto buffer = [&](const char* name) { return context.scratch(name, context.units.options().compute, {tokens, width_}); };
  return {buffer("attention delta"), buffer("mlp delta"), recompute == Recompute::full ? buffer("middle of the stream") : Tensor()};
}

Stage::Saved Stage::forward(const LayerContext& context, const MicroBatch& batch, UnitAccess& access) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const DType dtype = context.units.options().compute;
  const Arena::Scope scope(context.ops.scratch);
  const BlockDeltas deltas = block_deltas(context, tokens, recompute_);
  Saved saved;
  ResidualStream stream{context.save("embedding out", dtype, {tokens, width_}), Tensor()};
  access.weights_needed(embedding_unit, embedding_unit + 1);
  embedding_.forward(context, batch.sequences, stream.residual, batch.ids);
  access.weights_done(embedding_unit);
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    const int unit = block_unit(l);
    access.weights_needed(unit, unit + 1);  // behind the last block comes the final norm's unit
    saved.blocks.push_back(blocks_[l].forward(context, batch.sequences, deltas, stream, recompute_));
    access.weights_done(unit);
  }
  access.weights_needed(last_unit_, head_unit_ == last_unit_ ? -1 : head_unit_);
  saved.final_norm = final_norm_.forward(context, stream);
  access.weights_done(last_unit_);
  return saved;
}

void Stage::loss(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum,
                 UnitAccess& access) const {
  head_needed(access, -1);
  head_.loss(context, loss_sum, saved.final_norm.out, batch.targets);
  head_done(access);
}

void Stage::loss_and_backward(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum,
                              const Tensor& gradient_scale, UnitAccess& access) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const DType dtype = context.units.options().compute;
  const Arena::Scope scope(context.ops.scratch);
  Tensor d_out = context.scratch("stream gradient", dtype, {tokens, width_});
  Tensor d_in = context.scratch("stream gradient", dtype, {tokens, width_});

  const bool tied = head_unit_ != last_unit_;
  head_needed(access, blocks_.empty() ? -1 : block_unit(blocks_.size() - 1));
  access.gradients_needed(last_unit_);
  if (tied) access.gradients_needed(embedding_unit);
  head_.loss_and_backward(context, loss_sum, d_in, saved.final_norm.out, batch.targets, gradient_scale, BackwardHalves{});
  final_norm_.backward(context, saved.final_norm, d_out, d_in, Tensor());
  head_done(access);
  access.gradients_done(last_unit_);
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    const Arena::Scope block_scope(context.ops.scratch);
    const int unit = block_unit(l);
    access.weights_needed(unit, l > 0 ? unit - 1 : -1);
    access.gradients_needed(unit);
    blocks_[l].backward(context, batch.sequences, blocks_[l].restore(context, batch.sequences, saved.blocks[l]), d_in, d_out);
    access.weights_done(unit);
    access.gradients_done(unit);
    std::swap(d_in, d_out);
  }
  if (!tied) access.gradients_needed(embedding_unit);
  embedding_.backward_weight(context, batch.sequences, d_out, batch.ids);
  access.gradients_done(embedding_unit);
}

void Stage::next_logits(const LayerContext& context, const MicroBatch& batch, std::vector<KvCache>& caches, const Tensor& logits) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const DType dtype = context.units.options().compute;
  const Arena::Scope saved_scope(context.saved);
  const Arena::Scope scope(context.ops.scratch);
  const BlockDeltas deltas = block_deltas(context, tokens, Recompute::none);
  ResidualStream stream{context.save("embedding out", dtype, {tokens, width_}), Tensor()};
  embedding_.forward(context, batch.sequences, stream.residual, batch.ids);
  for (std::size_t l = 0; l < blocks_.size(); ++l) blocks_[l].forward_cached(context, batch.sequences, caches[l], deltas, stream);
  const Norm::Saved last = final_norm_.forward(context, stream);
  head_.logits(context, logits.reshape({1, logits.elements()}), last.out.rows(tokens - 1, 1));
}

}  // namespace baleen
