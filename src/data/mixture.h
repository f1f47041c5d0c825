// Several sources of samples in fixed proportions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/loader.h"

namespace baleen {

// Which source the sample at each position of an endless order comes from, computed and not stored: of n positions the first source has
// floor(n · w), spread evenly as a line of slope w is drawn in pixels, and the others divide the rest in the same way. So every stretch of
// the order has the sources in their proportions to within a few samples, each source's samples come in its own order without a gap, and
// any position is known at once.
class MixtureOrder {
 public:
  // Weights are positive, and count relative to their sum. Throws Error(bad_config) where one is too small to be told from 0.
  explicit MixtureOrder(const std::vector<double>& weights);

  struct Place {
    std::size_t source = 0;
    std::uint64_t position = 0;  // in the source's own endless order
  };
  Place at(std::uint64_t position) const;

 private:
  std::vector<std::uint64_t> slopes_;  // of each source but the last, among itself and those behind it; in units of 2⁻³²
};

// Samples of several datasets, each in its own shuffled order by epochs of its own.
class MixedDataset : public Dataset {
 public:
  // The datasets have one sequence length and batch size. One weight each.
  MixedDataset(std::vector<std::unique_ptr<TokenDataset>> sources, std::vector<double> weights);

  void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override;
  std::int64_t sequence_length() const override { return sources_.front()->sequence_length(); }
  std::int64_t global_batch_size() const override { return sources_.front()->global_batch_size(); }
  DataFingerprint fingerprint() const override;

 private:
  std::vector<std::unique_ptr<TokenDataset>> sources_;
  std::vector<double> weights_;
  MixtureOrder order_;
};

}  // namespace baleen
