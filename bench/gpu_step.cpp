// Tokens a second of a whole training step on one GPU: accumulated micro-batches, gradient norm, clip, AdamW with fp32 master weights,
// moments and gradients, all in one graph. Random weights and tokens. --bf16-states and --bf16-gradients keep those in bf16.
//
//   build/release/gpu_step --model qwen2.5-0.5b --seq 1024 --micro 32 --accum 8
//
// Prints one JSON object. --profile runs one micro-batch and one update between the profiler's start and stop marks instead:
//   ncu --profile-from-start off --metrics gpu__time_duration.sum --csv build/release/gpu_step --profile …
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/gpu.h"
#include "device/gpu_api.h"
#include "model/family.h"
#include "model/rope_table.h"
#include "model/stage.h"
#include "ops/adamw.h"

namespace {

using namespace baleen;

struct Options {
  std::string model = "qwen2.5-0.5b";
  std::int64_t seq = 1024, micro = 32, accum = 8, vocab = 0;
  int steps = 5, layers = 0;
  DType compute = DType::bf16, state = DType::f32, gradient = DType::f32;
  std::int64_t head_chunks = 0;
  bool deterministic = false, profile = false, eager = false;
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (++i < argc) return argv[i];
      throw Error(ExitCode::bad_config, name + " needs a value", "the command line", "see the head of bench/gpu_step.cpp");
    };
    if (name == "--model")
      options.model = value();
    else if (name == "--seq")
      options.seq = std::stoll(value());
    else if (name == "--micro")
      options.micro = std::stoll(value());
    else if (name == "--accum")
      options.accum = std::stoll(value());
    else if (name == "--vocab")
      options.vocab = std::stoll(value());
    else if (name == "--steps")
      options.steps = std::stoi(value());
    else if (name == "--layers")
      options.layers = std::stoi(value());
    else if (name == "--fp32")
      options.compute = DType::f32;
    else if (name == "--bf16-states")
      options.state = DType::bf16;
    else if (name == "--bf16-gradients")
      options.gradient = DType::bf16;
    else if (name == "--head-chunks")
      options.head_chunks = std::stoll(value());
    else if (name == "--deterministic")
      options.deterministic = true;
    else if (name == "--profile")
      options.profile = true;
    else if (name == "--eager")
      options.eager = true;
    else
      throw Error(ExitCode::bad_config, "unknown option " + name, "the command line", "see the head of bench/gpu_step.cpp");
  }
  return options;
}

class Step {
 public:
  Step(Device& device, Stream& stream, const ModelConfig& config, const Options& options)
      : options_(options),
        device_(device),
        stream_(stream),
        units_(device, model_units(config),
               StorageOptions{.compute = options.compute, .state = options.state, .gradient = options.gradient}),
        stage_(config, units_, StageLayers::whole(config), 0, {.head_chunks = options.head_chunks}) {
    fill_weights();
    put_batch(config);
    const auto measuring = device.create_measuring_stream();
    Arena scratch, saved;
    ops::Context dry{*measuring, scratch};
    micro_batch(dry, saved, 0);
    update(dry);
    for (const auto& [name, bytes] : saved.peak_by_name()) planned_["activations: " + name] = bytes;
    for (const auto& [name, bytes] : scratch.peak_by_name()) planned_["scratch: " + name] = bytes;
    scratch_memory_ = device.allocate("scratch", scratch.peak());
    saved_memory_ = device.allocate("activations", saved.peak());
    scratch_.bind(scratch_memory_.data(), scratch_memory_.bytes());
    saved_.bind(saved_memory_.data(), saved_memory_.bytes());
  }

  void enqueue() {
    ops::Context context{stream_, scratch_};
    begin();
    for (std::int64_t i = 0; i < options_.accum; ++i) micro_batch(context, saved_, i);
    update(context);
  }
  // One micro-batch and the update.
  void enqueue_part() {
    ops::Context context{stream_, scratch_};
    begin();
    micro_batch(context, saved_, 0);
    update(context);
  }
  double loss() {
    double sum = 0;
    stream_.copy(&sum, loss_.data(), sizeof sum);
    stream_.synchronize();
    return sum / static_cast<double>(options_.micro * options_.seq * options_.accum);
  }
  void set_step(int step) {
    std::vector<float> scalars(ops::adamw_scalars);
    scalars[ops::adamw_learning_rate] = 1e-4f;
    scalars[ops::adamw_correction1] = 1.0f - std::pow(0.9f, static_cast<float>(step));
    scalars[ops::adamw_correction2] = 1.0f - std::pow(0.95f, static_cast<float>(step));
    scalars[ops::adamw_gradient_factor] = 1.0f;
    scalars[ops::adamw_step] = static_cast<float>(step);
    stream_.copy(scalars_.data(), scalars.data(), scalars_.bytes());
    stream_.synchronize();
  }
  const std::map<std::string, std::size_t>& planned() const { return planned_; }
  std::int64_t parameters() const { return units_.parameter_count(); }

