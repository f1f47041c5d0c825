#include "layers/ring_attention.h"

#include <array>
#include <exception>
#include <utility>

#include "base/error.h"
#include "ops/attention_merge.h"
#include "ops/row_blocks.h"

namespace baleen {
namespace {

using ops::AttentionShape;
using ops::RowBlock;

// The tensor from this element on; only its beginning counts.
Tensor from_element(const Tensor& tensor, std::int64_t element) {
  std::byte* data = static_cast<std::byte*>(tensor.data());
  if (data != nullptr) data += static_cast<std::size_t>(element) * dtype_bytes(tensor.dtype());
  return Tensor(data, tensor.dtype(), {tensor.elements() - element});
}

// Two buffers that take turns: one is here and being passed on while the other arrives.
class Travelling {
 public:
  Travelling(ops::Context& context, Communicator& ring, CommWaits* waits, const char* name, DType dtype,
             std::initializer_list<std::int64_t> shape)
      : stream_(context.stream),
        ring_(ring),
        waits_(waits),
        buffers_{allocate(context.scratch, name, dtype, shape), allocate(context.scratch, name, dtype, shape)} {}

  // Where an exception leaves the ring, no message may write into a scratch that others use by then.
  ~Travelling() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      passed_.wait();
    } catch (const std::exception&) {  // it is over, and another exception is on its way
    }
  }
  Travelling(const Travelling&) = delete;
  Travelling& operator=(const Travelling&) = delete;

  const Tensor& here() const { return buffers_[now_]; }

  // Sends what is here to the next rank and receives the next into the other buffer, after all that is enqueued on the stream.
  void pass_on() {
    if (stream_.measuring()) return;
    const Tensor &out = buffers_[now_], &in = buffers_[1 - now_];
    const auto count = static_cast<std::size_t>(out.elements());
    passed_ = ring_.exchange(out.data(), ring_.next(), in.data(), ring_.previous(), count, out.dtype(), stream_.record());
  }

  // The other buffer becomes the one that is here.
  void arrive() {
    waits_ != nullptr ? waits_->wait(stream_, passed_) : stream_.wait(passed_);
    now_ = 1 - now_;
  }

 private:
  Stream& stream_;
  Communicator& ring_;
  CommWaits* waits_;
  std::array<Tensor, 2> buffers_;
  std::size_t now_ = 0;
  Event passed_;
  int exceptions_ = std::uncaught_exceptions();
};

// Both are [N, columns] of k and v: next to each other in the travelling buffer.
Tensor keys_of(const Tensor& travelling) {
  return from_element(travelling, 0);
}
Tensor values_of(const Tensor& travelling) {
  return from_element(travelling, travelling.elements() / 2);
}

std::int64_t tokens(const AttentionShape& shape) {
  return shape.batch * shape.query_length;
}
std::int64_t query_columns(const AttentionShape& shape) {
  return shape.heads * shape.head_dim;
}
std::int64_t key_columns(const AttentionShape& shape) {
  return shape.kv_heads * shape.head_dim;
}

// Of one step: which of the rank's queries see which of the keys that are here; all pairs, without a mask.
struct Step {
  std::int64_t first_query = 0, queries = 0, keys = 0;  // of each sequence; keys from the first on
};

// `origin` is another rank than `rank`.
Step step_of(const AttentionShape& shape, int rank, int origin) {
  const std::int64_t length = shape.query_length, block = length / 2;
  return origin < rank ? Step{0, length, block} : Step{block, length - block, length};
}

// The attention of one step over packed queries and the keys that are here.
AttentionShape shape_of(const AttentionShape& shape, const Step& step) {
  AttentionShape out = shape;
  out.query_length = step.queries;
  out.key_length = step.keys;
  out.query_stride = out.out_stride = query_columns(shape);
  out.key_stride = key_columns(shape);
  out.key_batch_stride = shape.key_length * key_columns(shape);
  out.query_offset = step.keys;  // after all keys
  out.key_offset = 0;
  return out;
}

// The rows of a step's queries in [N, columns], `stride` elements apart.
RowBlock rows_of(const AttentionShape& shape, const Step& step, const Tensor& tensor, std::int64_t stride) {
  return {from_element(tensor, step.first_query * stride), shape.query_length * stride, stride};
}

// They without gaps: the tensor itself where it has none and the step is for all queries, else a copy.
Tensor packed(ops::Context& context, const AttentionShape& shape, const Step& step, const char* name, const Tensor& from,
              std::int64_t stride) {
  const std::int64_t columns = query_columns(shape);
  if (step.queries == shape.query_length && stride == columns) return from;
  const Tensor to = allocate(context.scratch, name, from.dtype(), {shape.batch * step.queries, shape.heads, shape.head_dim});
  ops::copy_rows(context, {shape.batch, step.queries, columns}, {to, step.queries * columns, columns}, rows_of(shape, step, from, stride));
  return to;
}

