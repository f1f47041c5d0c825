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

class TomlSection {
 public:
  // `table` may be nullptr: an absent section holds nothing and every key keeps its default.
  TomlSection(const toml::table* table, std::string name, std::string source)
      : table_(table), name_(std::move(name)), source_(std::move(source)) {}

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
  const toml::table* table(std::string_view key);

  bool present() const { return table_ != nullptr; }
  bool has(std::string_view key) const { return table_ != nullptr && table_->contains(key); }
  // Throws for a key that nothing asked for. Call when all keys have been read.
  void finish() const;
  [[noreturn]] void reject(std::string_view key, const std::string& problem, const std::string& remedy) const;

 private:
  const toml::node* find(std::string_view key);

  const toml::table* table_;
  std::string name_, source_;
  std::vector<std::string> known_;
};

}  // namespace baleen
