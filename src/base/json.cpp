#include "base/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_events.h"

namespace baleen {
namespace {

using nlohmann::json;

// Builds the document from parser events and stops at the first thing the limits or the duplicate check refuse.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  StrictBuilder(json& root, const JsonLimits& limits) : root_(root), limits_(limits) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return place(json()) != nullptr; }
  bool boolean(bool value) override { return place(json(value)) != nullptr; }
  bool number_integer(std::int64_t value) override { return place(json(value)) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return place(json(value)) != nullptr; }
  bool number_float(double value, const std::string&) override { return place(json(value)) != nullptr; }
  bool string(std::string& value) override { return place(json(std::move(value))) != nullptr; }
  bool binary(json::binary_t&) override { return refuse("binary value"); }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const auto [position, inserted] = open_.back()->emplace(name, nullptr);
    if (!inserted) return refuse(fmt::format("duplicate key '{}'", printable(name)));
    slot_ = &*position;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text is "[json.exception.…] parse error at line …: syntax error …"; the part after the tag is what a user can read.
    const std::string_view text = error.what();
    const auto tag_end = text.find("] ");
    return refuse(fmt::format("malformed JSON at byte {}: {}", position, tag_end == std::string::npos ? text : text.substr(tag_end + 2)));
  }

 private:
  bool refuse(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // Puts a value where it belongs: the root, the last key of the open object, or the end of the open array.
  json* place(json&& value) {
    if (++values_ > limits_.values) {
      refuse(fmt::format("more than {} JSON values", limits_.values));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool open(json&& container) {
    if (open_.size() >= static_cast<std::size_t>(limits_.depth))
      return refuse(fmt::format("JSON nested deeper than {} levels", limits_.depth));
    json* placed = place(std::move(container));
    if (placed == nullptr) return false;
    open_.push_back(placed);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  json& root_;
  JsonLimits limits_;
  std::vector<json*> open_;  // the containers around the next value; an outer one does not grow while an inner one is open
  json* slot_ = nullptr;     // the value of the last key
  std::size_t values_ = 0;
  std::string problem_;
};

template <class Json>
std::string write(const Json& value, int indent, nlohmann::detail::error_handler_t on_invalid_text) {
  try {
    return value.dump(indent, ' ', /*ensure_ascii=*/false, on_invalid_text);
  } catch (const nlohmann::detail::exception&) {
    throw Error(ExitCode::bad_data, "text that is not UTF-8 cannot be written as JSON", "", "give files and parameters names in UTF-8");
  }
}

}  // namespace

bool read_json_events(std::string_view text, nlohmann::json_sax<json>& handler) {
  return json::sax_parse(text.begin(), text.end(), &handler);
}

json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits, const std::string& remedy) {
  const auto fail = [&](const std::string& problem) -> json { throw Error(ExitCode::bad_data, problem, where, remedy); };
  if (text.starts_with("\xEF\xBB\xBF")) return fail("a byte-order mark stands before the JSON");
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{') return fail("the JSON does not start with '{'");
  if (const auto nul = text.find('\0'); nul != std::string::npos) return fail(fmt::format("NUL at byte {} of the JSON", nul));
  json root;
  StrictBuilder builder(root, limits);
  if (!read_json_events(text, builder)) return fail(builder.problem());
  return root;
}

std::string dump_json(const json& value, int indent) {
  return write(value, indent, json::error_handler_t::strict);
}
std::string dump_json(const nlohmann::ordered_json& value, int indent) {
  return write(value, indent, json::error_handler_t::strict);
}
std::string quote_json(const std::string& text) {
  return write(json(text), -1, json::error_handler_t::strict);
}
std::string dump_json_lossy(const json& value, int indent) {
  return write(value, indent, json::error_handler_t::replace);
}

std::string printable(std::string_view text) {
  constexpr std::size_t limit = 160;
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (i >= limit && (byte & 0xc0) != 0x80) return shown + "…";  // not inside a UTF-8 sequence
    if (byte < 0x20 || byte == 0x7f)
      shown += fmt::format("\\x{:02x}", byte);
    else
      shown += text[i];
  }
  return shown;
}

std::string some_of(const std::vector<std::string>& several, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(several.size(), most); ++i) text += (i > 0 ? ", " : "") + several[i];
  if (several.size() > most) text += fmt::format(" and {} more", several.size() - most);
  return text;
}

}  // namespace baleen