 private:
  // Values as a model's, but repeated: making a billion normal numbers takes longer than the measurement.
  void fill_weights() {
    constexpr std::size_t tile = std::size_t{1} << 22;
    std::vector<float> normal(tile), filled;
    const Philox philox(derive_key(1, "weights"));
    for (std::size_t i = 0; i < tile; ++i) normal[i] = normal_at(philox, i);
    for (const ParameterId id : units_.parameters()) {
      const ParameterDescription& parameter = units_.parameter(id);
      const auto count = static_cast<std::size_t>(parameter.elements());
      for (std::size_t begin = 0; begin < count; begin += tile) {
        filled.resize(std::min(tile, count - begin));
        const float constant = parameter.initializer == Initializer::ones ? 1.0f : 0.0f;
        const float deviation = parameter.initializer == Initializer::normal ? parameter.standard_deviation : 0.0f;
        for (std::size_t i = 0; i < filled.size(); ++i) filled[i] = constant + deviation * normal[i];
        units_.store(id, {begin, begin + filled.size()}, filled.data());
      }
    }
  }
  void put_batch(const ModelConfig& config) {
    const std::int64_t tokens = options_.micro * options_.seq, all = tokens * options_.accum, half = rope_columns(config);
    const RopeTable table = make_rope_table(config, options_.seq);
    batch_memory_ = device_.allocate("batch and tables", static_cast<std::size_t>(all * 8 + tokens * 4 + options_.seq * half * 8 + 4096));
    Arena fixed;
    fixed.bind(batch_memory_.data(), batch_memory_.bytes());
    const auto put = [&]<class T>(const char* name, const std::vector<T>& values, std::initializer_list<std::int64_t> shape) {
      const Tensor tensor = allocate(fixed, name, dtype_of<T>::value, shape);
      stream_.copy(tensor.data(), values.data(), tensor.bytes());
      stream_.synchronize();
      return tensor;
    };
    std::vector<std::int32_t> ids, targets, positions;
    const Philox philox(derive_key(7, "tokens"));
    for (std::int64_t i = 0; i < all; ++i) {
      const auto words = philox(static_cast<std::uint64_t>(i));
      ids.push_back(static_cast<std::int32_t>(words[0] % static_cast<std::uint32_t>(config.vocab_size)));
      targets.push_back(static_cast<std::int32_t>(words[1] % static_cast<std::uint32_t>(config.vocab_size)));
    }
    for (std::int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<std::int32_t>(i % options_.seq));
    sequences_ = {options_.micro,
                  options_.seq,
                  put("positions", positions, {tokens}),
                  put("cosines", table.cosines, {options_.seq, half}),
                  put("sines", table.sines, {options_.seq, half}),
                  Tensor()};
    ids_ = put("ids", ids, {all});
    targets_ = put("targets", targets, {all});
    loss_ = put("loss", std::vector<double>{0}, {1});
    squares_ = put("squares", std::vector<double>{0}, {1});
    gradient_scale_ = put("gradient scale", std::vector<float>{1.0f / static_cast<float>(all)}, {1});
    scalars_ = put("scalars", std::vector<float>(ops::adamw_scalars), {ops::adamw_scalars});
  }

