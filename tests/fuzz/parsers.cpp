#include "fuzz/parsers.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "data/multiple_choice.h"
#include "data/sidecar.h"
#include "data/token_file.h"
#include "data/tokenizer/base64.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/llama2c_tokenizer.h"
#include "data/tokenizer/rank_file.h"
#include "data/tokenizer/rank_tokenizer.h"
#include "data/tokenizer/sentence_piece_tokenizer.h"
#include "model/model_config.h"
#include "train/config.h"

namespace baleen::fuzz {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void broken(const char* parser, const char* what) {
  std::fprintf(stderr, "fuzz: %s: %s\n", parser, what);
  std::abort();
}

// An Error of these two codes blames the file. Any other, and any other exception, is a mistake of the parser.
template <class Body>
void expect_answer(const char* parser, Body body) {
  try {
    body();
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_data && error.code() != ExitCode::bad_config) broken(parser, error.what());
    if (error.what_is_wrong().empty()) broken(parser, "refused without a reason");
  } catch (const std::exception& error) {
    broken(parser, error.what());
  }
}

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

// A file for parsers that take a path; gone with the process.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& extension)
      : path_(fs::temp_directory_path() / ("baleen-fuzz-" + std::to_string(::getpid()) + extension)) {}
  ~ScratchFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const fs::path& write(std::string_view content) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path_;
  }

 private:
  fs::path path_;
};

// ------------------------------------------------------------------------------------------------------------------ checkpoint

void feed_safetensors(std::string_view input) {
  expect_answer("safetensors", [&] {
    const auto file = std::as_bytes(std::span(input));
    const auto header = checkpoint::parse_safetensors(file, "input");
    float values[4] = {};
    for (const checkpoint::StoredTensor& tensor : header.tensors) {
      if (header.data_begin + tensor.end > file.size()) broken("safetensors", "a tensor ends behind the file");
      if (!checkpoint::is_floating(tensor.type)) continue;
      const std::int64_t count = std::min<std::int64_t>(tensor.elements(), 4);
      const std::byte* const data = file.data() + header.data_begin;
      checkpoint::floats_from(tensor.type, data + tensor.begin, count, values);
      checkpoint::floats_from(tensor.type, data + tensor.end - static_cast<std::size_t>(count) * checkpoint::stored_type_bytes(tensor.type),
                              count, values);
    }
  });
}

std::vector<std::string> seed_safetensors() {
  const auto file = [](std::string header, std::size_t data) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return bytes_of<std::uint64_t>({header.size()}) + header + std::string(data, 'x');
  };
  return {
      file("{}", 0), file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      file(
          R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},"s":{"dtype":"F64","shape":[],"data_offsets":[8,16]},"e":{"dtype":"I8","shape":[0],"data_offsets":[16,16]}})",
          16)};
}

void feed_manifest(std::string_view input) {
  expect_answer("manifest", [&] {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest(input, "input");
    const std::string text = checkpoint::manifest_to_text(manifest);
    if (checkpoint::manifest_to_text(checkpoint::parse_manifest(text, "written")) != text)
      broken("manifest", "what was written reads otherwise");
  });
  // The same without the checksum, which mutation hardly ever gets right.
  expect_answer("manifest", [&] {
    for (const checkpoint::FileRecord& file : checkpoint::parse_records(input, "input"))
      for (const checkpoint::EntryRecord& entry : file.entries)
        if (const std::string problem = checkpoint::placement_problem(entry.placement); !problem.empty())
          broken("manifest", problem.c_str());
  });
}

std::vector<std::string> seed_manifest() {
  using checkpoint::StateKind;
  const std::string sum(32, 'a');
  checkpoint::FileRecord file{"model_00000-of-00002.safetensors", 1000, sum, {}};
  file.entries.push_back({{"model.embed_tokens.weight", StateKind::weight, {8, 4}, {{0, 0}, {8, 4}}, 0, 16},
                          checkpoint::StoredType::F32,
                          "weight/a@0:16",
                          sum});
  file.entries.push_back(
      {{"model.norm.weight", StateKind::exp_avg, {4}, {{2}, {4}}, 0, 2}, checkpoint::StoredType::BF16, "exp_avg/b", sum});
  return {checkpoint::manifest_to_text({7, 2, R"({"step":7,"tokens":100,"model":{"a":[1,2.5,null,true]}})", {file}}),
          checkpoint::serialise_records({file})};
}

