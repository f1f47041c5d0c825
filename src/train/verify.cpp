#include "train/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "model/family.h"
#include "ops/cross_entropy.h"
#include "optim/global_norm.h"
#include "train/initial_weights.h"
#include "train/non_finite.h"
#include "train/parallel_axes.h"
#include "train/step.h"

namespace baleen {
namespace {

// docs/numerics.md, "What is equal to what": of fp32, and of bf16 beside twice what one rank's own rounding does.
constexpr double relative_bound = 1e-5, floor_bound = 1e-8, scalar_bound = 1e-6;
constexpr double bf16_factor = 2, bf16_loss_bound = 1e-3, bf16_norm_bound = 5e-3;

// Random tokens; a third of the sequences ignore a random head of their targets, one in eight ignores nearly all.
struct Batch {
  std::vector<std::int32_t> inputs, targets;
  std::int64_t sequences = 0, length = 0;

  HostBatch part(std::int64_t first, std::int64_t count) const {
    const auto begin = static_cast<std::size_t>(first * length), elements = static_cast<std::size_t>(count * length);
    return {{inputs.data() + begin, elements}, {targets.data() + begin, elements}, count};
  }
};

Batch random_batch(const Config& config, std::int64_t sequences) {
  Batch batch;
  batch.sequences = sequences;
  batch.length = config.training.sequence_length;
  const Philox philox(derive_key(config.data.seed, "verify"));
  const auto vocabulary = static_cast<std::uint64_t>(config.model.vocab_size);
  std::uint64_t counter = 0;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const auto shape = philox(static_cast<std::uint64_t>(s), 1);
    std::int64_t ignored = 0;
    if (shape[0] % 3 == 0) ignored = static_cast<std::int64_t>(shape[1] % static_cast<std::uint64_t>(batch.length));
    if (shape[2] % 8 == 0) ignored = batch.length - 1;
    std::int32_t token = static_cast<std::int32_t>(philox(counter++)[0] % vocabulary);
    for (std::int64_t t = 0; t < batch.length; ++t) {
      batch.inputs.push_back(token);
      token = static_cast<std::int32_t>(philox(counter++)[0] % vocabulary);
      batch.targets.push_back(t < ignored ? ops::ignore_index : token);
    }
  }
  return batch;
}

// A batch that every layout can divide: a multiple of micro-batch × data ranks for all of them, two micro-steps at least for the widest.
std::int64_t batch_sequences(const Config& config, const std::vector<ParallelLayout>& layouts) {
  std::int64_t multiple = 1, widest = 1;
  for (const ParallelLayout& layout : layouts) {
    multiple = std::lcm(multiple, layout.dp * layout.replicate);
    widest = std::max(widest, layout.dp * layout.replicate);
  }
  multiple *= config.training.micro_batch_size;
  const std::int64_t wanted =
      std::max(2 * widest * config.training.micro_batch_size, std::min<std::int64_t>(config.training.global_batch_size, 64));
  return (wanted + multiple - 1) / multiple * multiple;
}

struct Measured {
  double loss = 0, grad_norm = 0;
};

Measured run_layout(Engine& engine, const Config& config, const Batch& batch) {
  set_initial_weights(config, engine.units());
  const DataGroup& group = engine.group();
  const std::int64_t share = batch.sequences / group.data_size;
  const auto valid = static_cast<double>(count_valid(batch.targets));
  double loss_sum = engine.gradients(batch.part(group.data_rank * share, share), valid);
  engine.everyone().all_reduce(&loss_sum, &loss_sum, 1, DType::f64, ReduceOp::sum).wait();
  const Buffer sum = engine.device().allocate("gradient norm", sizeof(double));
  return {loss_sum / valid, global_gradient_norm(engine.context(), group, engine.units(), Tensor(sum.data(), DType::f64, {1}))};
}

// What one rank computes in fp32, on rank 0; empty on the others.
struct Reference {
  Measured measured;
  std::vector<std::vector<float>> gradients;  // by parameter
  // How far one rank in the compute dtype is from that: ‖Δg‖ by parameter, and relative errors. Empty and 0 in fp32.
  std::vector<double> rounding;
  double loss_rounding = 0, norm_rounding = 0;
};

// Σ (a - b)² and Σ b² of gradients a and their reference b, in fp64.
struct Difference {
  double difference = 0, reference = 0;
};

Difference compare(const Tensor& gradient, const float* reference) {
  const bool half = gradient.dtype() == DType::bf16;
  Difference sums;
  for (std::int64_t i = 0; i < gradient.elements(); ++i) {
    const float value = half ? to_float(gradient.as<BFloat16>()[i]) : gradient.as<float>()[i];
    const double delta = static_cast<double>(value) - reference[i];
    sums.difference += delta * delta;
    sums.reference += static_cast<double>(reference[i]) * reference[i];
  }
  if (!std::isfinite(sums.difference)) sums.difference = std::numeric_limits<double>::infinity();
  return sums;
}

// Of what this rank's optimizer updates of a parameter, in every unit that holds it, against the whole parameter's reference. `counted`: of
// the slices of which every element counts on one rank; `others`: of what is held besides, copies and replicas.
struct Differences {
  Difference counted, others;
};

Differences compare_held(const UnitStorage& units, const std::string& name, const std::vector<float>& reference, bool counts_norms) {
  Differences sums;
  std::vector<std::byte> memory;
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    if (parameter.name != name) continue;
    const SliceRange updated = units.part(id, units.updated(id.unit)), owned = units.part(id, units.slice(id.unit));
    if (updated.size() == 0) continue;
    const Tensor gradient = units.on_host(units.of_updated(units.updated_gradients(id.unit), id, updated), memory);
    const auto compare_range = [&](SliceRange range, Difference& into) {
      parameter.for_each_run(range, [&](std::size_t held, std::size_t global, std::size_t count) {
        const Tensor run = gradient.rows(static_cast<std::int64_t>(held - updated.begin), static_cast<std::int64_t>(count));
        const Difference difference = compare(run, reference.data() + global);
        into.difference += difference.difference;
        into.reference += difference.reference;
      });
    };
    const bool counts = counts_norms && parameter.held.counts && !units.unit(id.unit).copy;
    if (counts) compare_range(owned, sums.counted);
    if (!counts || updated.size() != owned.size()) compare_range(updated, sums.others);
  }
  return sums;
}

