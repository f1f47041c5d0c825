#include "comm/gather_texts.h"

#include <algorithm>

namespace baleen {

std::vector<std::string> gather_texts(Communicator& axis, const std::string& mine) {
  const auto size = static_cast<std::size_t>(axis.size());
  std::vector<std::uint64_t> lengths(size);
  const std::uint64_t length = mine.size();
  axis.all_gather(&length, lengths.data(), 1, DType::u64).wait();
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<char> padded(longest), all(longest * size);
  std::copy(mine.begin(), mine.end(), padded.begin());
  axis.all_gather(padded.data(), all.data(), longest, DType::u8).wait();
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < size; ++rank) texts.emplace_back(all.data() + rank * longest, lengths[rank]);
  return texts;
}

}  // namespace baleen
