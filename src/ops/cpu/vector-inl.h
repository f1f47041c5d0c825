// Vector helpers of the CPU operations, compiled once for each instruction set (hence the unusual include guard, as Highway asks).
#if defined(BALEEN_OPS_CPU_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_VECTOR_INL_H
#undef BALEEN_OPS_CPU_VECTOR_INL_H
#else
#define BALEEN_OPS_CPU_VECTOR_INL_H
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <hwy/highway.h>

#include "base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

// How much of a vector a load or store covers: all lanes, or only the first `count` (the rest of a load is 0).
struct Whole {};
struct Part {
  std::size_t count;
};

// Every element the operations read or write goes through these, in either storage type: arithmetic is fp32.
HWY_INLINE FloatVec LoadVec(const float* from, Whole) {
  return hn::LoadU(FloatTag(), from);
}
HWY_INLINE void StoreVec(FloatVec value, float* to, Whole) {
  hn::StoreU(value, FloatTag(), to);
}
// A masked load of an instruction set without them reads past the end: go through the stack. Only the last vector of a row comes here.
HWY_INLINE FloatVec LoadVec(const float* from, Part part) {
  const FloatTag d;
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(hn::Zero(d), d, lanes);
  for (std::size_t i = 0; i < part.count; ++i) lanes[i] = from[i];
  return hn::Load(d, lanes);
}
HWY_INLINE void StoreVec(FloatVec value, float* to, Part part) {
  HWY_ALIGN float lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(value, FloatTag(), lanes);
  for (std::size_t i = 0; i < part.count; ++i) to[i] = lanes[i];
}

// bf16 in memory, fp32 in registers.
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using BitsVec = hn::Vec<BitsTag>;
using HalfBitsTag = hn::Rebind<std::uint16_t, FloatTag>;
HWY_INLINE FloatVec FromBFloat16Bits(hn::Vec<HalfBitsTag> bits) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(BitsTag(), bits)));
}
HWY_INLINE FloatVec LoadVec(const BFloat16* from, Whole) {
  return FromBFloat16Bits(hn::LoadU(HalfBitsTag(), reinterpret_cast<const std::uint16_t*>(from)));
}
HWY_INLINE FloatVec LoadVec(const BFloat16* from, Part part) {
  HWY_ALIGN std::uint16_t lanes[HWY_MAX_BYTES / sizeof(float)] = {};
  for (std::size_t i = 0; i < part.count; ++i) lanes[i] = from[i].bits;
  return FromBFloat16Bits(hn::Load(HalfBitsTag(), lanes));
}
// The upper halves of value's bits after `addend`, below 2^16, was added to them; a NaN stays a NaN.
HWY_INLINE hn::Vec<HalfBitsTag> UpperHalves(FloatVec value, BitsVec addend) {
  const BitsTag du;
  const BitsVec bits = hn::BitCast(du, value);
  const BitsVec rounded = hn::ShiftRight<16>(hn::Add(bits, addend));
  const BitsVec quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  const BitsVec kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
  return hn::DemoteTo(HalfBitsTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), kept));
}
// Round to nearest, ties to even, as to_bfloat16.
HWY_INLINE hn::Vec<HalfBitsTag> ToBFloat16Bits(FloatVec value) {
  const BitsTag du;
  const BitsVec odd = hn::And(hn::ShiftRight<16>(hn::BitCast(du, value)), hn::Set(du, 1u));
  return UpperHalves(value, hn::Add(odd, hn::Set(du, 0x7fffu)));
}
// The same of a value that is no NaN, or one whose lower half is 0: arithmetic makes no other from bf16's.
HWY_INLINE hn::Vec<HalfBitsTag> ToBFloat16BitsOfHalves(FloatVec value) {
  const BitsTag du;
  const BitsVec bits = hn::BitCast(du, value);
  const BitsVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const BitsVec rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
  return hn::DemoteTo(HalfBitsTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), rounded));
}
HWY_INLINE void StoreHalfBits(hn::Vec<HalfBitsTag> bits, BFloat16* to, Whole) {
  hn::StoreU(bits, HalfBitsTag(), reinterpret_cast<std::uint16_t*>(to));
}
HWY_INLINE void StoreHalfBits(hn::Vec<HalfBitsTag> bits, BFloat16* to, Part part) {
  HWY_ALIGN std::uint16_t lanes[HWY_MAX_BYTES / sizeof(float)];
  hn::Store(bits, HalfBitsTag(), lanes);
  for (std::size_t i = 0; i < part.count; ++i) to[i].bits = lanes[i];
}
template <class Width>
HWY_INLINE void StoreVec(FloatVec value, BFloat16* to, Width width) {
  StoreHalfBits(ToBFloat16Bits(value), to, width);
}

