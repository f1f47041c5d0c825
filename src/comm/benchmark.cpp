#include "comm/benchmark.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/error.h"

namespace baleen {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t largest_message = std::size_t{64} << 30;
constexpr int warm_up_operations = 3, most_operations = 5000;
constexpr double most_growth = 10;            // from one timing to the next
constexpr int queued_at_once = 20;            // operations of a batch
constexpr int queued_on_gpu = 1000;           // there a wait of the host takes as long as many short operations
constexpr double seconds_a_row = 0.3;         // about what timing one size may take
constexpr std::uint64_t value_period = 4093;  // a prime, so that an element from a wrong place is a wrong element

// What rank `from` contributes to a sum at `index`: sums over up to 900 ranks stay below 2^24 and so are exact in fp32.
std::uint64_t weight_of(int from) {
  return static_cast<std::uint64_t>(from % 8 + 1);
}
float summand(int from, std::size_t index) {
  return static_cast<float>(weight_of(from) * (index % value_period));
}
// What rank `from` sends to rank `to` where nothing is summed; `to` is -1 where everybody gets the same.
float message(int from, int to, std::size_t index) {
  return static_cast<float>((static_cast<std::uint64_t>(from) * 131 + static_cast<std::uint64_t>(to + 1) * 17 + index) % value_period);
}

[[noreturn]] void reject_sizes(std::string_view text, const std::string& problem) {
  throw Error(ExitCode::bad_config, fmt::format("'{}': {}", text, problem), "--sizes",
              "for example --sizes 4K:256M, or one size such as 1M");
}

std::size_t parse_size(std::string_view text, std::string_view whole) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::size_t place = std::string_view(" KMG").find(suffix.empty() ? ' ' : suffix.front());
  if (error != std::errc() || suffix.size() > 1 || suffix == " " || place == std::string_view::npos)
    reject_sizes(whole, fmt::format("'{}' is not a size: a whole number of bytes, with K, M or G behind it or nothing", text));
  if (value > largest_message >> (10 * place) || (value << (10 * place)) < sizeof(float))
    reject_sizes(whole, fmt::format("'{}' is outside 4 bytes to 64G", text));
  return value << (10 * place);
}

// One size of one collective: its buffers, how to run it, and what it must give.
class Case {
 public:
  Case(Communicator& axis, Collective collective, std::size_t bytes, const BenchmarkOptions& options)
      : axis_(axis), collective_(collective) {
    const auto n = static_cast<std::size_t>(axis.size()), rank = static_cast<std::size_t>(axis.rank());
    const bool parts =
        collective == Collective::all_gather || collective == Collective::reduce_scatter || collective == Collective::all_to_all;
    each_ = std::max<std::size_t>(1, bytes / sizeof(float) / (parts ? n : 1));
    total_ = parts ? each_ * n : each_;
    sent_ = collective == Collective::all_gather ? each_ : total_;
    received_ = collective == Collective::reduce_scatter ? each_ : total_;
    float* const whole = memory(options.device, collective == Collective::reduce_scatter ? sent_ : received_);
    from_ = to_ = whole;
    if (options.in_place) {
      if (collective == Collective::all_gather) from_ += rank * each_;
      if (collective == Collective::reduce_scatter) to_ += rank * each_;
    } else if (collective == Collective::reduce_scatter) {
      to_ = memory(options.device, received_);
    } else {
      from_ = memory(options.device, sent_);
    }
    if (options.device != nullptr && options.device->kind() == DeviceKind::gpu) copies_ = options.device->create_stream();
  }

  std::size_t bytes() const { return total_ * sizeof(float); }
  int queued() const { return copies_ != nullptr ? queued_on_gpu : queued_at_once; }

  void fill() {
    const int rank = axis_.rank();
    std::vector<float> send(sent_), recv(received_, -1.0f);
    for (std::size_t i = 0; i < send.size(); ++i) {
      if (collective_ == Collective::all_reduce || collective_ == Collective::reduce_scatter)
        send[i] = summand(rank, i);
      else if (collective_ == Collective::all_to_all)
        send[i] = message(rank, static_cast<int>(i / each_), i % each_);
      else
        send[i] = message(rank, -1, i);
    }
    if (collective_ == Collective::broadcast && rank == 0) recv = send;
    // In place the input comes last.
    copy(to_, recv.data(), recv.size());
    if (collective_ != Collective::broadcast || rank == 0) copy(from_, send.data(), send.size());
  }

