// baleen import
#include <filesystem>

#include "cli/commands.h"
#include "train/export_model.h"
#include "train/llama2c_import.h"

namespace baleen::cli {

int run(const ImportArguments& arguments) {
  std::error_code ignored;
  if (std::filesystem::is_directory(arguments.source, ignored))
    import_model(arguments.source, arguments.tokenizer, arguments.out);
  else
    import_llama2c(arguments.source, arguments.tokenizer, arguments.out);
  return 0;
}

}  // namespace baleen::cli
