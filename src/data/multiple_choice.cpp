#include "data/multiple_choice.h"

#include <cstring>
#include <span>
#include <string>

#include "base/error.h"
#include "base/file.h"

namespace baleen {
namespace {

constexpr std::int32_t magic = 20240522, version = 1;
constexpr std::size_t header_bytes = 1024;
constexpr std::uint16_t delimiter = 65535;
constexpr std::size_t fixed_words = 6;  // of an example, before its context's tokens

std::int32_t header_word(std::span<const std::byte> bytes, std::size_t index) {
  std::int32_t value = 0;
  std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
  return value;
}

// The words of one example, taken from front to back.
class ExampleReader {
 public:
  ExampleReader(std::span<const std::uint16_t> words, std::int64_t vocabulary, const std::string& where)
      : words_(words), vocabulary_(vocabulary), where_(where) {}

  std::uint16_t word() {
    if (at_ == words_.size()) fail("it ends inside its data");
    return words_[at_++];
  }
  std::vector<std::int32_t> tokens() {
    std::vector<std::int32_t> ids(word());
    for (std::int32_t& id : ids) {
      id = word();
      if (id >= vocabulary_)
        fail("token id " + std::to_string(id) + " is outside the model's vocabulary of " + std::to_string(vocabulary_));
    }
    return ids;
  }
  void finish() const {
    if (at_ != words_.size()) fail("it has more words than it uses");
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ExitCode::bad_data, "multiple-choice file: " + problem, where_, "make the file again, with the model's own tokenizer");
  }

 private:
  std::span<const std::uint16_t> words_;
  std::int64_t vocabulary_;
  const std::string& where_;
  std::size_t at_ = 0;
};

ChoiceExample read_example(std::span<const std::uint16_t> words, std::int64_t vocabulary, const std::string& where) {
  ExampleReader reader(words, vocabulary, where);
  reader.word();  // delimiter
  reader.word();  // bytes
  reader.word();  // number
  ChoiceExample example;
  example.right = reader.word();
  const std::size_t choices = reader.word();
  example.context = reader.tokens();
  if (example.context.empty()) reader.fail("an empty context");
  for (std::size_t i = 0; i < choices; ++i) {
    example.choices.push_back(reader.tokens());
    if (example.choices.back().empty()) reader.fail("an empty choice");
  }
  if (example.right >= choices)
    reader.fail("the right choice is number " + std::to_string(example.right) + " of " + std::to_string(choices));
  reader.finish();
  return example;
}

}  // namespace

bool is_multiple_choice_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  return file.bytes().size() >= 4 && header_word(file.bytes(), 0) == magic;
}

std::vector<ChoiceExample> read_multiple_choice(const std::filesystem::path& path, std::int64_t vocabulary) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  const auto fail = [&](const std::string& problem, const std::string& where) {
    throw Error(ExitCode::bad_data, "multiple-choice file: " + problem, where, "make the file again");
  };
  if (bytes.size() < header_bytes) fail("shorter than its header", path.string());
  if (header_word(bytes, 0) != magic) fail("it does not begin with 20240522", path.string());
  if (header_word(bytes, 1) != version) fail("version " + std::to_string(header_word(bytes, 1)) + "; version 1 is read", path.string());
  if (header_word(bytes, 2) <= 0) fail("it promises " + std::to_string(header_word(bytes, 2)) + " examples", path.string());
  if (bytes.size() % 2 != 0) fail("it ends inside a word", path.string());
  const std::span<const std::uint16_t> words(reinterpret_cast<const std::uint16_t*>(bytes.data() + header_bytes),
                                             (bytes.size() - header_bytes) / 2);
  std::vector<ChoiceExample> examples;
  std::size_t at = 0;
  for (std::int32_t number = 0; number < header_word(bytes, 2); ++number) {
    const std::string where = path.string() + ", example " + std::to_string(number);
    if (words.size() - at < fixed_words) fail("it ends before the examples that it promises", where);
    const std::size_t length = words[at + 1] / 2u;
    if (words[at] != delimiter || words[at + 1] % 2 != 0 || length < fixed_words || length > words.size() - at)
      fail("no whole example is here", where);
    examples.push_back(read_example(words.subspan(at, length), vocabulary, where));
    at += length;
  }
  if (at != words.size()) fail(std::to_string(2 * (words.size() - at)) + " bytes follow the last example", path.string());
  return examples;
}

}  // namespace baleen
