// Whatever is wrong with a command, a config or the data: the exit code of docs/operations.md, and a message with place and remedy.
#include <signal.h>

#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

struct BadConfig {
  const char* name;
  const char* set;
  int exit_code;
  std::vector<const char*> words;
};

void PrintTo(const BadConfig& value, std::ostream* out) {
  *out << value.name;
}

class BadConfigTest : public TrainingFixture, public ::testing::WithParamInterface<BadConfig> {};

TEST_P(BadConfigTest, IsRefusedBeforeAnythingIsWritten) {
  const CommandResult result = train("run", {"--ranks", "2", "--set", GetParam().set});
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.error;
  EXPECT_EQ(result.out, "");
  for (const char* word : GetParam().words)
    EXPECT_NE(result.error.find(word), std::string::npos) << "missing '" << word << "' in: " << result.error;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/checkpoints"));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadConfigTest,
    ::testing::Values(
        BadConfig{"UnknownKey", "training.step=5", 2, {"training.step", "did you mean 'steps'"}},
        BadConfig{"UnknownSection", "trainning.steps=5", 2, {"trainning", "did you mean [training]"}},
        BadConfig{"WrongType", "training.steps=\"many\"", 2, {"training.steps", "expected an integer", "a string"}},
        BadConfig{"BooleanForInteger", "training.steps=true", 2, {"training.steps", "expected an integer"}},
        BadConfig{"FloatForInteger", "training.steps=1e3", 2, {"training.steps", "expected an integer"}},
        BadConfig{"OutOfRange", "training.micro_batch_size=0", 2, {"training.micro_batch_size", "out of range"}},
        BadConfig{"NegativeRate", "optimizer.lr=-1.0", 2, {"optimizer.lr", "out of range"}},
        BadConfig{"InfiniteRate", "optimizer.lr=inf", 2, {"optimizer.lr", "out of range"}},
        BadConfig{"BadBetas", "optimizer.betas=[0.9, 1.0]", 2, {"optimizer.betas"}},
        BadConfig{"BetasOfOneInFp32", "optimizer.betas=[0.9, 0.99999999]", 2, {"optimizer.betas", "fp32"}},
        BadConfig{"GradientsOfUnknownPrecision", "optimizer.gradient_dtype=fp16", 2, {"optimizer.gradient_dtype", "bf16"}},
        BadConfig{"NegativeHeadChunks", "training.head_chunks=-1", 2, {"training.head_chunks", "out of range"}},
        BadConfig{"MoreHeadChunksThanTokens", "training.head_chunks=1000", 2, {"training.head_chunks = 1000", "or less, or 0 (automatic)"}},
        BadConfig{"BadChoice", "lr_schedule.kind=cosin", 2, {"lr_schedule.kind", "cosine"}},
        BadConfig{"TooLong", "model.max_position_embeddings=16", 2, {"sequence_length", "max_position_embeddings = 16"}},
        BadConfig{"HeadsDoNotDivide", "model.num_attention_heads=5", 2, {"num_attention_heads", "hidden_size"}},
        BadConfig{"KvHeadsDoNotDivide", "model.num_key_value_heads=3", 2, {"num_key_value_heads", "does not divide"}},
        BadConfig{"UnknownArchitecture", "model.architecture=mamba", 2, {"model.architecture", "qwen2, qwen3, gpt2"}},
        BadConfig{"BiasNotBoolean", "model.attention_bias=1", 2, {"model.attention_bias", "true or false"}},
        BadConfig{"KeyOfGpt2", "model.n_embd=32", 2, {"model.n_embd", "hidden_size", "gpt2"}},
        BadConfig{"SlidingWindow", "model.sliding_window=4096", 2, {"model.sliding_window", "not supported"}},
        BadConfig{"BatchDoesNotDivide", "training.global_batch_size=6", 2, {"global_batch_size = 6", "4 or 8"}},
        BadConfig{"DegreesDoNotFit", "parallelism.data=3", 2, {"3 ranks", "--ranks 3"}},
        BadConfig{"OverlapIsNoNumber", "comm.overlap=1", 2, {"comm.overlap", "true or false"}},
        BadConfig{"PeerCopiesAreNoNumber", "comm.peer_copies=1", 2, {"comm.peer_copies", "true or false"}},
        BadConfig{"MpiWithoutItsLauncher", "comm.backend=mpi", 2, {"[comm] backend", "mpirun -n 2"}},
        BadConfig{"SpikeFactorOfOne", "fault.spike_factor=1", 2, {"fault.spike_factor", "not above 1"}},
        BadConfig{"SpikeWindowOfOne", "fault.spike_window=1", 2, {"fault.spike_window", "out of range"}},
        BadConfig{"NegativeSpikeSkip", "fault.spike_skip=-1", 2, {"fault.spike_skip", "out of range"}},
        BadConfig{"NoSpikeLimit", "fault.spike_limit=0", 2, {"fault.spike_limit", "out of range"}},
        BadConfig{"NoSkipLimit", "fault.skip_limit=0", 2, {"fault.skip_limit", "out of range"}},
        BadConfig{"NonFinite", "fault.nonfinite=ignore", 2, {"fault.nonfinite", "skip"}},
        BadConfig{"NoSuchData", "data.train=nowhere.bin", 3, {"nowhere.bin"}},
        BadConfig{"ForeignData", "data.train=corpus.txt", 3, {"corpus.txt"}},
        BadConfig{"IdsOutOfVocabulary", "model.vocab_size=100", 3, {"corpus.bin", "100"}},
        BadConfig{"WeightsForOneSource", "data.weights=[0.5, 0.5]", 2, {"data.weights", "2 weights for 1"}},
        BadConfig{"WeightNotPositive", "data.weights=[0]", 2, {"data.weights", "above 0"}},
        BadConfig{"TrainNotStrings", "data.train=[1]", 2, {"data.train", "strings"}},
        BadConfig{"SourceMissing", "data.train=[\"corpus.bin\", \"nowhere.bin\"]", 3, {"nowhere.bin"}},
        BadConfig{"UnknownPreset", "model.preset=enormous", 2, {"enormous", "tiny"}}),
    [](const auto& instance) { return instance.param.name; });