// StoreVec of a value that came from numbers of the type in which it is stored: see ToBFloat16BitsOfHalves.
template <class Width>
HWY_INLINE void StoreVecOfHalves(FloatVec value, float* to, Width width) {
  StoreVec(value, to, width);
}
template <class Width>
HWY_INLINE void StoreVecOfHalves(FloatVec value, BFloat16* to, Width width) {
  StoreHalfBits(ToBFloat16BitsOfHalves(value), to, width);
}

// What a value is once T has stored it.
template <class T>
HWY_INLINE FloatVec AsStored(FloatVec value) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return FromBFloat16Bits(ToBFloat16Bits(value));
  else
    return value;
}

HWY_INLINE float ToFloat(float value) {
  return value;
}
HWY_INLINE float ToFloat(BFloat16 value) {
  return to_float(value);
}

// body(float()) or body(BFloat16()), by what a tensor holds.
template <class Body>
HWY_INLINE void ForStorage(DType dtype, const Body& body) {
  if (dtype == DType::bf16)
    body(BFloat16());
  else
    body(float());
}

// The lanes that a load or store covers, and `other` in the rest.
HWY_INLINE FloatVec Covered(FloatVec value, Whole, FloatVec) {
  return value;
}
HWY_INLINE FloatVec Covered(FloatVec value, Part part, FloatVec other) {
  return hn::IfThenElse(hn::FirstN(FloatTag(), part.count), value, other);
}

// body(i, Whole or Part) for the vectors that cover elements [0, count).
template <class Body>
HWY_INLINE void ForVectors(std::size_t count, const Body& body) {
  const std::size_t lanes = hn::Lanes(FloatTag());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, Whole());
  if (i < count) body(i, Part{count - i});
}

HWY_INLINE float SumLanes(FloatVec v) {
  return hn::GetLane(hn::SumOfLanes(FloatTag(), v));
}
HWY_INLINE float MaxLanes(FloatVec v) {
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), v));
}

// a · b + c with the same rounding for every instruction set that has a fused multiply-add.
HWY_INLINE FloatVec Fma(FloatVec a, FloatVec b, FloatVec c) {
  return hn::MulAdd(a, b, c);
}

// 2^f · 2^n for |f| ≤ ½, where `shifted` is 1.5 · 2^23 + n: n then stands in the low bits, and shifting them to the exponent's place is all
// the scaling there is. The polynomial is the minimax fit of 2^f on [-½, ½] in relative error, 1.6e-8 with these fp32 coefficients.
HWY_INLINE FloatVec Exp2Parts(FloatVec f, FloatVec shifted) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  FloatVec p = hn::Set(d, 0.0001534581242594868f);
  p = Fma(p, f, hn::Set(d, 0.0013399930903688073f));
  p = Fma(p, f, hn::Set(d, 0.009618489071726799f));
  p = Fma(p, f, hn::Set(d, 0.05550328642129898f));
  p = Fma(p, f, hn::Set(d, 0.24022646248340607f));
  p = Fma(p, f, hn::Set(d, 0.6931471824645996f));
  p = Fma(p, f, hn::Set(d, 1.0f));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// 2^x for x ≤ 126, where anything below -126 counts as -126. A NaN stays one: Max returns its second operand where the two do not compare.
HWY_INLINE FloatVec Exp2(FloatVec x) {
  const FloatTag d;
  const FloatVec magic = hn::Set(d, 12582912.0f);
  const FloatVec bounded = hn::Max(hn::Set(d, -126.0f), x);
  const FloatVec shifted = hn::Add(bounded, magic);
  return Exp2Parts(hn::Sub(bounded, hn::Sub(shifted, magic)), shifted);
}

// e^x within 2 ulp for x in [-87, 87]; outside, the value at the nearer end. A NaN stays one.
HWY_INLINE FloatVec Exp(FloatVec x) {
  const FloatTag d;
  const FloatVec magic = hn::Set(d, 12582912.0f);
  const FloatVec bounded = hn::Min(hn::Set(d, 87.0f), hn::Max(hn::Set(d, -87.0f), x));
  const FloatVec log2e_high = hn::Set(d, 1.4426950216293335f);  // log2(e) in two parts: x · log2(e) - n then loses nothing
  const FloatVec log2e_low = hn::Set(d, 1.92596298909109e-8f);
  const FloatVec shifted = Fma(bounded, log2e_high, magic);
  const FloatVec n = hn::Sub(shifted, magic);
  return Exp2Parts(Fma(bounded, log2e_low, hn::MulSub(bounded, log2e_high, n)), shifted);
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
