#include "layers/tensor_parallel.h"

#include <vector>

#include "base/error.h"

namespace baleen {

TensorParallel::TensorParallel(Communicator& axis, bool sequence_parallel, CommWaits& waits)
    : axis_(&axis), waits_(&waits), rank_(axis.rank()), size_(axis.size()), sequence_parallel_(sequence_parallel) {}

std::int64_t TensorParallel::part_rows(std::int64_t tokens) const {
  if (!divides_tokens()) return tokens;
  BALEEN_CHECK(tokens % size_ == 0, tokens, size_);
  return tokens / size_;
}

int TensorParallel::pieces(const ops::Context& context, std::int64_t rows) const {
  // Fewer rows than this make a product slow.
  const std::int64_t least = context.stream.kind() == DeviceKind::gpu ? 512 : 8;
  return waits_->overlap() && rows % 2 == 0 && rows / 2 >= least ? 2 : 1;
}

TensorParallel::Gathering TensorParallel::begin_gather(ops::Context& context, const Tensor& part, std::string_view name) const {
  if (!divides_tokens()) return {part, {}};
  Gathering gathering{allocate(context.scratch, name, part.dtype(), {part.size(0) * size_, part.size(1)}), {}};
  if (!context.stream.measuring())
    gathering.arrived = axis_->all_gather(part.data(), gathering.all.data(), static_cast<std::size_t>(part.elements()), part.dtype(),
                                          context.stream.record());
  return gathering;
}

Tensor TensorParallel::finish(ops::Context& context, const Gathering& gathering) const {
  if (divides_tokens() && !context.stream.measuring()) waits_->wait(context.stream, gathering.arrived);
  return gathering.all;
}

void TensorParallel::gather_pieces(ops::Context& context, const Tensor& part, std::string_view name, const AnyProduct& product) const {
  const Arena::Scope scope(context.scratch);
  const std::int64_t rows = part.size(0), count = pieces(context, rows), piece = rows / count;
  std::vector<Gathering> gathered;
  for (std::int64_t p = 0; p < count; ++p) gathered.push_back(begin_gather(context, part.rows(p * piece, piece), name));
  for (std::int64_t p = 0; p < count; ++p) {
    const Tensor all = finish(context, gathered[static_cast<std::size_t>(p)]);
    for (std::int64_t rank = 0; rank < size_; ++rank) product(rank * rows + p * piece, all.rows(rank * piece, piece));
  }
}

Event TensorParallel::start_sum(ops::Context& context, const Tensor& part, const Tensor& whole) const {
  const auto count = static_cast<std::size_t>(part.elements());
  const Event filled = context.stream.record();
  if (divides_tokens()) return axis_->reduce_scatter(whole.data(), part.data(), count, part.dtype(), ReduceOp::sum, filled);
  return axis_->all_reduce(whole.data(), part.data(), count, part.dtype(), ReduceOp::sum, filled);
}

void TensorParallel::sum_pieces(ops::Context& context, const Tensor& part, std::string_view name, const AnyProduct& product) const {
  const Arena::Scope scope(context.scratch);
  const std::int64_t rows = part.size(0), count = pieces(context, rows), piece = rows / count;
  std::vector<Event> sums;
  for (std::int64_t p = 0; p < count; ++p) {
    const Tensor own = part.rows(p * piece, piece);
    const Tensor whole = summand(context, own, name);
    if (divides_tokens())
      for (std::int64_t rank = 0; rank < size_; ++rank) product(rank * rows + p * piece, whole.rows(rank * piece, piece));
    else
      product(p * piece, whole);
    if (!context.stream.measuring()) sums.push_back(start_sum(context, own, whole));
  }
  for (const Event& sum : sums) waits_->wait(context.stream, sum);
}

Tensor TensorParallel::summand(ops::Context& context, const Tensor& part, std::string_view name) const {
  if (!divides_tokens()) return part;
  return allocate(context.scratch, name, part.dtype(), {part.size(0) * size_, part.size(1)});
}

void TensorParallel::sum(ops::Context& context, const Tensor& part, const Tensor& whole) const {
  if (active() && !context.stream.measuring()) waits_->wait(context.stream, start_sum(context, part, whole));
}

void TensorParallel::all_gather(ops::Context& context, const Tensor& out, const Tensor& mine) const {
  BALEEN_CHECK(out.elements() == mine.elements() * size_, out.elements(), mine.elements());
  if (context.stream.measuring()) return;
  const auto count = static_cast<std::size_t>(mine.elements());
  waits_->wait(context.stream, axis_->all_gather(mine.data(), out.data(), count, mine.dtype(), context.stream.record()));
}

}  // namespace baleen
