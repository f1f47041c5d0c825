// Folders as transformers saves them (tests/golden/make_folders.py): what is read computes what transformers computes, and what is written
// holds the same bits.
#include "train/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/model_export.h"
#include "comm/connect.h"
#include "model/family.h"
#include "support/command.h"
#include "support/golden.h"
#include "train/checkpoint_saver.h"
#include "train/export_model.h"
#include "train/generation.h"
#include "train/initial_weights.h"
#include "train/step.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;
using testing::Golden;
using testing::TemporaryFolder;

class FixedBatch : public BatchSource {
 public:
  explicit FixedBatch(const Golden& golden) : ids_(golden.ints("ids")), targets_(golden.ints("targets")) {}
  void fill(std::uint64_t, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
    std::copy_n(ids_.begin() + first * 14, count * 14, inputs);
    std::copy_n(targets_.begin() + first * 14, count * 14, targets);
  }
  std::int64_t sequence_length() const override { return 14; }
  std::int64_t global_batch_size() const override { return 2; }
  HostBatch host() const { return {ids_, targets_, 2}; }

 private:
  std::vector<std::int32_t> ids_, targets_;
};

class Folders : public ::testing::TestWithParam<const char*> {
 protected:
  fs::path source() const { return testing::golden_file(std::string("folders/") + GetParam()); }
  Golden golden{std::string("folders/") + GetParam() + "/golden"};
  std::unique_ptr<World> world = connect_world(RankEnvironment{}, std::chrono::seconds(30));
  std::unique_ptr<Communicator> axis = world->create_communicator({0}, "dp");
};

TEST_P(Folders, LossGradientsAndTwentySteps) {
  ModelFolder folder(source());
  Engine engine({folder.config(), 1, 14, 1, StorageKind::training, ReduceOp::sum}, *axis);
  folder.load_weights(engine.units());
  const FixedBatch batch(golden);
  const auto valid = static_cast<double>(count_valid(batch.host().targets));
  const double expected = golden.doubles("loss")[0];
  EXPECT_NEAR(engine.gradients(batch.host(), valid) / valid, expected, 1e-6 * expected);
  double whole = 0;
  const auto& units = engine.units();
  for (const ParameterId id : units.parameters()) whole = std::hypot(whole, testing::norm(golden.floats("d." + units.parameter(id).name)));
  for (const ParameterId id : units.parameters()) {
    const std::string& name = units.parameter(id).name;
    testing::expect_near(testing::elements(units.gradient(id)), golden.floats("d." + name), name, 1e-5, 1e-8 * whole);
  }
  AdamWOptimizer optimizer({}, engine.device(), engine.units());
  TrainingStep step(engine, optimizer, batch, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, 20, 0.1}, 1.0);
  const std::vector<double> losses = golden.doubles("adamw.losses");
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(step.run(static_cast<std::int64_t>(i) + 1, false)->loss, losses[i], 1e-5) << i;
  EXPECT_LT(losses.back(), losses.front() - 0.01);
}

TEST_P(Folders, LogitsAndGreedyTextAreTransformers) {
  ModelFolder folder(source());
  const std::vector<std::int32_t> expected = golden.ints("greedy"), ids = golden.ints("ids");
  Generator generator(folder.config(), static_cast<std::int64_t>(expected.size()), 1);
  folder.load_weights(generator.units());
  testing::expect_near(generator.logits({ids.data(), expected.size()}), golden.floats("logits"), "logits", 1e-5);
  std::vector<std::int32_t> text(expected.begin(), expected.begin() + 5);
  generator.generate(std::vector<std::int32_t>(text), {.tokens = 9, .sampling = {.temperature = 0}},
                     [&](std::int32_t id) { text.push_back(id); });
  EXPECT_EQ(text, expected);
}

// Every tensor of `a` is in `b` with the same type, shape and bytes.
void expect_same_weights(const fs::path& a, const fs::path& b) {
  const ModelConfig config = read_model_config(a / "config.json");
  const checkpoint::ModelWeights first = open_model_weights(a, config),
                                 second = open_model_weights(b, read_model_config(b / "config.json"));
  for (const UnitDescription& unit : model_units(config))
    for (const ParameterDescription& parameter : unit.parameters) {
      const auto one = first.stored(parameter.name), other = second.stored(parameter.name);
      EXPECT_EQ(one.type, other.type) << parameter.name;
      EXPECT_TRUE(std::ranges::equal(one.data, other.data)) << parameter.name;
    }
}

