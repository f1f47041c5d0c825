// The byte strings of a vocabulary by id and by content.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

// Ids 0 … size()-1 in the order of add(). Look-up is a hash table with open addressing over one block of bytes.
class TokenTable {
 public:
  // The id given to `bytes`, or that of the equal token already there (then it is less than size() was).
  std::int32_t add(std::string_view bytes);
  std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()); }
  std::string_view bytes(std::int32_t id) const {
    const std::size_t begin = id == 0 ? 0 : ends_[static_cast<std::size_t>(id) - 1];
    return {block_.data() + begin, ends_[static_cast<std::size_t>(id)] - begin};
  }
  // The id of the token with exactly these bytes, or -1.
  std::int32_t find(std::string_view bytes) const;
  std::size_t longest() const { return longest_; }

 private:
  std::size_t slot_of(std::string_view bytes) const;  // where it is, or the empty slot where it belongs
  void grow();

  std::string block_;
  std::vector<std::size_t> ends_;    // end of each token in block_
  std::vector<std::int32_t> slots_;  // ids, -1 where empty; a power of two of them, at most half full
  std::size_t longest_ = 0;
};

}  // namespace baleen
