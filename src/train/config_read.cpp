// TOML → Config.
#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "train/config.h"
#include "train/layout.h"
#include "train/toml_section.h"

namespace baleen {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t any_count = std::int64_t{1} << 40;
const char* const section_names[] = {"model",       "data", "training",   "optimizer", "lr_schedule",
                                     "parallelism", "comm", "checkpoint", "metrics",   "fault"};

void read_rope_scaling(TomlSection& model, RopeScaling& scaling) {
  TomlSection section = model.section("rope_scaling");
  const std::vector<std::string> types{"default", "linear", "llama3"};
  section.choice("type", scaling.type, types);
  section.choice("rope_type", scaling.type, types);
  section.number("factor", scaling.factor, 0, infinity, true);
  section.number("low_freq_factor", scaling.low_freq_factor, 0, infinity, true);
  section.number("high_freq_factor", scaling.high_freq_factor, 0, infinity, true);
  section.integer("original_max_position_embeddings", scaling.original_max_position_embeddings, 1);
  section.finish();
}

// One size that config.json calls by another name in GPT-2.
void read_size(TomlSection& model, const ModelConfig& m, const char* key, const char* gpt2_key, std::int64_t& value) {
  const bool has_key = model.integer(key, value, 1, any_count);
  if (!model.integer(gpt2_key, value, 1, any_count)) return;
  if (!m.is_gpt2())
    model.reject(gpt2_key, fmt::format("a key of gpt2, not of {}", m.architecture),
                 fmt::format("use {}, or set architecture = \"gpt2\"", key));
  if (has_key) model.reject(gpt2_key, fmt::format("given together with {}", key), "keep one of the two");
}

// Rotary positions and RMSNorm, or what GPT-2 has in their place.
void read_positions_and_norm(TomlSection& model, ModelConfig& m) {
  if (!m.is_gpt2()) {
    model.number("rope_theta", m.rope_theta, 0, infinity, true);
    model.number("rms_norm_eps", m.rms_norm_eps, 0, infinity, true);
    read_rope_scaling(model, m.rope_scaling);
    return;
  }
  model.number("layer_norm_epsilon", m.rms_norm_eps, 0, infinity, true);
  for (const char* key : {"rope_theta", "rope_scaling"})
    if (model.has(key)) model.reject(key, "gpt2 has learned positions", "leave it out");
  if (model.has("rms_norm_eps")) model.reject("rms_norm_eps", "gpt2 has LayerNorm", "use layer_norm_epsilon");
}

void refuse_sliding_window(TomlSection& model) {
  bool used = false;
  if (model.boolean("use_sliding_window", used) && used)
    model.reject("use_sliding_window", "sliding windows are not supported", "leave it out");
  if (model.has("sliding_window")) model.reject("sliding_window", "sliding windows are not supported", "leave it out");
}

void read_architecture(TomlSection& model, ModelConfig& m, bool described) {
  std::string architecture = m.architecture;
  model.choice("architecture", architecture, architecture_names());
  if (architecture == m.architecture) return;
  const ModelConfig other = default_model(architecture, model.place("architecture"));
  if (!described) {
    m = other;
  } else {  // a preset's sizes in another architecture
    m.architecture = architecture;
    m.attention_bias = other.attention_bias;
  }
}

void read_model(TomlSection& model, Config& config) {
  const bool has_path = model.string("path", config.model_path), has_preset = model.string("preset", config.preset);
  if (has_path && has_preset) model.reject("preset", "given together with path", "keep one of the two");
  if (has_preset) config.model = model_preset(config.preset, model.place("preset"));
  if (has_path) {
    std::filesystem::path path = config.model_path;
    if (std::filesystem::is_directory(path)) path /= "config.json";
    config.model = read_model_config(path);
  }
  model.choice("init", config.init, {"weights", "random"});
  ModelConfig& m = config.model;
  read_architecture(model, m, has_path || has_preset);
  read_size(model, m, "hidden_size", "n_embd", m.hidden_size);
  read_size(model, m, "intermediate_size", "n_inner", m.intermediate_size);
  read_size(model, m, "num_hidden_layers", "n_layer", m.num_hidden_layers);
  read_size(model, m, "num_attention_heads", "n_head", m.num_attention_heads);
  read_size(model, m, "max_position_embeddings", "n_positions", m.max_position_embeddings);
  if (m.is_gpt2()) m.num_key_value_heads = m.head_dim = 0;  // follow from the sizes, a preset's too
  model.integer("num_key_value_heads", m.num_key_value_heads, 1, any_count);
  model.integer("head_dim", m.head_dim, 1, any_count);
  model.integer("vocab_size", m.vocab_size, 1, any_count);
  model.number("initializer_range", m.initializer_range, 0, infinity);
  model.boolean("tie_word_embeddings", m.tie_word_embeddings);
  model.boolean("attention_bias", m.attention_bias);
  read_positions_and_norm(model, m);
  refuse_sliding_window(model);
  model.finish();
  if (!has_path && !has_preset && !model.has("hidden_size") && !model.has("n_embd"))
    throw Error(
        ExitCode::bad_config, "model: no model is described", config.source,
        fmt::format("set model.preset (one of {}), model.path, or hidden_size and the other sizes", fmt::join(model_preset_names(), ", ")));
}

void read_data(TomlSection& data, Config& config) {
  data.strings("train", config.data.train);
  const bool weighted = data.numbers("weights", config.data.weights, 0);
  const std::size_t sources = config.data.train.size();
  if (sources > 1 && !weighted) config.data.weights.assign(sources, 1.0);
  if (weighted && config.data.weights.size() != sources)
    data.reject("weights", fmt::format("{} weights for {} sources of data.train", config.data.weights.size(), sources),
                "give one weight for each");
  data.string("validation", config.data.validation);
  data.string("tokenizer", config.data.tokenizer);
  data.unsigned_integer("seed", config.data.seed);
  data.finish();
}

void read_training(TomlSection& training, Config& config) {
  TrainingConfig& t = config.training;
  training.integer("steps", t.steps, 0, any_count);
  if (!training.integer("sequence_length", t.sequence_length, 1, std::int64_t{1} << 24) && config.model.max_position_embeddings > 0)
    t.sequence_length = std::min<std::int64_t>(1024, config.model.max_position_embeddings);
  training.integer("micro_batch_size", t.micro_batch_size, 1, std::int64_t{1} << 20);
  training.integer("global_batch_size", t.global_batch_size, 1, std::int64_t{1} << 30);
  training.choice("dtype", t.dtype, {"bf16", "fp32"});
  training.choice("device", t.device, {"auto", "cpu", "gpu"});
  training.integer("threads", t.threads, 0, 4096);
  training.unsigned_integer("seed", t.seed);
  training.number("gradient_clip", t.gradient_clip, 0, infinity);
  training.choice("recompute", t.recompute, {"none", "selective", "full"});
  training.integer("head_chunks", t.head_chunks, 0, std::int64_t{1} << 20);
  training.boolean("deterministic", t.deterministic);
  training.choice("offload", t.offload, {"none", "optimizer"});
  training.integer("eval_every", t.eval_every, 0, any_count);
  training.integer("eval_steps", t.eval_steps, 1, any_count);
  training.finish();
  if (t.sequence_length == 0)
    throw Error(ExitCode::bad_config, "training.sequence_length: missing", config.source, "set training.sequence_length, for example 1024");
}

void read_optimizer(TomlSection& optimizer, Config& config) {
  optimizer.number("lr", config.lr, 0, infinity);
  optimizer.number_pair("betas", config.adamw.beta1, config.adamw.beta2, 0, 1);
  for (const double beta : {config.adamw.beta1, config.adamw.beta2})
    if (static_cast<float>(beta) >= 1)
      optimizer.reject("betas", fmt::format("{} is 1 in fp32, in which the moments are computed: they would never change", beta),
                       "use 0.9999999 or less");
  // Where a gradient and its moments are 0, fp32 computes 0 / eps: an eps that rounds to 0 makes the weight NaN, and no loss shows it.
  if (optimizer.number("eps", config.adamw.eps, 0, infinity) &&
      (config.adamw.eps < std::numeric_limits<float>::min() || config.adamw.eps > std::numeric_limits<float>::max()))
    optimizer.reject("eps",
                     fmt::format("{} is out of range: not a positive number of fp32, in which the update is computed", config.adamw.eps),
                     "use 1.1754944e-38 or more and 3.4e38 or less, such as 1e-8");
  optimizer.number("weight_decay", config.adamw.weight_decay, 0, infinity);
  optimizer.choice("state_dtype", config.state_dtype, {"fp32", "bf16"});
  optimizer.choice("gradient_dtype", config.gradient_dtype, {"fp32", "bf16"});
  optimizer.finish();
}

void read_lr_schedule(TomlSection& schedule, Config& config) {
  LrScheduleConfig& s = config.lr_schedule;
  std::string kind = "constant";
  schedule.choice("kind", kind, {"constant", "cosine", "linear", "wsd"});
  s.kind = kind == "cosine"   ? LrScheduleKind::cosine
           : kind == "linear" ? LrScheduleKind::linear
           : kind == "wsd"    ? LrScheduleKind::wsd
                              : LrScheduleKind::constant;
  schedule.integer("warmup_steps", s.warmup_steps, 0, any_count);
  schedule.integer("decay_steps", s.decay_steps, 0, any_count);
  if (s.decay_steps == 0) s.decay_steps = s.kind == LrScheduleKind::wsd ? config.training.steps / 10 : config.training.steps;
  schedule.number("final_fraction", s.final_fraction, 0, 1);
  schedule.finish();
}

void read_parallelism(TomlSection& parallelism, Config& config) {
  ParallelismConfig& p = config.parallelism;
  constexpr std::int64_t most = 1 << 16;
  if (parallelism.integer("data", p.data, -1, most) && p.data == 0)
    parallelism.reject("data", "0 is out of range", "use -1 (the rest) or a positive degree");
  parallelism.integer("replicate", p.replicate, 1, most);
  parallelism.integer("zero", p.zero, 0, 3);
  parallelism.integer("tensor", p.tensor, 1, most);
  parallelism.boolean("sequence_parallel", p.sequence_parallel);
  parallelism.integer("context", p.context, 1, most);
  parallelism.integer("pipeline", p.pipeline, 1, most);
  parallelism.choice("schedule", p.schedule, {"1f1b", "gpipe", "interleaved", "zero-bubble"});
  parallelism.integer("virtual_stages", p.virtual_stages, 1, most);
  if (product_of_degrees({std::max<std::int64_t>(p.data, 1), p.replicate, p.tensor, p.context, p.pipeline}) > most_ranks)
    throw Error(ExitCode::bad_config, fmt::format("the product of the degrees is above {} ranks", most_ranks),
                config.source + " [parallelism]", "use smaller degrees for data, replicate, tensor, context and pipeline");
  parallelism.finish();
}

void read_rest(const toml::table& root, const TomlPlaces& places, Config& config) {
  const auto section = [&](const char* name) { return TomlSection(root[name].as_table(), name, places); };
  TomlSection comm = section("comm");
  comm.choice("backend", config.comm.backend, {"auto", "shm", "mpi", "nccl", "tcp"});
  comm.number("timeout_s", config.comm.timeout_s, 0, 86400, true);
  comm.number("bucket_mb", config.comm.bucket_mb, 0, 1 << 20);
  comm.boolean("overlap", config.comm.overlap);
  comm.boolean("peer_copies", config.comm.peer_copies);
  comm.choice("gradient_reduction", config.comm.gradient_reduction, {"sum", "avg"});
  comm.finish();
  TomlSection checkpoint = section("checkpoint");
  checkpoint.integer("every", config.checkpoint.every, 0, any_count);
  checkpoint.integer("keep", config.checkpoint.keep, 1, any_count);
  checkpoint.boolean("async", config.checkpoint.async);
  checkpoint.boolean("export_hf", config.checkpoint.export_hf);
  checkpoint.finish();
  TomlSection metrics = section("metrics");
  metrics.integer("every", config.metrics.every, 1, any_count);
  metrics.boolean("tensorboard", config.metrics.tensorboard);
  metrics.finish();
  TomlSection fault = section("fault");
  fault.integer("max_restarts", config.fault.max_restarts, 0, any_count);
  fault.integer("replica_check_every", config.fault.replica_check_every, 0, any_count);
  fault.choice("nonfinite", config.fault.nonfinite, {"stop", "skip"});
  fault.integer("skip_limit", config.fault.skip_limit, 1, any_count);
  if (fault.number("spike_factor", config.fault.spike_factor, 0, infinity) && config.fault.spike_factor > 0 &&
      config.fault.spike_factor <= 1)
    fault.reject("spike_factor", "not above 1: an ordinary loss would be a spike", "use 0 (off), or a factor such as 2");
  fault.integer("spike_window", config.fault.spike_window, 2, 100'000);
  fault.integer("spike_skip", config.fault.spike_skip, 0, any_count);
  fault.integer("spike_limit", config.fault.spike_limit, 1, any_count);
  fault.finish();
}

toml::table parse_toml(std::string_view text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    throw Error(ExitCode::bad_config, fmt::format("not valid TOML: {}", error.description()),
                fmt::format("{}:{}", source, error.source().begin.line), "see docs or examples/ for a config that works");
  }
}

// "training.steps=10" into the tree. A value that is no TOML is taken as a string, so that --set model.preset=tiny works.
void apply_override(toml::table& root, const std::string& assignment, TomlPlaces& places) {
  const std::string where = "--set " + assignment;
  const std::size_t equals = assignment.find('='), dot = assignment.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals || dot == 0 || dot + 1 == equals)
    throw Error(ExitCode::bad_config, "not of the form section.key=value", where, "for example --set training.steps=100");
  const std::string section = assignment.substr(0, dot), key = assignment.substr(dot + 1, equals - dot - 1),
                    value = assignment.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.insert_or_assign("value", value);
  }
  if (parsed.size() != 1) parsed = toml::table{{"value", value}};
  if (!root.contains(section)) root.insert_or_assign(section, toml::table{});
  toml::table* target = root[section].as_table();
  if (target == nullptr)
    throw Error(ExitCode::bad_config, fmt::format("{} is not a section", section), where,
                "the sections are those of the config's [brackets]");
  // A dotted key reaches into an inline table, such as model.rope_scaling.factor.
  std::string rest = key;
  for (std::size_t next = rest.find('.'); next != std::string::npos; next = rest.find('.')) {
    const std::string inner = rest.substr(0, next);
    if (!target->contains(inner)) target->insert_or_assign(inner, toml::table{});
    target = (*target)[inner].as_table();
    if (target == nullptr)
      throw Error(ExitCode::bad_config, fmt::format("{} is not a table", inner), where,
                  fmt::format("leave out what stands behind {}", inner));
    rest = rest.substr(next + 1);
  }
  parsed.get("value")->visit([&](const auto& node) { target->insert_or_assign(rest, node); });
  places.set(section + "." + key, assignment);
}

