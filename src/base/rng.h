// Counter-based random numbers: the value at a counter depends on nothing but (key, counter), so that any rank, layout or thread that
// needs element i of a tensor computes the same value without computing elements 0 … i-1.
//
// Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace baleen {

class Philox {
 public:
  explicit constexpr Philox(std::uint64_t key) : key_(key) {}

  // Four independent uniform 32-bit words for the 128-bit counter (high, low).
  constexpr std::array<std::uint32_t, 4> operator()(std::uint64_t low, std::uint64_t high = 0) const {
    std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
                                   static_cast<std::uint32_t>(high >> 32)};
    std::uint32_t k0 = static_cast<std::uint32_t>(key_), k1 = static_cast<std::uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
      c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }

 private:
  std::uint64_t key_;
};

// Mixes a seed with a name or number into a key. Stable across platforms and versions: checkpoints and layouts depend on it.
std::uint64_t derive_key(std::uint64_t seed, std::string_view name);
std::uint64_t derive_key(std::uint64_t seed, std::uint64_t number);

// Uniform in (0, 1], never 0 (so that its logarithm is finite).
constexpr float uniform_open(std::uint32_t word) {
  return (static_cast<float>(word >> 8) + 1.0f) * 0x1p-24f;
}

// Element `index` of an infinite stream of standard normal values (Box–Muller in fp64, rounded once to fp32).
float normal_at(const Philox& philox, std::uint64_t index);

}  // namespace baleen
