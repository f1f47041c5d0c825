// 64- and 128-bit XXH3 (https://github.com/Cyan4973/xxHash): fast, not cryptographic. Used for checksums, keys and replica checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace baleen {

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t seed = 0);

// The 128-bit hash of a stream of bytes as 32 hexadecimal digits, as `xxh128sum` prints it.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(StreamHash&&) noexcept;
  StreamHash& operator=(StreamHash&&) noexcept;
  void update(const void* data, std::size_t bytes);
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen
