// What the end-to-end cases of bad input do not reach: defaults, overrides, the way back to TOML.
#include "train/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "train/toml_section.h"

namespace baleen {
namespace {

constexpr const char* minimal = "[model]\npreset = \"tiny\"\nvocab_size = 257\n[training]\nsequence_length = 64\nsteps = 30\n";

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(text, "x.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    return error.what();
  }
  return "";
}

TEST(Config, DefaultsAreTheContracts) {
  Config config = parse_config(minimal, "x.toml", {});
  resolve_model(config, 0);
  resolve_layout(config, 2);
  EXPECT_EQ(config.training.global_batch_size, 2);
  EXPECT_EQ(config.parallelism.data, 2);
  EXPECT_EQ(config.adamw.beta2, 0.95);
  EXPECT_EQ(config.adamw.weight_decay, 0.1);
  EXPECT_EQ(config.checkpoint.every, 100);
  EXPECT_EQ(config.checkpoint.keep, 3);
  EXPECT_EQ(config.comm.timeout_s, 60);
  EXPECT_EQ(config.fault.replica_check_every, 100);
  EXPECT_EQ(config.training.gradient_clip, 1.0);
  EXPECT_EQ(config.lr_schedule.decay_steps, 30);
  EXPECT_EQ(config.model.max_position_embeddings, 64);
}

TEST(Config, ResolvedTextReadsBackTheSame) {
  Config config = parse_config(
      minimal, "x.toml",
      {"lr_schedule.kind=wsd", "optimizer.lr=0.1", "model.rope_scaling={type=\"llama3\", factor=8.0}", "data.train=\"a\\\"b.bin\"",
       "model.rms_norm_eps=1e-6", "training.seed=9007199254740993", "optimizer.gradient_dtype=bf16", "training.head_chunks=1"});
  resolve_model(config, 0);
  resolve_layout(config, 3);
  const std::string text = config_toml(config);
  Config again = parse_config(text, "y.toml", {});
  resolve_model(again, 0);
  resolve_layout(again, 3);
  EXPECT_EQ(config_toml(again), text);
  EXPECT_EQ(again.lr, 0.1);
  EXPECT_EQ(again.gradient_dtype, "bf16");
  EXPECT_EQ(again.training.head_chunks, 1);
  EXPECT_EQ(again.training.seed, 9007199254740993u);
  EXPECT_EQ(again.data.train, std::vector<std::string>{"a\"b.bin"});
  EXPECT_EQ(again.model.rope_scaling.type, "llama3");
  EXPECT_EQ(again.lr_schedule.kind, LrScheduleKind::wsd);
}

TEST(Config, EveryFamilyReadsBackTheSame) {
  const char* const sizes = "hidden_size = 24\nintermediate_size = 40\nnum_hidden_layers = 2\nnum_attention_heads = 4\nvocab_size = 37\n";
  const char* const gpt2_sizes = "n_embd = 24\nn_layer = 2\nn_head = 4\nn_positions = 64\nvocab_size = 37\nlayer_norm_epsilon = 1e-6\n";
  for (const std::string& architecture : architecture_names()) {
    const std::string model = fmt::format("[model]\narchitecture = \"{}\"\n{}", architecture, architecture == "gpt2" ? gpt2_sizes : sizes);
    Config config = parse_config(model + "[training]\nsequence_length = 16\n", "x.toml", {});
    resolve_model(config, 0);
    resolve_layout(config, 1);
    Config again = parse_config(config_toml(config), "y.toml", {});
    resolve_model(again, 0);
    resolve_layout(again, 1);
    EXPECT_EQ(config_toml(again), config_toml(config));
    EXPECT_EQ(again.model.architecture, architecture);
    EXPECT_EQ(again.model.parameters(), config.model.parameters());
    EXPECT_EQ(again.model.attention_bias, architecture == "qwen2" || architecture == "gpt2");
    EXPECT_EQ(again.model.tie_word_embeddings, architecture == "gpt2");
  }
}

TEST(Config, Gpt2TakesItsOwnKeysAndPresetsShrink) {
  Config config =
      parse_config("[model]\npreset = \"gpt2-124m\"\nn_embd = 20\nn_head = 4\n[training]\nsequence_length = 16\n", "x.toml", {});
  resolve_model(config, 0);
  EXPECT_EQ(config.model.head_dim, 5);
  EXPECT_EQ(config.model.num_key_value_heads, 4);
  Config qwen = parse_config(minimal, "x.toml", {"model.architecture=qwen2"});
  resolve_model(qwen, 0);
  EXPECT_TRUE(qwen.model.attention_bias);
  const std::string gpt2 = "[model]\narchitecture = \"gpt2\"\nn_embd = 24\nn_layer = 2\nn_head = 4\n[training]\nsequence_length = 16\n";
  EXPECT_NE(error_of(gpt2, {"model.hidden_size=24"}).find("n_embd"), std::string::npos);
  EXPECT_NE(error_of(gpt2, {"model.rope_theta=1e4"}).find("rope_theta"), std::string::npos);
  EXPECT_NE(error_of(gpt2, {"model.rms_norm_eps=1e-5"}).find("layer_norm_epsilon"), std::string::npos);
  EXPECT_NE(error_of(minimal, {"model.n_embd=24"}).find("n_embd"), std::string::npos);
  EXPECT_NE(error_of(minimal, {"model.sliding_window=4096"}).find("sliding_window"), std::string::npos);
  EXPECT_NE(error_of(minimal, {"model.use_sliding_window=true"}).find("use_sliding_window"), std::string::npos);
}

TEST(Config, OverridesTakeTomlOrABareString) {
  EXPECT_EQ(parse_config(minimal, "x.toml", {"training.steps=7"}).training.steps, 7);
  EXPECT_EQ(parse_config(minimal, "x.toml", {"training.dtype=fp32"}).training.dtype, "fp32");
  EXPECT_EQ(parse_config(minimal, "x.toml", {"data.train=/tmp/a b.bin"}).data.train, std::vector<std::string>{"/tmp/a b.bin"});
  EXPECT_EQ(parse_config(minimal, "x.toml", {"data.train="}).data.train, std::vector<std::string>{});
  EXPECT_EQ(parse_config(minimal, "x.toml", {"optimizer.betas=[0.8, 0.9]"}).adamw.beta1, 0.8);
  EXPECT_NE(error_of(minimal, {"training"}).find("section.key=value"), std::string::npos);
  EXPECT_NE(error_of(minimal, {"training.steps=1\nsteps = 2"}), "");  // an injected second line is no value
}

TEST(Config, NamesTheLineAndTheNearestKey) {
  const std::string message = error_of(std::string(minimal) + "micro_batch = 3\n");
  EXPECT_NE(message.find("x.toml:7"), std::string::npos) << message;
  EXPECT_NE(message.find("micro_batch_size"), std::string::npos) << message;
  EXPECT_NE(error_of("[model]\nsteps = 5\n").find("model.steps"), std::string::npos);
  EXPECT_NE(error_of("model = 3\n").find("model"), std::string::npos);
  EXPECT_NE(error_of("[training]\nsequence_length = 8\n").find("no model is described"), std::string::npos);
  EXPECT_NE(error_of("[model]\npreset = \"tiny\"\n").find("sequence_length"), std::string::npos);
}

TEST(Config, NamesTheSettingThatIsWrong) {
  const auto place = [](const std::string& text, const std::vector<std::string>& overrides) {
    try {
      parse_config(text, "x.toml", overrides);
    } catch (const Error& error) {
      return error.where();
    }
    return std::string("accepted");
  };
  for (const char* setting :
       {"training.stepps=3", "training.steps=\"many\"", "training.micro_batch_size=0", "training.dtype=fp64", "model.preset=enormous",
        "model.architecture=mamba", "optimizer.eps=0", "trainning.steps=5", "training.no.such.key=1", "model.rope_scaling.factor=-1",
        "model.rope_scaling={factor=-1}", "data.train=[1]", "comm.backend=gloo"})
    EXPECT_EQ(place(minimal, {"training.threads=1", setting, "checkpoint.keep=2"}), std::string("--set ") + setting);
  EXPECT_EQ(place(minimal, {"training.steps=-1", "training.steps=-2"}), "--set training.steps=-2");
  // What the file says keeps its line, whatever is set beside it.
  const std::string wrong = std::string(minimal) + "micro_batch = 3\n";
  EXPECT_EQ(place(wrong, {"training.steps=3"}), "x.toml:7");
  EXPECT_EQ(place("[model]\npreset = \"tiny\"\nrope_scaling = { factor = -1 }\n", {"model.rope_scaling.type=linear"}), "x.toml:3");
  EXPECT_EQ(place("[model]\npreset = \"enormous\"\n", {"model.init=random"}), "x.toml:2");
  EXPECT_EQ(place("[trainning]\nsteps = 1\n", {"trainning.steps=2"}), "x.toml:1");
}

// Where a gradient has always been 0 the update is 0 / eps.
TEST(Config, EpsIsPositiveInFp32) {
  for (const char* value : {"0", "0.0", "-1e-8", "1e-39", "1e-300", "1e39", "inf", "nan"})
    EXPECT_NE(error_of(minimal, {std::string("optimizer.eps=") + value}).find("optimizer.eps"), std::string::npos) << value;
  EXPECT_NE(error_of(minimal, {"optimizer.eps=0"}).find("1.1754944e-38 or more"), std::string::npos);
  EXPECT_EQ(parse_config(minimal, "x.toml", {"optimizer.eps=1.1754944e-38"}).adamw.eps, 1.1754944e-38);
  EXPECT_EQ(parse_config(minimal, "x.toml", {"optimizer.eps=1"}).adamw.eps, 1);
}

TEST(NearestName, CountsEdits) {
  EXPECT_EQ(nearest_name("warmupsteps", {"decay_steps", "warmup_steps", "kind"}), "warmup_steps");
  EXPECT_EQ(nearest_name("", {"a"}), "a");
}

}  // namespace
}  // namespace baleen
