#include "data/document_source.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace baleen {

bool holds_json_lines(const std::filesystem::path& path) {
  const auto plain = path.extension() == ".gz" || path.extension() == ".zst" ? path.stem() : path.filename();
  return plain.extension() == ".jsonl" || plain.extension() == ".ndjson";
}

DocumentSource::DocumentSource(std::vector<std::filesystem::path> inputs, const Tokenizer& tokenizer, std::size_t chunk_bytes)
    : inputs_(std::move(inputs)), tokenizer_(tokenizer), chunk_bytes_(chunk_bytes) {
  BALEEN_CHECK(chunk_bytes > 0, chunk_bytes);
}

void DocumentSource::open_next() {
  const auto& path = inputs_[opened_++];
  source_ = std::make_unique<ByteSource>(path);
  json_lines_ = holds_json_lines(path);
  begins_ = !json_lines_;
  line_ = 1;
  source_bytes_before_ = 0;
  if (source_->read(buffer_, chunk_bytes_) == 0) throw Error(ExitCode::bad_data, "the input is empty", path.string(), "leave it out");
}

std::size_t DocumentSource::cut_of_buffer() const {
  if (!json_lines_) return tokenizer_.safe_cut(buffer_);
  const std::size_t newline = buffer_.rfind('\n');
  return newline == std::string::npos ? 0 : newline + 1;
}

std::optional<Chunk> DocumentSource::next() {
  if (!source_) {
    if (opened_ == inputs_.size()) return std::nullopt;
    open_next();
  }
  Chunk chunk;
  chunk.path = source_->path();
  chunk.json_lines = json_lines_;
  chunk.first_line = line_;
  chunk.begins_document = std::exchange(begins_, false);
  const std::size_t limit = chunk_bytes_ * (json_lines_ ? max_line_chunks : max_text_chunks);
  std::size_t cut = 0;
  for (std::size_t wanted = chunk_bytes_; cut == 0; wanted *= 2) {
    const std::size_t missing = wanted - std::min(wanted, buffer_.size());
    if (source_->read(buffer_, missing) < missing) {  // the end of the input: all that is left goes out
      cut = buffer_.size();
      chunk.ends_document = !json_lines_;
      break;
    }
    cut = cut_of_buffer();
    if (cut == 0 && buffer_.size() >= limit)
      throw Error(ExitCode::bad_data,
                  json_lines_ ? "line " + std::to_string(line_) + " is longer than " + std::to_string(limit) + " bytes"
                              : "no white space in " + std::to_string(limit) + " bytes of text, so it cannot be cut to be encoded",
                  chunk.path.string(), json_lines_ ? "split the document" : "check that the file is text, and break its lines");
  }
  chunk.content.assign(buffer_, 0, cut);
  buffer_.erase(0, cut);
  if (json_lines_) line_ += static_cast<std::uint64_t>(std::count(chunk.content.begin(), chunk.content.end(), '\n'));
  chunk.source_bytes = source_->consumed() - source_bytes_before_;
  source_bytes_before_ = source_->consumed();
  // A text ends with the chunk that says so, JSON lines when nothing is left of them.
  if (chunk.ends_document || (json_lines_ && chunk.content.empty())) {
    source_.reset();
    if (chunk.content.empty() && json_lines_) return next();
  }
  return chunk;
}

}  // namespace baleen