// ‖Δg‖ and ‖g‖ of a parameter whose reference is on rank 0: of all its slices together, or of the copy that is worst.
Difference compare_parameter(Engine& engine, const ParameterDescription& parameter, const std::vector<float>& reference) {
  Communicator& everyone = engine.everyone();
  std::vector<float> expected(static_cast<std::size_t>(parameter.global_elements()));
  if (everyone.rank() == 0) expected = reference;
  everyone.broadcast(expected.data(), expected.size(), DType::f32, 0).wait();
  Differences sums = compare_held(engine.units(), parameter.name, expected, engine.group().counts_norms());
  everyone.all_reduce(&sums.counted, &sums.counted, 2, DType::f64, ReduceOp::sum).wait();
  everyone.all_reduce(&sums.others, &sums.others, 2, DType::f64, ReduceOp::max).wait();
  return {std::sqrt(std::max(sums.counted.difference, sums.others.difference)), std::sqrt(sums.counted.reference)};
}

// The reference's gradients, on rank 0, against the layout's, parameter after parameter. Fills the worst, which only rank 0 knows.
void compare_gradients(Engine& engine, const ModelConfig& model, const Reference& reference, LayoutResult& result) {
  double worst_ratio = -1;
  const double reference_norm = reference.measured.grad_norm;
  const bool knows = !reference.gradients.empty();
  std::size_t index = 0;
  for (const UnitDescription& unit : model_units(model))
    for (const ParameterDescription& parameter : unit.parameters) {
      const Difference norms = compare_parameter(engine, parameter, knows ? reference.gradients[index] : std::vector<float>{});
      const double rounding = knows && !reference.rounding.empty() ? reference.rounding[index] : 0;
      ++index;
      const double relative = engine.units().options().compute == DType::f32 ? relative_bound * norms.reference : bf16_factor * rounding;
      const double allowed = relative + floor_bound * reference_norm;
      const double ratio = norms.difference == 0 ? 0 : norms.difference / allowed;
      if (ratio > 1 && result.first_bad_parameter.empty()) result.first_bad_parameter = parameter.name;
      if (ratio <= worst_ratio) continue;
      worst_ratio = ratio;
      result.worst_parameter = parameter.name;
      // A gradient that is zero in exact arithmetic has no relative error: then both are given relative to the whole gradient.
      const double scale = norms.reference > 0 ? norms.reference : reference_norm;
      result.worst_error = scale > 0 ? norms.difference / scale : norms.difference;
      result.bound = scale > 0 ? allowed / scale : allowed;
    }
  result.ok = worst_ratio <= 1;
}

