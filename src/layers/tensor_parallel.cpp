#include "layers/tensor_parallel.h"

#include "base/error.h"

namespace baleen {

TensorParallel::TensorParallel(Communicator& axis, bool sequence_parallel, CommWaits& waits)
    : axis_(&axis), waits_(&waits), rank_(axis.rank()), size_(axis.size()), sequence_parallel_(sequence_parallel) {}

std::int64_t TensorParallel::part_rows(std::int64_t tokens) const {
  if (!divides_tokens()) return tokens;
  BALEEN_CHECK(tokens % size_ == 0, tokens, size_);
  return tokens / size_;
}

Tensor TensorParallel::gather(ops::Context& context, const Tensor& part, std::string_view name) const {
  if (!divides_tokens()) return part;
  const Tensor all = allocate(context.scratch, name, part.dtype(), {part.size(0) * size_, part.size(1)});
  all_gather(context, all, part);
  return all;
}

Tensor TensorParallel::summand(ops::Context& context, const Tensor& part, std::string_view name) const {
  if (!divides_tokens()) return part;
  return allocate(context.scratch, name, part.dtype(), {part.size(0) * size_, part.size(1)});
}

void TensorParallel::sum(ops::Context& context, const Tensor& part, const Tensor& whole) const {
  if (!active() || context.stream.measuring()) return;
  const auto count = static_cast<std::size_t>(part.elements());
  const Event filled = context.stream.record();
  waits_->wait(context.stream, divides_tokens()
                                   ? axis_->reduce_scatter(whole.data(), part.data(), count, part.dtype(), ReduceOp::sum, filled)
                                   : axis_->all_reduce(whole.data(), part.data(), count, part.dtype(), ReduceOp::sum, filled));
}

void TensorParallel::all_gather(ops::Context& context, const Tensor& out, const Tensor& mine) const {
  BALEEN_CHECK(out.elements() == mine.elements() * size_, out.elements(), mine.elements());
  if (context.stream.measuring()) return;
  const auto count = static_cast<std::size_t>(mine.elements());
  waits_->wait(context.stream, axis_->all_gather(mine.data(), out.data(), count, mine.dtype(), context.stream.record()));
}

}  // namespace baleen
