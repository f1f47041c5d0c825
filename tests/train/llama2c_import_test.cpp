// llama2.c models whose every weight is known: where each one goes, and a reason for each kind of damage.
#include "train/llama2c_import.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "model/family.h"
#include "train/model_folder.h"

namespace baleen {
namespace {

constexpr std::int32_t width = 8, hidden = 6, layers = 2, heads = 2, kv_heads = 1, vocabulary = 5, positions = 3, head_dim = width / heads;

class Llama2cImport : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "baleen_llama2c_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  // The header with the vocabulary negated for an untied head, then the numbers 0, 1, 2, … as weights.
  static std::string model(bool tied, std::size_t floats) {
    const std::int32_t header[]{width, hidden, layers, heads, kv_heads, tied ? vocabulary : -vocabulary, positions};
    std::string content(reinterpret_cast<const char*>(header), sizeof header);
    for (std::size_t i = 0; i < floats; ++i) {
      const auto value = static_cast<float>(i);
      content.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return content;
  }
  static constexpr std::size_t block = 2 * width + 2 * width * width + 2 * kv_heads * head_dim * width + 3 * width * hidden;
  static constexpr std::size_t tied_floats = vocabulary * width + layers * block + width + positions * head_dim;

  std::filesystem::path write(const std::string& content) const {
    std::ofstream(folder / "model.bin", std::ios::binary) << content;
    return folder / "model.bin";
  }
  void refused(const std::string& content, const char* reason) const {
    try {
      read_llama2c_config(write(content));
      ADD_FAILURE() << "taken; expected: " << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("model.bin"), std::string::npos) << error.what();
    }
  }
  std::filesystem::path folder;
};

TEST_F(Llama2cImport, EveryWeightGoesToItsPlace) {
  for (const bool tied : {true, false}) {
    const auto out = folder / (tied ? "tied" : "untied");
    import_llama2c(write(model(tied, tied_floats + (tied ? 0 : vocabulary * width))), "", out);
    ModelFolder opened(out);
    EXPECT_EQ(opened.tokenizer(), nullptr);
    EXPECT_EQ(opened.config().tie_word_embeddings, tied);
    EXPECT_EQ(opened.config().max_position_embeddings, positions);
    EXPECT_EQ(opened.config().num_key_value_heads, kv_heads);
    EXPECT_DOUBLE_EQ(opened.config().rms_norm_eps, 1e-5);
    const auto device = create_cpu_device();
    UnitStorage units(*device, model_units(opened.config()), 1, StorageKind::inference);
    opened.load_weights(units);
    // First number of the tensor `name`, and its value in row r.
    const auto at = [&](const std::string& name, std::int64_t row = 0, std::int64_t columns = width) {
      return units.weight(units.find(name)).as<float>()[row * columns];
    };
    std::int64_t place = 0;
    EXPECT_EQ(at("model.embed_tokens.weight"), place);
    EXPECT_EQ(at("model.embed_tokens.weight", 4), place + 4 * width);
    place += vocabulary * width;
    const auto expect_layers = [&](const std::string& name, std::int64_t elements, std::int64_t columns = width) {
      for (int layer = 0; layer < layers; ++layer, place += elements) {
        const std::string full = "model.layers." + std::to_string(layer) + "." + name + ".weight";
        EXPECT_EQ(at(full, 0, columns), place) << full;
        if (elements <= columns) continue;
        // Row 1 of a head's half is the third of the interleaved rows; elsewhere rows stay in order.
        const bool rotary = name == "self_attn.q_proj" || name == "self_attn.k_proj";
        EXPECT_EQ(at(full, 1, columns), place + (rotary ? 2 : 1) * columns) << full;
        EXPECT_EQ(at(full, 2, columns), place + (rotary ? 1 : 2) * columns) << full;
        EXPECT_EQ(at(full, 3, columns), place + 3 * columns) << full;
      }
    };
    expect_layers("input_layernorm", width);
    expect_layers("self_attn.q_proj", width * width);
    EXPECT_EQ(at("model.layers.0.self_attn.q_proj.weight", head_dim + 1),
              vocabulary * width + layers * width + (head_dim + 2) * width);  // the second head
    expect_layers("self_attn.k_proj", kv_heads * head_dim * width);
    expect_layers("self_attn.v_proj", kv_heads * head_dim * width);
    expect_layers("self_attn.o_proj", width * width);
    expect_layers("post_attention_layernorm", width);
    expect_layers("mlp.gate_proj", hidden * width);
    expect_layers("mlp.down_proj", width * hidden, hidden);
    expect_layers("mlp.up_proj", hidden * width);
    EXPECT_EQ(at("model.norm.weight"), place);
    place += width + positions * head_dim;
    if (!tied) {
      EXPECT_EQ(at("lm_head.weight"), place);
    }
  }
}

TEST_F(Llama2cImport, DamagedAndForeignFilesAreRefusedWithAReason) {
  const std::string whole = model(true, tied_floats);
  EXPECT_EQ(read_llama2c_config(write(whole)).hidden_size, width);
  refused(whole.substr(0, whole.size() - 4), "truncated");
  refused(whole + "1234", "something follows");
  refused(model(false, tied_floats), "truncated");
  refused(whole.substr(0, 27), "fewer than its header");
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "LFS");
  const auto with = [&](int field, std::int32_t value) {
    std::string content = whole;
    std::memcpy(content.data() + 4 * field, &value, 4);
    return content;
  };
  refused(with(0, 0), "dim = 0");
  refused(with(0, 0x616b3432), "version");
  refused(with(1, -6), "hidden_dim = -6");
  refused(with(2, 2147483647), "n_layers = 2147483647");
  refused(with(2, 1 << 24), "truncated");
  refused(with(3, 3), "do not divide");
  refused(with(3, 8), "do not divide");  // heads of one element
  refused(with(4, 3), "do not divide");
  refused(with(5, 0), "vocab_size = 0");
  refused(with(5, -2147483647 - 1), "vocab_size = -2147483648");
}

TEST_F(Llama2cImport, AnotherVocabularyAndAFolderInUseAreRefused) {
  const auto file = write(model(true, tied_floats));
  const auto code_of = [&](const std::string& tokenizer) {
    try {
      import_llama2c(file, tokenizer, folder / "out");
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::done;
  };
  EXPECT_EQ(code_of("bytes"), ExitCode::bad_data);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_EQ(code_of(""), ExitCode::done);
  EXPECT_EQ(code_of(""), ExitCode::bad_config);
}

}  // namespace
}  // namespace baleen
