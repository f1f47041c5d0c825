// baleen generate
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "data/tokenizer/streaming_decoder.h"
#include "train/generation.h"
#include "train/model_folder.h"

namespace baleen::cli {

int run(const GenerateArguments& arguments) {
  ModelFolder folder(arguments.folder);
  const Tokenizer& tokenizer = folder.required_tokenizer();
  std::vector<std::int32_t> prompt;
  // A document begins: its mark, where the model expects one before a text, and always where there is no text.
  prompt = tokenizer.beginning();
  if (prompt.empty() && arguments.prompt.empty()) prompt.push_back(tokenizer.end_of_document());
  tokenizer.encode(arguments.prompt, prompt);
  const std::int64_t positions = folder.config().max_position_embeddings;
  if (static_cast<std::int64_t>(prompt.size()) > positions)
    throw Error(ExitCode::bad_config, fmt::format("the prompt has {} tokens, the model takes {}", prompt.size(), positions), "--prompt",
                "use a shorter prompt");

  const std::int64_t capacity = std::min(positions, static_cast<std::int64_t>(prompt.size()) + arguments.tokens);
  Generator generator(folder.config(), capacity, arguments.threads);
  folder.load_weights(generator.units());
  SamplingOptions options{arguments.tokens,
                          {arguments.temperature, arguments.top_k, arguments.top_p},
                          arguments.seed,
                          end_tokens(folder.config()),
                          tokenizer.vocabulary_size()};
  options.end_tokens.push_back(tokenizer.end_of_document());
  const auto show = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  show(arguments.prompt);
  StreamingDecoder decoder(tokenizer, prompt.back());
  generator.generate(prompt, options, [&](std::int32_t id) { show(decoder.push(id)); });
  show(decoder.finish());
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace baleen::cli
