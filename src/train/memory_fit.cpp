#include "train/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "base/error.h"
#include "device/gpu.h"
#include "device/host_memory.h"
#include "optim/adamw_optimizer.h"

namespace baleen {
namespace {

// Kernels' code and the buffers of the vendor's libraries: 0.6 GiB were seen on an H200, of which a part is there from the start.
constexpr std::size_t libraries_bytes = std::size_t{512} << 20;
// The most that a communicator keeps of other ranks' slices, where gradients are scattered by copy engines (comm/gpu/peer_communicator.h).
constexpr std::size_t slices_bytes = std::size_t{256} << 20;

double gib(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

std::string largest_allocations(const TrainingMemory& memory) {
  std::vector<std::pair<std::string, std::size_t>> sorted(memory.allocations.begin(), memory.allocations.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t most = 14;
  std::string table;
  std::size_t rest = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i < most)
      table += fmt::format("\n    {:>8.2f} GiB  {}", gib(sorted[i].second), sorted[i].first);
    else
      rest += sorted[i].second;
  }
  return rest == 0 ? table : table + fmt::format("\n    {:>8.2f} GiB  {} others", gib(rest), sorted.size() - most);
}

// Of a series, such as ever smaller micro-batches, the first that fits is enough.
enum class Series { none, micro_batch, head_chunks };

struct Change {
  std::string setting;
  std::function<void(EngineOptions&)> apply;
  Series series = Series::none;
};

// Single changes that save memory, those that cost the least time first.
std::vector<Change> possible_changes(const EngineOptions& options) {
  std::vector<Change> changes;
  constexpr std::int64_t least_rows = 512;  // of a chunk: with fewer, adding to the table's gradient takes longer than the products
  for (std::int64_t chunks = 4; chunks * least_rows <= options.micro_batch_size * options.sequence_length && chunks <= 16; chunks *= 2)
    if (chunks > options.head_chunks)
      changes.push_back(
          {fmt::format("training.head_chunks = {}", chunks), [chunks](EngineOptions& o) { o.head_chunks = chunks; }, Series::head_chunks});
  for (std::int64_t micro = options.micro_batch_size; micro % 2 == 0;) {
    micro /= 2;
    changes.push_back({fmt::format("training.micro_batch_size = {}", micro), [micro](EngineOptions& o) { o.micro_batch_size = micro; },
                       Series::micro_batch});
  }
  if (options.recompute == Recompute::none)
    changes.push_back({"training.recompute = \"selective\"", [](EngineOptions& o) { o.recompute = Recompute::selective; }});
  if (options.recompute != Recompute::full)
    changes.push_back({"training.recompute = \"full\"", [](EngineOptions& o) { o.recompute = Recompute::full; }});
  if (options.compute == DType::bf16 && options.gradient == DType::f32)
    changes.push_back({"optimizer.gradient_dtype = \"bf16\"", [](EngineOptions& o) { o.gradient = DType::bf16; }});
  if (options.compute == DType::bf16 && options.state == DType::f32)
    changes.push_back({"optimizer.state_dtype = \"bf16\"", [](EngineOptions& o) { o.state = DType::bf16; }});
  if (!options.offload) changes.push_back({"training.offload = \"optimizer\"", [](EngineOptions& o) { o.offload = true; }});
  return changes;
}

std::string what_would_fit(const EngineOptions& options, const EngineGroups& groups, Device& device, std::size_t available) {
  std::string fitting;
  EngineOptions all = options;
  std::set<Series> found;
  for (const Change& change : possible_changes(options)) {
    EngineOptions changed = options;
    change.apply(changed);
    if (change.series != Series::head_chunks) change.apply(all);  // the smallest micro-batch has few logits
    if (found.count(change.series) != 0) continue;
    const std::size_t bytes = training_memory(changed, groups, device).bytes;
    if (bytes > available) continue;
    if (change.series != Series::none) found.insert(change.series);
    fitting += fmt::format("\n    {} ({:.2f} GiB)", change.setting, gib(bytes));
  }
  if (!fitting.empty()) return "any of these would fit:" + fitting;
  const std::size_t bytes = training_memory(all, groups, device).bytes;
  if (bytes <= available)
    return fmt::format(
        "no single setting is enough; together these fit ({:.2f} GiB): micro_batch_size = {}, recompute = \"full\"{}, offload = "
        "\"optimizer\"",
        gib(bytes), all.micro_batch_size, all.state == DType::bf16 ? ", gradient_dtype = \"bf16\", state_dtype = \"bf16\"" : "");
  return "nothing fits on so few ranks: use more of them with parallelism.zero = 3, a shorter sequence_length or a smaller model";
}

}  // namespace

TrainingMemory training_memory(EngineOptions options, const EngineGroups& groups, Device& device) {
  options.device = create_counting_device(device);
  Engine engine(options, groups);
  const AdamWOptimizer optimizer({}, engine.device(), engine.units());
  return {engine.named_allocations(), engine.device().peak_bytes()};
}

EngineOptions check_memory(EngineOptions options, const EngineGroups& groups, Device& device, std::size_t available) {
  const TrainingMemory memory = training_memory(options, groups, device);
  if (memory.bytes <= available) return options;
  throw Error(
      ExitCode::out_of_memory,
      fmt::format("training needs {:.2f} GiB, and {:.2f} GiB are free:{}", gib(memory.bytes), gib(available), largest_allocations(memory)),
      device.description(), what_would_fit(options, groups, device, available));
}

EngineOptions check_memory(EngineOptions options, const EngineGroups& groups) {
  if (options.device == nullptr || options.device->kind() != DeviceKind::gpu) return options;
  Device& device = *options.device;
  const std::size_t kept = libraries_bytes + (options.zero > 0 && groups.data.reduce.size() > 1 ? slices_bytes : 0);
  const std::size_t free = free_bytes(device);
  return check_memory(std::move(options), groups, device, free > kept ? free - kept : 0);
}

}  // namespace baleen
