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

// Four rows side by side: a short row that is far from the one before it would wait for memory alone.
void CopyRows(const Matrix& to, const Matrix& from) {
  const hn::CappedTag<std::uint8_t, line> d;
  const std::size_t element = dtype_bytes(to.dtype), lanes = hn::Lanes(d), bytes = static_cast<std::size_t>(to.columns) * element;
  const std::size_t to_stride = static_cast<std::size_t>(to.stride) * element,
                    from_stride = static_cast<std::size_t>(from.stride) * element;
  auto* out = static_cast<std::uint8_t*>(to.data);
  const auto* in = static_cast<const std::uint8_t*>(from.data);
  constexpr std::int64_t together = 4;
  std::int64_t row = 0;
  for (; row + together <= to.rows; row += together, out += together * to_stride, in += together * from_stride) {
    std::size_t i = 0;
    for (; i + lanes <= bytes; i += lanes)
      for (std::size_t r = 0; r < together; ++r) hn::StoreU(hn::LoadU(d, in + r * from_stride + i), d, out + r * to_stride + i);
    for (std::size_t r = 0; r < together; ++r) std::memcpy(out + r * to_stride + i, in + r * from_stride + i, bytes - i);
  }
  for (; row < to.rows; ++row, out += to_stride, in += from_stride) std::memcpy(out, in, bytes);
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

HWY_EXPORT(CopyRows);
HWY_EXPORT(StreamRows);

void copy_rows(const Matrix& to, const Matrix& from, bool streamed) {
  BALEEN_CHECK(to.rows == from.rows && to.columns == from.columns && to.dtype == from.dtype && !to.transposed && !from.transposed, to.rows,
               from.rows, to.columns, from.columns);
  if (streamed) return HWY_DYNAMIC_DISPATCH(StreamRows)(to, from);
  HWY_DYNAMIC_DISPATCH(CopyRows)(to, from);
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
