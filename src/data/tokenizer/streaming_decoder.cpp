#include "data/tokenizer/streaming_decoder.h"

#include <algorithm>

namespace baleen {
namespace {

// Bytes at the end of `text` that are the beginning of a character and not a whole one.
std::size_t unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0u) == 0x80u) continue;  // the middle of a character: further back
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc2 ? 2 : 1;
    return length > back && byte <= 0xf4 ? back : 0;
  }
  return 0;
}

}  // namespace

std::string StreamingDecoder::push(std::int32_t id) {
  pending_ += tokenizer_.decode({&id, 1}, previous_);
  previous_ = id;
  const std::size_t kept = unfinished(pending_);
  std::string ready = pending_.substr(0, pending_.size() - kept);
  pending_.erase(0, ready.size());
  return ready;
}

}  // namespace baleen
