#include "layers/head_loss.h"

#include <algorithm>

#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/vocabulary_cross_entropy.h"

namespace baleen {
namespace {

// The head's products with rows of logits that may have more columns than the vocabulary: then a copy of the table takes part that has as
// many rows, zeros, and its gradient is added to the table's at the end.
class HeadProducts {
 public:
  HeadProducts(const LayerContext& context, const Linear& head, ParameterId weight, std::int64_t columns, bool weight_gradient)
      : context_(context), head_(head), weight_(weight) {
    if (columns == head.outputs()) return;
    Stream& stream = context.ops.stream;
    const Tensor whole = context.units.weight(weight);
    table_ = context.scratch("head padded weight", whole.dtype(), {columns, head.inputs()});
    stream.fill_zero(table_.data(), table_.bytes());
    stream.copy(table_.data(), whole.data(), whole.bytes());
    if (!weight_gradient || !context.units.parameter(weight).trainable) return;
    d_table_ = context.scratch("head padded weight gradient", context.units.options().gradient, {columns, head.inputs()});
  }
  void forward(const Tensor& logits, const Tensor& x) const {
    if (!table_.defined()) return head_.forward(context_, logits, x);
    ops::matmul(context_.ops, logits, x, ops::Matrix(table_).transpose());
  }
  void backward_input(const Tensor& d_x, const Tensor& d_logits) const {
    if (!table_.defined()) return head_.backward_input(context_, d_x, d_logits);
    ops::matmul(context_.ops, d_x, d_logits, table_);
  }
  void backward_weight(const Tensor& d_logits, const Tensor& x, bool first_chunk) const {
    if (!table_.defined()) return head_.backward_weight(context_, d_logits, x);
    if (d_table_.defined()) ops::matmul(context_.ops, d_table_, ops::Matrix(d_logits).transpose(), x, /*accumulate=*/!first_chunk);
  }
  void finish() const {
    if (!d_table_.defined()) return;
    const Tensor gradient = context_.units.gradient_to_add(context_.ops.stream, weight_);
    ops::add(context_.ops, gradient, gradient, d_table_.rows(0, head_.outputs()));
  }

