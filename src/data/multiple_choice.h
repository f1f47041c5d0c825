// llm.c's multiple-choice files, such as HellaSwag: a header of 256 int32 (magic 20240522, version 1, examples, bytes of the longest), then
// a stream of uint16: for each example 65535, its bytes, its number, the right choice, the number of choices, and as length and tokens the
// context and each choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace baleen {

struct ChoiceExample {
  std::vector<std::int32_t> context;
  std::vector<std::vector<std::int32_t>> choices;
  std::size_t right = 0;
};

// Whether a file begins with the magic.
bool is_multiple_choice_file(const std::filesystem::path& path);

// Throws Error(bad_data) naming the file, the example and what is wrong with it: damage, an id outside the vocabulary.
std::vector<ChoiceExample> read_multiple_choice(const std::filesystem::path& path, std::int64_t vocabulary);

}  // namespace baleen
