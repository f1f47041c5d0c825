// A layout: how many ranks each axis has. What `verify` and `plan` compare.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config.h"

namespace baleen {

struct ParallelLayout {
  std::int64_t dp = 1, replicate = 1, zero = 0, tp = 1, cp = 1, pp = 1;
  std::string schedule = "1f1b";
  std::int64_t virtual_stages = 1;

  std::int64_t ranks() const { return dp * replicate * tp * cp * pp; }
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
