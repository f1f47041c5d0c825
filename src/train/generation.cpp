#include "train/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "model/family.h"
#include "model/rope_table.h"
#include "ops/threads.h"

namespace baleen {

Generator::Generator(const ModelConfig& model, std::int64_t capacity, int threads)
    : model_(model),
      capacity_(capacity),
      device_(create_cpu_device()),
      stream_(device_->create_stream()),
      units_(*device_, model_units(model), 1, StorageKind::inference),
      stage_(model, units_),
      context_{*stream_, scratch_},
      caches_(static_cast<std::size_t>(model.num_hidden_layers)) {
  ops::set_threads(threads);
  const std::int64_t kv = model.num_key_value_heads * model.head_dim, half = rope_columns(model);
  cache_memory_ =
      device_->allocate("key-value cache", static_cast<std::size_t>(2 * model.num_hidden_layers * capacity * kv) * sizeof(float));
  float* cache = cache_memory_.as<float>();
  for (KvCache& layer : caches_) {
    layer.keys = Tensor(cache, DType::f32, {capacity, kv});
    layer.values = Tensor(cache + capacity * kv, DType::f32, {capacity, kv});
    cache += 2 * capacity * kv;
  }
  Arena fixed;
  const auto layout = [&] {
    ids_ = allocate(fixed, "ids", DType::i32, {capacity});
    positions_ = allocate(fixed, "positions", DType::i32, {capacity});
    cosines_ = allocate(fixed, "rotary cosines", DType::f32, {capacity, half});
    sines_ = allocate(fixed, "rotary sines", DType::f32, {capacity, half});
    logits_ = allocate(fixed, "logits", DType::f32, {model.vocab_size});
  };
  layout();
  fixed_memory_ = device_->allocate("batch and tables", fixed.peak());
  fixed.release(0);
  fixed.bind(fixed_memory_.data(), fixed_memory_.bytes());
  layout();
  const RopeTable table = make_rope_table(model, capacity);
  stream_->copy(cosines_.data(), table.cosines.data(), cosines_.bytes());
  stream_->copy(sines_.data(), table.sines.data(), sines_.bytes());

  // The longest call is a prompt that fills the cache.
  const auto measuring = device_->create_measuring_stream();
  Arena scratch, saved;
  ops::Context context{*measuring, scratch};
  std::vector<KvCache> caches = caches_;
  const MicroBatch longest{{1, capacity, positions_, cosines_, sines_, Tensor()}, ids_, Tensor()};
  stage_.next_logits({context, units_, saved}, longest, caches, logits_);
  scratch_memory_ = device_->allocate("scratch", scratch.peak());
  saved_memory_ = device_->allocate("activations", saved.peak());
  scratch_.bind(scratch_memory_.data(), scratch_memory_.bytes());
  saved_.bind(saved_memory_.data(), saved_memory_.bytes());
}

std::span<const float> Generator::next_logits(std::span<const std::int32_t> ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  std::vector<std::int32_t> positions(ids.size());
  for (std::int64_t i = 0; i < count; ++i) positions[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(caches_.front().length + i);
  const MicroBatch next{{1, count, positions_.rows(0, count), cosines_, sines_, Tensor()}, ids_.rows(0, count), Tensor()};
  stream_->copy(ids_.data(), ids.data(), ids.size_bytes());
  stream_->copy(positions_.data(), positions.data(), positions.size() * sizeof(std::int32_t));
  stage_.next_logits({context_, units_, saved_}, next, caches_, logits_);
  stream_->synchronize();
  return {logits_.as<float>(), static_cast<std::size_t>(logits_.elements())};
}

std::span<const float> Generator::logits(std::span<const std::int32_t> text) {
  BALEEN_CHECK(!text.empty() && static_cast<std::int64_t>(text.size()) <= capacity_, text.size(), capacity_);
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] < 0 || text[i] >= model_.vocab_size)
      throw Error(ExitCode::bad_data,
                  fmt::format("token id {} at position {} is outside the model's vocabulary of {}", text[i], i, model_.vocab_size),
                  "prompt", "use the tokenizer that the model was trained with, or a text without that token");
  for (KvCache& layer : caches_) layer.length = 0;
  return next_logits(text);
}

void Generator::generate(std::span<const std::int32_t> prompt, const SamplingOptions& options,
                         const std::function<void(std::int32_t)>& emit) {
  const Philox philox(derive_key(options.seed, "generate"));
  std::vector<std::int32_t> text(prompt.begin(), prompt.end());
  std::span<const float> logits = this->logits(prompt);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto candidates =
        options.vocabulary > 0 ? logits.first(std::min(logits.size(), static_cast<std::size_t>(options.vocabulary))) : logits;
    if (!std::all_of(candidates.begin(), candidates.end(), [](float logit) { return std::isfinite(logit); }))
      throw Error(ExitCode::bad_numbers, "the model's logits are not finite", fmt::format("after {} tokens", text.size()),
                  "use an earlier checkpoint; `baleen eval` names the parameter");
    const double uniform = static_cast<double>(philox(static_cast<std::uint64_t>(i))[0]) * 0x1p-32;
    const std::int32_t id = sample_token(candidates, options.sampling, uniform);
    if (std::find(options.end_tokens.begin(), options.end_tokens.end(), id) != options.end_tokens.end()) return;
    emit(id);
    if (i + 1 == options.tokens) return;
    text.push_back(id);
    std::size_t fed = 1;
    if (caches_.front().length == capacity_) {
      for (KvCache& layer : caches_) layer.length = 0;
      fed = static_cast<std::size_t>(std::max<std::int64_t>(1, capacity_ / 2));
    }
    logits = next_logits({text.data() + (text.size() - fed), fed});
  }
}

}  // namespace baleen
