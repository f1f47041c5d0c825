// Compiled once for each instruction set (Highway, https://github.com/google/highway); the best one this processor has is chosen at run
// time.
#include "comm/ring/reducer.h"

#include <cstring>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/ring/reducer.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace baleen {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
// x86's own maximum and minimum return the second operand when one is NaN; a NaN must survive wherever in the ring it stands.
template <bool maximum>
struct Extreme {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    const V chosen = maximum ? hn::Max(a, b) : hn::Min(a, b);
    if constexpr (hwy::IsFloat<hn::TFromV<V>>()) return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, chosen));
    return chosen;
  }
};

// Elements of `Stored` in memory as vectors of the wire type.
template <class Stored>
struct Elements {
  using Wire = Stored;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const Stored* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE void write(D d, hn::Vec<D> value, Stored* to) {
    hn::StoreU(value, d, to);
  }
  static Wire read_one(const Stored* from) { return *from; }
  static void write_one(Wire value, Stored* to) { *to = value; }
};
template <>
struct Elements<BFloat16> {
  using Wire = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> read(D d, const BFloat16* from) {
    const hn::RebindToUnsigned<D> words;
    const hn::Rebind<std::uint16_t, D> halves;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(from)))));
  }
  // Exactly to_bfloat16: nearest, ties to even, NaN quiet.
  template <class D>
  static HWY_INLINE void write([[maybe_unused]] D d, hn::Vec<D> value, BFloat16* to) {
    const hn::RebindToUnsigned<D> words;
    const hn::RebindToSigned<D> signed_words;
    const hn::Rebind<std::uint16_t, D> halves;
    const auto bits = hn::BitCast(words, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(words, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu))));
    const auto quiet = hn::Or(high, hn::Set(words, 0x40u));
    const auto chosen = hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(halves, hn::BitCast(signed_words, chosen)), halves, reinterpret_cast<std::uint16_t*>(to));
  }
  static Wire read_one(const BFloat16* from) { return to_float(*from); }
  static void write_one(Wire value, BFloat16* to) { *to = to_bfloat16(value); }
};

template <class T>
HWY_INLINE T divided(T sum, int size) {
  if constexpr (hwy::IsFloat<T>())
    return sum * (T{1} / static_cast<T>(size));
  else
    return sum / static_cast<T>(size);
}

// The same operation on one element, through the first lane, so that tail and body can never differ.
template <class Op, class T>
HWY_INLINE T one(T a, T b) {
  const hn::CappedTag<T, 1> d;
  return hn::GetLane(Op()(hn::Set(d, a), hn::Set(d, b)));
}

template <class Stored>
void load(void* wire, const void* own, std::size_t count) {
  using E = Elements<Stored>;
  using Wire = typename E::Wire;
  if constexpr (std::is_same_v<Stored, Wire>) {
    std::memcpy(wire, own, count * sizeof(Stored));
  } else {
    const hn::ScalableTag<Wire> d;
    auto* to = static_cast<Wire*>(wire);
    const auto* from = static_cast<const Stored*>(own);
    std::size_t i = 0;
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(E::read(d, from + i), d, to + i);
    for (; i < count; ++i) to[i] = E::read_one(from + i);
  }
}

template <class Stored, class Op>
void combine(void* to_wire, const void* from_wire, const void* own_elements, std::size_t count) {
  using E = Elements<Stored>;
  using Wire = typename E::Wire;
  const hn::ScalableTag<Wire> d;
  auto* to = static_cast<Wire*>(to_wire);
  const auto* from = static_cast<const Wire*>(from_wire);
  const auto* own = static_cast<const Stored*>(own_elements);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(Op()(hn::LoadU(d, from + i), E::read(d, own + i)), d, to + i);
  for (; i < count; ++i) to[i] = one<Op>(from[i], E::read_one(own + i));
}

template <class Stored, class Op, bool average>
void finish(void* result_elements, const void* from_wire, const void* own_elements, std::size_t count, int size) {
  using E = Elements<Stored>;
  using Wire = typename E::Wire;
  const hn::ScalableTag<Wire> d;
  auto* result = static_cast<Stored*>(result_elements);
  const auto* from = static_cast<const Wire*>(from_wire);
  const auto* own = static_cast<const Stored*>(own_elements);
  std::size_t i = 0;
  if constexpr (!average || hwy::IsFloat<Wire>()) {
    const auto factor = hn::Set(d, average ? divided(Wire{1}, size) : Wire{1});
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
      auto value = Op()(hn::LoadU(d, from + i), E::read(d, own + i));
      if constexpr (average) value = hn::Mul(value, factor);
      E::write(d, value, result + i);
    }
  }
  for (; i < count; ++i) {
    const Wire value = one<Op>(from[i], E::read_one(own + i));
    E::write_one(average ? divided(value, size) : value, result + i);
  }
}

template <class Stored>
Reducer make(ReduceOp op) {
  Reducer out{sizeof(Stored), sizeof(typename Elements<Stored>::Wire), load<Stored>};
  switch (op) {
    case ReduceOp::sum: out.combine = combine<Stored, Sum>, out.finish = finish<Stored, Sum, false>; break;
    case ReduceOp::avg: out.combine = combine<Stored, Sum>, out.finish = finish<Stored, Sum, true>; break;
    case ReduceOp::max: out.combine = combine<Stored, Extreme<true>>, out.finish = finish<Stored, Extreme<true>, false>; break;
    case ReduceOp::min: out.combine = combine<Stored, Extreme<false>>, out.finish = finish<Stored, Extreme<false>, false>; break;
  }
  return out;
}

Reducer reducer(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f32: return make<float>(op);
    case DType::f64: return make<double>(op);
    case DType::bf16: return make<BFloat16>(op);
    case DType::i32: return make<std::int32_t>(op);
    case DType::u64: return make<std::uint64_t>(op);
    case DType::u8: break;
  }
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace baleen
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen {

HWY_EXPORT(reducer);

Reducer reducer_for(DType dtype, ReduceOp op) {
  const Reducer out = HWY_DYNAMIC_DISPATCH(reducer)(dtype, op);
  BALEEN_CHECK(out.finish != nullptr, "cannot reduce dtype", dtype_name(dtype));
  return out;
}

}  // namespace baleen
#endif
