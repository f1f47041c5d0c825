// Every collective, dtype and operation over 1 to 16 ranks, on values whose result is known exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "base/rng.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using testing::run_members;

const std::vector<int> sizes{1, 2, 3, 4, 5, 8, 16};

// A slot holds 8192 floats and four of them make a window: the last count takes several windows even divided by five. More ranks than that
// take the same way and too long under a sanitizer.
std::vector<std::size_t> counts_for(int size) {
  std::vector<std::size_t> counts{0, 1, 127, 128, 129, 1000, 100'003};
  if (size <= 5) counts.push_back(400'001);
  return counts;
}

// Elements of any dtype as doubles (exact for the small integers used here).
double value_at(const std::vector<std::byte>& data, std::size_t index, DType dtype) {
  const std::byte* at = data.data() + index * dtype_bytes(dtype);
  const auto read = [&]<class T>(T out) {
    std::memcpy(&out, at, sizeof out);
    return out;
  };
  switch (dtype) {
    case DType::f32: return read(float{});
    case DType::f64: return read(double{});
    case DType::bf16: return to_float(read(BFloat16{}));
    case DType::i32: return read(std::int32_t{});
    case DType::u64: return static_cast<double>(read(std::uint64_t{}));
    case DType::u8: return read(std::uint8_t{});
  }
  return 0;
}

void set_at(std::vector<std::byte>& data, std::size_t index, DType dtype, double value) {
  std::byte* at = data.data() + index * dtype_bytes(dtype);
  const auto write = [&](auto in) { std::memcpy(at, &in, sizeof in); };
  switch (dtype) {
    case DType::f32: return write(static_cast<float>(value));
    case DType::f64: return write(value);
    case DType::bf16: return write(to_bfloat16(static_cast<float>(value)));
    case DType::i32: return write(static_cast<std::int32_t>(value));
    case DType::u64: return write(static_cast<std::uint64_t>(value));
    case DType::u8: return write(static_cast<std::uint8_t>(value));
  }
}

// Integers from 1 to 10 that differ by rank: every sum of up to 16 of them is exact even in bf16 (below 256).
double contribution(int rank, std::size_t index) {
  return static_cast<double>(1 + index % 7 + (static_cast<std::size_t>(rank) * 3 + index % 5) % 4);
}

double expected(ReduceOp op, int size, std::size_t index) {
  double sum = 0, largest = -1, smallest = 1e9;
  for (int rank = 0; rank < size; ++rank) {
    const double value = contribution(rank, index);
    sum += value;
    largest = std::max(largest, value);
    smallest = std::min(smallest, value);
  }
  switch (op) {
    case ReduceOp::sum: return sum;
    case ReduceOp::avg: return sum / size;
    case ReduceOp::max: return largest;
    case ReduceOp::min: return smallest;
  }
  return 0;
}

// What `value` becomes in the dtype: an average need not be representable.
double rounded(double value, double sum, int size, ReduceOp op, DType dtype) {
  if (op != ReduceOp::avg) return value;
  switch (dtype) {
    case DType::f32: return static_cast<float>(sum) * (1.0f / static_cast<float>(size));
    case DType::f64: return sum * (1.0 / size);
    case DType::bf16: return to_float(to_bfloat16(static_cast<float>(sum) * (1.0f / static_cast<float>(size))));
    default: return static_cast<double>(static_cast<std::uint64_t>(sum) / static_cast<std::uint64_t>(size));
  }
}

double exact(ReduceOp op, int size, std::size_t index, DType dtype) {
  return rounded(expected(op, size, index), expected(ReduceOp::sum, size, index), size, op, dtype);
}

std::vector<std::byte> contributions(int rank, std::size_t count, DType dtype) {
  std::vector<std::byte> data(count * dtype_bytes(dtype));
  for (std::size_t index = 0; index < count; ++index) set_at(data, index, dtype, contribution(rank, index));
  return data;
}

// Index of the first element that differs from what it should be, or `count`.
std::size_t first_wrong(const std::vector<std::byte>& data, std::size_t count, DType dtype,
                        const std::function<double(std::size_t)>& wanted) {
  for (std::size_t index = 0; index < count; ++index)
    if (value_at(data, index, dtype) != wanted(index)) return index;
  return count;
}

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::ValuesIn(sizes), ::testing::PrintToStringParamName());

const std::vector<DType> reducible{DType::f32, DType::bf16, DType::f64, DType::i32, DType::u64};
const std::vector<ReduceOp> reduce_ops{ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min};

// Large counts with one dtype and operation only: the way of a message does not depend on them.
bool worthwhile(std::size_t count, DType dtype, ReduceOp op) {
  return count <= 1000 || (op == ReduceOp::sum && (dtype == DType::f32 || dtype == DType::bf16)) ||
         (op == ReduceOp::avg && dtype == DType::i32);
}

TEST_P(Collectives, AllReduce) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    for (const std::size_t count : counts_for(size))
      for (const DType dtype : reducible)
        for (const ReduceOp op : reduce_ops) {
          if (!worthwhile(count, dtype, op)) continue;
          const auto send = contributions(comm.rank(), count, dtype);
          std::vector<std::byte> recv(send.size());
          comm.all_reduce(send.data(), recv.data(), count, dtype, op).wait();
          const auto wanted = [&](std::size_t index) { return exact(op, size, index, dtype); };
          ASSERT_EQ(first_wrong(recv, count, dtype, wanted), count) << dtype_name(dtype) << " op " << static_cast<int>(op);
          auto in_place = send;
          comm.all_reduce(in_place.data(), in_place.data(), count, dtype, op).wait();
          ASSERT_EQ(in_place, recv) << dtype_name(dtype) << " op " << static_cast<int>(op) << " count " << count;
        }
  });
}

