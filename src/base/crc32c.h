// CRC-32C (Castagnoli; RFC 3720 appendix B.4), which frames TensorBoard's records.
#pragma once

#include <cstdint>
#include <string_view>

namespace baleen {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace baleen