TEST_P(Folders, ImportAndExportKeepEveryBit) {
  const TemporaryFolder folder;
  import_model(source(), "", folder / "imported");
  expect_same_weights(source(), folder / "imported");
  export_model(folder / "imported", folder / "exported");
  expect_same_weights(source(), folder / "exported");
  EXPECT_EQ(testing::read_text(folder / "imported/model.safetensors"), testing::read_text(folder / "exported/model.safetensors"));
  const auto before = parse_json(testing::read_text(source() / "config.json"), ""),
             after = parse_json(testing::read_text(folder / "exported/config.json"), "");
  for (const char* key : {"architectures", "bos_token_id", "eos_token_id", "tie_word_embeddings", "vocab_size", "transformers_version"})
    EXPECT_EQ(before.value(key, nlohmann::json()), after.value(key, nlohmann::json())) << key;
  EXPECT_EQ(before["dtype"], after["torch_dtype"]);
  EXPECT_EQ(parse_json(testing::read_text(source() / "generation_config.json"), ""),
            parse_json(testing::read_text(folder / "exported/generation_config.json"), ""));
  EXPECT_EQ(end_tokens(read_model_config(folder / "exported/config.json")), std::vector<std::int32_t>{2});
  // A folder that is there is not written over, and nothing is left beside it.
  EXPECT_THROW(export_model(folder / "imported", folder / "exported"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

// Each file of the folder by its name.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename().string()] = testing::read_text(entry.path());
  return files;
}

TEST(ExportModel, TwoAtOnceLeaveOneFolderWhole) {
  const TemporaryFolder folder;
  const fs::path sources[2]{testing::golden_file("folders/llama3"), testing::golden_file("folders/qwen2")};
  std::map<std::string, std::string> expected[2];
  for (const int i : {0, 1}) {
    export_model(sources[i], folder / "expected" / std::to_string(i));
    expected[i] = files_in(folder / "expected" / std::to_string(i));
  }
  for (int round = 0; round < 20; ++round) {
    int done[2]{};
    std::vector<std::thread> writers;
    std::barrier start(2);
    for (const int i : {0, 1})
      writers.emplace_back([&, i] {
        start.arrive_and_wait();
        try {
          export_model(sources[i], folder / "out");
          done[i] = 1;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::bad_config) << error.what();
        }
      });
    for (std::thread& writer : writers) writer.join();
    ASSERT_EQ(done[0] + done[1], 1) << round;
    ASSERT_TRUE(files_in(folder / "out") == expected[done[0] == 1 ? 0 : 1]) << round;
    fs::remove_all(folder / "out");
    ASSERT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1) << round;
  }
}

