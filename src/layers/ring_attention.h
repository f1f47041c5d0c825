// Causal attention over sequences that are spread over the ranks of context parallelism (H. Liu, M. Zaharia and P. Abbeel, "Ring attention
// with blockwise transformers for near-infinite context", arXiv 2310.01889; the balanced cut is that of layers/zigzag.h).
//
// Keys and values travel round the ring, rank to rank + 1, while queries stay. In step s rank r computes with those of rank j = r - s and
// passes them on at the same time. What a rank computes in a step is one call of the attention operation:
//   j = r   the causal triangle over its own two blocks, as if they followed each other
//   j < r   all its queries see the first block of j and nothing of the second
//   j > r   the queries of its second block see both blocks of j, those of the first nothing
// Each but the first is half of all pairs, on every rank. Forward joins the parts by their log-sum-exps; backward recomputes with the joint
// one, and the gradients of keys and values travel along, one step behind, until they are back home.
//
// With N = B·T/cp rows, a rank sends (cp-1) · 2·N·Hkv·D elements of the compute dtype forward, and the same backward beside as many in
// fp32.
#pragma once

#include "comm/communicator.h"
#include "ops/attention.h"
#include "sharding/comm_waits.h"

namespace baleen {

class RingAttention {
 public:
  // Two communicators over the same ranks (axis cp): the travelling keys do not wait behind the travelling gradients. Owns neither, nor
  // `waits`, which counts the compute stream's waits (nullptr: nobody does).
  RingAttention(Communicator& keys, Communicator& gradients, CommWaits* waits = nullptr);

  int ranks() const { return keys_.size(); }

  // `shape` is that of this rank's rows: query_length = key_length = T/cp, any strides, a default key_batch_stride, offsets 0.
  // out [N, H, D], lse [B, H, T/cp] fp32, q [N, H, D], k, v [N, Hkv, D], one dtype, N = B·T/cp rows in the order of ZigZag. No packed
  // documents. All ranks call it at the same place. On a measuring stream nothing is sent.
  void forward(ops::Context& context, const ops::AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q,
               const Tensor& k, const Tensor& v) const;

  // d_q, d_k, d_v are written, with the strides of q, k and v; out and lse are those of forward. Partial sums are fp32.
  void backward(ops::Context& context, const ops::AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse) const;

 private:
  // The rank whose keys and values are here in step `step`.
  int origin(int step) const { return (keys_.rank() - step + keys_.size()) % keys_.size(); }

  Communicator &keys_, &gradients_;
  CommWaits* waits_;
};

}  // namespace baleen