// ------------------------------------------------------------------------------------------------------------------ token files

void look_through(const fs::path& path) {
  const TokenFile file(path);
  const TokenFileSummary summary = summarise(file);
  if (summary.tokens == 0) broken("token_file", "a token file without tokens");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min<std::uint64_t>(summary.tokens, 64)));
  file.read(summary.tokens - ids.size(), ids, 50257);
}

void feed_token_file(std::string_view input) {
  static const ScratchFile scratch(".bin");
  expect_answer("token_file", [&] { look_through(scratch.write(input)); });
}

std::string llmc_header_bytes(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::string header = bytes_of<std::int32_t>({magic, version, count});
  header.resize(token_header_bytes);
  return header;
}

std::vector<std::string> seed_token_file() {
  std::string llmq = "BIN.TOK\n" + bytes_of<std::int32_t>({2, 4, 3, 300, 0});
  llmq.resize(token_header_bytes);
  return {llmc_header_bytes(20240520, 1, 3) + bytes_of<std::uint16_t>({1, 2, 50256}),
          llmc_header_bytes(20240801, 7, 2) + bytes_of<std::uint32_t>({5, 6}), llmq + bytes_of<std::int32_t>({7, 8, 9})};
}

// The first byte is the number of token bytes, of the .bin; the rest is the .idx.
void feed_megatron(std::string_view input) {
  static const ScratchFile tokens(".bin"), index(".idx");
  if (input.empty()) return;
  const auto count = std::min<std::size_t>(static_cast<unsigned char>(input[0]), input.size() - 1);
  index.write(input.substr(1 + count));
  expect_answer("megatron", [&] { look_through(tokens.write(input.substr(1, count))); });
}

std::vector<std::string> seed_megatron() {
  const auto file = [](std::uint8_t code, const std::string& tokens, std::int32_t first, std::int32_t second, std::int64_t second_offset) {
    std::string text(1, static_cast<char>(tokens.size()));
    text += tokens + std::string("MMIDIDX\0\0", 9) + bytes_of<std::uint64_t>({1}) + bytes_of<std::uint8_t>({code}) +
            bytes_of<std::uint64_t>({2, 3});
    return text + bytes_of<std::int32_t>({first, second}) + bytes_of<std::int64_t>({0, second_offset}) + bytes_of<std::int64_t>({0, 1, 2});
  };
  return {file(8, bytes_of<std::uint16_t>({1, 2, 3}), 2, 1, 4), file(4, bytes_of<std::int32_t>({9, 8}), 1, 1, 4)};
}

void feed_multiple_choice(std::string_view input) {
  static const ScratchFile scratch(".bin");
  expect_answer("multiple_choice", [&] {
    const fs::path& path = scratch.write(input);
    if (is_multiple_choice_file(path)) read_multiple_choice(path, 50257);
  });
}

std::vector<std::string> seed_multiple_choice() {
  std::string body = bytes_of<std::uint16_t>({65535, 46, 0, 1, 4, 3, 10, 11, 12});
  for (std::uint16_t choice = 0; choice < 4; ++choice) body += bytes_of<std::uint16_t>({2, 20, choice});
  const auto bytes = static_cast<std::uint16_t>(body.size());
  std::memcpy(body.data() + 2, &bytes, 2);
  std::string header = bytes_of<std::int32_t>({20240522, 1, 1, bytes});
  header.resize(1024);
  return {header + body};
}

// ------------------------------------------------------------------------------------------------------------------ tokenizers

