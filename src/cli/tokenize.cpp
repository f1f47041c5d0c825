// baleen tokenize
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/log.h"
#include "cli/commands.h"
#include "data/tokenize_files.h"

namespace baleen::cli {
namespace {

void show_progress(std::uint64_t done, std::uint64_t total) {
  constexpr std::uint64_t width = 24;
  const std::uint64_t filled = total == 0 ? width : width * done / total;
  fmt::print(stderr, "\r[{}{}] {:.1f} of {:.1f} MB", std::string(filled, '#'), std::string(width - filled, '.'),
             static_cast<double>(done) / 1e6, static_cast<double>(total) / 1e6);
  if (done == total) std::fputc('\n', stderr);
  std::fflush(stderr);
}

void log_counts(const char* what, const std::filesystem::path& file, const TokenCounts& counts) {
  log::info("{}: {} tokens of {} bytes in {} documents -> {}", what, counts.tokens, counts.bytes, counts.documents, file.string());
}

}  // namespace

int run(const TokenizeArguments& arguments) {
  const auto tokenizer = load_tokenizer(arguments.tokenizer);
  TokenizeOptions options;
  options.val_fraction = arguments.val_fraction;
  options.threads = arguments.threads;
  if (isatty(STDERR_FILENO) != 0) options.progress = show_progress;
  const TokenizeResult result = tokenize_files({arguments.inputs.begin(), arguments.inputs.end()}, *tokenizer, arguments.out, options);
  log_counts("training", result.train, result.train_counts);
  if (result.validation) log_counts("validation", *result.validation, *result.validation_counts);
  return 0;
}

}  // namespace baleen::cli
