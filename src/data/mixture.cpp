#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace baleen {

namespace {

constexpr double one = 4294967296.0;  // 2³²

// floor(n · slope): how many of the first n positions.
std::uint64_t count_of(std::uint64_t n, std::uint64_t slope) {
  return (n >> 32) * slope + ((n & 0xffffffff) * slope >> 32);
}

}  // namespace

MixtureOrder::MixtureOrder(const std::vector<double>& weights) {
  BALEEN_CHECK(!weights.empty(), weights.size());
  const double greatest = *std::max_element(weights.begin(), weights.end());  // the sum of the largest numbers is none
  double rest = 0;
  for (const double weight : weights) rest += weight / greatest;
  BALEEN_CHECK(rest > 0, rest);
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    slopes_.push_back(static_cast<std::uint64_t>(std::llround(weights[i] / greatest / rest * one)));
    if (slopes_.back() == 0 || slopes_.back() >= static_cast<std::uint64_t>(one))
      throw Error(ExitCode::bad_config, "data.weights: the weights differ by more than a factor of 2^32", "data.weights",
                  "leave the lightest source out, or give it more weight");
    rest -= weights[i] / greatest;
  }
}

MixtureOrder::Place MixtureOrder::at(std::uint64_t position) const {
  for (std::size_t source = 0; source < slopes_.size(); ++source) {
    const std::uint64_t before = count_of(position, slopes_[source]);
    if (count_of(position + 1, slopes_[source]) > before) return {source, before};
    position -= before;
  }
  return {slopes_.size(), position};
}

MixedDataset::MixedDataset(std::vector<std::unique_ptr<TokenDataset>> sources, std::vector<double> weights)
    : sources_(std::move(sources)), weights_(std::move(weights)), order_(weights_) {
  BALEEN_CHECK(sources_.size() == weights_.size(), sources_.size(), weights_.size());
}

void MixedDataset::fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const {
  BALEEN_CHECK(first >= 0 && count >= 0 && first + count <= global_batch_size(), first, count, global_batch_size());
  const std::uint64_t start = step * static_cast<std::uint64_t>(global_batch_size()) + static_cast<std::uint64_t>(first);
  const std::int64_t length = sequence_length();
  for (std::int64_t i = 0; i < count; ++i) {
    const MixtureOrder::Place place = order_.at(start + static_cast<std::uint64_t>(i));
    const TokenDataset& source = *sources_[place.source];
    source.copy_sample(source.sample_at(place.position), inputs + i * length, targets + i * length);
  }
}

DataFingerprint MixedDataset::fingerprint() const {
  DataFingerprint print = sources_.front()->fingerprint();
  print.files.clear();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const DataFingerprint own = sources_[i]->fingerprint();
    print.files.insert(print.files.end(), own.files.begin(), own.files.end());
    print.sources.push_back({own.files.size(), weights_[i]});
  }
  return print;
}

}  // namespace baleen
