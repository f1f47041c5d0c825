#include "base/crc32c.h"

#include <array>

namespace baleen {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // 0x1edc6f41, lowest bit first

// What a byte in the low end of the register becomes after its eight bits are shifted out.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) != 0 ? polynomial : 0u);
    table[byte] = value;
  }
  return table;
}
constexpr auto table = make_table();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t value = ~0u;
  for (const char byte : bytes) value = (value >> 8) ^ table[(value ^ static_cast<unsigned char>(byte)) & 0xffu];
  return ~value;
}

}  // namespace baleen
