// The parsers of files that come from elsewhere, as functions of their bytes: what a fuzzer feeds.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::fuzz {

struct Parser {
  const char* name;
  // Parses `input` and uses what came out of it. Returns where the input was taken or refused by an Error that blames the file; ends the
  // process where anything else happens.
  void (*feed)(std::string_view input);
  // Small inputs that are taken, for mutation to begin with.
  std::vector<std::string> (*seeds)();
};

std::span<const Parser> parsers();

}  // namespace baleen::fuzz
