// Axis tp as the layers of one rank see it: tokens gathered before a column-parallel product, partial products summed behind a row-parallel
// one (M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053).
//
// Norms and the residual stream of N tokens have `part` tensors. Under sequence parallelism (V. Korthikanti et al., arXiv 2205.05198) a
// part is the rank's N/tp rows, and an all-gather and a reduce-scatter take the place of the all-reduce; else it is all N rows. On one rank
// a part is the tensor itself and nothing is copied.
#pragma once

#include <functional>
#include <string_view>

#include "comm/communicator.h"
#include "ops/context.h"
#include "sharding/comm_waits.h"

namespace baleen {

class TensorParallel {
 public:
  // One rank.
  TensorParallel() = default;
  TensorParallel(Communicator& axis, bool sequence_parallel, CommWaits& waits);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool active() const { return size_ > 1; }
  bool divides_tokens() const { return active() && sequence_parallel_; }
  // Rows of a part of `tokens` rows.
  std::int64_t part_rows(std::int64_t tokens) const;

  // All rows of `part` [n, C]: [N, C] in the scratch, or the part itself where it has them.
  Tensor gather(ops::Context& context, const Tensor& part, std::string_view name) const {
    return finish(context, begin_gather(context, part, name));
  }
  // The same in two steps, with other work between them.
  struct Gathering {
    Tensor all;
    Event arrived;
  };
  Gathering begin_gather(ops::Context& context, const Tensor& part, std::string_view name) const;
  Tensor finish(ops::Context& context, const Gathering& gathering) const;

  // Calls product(first, rows) for all N rows of `part`, block by block: rows [first, first + k) of the whole. While a piece is worked on
  // the next one is on its way.
  template <class Product>
  void gather_through(ops::Context& context, const Tensor& part, std::string_view name, const Product& product) const {
    divides_tokens() ? gather_pieces(context, part, name, product) : product(0, part);
  }
  // part = Σ over ranks of what product(first, rows) writes for all N rows, block by block: while a piece is summed the next is worked on.
  template <class Product>
  void sum_through(ops::Context& context, const Tensor& part, std::string_view name, const Product& product) const {
    active() ? sum_pieces(context, part, name, product) : product(0, part);
  }

  // Where a product writes the summand [N, C] that `sum` will make `part` of: in the scratch, or the part itself.
  Tensor summand(ops::Context& context, const Tensor& part, std::string_view name) const;
  // part = Σ over ranks of `whole`, which came from summand(part).
  void sum(ops::Context& context, const Tensor& part, const Tensor& whole) const;
  // out [size, …] = `mine` of every rank.
  void all_gather(ops::Context& context, const Tensor& out, const Tensor& mine) const;

 private:
  using AnyProduct = std::function<void(std::int64_t first, const Tensor& rows)>;
  void gather_pieces(ops::Context& context, const Tensor& part, std::string_view name, const AnyProduct& product) const;
  void sum_pieces(ops::Context& context, const Tensor& part, std::string_view name, const AnyProduct& product) const;
  // Into how many pieces of its rows a part is cut, so that sending one overlaps with work on another.
  int pieces(const ops::Context& context, std::int64_t rows) const;
  Event start_sum(ops::Context& context, const Tensor& part, const Tensor& whole) const;

  Communicator* axis_ = nullptr;
  CommWaits* waits_ = nullptr;
  int rank_ = 0, size_ = 1;
  bool sequence_parallel_ = false;
};

}  // namespace baleen
