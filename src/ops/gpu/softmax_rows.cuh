// Softmax cross-entropy and its gradient for rows of bf16 logits that fit into a multiprocessor: blocks stay and walk over rows, and while
// the gradient of one row leaves, the next row comes into its place, so that memory never waits for the exponentials nor they for it. Every
// logit is read once and its gradient written once.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/cross_entropy.h"
#include "ops/gpu/halves.cuh"
#include "ops/gpu/multiprocessors.h"

namespace baleen::ops::gpu {

inline constexpr float log2_e = 1.4426950408889634f;

// Rows of logits [rows, columns], of which the first `valid` columns count; they become gradients. A thread has each Threads-th pack of 8:
// the first `slots` of them, a multiple of a group, lie in shared memory, the others in its registers.
struct SoftmaxRows {
  std::int64_t rows;
  int columns = 0, valid = 0, slots = 0;
  float* losses;  // [rows]
  BFloat16* logits;
  const std::int32_t* targets;  // [rows]
  const float* gradient_scale;  // [1]
};

// Eight logits as the machine's words: a half of one becomes a float by one instruction, and the compiler does not take them apart where
// they wait in registers.
struct LogitPack {
  static constexpr int width = 8;
  std::uint32_t at[width / 2];

  __device__ static LogitPack load(const BFloat16* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    return {{words.x, words.y, words.z, words.w}};
  }
  __device__ void store(BFloat16* to) const { *reinterpret_cast<uint4*>(to) = uint4{at[0], at[1], at[2], at[3]}; }
  // The columns from `valid` on, where the first of the pack is `begin`, are no logits.
  __device__ void mask(int begin, int valid) {
    constexpr std::uint32_t minus_infinity = 0xff80;
    if (begin + width <= valid) return;
    for (int j = 0; j < width; ++j)
      if (begin + j >= valid)
        at[j / 2] = j % 2 == 0 ? (at[j / 2] & 0xffff0000u) | minus_infinity : (at[j / 2] & 0xffffu) | minus_infinity << 16;
  }
};

// Σ 2^(logit · log2(e) - reference) over logits seen so far. The reference is one that keeps the sum inside fp32's range, not always the
// greatest: a maximum of every pack would cost as much as its exponentials.
struct ReferredSum {
  static constexpr float most = 0x1p60f;  // of one pack
  float reference = -INFINITY, sum = 0;

  __device__ void add(const LogitPack& pack) {
    float part = of(pack, reference);
    if (!(part < most)) {  // the first pack, far above the reference, or not a number
      float greatest = reference;
      for (const std::uint32_t word : pack.at) greatest = fmaxf(greatest, fmaxf(low_half(word), high_half(word)) * log2_e);
      if (greatest != -INFINITY) sum *= gpu_fast_exp2(reference - greatest);
      reference = greatest;
      part = of(pack, greatest == -INFINITY ? 0.0f : greatest);
    }
    sum += part;
  }
  __device__ static float of(const LogitPack& pack, float reference) {
    float part = 0;
    for (const std::uint32_t word : pack.at)
      part += gpu_fast_exp2(low_half(word) * log2_e - reference) + gpu_fast_exp2(high_half(word) * log2_e - reference);
    return part;
  }
  // Over the lanes of a warp.
  __device__ ReferredSum across_warp() const {
    const float common = warp_reduce<Greatest>(reference);
    return {common, warp_reduce<Sum>(common == -INFINITY ? sum : sum * gpu_fast_exp2(reference - common))};
  }
  // Over the block, in every thread. Rows take turns with `parity`: a slow warp may still read what the row before left.
  template <int Threads>
  __device__ ReferredSum across_block(int parity) const {
    constexpr int warps = Threads / warp_size;
    __shared__ float references[2][warps], sums[2][warps];
    const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
    const ReferredSum own = across_warp();
    if (lane == 0) references[parity][warp] = own.reference, sums[parity][warp] = own.sum;
    __syncthreads();
    return (lane < warps ? ReferredSum{references[parity][lane], sums[parity][lane]} : ReferredSum{}).across_warp();
  }
};

// What makes a row's logits gradients: share · 2^(logit · log2(e) - reference), less the scale at the target.
struct RowGradient {
  BFloat16* row = nullptr;
  float reference = 0, share = 0;
  std::int32_t target = -1;  // of the thread that has its pack; elsewhere, or unknown, -1
  float at_target = 0;

