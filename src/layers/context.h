// What every layer runs with.
#pragma once

#include "layers/tensor_parallel.h"
#include "ops/context.h"
#include "sharding/unit_storage.h"

namespace baleen {

class RingAttention;

// `saved` keeps what the backward pass needs of one micro-batch; the operations' scratch holds what does not outlive a call.
struct LayerContext {
  ops::Context& ops;
  const UnitStorage& units;
  Arena& saved;
  TensorParallel tensor = {};
  const RingAttention* ring = nullptr;  // of axis cp; nullptr: every rank has whole sequences

  Tensor save(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape) const {
    return allocate(saved, name, dtype, shape);
  }
  Tensor scratch(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape) const {
    return allocate(ops.scratch, name, dtype, shape);
  }
  // The same, where nothing is kept: what a layer saves goes to the scratch too.
  LayerContext keeping_nothing() const { return {ops, units, ops.scratch, tensor, ring}; }
};

// The geometry of a micro-batch: N = batch · length tokens, sequence after sequence. The residual stream has parts of it (TensorParallel).
struct Sequences {
  std::int64_t batch = 0, length = 0;  // B, T; under context parallelism T/cp of each sequence
  Tensor positions;                    // [N] int32
  Tensor cosines, sines;               // [P, D/2] fp32, the rotary angles of each position
  Tensor document_begin;               // [N] int32: position of the first token of the document; undefined: one document a sequence

  std::int64_t tokens() const { return batch * length; }
};

}  // namespace baleen
