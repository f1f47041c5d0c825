// Copies between buffers that ranks share, faster than the C library's for what collectives move.
#pragma once

#include <cstddef>

namespace baleen {

// `to` and `from` must not overlap. From `streamed_bytes` on the copy goes past the caches: what is written need not be read first, and
// what others still need there stays.
inline constexpr std::size_t streamed_bytes = std::size_t{4} << 20;
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace baleen
