// A library that a GPU program loads by itself and that says where its time went: each kernel's total in the program's last busy stretch,
// by name and grid, and the gaps between kernels. Kernels inside graphs are seen too. Tracing adds about 0.5 µs to a gap.
//
//   CUDA_INJECTION64_PATH=$PWD/build/release/bench/libgpu_trace.so build/release/gpu_step --model qwen2.5-1.5b --micro 16 --accum 2 --steps
//   2 2>trace.txt
//
// A stretch ends where the GPU rests for 3 ms; the last one of at least 100 ms counts. Needs CUPTI, which belongs to the CUDA toolkit.
#include <cupti.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Activity {
  std::uint64_t begin, end;  // ns
  const std::string* what;   // name and grid
};

// What has been seen. It lives from the program's start to its end.
class Trace {
 public:
  void add(std::uint64_t begin, std::uint64_t end, std::string what) {
    const auto name = names_.try_emplace(std::move(what), 0).first;
    activities_.push_back({begin, end, &name->first});
  }
  void print();
  std::mutex mutex;

 private:
  std::vector<Activity> last_stretch();
  std::map<std::string, int> names_;
  std::vector<Activity> activities_;
};

std::vector<Activity> Trace::last_stretch() {
  constexpr std::uint64_t rest = 3'000'000, long_enough = 100'000'000;  // ns
  std::sort(activities_.begin(), activities_.end(), [](const Activity& a, const Activity& b) { return a.begin < b.begin; });
  std::vector<Activity> found, now;
  std::uint64_t end = 0;
  const auto finish = [&] {
    if (!now.empty() && end - now.front().begin >= long_enough) found = now;
    now.clear();
  };
  for (const Activity& activity : activities_) {
    if (activity.begin > end + rest) finish();
    now.push_back(activity);
    end = std::max(end, activity.end);
  }
  finish();
  return found;
}

void Trace::print() {
  struct Sum {
    std::uint64_t time = 0, count = 0;
  };
  std::map<const std::string*, Sum> by_name;
  constexpr std::array<std::uint64_t, 6> limits{500, 1000, 2000, 3000, 10'000, ~std::uint64_t{0}};  // ns
  std::array<Sum, limits.size()> gaps{};
  const std::vector<Activity> stretch = last_stretch();
  std::uint64_t busy = 0, end = stretch.empty() ? 0 : stretch.front().begin;
  for (const Activity& activity : stretch) {
    Sum& sum = by_name[activity.what];
    sum.time += activity.end - activity.begin, ++sum.count;
    busy += activity.end - activity.begin;
    if (activity.begin > end) {
      const std::uint64_t gap = activity.begin - end;
      Sum& of_size = gaps[static_cast<std::size_t>(std::lower_bound(limits.begin(), limits.end(), gap) - limits.begin())];
      of_size.time += gap, ++of_size.count;
    }
    end = std::max(end, activity.end);
  }
  const double span = stretch.empty() ? 0 : static_cast<double>(end - stretch.front().begin) / 1e6;
  std::fprintf(stderr, "%zu kernels, copies and fills in %.3f ms, themselves %.3f ms\n", stretch.size(), span,
               static_cast<double>(busy) / 1e6);
  for (std::size_t i = 0; i < limits.size(); ++i)
    std::fprintf(stderr, "gaps of %s%g us: %llu, %.3f ms\n", i + 1 < limits.size() ? "at most " : "more than ",
                 static_cast<double>(limits[std::min(i, limits.size() - 2)]) / 1e3, static_cast<unsigned long long>(gaps[i].count),
                 static_cast<double>(gaps[i].time) / 1e6);
  std::vector<std::pair<const std::string*, Sum>> sorted(by_name.begin(), by_name.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.time > b.second.time; });
  for (const auto& [what, sum] : sorted)
    std::fprintf(stderr, "%10.3f ms %6llu x %10.2f us  %s\n", static_cast<double>(sum.time) / 1e6,
                 static_cast<unsigned long long>(sum.count), static_cast<double>(sum.time) / 1e3 / static_cast<double>(sum.count),
                 what->c_str());
}

Trace& trace() {
  static Trace* const only = new Trace;  // the library calls until the very end
  return *only;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *bytes = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *bytes));
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  const std::lock_guard lock(trace().mutex);
  for (CUpti_Activity* record = nullptr; cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS;) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      trace().add(kernel.start, kernel.end,
                  std::string(kernel.name) + " [" + std::to_string(kernel.gridX) + "," + std::to_string(kernel.gridY) + "," +
                      std::to_string(kernel.gridZ) + "]");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      trace().add(copy.start, copy.end, "copy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      trace().add(fill.start, fill.end, "fill");
    }
  }
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(trace().mutex);
  trace().print();
}

}  // namespace

// What the driver looks for in a library that CUDA_INJECTION64_PATH names; not 0: ready.
extern "C" int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS) return 0;
  std::atexit(finish);
  return 1;
}
