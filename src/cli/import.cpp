// baleen import
#include <filesystem>

#include "base/error.h"
#include "cli/commands.h"
#include "train/llama2c_import.h"

namespace baleen::cli {

int run(const ImportArguments& arguments) {
  std::error_code ignored;
  if (std::filesystem::is_directory(arguments.source, ignored))
    throw Error(ExitCode::bad_config, "a folder: Hugging Face folders are not imported by this build", arguments.source, "give a model.bin of llama2.c");
  import_llama2c(arguments.source, arguments.tokenizer, arguments.out);
  return 0;
}

}  // namespace baleen::cli
