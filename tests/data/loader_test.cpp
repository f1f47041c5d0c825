#include "data/loader.h"

#include <set>

#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

// A file of `count` tokens first, first + 1, …, so that a token tells where it stood.
std::filesystem::path counting_file(const TemporaryFolder& folder, const std::string& name, std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = first + static_cast<std::int32_t>(i);
  TokenFileWriter writer(folder / name, TokenFormat::llmc_uint32);
  writer.append(ids);
  writer.finish();
  return folder / name;
}

struct Batch {
  std::vector<std::int32_t> inputs, targets;
};

Batch batch_of(const BatchSource& source, std::uint64_t step, std::int64_t first, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count * source.sequence_length());
  Batch batch{std::vector<std::int32_t>(size, -7), std::vector<std::int32_t>(size, -7)};
  source.fill(step, first, count, batch.inputs.data(), batch.targets.data());
  return batch;
}

DatasetOptions options(std::int64_t T, std::int64_t G, DataOrder order = DataOrder::shuffled, std::uint64_t seed = 1234) {
  return {.sequence_length = T, .global_batch_size = G, .vocabulary = 1 << 20, .order = order, .seed = seed};
}

TEST(FindTokenFiles, SortsAPatternByName) {
  const TemporaryFolder folder;
  for (const char* name : {"train-10.bin", "train-02.bin", "train-1.bin", "train-1.txt", "other.bin", ".train-0.bin"})
    folder.write(name, "");
  std::filesystem::create_directory(folder / "train-dir.bin");
  const auto names = [&](const std::string& pattern) {
    std::string text;
    for (const auto& path : find_token_files((folder / pattern).string())) text += path.filename().string() + " ";
    return text;
  };
  EXPECT_EQ(names("train-*.bin"), "train-02.bin train-1.bin train-10.bin ");
  EXPECT_EQ(names("train-?.bin"), "train-1.bin ");
  EXPECT_EQ(names("[no]*.bin"), "other.bin ");
  EXPECT_EQ(names("other.bin"), "other.bin ");
}

TEST(FindTokenFiles, NeverTakesValidationForTraining) {
  const TemporaryFolder folder;
  for (const char* name : {"a.bin", "a.val.bin", "b.bin"}) folder.write(name, "");
  EXPECT_EQ(find_token_files((folder / "*.bin").string()).size(), 2u);
  EXPECT_EQ(find_token_files((folder / "*.val.bin").string()), std::vector{folder / "a.val.bin"});
  EXPECT_EQ(find_token_files((folder / "a.val.bin").string()), std::vector{folder / "a.val.bin"});
}

TEST(FindTokenFiles, NamesPatternAndFolder) {
  const TemporaryFolder folder;
  EXPECT_ERROR((void)find_token_files((folder / "train-*.bin").string()), ExitCode::bad_data, "train-*.bin", folder.path().string());
  EXPECT_ERROR((void)find_token_files((folder / "train.bin").string()), ExitCode::bad_data, (folder / "train.bin").string());
  EXPECT_ERROR((void)find_token_files((folder / "no/train-*.bin").string()), ExitCode::bad_data, "train-*.bin", (folder / "no").string());
  EXPECT_ERROR((void)find_token_files(""), ExitCode::bad_config);
}

TEST(TokenDataset, CutsWindowsAtStrideT) {
  const TemporaryFolder folder;
  // T = 4: 9 tokens give 2 samples (tokens 0–4 and 4–8), 8 give 1, 4 give none, 5 give 1.
  const TokenDataset data({counting_file(folder, "a.bin", 0, 9), counting_file(folder, "b.bin", 100, 8),
                           counting_file(folder, "c.bin", 200, 4), counting_file(folder, "d.bin", 300, 5)},
                          options(4, 4, DataOrder::sequential));
  EXPECT_EQ(data.samples(), 4u);
  EXPECT_EQ(data.tokens(), 26u);
  const Batch batch = batch_of(data, 0, 0, 4);
  EXPECT_EQ(batch.inputs, (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103, 300, 301, 302, 303}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 101, 102, 103, 104, 301, 302, 303, 304}));
}

