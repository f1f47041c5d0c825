#include "data/json_line.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_events.h"

namespace baleen {
namespace {

using Json = nlohmann::json;

// nlohmann's parser calls these as it reads; false ends the parse.
class FieldReader : public nlohmann::json_sax<Json> {
 public:
  explicit FieldReader(const std::string& field) : field_(field) {}

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool string(string_t& value) override {
    if (wanted_) text_ = std::move(value);
    wanted_ = false;
    return depth_ > 0 || fail("the line is not a JSON object");
  }
  bool start_object(std::size_t) override { return open(true); }
  bool start_array(std::size_t) override { return open(false); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ != 1 || name != field_) return true;
    if (seen_) return fail("\"" + field_ + "\" is there twice");
    seen_ = wanted_ = true;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail("invalid JSON at byte " + std::to_string(position) + " of the line");
  }

  bool seen() const { return seen_; }
  const std::string& problem() const { return problem_; }
  std::string take_text() { return std::move(text_); }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  bool scalar() {
    if (wanted_) return fail("\"" + field_ + "\" is not text");
    return depth_ > 0 || fail("the line is not a JSON object");
  }
  bool open(bool object) {
    if (wanted_) return fail("\"" + field_ + "\" is not text");
    if (depth_ == 0 && !object) return fail("the line is not a JSON object");
    return ++depth_ <= max_json_depth || fail("JSON nested deeper than " + std::to_string(max_json_depth));
  }

  const std::string& field_;
  std::string text_, problem_;
  int depth_ = 0;
  bool seen_ = false, wanted_ = false;  // wanted: the next value belongs to the field
};

}  // namespace

std::string json_text_field(std::string_view line, const std::string& field, const std::string& where) {
  const std::string remedy = "each line must be a JSON object with its text under \"" + field + "\"";
  // The parser takes a NUL byte for the end of its input.
  if (line.find('\0') != std::string_view::npos) throw Error(ExitCode::bad_data, "invalid JSON: a NUL byte", where, remedy);
  FieldReader reader(field);
  if (!read_json_events(line, reader)) throw Error(ExitCode::bad_data, reader.problem(), where, remedy);
  if (!reader.seen()) throw Error(ExitCode::bad_data, "no \"" + field + "\" in the JSON object", where, remedy);
  return reader.take_text();
}

}  // namespace baleen
