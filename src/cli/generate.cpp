// baleen generate
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "cli/commands.h"
#include "train/generation.h"
#include "train/model_folder.h"

namespace baleen::cli {

int run(const GenerateArguments& arguments) {
  ModelFolder folder(arguments.folder);
  const Tokenizer& tokenizer = folder.required_tokenizer();
  std::vector<std::int32_t> prompt;
  // A document begins: its mark, where the model expects one before a text, and always where there is no text.
  if (tokenizer.marks_beginning() || arguments.prompt.empty()) prompt.push_back(tokenizer.end_of_document());
  tokenizer.encode(arguments.prompt, prompt);
  const std::int64_t positions = folder.config().max_position_embeddings;
  if (static_cast<std::int64_t>(prompt.size()) > positions)
    throw Error(ExitCode::bad_config, fmt::format("the prompt has {} tokens, the model takes {}", prompt.size(), positions), "--prompt", "use a shorter prompt");

  const std::int64_t capacity = std::min(positions, static_cast<std::int64_t>(prompt.size()) + arguments.tokens);
  Generator generator(folder.config(), capacity, arguments.threads);
  folder.load_weights(generator.units());
  const SamplingOptions options{arguments.tokens, arguments.temperature, arguments.seed, tokenizer.end_of_document()};
  std::fwrite(arguments.prompt.data(), 1, arguments.prompt.size(), stdout);
  std::int32_t previous = prompt.back();
  generator.generate(prompt, options, [&](std::int32_t id) {
    const std::string text = tokenizer.decode({&id, 1}, previous);
    previous = id;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace baleen::cli
