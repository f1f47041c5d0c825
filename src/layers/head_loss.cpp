#include "layers/head_loss.h"

#include <algorithm>

#include "ops/cross_entropy.h"

namespace baleen {

HeadLoss::HeadLoss(const UnitStorage& units, ParameterId weight) : head_(units, {weight}) {}

std::int64_t HeadLoss::chunk_rows(const Stream& stream, std::int64_t tokens) const {
  // Large enough for full-rate products. On the CPU small enough that a chunk's logits stay near the cache; a GPU streams them, and pays for
  // adding each chunk's part to the weight's gradient: there they are few, and of one size.
  const bool gpu = stream.kind() == DeviceKind::gpu;
  const std::int64_t chunk_elements = std::int64_t{gpu ? 1280 : 4} << 20;
  std::int64_t rows = std::max<std::int64_t>(64, chunk_elements / head_.outputs() / 64 * 64);
  if (gpu) {
    const std::int64_t chunks = (tokens + rows - 1) / rows;
    rows = (tokens + 64 * chunks - 1) / (64 * chunks) * 64;
  }
  return std::min(rows, tokens);
}

void HeadLoss::loss(const LayerContext& context, const Tensor& loss_sum, const Tensor& x, const Tensor& targets) const {
  const std::int64_t tokens = x.size(0), rows = chunk_rows(context.ops.stream, tokens);
  const Arena::Scope scope(context.ops.scratch);
  const Tensor logits = context.scratch("head logits chunk", x.dtype(), {rows, head_.outputs()});
  for (std::int64_t begin = 0; begin < tokens; begin += rows) {
    const std::int64_t count = std::min(rows, tokens - begin);
    head_.forward(context, logits.rows(0, count), x.rows(begin, count));
    ops::cross_entropy_forward(context.ops, loss_sum, logits.rows(0, count), targets.rows(begin, count));
  }
}

void HeadLoss::loss_and_backward(const LayerContext& context, const Tensor& loss_sum, const Tensor& d_x, const Tensor& x, const Tensor& targets,
                                 const Tensor& gradient_scale, BackwardHalves halves) const {
  const std::int64_t tokens = x.size(0), rows = chunk_rows(context.ops.stream, tokens);
  const Arena::Scope scope(context.ops.scratch);
  const Tensor logits = context.scratch("head logits chunk", x.dtype(), {rows, head_.outputs()});
  for (std::int64_t begin = 0; begin < tokens; begin += rows) {
    const std::int64_t count = std::min(rows, tokens - begin);
    const Tensor chunk = logits.rows(0, count), input = x.rows(begin, count);
    head_.forward(context, chunk, input);
    ops::cross_entropy_forward_backward(context.ops, loss_sum, chunk, targets.rows(begin, count), gradient_scale);
    if (halves.input) head_.backward_input(context, d_x.rows(begin, count), chunk);
    if (halves.weight) head_.backward_weight(context, chunk, input);
  }
}

}  // namespace baleen
