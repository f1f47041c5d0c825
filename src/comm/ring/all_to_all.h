// All-to-all by pairwise exchange: in every step the ranks meet in pairs, and each pair swaps its two blocks.
//
// The pairwise exchange of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1),
// 2005, with the pairs of a round-robin tournament, which exist for every number of ranks: in step s rank r meets rank s-r. n steps, in one
// or two of which a rank meets itself, which costs nothing on the wire. Each rank sends (n-1)/n of its data once and straight to where it
// belongs: no algorithm can send less. A pair swaps in place, so that `send` may be `recv`.
#pragma once

#include "comm/ring/transport.h"

namespace baleen {

// Block j of `send` goes to rank j, block i of `recv` comes from rank i. Each block has `bytes`. `send` == `recv` is in place.
void pairwise_all_to_all(PairTransport& transport, const void* send, void* recv, std::size_t bytes);

}  // namespace baleen
