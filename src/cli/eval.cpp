// baleen eval
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "data/sidecar.h"
#include "train/evaluation.h"
#include "train/model_folder.h"
#include "train/non_finite.h"
#include "train/parallel_axes.h"

namespace baleen::cli {
namespace {

// Bytes of text a token of the file stands for; NaN where neither the sidecar nor the tokenizer says.
double bytes_per_token(const std::vector<TokenFile>& files) {
  const auto description = describe_token_files(files);
  if (!description || !description->counts || description->counts->tokens == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(description->counts->bytes) / static_cast<double>(description->counts->tokens);
}

// What is to be evaluated, found and checked before any rank starts.
struct Work {
  std::vector<std::filesystem::path> paths;
  std::vector<TokenFile> files;         // of tokens,
  std::vector<ChoiceExample> examples;  // or of choices
  std::int64_t length = 0, micro_batch = 1;
};

Work find_work(const EvalArguments& arguments, const ModelConfig& model, const ParallelLayout& layout) {
  Work work;
  work.paths = find_token_files(arguments.data);
  if (work.paths.size() == 1 && is_multiple_choice_file(work.paths[0])) {
    work.examples = read_multiple_choice(work.paths[0], model.vocab_size);
    work.length = longest_choice(work.examples);
    const std::int64_t multiple = 2 * layout.cp * layout.tp;  // what is behind a choice is ignored
    if (work.length <= model.max_position_embeddings)
      work.length = std::min((work.length + multiple - 1) / multiple * multiple, model.max_position_embeddings);
    if (work.length > model.max_position_embeddings)
      throw Error(ExitCode::bad_data,
                  fmt::format("an example has {} tokens, and the model takes {}", work.length + 1, model.max_position_embeddings),
                  arguments.data, "use a model with more positions");
    return work;
  }
  std::uint64_t longest = 0;
  for (const auto& path : work.paths) longest = std::max(longest, work.files.emplace_back(path).size());
  // The window is the model's, up to 1,024 tokens, and shorter where the data are.
  work.length =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(longest) - 1, 1, std::min<std::int64_t>(1024, model.max_position_embeddings));
  work.micro_batch = std::max<std::int64_t>(1, 2048 / work.length);
  return work;
}

// Each rank looks for the run's newest checkpoint, and a run that goes on may save another one in between.
void require_same_checkpoint(ModelFolder& folder, Communicator& everyone) {
  const std::int64_t step = folder.checkpoint() != nullptr ? folder.checkpoint()->step() : -1;
  std::int64_t first = step;
  everyone.broadcast(&first, sizeof first, DType::u8, 0).wait();
  if (first != step)
    throw Error(ExitCode::bad_data, fmt::format("this rank found the checkpoint of step {}, and rank 0 that of step {}", step, first),
                folder.directory().string(), "name one of the run's checkpoints: baleen eval RUN/checkpoints/step_N");
}

ParallelLayout choose_layout(const EvalArguments& arguments, int ranks, const std::string& launcher) {
  if (arguments.layout.empty()) return {.dp = ranks};
  const std::vector<ParallelLayout> layouts = parse_layouts(arguments.layout);
  if (layouts.size() != 1) throw Error(ExitCode::bad_config, "eval takes one layout", "--layout", "for example --layout \"dp=2,zero=3\"");
  if (layouts[0].ranks() != ranks)
    throw Error(
        ExitCode::bad_config, fmt::format("layout {} needs {} ranks, and there are {}", layouts[0].text(), layouts[0].ranks(), ranks),
        "--layout",
        launcher.empty() ? "leave out --ranks, or give as many" : fmt::format("start {} ranks with {}", layouts[0].ranks(), launcher));
  return layouts[0];
}

void print_choices(const ChoiceResult& result, bool as_json) {
  const auto share = [&](std::int64_t right) { return static_cast<double>(right) / static_cast<double>(result.examples); };
  if (as_json)
    fmt::print("{}\n", dump_json(nlohmann::json{{"accuracy", share(result.right)},
                                                {"accuracy_unnormalized", share(result.right_unnormalized)},
                                                {"examples", result.examples}}));
  else
    fmt::print("accuracy {:.4f} by the mean loss of a choice's tokens, {:.4f} by their sum  ({} examples)\n", share(result.right),
               share(result.right_unnormalized), result.examples);
}

void print_loss(const EvaluationResult& result, const Work& work, bool as_json) {
  const double bits = result.loss / std::numbers::ln2 / bytes_per_token(work.files);
  if (as_json) {
    fmt::print("{}\n",
               dump_json(nlohmann::json{
                   {"loss", result.loss}, {"perplexity", std::exp(result.loss)}, {"bits_per_byte", bits}, {"tokens", result.tokens}}));
    return;
  }
  fmt::print("loss {:.6f}  perplexity {:.4f}  ", result.loss, std::exp(result.loss));
  if (std::isfinite(bits)) fmt::print("{:.4f} bits/byte  ", bits);
  fmt::print("({} tokens, windows of {})\n", result.tokens, work.length);
}

}  // namespace

int run(const EvalArguments& arguments, const std::vector<std::string>& command_line) {
  const RankEnvironment environment = detect_ranks();
  const std::int64_t named = arguments.layout.empty() ? 1 : parse_layouts(arguments.layout).front().ranks();
  const int ranks = rank_count(environment, arguments.ranks, static_cast<int>(named));
  const ParallelLayout layout = choose_layout(arguments, ranks, other_launcher(environment));
  ModelFolder folder(arguments.folder);
  const Work work = find_work(arguments, folder.config(), layout);
  if (const std::string reason = layout_refusal(layout, folder.config(), work.length); !reason.empty())
    throw Error(ExitCode::bad_config, fmt::format("layout {}: {}", layout.text(), reason), "--layout",
                fmt::format("the nearest layout that runs is dp={}", ranks));
  RankedCommand command{ranks, arguments.threads};
  command.backend_key = "";
  return run_on_ranks(environment, command, command_line, [&](World& world) {
    const ParallelAxes axes(world, layout, folder.config());
    require_same_checkpoint(folder, axes.everyone());
    EngineOptions options{folder.config(), work.micro_batch, work.length, 0, StorageKind::inference, ReduceOp::sum};
    options.zero = static_cast<int>(layout.zero);
    Engine engine(options, axes.groups());
    folder.load_weights(engine.units());
    if (!work.examples.empty()) {
      const ChoiceResult result = evaluate_choices(engine, work.examples, work.length);
      if (world.rank() == 0) print_choices(result, arguments.json);
      return 0;
    }
    const TokenDataset data(work.paths, {work.length, 1, folder.config().vocab_size, DataOrder::sequential, 0});
    const EvaluationResult result = evaluate(engine, data, static_cast<std::int64_t>(data.samples()));
    if (world.rank() == 0) print_loss(result, work, arguments.json);
    check_finite(engine, result.loss, "loss");
    return 0;
  });
}

}  // namespace baleen::cli
