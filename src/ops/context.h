// What every operation runs with: the stream it is enqueued on and the scratch stack its workspace comes from.
#pragma once

#include "device/arena.h"
#include "device/stream.h"
#include "tensor/tensor.h"

namespace baleen::ops {

struct Context {
  Stream& stream;
  Arena& scratch;
};

// Sends an operation to its implementation for the stream's device; in a dry run it does nothing. Operations allocate their workspace
// from the scratch before they dispatch, so that a dry run counts it.
template <class Cpu>
void dispatch(Context& context, Cpu&& cpu) {
  if (context.stream.measuring()) return;
  cpu();
}

}  // namespace baleen::ops
