// Checkpoints that are missing, damaged, forged or of another model.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/reader.h"
#include "checkpoint/support.h"
#include "checkpoint/verification.h"

namespace baleen::checkpoint::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class DamagedCheckpoint : public ::testing::Test {
 protected:
  // Reads all; the error a resume would see.
  void expect_unreadable(const std::vector<std::string>& words) {
    expect_error([&] { expect_content(checkpoint_, {1, 1}, 3); }, ExitCode::bad_data, words);
  }
  json manifest() const { return parse_json(read_text(checkpoint_ / "manifest.json"), "test"); }
  // As one who knows how the manifest's own checksum is made.
  void forge(json document) const {
    document.erase("checksum");
    const std::string text = dump_json(document);
    StreamHash hash;
    hash.update(text.data(), text.size());
    document["checksum"] = hash.hex();
    write_text(checkpoint_ / "manifest.json", dump_json(document));
  }
  void expect_forgery_refused(const std::function<void(json&)>& change, const std::vector<std::string>& words) {
    const std::string before = read_text(checkpoint_ / "manifest.json");
    json document = manifest();
    change(document);
    SCOPED_TRACE(words.front());
    forge(document);
    std::vector<std::string> all = words;
    all.push_back("manifest.json");
    expect_error([&] { const CheckpointReader reader(checkpoint_); }, ExitCode::bad_data, all);
    write_text(checkpoint_ / "manifest.json", before);
  }

  TemporaryDirectory run_;
  fs::path checkpoint_ = save(run_.path(), {2, 1}, 3);
  fs::path shard_ = checkpoint_ / "optimizer_00001-of-00002.safetensors";
};

TEST_F(DamagedCheckpoint, TruncatedFile) {
  fs::resize_file(shard_, fs::file_size(shard_) - 1);
  expect_unreadable({"optimizer_00001-of-00002.safetensors", "truncated"});
}

TEST_F(DamagedCheckpoint, MissingFile) {
  fs::remove(shard_);
  expect_unreadable({"optimizer_00001-of-00002.safetensors", "missing"});
}

TEST_F(DamagedCheckpoint, MissingManifest) {
  fs::remove(checkpoint_ / "manifest.json");
  expect_unreadable({"manifest.json", "No such file"});
}

TEST_F(DamagedCheckpoint, EveryFlippedBitIsFoundByVerify) {
  const std::string whole = read_text(shard_);
  ASSERT_EQ(CheckpointReader(checkpoint_).verify(), std::vector<std::string>());
  for (std::size_t byte = 0; byte < whole.size(); byte += 191) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (byte % 8)));
    write_text(shard_, damaged);
    const auto problems = CheckpointReader(checkpoint_).verify();
    ASSERT_FALSE(problems.empty()) << "byte " << byte;
    EXPECT_NE(problems[0].find(shard_.filename()), std::string::npos) << problems[0];
  }
}

TEST_F(DamagedCheckpoint, AChangeThatLeavesTheFileReadableIsFoundByVerify) {
  // Only the checksum of the whole file covers this one.
  std::string bytes = read_text(shard_);
  const std::string before = R"("rank":"1")";
  const auto position = bytes.find(before);
  ASSERT_NE(position, std::string::npos);
  bytes[position + before.size() - 2] = '0';
  write_text(shard_, bytes);
  expect_content(checkpoint_, {1, 1}, 3);
  const auto problems = CheckpointReader(checkpoint_).verify();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("do not match the file's checksum"), std::string::npos) << problems[0];
}

TEST_F(DamagedCheckpoint, AFlippedBitInTheDataIsFoundWhenReadAndOnlyThen) {
  std::string bytes = read_text(shard_);
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  write_text(shard_, bytes);
  expect_unreadable({"optimizer_00001-of-00002.safetensors", "do not match their checksum"});
  // The weights are in other files and do not need this one.
  CheckpointReader reader(checkpoint_);
  const Parameter parameter = small_model()[0];
  std::vector<float> out(37 * 24);
  reader.read(parameter.name, StateKind::weight, parameter.shape, 0, 37 * 24, out.data());
  EXPECT_EQ(out, expected_elements(place(parameter, StateKind::weight, {1, 1}, 0), 3));
}

TEST_F(DamagedCheckpoint, EveryFlippedBitOfTheManifestIsFound) {
  const fs::path path = checkpoint_ / "manifest.json";
  const std::string whole = read_text(path);
  int noticed = 0, same = 0;
  for (std::size_t byte = 0; byte < whole.size(); byte += 61) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (byte % 7)));
    write_text(path, damaged);
    try {
      const CheckpointReader reader(checkpoint_);
      // White space turned into other white space changes nothing.
      EXPECT_TRUE(parse_json(damaged, "test") == parse_json(whole, "test")) << "byte " << byte;
      ++same;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 100 * same);
}

