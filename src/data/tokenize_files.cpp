#include "data/tokenize_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_path.h"
#include "data/document_source.h"
#include "data/encode_pool.h"
#include "data/token_file.h"
#include "data/validation_split.h"

namespace baleen {
namespace fs = std::filesystem;
namespace {

// FILE.bin.lock, held (flock) while FILE's files are written: they belong together, so one process at a time writes them. On a file system
// without locks nobody is kept away.
class OutputLock {
 public:
  explicit OutputLock(const fs::path& output) : path_(output) {
    path_ += ".lock";
    for (;;) {
      descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
      if (descriptor_ < 0) throw_file_error("write", path_, errno);
      const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
      if (!locked && errno != EWOULDBLOCK) return;
      if (locked && names_open_file(path_, descriptor_)) return;
      ::close(descriptor_);
      if (!locked)
        throw Error(ExitCode::bad_config, "another process is writing this file", output.string(),
                    "wait for it or stop it, or choose another --out");
    }
  }
  ~OutputLock() {
    ::unlink(path_.c_str());  // first, so that who gets the lock next sees that the name is another file's
    ::close(descriptor_);
  }
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  fs::path path_;
  int descriptor_ = -1;
};

// Files written beside their names. commit() renames them; without it the destructor removes them.
class PendingFiles {
 public:
  // Where to write what will be `path`.
  const fs::path& add(const fs::path& path) { return files_.emplace_back(path, TemporaryPath::Kind::file).path(); }
  // The sidecar, the last to be added, comes last.
  void commit(const fs::path& folder) {
    for (TemporaryPath& file : files_) file.publish();
    sync_directory(folder.empty() ? fs::path(".") : folder);
  }

 private:
  std::list<TemporaryPath> files_;
};

// Whether two paths name one file, or would.
bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored) || fs::equivalent(a, b, ignored);
}

// The checks that need no reading. Returns the sum of the inputs' sizes.
std::uint64_t check_request(const std::vector<fs::path>& inputs, const fs::path& output, const TokenizeOptions& options) {
  const fs::path validation = validation_path_for(output), sidecar = sidecar_path_for(output);
  if (inputs.empty()) throw Error(ExitCode::bad_config, "no input was named", "", "name at least one text, .jsonl or .gz file");
  if (!(options.val_fraction >= 0 && options.val_fraction < 1))
    throw Error(ExitCode::bad_config, "the validation fraction " + std::to_string(options.val_fraction) + " is not in [0, 1)",
                "--val-fraction", "0.05 is a twentieth");
  if (options.threads < 0) throw Error(ExitCode::bad_config, "a negative number of threads", "threads", "0 takes one a core");
  std::error_code ignored;
  for (const auto& written : {output, validation, sidecar})
    if (fs::is_directory(written, ignored))
      throw Error(ExitCode::bad_config, "a folder has the name of a file to write", written.string(), "choose another --out");
  std::uint64_t total = 0;
  for (const auto& input : inputs) {
    std::error_code error;
    if (!fs::exists(input, error)) throw Error(ExitCode::bad_data, "no such input file", input.string(), "check the path");
    for (const auto& written : {output, validation, sidecar})
      if (same_file(input, written))
        throw Error(ExitCode::bad_config, "an input would be overwritten by the output", input.string(), "choose another --out");
    const auto bytes = fs::file_size(input, error);
    if (!error) total += bytes;
  }
  if (options.val_fraction == 0 && fs::exists(validation, ignored))
    throw Error(ExitCode::bad_config, "a validation file of an earlier split is beside the output, and this one would train on its text",
                validation.string(), "give --val-fraction to write it again, remove it, or choose another --out");
  return total;
}

