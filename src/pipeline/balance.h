// Which layers each chunk of a pipeline holds.
#pragma once

#include <span>
#include <vector>

namespace baleen {

struct StageRange {
  int first_layer = 0, layers = 0;
  int end() const { return first_layer + layers; }
  bool operator==(const StageRange&) const = default;
};

// Cuts the layers into `chunks` (p·v) runs of at least one layer so that the most expensive run costs as little as possible and, among
// those cuts, the costs are the most even (their squares' sum is the least). The first run also costs `embedding`, the last one `head`; any
// unit, such as FLOPs a token. Two dynamic programs, O(chunks · L²). Throws Error(bad_config) for more chunks than layers.
std::vector<StageRange> balance_stages(std::span<const double> layer_costs, double embedding, double head, int chunks);

}  // namespace baleen
