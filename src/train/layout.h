// A layout: how many ranks each axis has. What `verify` and `plan` compare.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "train/config.h"

namespace baleen {

// More than any machine has; what asks for more is refused.
inline constexpr std::int64_t most_ranks = std::int64_t{1} << 20;
// Of degrees from 1 to 65,536: most_ranks + 1 where it is above most_ranks.
constexpr std::int64_t product_of_degrees(std::initializer_list<std::int64_t> degrees) {
  std::int64_t product = 1;
  for (const std::int64_t degree : degrees) product = std::min(product * degree, most_ranks + 1);
  return product;
}

struct ParallelLayout {
  std::int64_t dp = 1, replicate = 1, zero = 0, tp = 1, cp = 1, pp = 1;
  std::string schedule = "1f1b";
  std::int64_t virtual_stages = 1;

  std::int64_t ranks() const { return product_of_degrees({dp, replicate, tp, cp, pp}); }
  // As it would be written for --layouts: the degrees that are not 1.
  std::string text() const;
};

// "dp=2,zero=3;tp=2": layouts apart by ';', keys by ','. Unnamed keys keep their defaults. Throws Error(bad_config) naming the key.
std::vector<ParallelLayout> parse_layouts(const std::string& text);
// Every layout of exactly `ranks` ranks that the keys can express, data parallelism first.
std::vector<ParallelLayout> all_layouts(std::int64_t ranks);
// The layout that a resolved [parallelism] asks for.
ParallelLayout layout_of(const ParallelismConfig& config);
// Why a layout cannot run for this model, or empty.
std::string layout_refusal(const ParallelLayout& layout, const ModelConfig& model, std::int64_t sequence_length);
// The layouts of as many ranks that can run and are the most alike, as text apart by "; ".
std::string nearest_layouts(const ParallelLayout& layout, const ModelConfig& model, std::int64_t sequence_length);

}  // namespace baleen