TEST_P(Collectives, ReduceScatter) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    for (const std::size_t each :
         {std::size_t{0}, std::size_t{1}, std::size_t{127}, std::size_t{129}, std::size_t{1000}, std::size_t{50'001}})
      for (const DType dtype : reducible)
        for (const ReduceOp op : reduce_ops) {
          if (!worthwhile(each, dtype, op)) continue;
          const std::size_t begin = each * static_cast<std::size_t>(comm.rank());
          auto send = contributions(comm.rank(), each * static_cast<std::size_t>(size), dtype);
          std::vector<std::byte> recv(each * dtype_bytes(dtype));
          comm.reduce_scatter(send.data(), recv.data(), each, dtype, op).wait();
          const auto wanted = [&](std::size_t index) { return exact(op, size, begin + index, dtype); };
          ASSERT_EQ(first_wrong(recv, each, dtype, wanted), each) << dtype_name(dtype) << " op " << static_cast<int>(op);
          std::byte* own = send.data() + begin * dtype_bytes(dtype);  // in place
          comm.reduce_scatter(send.data(), own, each, dtype, op).wait();
          ASSERT_TRUE(each == 0 || std::memcmp(own, recv.data(), recv.size()) == 0);
        }
  });
}

TEST_P(Collectives, AllGather) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    for (const std::size_t each : counts_for(size + 2))
      for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::u64}) {
        if (each > 1000 && dtype != DType::u8 && dtype != DType::f32) continue;
        const std::size_t bytes = each * dtype_bytes(dtype);
        const auto send = contributions(comm.rank(), each, dtype);
        std::vector<std::byte> recv(bytes * static_cast<std::size_t>(size));
        comm.all_gather(send.data(), recv.data(), each, dtype).wait();
        const auto wanted = [&](std::size_t index) { return contribution(static_cast<int>(index / each), index % each); };
        const std::size_t count = each * static_cast<std::size_t>(size);
        ASSERT_EQ(first_wrong(recv, count, dtype, wanted), count) << dtype_name(dtype) << " each " << each;
        std::vector<std::byte> in_place(recv.size());
        std::byte* own = in_place.data() + bytes * static_cast<std::size_t>(comm.rank());
        std::copy(send.begin(), send.end(), own);
        comm.all_gather(own, in_place.data(), each, dtype).wait();
        ASSERT_EQ(in_place, recv);
      }
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    for (const std::size_t count : counts_for(size))
      for (const int root : {0, size / 2, size - 1})
        for (const DType dtype : {DType::u8, DType::f32}) {
          auto data = contributions(comm.rank(), count, dtype);
          comm.broadcast(data.data(), count, dtype, root).wait();
          ASSERT_EQ(data, contributions(root, count, dtype)) << "root " << root << " count " << count;
        }
  });
}

TEST_P(Collectives, AllToAll) {
  const int size = GetParam();
  // What `from` sends to `to`: different for every pair, place and neighbour.
  const auto value = [](int from, int to, std::size_t index) {
    return static_cast<double>((from * 41 + to * 13 + static_cast<int>(index % 97)) % 251);
  };
  run_members(size, [&](Communicator& comm) {
    for (const std::size_t each : counts_for(size + 2))
      for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::u64}) {
        if (each > 1000 && dtype != DType::u8 && dtype != DType::f32) continue;
        const std::size_t count = each * static_cast<std::size_t>(size);
        std::vector<std::byte> send(count * dtype_bytes(dtype)), recv(send.size());
        for (std::size_t index = 0; index < count; ++index)
          set_at(send, index, dtype, value(comm.rank(), static_cast<int>(index / each), index % each));
        comm.all_to_all(send.data(), recv.data(), each, dtype).wait();
        const auto wanted = [&](std::size_t index) { return value(static_cast<int>(index / each), comm.rank(), index % each); };
        ASSERT_EQ(first_wrong(recv, count, dtype, wanted), count) << dtype_name(dtype) << " each " << each;
        comm.all_to_all(send.data(), send.data(), each, dtype).wait();  // in place
        ASSERT_EQ(send, recv) << dtype_name(dtype) << " each " << each;
      }
  });
}