TEST_F(DamagedCheckpoint, AnotherFileInItsPlace) {
  // Of the same size, and sound in itself.
  fs::copy_file(save(run_.path(), {2, 1}, 4) / shard_.filename(), shard_, fs::copy_options::overwrite_existing);
  expect_unreadable({"optimizer_00001-of-00002.safetensors", "checksum"});
}

TEST_F(DamagedCheckpoint, AnotherModel) {
  CheckpointReader reader(checkpoint_);
  std::vector<float> out(2000);
  const auto read = [&](const std::string& name, StateKind kind, const Shape& shape) {
    return [&, name, kind, shape] { reader.read(name, kind, shape, 0, checked_elements(shape).value(), out.data()); };
  };
  expect_error(read("model.embed_tokens.weight", StateKind::weight, {24, 37}), ExitCode::bad_data,
               {"model.embed_tokens.weight", "[37, 24]", "[24, 37]"});
  expect_error(read("model.other.weight", StateKind::exp_avg, {3}), ExitCode::bad_data, {"no exp_avg", "'model.other.weight'"});
}

TEST_F(DamagedCheckpoint, AMissingRangeIsNamed) {
  json document = manifest();
  json& entries = document["files"][2]["entries"];  // model_00001: the second half of the embedding
  ASSERT_EQ(entries[0]["range"], json::array({444, 888}));
  entries.erase(0);
  forge(document);
  expect_unreadable({"element 444", "model.embed_tokens.weight", "weight"});
  const auto problems = CheckpointReader(checkpoint_).verify();
  ASSERT_EQ(problems.size(), 2u);  // one tensor too many in the file, and the range
  EXPECT_NE(problems[1].find("[444, 888)"), std::string::npos) << problems[1];
}

TEST_F(DamagedCheckpoint, ForgedManifests) {
  const auto first = [](json& document) -> json& { return document["files"][0]; };
  const auto entry = [](json& document) -> json& { return document["files"][0]["entries"][0]; };
  for (const std::string name : {"../secret.safetensors", "/etc/passwd", "..", ".", "", "a/b", ".hidden"})
    expect_forgery_refused([&](json& d) { first(d)["name"] = name; }, {"'" + name + "' is not a plain file name", "files[0].name"});
  expect_forgery_refused([&](json& d) { first(d)["name"] = std::string("a\0b", 3); }, {"not a plain file name"});
  expect_forgery_refused([&](json& d) { first(d)["name"] = std::string(300, 'a'); }, {"not a plain file name"});
  expect_forgery_refused([&](json& d) { d["files"].push_back(first(d)); }, {"listed twice"});
  expect_forgery_refused([&](json& d) { d["format"] = "other"; }, {"format"});
  expect_forgery_refused([&](json& d) { d["version"] = 2; }, {"version 2 is not the 1"});
  expect_forgery_refused([&](json& d) { d["step"] = -1; }, {"step: not an integer"});
  expect_forgery_refused([&](json& d) { d["step"] = 1.5; }, {"step: not an integer"});
  expect_forgery_refused([&](json& d) { d["world"] = 0; }, {"world: 0 ranks"});
  expect_forgery_refused([&](json& d) { d.erase("training"); }, {"'training' is missing"});
  expect_forgery_refused([&](json& d) { d["training"] = "text"; }, {"'training' is missing or not an object"});
  expect_forgery_refused([&](json& d) { d["files"] = 7; }, {"files: not an array"});
  expect_forgery_refused([&](json& d) { first(d)["bytes"] = "100"; }, {"files[0].bytes: not an integer"});
  expect_forgery_refused([&](json& d) { first(d)["checksum"] = "abc"; }, {"files[0].checksum: not 32 hexadecimal digits"});
  expect_forgery_refused([&](json& d) { first(d).erase("entries"); }, {"files[0]: key 'entries' is missing"});
  expect_forgery_refused([&](json& d) { entry(d)["kind"] = "momentum"; }, {"files[0].entries[0].kind: unknown kind 'momentum'"});
  expect_forgery_refused([&](json& d) { entry(d)["dtype"] = "I32"; }, {"'I32' where F32 or BF16 is needed"});
  expect_forgery_refused([&](json& d) { entry(d)["range"] = {0, 889}; }, {"range [0, 889) is not inside"});
  expect_forgery_refused([&](json& d) { entry(d)["range"] = {5, 4}; }, {"range [5, 4) is not inside"});
  expect_forgery_refused([&](json& d) { entry(d)["range"] = {5}; }, {"not a pair"});
  expect_forgery_refused([&](json& d) { entry(d)["box"] = {{0, 38}, {0, 24}}; }, {"is not inside shape [37, 24]"});
  expect_forgery_refused([&](json& d) { entry(d)["box"] = {{0, 37}}; }, {"a box of 1 dims"});
  expect_forgery_refused([&](json& d) { entry(d)["shape"] = {1ull << 40, 1ull << 40}; }, {"overflows"});
  expect_forgery_refused([&](json& d) { entry(d)["shape"] = {0, 1ull << 40, 1ull << 40}; }, {"overflows"});
  expect_forgery_refused([&](json& d) { entry(d)["shape"] = json::array({1, 1, 1, 1, 1, 1, 1, 1, 1}); }, {"9 items where 8 are allowed"});
  expect_forgery_refused([&](json& d) { entry(d)["name"] = ""; }, {"without a parameter name"});
  expect_forgery_refused([&](json& d) { entry(d)["name"] = json::array({"a"}); }, {"entries[0].name: not a string"});
  expect_forgery_refused([&](json& d) { d["files"][0]["entries"].push_back(entry(d)); }, {"is in the file twice"});
  // A range the file cannot hold.
  expect_forgery_refused(
      [&](json& d) {
        entry(d)["shape"] = {1ull << 40};
        entry(d)["box"] = {{0, 1ull << 40}};
        entry(d)["range"] = {0, 1ull << 40};
      },
      {"more data than the file's"});
  // Two files that disagree on a parameter.
  expect_forgery_refused(
      [&](json& d) {
        entry(d)["shape"] = {38, 24};
        entry(d)["box"] = {{0, 38}, {0, 24}};
      },
      {"two shapes"});
  // Changed without its checksum.
  json document = manifest();
  document["training"]["step"] = 4;
  write_text(checkpoint_ / "manifest.json", dump_json(document));
  expect_unreadable({"does not match its own checksum", "manifest.json"});
  for (const std::string text : {"", "null", "[]", "{", "{\"format\": 1, \"format\": 2}"}) {
    write_text(checkpoint_ / "manifest.json", text);
    expect_unreadable({"manifest.json"});
  }
}