// Whatever vocabulary came out: encoding gives ids inside it, and they can be decoded.
void exercise(const char* parser, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  tokenizer.encode("Hello  world, 42\xff \xe4\xb8\xad don't\n", ids);
  for (const std::int32_t id : ids)
    if (id < 0 || id >= tokenizer.vocabulary_size()) broken(parser, "an id outside the vocabulary");
  (void)tokenizer.decode(ids);
  (void)tokenizer.safe_cut("some text, to cut somewhere");
}

void feed_tokenizer_json(std::string_view input) {
  expect_answer("tokenizer_json",
                [&] { exercise("tokenizer_json", HuggingFaceTokenizer({{"tokenizer.json", std::string(input)}}, "input")); });
}

std::vector<std::string> seed_tokenizer_json() {
  return {R"({"version":"1.0","truncation":null,"padding":null,
"added_tokens":[{"id":6,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{N}{1,3}| ?\\p{L}+|\\s+"},"behavior":"Isolated","invert":false},
{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},
"post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,"ignore_merges":false,
"vocab":{"H":0,"e":1,"l":2,"o":3,"He":4,"ll":5},"merges":["H e",["l","l"]]}})"};
}

void feed_baleen_tokenizer(std::string_view input) {
  expect_answer("baleen_tokenizer", [&] { exercise("baleen_tokenizer", *tokenizer_from_json(input, "input")); });
  expect_answer("baleen_tokenizer", [&] { (void)Sidecar::from_json(std::string(input), "input"); });
}

std::vector<std::string> seed_baleen_tokenizer() {
  return {R"({"kind":"bytes"})",
          R"({"tokenizer":{"kind":"bytes"},"vocabulary":257,"end_of_document":256,"train":{"bytes":10,"documents":1,"tokens":11}})",
          R"({"kind":"llama2c","file":"AAAA"})", R"({"kind":"tiktoken","pattern":"gpt2","ranks":"IQ== 0\n"})"};
}

std::string all_bytes_as_ranks() {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += encode_base64(std::string(1, static_cast<char>(byte))) + " " + std::to_string(byte) + "\n";
  return text + encode_base64("He") + " 256\n" + encode_base64("ll") + " 257\n";
}

void feed_tiktoken(std::string_view input) {
  expect_answer("tiktoken", [&] { exercise("tiktoken", RankTokenizer(parse_rank_file(input, "input"), "input")); });
}
std::vector<std::string> seed_tiktoken() {
  return {all_bytes_as_ranks()};
}

void feed_llama2c(std::string_view input) {
  (void)looks_like_llama2c_tokenizer(input);
  expect_answer("llama2c", [&] { exercise("llama2c", Llama2cTokenizer(std::string(input), "input")); });
}

std::vector<std::string> seed_llama2c() {
  std::string file = bytes_of<std::int32_t>({6});
  const auto piece = [&](float score, const std::string& text) {
    file += bytes_of<float>({score}) + bytes_of<std::int32_t>({static_cast<std::int32_t>(text.size())}) + text;
  };
  for (const char* special : {"<unk>", "\n<s>\n", "\n</s>\n"}) piece(0, special);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    piece(0, text);
  }
  for (const char* text : {" ", "H", "e", "He", " H", "l", "ll"}) piece(-1.0F - static_cast<float>(file.size() % 17), text);
  return {file};
}

void feed_sentencepiece(std::string_view input) {
  if (!looks_like_sentence_piece(input)) return;
  expect_answer("sentencepiece", [&] { exercise("sentencepiece", SentencePieceTokenizer(std::string(input), "input")); });
}

