// A small model's worth of parameters whose every element is known, cut into pieces for any number of ranks.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/writer.h"

namespace baleen::checkpoint::testing {

// A fresh directory, removed with what it holds.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct Parameter {
  std::string name;
  Shape shape;
  int sliced_dim = -1;  // the dim that tensor parallelism cuts; -1: none
};
// Matrices cut by rows and by columns, three dims, a vector, a scalar, and one without elements.
std::vector<Parameter> small_model();
// Two parameters, for tests that save hundreds of times.
std::vector<Parameter> tiny_model();

// The element at flat index `index` of the global tensor, different for each parameter, kind and step.
float expected_value(const std::string& name, StateKind kind, std::int64_t index, std::int64_t step);

// How ranks hold the model: rank = data · tensor_degree + tensor coordinate.
struct Layout {
  int data = 1, tensor = 1;
  int world() const { return data * tensor; }
};
// What the rank holds of a parameter.
Placement place(const Parameter& parameter, StateKind kind, const Layout& layout, int rank);
// The expected elements of a placement.
std::vector<float> expected_elements(const Placement& placement, std::int64_t step);

// A rank's pieces and the memory behind them.
struct RankState {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Piece> pieces;
};
RankState rank_state(const Layout& layout, int rank, std::int64_t step, DType dtype = DType::f32,
                     const std::vector<Parameter>& model = small_model());

// All ranks of a layout save one after the other, as the trainer's protocol has it, up to the commit.
std::vector<FileRecord> write_all_ranks(const std::filesystem::path& incomplete, const Layout& layout, std::int64_t step,
                                        DType dtype = DType::f32, const std::vector<Parameter>& model = small_model());
std::filesystem::path save(const std::filesystem::path& run, const Layout& layout, std::int64_t step, DType dtype = DType::f32,
                           const std::vector<Parameter>& model = small_model());

// Reads everything in a layout and compares it with the expected elements.
void expect_content(const std::filesystem::path& checkpoint, const Layout& layout, std::int64_t step, DType dtype = DType::f32,
                    const std::vector<Parameter>& model = small_model());

// Runs `action`, which must throw an Error with `code` whose message has every one of `words`.
void expect_error(const std::function<void()>& action, ExitCode code, const std::vector<std::string>& words);

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace baleen::checkpoint::testing