TEST_F(DamagedCheckpoint, AForgedEntryIsComparedWithTheFile) {
  // The manifest says another tensor, dtype or place than the file.
  const json document = manifest();
  json other = document;
  other["files"][0]["entries"][0]["tensor"] = "nothing of this name";
  forge(other);
  expect_unreadable({"model_00000-of-00002.safetensors", "nothing of this name"});
  other = document;
  other["files"][0]["entries"][0]["dtype"] = "BF16";
  forge(other);
  expect_unreadable({"model_00000-of-00002.safetensors", "does not hold what the manifest says"});
  other = document;
  std::swap(other["files"][0]["entries"][0]["range"], other["files"][2]["entries"][0]["range"]);
  forge(other);
  const auto problems = CheckpointReader(checkpoint_).verify();
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_NE(problems[0].find("disagree on where"), std::string::npos) << problems[0];
}

TEST_F(DamagedCheckpoint, TheNewestSoundOneIsTaken) {
  save(run_.path(), {2, 1}, 4);
  save(run_.path(), {2, 1}, 5);
  EXPECT_EQ(latest_checkpoint(run_.path()).checkpoint->step, 5);
  EXPECT_TRUE(latest_checkpoint(run_.path()).warnings.empty());
  const fs::path folder = checkpoints_folder(run_.path());
  fs::remove(folder / "step_00000005" / "manifest.json");
  fs::resize_file(folder / "step_00000004" / "model_00000-of-00002.safetensors", 20);
  const LatestCheckpoint latest = latest_checkpoint(run_.path());
  ASSERT_TRUE(latest.checkpoint.has_value());
  EXPECT_EQ(latest.checkpoint->directory, checkpoint_);
  ASSERT_EQ(latest.warnings.size(), 2u);
  EXPECT_NE(latest.warnings[0].find("step_00000005"), std::string::npos);
  EXPECT_NE(latest.warnings[1].find("model_00000-of-00002.safetensors"), std::string::npos);
}

