// llm.c's multiple-choice files, word by word.
#include "data/multiple_choice.h"

#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

std::string choice_file(std::vector<std::int32_t> header, const std::vector<std::uint16_t>& words) {
  header.resize(256);
  return std::string(reinterpret_cast<const char*>(header.data()), 1024) +
         std::string(reinterpret_cast<const char*>(words.data()), 2 * words.size());
}

const std::vector<std::int32_t> header{20240522, 1, 2, 34};
// Two examples: context 7 8 with four choices, context 9 with two.
const std::vector<std::uint16_t> words{65535, 34, 0, 2, 4, 2, 7, 8, 1, 10, 2, 11, 12, 1, 13, 1, 14, 65535, 22, 1, 0, 2, 1, 9, 1, 5, 1, 6};

TEST(MultipleChoice, IsRead) {
  const TemporaryFolder folder;
  const auto path = folder.write("hellaswag.bin", choice_file(header, words));
  EXPECT_TRUE(is_multiple_choice_file(path));
  const std::vector<ChoiceExample> examples = read_multiple_choice(path, 50257);
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(examples[0].context, (std::vector<std::int32_t>{7, 8}));
  EXPECT_EQ(examples[0].choices, (std::vector<std::vector<std::int32_t>>{{10}, {11, 12}, {13}, {14}}));
  EXPECT_EQ(examples[0].right, 2u);
  EXPECT_EQ(examples[1].choices.size(), 2u);
}

TEST(MultipleChoice, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const auto refused = [&](std::vector<std::int32_t> head, std::size_t at, std::uint16_t word, const char* problem) {
    std::vector<std::uint16_t> changed = words;
    if (at < changed.size()) changed[at] = word;
    EXPECT_ERROR(read_multiple_choice(folder.write("a.bin", choice_file(std::move(head), changed)), 15), ExitCode::bad_data, "a.bin",
                 problem);
  };
  refused({20240522, 2, 2, 34}, 99, 0, "version 2");
  refused({20240522, 1, 0, 34}, 99, 0, "0 examples");
  refused({20240522, 1, 3, 34}, 99, 0, "example 2");
  refused({20240522, 1, 1, 34}, 99, 0, "follow the last example");
  refused(header, 0, 1, "no whole example");
  refused(header, 1, 36, "example 0");
  refused(header, 1, 60'000, "no whole example");
  refused(header, 3, 4, "number 4 of 4");
  refused(header, 5, 9, "ends inside its data");
  refused(header, 5, 0, "empty context");
  refused(header, 4, 3, "more words than it uses");
  refused(header, 16, 15, "id 15");
  refused({20240520, 1, 2, 34}, 99, 0, "20240522");
  EXPECT_ERROR(read_multiple_choice(folder.write("a.bin", "\x6a\x01"), 15), ExitCode::bad_data, "shorter than its header");
}

}  // namespace
}  // namespace baleen