void check_sections(const toml::table& root, const TomlPlaces& places) {
  const std::vector<std::string> known(std::begin(section_names), std::end(section_names));
  for (const auto& [key, node] : root) {
    const std::string given(key.str());
    const std::string where = places.of(given, &node);
    if (std::find(known.begin(), known.end(), given) == known.end())
      throw Error(ExitCode::bad_config, fmt::format("unknown {} '{}'", node.is_table() ? "section" : "key", given), where,
                  fmt::format("did you mean [{}]? The sections are: {}", nearest_name(given, known), fmt::join(known, ", ")));
    if (!node.is_table())
      throw Error(ExitCode::bad_config, fmt::format("'{}' must be a section", given), where, fmt::format("write [{}]", given));
  }
}

bool matches_a_file(const std::string& pattern) {
  std::error_code none;
  if (std::filesystem::exists(pattern, none)) return true;  // a name with the characters of a pattern, or below a folder with some
  glob_t found{};
  const bool any = ::glob(pattern.c_str(), 0, nullptr, &found) == 0;
  ::globfree(&found);
  return any;
}

}  // namespace

LrSchedule Config::schedule() const {
  return {lr_schedule.kind, lr, lr_schedule.warmup_steps, lr_schedule.decay_steps, training.steps, lr_schedule.final_fraction};
}

