// From token files to batches: which samples there are, in which order, and what a resumed run must find unchanged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace baleen {

// What the trainer reads from. A global batch of G samples belongs to each step; ranks and micro-batches ask for parts of it. Stateless:
// a step's batch depends on nothing asked before, so a run resumes at step s by asking for step s. Thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Samples first … first + count - 1 of the global batch of `step` (from 0): inputs and targets are [count, T].
  // Throws Error(bad_data) naming file, position and id where a token is outside the vocabulary.
  virtual void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const = 0;
  virtual std::int64_t sequence_length() const = 0;    // T, tokens of a sample
  virtual std::int64_t global_batch_size() const = 0;  // G, samples of a step
};

// The files that `pattern` names, sorted by path byte by byte: one path, or a file name with * ? [a-z] in it (folders are taken
// literally), such as "data/train-*.bin". A pattern with wildcards passes by files that end in .val.bin unless it ends in .val.bin
// itself, so that "corpus*.bin" never trains on corpus.val.bin. Throws Error(bad_data) naming pattern and folder where there is none.
std::vector<std::filesystem::path> find_token_files(const std::string& pattern);

enum class DataOrder : std::uint8_t { shuffled, sequential };

struct DatasetOptions {
  std::int64_t sequence_length = 0;    // T
  std::int64_t global_batch_size = 0;  // G
  std::int64_t vocabulary = 0;         // V of the model: every id handed out is below it
  DataOrder order = DataOrder::shuffled;
  std::uint64_t seed = 0;  // of the shuffled order
};

// What a checkpoint carries to see that a resumed run goes on with the same data.
struct DataFingerprint {
  struct File {
    std::string name;  // without its folder: data may move
    std::uint64_t tokens = 0;
    // Of the length and of 64 blocks of 4 KiB from the first to the last: cheap whatever the size. Shows a file made again from other text;
    // a few tokens changed between the blocks of a large file do not show.
    std::string hash;
    bool operator==(const File&) const = default;
  };
  // A source of a mixture: how many of the files are its, and its weight. None where there is no mixture.
  struct Source {
    std::size_t files = 0;
    double weight = 0;
    bool operator==(const Source&) const = default;
  };
  std::vector<File> files;
  std::vector<Source> sources;
  std::uint64_t seed = 0;
  std::int64_t sequence_length = 0, global_batch_size = 0;
  DataOrder order = DataOrder::shuffled;

  std::string to_json() const;
  // Throws Error(bad_data) naming `where`.
  static DataFingerprint from_json(const std::string& json, const std::string& where);
};

// Throws where going on from a checkpoint with `saved` on `current` data would not be the same run: Error(bad_config) naming the config
// key that changed, Error(bad_data) naming the file.
void check_same_data(const DataFingerprint& saved, const DataFingerprint& current);

// What a run trains on.
class Dataset : public BatchSource {
 public:
  virtual DataFingerprint fingerprint() const = 0;
};

// Samples from token files. File f gives floor((tokens of f - 1) / T) samples: windows of T + 1 tokens at stride T, inputs the first T
// and targets the last T. Samples are numbered through the files in their order. The order of training is an endless sequence of epochs,
// each a permutation of all samples (its own, keyed by (seed, epoch), or the identity); step s takes elements [s·G, (s+1)·G).
class TokenDataset : public Dataset {
 public:
  // Throws Error(bad_data) where the files do not give a single sample.
  TokenDataset(const std::vector<std::filesystem::path>& files, const DatasetOptions& options);

  void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override;
  std::int64_t sequence_length() const override { return options_.sequence_length; }
  std::int64_t global_batch_size() const override { return options_.global_batch_size; }

  // Looks at all that will ever be read. Throws Error(bad_data) as TokenFile::read() does.
  void check_ids() const;
  std::uint64_t samples() const { return first_sample_.back(); }  // of one epoch
  std::uint64_t tokens() const;                                   // in all files
  // The sample at `position` of the endless order.
  std::uint64_t sample_at(std::uint64_t position) const;
  const std::vector<TokenFile>& files() const { return files_; }
  DataFingerprint fingerprint() const override;
  // Inputs and targets [T] of a sample of an epoch.
  void copy_sample(std::uint64_t sample, std::int32_t* inputs, std::int32_t* targets) const;

 private:
  DatasetOptions options_;
  std::vector<TokenFile> files_;
  std::vector<std::uint64_t> first_sample_;  // of file f; one more at the end: the number of samples
};

}  // namespace baleen
