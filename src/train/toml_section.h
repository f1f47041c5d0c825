// Typed, checked access to one section of a TOML file.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

// The name among `known` with the fewest edits to `name`.
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// Where what a config says was written: in a line of its file, or in a `--set`.
class TomlPlaces {
 public:
  explicit TomlPlaces(std::string file) : file_(std::move(file)) {}

  // `name`, such as "training.steps", is from now on what `assignment`, the argument of a --set, says.
  void set(const std::string& name, const std::string& assignment);
  // Of the section or key `name`: "--set training.steps=3", "FILE:LINE" or, where the node has no line or is nullptr, "FILE".
  std::string of(const std::string& name, const toml::node* node) const;

 private:
  std::string file_;
  std::map<std::string, std::string> assignments_;  // by name
};

class TomlSection {
 public:
  // `table` may be nullptr: an absent section holds nothing and every key keeps its default. `places` must outlive the section.
  TomlSection(const toml::table* table, std::string name, const TomlPlaces& places)
      : table_(table), name_(std::move(name)), places_(places) {}

  // Each reads `key` into `value` where it is present. Wrong types and values out of range throw Error(bad_config).
  bool integer(std::string_view key, std::int64_t& value, std::int64_t low, std::int64_t high = std::numeric_limits<std::int64_t>::max());
  bool unsigned_integer(std::string_view key, std::uint64_t& value);
  bool number(std::string_view key, double& value, double low, double high, bool open_low = false, bool open_high = false);
  bool boolean(std::string_view key, bool& value);
  bool string(std::string_view key, std::string& value);
  bool choice(std::string_view key, std::string& value, const std::vector<std::string>& choices);
  bool number_pair(std::string_view key, double& first, double& second, double low, double high_open);
  // One string, or a list of them.
  bool strings(std::string_view key, std::vector<std::string>& values);
  bool numbers(std::string_view key, std::vector<double>& values, double above);
  // An inline table, as a section "name.key"; absent where the key is.
  TomlSection section(std::string_view key);

  bool present() const { return table_ != nullptr; }
  bool has(std::string_view key) const { return table_ != nullptr && table_->contains(key); }
  // Where the key was written.
  std::string place(std::string_view key) const;
  // Throws for a key that nothing asked for. Call when all keys have been read.
  void finish() const;
  [[noreturn]] void reject(std::string_view key, const std::string& problem, const std::string& remedy) const;

 private:
  const toml::node* find(std::string_view key);

  const toml::table* table_;
  std::string name_;
  const TomlPlaces& places_;
  std::vector<std::string> known_;
};

}  // namespace baleen