// Encodes all inputs into the writer, in order. Returns what was written.
TokenCounts write_tokens(const std::vector<fs::path>& inputs, const Tokenizer& tokenizer, const TokenizeOptions& options,
                         std::uint64_t total, TokenFileWriter& writer) {
  const int threads = options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  TokenCounts counts;
  std::uint64_t done = 0;
  DocumentSource source(inputs, tokenizer, options.chunk_bytes);
  EncodePool pool(tokenizer, options.json_field, threads);
  const auto write_oldest = [&] {
    const EncodedChunk encoded = pool.take();
    writer.append(encoded.ids);
    counts.bytes += encoded.text_bytes;
    counts.documents += encoded.documents;
    done += encoded.source_bytes;
    if (options.progress) options.progress(done, std::max(done, total));
  };
  std::exception_ptr reading_failed;  // thrown after the errors of the chunks before it, so that the first error is reported
  for (;;) {
    std::optional<Chunk> chunk;
    try {
      chunk = source.next();
    } catch (...) {
      reading_failed = std::current_exception();
    }
    if (!chunk) break;
    pool.submit(std::move(*chunk));
    if (pool.pending() > 2 * static_cast<std::size_t>(threads)) write_oldest();
  }
  while (pool.pending() > 0) write_oldest();
  if (reading_failed) std::rethrow_exception(reading_failed);
  counts.tokens = writer.tokens();
  if (counts.bytes == 0)
    throw Error(ExitCode::bad_data, "the inputs hold no text", inputs.front().string(),
                "check the files; a .jsonl file needs a line with text in it");
  return counts;
}

// Copies tokens [start, size) to `writer` and counts what they are.
TokenCounts copy_validation(const TokenFile& file, std::uint64_t start, const Tokenizer& tokenizer, TokenFileWriter& writer) {
  TokenCounts counts;
  std::vector<std::int32_t> block;
  std::int32_t previous = tokenizer.end_of_document();
  if (start > 0) file.read(start - 1, {&previous, 1}, tokenizer.vocabulary_size());
  for (std::uint64_t at = start; at < file.size(); at += block.size()) {
    block.resize(std::min<std::uint64_t>(std::uint64_t{1} << 16, file.size() - at));
    file.read(at, block, tokenizer.vocabulary_size());
    writer.append(block);
    counts.bytes += tokenizer.decode(block, previous).size();
    previous = block.back();
    counts.documents += static_cast<std::uint64_t>(std::count(block.begin(), block.end(), tokenizer.end_of_document()));
  }
  counts.tokens = writer.tokens();
  writer.finish();
  return counts;
}

}  // namespace

TokenizeResult tokenize_files(const std::vector<fs::path>& inputs, const Tokenizer& tokenizer, const fs::path& output,
                              const TokenizeOptions& options) {
  const std::uint64_t total = check_request(inputs, output, options);
  TokenizeResult result;
  result.train = output;
  result.sidecar = sidecar_path_for(output);
  const OutputLock lock(output);
  PendingFiles pending;
  const TokenFormat format = token_format_for(tokenizer.vocabulary_size());
  const fs::path train_beside = pending.add(output);
  TokenFileWriter train(train_beside, format);
  result.train_counts = write_tokens(inputs, tokenizer, options, total, train);
  std::uint64_t train_tokens = train.tokens();
  if (options.val_fraction > 0) {
    train.write_header();
    const TokenFile all(train_beside);
    train_tokens = validation_start(all, tokenizer.end_of_document(), options.val_fraction);
    result.validation = validation_path_for(output);
    TokenFileWriter validation(pending.add(*result.validation), format);
    const TokenCounts counts = copy_validation(all, train_tokens, tokenizer, validation);
    // A document cut in two counts in both parts: the training part then does not end with an end of document.
    std::int32_t last = 0;
    all.read(train_tokens - 1, {&last, 1}, tokenizer.vocabulary_size());
    const bool cut_inside = last != tokenizer.end_of_document();
    result.train_counts.bytes -= counts.bytes;
    result.train_counts.documents -= counts.documents - (cut_inside ? 1 : 0);
    result.train_counts.tokens = train_tokens;
    result.validation_counts = counts;
  }
  train.finish(train_tokens);
  const Sidecar sidecar{tokenizer.to_json(), tokenizer.vocabulary_size(), tokenizer.end_of_document(), result.train_counts,
                        result.validation_counts};
  FileWriter sidecar_file(pending.add(result.sidecar));
  sidecar_file.write(sidecar.to_json());
  sidecar_file.sync_and_close();
  pending.commit(output.parent_path());
  return result;
}

}  // namespace baleen