using BadInput = TrainingFixture;

TEST_F(BadInput, CommandLines) {
  EXPECT_EQ(run_baleen({}).exit_code, 2);
  EXPECT_EQ(run_baleen({"trian"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"train"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"train", folder / "config.toml", "--ranks", "0"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"train", folder / "nowhere.toml"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"train", folder / "config.toml", "--set", "steps=5"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"generate", folder / "nowhere", "--prompt", "x"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"inspect", folder / "corpus.txt"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"--help"}).exit_code, 0);
}

// Each says why, and which layouts of as many ranks would run.
TEST_F(BadInput, LayoutsThatCannotRun) {
  const auto refused = [&](const std::vector<std::string>& settings, const std::string& reason, const std::string& nearest) {
    std::vector<std::string> more{"--ranks", "4"};
    for (const std::string& setting : settings) more.insert(more.end(), {"--set", setting});
    const CommandResult result = train("run", more);
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_NE(result.error.find(reason), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("nearest layouts that run: " + nearest), std::string::npos) << result.error;
  };
  refused({"parallelism.pipeline=4"}, "4 pipeline stages are more than the model's 2 layers", "dp=2,pp=2");
  refused({"parallelism.pipeline=2", "parallelism.schedule=interleaved", "parallelism.virtual_stages=2"}, "(2 × 2 virtual)", "dp=2,pp=2");
  refused({"parallelism.context=4", "training.sequence_length=36", "parallelism.zero=1"}, "36 tokens do not divide into 2 · cp = 8",
          "dp=2,zero=1,cp=2");
  refused({"parallelism.tensor=4", "model.num_attention_heads=6", "model.head_dim=8"}, "6 attention heads cannot be divided by tp = 4",
          "dp=2,tp=2");
}

// It would also say the vocabulary: what is missing is the file.
TEST_F(BadInput, AMissingFileIsNamedWhereNoDataAreNeeded) {
  const CommandResult result = run_baleen({"bench", "train", folder / "config.toml", "--steps", "1", "--set", "data.train=nowhere.bin"});
  EXPECT_EQ(result.exit_code, 3) << result.error;
  EXPECT_NE(result.error.find("nowhere.bin"), std::string::npos) << result.error;
}

TEST_F(BadInput, BrokenTomlNamesTheLine) {
  write_text(folder / "config.toml", "[model]\npreset = \"tiny\"\nnonsense\n");
  const CommandResult result = train("run");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.error.find("config.toml:3"), std::string::npos) << result.error;
}

TEST_F(BadInput, TruncatedAndEmptyTokenFiles) {
  const std::string whole = read_text(folder / "corpus.bin");
  write_text(folder / "corpus.bin", whole.substr(0, whole.size() - 10));
  CommandResult result = train("run");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.error.find("corpus.bin"), std::string::npos) << result.error;
  write_text(folder / "corpus.bin", "");
  result = train("run");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.error.find("corpus.bin"), std::string::npos) << result.error;
}