// What another rank of a stage-3 group keeps is its slice of the same weights.
TEST_P(Folders, SlicesAreReadAlone) {
  ModelFolder folder(source());
  const auto device = create_cpu_device();
  UnitStorage whole(*device, model_units(folder.config()), 3, StorageKind::inference);
  folder.load_weights(whole);
  for (int shard = 0; shard < 3; ++shard) {
    UnitStorage part(*device, model_units(folder.config()),
                     {.kind = StorageKind::training, .compute = DType::bf16, .stage = 3, .shards = 3, .shard = shard});
    folder.load_weights(part);
    for (int unit = 0; unit < part.units(); ++unit) {
      const SliceRange slice = part.slice(unit);
      const Tensor expected =
          whole.flat_weights(unit).rows(static_cast<std::int64_t>(slice.begin), static_cast<std::int64_t>(slice.size()));
      EXPECT_TRUE(std::ranges::equal(testing::elements(part.master(unit)), testing::elements(expected))) << unit;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Folders, ::testing::Values("llama3", "llama", "mistral", "qwen2", "qwen3", "gpt2"),
                         [](const auto& instance) { return std::string(instance.param); });

// A run of a small model, whose weights at each step are those of the seed `step`.
class RunFolder : public ::testing::Test {
 protected:
  void save(std::int64_t step, int keep = 1) {
    units.initialize_weights(static_cast<std::uint64_t>(step));
    TrainingState state;
    state.step = step;
    state.model_config = model_config_json(config);
    save_checkpoint(folder.path(), state, *axis, units, keep);
  }
  Error refusal() const {
    try {
      ModelFolder opened(folder.path());
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "nothing was thrown";
    return Error(ExitCode::done, "");
  }
  TemporaryFolder folder;
  ModelConfig config = read_model_config(testing::golden_file("folders/llama/config.json"));
  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<World> world = connect_world(RankEnvironment{}, std::chrono::seconds(30));
  std::unique_ptr<Communicator> axis = world->create_communicator({0}, "dp");
  UnitStorage units{*device, model_units(config), 1, StorageKind::training};
};

TEST_F(RunFolder, AnOpenCheckpointCanBeReadAfterTheRunHasRemovedIt) {
  save(1);
  ModelFolder opened(folder.path());
  save(2);
  ASSERT_FALSE(fs::exists(opened.directory()));
  UnitStorage read(*device, model_units(config), 1, StorageKind::inference);
  opened.load_weights(read);
  units.initialize_weights(1);
  for (int unit = 0; unit < read.units(); ++unit)
    EXPECT_TRUE(std::ranges::equal(testing::elements(read.flat_weights(unit)), testing::elements(units.flat_weights(unit)))) << unit;
}

TEST_F(RunFolder, TheNewestIsFoundWhileARunReplacesIt) {
  save(1);
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    for (std::int64_t step = 2; !stop && step < 5000; ++step) save(step);
  });
  UnitStorage read(*device, model_units(config), 1, StorageKind::inference);
  for (int i = 0; i < 100; ++i) EXPECT_NO_THROW(ModelFolder(folder.path()).load_weights(read)) << i;
  stop = true;
  trainer.join();
}

TEST_F(RunFolder, CheckpointsThatAreAllDamagedAreNotCalledNone) {
  fs::create_directory(folder / "checkpoints");
  EXPECT_EQ(refusal().what_is_wrong(), "the run has no checkpoint yet");
  save(1, 2);
  save(2, 2);
  for (const char* step : {"step_00000001", "step_00000002"}) fs::remove(folder / "checkpoints" / step / "manifest.json");
  const Error error = refusal();
  EXPECT_EQ(error.code(), ExitCode::bad_data);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("2 checkpoints, and none of them is whole"));
  EXPECT_THAT(error.what(), ::testing::HasSubstr("baleen checkpoint verify " + folder.path().string()));
}