// A protobuf message: pieces (field 1: text, score, type), what the trainer and the normalizer were told (fields 2 and 3).
std::vector<std::string> seed_sentencepiece() {
  std::string model;
  const auto piece = [&](const std::string& text, float score, char type) {
    std::string message = "\x0a" + std::string(1, static_cast<char>(text.size())) + text + "\x15" + bytes_of<float>({score});
    if (type != 1) message += std::string("\x18") + type;
    model += "\x0a" + std::string(1, static_cast<char>(message.size())) + message;
  };
  piece("<unk>", 0, 2);
  piece("<s>", 0, 3);
  piece("</s>", 0, 3);
  piece("<0x41>", 0, 6);
  for (const char* text : {"\xe2\x96\x81", "H", "e", "He", "l", "ll"}) piece(text, -static_cast<float>(model.size()), 1);
  model += std::string("\x12\x02\x18\x02", 4);               // model_type: BPE
  model += std::string("\x1a\x0a\x0a\x08", 4) + "identity";  // the normalizer's name
  return {model};
}

// ------------------------------------------------------------------------------------------------------------------ configurations

void feed_model_config(std::string_view input) {
  expect_answer("model_config", [&] {
    const ModelConfig config = parse_model_config(std::string(input), "input");
    const std::string text = model_config_json(config);
    if (model_config_json(parse_model_config(text, "written")) != text) broken("model_config", "what was written reads otherwise");
  });
}

std::vector<std::string> seed_model_config() {
  return {
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"max_position_embeddings":128,"rms_norm_eps":1e-05,"rope_theta":10000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","hidden_act":"silu","rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}})",
      R"({"model_type":"gpt2","n_embd":64,"n_layer":2,"n_head":4,"n_positions":128,"vocab_size":50257,"layer_norm_epsilon":1e-05,"activation_function":"gelu_new"})",
      R"({"model_type":"qwen2","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":256,"max_position_embeddings":128,"use_sliding_window":false,"tie_word_embeddings":false})"};
}

void feed_config(std::string_view input) {
  // What stands behind a zero byte is an override of --set.
  const std::size_t zero = std::min(input.find('\0'), input.size());
  std::vector<std::string> overrides;
  if (zero < input.size()) overrides.emplace_back(input.substr(zero + 1));
  expect_answer("config", [&] {
    const Config config = parse_config(input.substr(0, zero), "input", overrides);
    const std::string text = config_toml(config);
    if (config_toml(parse_config(text, "written", {})) != text) broken("config", "what was written reads otherwise");
  });
}

std::vector<std::string> seed_config() {
  const std::string whole = R"([model]
architecture = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
rope_scaling = {type = "linear", factor = 2.0}
[data]
train = ["a.bin", "b-*.bin"]
weights = [0.5, 0.5]
seed = 1
[training]
steps = 10
sequence_length = 32
global_batch_size = 8
dtype = "fp32"
[optimizer]
lr = 3e-3
betas = [0.9, 0.95]
[lr_schedule]
kind = "wsd"
[parallelism]
tensor = 2
zero = 1
[comm]
timeout_s = 10.5
[checkpoint]
every = 5
[fault]
nonfinite = "stop"
)";
  return {whole, "[model]\npreset = \"tiny\"\n[training]\nsteps = 1\n", whole + std::string(1, '\0') + "model.rope_scaling.factor=4",
          whole + std::string(1, '\0') + "training.steps=20"};
}

constexpr Parser all_parsers[] = {{"safetensors", feed_safetensors, seed_safetensors},
                                  {"manifest", feed_manifest, seed_manifest},
                                  {"token_file", feed_token_file, seed_token_file},
                                  {"megatron", feed_megatron, seed_megatron},
                                  {"multiple_choice", feed_multiple_choice, seed_multiple_choice},
                                  {"tokenizer_json", feed_tokenizer_json, seed_tokenizer_json},
                                  {"baleen_tokenizer", feed_baleen_tokenizer, seed_baleen_tokenizer},
                                  {"tiktoken", feed_tiktoken, seed_tiktoken},
                                  {"llama2c", feed_llama2c, seed_llama2c},
                                  {"sentencepiece", feed_sentencepiece, seed_sentencepiece},
                                  {"model_config", feed_model_config, seed_model_config},
                                  {"config", feed_config, seed_config}};

}  // namespace

std::span<const Parser> parsers() {
  return all_parsers;
}

}  // namespace baleen::fuzz
