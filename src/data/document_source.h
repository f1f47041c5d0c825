// Input files as a sequence of chunks that can be encoded independently of each other, in bounded memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/byte_source.h"
#include "data/tokenizer/tokenizer.h"

namespace baleen {

// A part of one input file. Encoding the chunks of a file one by one gives the ids of the whole.
struct Chunk {
  std::filesystem::path path;
  std::string content;
  bool json_lines = false;         // whole lines, each a document; otherwise text
  std::uint64_t first_line = 1;    // json_lines: the number of the first, for messages
  bool begins_document = false;    // text: whether the document begins here
  bool ends_document = false;      // text: whether the document ends behind it
  std::uint64_t source_bytes = 0;  // bytes of the input file that it took
};

// What a name says about a file: .jsonl or .ndjson, before an optional .gz or .zst, hold JSON lines; everything else is one text.
bool holds_json_lines(const std::filesystem::path& path);

class DocumentSource {
 public:
  // Cuts texts where `tokenizer` says it is safe, JSON lines at their ends, after about `chunk_bytes`.
  DocumentSource(std::vector<std::filesystem::path> inputs, const Tokenizer& tokenizer, std::size_t chunk_bytes);

  // The next chunk, nothing after the last. Throws Error(bad_data) where an input is missing, unreadable, empty or cannot be cut: a text
  // without white space for max_text_chunks · chunk_bytes, a JSON line longer than max_line_chunks · chunk_bytes.
  std::optional<Chunk> next();

  static constexpr std::size_t max_text_chunks = 1024, max_line_chunks = 256;

 private:
  void open_next();
  std::size_t cut_of_buffer() const;

  std::vector<std::filesystem::path> inputs_;
  const Tokenizer& tokenizer_;
  std::size_t chunk_bytes_;
  std::size_t opened_ = 0;                    // inputs opened so far
  std::unique_ptr<ByteSource> source_;        // of the current input, if any
  bool json_lines_ = false, begins_ = false;  // begins_: nothing of the text was handed out yet
  std::string buffer_;                        // read and not yet handed out
  std::uint64_t line_ = 1, source_bytes_before_ = 0;
};

}  // namespace baleen
