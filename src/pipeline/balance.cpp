#include "pipeline/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace baleen {
namespace {

class Balance {
 public:
  Balance(std::span<const double> layer_costs, double embedding, double head, int chunks)
      : layers_(static_cast<int>(layer_costs.size())),
        chunks_(chunks),
        embedding_(embedding),
        head_(head),
        before_(layer_costs.size() + 1) {
    for (std::size_t layer = 0; layer < layer_costs.size(); ++layer) before_[layer + 1] = before_[layer] + layer_costs[layer];
  }

  // The cut with the least total, where a run's own contribution and a total are joined by `join`.
  template <class Contribution, class Join>
  std::vector<StageRange> best(const Contribution& contribution, const Join& join) {
    constexpr double never = std::numeric_limits<double>::infinity();
    const auto width = static_cast<std::size_t>(layers_) + 1;
    std::vector<double> total(static_cast<std::size_t>(chunks_ + 1) * width, never);
    std::vector<int> begin(total.size(), -1);
    total[0] = 0;
    const auto at = [&](int chunk, int layer) { return static_cast<std::size_t>(chunk) * width + static_cast<std::size_t>(layer); };
    for (int chunk = 1; chunk <= chunks_; ++chunk)
      for (int end = chunk; end <= layers_ - (chunks_ - chunk); ++end)
        for (int first = chunk - 1; first < end; ++first) {
          const double candidate = join(total[at(chunk - 1, first)], contribution(cost(chunk, first, end)));
          if (candidate >= total[at(chunk, end)]) continue;
          total[at(chunk, end)] = candidate;
          begin[at(chunk, end)] = first;
        }
    std::vector<StageRange> ranges(static_cast<std::size_t>(chunks_));
    for (int chunk = chunks_, end = layers_; chunk > 0; --chunk) {
      const int first = begin[at(chunk, end)];
      ranges[static_cast<std::size_t>(chunk - 1)] = {first, end - first};
      end = first;
    }
    return ranges;
  }

  // Of layers [first, end) as the chunk with this number, counted from 1.
  double cost(int chunk, int first, int end) const {
    return before_[static_cast<std::size_t>(end)] - before_[static_cast<std::size_t>(first)] + (chunk == 1 ? embedding_ : 0) +
           (chunk == chunks_ ? head_ : 0);
  }

 private:
  int layers_, chunks_;
  double embedding_, head_;
  std::vector<double> before_;  // cost of all layers before
};

}  // namespace

std::vector<StageRange> balance_stages(std::span<const double> layer_costs, double embedding, double head, int chunks) {
  BALEEN_CHECK(chunks >= 1, chunks);
  if (static_cast<std::size_t>(chunks) > layer_costs.size())
    throw Error(ExitCode::bad_config, fmt::format("{} pipeline stages for {} layers: each needs one", chunks, layer_costs.size()),
                "parallelism.pipeline x parallelism.virtual_stages", fmt::format("use at most {} stages in all", layer_costs.size()));
  for (const double cost : layer_costs) BALEEN_CHECK(std::isfinite(cost) && cost >= 0, cost);
  Balance balance(layer_costs, embedding, head, chunks);
  const auto identity = [](double cost) { return cost; };
  const std::vector<StageRange> smallest = balance.best(identity, [](double a, double b) { return std::max(a, b); });
  double most = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const StageRange& range = smallest[static_cast<std::size_t>(chunk)];
    most = std::max(most, balance.cost(chunk + 1, range.first_layer, range.end()));
  }
  const double bound = most * (1 + 1e-12);
  return balance.best([bound](double cost) { return cost <= bound ? cost * cost : std::numeric_limits<double>::infinity(); },
                      [](double a, double b) { return a + b; });
}

}  // namespace baleen
