// `bench comm`'s library: sizes, bandwidths by nccl-tests' definitions, and a check of results that sees a single wrong element.
#include "comm/benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using ::testing::ElementsAre;

TEST(Benchmark, SizesDouble) {
  EXPECT_THAT(parse_size_range("4K:32K"), ElementsAre(4096, 8192, 16384, 32768));
  EXPECT_THAT(parse_size_range("1000:5000"), ElementsAre(1000, 2000, 4000));
  EXPECT_THAT(parse_size_range("1M"), ElementsAre(std::size_t{1} << 20));
  EXPECT_THAT(parse_size_range("64G"), ElementsAre(std::size_t{64} << 30));
}

TEST(Benchmark, BadSizesAreRefused) {
  for (const char* text : {"", ":", "4K:", ":4K", "K", "0", "3", "4k", "4KK", "-4K", "4.5K", "8K:4K", "4K:8K:16K", "65G",
                           "99999999999999999999", "18014398509481985K"})
    try {
      parse_size_range(text);
      ADD_FAILURE() << "'" << text << "' was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_config) << text;
    }
}

TEST(Benchmark, CollectivesHaveNames) {
  for (std::size_t i = 0; i < collective_names().size(); ++i)
    EXPECT_EQ(static_cast<std::size_t>(parse_collective(collective_names()[i])), i);
  EXPECT_THROW(parse_collective("all_reduc"), Error);
}

// https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
TEST(Benchmark, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_to_all, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::send_recv, 4), 1);
}

TEST(Benchmark, RowsOfEveryCollective) {
  for (const std::string& name : collective_names())
    testing::run_members(3, [&](Communicator& axis) {
      const Collective collective = parse_collective(name);
      int seen = 0;
      const auto rows = benchmark_collective(axis, collective, {4, 1 << 16}, [&](const BenchmarkRow&) { ++seen; });
      ASSERT_EQ(rows.size(), 2u);
      EXPECT_EQ(seen, axis.rank() == 0 ? 2 : 0);
      const bool parts =
          collective == Collective::all_gather || collective == Collective::reduce_scatter || collective == Collective::all_to_all;
      EXPECT_EQ(rows[0].bytes, parts ? 12u : 4u) << name;
      EXPECT_EQ(rows[1].bytes, parts ? 65532u : 65536u) << name;
      for (const BenchmarkRow& row : rows) {
        EXPECT_EQ(row.wrong, 0u) << name;
        EXPECT_GT(row.time_us, 0) << name;
        EXPECT_NEAR(row.algbw_gbs, static_cast<double>(row.bytes) / row.time_us / 1e3, 1e-9 * row.algbw_gbs) << name;
        EXPECT_NEAR(row.busbw_gbs, row.algbw_gbs * bus_factor(collective, 3), 1e-9 * row.algbw_gbs) << name;
      }
    });
}

// Passes everything on to another communicator and then damages one element of what rank 0 received.
class DamagingCommunicator final : public Communicator {
 public:
  explicit DamagingCommunicator(Communicator& inner) : Communicator(inner.rank(), inner.size(), inner.name()), inner_(inner) {}
  void abort(const std::string& reason) override { inner_.abort(reason); }

 protected:
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override {
    return damaged(inner_.all_reduce(send, recv, count, dtype, op, std::move(after)), recv, dtype);
  }
  Event do_reduce_scatter(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override {
    return damaged(inner_.reduce_scatter(send, recv, count, dtype, op, std::move(after)), recv, dtype);
  }
  Event do_all_gather(const void* send, void* recv, std::size_t count, DType dtype, Event after) override {
    return damaged(inner_.all_gather(send, recv, count, dtype, std::move(after)), recv, dtype);
  }
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) override {
    return damaged(inner_.broadcast(buffer, count, dtype, root, std::move(after)), buffer, dtype);
  }
  Event do_all_to_all(const void* send, void* recv, std::size_t count, DType dtype, Event after) override {
    return damaged(inner_.all_to_all(send, recv, count, dtype, std::move(after)), recv, dtype);
  }
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) override {
    return inner_.send(buffer, count, dtype, peer, std::move(after));
  }
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) override {
    return damaged(inner_.recv(buffer, count, dtype, peer, std::move(after)), buffer, dtype);
  }
  Event do_barrier(Event after) override { return inner_.barrier(std::move(after)); }

 private:
  Event damaged(Event event, void* received, DType dtype) const {
    event.wait();
    if (rank() == 0 && dtype == DType::f32) static_cast<float*>(received)[1] += 1;
    return event;
  }
  Communicator& inner_;
};

TEST(Benchmark, OneWrongElementIsCounted) {
  for (const std::string& name : collective_names())
    testing::run_members(2, [&](Communicator& inner) {
      DamagingCommunicator axis(inner);
      EXPECT_EQ(benchmark_collective(axis, parse_collective(name), {1 << 12}).at(0).wrong, 1u) << name;
    });
}

}  // namespace
}  // namespace baleen
