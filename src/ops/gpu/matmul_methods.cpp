#include "ops/gpu/matmul_methods.h"

#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"

namespace baleen::ops::gpu {
namespace {

constexpr std::size_t largest_file = std::size_t{16} << 20;  // bytes
constexpr const char* first_line = "baleen matrix product methods, version 2";

std::string checksum_line(const std::string& content) {
  StreamHash hash;
  hash.update(content.data(), content.size());
  return "checksum " + hash.hex() + "\n";
}

}  // namespace

std::filesystem::path cache_directory() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const auto own = variable("BALEEN_CACHE_DIR"); !own.empty()) return own;
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache / "baleen";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".cache" / "baleen";
  return {};
}

MethodFile::MethodFile(std::filesystem::path path, std::string name) : path_(std::move(path)), name_(std::move(name)) {
  if (!path_.empty() && std::filesystem::exists(path_)) read();
}

void MethodFile::read() {
  std::string content;
  try {
    content = read_file(path_, largest_file);
  } catch (const Error&) {
    return;
  }
  const std::size_t end = content.rfind("checksum ");
  if (end == std::string::npos || content.substr(end) != checksum_line(content.substr(0, end))) return;
  std::istringstream lines(content.substr(0, end));
  std::string line;
  if (!std::getline(lines, line) || line != first_line || !std::getline(lines, line) || line != name_) return;
  while (std::getline(lines, line)) {
    std::istringstream numbers(line);
    ProductKey key{};
    MethodBits bits{};
    for (auto& value : key) numbers >> value;
    for (auto& value : bits) numbers >> value;
    if (numbers.fail()) {  // a checksum of something else
      methods_.clear();
      return;
    }
    methods_[key] = bits;
  }
}

std::optional<MethodBits> MethodFile::find(const ProductKey& key) const {
  const auto found = methods_.find(key);
  return found == methods_.end() ? std::nullopt : std::optional(found->second);
}

void MethodFile::add(const ProductKey& key, const MethodBits& bits) {
  methods_[key] = bits;
  if (path_.empty()) return;
  std::ostringstream lines;
  lines << first_line << "\n" << name_ << "\n";
  for (const auto& [product, method] : methods_) {
    for (const auto value : product) lines << value << " ";
    for (std::size_t i = 0; i < method.size(); ++i) lines << method[i] << (i + 1 < method.size() ? " " : "\n");
  }
  try {
    std::filesystem::create_directories(path_.parent_path());
    write_file_atomically(path_, lines.str() + checksum_line(lines.str()));
  } catch (const std::exception& error) {
    log::debug("methods of matrix products are not kept: {}", error.what());
    path_.clear();
  }
}

}  // namespace baleen::ops::gpu
