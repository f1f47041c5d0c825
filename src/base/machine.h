// What ranks of one machine share.
#pragma once

#include <cstdint>
#include <filesystem>

namespace baleen {

// The same in all processes of a machine that were started since it was booted, in containers, too; another on other machines.
std::uint64_t machine_identity();

// Bytes that this process may still take: what the machine has free (MemAvailable), and what the control group of this process and each
// one around it leave (cgroup v2's memory.max, v1's memory.limit_in_bytes). 2^63 where none can be asked.
std::uint64_t available_memory();
// The same of files below other folders than / , for tests.
std::uint64_t available_memory(const std::filesystem::path& root);

}  // namespace baleen
