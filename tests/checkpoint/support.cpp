#include "checkpoint/support.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/hash.h"
#include "base/rng.h"
#include "checkpoint/reader.h"

namespace baleen::checkpoint::testing {

namespace fs = std::filesystem;

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "baleen-checkpoint-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw Error(ExitCode::bad_data, "cannot make a temporary directory", pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<Parameter> small_model() {
  return {{"model.embed_tokens.weight", {37, 24}, 0},
          {"model.layers.0.self_attn.o_proj.weight", {24, 30}, 1},
          {"model.layers.0.block", {4, 6, 5}, 1},
          {"model.norm.weight", {24}, -1},
          {"model.scale", {}, -1},
          {"model.nothing", {0, 5}, -1}};
}

std::vector<Parameter> tiny_model() {
  return {{"model.embed_tokens.weight", {6, 4}, 0}, {"model.scale", {}, -1}};
}

float expected_value(const std::string& name, StateKind kind, std::int64_t index, std::int64_t step) {
  const std::uint64_t key = derive_key(derive_key(static_cast<std::uint64_t>(step) * 4 + static_cast<std::uint64_t>(kind), name),
                                       static_cast<std::uint64_t>(index));
  return static_cast<float>(key % 100003) / 1000.0f - 50.0f;
}

Placement place(const Parameter& parameter, StateKind kind, const Layout& layout, int rank) {
  Placement placement{parameter.name, kind, parameter.shape, Box::whole(parameter.shape), 0, 0};
  if (parameter.sliced_dim >= 0) {
    const auto dim = static_cast<std::size_t>(parameter.sliced_dim);
    const std::int64_t extent = parameter.shape[dim], tensor_rank = rank % layout.tensor;
    placement.box.begin[dim] = extent * tensor_rank / layout.tensor;
    placement.box.end[dim] = extent * (tensor_rank + 1) / layout.tensor;
  }
  const std::int64_t elements = placement.box.elements(), data_rank = rank / layout.tensor;
  placement.begin = elements * data_rank / layout.data;
  placement.end = elements * (data_rank + 1) / layout.data;
  return placement;
}

std::vector<float> expected_elements(const Placement& placement, std::int64_t step) {
  // Walks the box with one index a dim, the plain way, and not as the code under test does.
  std::vector<float> elements;
  const std::size_t dims = placement.shape.size();
  for (std::int64_t flat = placement.begin; flat < placement.end; ++flat) {
    std::int64_t rest = flat, global = 0, stride = 1;
    for (std::size_t dim = dims; dim-- > 0;) {
      const std::int64_t extent = placement.box.end[dim] - placement.box.begin[dim];
      global += (placement.box.begin[dim] + rest % extent) * stride;
      rest /= extent;
      stride *= placement.shape[dim];
    }
    elements.push_back(expected_value(placement.name, placement.kind, global, step));
  }
  return elements;
}

RankState rank_state(const Layout& layout, int rank, std::int64_t step, DType dtype, const std::vector<Parameter>& model) {
  RankState state;
  for (const Parameter& parameter : model) {
    for (const StateKind kind : {StateKind::weight, StateKind::exp_avg, StateKind::exp_avg_sq}) {
      const Placement placement = place(parameter, kind, layout, rank);
      // What tensor parallelism does not slice, only its first rank saves.
      if (parameter.sliced_dim < 0 && rank % layout.tensor != 0) continue;
      const std::vector<float> elements = expected_elements(placement, step);
      std::vector<std::byte> bytes(elements.size() * dtype_bytes(dtype));
      for (std::size_t i = 0; i < elements.size(); ++i) {
        const BFloat16 half = to_bfloat16(elements[i]);
        std::memcpy(bytes.data() + i * dtype_bytes(dtype), dtype == DType::f32 ? static_cast<const void*>(&elements[i]) : &half,
                    dtype_bytes(dtype));
      }
      state.memory.push_back(std::move(bytes));
      state.pieces.push_back({placement, dtype, state.memory.back().data()});
    }
  }
  return state;
}

std::vector<FileRecord> write_all_ranks(const fs::path& incomplete, const Layout& layout, std::int64_t step, DType dtype,
                                        const std::vector<Parameter>& model) {
  std::vector<FileRecord> records;
  for (int rank = 0; rank < layout.world(); ++rank) {
    const RankState state = rank_state(layout, rank, step, dtype, model);
    // Records travel as text between ranks.
    const std::string text = serialise_records(write_rank_files(incomplete, rank, layout.world(), step, state.pieces));
    for (FileRecord& record : parse_records(text, "a rank's records")) records.push_back(std::move(record));
  }
  return records;
}

fs::path save(const fs::path& run, const Layout& layout, std::int64_t step, DType dtype, const std::vector<Parameter>& model) {
  const fs::path incomplete = begin_checkpoint(run, step, 0);
  return commit_checkpoint(incomplete, step, layout.world(), "{\"step\": " + std::to_string(step) + "}",
                           write_all_ranks(incomplete, layout, step, dtype, model));
}

void expect_content(const fs::path& checkpoint, const Layout& layout, std::int64_t step, DType dtype, const std::vector<Parameter>& model) {
  CheckpointReader reader(checkpoint);
  EXPECT_EQ(reader.step(), step);
  EXPECT_EQ(reader.training(), "{\"step\":" + std::to_string(step) + "}");
  for (int rank = 0; rank < layout.world(); ++rank) {
    for (const Parameter& parameter : model) {
      for (const StateKind kind : {StateKind::weight, StateKind::exp_avg, StateKind::exp_avg_sq}) {
        const Placement placement = place(parameter, kind, layout, rank);
        std::vector<float> expected = expected_elements(placement, step), read(expected.size(), -1e30f);
        if (dtype == DType::bf16)
          for (float& value : expected) value = to_float(to_bfloat16(value));
        reader.read(placement, read.data());
        EXPECT_EQ(read, expected) << format_placement(placement) << " of " << checkpoint;
      }
    }
  }
}

void expect_error(const std::function<void()>& action, ExitCode code, const std::vector<std::string>& words) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << "'" << word << "' is not in: " << error.what();
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
}

}  // namespace baleen::checkpoint::testing
