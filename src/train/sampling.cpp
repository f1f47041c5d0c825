#include "train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace baleen {
namespace {

// The id at which the running sum of weights passes `target`; the last of positive weight where rounding leaves none.
template <class Ids, class Weight>
std::int32_t draw(const Ids& ids, const Weight& weight, double target) {
  std::int32_t last = 0;
  for (const std::int32_t id : ids) {
    const double own = weight(id);
    if (own > 0) last = id;
    target -= own;
    if (target < 0) return id;
  }
  return last;
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  const auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[static_cast<std::size_t>(id)]) - *best) / sampling.temperature);
  };
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (sampling.top_k > 0 || sampling.top_p < 1) {
    // Most likely first; of equals the first id.
    std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
      const float one = logits[static_cast<std::size_t>(a)], other = logits[static_cast<std::size_t>(b)];
      return one != other ? one > other : a < b;
    });
    if (sampling.top_k > 0) ids.resize(std::min(ids.size(), static_cast<std::size_t>(sampling.top_k)));
  }
  double total = 0;
  for (const std::int32_t id : ids) total += weight(id);
  if (sampling.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < ids.size() && (kept == 0 || sum < sampling.top_p * total)) sum += weight(ids[kept++]);
    ids.resize(kept);
    total = sum;
  }
  return draw(ids, weight, uniform * total);
}

}  // namespace baleen
