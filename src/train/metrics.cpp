#include "train/metrics.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace baleen {
namespace {

using nlohmann::ordered_json;

// The step of a row; none of what is no row.
std::optional<std::int64_t> step_of(const std::string& line) {
  try {
    const auto row = parse_json(line, "");
    const auto step = row.find("step");
    if (step != row.end() && step->is_number_integer()) return step->get<std::int64_t>();
  } catch (const Error&) {  // no row
  }
  return std::nullopt;
}

// The lines that are whole and belong to steps up to last_step.
std::string kept_rows(const std::string& content, std::int64_t last_step) {
  std::string kept;
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;  // torn
    const std::string line = content.substr(begin, end - begin);
    if (const auto step = step_of(line); step && *step <= last_step) kept += line + '\n';
    begin = end + 1;
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& file, std::int64_t last_step) : path_(file) {
  if (std::filesystem::exists(file)) {
    const std::string content = read_file(file, std::size_t{8} << 30);
    const std::string kept = kept_rows(content, last_step);
    if (kept != content) write_file_atomically(file, kept);
  }
  file_ = std::fopen(file.c_str(), "ae");
  if (file_ == nullptr)
    throw Error(ExitCode::bad_data, fmt::format("cannot write: {}", std::strerror(errno)), file.string(),
                "check the run directory's permissions");
}

MetricsLog::~MetricsLog() {
  std::fclose(file_);
}

void MetricsLog::write_line(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0)
    throw Error(ExitCode::bad_data, fmt::format("cannot write: {}", std::strerror(errno)), path_.string(),
                "free some space; the last checkpoint is safe");
}

void MetricsLog::append(const MetricsRow& row) {
  const ordered_json object = {{"step", row.step},
                               {"loss", row.loss},
                               {"grad_norm", row.grad_norm},
                               {"lr", row.lr},
                               {"tokens", row.tokens},
                               {"tokens_per_s", row.tokens_per_s},
                               {"step_ms", row.step_ms},
                               {"model_tflops", row.model_tflops},
                               {"mfu", row.mfu},
                               {"memory_peak_bytes", row.memory_peak_bytes},
                               {"comm_bytes", row.comm_bytes},
                               {"comm_ms", row.comm_ms},
                               {"comm_exposed_ms", row.comm_exposed_ms},
                               {"bubble_fraction", row.bubble_fraction}};
  write_line(dump_json(object) + '\n');
}

void MetricsLog::append(const ValidationRow& row) {
  const ordered_json object = {{"step", row.step}, {"val_loss", row.val_loss}, {"bits_per_byte", row.bits_per_byte}};
  write_line(dump_json(object) + '\n');
}

}  // namespace baleen
