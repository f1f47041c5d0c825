#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
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

constexpr const char* name = "baleen";

// Standard error, and with add_file a file: behind a sink that may grow while other threads write.
std::shared_ptr<spdlog::logger> create(const std::string& tag, spdlog::level::level_enum least) {
  auto terminal = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  terminal->set_pattern("%^%L%$ " + tag + "%v");
  terminal->set_level(least);
  auto both = std::make_shared<spdlog::sinks::dist_sink_mt>();
  both->add_sink(std::move(terminal));
  auto made = std::make_shared<spdlog::logger>(name, std::move(both));
  made->set_level(spdlog::level::debug);
  made->flush_on(spdlog::level::info);
  return made;
}

// spdlog keeps the registry of loggers; this file keeps no state of its own. Threads that were not configured may be here at once.
std::shared_ptr<spdlog::logger> logger() {
  if (auto found = spdlog::get(name)) return found;
  auto made = create("", spdlog::level::info);
  try {
    spdlog::register_logger(made);
  } catch (const spdlog::spdlog_ex&) {
    return logger();  // another thread was first
  }
  return made;
}

std::string tag(int rank, int world) {
  return world > 1 ? fmt::format("[rank {}] ", rank) : std::string();
}

}  // namespace

void configure(int rank, int world) {
  spdlog::drop(name);
  spdlog::register_logger(create(tag(rank, world), rank == 0 ? spdlog::level::info : spdlog::level::warn));
}

void add_file(const std::string& path, int rank, int world) {
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> sink;
  try {
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false);
  } catch (const spdlog::spdlog_ex&) {
    throw Error(ExitCode::bad_data, "the log cannot be written", path,
                "check the permissions on it and its folder, or choose another run directory");
  }
  sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %L " + tag(rank, world) + "%v");
  std::dynamic_pointer_cast<spdlog::sinks::dist_sink_mt>(logger()->sinks().front())->add_sink(std::move(sink));
}

void write(Level level, std::string_view message) {
  logger()->log(spdlog_level(level), message);
}

}  // namespace baleen::log
