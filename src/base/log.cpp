#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/error.h"

namespace baleen::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::debug: return spdlog::level::debug;
    case Level::info: return spdlog::level::info;
    case Level::warning: return spdlog::level::warn;
    case Level::error: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// spdlog keeps the registry of loggers; this file keeps no state of its own.
std::shared_ptr<spdlog::logger> logger() {
  if (auto found = spdlog::get("baleen")) return found;
  auto made = spdlog::stderr_color_mt("baleen");
  made->sinks().front()->set_pattern("%^%L%$ %v");
  made->set_level(spdlog::level::debug);
  made->sinks().front()->set_level(spdlog::level::info);
  return made;
}

std::string tag(int rank, int world) {
  return world > 1 ? fmt::format("[rank {}] ", rank) : std::string();
}

}  // namespace

void configure(int rank, int world) {
  spdlog::drop("baleen");
  auto made = logger();
  made->sinks().front()->set_pattern("%^%L%$ " + tag(rank, world) + "%v");
  made->sinks().front()->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  made->flush_on(spdlog::level::info);
}

void add_file(const std::string& path) {
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> sink;
  try {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
  } catch (const spdlog::spdlog_ex&) {
    throw Error(ExitCode::bad_data, "the log cannot be written", path,
                "check the permissions on it and its folder, or choose another run directory");
  }
  sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %L %v");
  logger()->sinks().push_back(std::move(sink));
}

void write(Level level, std::string_view message) {
  logger()->log(spdlog_level(level), message);
}

}  // namespace baleen::log