 private:
  const LayerContext& context_;
  const Linear& head_;
  ParameterId weight_;
  Tensor table_, d_table_;  // undefined: not padded
};

}  // namespace

HeadLoss::HeadLoss(const UnitStorage& units, ParameterId weight, std::int64_t chunks)
    : weight_(weight),
      head_(units, {weight}),
      vocabulary_(units.parameter(weight).shape[0]),
      first_(units.parameter(weight).held.begin.empty() ? 0 : units.parameter(weight).held.begin[0]),
      chunks_(chunks) {}

// Few: every chunk adds its part to the weight's gradient, and a product reads and arranges the whole weight, which pays from some hundred
// rows on. On the CPU that is worth more than logits that stay in a cache (docs/performance-cpu.md), and less than their memory. On a GPU
// twice as many chunks move as many bytes of a gradient in bf16; there they are a quarter of the tokens at most, if that is enough of them.
std::int64_t HeadLoss::automatic_chunks(const LayerContext& context, std::int64_t tokens, DType dtype) const {
  constexpr std::int64_t mebi = std::int64_t{1} << 20, enough_rows = 2048, quarters = 4;
  const bool gpu = context.ops.stream.kind() == DeviceKind::gpu, half_gradients = context.units.options().gradient == DType::bf16;
  const std::int64_t chunk_elements =
      gpu ? (half_gradients ? 640 : 1280) * mebi : 200 * mebi / static_cast<std::int64_t>(dtype_bytes(dtype));
  const std::int64_t columns = (vocabulary_ + context.tensor.size() - 1) / context.tensor.size();  // the same on every rank
  const std::int64_t rows = std::max<std::int64_t>(gpu ? 64 : 256, chunk_elements / columns / 64 * 64);
  const std::int64_t chunks = (tokens + rows - 1) / rows;
  return gpu && half_gradients ? std::max(chunks, std::min(quarters, tokens / enough_rows)) : chunks;
}

std::int64_t HeadLoss::chunk_rows(const LayerContext& context, std::int64_t tokens, DType dtype) const {
  const std::int64_t chunks = chunks_ > 0 ? chunks_ : automatic_chunks(context, tokens, dtype);
  return std::min((tokens + 64 * chunks - 1) / (64 * chunks) * 64, tokens);  // all of one size
}

std::int64_t HeadLoss::padded_outputs(const LayerContext& context) const {
  constexpr std::int64_t aligned = 64;
  const bool pads = context.ops.stream.kind() == DeviceKind::gpu;
  return pads ? (head_.outputs() + aligned - 1) / aligned * aligned : head_.outputs();
}

void HeadLoss::cross_entropy(const LayerContext& context, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                             const Tensor& gradient_scale) const {
  if (!context.tensor.active()) {
    if (gradient_scale.defined())
      return ops::cross_entropy_forward_backward(context.ops, loss_sum, logits, targets, gradient_scale, vocabulary_);
    return ops::cross_entropy_forward(context.ops, loss_sum, logits, targets, vocabulary_);
  }
  const Arena::Scope scope(context.ops.scratch);
  const std::int64_t rows = logits.size(0);
  const Tensor mine = context.scratch("softmax statistics", DType::f32, {rows, ops::vocabulary_statistics});
  const Tensor all = context.scratch("softmax statistics", DType::f32, {context.tensor.size(), rows, ops::vocabulary_statistics});
  ops::vocabulary_cross_entropy_statistics(context.ops, mine, logits, targets, first_, head_.outputs());
  context.tensor.all_gather(context.ops, all, mine);
  ops::vocabulary_cross_entropy(context.ops, loss_sum, logits, all, targets, first_, head_.outputs(), gradient_scale);
}

void HeadLoss::loss(const LayerContext& context, const Tensor& loss_sum, const Tensor& x, const Tensor& targets) const {
  const Arena::Scope scope(context.ops.scratch);
  const Tensor all = context.tensor.gather(context.ops, x, "head input");
  const std::int64_t tokens = all.size(0), rows = chunk_rows(context, tokens, x.dtype());
  const Tensor logits = context.scratch("head logits chunk", x.dtype(), {rows, padded_outputs(context)});
  const HeadProducts products(context, head_, weight_, logits.size(1), /*weight_gradient=*/false);
  for (std::int64_t begin = 0; begin < tokens; begin += rows) {
    const std::int64_t count = std::min(rows, tokens - begin);
    products.forward(logits.rows(0, count), all.rows(begin, count));
    cross_entropy(context, loss_sum, logits.rows(0, count), targets.rows(begin, count), Tensor());
  }
}

void HeadLoss::loss_and_backward(const LayerContext& context, const Tensor& loss_sum, const Tensor& d_x, const Tensor& x,
                                 const Tensor& targets, const Tensor& gradient_scale, BackwardHalves halves) const {
  const Arena::Scope scope(context.ops.scratch);
  const Tensor all = context.tensor.gather(context.ops, x, "head input");
  const Tensor d_all = halves.input ? context.tensor.summand(context.ops, d_x, "head d_input") : Tensor();
  const std::int64_t tokens = all.size(0), rows = chunk_rows(context, tokens, x.dtype());
  const Tensor logits = context.scratch("head logits chunk", x.dtype(), {rows, padded_outputs(context)});
  const HeadProducts products(context, head_, weight_, logits.size(1), halves.weight);
  for (std::int64_t begin = 0; begin < tokens; begin += rows) {
    const std::int64_t count = std::min(rows, tokens - begin);
    const Tensor chunk = logits.rows(0, count), input = all.rows(begin, count);
    products.forward(chunk, input);
    cross_entropy(context, loss_sum, chunk, targets.rows(begin, count), gradient_scale);
    if (halves.input) products.backward_input(d_all.rows(begin, count), chunk);
    if (halves.weight) products.backward_weight(chunk, input, begin == 0);
  }
  products.finish();
  if (halves.input) context.tensor.sum(context.ops, d_x, d_all);
}

}  // namespace baleen
