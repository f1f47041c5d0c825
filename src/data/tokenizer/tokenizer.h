// Text to token ids and back. A tokenizer is immutable after loading; every member may be called from many threads at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text`, which is any bytes: invalid UTF-8 and NUL are encoded as they stand, and the text of a special token is
  // ordinary text. decode(encode(text)) == text. Never gives end_of_document(). (`huggingface` and `sentencepiece` do as the libraries do
  // they are named after: special tokens are found in the text, and normalisation is not undone.)
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) const = 0;

  // The bytes behind the ids; end_of_document() and beginning() stand for none. A token may be a part of a UTF-8 character.
  // Throws Error(bad_data) naming the position of an id outside [0, vocabulary_size()).
  std::string decode(std::span<const std::int32_t> ids) const { return decode(ids, end_of_document()); }
  // The same for ids that go on after `previous`, so that a text can be decoded piece by piece.
  std::string decode(std::span<const std::int32_t> ids, std::int32_t previous) const;

  virtual std::int32_t vocabulary_size() const = 0;
  virtual std::int32_t end_of_document() const = 0;
  // "bytes", "tiktoken", "llama2c", "sentencepiece" or "huggingface".
  virtual std::string_view kind() const = 0;

  // Everything needed to build the tokenizer again, without the file it was loaded from, as one JSON object: what a sidecar, a run and an
  // export carry. tokenizer_from_json() reads it.
  virtual std::string to_json() const = 0;

  // The largest p ≤ text.size() such that encode(text + more) == encode(text[0, p)) + encode(text[p, …) + more) for every `more`; 0 where
  // there is none or none is known. This is where a long text may be cut, to be encoded in parallel and in bounded memory.
  virtual std::size_t safe_cut(std::string_view text) const = 0;

  // What stands before a text that begins: SentencePiece's or Llama 3's BOS. encode() does not write it, decode() leaves it out.
  virtual std::vector<std::int32_t> beginning() const {
    return marks_beginning() ? std::vector<std::int32_t>{end_of_document()} : std::vector<std::int32_t>{};
  }

  // The files that this was loaded from, by name, where they are what others read too: a copy of a model takes them along.
  virtual std::map<std::string, std::string> files() const { return {}; }

  // Whether end_of_document() also precedes a text (SentencePiece's BOS), so that a prompt must begin with it; encode() does not write it.
  // A text then begins with a space more in its ids, which decode() leaves out behind end_of_document().
  virtual bool marks_beginning() const { return false; }

 protected:
  // Whether a text begins with a space more in its ids, which decode() leaves out behind end_of_document() and beginning().
  virtual bool adds_space() const { return marks_beginning(); }
  // The bytes of one id in [0, vocabulary_size()) other than end_of_document().
  virtual std::string_view token_bytes(std::int32_t id) const = 0;
};

// `spec` is "bytes" or the path of a file: tiktoken ranks (GPT-2's), llama2.c's tokenizer.bin, a
// tokenizer.json of Hugging Face's, a model's folder with one, or JSON that holds a tokenizer of baleen's (a sidecar, or what
// to_json() gave). Throws Error(bad_data) naming file, line and remedy.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec);

// `where` names the source in errors. Also takes a sidecar, which has the object under "tokenizer".
std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view json, const std::string& where);

}  // namespace baleen
