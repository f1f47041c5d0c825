// The secret that lets a process into a job over TCP.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace baleen {

// Names of the variables: a file that only its owner may read, or a descriptor that the launcher has left open. Never an argument, which
// every user of the machine can see.
inline constexpr const char* secret_file_variable = "BALEEN_SECRET_FILE";
inline constexpr const char* secret_descriptor_variable = "BALEEN_SECRET_FD";

inline constexpr std::size_t shortest_secret = 16, longest_secret = 4096;  // bytes, a newline at the end not counted

// From the environment; nothing where neither variable is set. The descriptor is read to its end and closed. Throws Error(bad_config) for
// both at once, a file that others may read or that belongs to somebody else, and a secret that is too short or too long.
std::optional<std::string> read_job_secret();
std::optional<std::string> read_job_secret(const char* file, const char* descriptor);

// A key of 256 bits; what an empty secret gives is known to everybody.
using JobKey = std::array<unsigned char, 32>;
JobKey derive_key(std::string_view secret);

}  // namespace baleen
