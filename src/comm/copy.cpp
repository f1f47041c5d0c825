// Compiled once for each instruction set; the best one this processor has is chosen at run time. The C library takes `rep movs` for such
// lengths, which some processors run slowly where the two addresses do not suit each other.
#include "comm/copy.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/copy.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace baleen {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void CopyBytes(void* to, const void* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  auto* HWY_RESTRICT out = static_cast<std::uint8_t*>(to);
  const auto* HWY_RESTRICT in = static_cast<const std::uint8_t*>(from);
  // Whole vectors at aligned places of the output, four at a time.
  const std::size_t head = (lanes - reinterpret_cast<std::uintptr_t>(out) % lanes) % lanes;
  if (bytes < head + 4 * lanes) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(out, in, head);
  std::size_t i = head;
  const auto copy_vectors = [&](const auto& store) HWY_ATTR {
    for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
      const auto a = hn::LoadU(d, in + i), b = hn::LoadU(d, in + i + lanes);
      const auto c = hn::LoadU(d, in + i + 2 * lanes), e = hn::LoadU(d, in + i + 3 * lanes);
      store(a, out + i);
      store(b, out + i + lanes);
      store(c, out + i + 2 * lanes);
      store(e, out + i + 3 * lanes);
    }
  };
  if (bytes >= streamed_bytes) {
    copy_vectors([d](auto vector, std::uint8_t* at) HWY_ATTR { hn::Stream(vector, d, at); });
    hwy::FlushStream();  // before another rank is told
  } else {
    copy_vectors([d](auto vector, std::uint8_t* at) HWY_ATTR { hn::Store(vector, d, at); });
  }
  if (i < bytes) std::memcpy(out + i, in + i, bytes - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace baleen
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen {

HWY_EXPORT(CopyBytes);

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) HWY_DYNAMIC_DISPATCH(CopyBytes)(to, from, bytes);
}

}  // namespace baleen
#endif
