// One pre-norm block:  x += attention(norm(x));  x += mlp(norm(x)). Tensors [n, C] are the stream's part on this rank (TensorParallel).
#pragma once

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/norm.h"

namespace baleen {

// [n, C] buffers that hold the sub-layers' outputs until the next norm adds them; one set serves all blocks of a stage.
struct BlockDeltas {
  Tensor attention, mlp;
  Tensor middle;  // the stream between attention and MLP where no block keeps it (Recompute::full); else undefined
};

// What a block does not keep from forward to backward but computes again, with the same bits (T. Chen et al., "Training deep nets with
// sublinear memory cost", arXiv 1604.06174). docs/numerics.md has the bytes.
enum class Recompute {
  none,
  selective,  // the outputs of the norms, and all inside the MLP
  full,       // all but the block's input
};

class TransformerBlock {
 public:
  struct Saved {
    Recompute recompute = Recompute::none;  // what of the following is undefined
    Norm::Saved attention_norm, mlp_norm;
    Attention::Saved attention;
    Mlp::Saved mlp;
  };
  // What backward_input leaves for backward_weight, in the scratch.
  struct Gradients {
    Attention::Gradients attention;
    Mlp::Gradients mlp;
    Tensor d_attention_norm, d_mlp_norm;  // [n, C], gradients of the norms' outputs
  };

  TransformerBlock(Norm attention_norm, Attention attention, Norm mlp_norm, Mlp mlp);

  // Replaces `stream` by the stream behind the block.
  Saved forward(const LayerContext& context, const Sequences& sequences, const BlockDeltas& deltas, ResidualStream& stream,
                Recompute recompute = Recompute::none) const;
  // What forward saved, with the rest computed again into the scratch: what backward works on.
  Saved restore(const LayerContext& context, const Sequences& sequences, const Saved& saved) const;
  void forward_cached(const LayerContext& context, const Sequences& sequences, KvCache& cache, const BlockDeltas& deltas,
                      ResidualStream& stream) const;
  // d_in [n, C] from d_out [n, C], the gradients of the stream before and behind the block. d_out must live until backward_weight.
  Gradients backward_input(const LayerContext& context, const Sequences& sequences, const Saved& saved, const Tensor& d_in,
                           const Tensor& d_out) const {
    return backward_input(context, sequences, saved, d_in, d_out, /*together=*/false);
  }
  void backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients) const {
    backward_weight(context, saved, gradients, /*norm_weights=*/true);
  }
  // Both halves one after the other.
  void backward(const LayerContext& context, const Sequences& sequences, const Saved& saved, const Tensor& d_in,
                const Tensor& d_out) const {
    backward_weight(context, saved, backward_input(context, sequences, saved, d_in, d_out, true), false);
  }

 private:
  // `together`: the other half follows at once. Then what is cheaper in the first is done there: the gradients of the norms' weights, of
  // which the second half is told by `norm_weights`, and QKV's bias.
  Gradients backward_input(const LayerContext& context, const Sequences& sequences, const Saved& saved, const Tensor& d_in,
                           const Tensor& d_out, bool together) const;
  void backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, bool norm_weights) const;

  Norm attention_norm_, mlp_norm_;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace baleen
