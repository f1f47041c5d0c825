#include "base/error.h"

namespace baleen {

Error::Error(ExitCode code, std::string what, std::string where, std::string remedy)
    : code_(code), what_(std::move(what)), where_(std::move(where)), remedy_(std::move(remedy)) {
  message_ = what_;
  if (!where_.empty()) message_ += "\n  where: " + where_;
  if (!remedy_.empty()) message_ += "\n  what to do: " + remedy_;
}

namespace detail {

void check_failed(const char* condition, const char* file, int line, const std::string& values) {
  throw Error(ExitCode::check_failed, std::string("internal check failed: ") + condition + (values.empty() ? "" : "  [ " + values + "]"),
              std::string(file) + ":" + std::to_string(line), "this is a bug in baleen; please report it with the command and config");
}

}  // namespace detail
}  // namespace baleen