  Event enqueue() {
    switch (collective_) {
      case Collective::all_reduce: return axis_.all_reduce(from_, to_, each_, DType::f32, ReduceOp::sum);
      case Collective::all_gather: return axis_.all_gather(from_, to_, each_, DType::f32);
      case Collective::reduce_scatter: return axis_.reduce_scatter(from_, to_, each_, DType::f32, ReduceOp::sum);
      case Collective::broadcast: return axis_.broadcast(to_, each_, DType::f32, 0);
      case Collective::all_to_all: return axis_.all_to_all(from_, to_, each_, DType::f32);
      case Collective::send_recv: return axis_.exchange(from_, axis_.next(), to_, axis_.previous(), each_, DType::f32);
    }
    return {};
  }

  std::uint64_t wrong() {
    std::vector<float> received(received_);
    copy(received.data(), to_, received.size());
    const int n = axis_.size(), rank = axis_.rank();
    std::uint64_t weights = 0, count = 0;
    for (int from = 0; from < n; ++from) weights += weight_of(from);
    const auto sum = [&](std::size_t index) { return static_cast<float>(weights * (index % value_period)); };
    const auto wanted = [&](std::size_t i) {
      switch (collective_) {
        case Collective::all_reduce: return sum(i);
        case Collective::reduce_scatter: return sum(static_cast<std::size_t>(rank) * each_ + i);
        case Collective::all_gather: return message(static_cast<int>(i / each_), -1, i % each_);
        case Collective::broadcast: return message(0, -1, i);
        case Collective::all_to_all: return message(static_cast<int>(i / each_), rank, i % each_);
        case Collective::send_recv: return message(axis_.previous(), -1, i);
      }
      return 0.0f;
    };
    for (std::size_t i = 0; i < received.size(); ++i) count += received[i] != wanted(i);
    return count;
  }

 private:
  float* memory(Device* device, std::size_t elements) {
    // In training it would lie within memory of many megabytes, and so in huge pages.
    constexpr std::size_t least = std::size_t{2} << 20;
    if (device != nullptr) {
      const Buffer& buffer =
          device_memory_.emplace_back(device->allocate_shared("bench: buffer", std::max(least, elements * sizeof(float))));
      announced_.push_back(axis_.announce(buffer.data(), buffer.bytes(), MemoryUse::reduced));
      return buffer.as<float>();
    }
    return host_memory_.emplace_back(elements).data();
  }
  void copy(float* to, const float* from, std::size_t elements) {
    if (copies_ == nullptr) {
      std::copy_n(from, elements, to);
      return;
    }
    copies_->copy(to, from, elements * sizeof(float));
    copies_->synchronize();
  }

  Communicator& axis_;
  Collective collective_;
  std::size_t each_ = 0, total_ = 0, sent_ = 0, received_ = 0;  // elements: the operation's count, of the larger buffer, of either
  std::vector<std::vector<float>> host_memory_;
  std::vector<Buffer> device_memory_;
  std::vector<std::shared_ptr<void>> announced_;
  float *from_ = nullptr, *to_ = nullptr;
  std::unique_ptr<Stream> copies_;  // where the host cannot reach the buffers
};

// One batch is awaited while the next is in the queue already, which never runs empty: what is timed is operations, not the caller's
// waking.
void run_operations(Case& subject, int operations) {
  // The last event first: they complete in order, and being woken for each would take the processor from the next.
  const auto wait = [](std::vector<Event>& batch) {
    for (auto event = batch.rbegin(); event != batch.rend(); ++event) event->wait();
    batch.clear();
  };
  std::vector<Event> under_way, next;
  for (int done = 0; done < operations;) {
    for (int queued = 0; queued < subject.queued() && done < operations; ++queued, ++done) next.push_back(subject.enqueue());
    wait(under_way);
    under_way.swap(next);
  }
  wait(under_way);
}

