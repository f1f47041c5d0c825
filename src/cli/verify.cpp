// baleen verify
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "train/run_data.h"
#include "train/verify.h"

namespace baleen::cli {
namespace {

using nlohmann::ordered_json;

struct Refused {
  ParallelLayout layout;
  std::string reason;
};

void print_json(const VerifyReport& report, const std::vector<Refused>& refused) {
  ordered_json out;
  out["reference"] = {{"loss", report.reference_loss}, {"grad_norm", report.reference_grad_norm}};
  out["layouts"] = ordered_json::array();
  for (const LayoutResult& r : report.layouts)
    out["layouts"].push_back({{"layout", r.layout.text()},
                              {"loss_error", r.loss_error},
                              {"grad_norm_error", r.grad_norm_error},
                              {"worst_parameter", r.worst_parameter},
                              {"worst_error", r.worst_error},
                              {"bound", r.bound},
                              {"ok", r.ok}});
  out["refused"] = ordered_json::array();
  for (const Refused& r : refused) out["refused"].push_back({{"layout", r.layout.text()}, {"reason", r.reason}});
  fmt::print("{}\n", dump_json(out));
}

void print_table(const VerifyReport& report, const std::vector<Refused>& refused) {
  fmt::print("reference (1 rank): loss {:.6f}, gradient norm {:.6f}\n", report.reference_loss, report.reference_grad_norm);
  fmt::print("{:<28} {:>10} {:>10} {:>10} {:>10}      {}\n", "layout", "loss", "norm", "worst", "bound", "worst parameter");
  for (const LayoutResult& r : report.layouts)
    fmt::print("{:<28} {:>10.2e} {:>10.2e} {:>10.2e} {:>10.2e} {:>4} {}\n", r.layout.text(), r.loss_error, r.grad_norm_error, r.worst_error,
               r.bound, r.ok ? "ok" : "BAD",
               r.ok || r.first_bad_parameter.empty()
                   ? r.worst_parameter
                   : fmt::format("{} (first outside its bound: {})", r.worst_parameter, r.first_bad_parameter));
  for (const Refused& r : refused) fmt::print("{:<28} refused: {}\n", r.layout.text(), r.reason);
}

// What can run; a refused layout is listed under --all and an error by name.
std::vector<ParallelLayout> choose_layouts(const VerifyArguments& arguments, const Config& config, int ranks, const std::string& launcher,
                                           std::vector<Refused>& refused) {
  std::vector<ParallelLayout> runnable;
  for (const ParallelLayout& layout : arguments.all ? all_layouts(ranks) : parse_layouts(arguments.layouts)) {
    std::string reason = layout_refusal(layout, config.model, config.training.sequence_length);
    if (reason.empty() && layout.ranks() > ranks) reason = fmt::format("it needs {} ranks, there are {}", layout.ranks(), ranks);
    if (reason.empty()) {
      runnable.push_back(layout);
    } else if (arguments.all) {
      refused.push_back({layout, reason});
    } else {
      throw Error(ExitCode::bad_config, fmt::format("layout {}: {}", layout.text(), reason), "--layouts",
                  layout.ranks() > ranks
                      ? launcher.empty() ? fmt::format("start it with --ranks {}", layout.ranks())
                                         : fmt::format("start {} ranks with {}", layout.ranks(), launcher)
                      : "the nearest layouts that run: " + nearest_layouts(layout, config.model, config.training.sequence_length));
    }
  }
  return runnable;
}

int fallback_ranks(const VerifyArguments& arguments) {
  std::int64_t most = 1;
  if (!arguments.layouts.empty())
    for (const ParallelLayout& layout : parse_layouts(arguments.layouts)) most = std::max(most, layout.ranks());
  return static_cast<int>(most);
}

}  // namespace

int run(const VerifyArguments& arguments, const std::vector<std::string>& command_line) {
  if (!arguments.all && arguments.layouts.empty())
    throw Error(ExitCode::bad_config, "neither --layouts nor --all was given", "baleen verify",
                "for example: baleen verify CONFIG --layouts \"dp=2\"");
  const RankEnvironment environment = detect_ranks();
  if (arguments.all && arguments.ranks == 0 && environment.source == RankSource::single)
    throw Error(ExitCode::bad_config, "--all needs to know how many ranks", "--ranks", "for example: baleen verify CONFIG --all --ranks 4");
  const int ranks = rank_count(environment, arguments.ranks, fallback_ranks(arguments));
  Config config = read_config(arguments.config, arguments.overrides);
  config.parallelism = ParallelismConfig{};
  config.training.global_batch_size = 0;
  config.training.steps = 0;  // no data are needed
  resolve_run(config, 1);
  std::vector<Refused> refused;
  const std::vector<ParallelLayout> layouts = choose_layouts(arguments, config, ranks, other_launcher(environment), refused);

  // Ranks wait for the reference, which takes as long as it takes.
  constexpr double patience_s = 3600;
  RankedCommand command{ranks,
                        static_cast<int>(config.training.threads),
                        std::max(config.comm.timeout_s, patience_s),
                        /*graceful_stop=*/false,
                        config.comm.backend,
                        config.training.device == "gpu"};
  command.peer_copies = config.comm.peer_copies;
  return run_on_ranks(environment, command, command_line, [&](World& world) {
    const VerifyReport report = verify_layouts(config, world, layouts);
    if (world.rank() != 0) return 0;
    arguments.json ? print_json(report, refused) : print_table(report, refused);
    const bool ok = std::all_of(report.layouts.begin(), report.layouts.end(), [](const LayoutResult& r) { return r.ok; });
    return ok ? 0 : static_cast<int>(ExitCode::check_failed);
  });
}

}  // namespace baleen::cli