TEST_P(Collectives, BarrierHoldsEveryoneBack) {
  const int size = GetParam();
  std::atomic<int> arrived{0};
  run_members(size, [&](Communicator& comm) {
    for (int round = 1; round <= 50; ++round) {
      arrived.fetch_add(1);
      comm.barrier().wait();
      ASSERT_GE(arrived.load(), round * size);
      comm.barrier().wait();
    }
  });
}

// Floats whose sum depends on the order: magnitudes from 2^-20 to 2^20.
float awkward(int rank, std::size_t index) {
  const auto words = Philox(static_cast<std::uint64_t>(rank) + 77)(index);
  const float scale = std::ldexp(1.0f, static_cast<int>(words[1] % 41) - 20);
  return (uniform_open(words[0]) - 0.5f) * scale;
}

// The order of communicator.h, on one thread: slice k over ranks k+1, k+2, …, k.
template <class T>
T summed_in_ring_order(int slice, int size, std::size_t index) {
  T sum = static_cast<T>(awkward((slice + 1) % size, index));
  for (int step = 2; step <= size; ++step) sum += static_cast<T>(awkward((slice + step) % size, index));
  return sum;
}

TEST_P(Collectives, SumsInRingOrderToTheBit) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100'003}, std::size_t{128} * 16 * 60}) {
      std::vector<float> send(count), recv(count);
      for (std::size_t index = 0; index < count; ++index) send[index] = awkward(comm.rank(), index);
      comm.all_reduce(send.data(), recv.data(), count, DType::f32, ReduceOp::sum).wait();
      for (int slice = 0; slice < size; ++slice) {
        const SliceRange range = slice_of(count, size, slice);
        for (std::size_t index = range.begin; index < range.end; ++index)
          ASSERT_EQ(std::bit_cast<std::uint32_t>(recv[index]),
                    std::bit_cast<std::uint32_t>(summed_in_ring_order<float>(slice, size, index)))
              << "slice " << slice << " element " << index;
      }
      if (count % (128 * static_cast<std::size_t>(size)) != 0) continue;
      // reduce_scatter gives the bits of its slice of all_reduce.
      const SliceRange mine = slice_of(count, size, comm.rank());
      std::vector<float> own(mine.size());
      comm.reduce_scatter(send.data(), own.data(), own.size(), DType::f32, ReduceOp::sum).wait();
      ASSERT_EQ(std::memcmp(own.data(), recv.data() + mine.begin, own.size() * sizeof(float)), 0);
    }
  });
}

TEST_P(Collectives, BfloatSumsInFloatAndRoundsOnce) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    const std::size_t count = 40'001;
    std::vector<BFloat16> data(count);
    for (std::size_t index = 0; index < count; ++index) data[index] = to_bfloat16(awkward(comm.rank(), index));
    comm.all_reduce(data.data(), data.data(), count, DType::bf16, ReduceOp::avg).wait();
    for (int slice = 0; slice < size; ++slice) {
      const SliceRange range = slice_of(count, size, slice);
      for (std::size_t index = range.begin; index < range.end; ++index) {
        float sum = to_float(to_bfloat16(awkward((slice + 1) % size, index)));
        for (int step = 2; step <= size; ++step) sum += to_float(to_bfloat16(awkward((slice + step) % size, index)));
        ASSERT_EQ(data[index].bits, to_bfloat16(sum * (1.0f / static_cast<float>(size))).bits) << "element " << index;
      }
    }
  });
}

TEST_P(Collectives, NotANumberSurvivesEveryOperation) {
  const int size = GetParam();
  run_members(size, [&](Communicator& comm) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const ReduceOp op : reduce_ops) {
      std::vector<float> data(100, 1.0f);
      if (comm.rank() == size / 2) data[7] = data[99] = nan;  // one in the body of the vector loop, one in its tail
      comm.all_reduce(data.data(), data.data(), data.size(), DType::f32, op).wait();
      EXPECT_TRUE(std::isnan(data[7]) && std::isnan(data[99])) << static_cast<int>(op);
      EXPECT_FALSE(std::isnan(data[6]));
    }
  });
}

}  // namespace
}  // namespace baleen
