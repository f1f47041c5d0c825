#include "train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "base/log.h"

namespace baleen {
namespace {

std::string duration(double seconds) {
  const auto whole = std::int64_t{std::llround(seconds)};
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string numbers(const MetricsRow& row) {
  std::string text = fmt::format("loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.0f} tokens/s", row.loss, row.grad_norm, row.lr, row.tokens_per_s);
  if (std::isfinite(row.mfu)) text += fmt::format("  MFU {:.1f}%", 100 * row.mfu);
  return text;
}

}  // namespace

Progress::Progress(std::int64_t first, std::int64_t last, bool visible)
    : first_(first), last_(last), visible_(visible), terminal_(visible && isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  end_bar();
}

void Progress::end_bar() {
  if (bar_drawn_) std::fputc('\n', stderr);
  bar_drawn_ = false;
}

double Progress::seconds_left(std::int64_t step) const {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  return elapsed / static_cast<double>(step - first_ + 1) * static_cast<double>(last_ - step);
}

void Progress::show(const MetricsRow& row) {
  if (!visible_) return;
  const std::string left = duration(seconds_left(row.step));
  if (terminal_) {
    constexpr int width = 24;
    const auto filled = static_cast<int>(width * row.step / (last_ > 0 ? last_ : 1));
    const std::string bar = std::string(static_cast<std::size_t>(filled), '#') + std::string(static_cast<std::size_t>(width - filled), '.');
    fmt::print(stderr, "\r[{}] {}/{}  {}  {} left\033[K", bar, row.step, last_, numbers(row), left);
    std::fflush(stderr);
    bar_drawn_ = true;
    return;
  }
  // Elsewhere a line every 5 seconds at most, and the first and last.
  const auto now = Clock::now();
  if (row.step != first_ && row.step != last_ && now - last_line_ < std::chrono::seconds(5)) return;
  last_line_ = now;
  log::info("step {}/{}  {}  {} left", row.step, last_, numbers(row), left);
}

void Progress::show(const ValidationRow& row) {
  if (!visible_) return;
  end_bar();
  if (std::isfinite(row.bits_per_byte))
    log::info("step {}  validation loss {:.4f}  {:.4f} bits/byte", row.step, row.val_loss, row.bits_per_byte);
  else
    log::info("step {}  validation loss {:.4f}", row.step, row.val_loss);
}

}  // namespace baleen