TEST_F(BadInput, RunDirectoryThatCannotBeWritten) {
  write_text(folder / "a_file", "x");
  const CommandResult result = run_baleen(train_arguments("a_file/run", {"--ranks", "2"}));
  EXPECT_EQ(result.exit_code, 3) << result.error;
  EXPECT_NE(result.error.find("a_file"), std::string::npos) << result.error;
}

TEST_F(BadInput, RunDirectoryInUse) {
  Command first(baleen_arguments(train_arguments("run", {"--set", "training.steps=100000"})));
  wait_for_rows(first, "run", 1);
  const CommandResult second = train("run", {"--ranks", "2"});
  EXPECT_EQ(second.exit_code, 2) << second.error;
  EXPECT_NE(second.error.find("in use"), std::string::npos) << second.error;
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 75);
}

// The weights fit into the model that is asked for, which would compute something else with them.
TEST_F(BadInput, AnotherModelOfTheSameShapesIsNotResumed) {
  ASSERT_EQ(train("run").exit_code, 0);
  const auto resume = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> more{"--set", "training.steps=20"};
    for (const std::string& setting : settings) more.insert(more.end(), {"--set", setting});
    return train("run", more);
  };
  const auto refused = [&](const std::vector<std::string>& settings, const std::string& key) {
    const CommandResult result = resume(settings);
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_NE(result.error.find(key), std::string::npos) << result.error;
  };
  const std::size_t before = rows("run").size();
  refused({"model.rope_theta=500"}, "model.rope_theta");
  refused({"model.rms_norm_eps=0.1"}, "model.rms_norm_eps");
  refused({"model.num_attention_heads=2", "model.num_key_value_heads=1", "model.head_dim=24"}, "model.num_attention_heads");
  refused({"model.architecture=mistral"}, "model.architecture");
  // Weights that would be lost.
  refused({"model.num_hidden_layers=1"}, "model.num_hidden_layers");
  refused({"model.tie_word_embeddings=false"}, "model.tie_word_embeddings");
  refused({"model.intermediate_size=40"}, "model.intermediate_size");
  EXPECT_EQ(rows("run").size(), before);
  EXPECT_EQ(resume({"model.initializer_range=0.5"}).exit_code, 0);  // of no weight that there is
}

// Ids that come up late, or never, say nothing in the first step.
TEST_F(BadInput, AnIdOutsideTheVocabularyIsFoundBeforeAnythingIsDeleted) {
  ASSERT_EQ(train("run").exit_code, 0);
  std::string text;
  for (int line = 0; line < 3000; ++line) text += "Line " + std::to_string(line) + " of a text.\n";
  write_text(folder / "one.txt", text);
  ASSERT_EQ(run_baleen({"tokenize", "--tokenizer", "bytes", folder / "one.txt", folder / "one.txt", "--out", folder / "two.bin"}).exit_code,
            0);
  ASSERT_EQ(run_baleen({"tokenize", "--tokenizer", "bytes", folder / "one.txt", "--out", folder / "single.bin"}).exit_code, 0);
  const std::vector<std::string> two{"--set", "data.train=two.bin", "--set", "model.vocab_size=200", "--resume", "never"};
  const CommandResult result = train("run", two);
  EXPECT_EQ(result.exit_code, 3) << result.error;
  EXPECT_NE(result.error.find("token id 256"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("two.bin"), std::string::npos) << result.error;
  EXPECT_EQ(run_baleen({"checkpoint", "verify", folder / "run"}).exit_code, 0);
  // The mark of the end is the last token, which no sample reaches.
  EXPECT_EQ(train("other", {"--set", "data.train=single.bin", "--set", "model.vocab_size=200"}).exit_code, 0);
}

TEST_F(BadInput, NonFiniteLossStopsWith5AndIsRecorded) {
  const CommandResult result = train("run", {"--ranks", "2", "--set", "optimizer.lr=1e30", "--set", "checkpoint.every=1"});
  EXPECT_EQ(result.exit_code, 5) << result.error;
  EXPECT_NE(result.error.find("the numbers went bad"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("step"), std::string::npos);
  ASSERT_FALSE(rows("run").empty());
  EXPECT_TRUE(std::isnan(rows("run").back()["loss"]));
  EXPECT_EQ(run_baleen({"checkpoint", "verify", folder / "run"}).exit_code, 0);
}

}  // namespace
}  // namespace baleen::testing
