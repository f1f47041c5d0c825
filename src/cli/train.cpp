// baleen train
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "launch/progress_board.h"
#include "launch/stop_signal.h"
#include "train/agreement.h"
#include "train/trainer.h"

namespace baleen::cli {

int run(const TrainArguments& arguments, const std::vector<std::string>& command_line) {
  const RankEnvironment environment = detect_ranks();
  Config config = read_config(arguments.config, arguments.overrides);
  ResumePolicy resume = parse_resume(arguments.resume);
  resume.job = environment.job;
  resume.restarts = environment.restarts;
  const int ranks = rank_count(environment, arguments.ranks, static_cast<int>(config.ranks_named()));
  const std::filesystem::path run_directory = arguments.out.empty()
                                                  ? std::filesystem::path("runs") / std::filesystem::path(arguments.config).stem()
                                                  : std::filesystem::path(arguments.out);
  // Before any rank starts: what is wrong with the config or the data is said once.
  RunData data = resolve_run(config, ranks, other_launcher(environment));

  RankedCommand command{ranks,
                        static_cast<int>(config.training.threads),
                        config.comm.timeout_s,
                        /*graceful_stop=*/true,
                        config.comm.backend,
                        config.training.device == "gpu"};
  command.reports_progress = true;
  command.peer_copies = config.comm.peer_copies;
  command.max_restarts = static_cast<int>(std::min<std::int64_t>(config.fault.max_restarts, 1 << 30));
  command.latest_checkpoint = [&] {
    const auto found = checkpoint::list_checkpoints(run_directory);
    return found.empty() ? std::int64_t{-1} : found.back().step;
  };
  const StopSignal stop;  // before the threads of the communicators
  return run_on_ranks(environment, command, command_line, [&](World& world) {
    require_agreement(world, config, data, run_directory.string(), arguments.resume);
    Trainer trainer(
        std::move(config), std::move(data), world, run_directory, resume, [&] { return stop.requested(); }, arguments.trace,
        ProgressReporter(environment));
    return static_cast<int>(trainer.run());
  });
}

}  // namespace baleen::cli
