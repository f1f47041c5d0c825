// Checks that need more than the file: the data's vocabulary, the number of ranks, what this build can run.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "comm/gpu_communicator.h"
#include "device/gpu.h"
#include "train/config.h"
#include "train/layout.h"

namespace baleen {
namespace {

[[noreturn]] void reject(const Config& config, const std::string& what, const std::string& remedy) {
  throw Error(ExitCode::bad_config, what, config.source, remedy);
}

// What the config may ask for and this build does not have. Each is refused by name rather than ignored.
void refuse_missing_features(const Config& config) {
  if (config.state_dtype == "bf16" && config.training.dtype == "fp32")
    reject(config,
           "optimizer.state_dtype = \"bf16\" with training.dtype = \"fp32\": states would be less precise than what is computed with",
           "set training.dtype = \"bf16\", or optimizer.state_dtype = \"fp32\"");
  if (config.gradient_dtype == "bf16" && config.training.dtype == "fp32")
    reject(config,
           "optimizer.gradient_dtype = \"bf16\" with training.dtype = \"fp32\": gradients would be less precise than what is computed with",
           "set training.dtype = \"bf16\", or optimizer.gradient_dtype = \"fp32\"");
  if (config.comm.backend == "nccl") {
    if (config.training.device != "gpu")
      reject(config, "comm.backend = \"nccl\" connects GPUs, and training.device is not \"gpu\"", "set comm.backend = \"auto\"");
    std::string why;
    if (nccl_version(why).empty())
      reject(config, fmt::format("comm.backend = \"nccl\": {}", why), "install NCCL, or set comm.backend = \"auto\"");
  }
}

}  // namespace

void resolve_model(Config& config, std::int64_t data_vocabulary) {
  ModelConfig& model = config.model;
  if (model.vocab_size == 0) model.vocab_size = data_vocabulary;
  if (model.vocab_size == 0)
    reject(config, "model.vocab_size: neither the model nor the data's sidecar says it",
           "set model.vocab_size, or tokenize the data with `baleen tokenize`");
  if (model.max_position_embeddings == 0) model.max_position_embeddings = config.training.sequence_length;
  complete_and_validate(model, config.source);
  if (config.training.sequence_length > model.max_position_embeddings)
    reject(config,
           fmt::format("training.sequence_length = {} is longer than the model allows (max_position_embeddings = {})",
                       config.training.sequence_length, model.max_position_embeddings),
           fmt::format("set training.sequence_length to {} or less", model.max_position_embeddings));
}

void resolve_layout(Config& config, int world, const std::string& launcher) {
  if (config.training.device == "auto" && gpu_available()) config.training.device = "gpu";
  refuse_missing_features(config);
  ParallelismConfig& p = config.parallelism;
  const std::int64_t others = p.replicate * p.tensor * p.context * p.pipeline;
  if (p.data == -1) {
    if (world % others != 0)
      reject(config, fmt::format("parallelism: {} ranks cannot be divided by the product of the other degrees, {}", world, others),
             fmt::format("use a multiple of {} ranks", others));
    p.data = world / others;
  }
  if (p.data * others != world)
    reject(config, fmt::format("parallelism: the degrees need {} ranks, but there are {}", p.data * others, world),
           fmt::format("start {} ranks {}, or {}", p.data * others,
                       launcher.empty() ? fmt::format("(--ranks {})", p.data * others) : "with " + launcher,
                       world % others == 0 ? "set parallelism.data = -1" : "change the degrees"));

  const ParallelLayout layout = layout_of(p);
  if (const std::string reason = layout_refusal(layout, config.model, config.training.sequence_length); !reason.empty())
    reject(config, fmt::format("[parallelism] {}: {}", layout.text(), reason),
           "the nearest layouts that run: " + nearest_layouts(layout, config.model, config.training.sequence_length));

  TrainingConfig& t = config.training;
  const std::int64_t tokens = t.micro_batch_size * t.sequence_length / p.context, most_chunks = (tokens + 63) / 64;
  if (t.head_chunks > most_chunks)
    reject(
        config,
        fmt::format("training.head_chunks = {}: a chunk is 64 tokens or more, and a rank has {} of a micro-batch", t.head_chunks, tokens),
        fmt::format("use {} or less, or 0 (automatic)", most_chunks));
  const std::int64_t per_micro_step = t.micro_batch_size * p.data * p.replicate;
  if (t.global_batch_size == 0) t.global_batch_size = per_micro_step;
  if (t.global_batch_size % per_micro_step != 0) {
    const std::int64_t below = t.global_batch_size / per_micro_step * per_micro_step;
    reject(config,
           fmt::format("training.global_batch_size = {} is not divisible by data ranks × micro_batch_size = {} × {} = {}",
                       t.global_batch_size, p.data * p.replicate, t.micro_batch_size, per_micro_step),
           fmt::format("use {}{}, another micro_batch_size, or another number of ranks", below > 0 ? fmt::format("{} or ", below) : "",
                       below + per_micro_step));
  }
}

}  // namespace baleen
