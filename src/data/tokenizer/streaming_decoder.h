// Text from ids as they come, in whole characters: a token may end inside one.
#pragma once

#include <cstdint>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace baleen {

class StreamingDecoder {
 public:
  // Goes on behind the token `previous`.
  StreamingDecoder(const Tokenizer& tokenizer, std::int32_t previous) : tokenizer_(tokenizer), previous_(previous) {}
  // What can be shown once this id is known. Bytes that begin no character come out as they are.
  std::string push(std::int32_t id);
  // What is left of a character that did not end.
  std::string finish() { return std::move(pending_); }

 private:
  const Tokenizer& tokenizer_;
  std::int32_t previous_;
  std::string pending_;
};

}  // namespace baleen