// The same of [B, H, T/cp].
Tensor packed_lse(ops::Context& context, const AttentionShape& shape, const Step& step, const Tensor& lse) {
  if (step.queries == shape.query_length) return lse;
  const Tensor to = allocate(context.scratch, "ring lse", DType::f32, {shape.batch, shape.heads, step.queries});
  ops::copy_rows(context, {1, shape.batch * shape.heads, step.queries}, {to, 0, step.queries},
                 {from_element(lse, step.first_query), 0, shape.query_length});
  return to;
}

void load_keys(ops::Context& context, const AttentionShape& shape, const Tensor& travelling, const Tensor& k, const Tensor& v) {
  const std::int64_t columns = key_columns(shape);
  for (const auto& [to, from] : {std::pair{keys_of(travelling), k}, std::pair{values_of(travelling), v}})
    ops::copy_rows(context, {1, tokens(shape), columns}, {to, 0, columns}, {from, 0, shape.key_stride});
}

void check_shape(const AttentionShape& shape) {
  BALEEN_CHECK(shape.query_length == shape.key_length && shape.query_length % 2 == 0, shape.query_length, shape.key_length);
  BALEEN_CHECK(shape.query_offset == 0 && shape.key_offset == 0 && shape.key_batch_stride == 0, shape.query_offset, shape.key_offset,
               shape.key_batch_stride);
}

// What backward reads of the queries.
struct Queries {
  const Tensor &d_out, &q, &out, &lse;
};

// sum [N, H, D] fp32 with the out_stride of the shape, lse [B, H, T/cp]: joined with attention over the keys that are here.
void forward_step(ops::Context& context, const AttentionShape& shape, const Step& step, const Tensor& sum, const Tensor& lse,
                  const Tensor& q, const Tensor& keys_here) {
  const Arena::Scope scope(context.scratch);
  AttentionShape part_shape = shape_of(shape, step);
  Tensor queries = q;
  if (step.queries == shape.query_length)
    part_shape.query_stride = shape.query_stride;
  else
    queries = packed(context, shape, step, "ring queries", q, shape.query_stride);
  const Tensor part =
      allocate(context.scratch, "ring attention part", q.dtype(), {shape.batch * step.queries, shape.heads, shape.head_dim});
  const Tensor part_lse = allocate(context.scratch, "ring lse", DType::f32, {shape.batch, shape.heads, step.queries});
  ops::attention_forward(context, part_shape, part, part_lse, queries, keys_of(keys_here), values_of(keys_here), Tensor());
  ops::attention_merge(context,
                       {.batch = shape.batch,
                        .length = shape.query_length,
                        .first = step.first_query,
                        .rows = step.queries,
                        .heads = shape.heads,
                        .head_dim = shape.head_dim,
                        .out_stride = shape.out_stride},
                       sum, lse, part, part_lse);
}

// Adds what the keys that are here give: to the gradients of the queries, and, once `arrive` has returned, to those that travel with the
// keys.
template <class Arrive>
void backward_step(ops::Context& context, const AttentionShape& shape, const Step& step, const Queries& all, const RowBlock& d_q,
                   const Tensor& keys_here, const Arrive& arrive) {
  const Arena::Scope scope(context.scratch);
  const std::int64_t columns = query_columns(shape), kv_columns = key_columns(shape);
  const Tensor q = packed(context, shape, step, "ring queries", all.q, shape.query_stride);
  const Tensor d_out = packed(context, shape, step, "ring d_out", all.d_out, shape.out_stride);
  const Tensor out = packed(context, shape, step, "ring out", all.out, shape.out_stride);
  const Tensor lse = packed_lse(context, shape, step, all.lse);
  const Tensor d_queries =
      allocate(context.scratch, "ring query gradients", q.dtype(), {shape.batch * step.queries, shape.heads, shape.head_dim});
  const Tensor d_keys = allocate(context.scratch, "ring key and value gradients part", q.dtype(), {2, tokens(shape), kv_columns});
  ops::attention_backward(context, shape_of(shape, step), d_queries, keys_of(d_keys), values_of(d_keys), d_out, q, keys_of(keys_here),
                          values_of(keys_here), out, lse, Tensor());
  ops::add_rows(context, {shape.batch, step.queries, columns}, rows_of(shape, step, d_q.tensor, d_q.row_stride),
                {d_queries, step.queries * columns, columns});
  const Tensor& sums = arrive();
  const std::int64_t sequence = shape.key_length * kv_columns;
  for (const auto& [to, from] : {std::pair{keys_of(sums), keys_of(d_keys)}, std::pair{values_of(sums), values_of(d_keys)}})
    ops::add_rows(context, {shape.batch, step.keys, kv_columns}, {to, sequence, kv_columns}, {from, sequence, kv_columns});
}

}  // namespace

