// baleen export
#include "cli/commands.h"
#include "train/export_model.h"

namespace baleen::cli {

int run(const ExportArguments& arguments) {
  export_model(arguments.folder, arguments.out, arguments.dtype);
  return 0;
}

}  // namespace baleen::cli
