// Feeds damaged files to the parsers of parsers.h.
//
//   parsers_fuzz SECONDS [PARSER] [SEED]     each parser's seeds, cut, mixed and damaged, for so many seconds a parser
//   parsers_fuzz --seeds DIR                 writes the seeds to DIR/PARSER/, for libFuzzer
//
// With clang's -fsanitize=fuzzer (preset fuzz) the same functions are libFuzzer's: parsers_fuzz --parser=NAME CORPUS…; scripts/fuzz.sh.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "fuzz/parsers.h"

namespace baleen::fuzz {
namespace {

const Parser* find_parser(std::string_view name) {
  for (const Parser& parser : parsers())
    if (name == parser.name) return &parser;
  std::fprintf(stderr, "parsers_fuzz: no parser '%.*s'; there are:", static_cast<int>(name.size()), name.data());
  for (const Parser& parser : parsers()) std::fprintf(stderr, " %s", parser.name);
  std::fprintf(stderr, "\n");
  return nullptr;
}

#ifndef BALEEN_LIBFUZZER

std::string damaged(const std::vector<std::string>& seeds, std::mt19937_64& random) {
  std::string out = seeds[random() % seeds.size()];
  for (std::size_t count = 1 + random() % 4; count > 0; --count) {
    if (out.empty()) break;
    const std::size_t at = random() % out.size();
    switch (random() % 7) {
      case 0: out[at] = static_cast<char>(random()); break;
      case 1: out[at] = static_cast<char>(out[at] ^ (1 << random() % 8)); break;
      case 2: out.erase(at, random() % 40); break;
      case 3: out.insert(at, out.substr(random() % out.size(), random() % 60)); break;
      case 4: out.insert(at, 1 + random() % 3, "{}[]\",:0\xff\x7f\0"[random() % 11]); break;
      case 5: {
        const std::string& other = seeds[random() % seeds.size()];
        out = out.substr(0, at) + other.substr(random() % other.size());
        break;
      }
      default: out.resize(at); break;
    }
  }
  return out;
}

void run(const Parser& parser, double seconds, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> seeds = parser.seeds();
  const auto begin = std::chrono::steady_clock::now();
  std::size_t inputs = 0;
  for (const std::string& each : seeds) parser.feed(each);
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds)
    for (int each = 0; each < 20; ++each, ++inputs) parser.feed(damaged(seeds, random));
  std::printf("parsers_fuzz: %-18s %8zu inputs in %.1f s, nothing broke\n", parser.name, inputs, seconds);
}

void write_seeds(const std::filesystem::path& folder) {
  for (const Parser& parser : parsers()) {
    std::filesystem::create_directories(folder / parser.name);
    int number = 0;
    for (const std::string& seed : parser.seeds())
      std::ofstream(folder / parser.name / ("seed_" + std::to_string(number++)), std::ios::binary)
          .write(seed.data(), static_cast<std::streamsize>(seed.size()));
  }
}

#endif

}  // namespace
}  // namespace baleen::fuzz

#ifdef BALEEN_LIBFUZZER

namespace {
// libFuzzer's interface has no other way to hand it on.
const baleen::fuzz::Parser*& chosen() {
  static const baleen::fuzz::Parser* parser = nullptr;
  return parser;
}
}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view flag = "--parser=";
  for (int i = 1; i < *argc; ++i)
    if (std::string_view((*argv)[i]).starts_with(flag))
      chosen() = baleen::fuzz::find_parser(std::string_view((*argv)[i]).substr(flag.size()));
  if (chosen() == nullptr) std::exit(2);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  chosen()->feed({reinterpret_cast<const char*>(data), size});
  return 0;
}

#else

int main(int argc, char** argv) {
  using namespace baleen::fuzz;
  if (argc == 3 && std::string_view(argv[1]) == "--seeds") {
    write_seeds(argv[2]);
    return 0;
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: parsers_fuzz SECONDS [PARSER] [SEED] | --seeds DIR\n");
    return 2;
  }
  const double seconds = std::atof(argv[1]);
  const std::uint64_t seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const Parser* only = argc > 2 ? find_parser(argv[2]) : nullptr;
  if (argc > 2 && only == nullptr) return 2;
  for (const Parser& parser : parsers())
    if (only == nullptr || only == &parser) run(parser, seconds, seed);
  return 0;
}

#endif
