#include "train/llama2c_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/directory.h"
#include "checkpoint/run_directory.h"
#include "comm/connect.h"
#include "data/foreign_file.h"
#include "data/tokenizer/tokenizer.h"
#include "model/family.h"
#include "train/checkpoint_saver.h"

namespace baleen {
namespace {

constexpr std::size_t header_bytes = 7 * sizeof(std::int32_t);
constexpr std::int32_t version_1_magic = 0x616b3432;  // "ak42": llama2.c's later formats
constexpr const char* remedy = "give a model.bin that llama2.c's export.py wrote as version 0 (its default)";

[[noreturn]] void reject(const std::filesystem::path& file, const std::string& problem) {
  throw Error(ExitCode::bad_data, "not a model of llama2.c: " + problem, file.string(), remedy);
}

// Bytes of the whole file. In double: exact far beyond any file, and without overflow whatever the header says.
double described_bytes(const ModelConfig& c) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double width = number(c.hidden_size), kv = number(c.num_key_value_heads * c.head_dim), layers = number(c.num_hidden_layers);
  const double block = 2 * width + 2 * width * width + 2 * kv * width + 3 * width * number(c.intermediate_size);
  const double rope = number(c.max_position_embeddings) * number(c.head_dim);
  const double matrices = number(c.vocab_size) * width * (c.tie_word_embeddings ? 1 : 2);
  return number(header_bytes) + sizeof(float) * (matrices + layers * block + width + rope);
}

ModelConfig parse_header(std::span<const std::byte> bytes, const std::filesystem::path& file) {
  const std::string format = recognise_format(bytes.first(std::min<std::size_t>(bytes.size(), 1024)));
  if (!format.empty()) reject(file, "it looks like " + format);
  if (bytes.size() < header_bytes) reject(file, fmt::format("it has {} bytes, fewer than its header", bytes.size()));
  std::array<std::int32_t, 7> header{};
  std::memcpy(header.data(), bytes.data(), header_bytes);
  if (header[0] == version_1_magic) reject(file, fmt::format("it is of version {}; version 0 is read", header[1]));
  constexpr std::array<const char*, 7> names{"dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"};
  for (std::size_t i = 0; i < header.size(); ++i) {
    const std::int64_t value = i == 5 ? std::abs(std::int64_t{header[i]}) : header[i];  // a negative vocabulary: the head is not tied
    if (value <= 0 || value > (1 << 24)) reject(file, fmt::format("its header says {} = {}", names[i], header[i]));
  }
  const auto& [dim, hidden, layers, heads, kv_heads, vocabulary, positions] = header;
  if (dim % heads != 0 || dim / heads % 2 != 0 || heads % kv_heads != 0)
    reject(file, fmt::format("its header says dim = {}, n_heads = {}, n_kv_heads = {}, which do not divide", dim, heads, kv_heads));
  ModelConfig config;
  config.hidden_size = dim;
  config.intermediate_size = hidden;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = dim / heads;
  config.vocab_size = std::abs(std::int64_t{vocabulary});
  config.max_position_embeddings = positions;
  config.rope_theta = 10000;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = vocabulary > 0;
  const double described = described_bytes(config);
  if (static_cast<double>(bytes.size()) != described)
    reject(file, fmt::format("its header asks for {:.0f} bytes and it has {}: {}", described, bytes.size(),
                             static_cast<double>(bytes.size()) < described ? "truncated, or another format"
                                                                           : "something follows, or another format"));
  complete_and_validate(config, file.string());
  return config;
}

// Rotary positions turn pairs of elements: neighbours (2j, 2j+1) in llama2.c, (j, j + D/2) here as in Hugging Face's layout. So row
// h·D + 2j + half of a query or key matrix [heads·D, C] becomes row h·D + j + half·D/2.
void copy_rotary_rows(float* to, const float* from, std::int64_t heads, std::int64_t head_dim, std::int64_t width) {
  for (std::int64_t head = 0; head < heads; ++head)
    for (std::int64_t row = 0; row < head_dim; ++row) {
      const std::int64_t target = head * head_dim + row / 2 + row % 2 * (head_dim / 2);
      std::memcpy(to + target * width, from + (head * head_dim + row) * width, static_cast<std::size_t>(width) * sizeof(float));
    }
}

// The file's tensors in their order: grouped by kind, each kind over all layers.
void fill_weights(const ModelConfig& config, const std::byte* data, UnitStorage& units) {
  const auto take = [&](const std::string& name, std::int64_t rotary_heads = 0) {
    const ParameterId id = units.find(name);
    const Tensor weight = units.weight(id);
    const std::size_t bytes = static_cast<std::size_t>(units.parameter(id).elements()) * sizeof(float);
    const auto* from = reinterpret_cast<const float*>(data);  // fp32 at a multiple of 4 bytes of a page-aligned map
    if (rotary_heads > 0)
      copy_rotary_rows(weight.as<float>(), from, rotary_heads, config.head_dim, config.hidden_size);
    else
      std::memcpy(weight.as<float>(), from, bytes);
    data += bytes;
  };
  const auto take_layers = [&](const char* name, std::int64_t rotary_heads = 0) {
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
      take(fmt::format("model.layers.{}.{}.weight", layer, name), rotary_heads);
  };
  take("model.embed_tokens.weight");
  take_layers("input_layernorm");
  take_layers("self_attn.q_proj", config.num_attention_heads);
  take_layers("self_attn.k_proj", config.num_key_value_heads);
  take_layers("self_attn.v_proj");
  take_layers("self_attn.o_proj");
  take_layers("post_attention_layernorm");
  take_layers("mlp.gate_proj");
  take_layers("mlp.down_proj");
  take_layers("mlp.up_proj");
  take("model.norm.weight");
  data += static_cast<std::size_t>(config.max_position_embeddings * config.head_dim) *
          sizeof(float);  // cosines and sines, which are computed here
  if (!config.tie_word_embeddings) take("lm_head.weight");
}

}  // namespace

ModelConfig read_llama2c_config(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return parse_header(mapped.bytes(), file);
}

void import_llama2c(const std::filesystem::path& file, const std::string& tokenizer, const std::filesystem::path& out) {
  const MappedFile mapped(file);
  const ModelConfig config = parse_header(mapped.bytes(), file);
  TrainingState state;
  state.model_config = model_config_json(config);
  if (!tokenizer.empty()) {
    const auto loaded = load_tokenizer(tokenizer);
    if (loaded->vocabulary_size() != config.vocab_size)
      throw Error(ExitCode::bad_data, fmt::format("the tokenizer has {} ids, the model {}", loaded->vocabulary_size(), config.vocab_size),
                  tokenizer, "give the tokenizer that the model was trained with");
    state.tokenizer = loaded->to_json();
  }
  const checkpoint::RunDirectoryLock lock(out);
  if (!checkpoint::list_checkpoints(out).empty())
    throw Error(ExitCode::bad_config, "the folder holds checkpoints already", out.string(),
                "give --out another folder, or delete this one");
  const auto device = create_cpu_device();
  UnitStorage units(*device, model_units(config), 1, StorageKind::training);  // moments are zero
  fill_weights(config, mapped.bytes().data() + header_bytes, units);
  const auto world = connect_world(RankEnvironment{}, std::chrono::seconds(60));
  const auto axis = world->create_communicator({0}, "dp");
  save_checkpoint(out, state, *axis, units, 1);
}

}  // namespace baleen