std::int64_t Config::ranks_named() const {
  return product_of_degrees(
      {std::max<std::int64_t>(parallelism.data, 1), parallelism.replicate, parallelism.tensor, parallelism.context, parallelism.pipeline});
}

Config parse_config(std::string_view text, const std::string& source, const std::vector<std::string>& overrides) {
  toml::table root = parse_toml(text, source);
  TomlPlaces places(source);
  for (const std::string& assignment : overrides) apply_override(root, assignment, places);
  check_sections(root, places);
  Config config;
  config.source = source;
  const auto section = [&](const char* name) { return TomlSection(root[name].as_table(), name, places); };
  TomlSection model = section("model"), data = section("data"), training = section("training"), optimizer = section("optimizer"),
              schedule = section("lr_schedule"), parallelism = section("parallelism");
  read_model(model, config);
  read_data(data, config);
  read_training(training, config);
  config.adamw.seed = config.training.seed;
  read_optimizer(optimizer, config);
  read_lr_schedule(schedule, config);
  read_parallelism(parallelism, config);
  read_rest(root, places, config);
  return config;
}

Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  constexpr std::size_t limit = 1 << 20;
  std::string text;
  try {
    text = read_file(file, limit);
  } catch (const Error& error) {
    throw Error(ExitCode::bad_config, error.what_is_wrong(), error.where(), "give the path of a TOML config; examples/ has some");
  }
  Config config = parse_config(text, file.string(), overrides);
  // A relative path or pattern that matches nothing in the working directory is tried beside the config file.
  const auto beside = [&](std::string& path) {
    if (path.empty() || std::filesystem::path(path).is_absolute() || matches_a_file(path)) return;
    const std::string candidate = (std::filesystem::absolute(file).parent_path() / path).lexically_normal().string();
    if (matches_a_file(candidate)) path = candidate;
  };
  for (std::string& pattern : config.data.train) beside(pattern);
  beside(config.data.validation);
  return config;
}

}  // namespace baleen
