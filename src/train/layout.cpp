#include "train/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "model/tensor_slices.h"
#include "train/toml_section.h"

namespace baleen {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\n"), last = text.find_last_not_of(" \t\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

ParallelLayout parse_layout(const std::string& text) {
  const std::string where = "--layouts \"" + text + "\"";
  ParallelLayout layout;
  const std::vector<std::string> keys{"dp", "replicate", "zero", "tp", "cp", "pp", "schedule", "virtual"};
  std::int64_t* const numbers[] = {&layout.dp, &layout.replicate, &layout.zero, &layout.tp,
                                   &layout.cp, &layout.pp,        nullptr,      &layout.virtual_stages};
  bool named_virtual = false;
  for (const std::string& part : split(text, ',')) {
    const std::string assignment = trimmed(part);
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos)
      throw Error(ExitCode::bad_config, fmt::format("'{}' is not of the form key=value", assignment), where, "for example dp=2");
    const std::string key = trimmed(assignment.substr(0, equals)), value = trimmed(assignment.substr(equals + 1));
    std::size_t index = 0;
    while (index < keys.size() && keys[index] != key) ++index;
    if (index == keys.size())
      throw Error(ExitCode::bad_config, fmt::format("unknown key '{}'", key), where,
                  fmt::format("did you mean '{}'? The keys are: {}", nearest_name(key, keys), fmt::join(keys, ", ")));
    if (key == "schedule") {
      const std::vector<std::string> schedules{"1f1b", "gpipe", "interleaved", "zero-bubble"};
      if (std::find(schedules.begin(), schedules.end(), value) == schedules.end())
        throw Error(ExitCode::bad_config, fmt::format("unknown schedule '{}'", value), where,
                    fmt::format("the schedules are: {}", fmt::join(schedules, ", ")));
      layout.schedule = value;
      continue;
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), *numbers[index]);
    const std::int64_t low = key == "zero" ? 0 : 1, high = key == "zero" ? 3 : 1 << 16;
    if (error != std::errc() || end != value.data() + value.size() || *numbers[index] < low || *numbers[index] > high)
      throw Error(ExitCode::bad_config, fmt::format("{}: '{}' is not a whole number from {} to {}", key, value, low, high), where);
    named_virtual |= key == "virtual";
  }
  if (layout.schedule == "interleaved" && !named_virtual) layout.virtual_stages = 2;
  return layout;
}

}  // namespace

std::string ParallelLayout::text() const {
  std::vector<std::string> parts;
  const auto add = [&](const char* key, std::int64_t value, std::int64_t usual) {
    if (value != usual) parts.push_back(fmt::format("{}={}", key, value));
  };
  add("dp", dp, 1);
  add("replicate", replicate, 1);
  add("zero", zero, 0);
  add("tp", tp, 1);
  add("cp", cp, 1);
  add("pp", pp, 1);
  if (schedule != "1f1b") parts.push_back("schedule=" + schedule);
  add("virtual", virtual_stages, 1);
  return parts.empty() ? "dp=1" : fmt::format("{}", fmt::join(parts, ","));
}

ParallelLayout layout_of(const ParallelismConfig& config) {
  return {config.data,    config.replicate, config.zero,     config.tensor,
          config.context, config.pipeline,  config.schedule, config.virtual_stages};
}

std::vector<ParallelLayout> parse_layouts(const std::string& text) {
  std::vector<ParallelLayout> layouts;
  for (const std::string& part : split(text, ';'))
    if (!trimmed(part).empty()) layouts.push_back(parse_layout(trimmed(part)));
  for (const ParallelLayout& layout : layouts)
    if (layout.ranks() > most_ranks)
      throw Error(ExitCode::bad_config, fmt::format("{} needs more than {} ranks", layout.text(), most_ranks), "--layouts",
                  "use smaller degrees");
  if (layouts.empty()) throw Error(ExitCode::bad_config, "no layout given", "--layouts", "for example --layouts \"dp=2;dp=4\"");
  return layouts;
}

std::vector<ParallelLayout> all_layouts(std::int64_t ranks) {
  std::vector<ParallelLayout> layouts;
  const auto add = [&](ParallelLayout layout) {
    for (const std::int64_t zero : {0, 1, 2, 3}) {
      layout.zero = zero;
      layouts.push_back(layout);
    }
  };
  for (std::int64_t pp = 1; pp <= ranks; ++pp)
    for (std::int64_t tp = 1; pp * tp <= ranks; ++tp)
      for (std::int64_t cp = 1; pp * tp * cp <= ranks; ++cp)
        for (std::int64_t replicate = 1; pp * tp * cp * replicate <= ranks; ++replicate) {
          if (ranks % (pp * tp * cp * replicate) != 0) continue;
          ParallelLayout layout{.dp = ranks / (pp * tp * cp * replicate), .replicate = replicate, .tp = tp, .cp = cp, .pp = pp};
          add(layout);
          if (pp == 1) continue;
          for (const char* schedule : {"gpipe", "interleaved", "zero-bubble"}) {
            layout.schedule = schedule;
            layout.virtual_stages = layout.schedule == "interleaved" ? 2 : 1;
            add(layout);
          }
        }
  return layouts;
}

std::string layout_refusal(const ParallelLayout& layout, const ModelConfig& model, std::int64_t sequence_length) {
  if (std::string reason = tensor_refusal(model, static_cast<int>(layout.tp)); !reason.empty()) return reason;
  if (layout.cp != 1 && sequence_length % (2 * layout.cp) != 0)
    return fmt::format("sequences of {} tokens do not divide into 2 · cp = {} equal blocks", sequence_length, 2 * layout.cp);
  if (sequence_length / layout.cp % layout.tp != 0)
    return fmt::format("{} tokens of a sequence on each rank cannot be divided by tp = {}", sequence_length / layout.cp, layout.tp);
  if (layout.virtual_stages != 1 && (layout.pp == 1 || layout.schedule != "interleaved"))
    return fmt::format("virtual = {} is for schedule=interleaved with pp of at least 2", layout.virtual_stages);
  if (layout.pp * layout.virtual_stages > model.num_hidden_layers)
    return fmt::format("{} pipeline stages{} are more than the model's {} layers", layout.pp * layout.virtual_stages,
                       layout.virtual_stages > 1 ? fmt::format(" ({} × {} virtual)", layout.pp, layout.virtual_stages) : "",
                       model.num_hidden_layers);
  return "";
}

std::string nearest_layouts(const ParallelLayout& layout, const ModelConfig& model, std::int64_t sequence_length) {
  const auto distance = [&](const ParallelLayout& other) {
    const auto apart = [](std::int64_t a, std::int64_t b) { return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b))); };
    return apart(layout.tp, other.tp) + apart(layout.cp, other.cp) + apart(layout.pp, other.pp) +
           apart(layout.virtual_stages, other.virtual_stages) + 0.5 * apart(layout.dp, other.dp) +
           0.6 * apart(layout.replicate, other.replicate) + (layout.schedule == other.schedule ? 0 : 0.3) +
           (layout.zero == other.zero ? 0 : 5);
  };
  std::vector<ParallelLayout> candidates;
  for (const ParallelLayout& other : all_layouts(layout.ranks()))
    if (layout_refusal(other, model, sequence_length).empty()) candidates.push_back(other);
  std::stable_sort(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, candidates.size()); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : "; ", candidates[i].text());
  return text;
}

}  // namespace baleen
