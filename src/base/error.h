// The one exception type of the project, and the check macro that throws it.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace baleen {

// Process exit codes: the contract of docs/operations.md. An Error carries the code its process leaves with.
enum class ExitCode : int {
  done = 0,
  check_failed = 1,
  bad_config = 2,   // a command line or config that cannot run
  bad_data = 3,     // missing, malformed or foreign data or checkpoint
  rank_failed = 4,  // a rank or a link failed
  bad_numbers = 5,  // non-finite loss or gradient norm, diverged replica
  out_of_memory = 6,
  stopped = 75,  // a signal was honoured, a checkpoint saved
};

// What is wrong, where (file, key, rank), and what to do about it. Thrown where the context is known, caught once, in cli/main.cpp.
class Error : public std::exception {
 public:
  Error(ExitCode code, std::string what, std::string where = "", std::string remedy = "");

  ExitCode code() const { return code_; }
  const std::string& what_is_wrong() const { return what_; }
  const std::string& where() const { return where_; }
  const std::string& remedy() const { return remedy_; }
  // All three parts as the lines a user sees.
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ExitCode code_;
  std::string what_, where_, remedy_, message_;
};

namespace detail {

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& values);

inline void append_values(std::ostringstream&) {}
template <class Value, class... Rest>
void append_values(std::ostringstream& out, const Value& value, const Rest&... rest) {
  out << value << ' ';
  append_values(out, rest...);
}
template <class... Values>
std::string join_values(const Values&... values) {
  std::ostringstream out;
  append_values(out, values...);
  return out.str();
}

}  // namespace detail

// A promise of the code to itself, not a check of user input: BALEEN_CHECK(a == b, "a", a, "b", b) throws with the values printed.
#define BALEEN_CHECK(condition, ...)                                                                              \
  do {                                                                                                            \
    if (!(condition)) [[unlikely]]                                                                                \
      ::baleen::detail::check_failed(#condition, __FILE__, __LINE__, ::baleen::detail::join_values(__VA_ARGS__)); \
  } while (false)

}  // namespace baleen