TEST_F(DamagedCheckpoint, ARenamedCheckpointIsNotTakenForAnotherStep) {
  fs::copy(checkpoint_, checkpoints_folder(run_.path()) / "step_00000009", fs::copy_options::recursive);
  const LatestCheckpoint latest = latest_checkpoint(run_.path());
  EXPECT_EQ(latest.checkpoint->step, 3);
  ASSERT_EQ(latest.warnings.size(), 1u);
  EXPECT_NE(latest.warnings[0].find("the manifest says step 3"), std::string::npos);
}

// Step 4 is listed, and gone by its name when its turn comes.
TEST_F(DamagedCheckpoint, WhatTheRunRemovesWhileItIsVerifiedIsNotDamaged) {
  save(run_.path(), {2, 1}, 4);
  const fs::path folder = checkpoints_folder(run_.path());
  std::vector<std::string> seen;
  const auto note = [&](const Verification& result) {
    seen.push_back(fmt::format("{} {} {}", result.checkpoint.step, result.removed ? "removed" : "kept", result.problems.empty()));
  };
  verify_checkpoints(run_.path(), [&](const Verification& result) {
    note(result);
    if (result.checkpoint.step == 3) fs::rename(folder / "step_00000004", folder / ".removing_step_00000004");
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"3 kept true", "4 removed false"}));

  // A folder without a manifest, or with a file too few, is damaged all the same.
  seen.clear();
  save(run_.path(), {2, 1}, 6);
  save(run_.path(), {2, 1}, 7);
  fs::remove(folder / "step_00000006" / "manifest.json");
  fs::remove(folder / "step_00000007" / "model_00001-of-00002.safetensors");
  verify_checkpoints(run_.path(), note);
  EXPECT_EQ(seen, (std::vector<std::string>{"3 kept true", "6 kept false", "7 kept false"}));
  expect_error([] { verify_checkpoints("/nonexistent", [](const Verification&) {}); }, ExitCode::bad_data, {"no checkpoints here"});
}

// Another thread saves and keeps one, as a run does that trains. Readers of the newest find a whole one each time.
TEST(CheckpointList, ReadersFindTheNewestWhileItIsReplaced) {
  const TemporaryDirectory run;
  save(run.path(), {1, 1}, 1, DType::f32, tiny_model());
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    for (std::int64_t step = 2; !stop && step < 3000; ++step) {
      save(run.path(), {1, 1}, step, DType::f32, tiny_model());
      prune_checkpoints(run.path(), 1);
    }
  });
  for (int i = 0; i < 200; ++i) {
    const LatestCheckpoint latest = latest_checkpoint(run.path());
    EXPECT_TRUE(latest.checkpoint.has_value()) << i;
    EXPECT_EQ(latest.warnings, std::vector<std::string>()) << i;
    int verified = 0;
    try {
      verify_checkpoints(run.path(), [&](const Verification& result) {
        EXPECT_TRUE(result.removed || result.problems.empty()) << result.problems.front();
        verified += result.removed ? 0 : 1;
      });
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    EXPECT_GE(verified, 1) << i;
  }
  stop = true;
  trainer.join();
}

TEST(CheckpointList, WhatIsSetAsideStays) {
  const TemporaryDirectory folder;
  for (int time = 1; time <= 3; ++time) {
    const fs::path directory = checkpoints_folder(folder.path()) / step_name(5);
    fs::create_directories(directory);
    write_text(directory / "which", std::to_string(time));
    EXPECT_EQ(find_checkpoint(folder.path(), 5), directory);
    set_aside_damaged({5, directory});
  }
  const fs::path first = checkpoints_folder(folder.path()) / (step_name(5) + ".damaged");
  EXPECT_EQ(read_text(first / "which"), "1");
  EXPECT_EQ(read_text(fs::path(first.string() + "-2") / "which"), "2");
  EXPECT_EQ(read_text(fs::path(first.string() + "-3") / "which"), "3");
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
}

TEST(CheckpointList, TakesOnlyItsOwnNames) {
  const TemporaryDirectory run;
  EXPECT_TRUE(list_checkpoints(run.path() / "nowhere").empty());
  EXPECT_FALSE(latest_checkpoint(run.path()).checkpoint.has_value());
  for (const std::string name : {"step_00000010", "step_00000002", "step_123456789", "step_00000003.incomplete", ".removing_step_00000004",
                                 "step_5", "step_000000006", "step_-0000007", "step_0000000x", "other"})
    fs::create_directories(checkpoints_folder(run.path()) / name);
  write_text(checkpoints_folder(run.path()) / "step_00000011", "a file");
  std::vector<std::int64_t> steps;
  for (const auto& entry : list_checkpoints(run.path())) steps.push_back(entry.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 10, 123456789}));
}

}  // namespace
}  // namespace baleen::checkpoint::testing