RingAttention::RingAttention(Communicator& keys, Communicator& gradients, CommWaits* waits)
    : keys_(keys), gradients_(gradients), waits_(waits) {
  BALEEN_CHECK(keys.size() == gradients.size() && keys.rank() == gradients.rank(), keys.size(), gradients.size());
}

void RingAttention::forward(ops::Context& context, const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q,
                            const Tensor& k, const Tensor& v) const {
  if (ranks() == 1) return ops::attention_forward(context, shape, out, lse, q, k, v, Tensor());
  check_shape(shape);
  const Arena::Scope scope(context.scratch);
  const std::int64_t rows = tokens(shape), columns = query_columns(shape);
  Travelling travelling(context, keys_, waits_, "ring keys and values", k.dtype(), {2, rows, key_columns(shape)});
  load_keys(context, shape, travelling.here(), k, v);
  travelling.pass_on();
  ops::attention_forward(context, shape, out, lse, q, k, v, Tensor());
  // The parts are added up in fp32: in `out` itself where that is fp32.
  const bool in_place = out.dtype() == DType::f32;
  const Tensor sum = in_place ? out : allocate(context.scratch, "ring attention sum", DType::f32, {rows, columns});
  AttentionShape sum_shape = shape;
  if (!in_place) {
    sum_shape.out_stride = columns;
    ops::copy_rows(context, {1, rows, columns}, {sum, 0, columns}, {out, 0, shape.out_stride});
  }
  for (int step = 1; step < ranks(); ++step) {
    travelling.arrive();
    if (step + 1 < ranks()) travelling.pass_on();
    forward_step(context, sum_shape, step_of(shape, keys_.rank(), origin(step)), sum, lse, q, travelling.here());
  }
  if (!in_place) ops::copy_rows(context, {1, rows, columns}, {out, 0, shape.out_stride}, {sum, 0, columns});
}

void RingAttention::backward(ops::Context& context, const AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                             const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse) const {
  if (ranks() == 1) return ops::attention_backward(context, shape, d_q, d_k, d_v, d_out, q, k, v, out, lse, Tensor());
  check_shape(shape);
  const Arena::Scope scope(context.scratch);
  const std::int64_t rows = tokens(shape), columns = query_columns(shape), kv_columns = key_columns(shape);
  Travelling keys(context, keys_, waits_, "ring keys and values", k.dtype(), {2, rows, kv_columns});
  Travelling d_keys(context, gradients_, waits_, "ring key and value gradients", DType::f32, {2, rows, kv_columns});
  load_keys(context, shape, keys.here(), k, v);
  keys.pass_on();
  ops::attention_backward(context, shape, d_q, d_k, d_v, d_out, q, k, v, out, lse, Tensor());
  const bool in_place = d_q.dtype() == DType::f32;
  const Tensor d_q_sum = in_place ? d_q : allocate(context.scratch, "ring query gradients sum", DType::f32, {rows, columns});
  const std::int64_t d_q_stride = in_place ? shape.query_stride : columns;
  if (!in_place) ops::copy_rows(context, {1, rows, columns}, {d_q_sum, 0, columns}, {d_q, 0, shape.query_stride});
  // The gradients of rank j's keys begin on rank j + 1 and come home after cp - 1 steps. What the rank itself adds stays at home.
  context.stream.fill_zero(d_keys.here().data(), d_keys.here().bytes());
  for (int step = 1; step < ranks(); ++step) {
    keys.arrive();
    if (step + 1 < ranks()) keys.pass_on();
    backward_step(context, shape, step_of(shape, keys_.rank(), origin(step)), {d_out, q, out, lse}, {d_q_sum, 0, d_q_stride}, keys.here(),
                  [&]() -> const Tensor& {
                    if (step > 1) d_keys.arrive();
                    return d_keys.here();
                  });
    d_keys.pass_on();
  }
  d_keys.arrive();
  ops::add_rows(context, {1, rows, kv_columns}, {d_k, 0, shape.key_stride}, {keys_of(d_keys.here()), 0, kv_columns});
  ops::add_rows(context, {1, rows, kv_columns}, {d_v, 0, shape.key_stride}, {values_of(d_keys.here()), 0, kv_columns});
  if (!in_place) ops::copy_rows(context, {1, rows, columns}, {d_q, 0, shape.query_stride}, {d_q_sum, 0, columns});
}

}  // namespace baleen
