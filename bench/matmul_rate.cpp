// What the matrix library gives at its best, beside which a training step's rate stands: bench/compare/cpu.py runs it.
//
//   OMP_NUM_THREADS=N build/release/matmul_rate fp32|bf16 [seconds]
//
// 1024 x 1536 x 384 on random numbers, both as the operands lie and with the weights in the layout that the library asks for, without the
// time to bring them there, each for `seconds` (0.1). A rate is that of some milliseconds: the best of them, and their median, which is
// what a processor keeps up. Prints one line each; the last has the greater best and the greater median before its last word.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

namespace {

using dnnl::memory;
using Clock = std::chrono::steady_clock;
constexpr std::int64_t rows = 1024, columns = 1536, depth = 384;

struct Rates {
  double best, median;
};

Rates rates(const dnnl::engine& engine, memory::data_type type, bool packed, double duration) {
  dnnl::stream stream(engine);
  const memory::desc a({rows, depth}, type, memory::format_tag::ab), out({rows, columns}, type, memory::format_tag::ab);
  const memory::desc b({depth, columns}, type, packed ? memory::format_tag::any : memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, out), engine);
  const dnnl::matmul product(description);
  memory from_a(a, engine), from_b(description.weights_desc(), engine), to(out, engine);
  // Halves and floats of magnitudes around one, by their upper bytes.
  for (const memory* operand : {&from_a, &from_b}) {
    auto* bytes = static_cast<unsigned char*>(operand->get_data_handle());
    const std::size_t element = type == memory::data_type::bf16 ? 2 : 4, size = operand->get_desc().get_size();
    unsigned state = 1;
    for (std::size_t i = 0; i < size; ++i) {
      state = state * 1664525U + 1013904223U;
      bytes[i] =
          i % element == element - 1 ? static_cast<unsigned char>(state >> 31 ? 0x3e : 0xbe) : static_cast<unsigned char>(state >> 24);
    }
  }
  std::vector<double> samples;
  const auto start = Clock::now();
  const auto since = [](Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  do {
    constexpr int repeats = 5;
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) product.execute(stream, {{DNNL_ARG_SRC, from_a}, {DNNL_ARG_WEIGHTS, from_b}, {DNNL_ARG_DST, to}});
    stream.wait();
    samples.push_back(2e-9 * rows * columns * depth * repeats / since(begin));
  } while (since(start) < duration);
  std::ranges::sort(samples);
  return {samples.back(), samples[samples.size() / 2]};
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dtype = argc >= 2 ? argv[1] : "";
  const double seconds = argc >= 3 ? std::atof(argv[2]) : 0.1;
  if ((dtype != "fp32" && dtype != "bf16") || argc > 3 || !(seconds > 0)) {
    std::fprintf(stderr, "usage: matmul_rate fp32|bf16 [seconds]\n");
    return 2;
  }
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto type = dtype == "bf16" ? memory::data_type::bf16 : memory::data_type::f32;
  const dnnl_version_t* version = dnnl_version();
  try {
    const Rates plain = rates(engine, type, false, seconds), packed = rates(engine, type, true, seconds);
    std::printf("oneDNN %d.%d.%d %s, 1024 x 1536 x 384, best and median: as it lies %.1f, %.1f, packed weights %.1f, %.1f GFLOP/s\n",
                version->major, version->minor, version->patch, dtype.c_str(), plain.best, plain.median, packed.best, packed.median);
    std::printf("GEMM rate %.1f %.1f GFLOP/s\n", std::max(plain.best, packed.best), std::max(plain.median, packed.median));
  } catch (const dnnl::error& error) {
    std::fprintf(stderr, "oneDNN has no %s product on this processor: %s\n", dtype.c_str(), error.what());
    return 1;
  }
  return 0;
}
