// A plain MPI program that times one collective as `baleen bench comm --backend mpi` does: what the backend is measured against.
//
//   mpirun -n N build/release/mpi_plain all_reduce|all_gather|reduce_scatter|broadcast|all_to_all [--in-place] [BYTES…]
//
// Buffers of floats; three operations first, then as many as fill 0.3 s, one after the other. Prints bytes and the
// microseconds of one operation on the slowest rank, by the nonblocking call with a wait and by the blocking one.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

struct Case {
  std::string op;
  int each = 0, size = 1;
  std::vector<float> send, recv;
  bool in_place = false;

  const void* from() const { return in_place ? MPI_IN_PLACE : send.data(); }
  void start(MPI_Request* request) {
    if (op == "all_reduce")
      MPI_Iallreduce(from(), recv.data(), each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, request);
    else if (op == "all_gather")
      MPI_Iallgather(from(), each, MPI_FLOAT, recv.data(), each, MPI_FLOAT, MPI_COMM_WORLD, request);
    else if (op == "reduce_scatter")
      MPI_Ireduce_scatter_block(from(), recv.data(), each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, request);
    else if (op == "broadcast")
      MPI_Ibcast(recv.data(), each, MPI_FLOAT, 0, MPI_COMM_WORLD, request);
    else
      MPI_Ialltoall(from(), each, MPI_FLOAT, recv.data(), each, MPI_FLOAT, MPI_COMM_WORLD, request);
  }
  void block() {
    if (op == "all_reduce")
      MPI_Allreduce(from(), recv.data(), each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op == "all_gather")
      MPI_Allgather(from(), each, MPI_FLOAT, recv.data(), each, MPI_FLOAT, MPI_COMM_WORLD);
    else if (op == "reduce_scatter")
      MPI_Reduce_scatter_block(from(), recv.data(), each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op == "broadcast")
      MPI_Bcast(recv.data(), each, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else
      MPI_Alltoall(from(), each, MPI_FLOAT, recv.data(), each, MPI_FLOAT, MPI_COMM_WORLD);
  }
  void run(int operations, bool blocking) {
    for (int done = 0; done < operations; ++done) {
      if (blocking) {
        block();
        continue;
      }
      // One after the other, as a queue runs them: they share their buffers.
      MPI_Request request = MPI_REQUEST_NULL;
      start(&request);
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
  }
  double seconds(int operations, bool blocking) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    run(operations, blocking);
    double spent = MPI_Wtime() - begin;
    MPI_Allreduce(MPI_IN_PLACE, &spent, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return spent / operations;
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string op = argc > 1 ? argv[1] : "all_reduce";
  std::vector<std::size_t> sizes;
  bool in_place = false;
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "--in-place")
      in_place = true;
    else
      sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  }
  if (sizes.empty())
    for (std::size_t bytes = std::size_t{1} << 20; bytes <= std::size_t{64} << 20; bytes *= 4) sizes.push_back(bytes);
  for (const std::size_t bytes : sizes) {
    const bool parts = op == "all_gather" || op == "reduce_scatter" || op == "all_to_all";
    const std::size_t each = std::max<std::size_t>(1, bytes / sizeof(float) / (parts ? static_cast<std::size_t>(size) : 1)),
                      all = parts ? each * static_cast<std::size_t>(size) : each;
    Case subject{op, static_cast<int>(each), size, std::vector<float>(all, 1.0f), std::vector<float>(all, 0.0f), in_place};
    double microseconds[2] = {};
    for (const bool blocking : {false, true}) {
      const double one = subject.seconds(3, blocking);
      microseconds[blocking ? 1 : 0] = 1e6 * subject.seconds(std::clamp(static_cast<int>(0.3 / one), 3, 5000), blocking);
    }
    if (rank == 0) std::printf("%12zu  nonblocking %12.2f us  blocking %12.2f us\n", all * sizeof(float), microseconds[0], microseconds[1]);
  }
  MPI_Finalize();
  return 0;
}
