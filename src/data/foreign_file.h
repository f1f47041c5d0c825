// Names what a file seems to be, for messages about a file that is not what was asked for.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace baleen {

// The format that the first bytes of a known binary format announce ("gzip", "safetensors", "a Git LFS pointer", …), or "" where there is
// none. Needs at most the first 1024 bytes.
std::string recognise_format(std::span<const std::byte> content);

// recognise_format(), and otherwise "text", "binary data" or "nothing: it is empty".
std::string describe_content(std::span<const std::byte> content);

}  // namespace baleen
