// Threads that encode chunks, and give the results back in the order the chunks came in.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/document_source.h"

namespace baleen {

struct EncodedChunk {
  std::vector<std::int32_t> ids;   // end of document behind each document that ends here
  std::uint64_t text_bytes = 0;    // of the documents' text
  std::uint64_t documents = 0;     // that end here
  std::uint64_t source_bytes = 0;  // of the input file
};

// The ids of one chunk. JSON lines are read here; empty lines and empty documents give nothing. Throws Error(bad_data) naming file and
// line.
EncodedChunk encode_chunk(const Chunk& chunk, const Tokenizer& tokenizer, const std::string& json_field);

class EncodePool {
 public:
  EncodePool(const Tokenizer& tokenizer, std::string json_field, int threads);
  // Drops what is not yet begun and joins the threads.
  ~EncodePool();
  EncodePool(const EncodePool&) = delete;
  EncodePool& operator=(const EncodePool&) = delete;

  void submit(Chunk chunk);
  std::size_t pending() const { return results_.size(); }  // submitted and not yet taken
  // Waits for the result of the oldest chunk; rethrows what its encoding threw.
  EncodedChunk take();

 private:
  void work();

  const Tokenizer& tokenizer_;
  const std::string json_field_;
  std::deque<std::future<EncodedChunk>> results_;  // used by the caller's thread only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<EncodedChunk()>> queue_;  // guarded by mutex_, as is stop_
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace baleen
