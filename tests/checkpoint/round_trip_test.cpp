// What one layout writes, every other reads.
#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "checkpoint/describe.h"
#include "checkpoint/reader.h"
#include "checkpoint/support.h"

#include <nlohmann/json.hpp>

namespace baleen::checkpoint::testing {
namespace {

TEST(CheckpointRoundTrip, AnyLayoutReadsAnyOther) {
  const std::vector<Layout> layouts{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 4}};
  for (const Layout& written : layouts) {
    const TemporaryDirectory run;
    const auto checkpoint = save(run.path(), written, 7);
    EXPECT_EQ(checkpoint, run.path() / "checkpoints" / "step_00000007");
    for (const Layout& read : layouts) {
      SCOPED_TRACE("written by " + std::to_string(written.data) + "x" + std::to_string(written.tensor) + ", read by " +
                   std::to_string(read.data) + "x" + std::to_string(read.tensor));
      expect_content(checkpoint, read, 7);
    }
    EXPECT_EQ(CheckpointReader(checkpoint).verify(), std::vector<std::string>());
  }
}

TEST(CheckpointRoundTrip, Bf16IsReadAsFp32) {
  const TemporaryDirectory run;
  expect_content(save(run.path(), {3, 1}, 2, DType::bf16), {2, 2}, 2, DType::bf16);
}

TEST(CheckpointRoundTrip, EveryRangeOfAMatrix) {
  // Written as columns, so that a row-major range crosses files at every row.
  const TemporaryDirectory run;
  CheckpointReader reader(save(run.path(), {2, 3}, 1));
  const Parameter parameter = small_model()[1];
  Placement wanted = place(parameter, StateKind::exp_avg, {1, 1}, 0);
  const std::int64_t elements = wanted.end;
  for (std::int64_t begin = 0; begin < elements; begin += 7) {
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{29}, std::int64_t{31}, elements - begin}) {
      wanted.begin = begin;
      wanted.end = std::min(begin + size, elements);
      std::vector<float> read(static_cast<std::size_t>(wanted.elements()) + 1, 12345.0f);
      reader.read(wanted, read.data());
      EXPECT_EQ(read.back(), 12345.0f) << "wrote past the range";
      read.pop_back();
      EXPECT_EQ(read, expected_elements(wanted, 1)) << begin << " + " << size;
    }
  }
}

TEST(CheckpointRoundTrip, FilesAreSelfDescribing) {
  const TemporaryDirectory run;
  const auto checkpoint = save(run.path(), {2, 1}, 5);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"manifest.json", "model_00000-of-00002.safetensors", "model_00001-of-00002.safetensors",
                                          "optimizer_00000-of-00002.safetensors", "optimizer_00001-of-00002.safetensors"}));
  const auto file = describe_safetensors(checkpoint / "model_00001-of-00002.safetensors");
  EXPECT_EQ(file["metadata"]["rank"], "1");
  EXPECT_EQ(file["metadata"]["world"], "2");
  EXPECT_EQ(file["metadata"]["step"], "5");
  const std::string tensor = "weight/model.embed_tokens.weight@444:888";
  EXPECT_EQ(file["tensors"][0]["name"], tensor);
  EXPECT_EQ(file["tensors"][0]["shape"], nlohmann::json::array({444}));
  EXPECT_EQ(
      parse_json(file["metadata"]["piece:" + tensor].get<std::string>(), "test"),
      parse_json(
          R"({"name": "model.embed_tokens.weight", "kind": "weight", "shape": [37, 24], "box": [[0, 37], [0, 24]], "range": [444, 888]})",
          "test"));

  const auto whole = describe_checkpoint(checkpoint);
  EXPECT_EQ(whole["step"], 5);
  EXPECT_EQ(whole["world"], 2);
  EXPECT_EQ(whole["files"].size(), 4u);
  EXPECT_EQ(whole["elements"], 37 * 24 + 24 * 30 + 4 * 6 * 5 + 24 + 1);
  EXPECT_EQ(whole["training"]["step"], 5);
}

TEST(CheckpointRoundTrip, ARankWithoutPiecesWritesNoFile) {
  const TemporaryDirectory run;
  const auto incomplete = begin_checkpoint(run.path(), 1, 0);
  EXPECT_TRUE(write_rank_files(incomplete, 1, 2, 1, {}).empty());
  const RankState state = rank_state({1, 1}, 0, 1);
  expect_content(commit_checkpoint(incomplete, 1, 2, "{\"step\":1}", write_rank_files(incomplete, 0, 2, 1, state.pieces)), {1, 1}, 1);
}

TEST(CheckpointRoundTrip, TrainingStateKeepsEveryBitOfItsNumbers) {
  const TemporaryDirectory run;
  const auto incomplete = begin_checkpoint(run.path(), 1, 0);
  const RankState state = rank_state({1, 1}, 0, 1);
  const nlohmann::json training{{"loss", 0.1 + 0.2},
                                {"tiny", 5e-324},
                                {"seed", 18446744073709551615ull},
                                {"negative", -9223372036854775807ll - 1},
                                {"text", "a \"quoted\" ü\n"}};
  const CheckpointReader reader(
      commit_checkpoint(incomplete, 1, 1, dump_json(training), write_rank_files(incomplete, 0, 1, 1, state.pieces)));
  EXPECT_EQ(parse_json(reader.training(), "test"), training);
}

TEST(CheckpointRoundTrip, AHoleIsNoticedWhenSaving) {
  const TemporaryDirectory run;
  const auto incomplete = begin_checkpoint(run.path(), 1, 0);
  RankState state = rank_state({1, 1}, 0, 1);
  state.pieces[0].placement.end -= 1;
  expect_error([&] { commit_checkpoint(incomplete, 1, 1, "{}", write_rank_files(incomplete, 0, 1, 1, state.pieces)); },
               ExitCode::check_failed, {"model.embed_tokens.weight", "[887, 888)"});
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
}

TEST(CheckpointRoundTrip, OverlappingBoxesAreNoticedWhenSaving) {
  const TemporaryDirectory run;
  const auto incomplete = begin_checkpoint(run.path(), 1, 0);
  RankState state = rank_state({1, 1}, 0, 1);
  Piece part = state.pieces[0];
  part.placement.box.end[0] = 10;
  part.placement.end = 240;
  state.pieces.push_back(part);
  expect_error([&] { commit_checkpoint(incomplete, 1, 1, "{}", write_rank_files(incomplete, 0, 1, 1, state.pieces)); },
               ExitCode::check_failed, {"model.embed_tokens.weight", "overlap"});
}

}  // namespace
}  // namespace baleen::checkpoint::testing
