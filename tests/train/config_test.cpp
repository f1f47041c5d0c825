// What the end-to-end cases of bad input do not reach: defaults, overrides, the way back to TOML.
#include "train/config.h"

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
  Config config = parse_config(minimal, "x.toml",
                               {"lr_schedule.kind=wsd", "optimizer.lr=0.1", "model.rope_scaling={type=\"llama3\", factor=8.0}", "data.train=\"a\\\"b.bin\"",
                                "model.rms_norm_eps=1e-6", "training.seed=9007199254740993"});
  resolve_model(config, 0);
  resolve_layout(config, 3);
  const std::string text = config_toml(config);
  Config again = parse_config(text, "y.toml", {});
  resolve_model(again, 0);
  resolve_layout(again, 3);
  EXPECT_EQ(config_toml(again), text);
  EXPECT_EQ(again.lr, 0.1);
  EXPECT_EQ(again.training.seed, 9007199254740993u);
  EXPECT_EQ(again.data.train, "a\"b.bin");
  EXPECT_EQ(again.model.rope_scaling.type, "llama3");
  EXPECT_EQ(again.lr_schedule.kind, LrScheduleKind::wsd);
}

TEST(Config, OverridesTakeTomlOrABareString) {
  EXPECT_EQ(parse_config(minimal, "x.toml", {"training.steps=7"}).training.steps, 7);
  EXPECT_EQ(parse_config(minimal, "x.toml", {"training.dtype=fp32"}).training.dtype, "fp32");
  EXPECT_EQ(parse_config(minimal, "x.toml", {"data.train=/tmp/a b.bin"}).data.train, "/tmp/a b.bin");
  EXPECT_EQ(parse_config(minimal, "x.toml", {"data.train="}).data.train, "");
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

TEST(NearestName, CountsEdits) {
  EXPECT_EQ(nearest_name("warmupsteps", {"decay_steps", "warmup_steps", "kind"}), "warmup_steps");
  EXPECT_EQ(nearest_name("", {"a"}), "a");
}

}  // namespace
}  // namespace baleen
