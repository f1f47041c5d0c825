#include "data/validation_split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace baleen {

std::uint64_t validation_start(const TokenFile& file, std::int32_t end_of_document, double fraction) {
  const std::uint64_t size = file.size();
  if (size < 2)
    throw Error(ExitCode::bad_data, "one token cannot be split into training and validation", file.path().string(),
                "use more text or --val-fraction 0");
  const auto target =
      std::clamp<std::uint64_t>(static_cast<std::uint64_t>(std::llround(fraction * static_cast<double>(size))), 1, size - 1);
  const std::uint64_t exact = size - target;
  // A cut is the index behind an end of document. Candidates leave between target / 2 and 2 · target tokens behind them.
  const std::uint64_t first = target >= (size - 1) / 2 ? 1 : size - 2 * target, last = size - std::max<std::uint64_t>(1, (target + 1) / 2);
  std::uint64_t best = 0;
  std::vector<std::int32_t> block;
  for (std::uint64_t at = first - 1; at < last;) {  // the end of document is at cut - 1
    block.resize(std::min<std::uint64_t>(std::uint64_t{1} << 16, last - at));
    file.read(at, block, std::numeric_limits<std::int64_t>::max());
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] != end_of_document) continue;
      const std::uint64_t cut = at + i + 1;
      const auto distance = [&](std::uint64_t c) { return c > exact ? c - exact : exact - c; };
      if (best == 0 || distance(cut) < distance(best)) best = cut;
    }
    at += block.size();
  }
  return best > 0 ? best : exact;
}

}  // namespace baleen