  __device__ float of(float logit) const { return share * gpu_fast_exp2(logit * log2_e - reference); }
  __device__ LogitPack of(LogitPack pack) const {
    for (std::uint32_t& word : pack.at) word = rounded_halves(of(low_half(word)), of(high_half(word)));
    return pack;
  }
};

// Writes the loss of a row and says what its gradients are.
template <int Threads>
__device__ RowGradient close_row(const SoftmaxRows& to, std::int64_t row, std::int32_t target, const ReferredSum& all) {
  const bool known = target >= 0 && target < to.valid;
  const float scale = known ? *to.gradient_scale : not_a_number();
  RowGradient gradient{to.logits + row * to.columns, all.reference, scale / all.sum};
  if (!known) {
    if (threadIdx.x == 0) to.losses[row] = not_a_number();
  } else if (threadIdx.x == target / LogitPack::width % Threads) {  // who writes the target's pack reads it before and corrects it after
    const float logit = as_float(gradient.row[target]);
    const double of_target = static_cast<double>(logit) - static_cast<double>(all.reference) / static_cast<double>(log2_e);
    to.losses[row] = static_cast<float>(log(static_cast<double>(all.sum)) - of_target);
    gradient.target = target;
    gradient.at_target = gradient.of(logit) - scale;
  }
  return gradient;
}

// Slots of shared memory move `Group` at a time: while a group is on its way, the one before it is added up.
template <int Threads, int Held, int Group>
__global__ void __launch_bounds__(Threads, 1024 / Threads) softmax_rows(SoftmaxRows to) {
  constexpr int stride = Threads * LogitPack::width;
  extern __shared__ uint4 shared[];
  const int first = static_cast<int>(threadIdx.x) * LogitPack::width, behind = to.slots * stride + first;
  BFloat16 *const copy = reinterpret_cast<BFloat16*>(shared) + first, *const end = copy + to.slots * stride;
  LogitPack held[Held];
  RowGradient before;
  bool writes = false;  // the gradient of the row before
  std::int32_t target = to.targets[blockIdx.x];
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < to.rows || writes; row += gridDim.x) {
    const bool reads = row < to.rows && target != ignore_index;
    const std::int32_t next_target = row + gridDim.x < to.rows ? to.targets[row + gridDim.x] : ignore_index;
    const BFloat16* const from = to.logits + row * to.columns;
#pragma unroll
    for (int h = 0; h < Held; ++h)
      if (const int i = behind + h * stride; i < to.columns) {
        if (writes) before.of(held[h]).store(before.row + i);
        if (reads) held[h] = LogitPack::load(from + i);
      }
    ReferredSum seen;
    const auto add_group = [&](const BFloat16* group) {
#pragma unroll
      for (int g = 0; g < Group; ++g) seen.add(LogitPack::load(group + g * stride));
    };
    BFloat16 *slot = copy, *out = before.row + first;
    const BFloat16* in = from + first;
    for (; slot < end; slot += Group * stride, out += Group * stride, in += Group * stride) {
#pragma unroll
      for (int g = 0; g < Group; ++g) {
        if (writes) before.of(LogitPack::load(slot + g * stride)).store(out + g * stride);
        if (reads) gpu_copy_16(slot + g * stride, in + g * stride);
      }
      gpu_end_group();
      gpu_await_all_but_last_group();
      if (reads && slot != copy) add_group(slot - Group * stride);
    }
    if (writes && before.target >= 0) before.row[before.target] = rounded<BFloat16>(before.at_target);
    if (reads) {
#pragma unroll
      for (int h = 0; h < Held; ++h)
        if (const int i = behind + h * stride; i < to.columns) {
          held[h].mask(i, to.valid);
          seen.add(held[h]);
        }
      gpu_end_group();
      gpu_await_all_but_last_group();
      if (slot != copy) add_group(slot - Group * stride);
      before = close_row<Threads>(to, row, target, seen.across_block<Threads>(parity));
      parity ^= 1;
    } else if (row < to.rows) {
      if (threadIdx.x == 0) to.losses[row] = 0;
      for (int i = first; i < to.columns; i += stride) LogitPack{}.store(to.logits + row * to.columns + i);
    }
    writes = reads;
    target = next_target;
  }
}

// Whether rows of [rows, columns] at `logits` are ones for these kernels; then their losses and gradients are enqueued. Short rows leave
// nothing to overlap, and half a multiprocessor suffices for those of middle length.
template <int Threads>
bool launch_softmax_rows(Stream& stream, SoftmaxRows to, std::int64_t columns, std::int64_t valid) {
  constexpr int held = 5, group = 2, most_slots = 14, stride = Threads * LogitPack::width, pack_bytes = LogitPack::width * 2;
  const std::int64_t packs = (columns + stride - 1) / stride, slots = (packs - held + group - 1) / group * group;
  if (packs <= held || slots > most_slots || valid < slots * stride) return false;
  if (columns % LogitPack::width != 0 || reinterpret_cast<std::uintptr_t>(to.logits) % pack_bytes != 0) return false;
  to.columns = static_cast<int>(columns), to.valid = static_cast<int>(valid), to.slots = static_cast<int>(slots);
  constexpr auto kernel = &softmax_rows<Threads, held, group>;
  gpu_check(gpuAllowSharedMemory(kernel, most_slots * Threads * pack_bytes), "cross-entropy's shared memory");
  const auto blocks = std::min<std::int64_t>(to.rows, multiprocessors(stream) * (1024 / Threads));
  kernel<<<static_cast<unsigned>(blocks), Threads, static_cast<std::size_t>(slots) * Threads * pack_bytes, native_stream(stream)>>>(to);
  return true;
}

}  // namespace baleen::ops::gpu
