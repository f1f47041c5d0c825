#include "data/tokenizer/llama2c_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <queue>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/base64.h"

namespace baleen {
namespace {

constexpr std::int32_t first_byte = 3, first_piece = first_byte + 256;
constexpr std::int32_t longest_accepted = 4096;  // bytes of a piece; published vocabularies have up to 27
constexpr std::string_view unknown = "<unk>";

template <class T>
T read_at(std::string_view content, std::size_t offset) {
  T value;
  std::memcpy(&value, content.data() + offset, sizeof value);
  return value;
}

[[noreturn]] void reject(const std::string& problem, const std::string& where) {
  throw Error(ExitCode::bad_data, "not a tokenizer of llama2.c: " + problem, where, "use the tokenizer.bin that belongs to the model");
}

std::string name_of_byte(int value) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[static_cast<std::size_t>(value) / 16], digits[static_cast<std::size_t>(value) % 16], '>'};
}

// A pair that may merge. In the queue the best score comes first, of equals the leftmost.
struct Candidate {
  float score;
  std::size_t left;  // place of the left one
  std::int32_t left_id, right_id, merged;
  bool operator<(const Candidate& other) const { return score != other.score ? score < other.score : left > other.left; }
};

}  // namespace

bool looks_like_llama2c_tokenizer(std::string_view content) {
  constexpr std::size_t head = sizeof(std::int32_t) + sizeof(float) + sizeof(std::int32_t);
  return content.size() >= head + unknown.size() && read_at<std::int32_t>(content, 8) == static_cast<std::int32_t>(unknown.size()) &&
         content.substr(head, unknown.size()) == unknown;
}

Llama2cTokenizer::Llama2cTokenizer(std::string content, const std::string& where) : content_(std::move(content)) {
  const std::string_view file = content_;
  if (!looks_like_llama2c_tokenizer(file)) reject("it does not begin with <unk>", where);
  const auto longest = read_at<std::int32_t>(file, 0);
  if (longest < static_cast<std::int32_t>(unknown.size()) || longest > longest_accepted)
    reject("its longest piece would have " + std::to_string(longest) + " bytes", where);
  for (std::size_t at = sizeof longest; at < file.size();) {
    const std::string id = std::to_string(pieces_.size());
    if (file.size() - at < sizeof(float) + sizeof(std::int32_t)) reject("it is truncated in the entry of id " + id, where);
    scores_.push_back(read_at<float>(file, at));
    const auto length = read_at<std::int32_t>(file, at + sizeof(float));
    at += sizeof(float) + sizeof(std::int32_t);
    if (!std::isfinite(scores_.back())) reject("the score of id " + id + " is not a number", where);
    if (length < 0 || length > longest_accepted) reject("id " + id + " would have " + std::to_string(length) + " bytes", where);
    if (static_cast<std::size_t>(length) > file.size() - at) reject("it is truncated in the bytes of id " + id, where);
    pieces_.push_back(file.substr(at, static_cast<std::size_t>(length)));
    at += static_cast<std::size_t>(length);
  }
  if (pieces_.size() < first_piece)
    reject("it has " + std::to_string(pieces_.size()) + " ids, fewer than the 3 special ones and the 256 bytes", where);
  const auto id_of_byte = [](int value) { return static_cast<std::size_t>(first_byte) + static_cast<std::size_t>(value); };
  for (int value = 0; value < 256; ++value) {
    const std::size_t id = id_of_byte(value);
    if (pieces_[id] != name_of_byte(value)) reject("id " + std::to_string(id) + " is not " + name_of_byte(value), where);
    all_bytes_.push_back(static_cast<char>(value));
  }
  for (int value = 0; value < 256; ++value)
    pieces_[id_of_byte(value)] = std::string_view(all_bytes_).substr(static_cast<std::size_t>(value), 1);
  for (std::size_t id = first_piece; id < pieces_.size(); ++id)
    if (!pieces_[id].empty()) ids_.emplace(pieces_[id], static_cast<std::int32_t>(id));
}

std::int32_t Llama2cTokenizer::find(std::string_view bytes) const {
  const auto found = ids_.find(bytes);
  return found == ids_.end() ? -1 : found->second;
}

// Characters as llama2.c cuts them: a byte and the continuation bytes behind it, four bytes at most, whether they are valid UTF-8 or not.
void Llama2cTokenizer::append_characters(std::string_view text, std::vector<std::int32_t>& ids) const {
  const auto continues = [&](std::size_t at) { return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u; };
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin + 1;
    while (end - begin < 4 && continues(end)) ++end;
    const std::int32_t id = find(text.substr(begin, end - begin));
    if (id >= 0)
      ids.push_back(id);
    else
      for (std::size_t at = begin; at < end; ++at) ids.push_back(first_byte + static_cast<unsigned char>(text[at]));
    begin = end;
  }
}

// A byte token merges under its name <0xHH> in llama2.c, and so with nothing; the queue holds every pair of pieces that are neighbours.
void Llama2cTokenizer::merge(std::vector<std::int32_t>& ids) const {
  const std::size_t count = ids.size();
  std::vector<std::size_t> next(count), previous(count);
  for (std::size_t i = 0; i < count; ++i) next[i] = i + 1, previous[i] = i - 1;
  std::priority_queue<Candidate> candidates;
  std::string both;
  const auto consider = [&](std::size_t left) {
    const std::size_t right = next[left];
    if (right >= count || ids[left] < first_piece || ids[right] < first_piece) return;
    both.assign(token_bytes(ids[left])).append(token_bytes(ids[right]));
    const std::int32_t merged = find(both);
    if (merged >= 0) candidates.push({scores_[static_cast<std::size_t>(merged)], left, ids[left], ids[right], merged});
  };
  for (std::size_t i = 0; i + 1 < count; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const std::size_t left = best.left, right = next[left];
    if (ids[left] != best.left_id || right >= count || ids[right] != best.right_id) continue;  // one of them has merged meanwhile
    ids[left] = best.merged;
    ids[right] = -1;
    next[left] = next[right];
    if (next[left] < count) previous[next[left]] = left;
    if (left > 0) consider(previous[left]);
    consider(left);
  }
  std::erase(ids, -1);
}

void Llama2cTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  std::vector<std::int32_t> own;
  append_characters(" ", own);
  append_characters(text, own);
  merge(own);
  ids.insert(ids.end(), own.begin(), own.end());
}

std::string Llama2cTokenizer::to_json() const {
  return dump_json(nlohmann::json{{"kind", kind()}, {"file", encode_base64(content_)}});
}

}  // namespace baleen