// Of `operations`, on the slowest rank.
double seconds_for(Communicator& axis, Case& subject, int operations) {
  axis.barrier().wait();
  const auto begin = Clock::now();
  run_operations(subject, operations);
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  axis.all_reduce(&seconds, &seconds, 1, DType::f64, ReduceOp::max).wait();
  return seconds;
}

}  // namespace

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names{"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"};
  return names;
}

Collective parse_collective(std::string_view name) {
  const auto& names = collective_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw Error(ExitCode::bad_config, fmt::format("no collective named '{}'", name), "--op",
                fmt::format("use one of {}", fmt::join(names, ", ")));
  return static_cast<Collective>(found - names.begin());
}

std::vector<std::size_t> parse_size_range(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::size_t first = parse_size(text.substr(0, colon), text);
  const std::size_t last = colon == std::string_view::npos ? first : parse_size(text.substr(colon + 1), text);
  if (first > last) reject_sizes(text, "the first size is above the last");
  std::vector<std::size_t> sizes;
  for (std::size_t size = first; size <= last; size *= 2) sizes.push_back(size);
  return sizes;
}

double bus_factor(Collective collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::all_reduce: return 2 * others;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all: return others;
    case Collective::broadcast:
    case Collective::send_recv: return 1;
  }
  return 1;
}

double touched_bytes(Collective collective, int ranks, std::size_t bytes) {
  const double n = ranks, size = static_cast<double>(bytes);
  switch (collective) {
    case Collective::all_reduce:
    case Collective::all_to_all:
    case Collective::send_recv: return 2 * n * size;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::broadcast: return (n + 1) * size;
  }
  return 0;
}

double copy_gbs(Communicator& axis) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  constexpr int rounds = 5;
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes);
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    axis.barrier().wait();
    const auto begin = Clock::now();
    std::copy_n((round % 2 == 0 ? from : to).data(), bytes, (round % 2 == 0 ? to : from).data());
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    axis.all_reduce(&seconds, &seconds, 1, DType::f64, ReduceOp::max).wait();
    best = std::max(best, 2.0 * static_cast<double>(bytes) * axis.size() / seconds / 1e9);
  }
  return best;
}

std::vector<BenchmarkRow> benchmark_collective(Communicator& axis, Collective collective, const std::vector<std::size_t>& sizes,
                                               const std::function<void(const BenchmarkRow&)>& row_done, const BenchmarkOptions& options) {
  BALEEN_CHECK(collective != Collective::send_recv || axis.size() > 1, "a rank alone has nobody to send to");
  std::vector<BenchmarkRow> rows;
  for (const std::size_t size : sizes) {
    Case subject(axis, collective, size, options);
    subject.fill();
    run_operations(subject, 1);  // checked before the buffers hold its results already
    BenchmarkRow row;
    row.bytes = subject.bytes();
    row.wrong = subject.wrong();
    axis.all_reduce(&row.wrong, &row.wrong, 1, DType::u64, ReduceOp::sum).wait();
    // First operations of a size may have to connect ranks another way, or to load what runs them, and the first timings with them. All
    // ranks know the same times and so choose the same number of operations.
    seconds_for(axis, subject, warm_up_operations);
    int operations = warm_up_operations;
    double all = seconds_for(axis, subject, operations);
    while (all < seconds_a_row / 2 && operations < most_operations) {
      const double wanted = operations * seconds_a_row / all;
      operations = static_cast<int>(std::clamp(wanted, operations + 1.0, std::min(most_growth * operations, double{most_operations})));
      all = seconds_for(axis, subject, operations);
    }
    // What the very first queue of operations on a GPU makes on its way, events for example, later ones find.
    if (options.device != nullptr && options.device->kind() == DeviceKind::gpu && rows.empty())
      all = seconds_for(axis, subject, operations);
    const double seconds = all / operations;
    row.time_us = 1e6 * seconds;
    row.algbw_gbs = static_cast<double>(row.bytes) / seconds / 1e9;
    row.busbw_gbs = row.algbw_gbs * bus_factor(collective, axis.size());
    row.memory_gbs = touched_bytes(collective, axis.size(), row.bytes) / seconds / 1e9;
    if (row_done && axis.rank() == 0) row_done(row);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace baleen
