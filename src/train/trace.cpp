#include "train/trace.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "comm/gather_texts.h"

namespace baleen {

void StepTrace::start() {
  const std::lock_guard lock(mutex_);
  recording_ = true;
  origin_ = std::chrono::steady_clock::now();
  spans_.clear();
}

void StepTrace::stop() {
  const std::lock_guard lock(mutex_);
  recording_ = false;
}

void StepTrace::add(const std::string& row, std::string name, std::size_t bytes, Time begin, Time end) {
  const auto microseconds = [](auto duration) { return std::chrono::duration<double, std::micro>(duration).count(); };
  const std::lock_guard lock(mutex_);
  if (recording_) spans_.push_back({row, std::move(name), bytes, microseconds(begin - origin_), microseconds(end - begin)});
}

void StepTrace::on_operation(const std::string& communicator, std::string_view operation, std::size_t bytes, Time begin, Time end) {
  add("comm " + communicator, std::string(operation), bytes, begin, end);
}

void StepTrace::on_action(const Action& action, PipelineClock::time_point begin, PipelineClock::time_point end) {
  if (action.compute()) add("compute", describe(action), 0, begin, end);
}

void StepTrace::write(Communicator& everyone, const std::filesystem::path& file) const {
  const int rank = everyone.rank();
  auto events = nlohmann::json::array();
  {
    const std::lock_guard lock(mutex_);
    std::map<std::string, int> rows{{"compute", 0}};
    for (const Span& span : spans_) rows.try_emplace(span.row, static_cast<int>(rows.size()));
    events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
    for (const auto& [name, row] : rows)
      events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}});
    for (const Span& span : spans_)
      events.push_back({{"name", span.name},
                        {"ph", "X"},
                        {"pid", rank},
                        {"tid", rows.at(span.row)},
                        {"ts", span.begin_us},
                        {"dur", span.duration_us},
                        {"args", {{"bytes", span.bytes}}}});
  }
  const std::vector<std::string> texts = gather_texts(everyone, dump_json(events));
  if (rank != 0) return;
  std::string all;
  for (const std::string& text : texts) {  // each an array
    if (!all.empty()) all += ",";
    all += text.substr(1, text.size() - 2);
  }
  write_file_atomically(file, "{\"traceEvents\":[" + all + "],\"displayTimeUnit\":\"ms\"}\n");
}

}  // namespace baleen
