#include "data/tokenizer/token_table.h"

#include <algorithm>

#include "base/hash.h"

namespace baleen {

std::size_t TokenTable::slot_of(std::string_view text) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = hash_bytes(text.data(), text.size()) & mask;
  while (slots_[slot] >= 0 && bytes(slots_[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

std::int32_t TokenTable::find(std::string_view text) const {
  if (text.size() > longest_ || slots_.empty()) return -1;
  return slots_[slot_of(text)];
}

std::int32_t TokenTable::add(std::string_view text) {
  if (2 * (ends_.size() + 1) > slots_.size()) grow();
  const std::size_t slot = slot_of(text);
  if (slots_[slot] >= 0) return slots_[slot];
  slots_[slot] = size();
  block_ += text;
  ends_.push_back(block_.size());
  longest_ = std::max(longest_, text.size());
  return slots_[slot];
}

void TokenTable::grow() {
  slots_.assign(std::max<std::size_t>(64, 2 * slots_.size()), -1);
  for (std::int32_t id = 0; id < size(); ++id) slots_[slot_of(bytes(id))] = id;
}

}  // namespace baleen
