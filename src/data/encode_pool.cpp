#include "data/encode_pool.h"

#include <system_error>
#include <utility>

#include "base/error.h"
#include "data/json_line.h"

namespace baleen {
namespace {

// Where the mark between documents is also what begins one, it stands behind the document before.
void append_beginning(const Tokenizer& tokenizer, std::vector<std::int32_t>& ids) {
  if (tokenizer.marks_beginning()) return;
  const std::vector<std::int32_t> beginning = tokenizer.beginning();
  ids.insert(ids.end(), beginning.begin(), beginning.end());
}

void encode_document(std::string_view text, const Tokenizer& tokenizer, EncodedChunk& encoded) {
  append_beginning(tokenizer, encoded.ids);
  tokenizer.encode(text, encoded.ids);
  encoded.ids.push_back(tokenizer.end_of_document());
  encoded.text_bytes += text.size();
  ++encoded.documents;
}

}  // namespace

EncodedChunk encode_chunk(const Chunk& chunk, const Tokenizer& tokenizer, const std::string& json_field) {
  EncodedChunk encoded;
  encoded.source_bytes = chunk.source_bytes;
  if (!chunk.json_lines) {
    if (chunk.begins_document) append_beginning(tokenizer, encoded.ids);
    tokenizer.encode(chunk.content, encoded.ids);
    encoded.text_bytes = chunk.content.size();
    if (chunk.ends_document) {
      encoded.ids.push_back(tokenizer.end_of_document());
      encoded.documents = 1;
    }
    return encoded;
  }
  std::string_view rest = chunk.content;
  for (std::uint64_t number = chunk.first_line; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string text = json_text_field(line, json_field, chunk.path.string() + ", line " + std::to_string(number));
    if (!text.empty()) encode_document(text, tokenizer, encoded);
  }
  return encoded;
}

EncodePool::EncodePool(const Tokenizer& tokenizer, std::string json_field, int threads)
    : tokenizer_(tokenizer), json_field_(std::move(json_field)) {
  BALEEN_CHECK(threads > 0, threads);
  for (int i = 0; i < threads; ++i) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {  // a limit of the system: fewer threads give the same result
      if (!threads_.empty()) break;
      throw Error(ExitCode::bad_data, std::string("cannot start a thread: ") + error.what(), "tokenizing",
                  "raise the limit on processes (ulimit -u)");
    }
  }
}

EncodePool::~EncodePool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void EncodePool::submit(Chunk chunk) {
  std::packaged_task<EncodedChunk()> task([this, chunk = std::move(chunk)] { return encode_chunk(chunk, tokenizer_, json_field_); });
  results_.push_back(task.get_future());
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  changed_.notify_one();
}

EncodedChunk EncodePool::take() {
  BALEEN_CHECK(!results_.empty());
  std::future<EncodedChunk> oldest = std::move(results_.front());
  results_.pop_front();
  return oldest.get();
}

void EncodePool::work() {
  for (;;) {
    std::packaged_task<EncodedChunk()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    task();  // an exception goes into the future
  }
}

}  // namespace baleen
