// The commands: what each takes and the function that runs it. Parsing is in arguments.cpp, each function in a file of its own.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace baleen::cli {

struct TrainArguments {
  std::string config, out, resume = "auto", trace;
  std::vector<std::string> overrides;
  int ranks = 0;  // 0: not given
};
struct VerifyArguments {
  std::string config, layouts;
  std::vector<std::string> overrides;
  bool all = false, json = false;
  int ranks = 0;
};
struct BenchTrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  int ranks = 0;
  std::int64_t steps = 10;
  bool json = false;
};
struct BenchCommArguments {
  std::string op, backend = "shm", sizes = "4K:256M";
  int ranks = 0;
  bool in_place = false, no_peer_copies = false, json = false;
};
struct TokenizeArguments {
  std::string tokenizer, out;
  std::vector<std::string> inputs;
  double val_fraction = 0;
  int threads = 0;
};
struct GenerateArguments {
  std::string folder, prompt;
  std::int64_t tokens = 200;
  double temperature = 1.0, top_p = 1.0;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1234;
  int threads = 0;
};
struct ImportArguments {
  std::string source, tokenizer, out;
};
struct ExportArguments {
  std::string folder, out, dtype = "auto";
};
struct EvalArguments {
  std::string folder, data, layout;
  int ranks = 0, threads = 0;
  bool json = false;
};
struct InspectArguments {
  std::string file;
  bool json = false;
};
struct CheckpointArguments {
  enum class Action { list, verify, reshard };
  Action action = Action::list;
  std::string run;
  int ranks = 0;           // reshard: for how many
  std::int64_t step = -1;  // reshard: of which checkpoint; -1: the latest
};
struct DoctorArguments {
  std::string layouts;
  bool json = false;
};

using Arguments = std::variant<std::monostate, TrainArguments, VerifyArguments, BenchTrainArguments, BenchCommArguments, TokenizeArguments,
                               GenerateArguments, ImportArguments, ExportArguments, EvalArguments, InspectArguments, CheckpointArguments,
                               DoctorArguments>;

struct ParsedCommandLine {
  Arguments arguments;
  int exit_code = -1;  // 0 or more: done already (help, version, a bad command line)
};
// Prints help to standard output, complaints to standard error.
ParsedCommandLine parse_command_line(int argc, char** argv);

// Each returns the process's exit code or throws Error. `command_line` is what ranks are started with.
int run(const TrainArguments& arguments, const std::vector<std::string>& command_line);
int run(const VerifyArguments& arguments, const std::vector<std::string>& command_line);
int run(const BenchTrainArguments& arguments, const std::vector<std::string>& command_line);
int run(const BenchCommArguments& arguments, const std::vector<std::string>& command_line);
int run(const TokenizeArguments& arguments);
int run(const GenerateArguments& arguments);
int run(const ImportArguments& arguments);
int run(const ExportArguments& arguments);
int run(const EvalArguments& arguments, const std::vector<std::string>& command_line);
int run(const InspectArguments& arguments);
int run(const CheckpointArguments& arguments);
int run(const DoctorArguments& arguments);

}  // namespace baleen::cli
