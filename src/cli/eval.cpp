// baleen eval
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "comm/connect.h"
#include "data/sidecar.h"
#include "train/evaluation.h"
#include "train/model_folder.h"

namespace baleen::cli {
namespace {

// Bytes of text a token of the file stands for; NaN where neither the sidecar nor the tokenizer says.
double bytes_per_token(const std::vector<TokenFile>& files) {
  const auto description = describe_token_files(files);
  if (!description || !description->counts || description->counts->tokens == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(description->counts->bytes) / static_cast<double>(description->counts->tokens);
}

}  // namespace

int run(const EvalArguments& arguments) {
  ModelFolder folder(arguments.folder);
  const std::vector<std::filesystem::path> paths = find_token_files(arguments.data);
  std::vector<TokenFile> files;
  std::uint64_t longest = 0;
  for (const auto& path : paths) longest = std::max(longest, files.emplace_back(path).size());

  // The window is the model's, up to 1,024 tokens, and shorter where the data are.
  const std::int64_t length = std::clamp<std::int64_t>(static_cast<std::int64_t>(longest) - 1, 1, std::min<std::int64_t>(1024, folder.config().max_position_embeddings));
  const TokenDataset data(paths, {length, 1, folder.config().vocab_size, DataOrder::sequential, 0});
  const auto world = connect_world(RankEnvironment{}, std::chrono::seconds(60));
  const auto axis = world->create_communicator({0}, "dp");
  EngineOptions options{folder.config(), std::max<std::int64_t>(1, 2048 / length), length, arguments.threads, StorageKind::inference, ReduceOp::sum};
  Engine engine(options, *axis);
  folder.load_weights(engine.units());
  const EvaluationResult result = evaluate(engine, data, static_cast<std::int64_t>(data.samples()));
  const double bits = result.loss / std::numbers::ln2 / bytes_per_token(files);
  if (arguments.json) {
    fmt::print("{}\n", dump_json(nlohmann::json{{"loss", result.loss}, {"perplexity", std::exp(result.loss)}, {"bits_per_byte", bits}, {"tokens", result.tokens}}));
    return 0;
  }
  fmt::print("loss {:.6f}  perplexity {:.4f}  ", result.loss, std::exp(result.loss));
  if (std::isfinite(bits)) fmt::print("{:.4f} bits/byte  ", bits);
  fmt::print("({} tokens, windows of {})\n", result.tokens, length);
  return 0;
}

}  // namespace baleen::cli