double relative(double value, double reference) {
  if (value == reference) return 0;  // 0 of 0, too
  const double error = std::abs(value - reference) / std::abs(reference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

// Nothing can be compared with numbers that are not finite, and no layout is to blame for them.
void require_finite_reference(Engine& engine, const Config& config, const Batch& batch, const Measured& measured) {
  if (std::isfinite(measured.loss) && std::isfinite(measured.grad_norm)) return;
  const std::string cause = name_non_finite(engine, batch.part(0, batch.sequences), static_cast<double>(count_valid(batch.targets)));
  const std::string initial = begins_with_weights(config) ? config.model_path : config.source;
  throw Error(ExitCode::bad_numbers,
              fmt::format("the reference itself, 1 rank in {}, is not finite (loss {}, gradient norm {}): no layout was measured; {}",
                          dtype_name(engine.units().options().compute), measured.loss, measured.grad_norm, cause),
              initial, "begin with weights that are finite, model.init = \"random\", or a smaller model.initializer_range");
}

Reference run_reference(const Config& config, const std::shared_ptr<Device>& device, const EngineGroups& alone, const Batch& batch) {
  Reference reference;
  EngineOptions options = training_engine_options(config, device);
  std::vector<std::byte> memory;
  options.zero = 0;
  options.compute = options.gradient = DType::f32;
  {
    Engine engine(options, alone);
    reference.measured = run_layout(engine, config, batch);
    require_finite_reference(engine, config, batch, reference.measured);
    for (const ParameterId id : engine.units().parameters()) {
      const Tensor gradient = engine.units().on_host(engine.units().gradient(id), memory);
      reference.gradients.emplace_back(gradient.as<float>(), gradient.as<float>() + gradient.elements());
    }
  }
  options = training_engine_options(config, device);
  options.zero = 0;
  if (options.compute == DType::f32) return reference;
  Engine engine(options, alone);
  const Measured measured = run_layout(engine, config, batch);
  require_finite_reference(engine, config, batch, measured);
  reference.loss_rounding = relative(measured.loss, reference.measured.loss);
  reference.norm_rounding = relative(measured.grad_norm, reference.measured.grad_norm);
  std::size_t index = 0;
  for (const ParameterId id : engine.units().parameters()) {
    const Tensor gradient = engine.units().on_host(engine.units().gradient(id), memory);
    reference.rounding.push_back(std::sqrt(compare(gradient, reference.gradients[index++].data()).difference));
  }
  return reference;
}

}  // namespace

VerifyReport verify_layouts(const Config& config, World& world, const std::vector<ParallelLayout>& layouts) {
  const Batch batch = random_batch(config, batch_sequences(config, layouts));
  Reference reference;
  const std::shared_ptr<Device> device = create_training_device(config, world);
  {
    const ParallelAxes alone(world, {}, config.model, device.get());
    if (alone.member()) reference = run_reference(config, device, alone.groups(), batch);
  }
  VerifyReport report;
  report.reference_loss = reference.measured.loss;
  report.reference_grad_norm = reference.measured.grad_norm;
  for (const ParallelLayout& layout : layouts) {
    const auto begin = std::chrono::steady_clock::now();
    const ParallelAxes axes(world, layout, config.model, device.get());
    if (!axes.member()) continue;
    LayoutResult result;
    result.layout = layout;
    EngineOptions options = training_engine_options(config, device);
    options.zero = static_cast<int>(layout.zero);
    options.schedule = parse_schedule(layout.schedule);
    options.micro_batches = batch.sequences / (layout.dp * layout.replicate * config.training.micro_batch_size);
    Engine engine(options, axes.groups());
    const Measured measured = run_layout(engine, config, batch);
    compare_gradients(engine, config.model, reference, result);
    result.loss_error = relative(measured.loss, reference.measured.loss);
    result.grad_norm_error = relative(measured.grad_norm, reference.measured.grad_norm);
    const bool fp32 = options.compute == DType::f32;
    const double loss_bound = fp32 ? scalar_bound : std::max(bf16_factor * reference.loss_rounding, bf16_loss_bound);
    const double norm_bound = fp32 ? scalar_bound : std::max(bf16_factor * reference.norm_rounding, bf16_norm_bound);
    result.ok = result.ok && result.loss_error <= loss_bound && result.grad_norm_error <= norm_bound;
    report.layouts.push_back(result);
    if (world.rank() != 0) continue;  // knows no reference
    log::info("{} of {}: {} {}, {:.1f} s", report.layouts.size(), layouts.size(), layout.text(), result.ok ? "ok" : "BAD",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return report;
}

}  // namespace baleen