TEST(TokenDataset, TakesASequenceOfOne) {
  const TemporaryFolder folder;
  const TokenDataset data({counting_file(folder, "a.bin", 10, 3)}, options(1, 2, DataOrder::sequential));
  const Batch batch = batch_of(data, 0, 0, 2);
  EXPECT_EQ(batch.inputs, (std::vector<std::int32_t>{10, 11}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{11, 12}));
}

TEST(TokenDataset, NeedsOneSample) {
  const TemporaryFolder folder;
  const auto a = counting_file(folder, "a.bin", 0, 8), b = counting_file(folder, "b.bin", 0, 3);
  EXPECT_EQ(TokenDataset({a}, options(7, 1)).samples(), 1u);
  EXPECT_ERROR(TokenDataset({b, a}, options(8, 1)), ExitCode::bad_data, "a.bin", "8", "9 tokens", "training.sequence_length");
}

TEST(TokenDataset, GivesEachSampleOnceAnEpochInAnotherOrderEach) {
  const TemporaryFolder folder;
  const TokenDataset data({counting_file(folder, "a.bin", 0, 401), counting_file(folder, "b.bin", 1000, 301)}, options(10, 7));
  ASSERT_EQ(data.samples(), 70u);
  std::vector<std::vector<std::int32_t>> epochs;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int32_t> starts;
    for (std::uint64_t step = 0; step < 10; ++step) {
      const Batch batch = batch_of(data, epoch * 10 + step, 0, 7);
      for (std::size_t i = 0; i < 7; ++i) starts.push_back(batch.inputs[i * 10]);
    }
    EXPECT_EQ(std::set<std::int32_t>(starts.begin(), starts.end()).size(), 70u);
    epochs.push_back(starts);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(TokenDataset, RunsFromOneEpochIntoTheNextInsideABatch) {
  const TemporaryFolder folder;
  const auto path = counting_file(folder, "a.bin", 0, 31);  // 3 samples of T = 10; G = 4, so that no batch is one epoch
  for (const DataOrder order : {DataOrder::shuffled, DataOrder::sequential}) {
    const TokenDataset data({path}, options(10, 4, order));
    std::vector<std::int32_t> starts;
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Batch batch = batch_of(data, step, 0, 4);
      for (std::size_t i = 0; i < 4; ++i) starts.push_back(batch.inputs[i * 10]);
    }
    for (std::size_t epoch = 0; epoch < 4; ++epoch)
      EXPECT_EQ((std::set<std::int32_t>{starts[epoch * 3], starts[epoch * 3 + 1], starts[epoch * 3 + 2]}),
                (std::set<std::int32_t>{0, 10, 20}));
    for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(static_cast<std::uint64_t>(starts[i]), 10 * data.sample_at(i));
    if (order == DataOrder::sequential) {
      EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 10, 20, 0, 10, 20, 0, 10, 20, 0, 10, 20}));
    }
  }
}

TEST(TokenDataset, GivesTheSameBatchWhateverTheLayout) {
  const TemporaryFolder folder;
  const auto path = counting_file(folder, "a.bin", 0, 1000);
  const TokenDataset data({path}, options(9, 12)), again({path}, options(9, 12));
  for (const std::uint64_t step : {0, 5, 9, 1000}) {
    const Batch whole = batch_of(data, step, 0, 12);
    for (const std::int64_t part : {1, 2, 3, 4, 6}) {
      Batch joined;
      for (std::int64_t first = 0; first < 12; first += part) {
        const Batch piece = batch_of(again, step, first, part);
        joined.inputs.insert(joined.inputs.end(), piece.inputs.begin(), piece.inputs.end());
        joined.targets.insert(joined.targets.end(), piece.targets.begin(), piece.targets.end());
      }
      EXPECT_EQ(joined.inputs, whole.inputs);
      EXPECT_EQ(joined.targets, whole.targets);
    }
  }
  EXPECT_NE(batch_of(data, 0, 0, 12).inputs, batch_of(TokenDataset({path}, options(9, 12, DataOrder::shuffled, 1235)), 0, 0, 12).inputs);
}