// A folder whose tensors a test can rename, drop and reshape.
class Damaged : public ::testing::Test {
 protected:
  struct Held {
    std::string name;
    checkpoint::StoredType type;
    checkpoint::Shape shape;
    std::span<const std::byte> data;
  };
  void take(const std::string& name) {
    const fs::path source = testing::golden_file("folders/" + name);
    file.emplace(source / "model.safetensors");
    for (const auto& tensor : file->tensors()) tensors.push_back({tensor.name, tensor.type, tensor.shape, file->data(tensor)});
    testing::write_text(folder / "config.json", testing::read_text(source / "config.json"));
  }
  void write() const {
    std::vector<checkpoint::ExportTensor> described;
    for (const Held& held : tensors) described.push_back({held.name, held.shape, held.type});
    checkpoint::write_model_weights(folder.path(), described, [&](std::size_t index, std::int64_t begin, std::int64_t end) {
      const std::size_t width = checkpoint::stored_type_bytes(described[index].type);
      return tensors[index].data.subspan(static_cast<std::size_t>(begin) * width, static_cast<std::size_t>(end - begin) * width);
    });
  }
  void refused(const std::vector<std::string>& parts) const {
    try {
      ModelFolder opened(folder.path());
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      for (const auto& part : parts) EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  Held& held(const std::string& name) {
    for (Held& tensor : tensors)
      if (tensor.name == name) return tensor;
    throw std::runtime_error(name);
  }
  TemporaryFolder folder;
  std::optional<checkpoint::SafetensorsFile> file;
  std::vector<Held> tensors;
};

TEST_F(Damaged, NamesWithoutTheirFirstPartAndBuffersAreTaken) {
  take("gpt2");
  for (Held& tensor : tensors) tensor.name = tensor.name.substr(tensor.name.find('.') + 1);  // as GPT-2 itself is published
  tensors.push_back({"h.0.attn.bias", checkpoint::StoredType::F32, {37, 20}, held("wte.weight").data});
  tensors.push_back({"lm_head.weight", checkpoint::StoredType::F32, {37, 20}, held("wte.weight").data});  // of a tied head
  write();
  expect_same_weights(testing::golden_file("folders/gpt2"), folder.path());
}

TEST_F(Damaged, ATiedHeadIsTheEmbedding) {
  take("gpt2");
  std::vector<std::byte> other(held("transformer.wte.weight").data.begin(), held("transformer.wte.weight").data.end());
  other.back() ^= std::byte{1};
  const checkpoint::StoredType type = held("transformer.wte.weight").type;
  tensors.push_back({"lm_head.weight", type, held("transformer.wte.weight").shape, other});
  write();
  refused({"lm_head.weight is stored and is not transformer.wte.weight", "\"tie_word_embeddings\": false"});
}

TEST_F(Damaged, OneFileCountsBeforeAnIndex) {
  take("gpt2");
  write();
  testing::write_text(folder / "model.safetensors.index.json", R"({"weight_map":{"transformer.wte.weight":"missing.safetensors"}})");
  expect_same_weights(testing::golden_file("folders/gpt2"), folder.path());
}

TEST_F(Damaged, AMissingTokenizerJsonIsNamedWithItsRemedy) {
  take("gpt2");
  write();
  testing::write_text(folder / "vocab.json", "{}");
  testing::write_text(folder / "merges.txt", "");
  ModelFolder opened(folder.path());
  try {
    (void)opened.required_tokenizer();
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("tokenizer.json is missing"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("save_pretrained"));
  }
}

TEST_F(Damaged, EveryKindIsNamed) {
  take("qwen3");
  const std::string name = "model.layers.1.self_attn.k_norm.weight";
  held(name).name = "model.layers.1.self_attn.k_norm.wait";
  write();
  refused({"missing tensors", name});
  held("model.layers.1.self_attn.k_norm.wait").name = name;
  tensors.push_back({"model.layers.2.mlp.up_proj.weight", checkpoint::StoredType::BF16, {10}, held(name).data});
  write();
  refused({"does not have", "model.layers.2.mlp.up_proj.weight"});
  tensors.pop_back();
  held(name).shape = {2, 5};
  write();
  refused({name, "[2, 5]", "[10]"});
  held(name).shape = {10};
  held(name).type = checkpoint::StoredType::I16;
  write();
  refused({name, "I16"});
  fs::remove(folder / "model.safetensors");
  refused({"no weights"});
  testing::write_text(folder / "pytorch_model.bin", "x");
  refused({"pickle"});
}

TEST_F(Damaged, TheIndexIsChecked) {
  for (const auto& entry : fs::directory_iterator(testing::golden_file("folders/llama"))) fs::copy(entry.path(), folder.path());
  EXPECT_NO_THROW(ModelFolder(folder.path()));
  const std::string index = testing::read_text(folder / "model.safetensors.index.json");
  auto parsed = parse_json(index, "");
  parsed["weight_map"]["model.norm.weight"] = "../llama/model-00001-of-00004.safetensors";
  testing::write_text(folder / "model.safetensors.index.json", dump_json(parsed));
  refused({"plain file name"});
  parsed["weight_map"]["model.norm.weight"] = "model-00001-of-00004.safetensors";
  testing::write_text(folder / "model.safetensors.index.json", dump_json(parsed));
  refused({"model.norm.weight", "not there"});
  testing::write_text(folder / "model.safetensors.index.json", index);
  fs::remove(folder / "model-00003-of-00004.safetensors");
  refused({"model-00003-of-00004.safetensors"});
}

TEST_F(Damaged, LargeModelsAreCutIntoFiles) {
  take("llama3");
  std::vector<checkpoint::ExportTensor> described;
  for (const Held& tensor : tensors) described.push_back({tensor.name, tensor.shape, tensor.type});
  checkpoint::write_model_weights(
      folder.path(), described,
      [&](std::size_t i, std::int64_t begin, std::int64_t end) {
        return tensors[i].data.subspan(static_cast<std::size_t>(begin) * 2, static_cast<std::size_t>(end - begin) * 2);
      },
      8'000);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) files += entry.path().extension() == ".safetensors" ? 1 : 0;
  EXPECT_GT(files, 2);
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  expect_same_weights(testing::golden_file("folders/llama3"), folder.path());
}

}  // namespace
}  // namespace baleen
