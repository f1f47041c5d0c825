// Config → TOML.
#include <sstream>

#include "train/config.h"
#include "train/toml_section.h"

namespace baleen {
namespace {

const char* kind_name(LrScheduleKind kind) {
  switch (kind) {
    case LrScheduleKind::constant: return "constant";
    case LrScheduleKind::cosine: return "cosine";
    case LrScheduleKind::linear: return "linear";
    case LrScheduleKind::wsd: return "wsd";
  }
  return "constant";
}

// A path is written where weights may come from it; the keys beside it say what they said before.
toml::table model_table(const Config& config) {
  const ModelConfig& m = config.model;
  toml::table table{
      {"architecture", m.architecture},           {"vocab_size", m.vocab_size},
      {"initializer_range", m.initializer_range}, {"tie_word_embeddings", m.tie_word_embeddings},
      {"attention_bias", m.attention_bias},
  };
  const bool gpt2 = m.is_gpt2();
  table.insert(gpt2 ? "n_embd" : "hidden_size", m.hidden_size);
  table.insert(gpt2 ? "n_inner" : "intermediate_size", m.intermediate_size);
  table.insert(gpt2 ? "n_layer" : "num_hidden_layers", m.num_hidden_layers);
  table.insert(gpt2 ? "n_head" : "num_attention_heads", m.num_attention_heads);
  table.insert(gpt2 ? "n_positions" : "max_position_embeddings", m.max_position_embeddings);
  table.insert(gpt2 ? "layer_norm_epsilon" : "rms_norm_eps", m.rms_norm_eps);
  if (!gpt2) {
    table.insert("num_key_value_heads", m.num_key_value_heads);
    table.insert("head_dim", m.head_dim);
    table.insert("rope_theta", m.rope_theta);
  }
  if (!config.init.empty()) table.insert("init", config.init);
  if (!config.model_path.empty()) table.insert("path", std::filesystem::absolute(config.model_path).lexically_normal().string());
  if (m.rope_scaling.type != "default")
    table.insert("rope_scaling", toml::table{{"type", m.rope_scaling.type},
                                             {"factor", m.rope_scaling.factor},
                                             {"low_freq_factor", m.rope_scaling.low_freq_factor},
                                             {"high_freq_factor", m.rope_scaling.high_freq_factor},
                                             {"original_max_position_embeddings", m.rope_scaling.original_max_position_embeddings}});
  return table;
}

toml::table data_table(const DataConfig& d) {
  toml::table table{{"validation", d.validation}, {"tokenizer", d.tokenizer}, {"seed", static_cast<std::int64_t>(d.seed)}};
  if (d.train.size() <= 1) {
    table.insert("train", d.train.empty() ? std::string() : d.train.front());
    return table;
  }
  toml::array train, weights;
  for (const std::string& pattern : d.train) train.push_back(pattern);
  for (const double weight : d.weights) weights.push_back(weight);
  table.insert("train", train);
  table.insert("weights", weights);
  return table;
}

toml::table training_table(const TrainingConfig& t) {
  return toml::table{
      {"steps", t.steps},
      {"sequence_length", t.sequence_length},
      {"micro_batch_size", t.micro_batch_size},
      {"global_batch_size", t.global_batch_size},
      {"dtype", t.dtype},
      {"device", t.device},
      {"threads", t.threads},
      {"seed", static_cast<std::int64_t>(t.seed)},
      {"gradient_clip", t.gradient_clip},
      {"recompute", t.recompute},
      {"head_chunks", t.head_chunks},
      {"deterministic", t.deterministic},
      {"offload", t.offload},
      {"eval_every", t.eval_every},
      {"eval_steps", t.eval_steps},
  };
}

}  // namespace

std::string config_toml(const Config& c) {
  const ParallelismConfig& p = c.parallelism;
  const toml::table root{
      {"model", model_table(c)},
      {"data", data_table(c.data)},
      {"training", training_table(c.training)},
      {"optimizer", toml::table{{"lr", c.lr},
                                {"betas", toml::array{c.adamw.beta1, c.adamw.beta2}},
                                {"eps", c.adamw.eps},
                                {"weight_decay", c.adamw.weight_decay},
                                {"state_dtype", c.state_dtype},
                                {"gradient_dtype", c.gradient_dtype}}},
      {"lr_schedule", toml::table{{"kind", kind_name(c.lr_schedule.kind)},
                                  {"warmup_steps", c.lr_schedule.warmup_steps},
                                  {"decay_steps", c.lr_schedule.decay_steps},
                                  {"final_fraction", c.lr_schedule.final_fraction}}},
      {"parallelism", toml::table{{"data", p.data},
                                  {"replicate", p.replicate},
                                  {"zero", p.zero},
                                  {"tensor", p.tensor},
                                  {"sequence_parallel", p.sequence_parallel},
                                  {"context", p.context},
                                  {"pipeline", p.pipeline},
                                  {"schedule", p.schedule},
                                  {"virtual_stages", p.virtual_stages}}},
      {"comm", toml::table{{"backend", c.comm.backend},
                           {"timeout_s", c.comm.timeout_s},
                           {"bucket_mb", c.comm.bucket_mb},
                           {"overlap", c.comm.overlap},
                           {"peer_copies", c.comm.peer_copies},
                           {"gradient_reduction", c.comm.gradient_reduction}}},
      {"checkpoint", toml::table{{"every", c.checkpoint.every},
                                 {"keep", c.checkpoint.keep},
                                 {"async", c.checkpoint.async},
                                 {"export_hf", c.checkpoint.export_hf}}},
      {"metrics", toml::table{{"every", c.metrics.every}, {"tensorboard", c.metrics.tensorboard}}},
      {"fault", toml::table{{"max_restarts", c.fault.max_restarts},
                            {"replica_check_every", c.fault.replica_check_every},
                            {"nonfinite", c.fault.nonfinite},
                            {"skip_limit", c.fault.skip_limit},
                            {"spike_factor", c.fault.spike_factor},
                            {"spike_window", c.fault.spike_window},
                            {"spike_skip", c.fault.spike_skip},
                            {"spike_limit", c.fault.spike_limit}}},
  };
  std::ostringstream out;
  out << root << '\n';
  return out.str();
}

}  // namespace baleen
