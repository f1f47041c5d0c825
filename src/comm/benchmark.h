// Times one collective over a range of message sizes, by nccl-tests' definitions (https://github.com/NVIDIA/nccl-tests,
// doc/PERFORMANCE.md), and counts wrong elements against inputs whose results are known exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace baleen {

enum class Collective { all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv };
// "all_reduce, all_gather, …" and the one of that name; throws Error(bad_config) listing them.
const std::vector<std::string>& collective_names();
Collective parse_collective(std::string_view name);

// "4K:256M" as 4096, 8192, …, 268435456 (each twice the one before, at most the last), "1M" as that size alone. Suffixes K, M and G are
// powers of 1024. Throws Error(bad_config) on anything else, on sizes below 4 bytes or above 64 GiB, and on a first above the last.
std::vector<std::size_t> parse_size_range(std::string_view text);

struct BenchmarkRow {
  std::size_t bytes = 0;    // of the larger of the two buffers: the message, for all_gather the result, for reduce_scatter the input
  double time_us = 0;       // of one operation, on the slowest rank
  double algbw_gbs = 0;     // bytes / time, 10⁹ bytes a second
  double busbw_gbs = 0;     // algbw × bus_factor: comparable with the speed of a link, whatever the number of ranks
  std::uint64_t wrong = 0;  // elements, over all ranks
  double memory_gbs = 0;    // touched_bytes() / time
};

// all_reduce 2(n-1)/n; all_gather, reduce_scatter and all_to_all (n-1)/n; broadcast and send_recv 1.
double bus_factor(Collective collective, int ranks);

// What all ranks together must read and write at the least, when `bytes` are a row's: every buffer that holds something needed once, every
// buffer that gets something once.
double touched_bytes(Collective collective, int ranks, std::size_t bytes);
// What the ranks' processors copy between buffers too large for their caches, all at once: bytes read and written, 10⁹ a second.
double copy_gbs(Communicator& axis);

struct BenchmarkOptions {
  // Where buffers are, nullptr: in plain memory of the host. A CPU's are in memory that ranks share, where it has such.
  Device* device = nullptr;
  // Results take the place of what is sent (all_reduce, all_gather, reduce_scatter and all_to_all; a broadcast always is). A sum then grows
  // from operation to operation; the first alone is checked.
  bool in_place = false;
};

// Collective over `axis`. Every size is rounded down to whole fp32 elements (and equal parts where the collective has parts), to at least
// one. Every rank gets the same rows; `row_done` is called after each, on rank 0 alone.
std::vector<BenchmarkRow> benchmark_collective(Communicator& axis, Collective collective, const std::vector<std::size_t>& sizes,
                                               const std::function<void(const BenchmarkRow&)>& row_done = {},
                                               const BenchmarkOptions& options = {});

}  // namespace baleen
