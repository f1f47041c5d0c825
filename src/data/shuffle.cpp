#include "data/shuffle.h"

#include <cmath>

#include "base/error.h"

namespace baleen {
namespace {

// Few rounds leave pairs on a small grid correlated: with 8 and five samples some orders came visibly more often.
constexpr std::uint64_t rounds = 16;

// The least r with r · r ≥ size.
std::uint64_t root_above(std::uint64_t size) {
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(size)));
  while (root > 0 && root * root >= size) --root;
  while (root * root < size) ++root;
  return root;
}

}  // namespace

Shuffle::Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch)
    : size_(size),
      rows_(root_above(size)),
      columns_(rows_ == 0 ? 0 : (size + rows_ - 1) / rows_),
      philox_(derive_key(derive_key(seed, "data order"), epoch)) {
  BALEEN_CHECK(size > 0 && size <= std::uint64_t{1} << 62, "size", size);
}

std::uint64_t Shuffle::operator()(std::uint64_t index) const {
  BALEEN_CHECK(index < size_, index, size_);
  std::uint64_t value = index;
  do {
    std::uint64_t row = value / columns_, column = value % columns_;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      // One half moves by an amount that depends on the other: undone by moving back, hence a bijection of the grid.
      const std::uint64_t still = round % 2 == 0 ? column : row, moves = round % 2 == 0 ? rows_ : columns_;
      const auto words = philox_(still, round);
      const std::uint64_t shift = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) % moves;
      std::uint64_t& half = round % 2 == 0 ? row : column;
      half = half + shift >= moves ? half + shift - moves : half + shift;
    }
    value = row * columns_ + column;
  } while (value >= size_);  // the cycle of a cell inside leads back inside
  return value;
}

}  // namespace baleen
