// Text from a model, token by token, with a cache of keys and values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "model/stage.h"
#include "train/sampling.h"

namespace baleen {

struct SamplingOptions {
  std::int64_t tokens = 200;  // at most
  Sampling sampling = {};
  std::uint64_t seed = 1234;
  std::vector<std::int32_t> end_tokens = {};  // stops at any of them
  std::int64_t vocabulary = 0;                // only ids below; 0: every id. A model's vocabulary may be padded beyond its tokenizer's
};

class Generator {
 public:
  // Room for `capacity` tokens, prompt included. Weights are left for the caller to fill.
  Generator(const ModelConfig& model, std::int64_t capacity, int threads);

  UnitStorage& units() { return units_; }
  // Feeds the prompt (at least one token), then calls `emit` with each new id. Stops at an end token (not emitted) or after
  // options.tokens. When the cache is full, generation goes on from its later half, fed again.
  void generate(std::span<const std::int32_t> prompt, const SamplingOptions& options, const std::function<void(std::int32_t)>& emit);

  // Forgets what was fed before. Logits [V] behind the last token of a text, valid until the next call.
  std::span<const float> logits(std::span<const std::int32_t> text);

 private:
  // logits [V] behind the last of `ids`, which follow what the cache holds.
  std::span<const float> next_logits(std::span<const std::int32_t> ids);

  ModelConfig model_;
  std::int64_t capacity_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  UnitStorage units_;
  Stage stage_;
  Arena scratch_, saved_;
  ops::Context context_;
  Buffer scratch_memory_, saved_memory_, cache_memory_, fixed_memory_;
  std::vector<KvCache> caches_;
  Tensor ids_, positions_, cosines_, sines_, logits_;
};

}  // namespace baleen