TEST(TokenDataset, StopsAtATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  const auto path = counting_file(folder, "a.bin", 0, 41);
  DatasetOptions small = options(10, 4, DataOrder::sequential);
  small.vocabulary = 25;
  const TokenDataset data({path}, small);
  (void)batch_of(data, 0, 0, 2);
  EXPECT_ERROR((void)batch_of(data, 0, 0, 4), ExitCode::bad_data, "a.bin, token 25", "id 25", "vocabulary of 25");
  small.vocabulary = 20;  // token 20 is the last target of the second sample, and no input of it
  EXPECT_ERROR((void)batch_of(TokenDataset({path}, small), 0, 1, 1), ExitCode::bad_data, "a.bin, token 20");
}

TEST(DataFingerprint, ComesBackFromJson) {
  const TemporaryFolder folder;
  const TokenDataset data({counting_file(folder, "a.bin", 0, 500), counting_file(folder, "b.bin", 0, 200'000)}, options(10, 4));
  const DataFingerprint print = data.fingerprint();
  const DataFingerprint again = DataFingerprint::from_json(print.to_json(), "manifest");
  EXPECT_EQ(again.to_json(), print.to_json());
  check_same_data(again, print);
  EXPECT_EQ(print.files[1].tokens, 200'000u);
  for (const char* text :
       {"", "{}", "[]", R"({"files": 3})", R"({"files":[],"seed":1,"sequence_length":1,"global_batch_size":1,"order":"odd"})"})
    EXPECT_ERROR((void)DataFingerprint::from_json(text, "manifest.json"), ExitCode::bad_data, "manifest.json");
}

// The hash looks at blocks spread over a file that is larger than all of them: another stretch in the middle shows.
TEST(DataFingerprint, SeesAChangeInTheMiddleOfALargeFile) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> ids(400'000, 3);
  const auto print_of = [&](const std::string& name) {
    TokenFileWriter writer(folder / name, TokenFormat::llmc_uint32);
    writer.append(ids);
    writer.finish();
    return TokenDataset({folder / name}, options(10, 4)).fingerprint().files[0].hash;
  };
  const std::string before = print_of("before.bin");
  EXPECT_EQ(print_of("same.bin"), before);
  std::fill(ids.begin() + 200'000, ids.begin() + 210'000, 4);
  EXPECT_NE(print_of("middle.bin"), before);
  std::fill(ids.begin() + 200'000, ids.begin() + 210'000, 3);
  ids.back() = 4;
  EXPECT_NE(print_of("end.bin"), before);
}

TEST(DataFingerprint, TellsWhatChanged) {
  const TemporaryFolder folder, moved, changed;
  const auto a = counting_file(folder, "a.bin", 0, 500), b = counting_file(folder, "b.bin", 0, 400'000);
  const DataFingerprint saved = TokenDataset({a, b}, options(10, 4)).fingerprint();
  check_same_data(
      saved,
      TokenDataset({counting_file(moved, "a.bin", 0, 500), counting_file(moved, "b.bin", 0, 400'000)}, options(10, 4)).fingerprint());
  const auto expect = [&](const std::vector<std::filesystem::path>& files, const DatasetOptions& now, ExitCode code,
                          const std::string& message) {
    EXPECT_ERROR(check_same_data(saved, TokenDataset(files, now).fingerprint()), code, message);
  };
  expect({a, b}, options(10, 4, DataOrder::shuffled, 5), ExitCode::bad_config, "data.seed = 1234");
  expect({a, b}, options(11, 4), ExitCode::bad_config, "training.sequence_length = 10");
  expect({a, b}, options(10, 5), ExitCode::bad_config, "training.global_batch_size = 4");
  expect({a, b}, options(10, 4, DataOrder::sequential), ExitCode::bad_config, "sequential");
  expect({a}, options(10, 4), ExitCode::bad_data, "b.bin");
  expect({a, b, b}, options(10, 4), ExitCode::bad_data, "added");
  expect({b, a}, options(10, 4), ExitCode::bad_data, "was a.bin");
  expect({counting_file(changed, "a.bin", 0, 501), b}, options(10, 4), ExitCode::bad_data, "had 500 tokens");
  expect({counting_file(changed, "a.bin", 1, 500), b}, options(10, 4), ExitCode::bad_data, "content has changed");
  expect({a, counting_file(changed, "b.bin", 1, 400'000)}, options(10, 4), ExitCode::bad_data, "content has changed");
}

}  // namespace
}  // namespace baleen
