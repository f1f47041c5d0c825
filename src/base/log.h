// The log: rank-tagged lines on standard error, and in RUN/log.txt once a run directory is known. Standard output belongs to results.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace baleen::log {

enum class Level { debug, info, warning, error };

// Call once a process, before threads start. Ranks other than 0 print warnings and errors only.
void configure(int rank, int world);
// Adds RUN/log.txt as a second destination (every level and rank).
void add_file(const std::string& path, int rank, int world);
void write(Level level, std::string_view message);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace baleen::log
