#include "ops/cpu/copy_rows.h"

#include <cstring>

#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/copy_rows.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t line = 64;

// Streams the whole cache lines of to [bytes], and copies what lies before and behind them.
HWY_INLINE void StreamRow(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const hn::CappedTag<std::uint8_t, line> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t head = HWY_MIN(bytes, (line - reinterpret_cast<std::uintptr_t>(to) % line) % line);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + line <= bytes; i += line)
    for (std::size_t part = 0; part < line; part += lanes) hn::Stream(hn::LoadU(d, from + i + part), d, to + i + part);
  std::memcpy(to + i, from + i, bytes - i);
}

void StreamRows(const Matrix& to, const Matrix& from) {
  const std::size_t element = dtype_bytes(to.dtype);
  auto* out = static_cast<std::uint8_t*>(to.data);
  const auto* in = static_cast<const std::uint8_t*>(from.data);
  for (std::int64_t row = 0; row < to.rows; ++row) {
    StreamRow(out, in, static_cast<std::size_t>(to.columns) * element);
    out += static_cast<std::size_t>(to.stride) * element, in += static_cast<std::size_t>(from.stride) * element;
  }
  hwy::FlushStream();  // what other threads see afterwards is complete
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(StreamRows);

void copy_rows(const Matrix& to, const Matrix& from, bool streamed) {
  BALEEN_CHECK(to.rows == from.rows && to.columns == from.columns && to.dtype == from.dtype && !to.transposed && !from.transposed, to.rows,
               from.rows, to.columns, from.columns);
  if (streamed) return HWY_DYNAMIC_DISPATCH(StreamRows)(to, from);
  const std::size_t element = dtype_bytes(to.dtype);
  for (std::int64_t row = 0; row < to.rows; ++row)
    std::memcpy(static_cast<std::byte*>(to.data) + static_cast<std::size_t>(row * to.stride) * element,
                static_cast<const std::byte*>(from.data) + static_cast<std::size_t>(row * from.stride) * element,
                static_cast<std::size_t>(to.columns) * element);
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
