#include "model/stage.h"

#include <utility>

#include "model/family.h"
#include "ops/elementwise.h"

namespace baleen {
namespace {

std::vector<TransformerBlock> make_blocks(const ModelConfig& config, const UnitStorage& units, const StageLayers& range) {
  std::vector<TransformerBlock> blocks;
  for (std::int64_t layer = range.first_layer; layer < range.first_layer + range.layers; ++layer)
    blocks.push_back(family_of(config).block(config, units, layer));
  return blocks;
}

}  // namespace

Stage::Stage(const ModelConfig& config, const UnitStorage& units, const StageLayers& range, int first_unit, const StageOptions& options)
    : width_(config.hidden_size),
      recompute_(options.recompute),
      blocks_(make_blocks(config, units, range)),
      embedding_unit_(first_unit),
      first_block_unit_(first_unit + (range.embedding ? 1 : 0)),
      last_unit_(first_block_unit_ + static_cast<int>(range.layers)),
      head_unit_(last_unit_) {
  if (range.embedding) embedding_ = family_of(config).embedding(units);
  if (!range.head) return;
  final_norm_ = family_of(config).final_norm(config, units);
  const ParameterId weight = units.find(config.tie_word_embeddings ? family_of(config).embedding_table : "lm_head.weight");
  head_.emplace(units, weight, options.head_chunks);
  head_unit_ = weight.unit;
}

void Stage::head_needed(UnitAccess& access, int next) const {
  access.weights_needed(last_unit_, tied() ? head_unit_ : next);
  if (tied()) access.weights_needed(head_unit_, next);
}

void Stage::head_done(UnitAccess& access) const {
  if (tied()) access.weights_done(head_unit_);
  access.weights_done(last_unit_);
}

BlockDeltas Stage::block_deltas(const LayerContext& context, std::int64_t rows, Recompute recompute) const {
  const auto buffer = [&](const char* name) { return context.scratch(name, context.units.options().compute, {rows, width_}); };
  return {buffer("attention delta"), buffer("mlp delta"), recompute == Recompute::full ? buffer("middle of the stream") : Tensor()};
}

Stage::Saved Stage::forward(const LayerContext& context, const MicroBatch& batch, UnitAccess& access, const Tensor& in,
                            const Tensor& out) const {
  const std::int64_t rows = context.tensor.part_rows(batch.sequences.tokens());
  const DType dtype = context.units.options().compute;
  const Arena::Scope scope(context.ops.scratch);
  const BlockDeltas deltas = block_deltas(context, rows, recompute_);
  Saved saved;
  ResidualStream stream{in, Tensor()};
  if (embedding_) {
    stream.residual = context.save("embedding out", dtype, {rows, width_});
    access.weights_needed(embedding_unit_, embedding_unit_ + 1);
    embedding_->forward(context, batch.sequences, stream.residual, batch.ids);
    access.weights_done(embedding_unit_);
  }
  for (std::size_t l = 0; l < blocks_.size(); ++l) {
    const int unit = block_unit(l);
    access.weights_needed(unit, l + 1 < blocks_.size() || head_ ? unit + 1 : -1);  // behind the last block comes the final norm's unit
    saved.blocks.push_back(blocks_[l].forward(context, batch.sequences, deltas, stream, recompute_));
    access.weights_done(unit);
  }
  if (head_) {
    access.weights_needed(last_unit_, tied() ? head_unit_ : -1);
    saved.final_norm = final_norm_->forward(context, stream);
    access.weights_done(last_unit_);
  } else {
    ops::add(context.ops, out, stream.residual, stream.delta);
  }
  return saved;
}

void Stage::loss(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum,
                 UnitAccess& access) const {
  head_needed(access, -1);
  head_->loss(context, loss_sum, saved.final_norm.out, batch.targets);
  head_done(access);
}

void Stage::backward(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Loss& loss, UnitAccess& access,
                     const Tensor& d_out, const Tensor& d_in) const {
  const std::int64_t rows = context.tensor.part_rows(batch.sequences.tokens());
  const DType dtype = context.units.options().compute;
  const Arena::Scope scope(context.ops.scratch);
  // The gradients of the stream behind and before a block take turns in two buffers; d_out itself is left as it is.
  const Tensor buffers[] = {context.scratch("stream gradient", dtype, {rows, width_}),
                            context.scratch("stream gradient", dtype, {rows, width_})};
  Tensor behind = d_out, before = buffers[0];
  if (head_) {
    head_needed(access, blocks_.empty() ? -1 : block_unit(blocks_.size() - 1));
    access.gradients_needed(last_unit_);
    if (tied()) access.gradients_needed(head_unit_);
    head_->loss_and_backward(context, loss.sum, buffers[0], saved.final_norm.out, batch.targets, loss.gradient_scale, BackwardHalves{});
    final_norm_->backward(context, saved.final_norm, buffers[1], buffers[0], Tensor());
    head_done(access);
    access.gradients_done(last_unit_);
    if (tied() && !embedding_) access.gradients_done(head_unit_);
    behind = buffers[1];
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    const Arena::Scope block_scope(context.ops.scratch);
    const int unit = block_unit(l);
    if (l == 0 && !embedding_) before = d_in;
    access.weights_needed(unit, l > 0 ? unit - 1 : -1);
    access.gradients_needed(unit);
    blocks_[l].backward(context, batch.sequences, blocks_[l].restore(context, batch.sequences, saved.blocks[l]), before, behind);
    access.weights_done(unit);
    access.gradients_done(unit);
    behind = before;
    before = behind.data() == buffers[0].data() ? buffers[1] : buffers[0];
  }
  if (!embedding_) return;
  if (head_unit_ != embedding_unit_) access.gradients_needed(embedding_unit_);
  embedding_->backward_weight(context, batch.sequences, behind, batch.ids);
  access.gradients_done(embedding_unit_);
}

Stage::Deferred Stage::backward_input(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Loss& loss,
                                      UnitAccess& access, const Tensor& d_out, const Tensor& d_in) const {
  const std::int64_t rows = context.tensor.part_rows(batch.sequences.tokens());
  const auto gradient = [&](const char* name) { return context.scratch(name, context.units.options().compute, {rows, width_}); };
  Deferred deferred;
  Tensor behind = d_out;
  if (head_) {
    deferred.d_final_norm = gradient("final norm gradient");
    behind = gradient("stream gradient");
    head_needed(access, blocks_.empty() ? -1 : block_unit(blocks_.size() - 1));
    head_->loss_and_backward(context, loss.sum, deferred.d_final_norm, saved.final_norm.out, batch.targets, loss.gradient_scale,
                             {true, false});
    final_norm_->backward_input(context, saved.final_norm, behind, deferred.d_final_norm, Tensor());
    head_done(access);
  }
  for (std::size_t l = blocks_.size(); l-- > 0;) {
    const int unit = block_unit(l);
    const Tensor before = l == 0 && !embedding_ ? d_in : gradient("stream gradient");
    access.weights_needed(unit, l > 0 ? unit - 1 : -1);
    deferred.blocks.push_back(blocks_[l].restore(context, batch.sequences, saved.blocks[l]));
    deferred.gradients.push_back(blocks_[l].backward_input(context, batch.sequences, deferred.blocks.back(), before, behind));
    access.weights_done(unit);
    behind = before;
  }
  if (embedding_) deferred.d_embedding = behind;
  return deferred;
}

void Stage::backward_weight(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Deferred& deferred,
                            const Loss& loss, UnitAccess& access) const {
  const Arena::Scope scope(context.ops.scratch);
  if (head_) {
    // The loss was counted in the first half.
    const Tensor again = context.scratch("loss of the weight half", DType::f64, {1});
    head_needed(access, -1);
    access.gradients_needed(last_unit_);
    if (tied()) access.gradients_needed(head_unit_);
    head_->loss_and_backward(context, again, Tensor(), saved.final_norm.out, batch.targets, loss.gradient_scale, {false, true});
    final_norm_->backward_weight(context, saved.final_norm, deferred.d_final_norm);
    head_done(access);
    access.gradients_done(last_unit_);
    if (tied() && !embedding_) access.gradients_done(head_unit_);
  }
  for (std::size_t i = 0; i < deferred.blocks.size(); ++i) {
    const std::size_t l = blocks_.size() - 1 - i;
    access.gradients_needed(block_unit(l));
    blocks_[l].backward_weight(context, deferred.blocks[i], deferred.gradients[i]);
    access.gradients_done(block_unit(l));
  }
  if (!embedding_) return;
  if (head_unit_ != embedding_unit_) access.gradients_needed(embedding_unit_);
  embedding_->backward_weight(context, batch.sequences, deferred.d_embedding, batch.ids);
  access.gradients_done(embedding_unit_);
}

void Stage::next_logits(const LayerContext& context, const MicroBatch& batch, std::vector<KvCache>& caches, const Tensor& logits) const {
  const std::int64_t tokens = batch.sequences.tokens();
  const DType dtype = context.units.options().compute;
  const Arena::Scope saved_scope(context.saved);
  const Arena::Scope scope(context.ops.scratch);
  const BlockDeltas deltas = block_deltas(context, tokens, Recompute::none);
  ResidualStream stream{context.save("embedding out", dtype, {tokens, width_}), Tensor()};
  embedding_->forward(context, batch.sequences, stream.residual, batch.ids);
  for (std::size_t l = 0; l < blocks_.size(); ++l) blocks_[l].forward_cached(context, batch.sequences, caches[l], deltas, stream);
  const Norm::Saved last = final_norm_->forward(context, stream);
  head_->logits(context, logits.reshape({1, logits.elements()}), last.out.rows(tokens - 1, 1));
}

}  // namespace baleen
