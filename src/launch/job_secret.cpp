#include "launch/job_secret.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/descriptor.h"
#include "base/error.h"

namespace baleen {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& remedy) {
  throw Error(ExitCode::bad_config, what, where, remedy);
}

constexpr const char* how_to_make_one =
    "make one with `head -c 32 /dev/urandom | base64 > FILE && chmod 600 FILE` and copy it to every host";

std::string read_all(int descriptor, const std::string& where) {
  std::string out(longest_secret + 2, '\0');
  std::size_t length = 0;
  while (length < out.size()) {
    const ssize_t got = read(descriptor, out.data() + length, out.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::string("cannot read the job's secret: ") + std::strerror(errno), where, how_to_make_one);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  out.resize(length);
  if (!out.empty() && out.back() == '\n') out.pop_back();
  if (out.size() < shortest_secret || out.size() > longest_secret)
    refuse("the job's secret has " +
               std::string(out.size() > longest_secret ? "more than " + std::to_string(longest_secret) : std::to_string(out.size())) +
               " bytes; " + std::to_string(shortest_secret) + " to " + std::to_string(longest_secret) + " are allowed",
           where, how_to_make_one);
  return out;
}

}  // namespace

std::optional<std::string> read_job_secret() {
  return read_job_secret(std::getenv(secret_file_variable), std::getenv(secret_descriptor_variable));
}

std::optional<std::string> read_job_secret(const char* file, const char* descriptor) {
  if (file != nullptr && descriptor != nullptr)
    refuse(std::string(secret_file_variable) + " and " + secret_descriptor_variable + " are both set", "environment", "unset one of them");
  if (descriptor != nullptr) {
    const std::string where = "environment variable BALEEN_SECRET_FD";
    int number = -1;
    const auto [end, error] = std::from_chars(descriptor, descriptor + std::strlen(descriptor), number);
    if (error != std::errc() || *end != '\0' || number < 3 || fcntl(number, F_GETFD) < 0)
      refuse("\"" + std::string(descriptor) + "\" is no open descriptor", where, "start baleen as in `BALEEN_SECRET_FD=9 baleen … 9<FILE`");
    const Descriptor owned(number);
    return read_all(owned.get(), where);
  }
  if (file == nullptr) return std::nullopt;
  const Descriptor opened(open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!opened.valid()) refuse(std::string("cannot open the job's secret: ") + std::strerror(errno), file, how_to_make_one);
  struct stat status{};
  if (fstat(opened.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse("the job's secret is no regular file", file, how_to_make_one);
  if (status.st_uid != geteuid()) refuse("the job's secret belongs to another user", file, how_to_make_one);
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    refuse("others than its owner may use the job's secret", file, "chmod 600 " + std::string(file));
  return read_all(opened.get(), file);
}

JobKey derive_key(std::string_view secret) {
  BALEEN_CHECK(sodium_init() >= 0, "libsodium cannot start");
  constexpr std::string_view purpose = "baleen rendezvous 1";
  JobKey key{};
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, key.size());
  for (const std::string_view part : {purpose, secret}) {
    const std::uint64_t length = part.size();
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&length), sizeof length);
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(part.data()), part.size());
  }
  crypto_generichash_final(&state, key.data(), key.size());
  return key;
}

}  // namespace baleen
