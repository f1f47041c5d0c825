#include "base/rng.h"

#include <cmath>
#include <numbers>

#include "base/hash.h"

namespace baleen {

std::uint64_t derive_key(std::uint64_t seed, std::string_view name) {
  return hash_bytes(name.data(), name.size(), seed);
}

std::uint64_t derive_key(std::uint64_t seed, std::uint64_t number) {
  return hash_bytes(&number, sizeof number, seed);
}

float normal_at(const Philox& philox, std::uint64_t index) {
  // One block gives two uniforms of 53 bits, hence one Box–Muller pair: elements 2i and 2i+1.
  const auto words = philox(index / 2);
  const auto wide = [](std::uint32_t high, std::uint32_t low) { return ((static_cast<std::uint64_t>(high) << 32 | low) >> 11); };
  const double u1 = (static_cast<double>(wide(words[0], words[1])) + 1.0) * 0x1p-53;  // (0, 1]
  const double u2 = static_cast<double>(wide(words[2], words[3])) * 0x1p-53;          // [0, 1)
  const double radius = std::sqrt(-2.0 * std::log(u1)), angle = 2.0 * std::numbers::pi * u2;
  return static_cast<float>(index % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle));
}

}  // namespace baleen