  void begin() {
    for (int unit = 0; unit < units_.units(); ++unit) units_.begin_gradients(unit, stream_);
    stream_.fill_zero(loss_.data(), loss_.bytes());
    stream_.fill_zero(squares_.data(), squares_.bytes());
  }
  void micro_batch(ops::Context& context, Arena& saved, std::int64_t index) {
    const std::int64_t tokens = options_.micro * options_.seq;
    const MicroBatch batch{sequences_, ids_.rows(index * tokens, tokens), targets_.rows(index * tokens, tokens)};
    const LayerContext layers{context, units_, saved};
    const Arena::Scope scope(saved);
    WholeUnits whole;
    const Stage::Saved forward = stage_.forward(layers, batch, whole);
    stage_.backward(layers, batch, forward, {loss_, gradient_scale_}, whole);
  }
  void update(ops::Context& context) {
    for (int unit = 0; unit < units_.units(); ++unit) units_.complete_gradients(unit, context.stream);
    for (int unit = 0; unit < units_.units(); ++unit) ops::sum_of_squares(context, squares_, units_.flat_gradients(unit));
    for (const ParameterId id : units_.parameters()) {
      const SliceRange range = units_.part(id, units_.updated(id.unit));
      const auto of = [&](const Tensor& flat) { return units_.of_updated(flat, id, range); };
      ops::adamw(context,
                 {of(units_.master(id.unit)), units_.has_separate_master() ? of(units_.updated_weights(id.unit)) : Tensor(),
                  of(units_.updated_gradients(id.unit)), of(units_.exp_avg(id.unit)), of(units_.exp_avg_sq(id.unit))},
                 scalars_, {0.9f, 0.95f, 1e-8f, units_.parameter(id).decays() ? 0.1f : 0.0f}, {});
    }
  }

  Options options_;
  Device& device_;
  Stream& stream_;
  UnitStorage units_;
  Stage stage_;
  Buffer batch_memory_, scratch_memory_, saved_memory_;
  Arena scratch_, saved_;
  Sequences sequences_;
  Tensor ids_, targets_, loss_, squares_, gradient_scale_, scalars_;
  std::map<std::string, std::size_t> planned_;
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// model FLOPs a token as docs/formats.md counts them: norms, biases and the look-up do not multiply.
double flops_per_token(const ModelConfig& config, std::int64_t seq) {
  double parameters = 0;
  for (const UnitDescription& unit : model_units(config))
    for (const ParameterDescription& parameter : unit.parameters)
      if (parameter.shape.size() == 2 && parameter.name.find("wpe") == std::string::npos)
        parameters += static_cast<double>(parameter.elements());
  if (!config.tie_word_embeddings) parameters -= static_cast<double>(config.vocab_size * config.hidden_size);
  return 6 * parameters + 6.0 * static_cast<double>(config.num_hidden_layers * seq * config.num_attention_heads * config.head_dim);
}

void measure(const Options& options) {
  ModelConfig config = model_preset(options.model, "--model");
  if (options.vocab > 0) config.vocab_size = options.vocab;
  if (options.layers > 0) config.num_hidden_layers = options.layers;
  const auto device = create_gpu_device(0, {std::chrono::seconds(300), options.deterministic});
  const auto stream = device->create_stream();
  const auto begin = std::chrono::steady_clock::now();
  Step step(*device, *stream, config, options);
  const double setup = milliseconds_since(begin);
  step.set_step(1);
  step.enqueue_part();  // chooses methods
  stream->synchronize();
  const double first = milliseconds_since(begin) - setup;
  if (options.profile) {
    gpuProfilerStart();
    step.enqueue_part();
    stream->synchronize();
    gpuProfilerStop();
    return;
  }
  std::unique_ptr<Graph> graph;
  if (!options.eager) graph = capture(*stream, [&] { step.enqueue(); });
  std::vector<double> times;
  double host = 0;
  for (int i = 0; i <= options.steps; ++i) {  // the first is not counted
    step.set_step(i + 1);
    const auto start = std::chrono::steady_clock::now();
    graph != nullptr ? graph->replay(*stream) : step.enqueue();
    host = milliseconds_since(start);
    stream->synchronize();
    if (i > 0) times.push_back(milliseconds_since(start));
  }
  std::vector<double> sorted = times;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  const double tokens = static_cast<double>(options.micro * options.seq * options.accum) / median * 1e3;
  std::cout << "{\"program\": \"baleen\", \"model\": \"" << options.model << "\", \"seq\": " << options.seq
            << ", \"micro\": " << options.micro << ", \"accum\": " << options.accum << ", \"tokens_per_s\": " << std::llround(tokens)
            << ", \"model_tflops\": " << std::round(tokens * flops_per_token(config, options.seq) / 1e11) / 10
            << ", \"loss\": " << step.loss()
            << ", \"peak_gib\": " << std::round(static_cast<double>(device->peak_bytes()) / (1 << 30) * 10) / 10
            << ", \"setup_ms\": " << setup << ", \"first_ms\": " << first << ", \"host_ms\": " << host << ", \"step_ms\": [";
  for (std::size_t i = 0; i < times.size(); ++i) std::cout << (i > 0 ? ", " : "") << times[i];
  std::cout << "]}" << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    measure(read_options(argc, argv));
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
