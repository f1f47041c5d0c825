#include "train/toml_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace baleen {
namespace {

// Levenshtein distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string: return "a string";
    case toml::node_type::integer: return "an integer";
    case toml::node_type::floating_point: return "a float";
    case toml::node_type::boolean: return "a boolean";
    case toml::node_type::array: return "an array";
    case toml::node_type::table: return "a table";
    default: return "another type";
  }
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

void TomlPlaces::set(const std::string& name, const std::string& assignment) {
  std::erase_if(assignments_, [&](const auto& earlier) { return earlier.first.starts_with(name + "."); });  // a table takes their place
  assignments_.insert_or_assign(name, assignment);
}

std::string TomlPlaces::of(const std::string& name, const toml::node* node) const {
  // A key's own assignment, or that of a table around it.
  for (std::size_t length = name.size(); length != std::string::npos && length > 0; length = name.rfind('.', length - 1))
    if (const auto found = assignments_.find(name.substr(0, length)); found != assignments_.end()) return "--set " + found->second;
  if (node == nullptr) return file_;
  if (node->source().begin.line > 0) return fmt::format("{}:{}", file_, node->source().begin.line);
  // A table that no file has: it came with a key in it.
  const auto inside = assignments_.lower_bound(name + ".");
  return inside != assignments_.end() && inside->first.starts_with(name + ".") ? "--set " + inside->second : file_;
}

const toml::node* TomlSection::find(std::string_view key) {
  known_.emplace_back(key);
  return table_ == nullptr ? nullptr : table_->get(key);
}

void TomlSection::reject(std::string_view key, const std::string& problem, const std::string& remedy) const {
  throw Error(ExitCode::bad_config, fmt::format("{}.{}: {}", name_, key, problem), place(key), remedy);
}

std::string TomlSection::place(std::string_view key) const {
  return places_.of(fmt::format("{}.{}", name_, key), table_ == nullptr ? nullptr : table_->get(key));
}

bool TomlSection::integer(std::string_view key, std::int64_t& value, std::int64_t low, std::int64_t high) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_integer())
    reject(key, fmt::format("expected an integer, got {}", type_name(*node)), fmt::format("write a whole number, such as {}", value));
  const std::int64_t given = node->as_integer()->get();
  if (given < low || given > high)
    reject(key, fmt::format("{} is out of range", given),
           high == std::numeric_limits<std::int64_t>::max() ? fmt::format("use {} or more", low)
                                                            : fmt::format("use a value from {} to {}", low, high));
  value = given;
  return true;
}

bool TomlSection::unsigned_integer(std::string_view key, std::uint64_t& value) {
  auto given = static_cast<std::int64_t>(value);
  if (!integer(key, given, 0)) return false;
  value = static_cast<std::uint64_t>(given);
  return true;
}

bool TomlSection::number(std::string_view key, double& value, double low, double high, bool open_low, bool open_high) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_number())
    reject(key, fmt::format("expected a number, got {}", type_name(*node)), fmt::format("write a number, such as {}", value));
  const double given = node->is_integer() ? static_cast<double>(node->as_integer()->get()) : node->as_floating_point()->get();
  if (!std::isfinite(given) || given < low || given > high || (open_low && given == low) || (open_high && given == high))
    reject(key, fmt::format("{} is out of range", given),
           std::isfinite(high)
               ? fmt::format("use a number from {}{} to {}{}", low, open_low ? " (excluded)" : "", high, open_high ? " (excluded)" : "")
               : fmt::format("use a finite number {} {}", open_low ? "above" : "of at least", low));
  value = given;
  return true;
}

bool TomlSection::boolean(std::string_view key, bool& value) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_boolean())
    reject(key, fmt::format("expected true or false, got {}", type_name(*node)), "write true or false without quotes");
  value = node->as_boolean()->get();
  return true;
}

bool TomlSection::string(std::string_view key, std::string& value) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  if (!node->is_string()) reject(key, fmt::format("expected a string, got {}", type_name(*node)), "write the value in quotes");
  value = node->as_string()->get();
  return true;
}

bool TomlSection::choice(std::string_view key, std::string& value, const std::vector<std::string>& choices) {
  std::string given;
  if (!string(key, given)) return false;
  if (std::find(choices.begin(), choices.end(), given) == choices.end())
    reject(key, fmt::format("'{}' is not one of the choices", given),
           fmt::format("did you mean '{}'? The choices are: {}", nearest_name(given, choices), fmt::join(choices, ", ")));
  value = given;
  return true;
}

bool TomlSection::number_pair(std::string_view key, double& first, double& second, double low, double high_open) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  const toml::array* array = node->as_array();
  const auto valid = [&](const toml::node& element) {
    if (!element.is_number()) return false;
    const double given = element.value<double>().value_or(-1);
    return given >= low && given < high_open;
  };
  if (array == nullptr || array->size() != 2 || !valid((*array)[0]) || !valid((*array)[1]))
    reject(key, fmt::format("expected two numbers from {} to {} (excluded)", low, high_open),
           fmt::format("for example {} = [{}, {}]", key, first, second));
  first = (*array)[0].value<double>().value_or(first);
  second = (*array)[1].value<double>().value_or(second);
  return true;
}

bool TomlSection::strings(std::string_view key, std::vector<std::string>& values) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  values.clear();
  if (node->is_string()) {
    if (!node->as_string()->get().empty()) values.push_back(node->as_string()->get());
    return true;
  }
  const toml::array* array = node->as_array();
  if (array == nullptr)
    reject(key, fmt::format("expected a string or a list of strings, got {}", type_name(*node)), "write the value in quotes");
  for (const toml::node& element : *array) {
    if (!element.is_string() || element.as_string()->get().empty())
      reject(key, "expected a list of strings that are not empty", fmt::format("for example {} = [\"a.bin\", \"b.bin\"]", key));
    values.push_back(element.as_string()->get());
  }
  return true;
}

bool TomlSection::numbers(std::string_view key, std::vector<double>& values, double above) {
  const toml::node* node = find(key);
  if (node == nullptr) return false;
  values.clear();
  const toml::array* array = node->as_array();
  if (array == nullptr)
    reject(key, fmt::format("expected a list of numbers, got {}", type_name(*node)), fmt::format("for example {} = [0.7, 0.3]", key));
  for (const toml::node& element : *array) {
    const double given = element.is_number() ? element.value<double>().value_or(above) : above;
    if (!std::isfinite(given) || given <= above)
      reject(key, fmt::format("expected numbers above {}", above), fmt::format("for example {} = [0.7, 0.3]", key));
    values.push_back(given);
  }
  return true;
}

TomlSection TomlSection::section(std::string_view key) {
  const toml::node* node = find(key);
  if (node != nullptr && !node->is_table())
    reject(key, fmt::format("expected a table, got {}", type_name(*node)), "write it as { key = value, … }");
  return {node == nullptr ? nullptr : node->as_table(), fmt::format("{}.{}", name_, key), places_};
}

void TomlSection::finish() const {
  if (table_ == nullptr) return;
  for (const auto& [key, node] : *table_) {
    const std::string given(key.str());
    if (std::find(known_.begin(), known_.end(), given) == known_.end())
      reject(given, "unknown key",
             fmt::format("did you mean '{}'? [{}] knows: {}", nearest_name(given, known_), name_, fmt::join(known_, ", ")));
  }
}

}  // namespace baleen
