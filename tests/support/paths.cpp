#include "support/paths.h"

#include <cstdlib>

namespace baleen::testing {

namespace fs = std::filesystem;

fs::path source_path(const std::string& name) {
  return fs::path(BALEEN_SOURCE_DIR) / name;
}
fs::path golden_file(const std::string& name) {
  return source_path("tests/golden") / name;
}
fs::path baleen_binary() {
  return BALEEN_BINARY;
}

fs::path shared_data(const std::string& name) {
  const char* folder = std::getenv("BALEEN_SHARED");
  const fs::path path = (folder != nullptr ? fs::path(folder) : source_path("../shared")) / "data" / name;
  return fs::exists(path) ? path : fs::path();
}

}  // namespace baleen::testing
