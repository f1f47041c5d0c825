// The command line, through CLI11 (included here alone: it is large).
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>

#include "cli/commands.h"

namespace baleen::cli {
namespace {

constexpr int bad_command_line = 2;

void add_config(CLI::App& command, std::string& config, std::vector<std::string>& overrides) {
  command.add_option("CONFIG", config, "TOML configuration; examples/ has some")->required();
  command.add_option("--set", overrides, "Override a key: section.key=value (repeatable)")->allow_extra_args(false)->take_all();
}

void add_ranks(CLI::App& command, int& ranks, const std::string& otherwise) {
  command.add_option("--ranks", ranks, "Ranks to start on this machine (default: " + otherwise + ")")->check(CLI::Range(1, 1 << 16));
}

// CLI::Range takes what is not a number.
CLI::Validator between(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        double value = 0;
        const bool right = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return right ? std::string()
                     : "Value " + text + " not in range [" + CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most) + "]";
      },
      "FLOAT in [" + CLI::detail::to_string(least) + " - " + CLI::detail::to_string(most) + "]");
}

// It takes -1 for an unsigned number, and the greatest for one that is greater.
CLI::Validator whole() {
  return CLI::Validator(
      [](std::string& text) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool right = error == std::errc() && end == text.data() + text.size();
        return right ? std::string() : "Value " + text + " is not a whole number from 0 to 2^64 - 1";
      },
      "");
}

template <class Command>
void choose(CLI::App* app, Arguments& chosen, const Command& command) {
  app->callback([&chosen, &command] { chosen = command; });
}

}  // namespace

// A list of all commands and their options.
ParsedCommandLine parse_command_line(int argc, char** argv) {  // NOLINT(readability-function-size)
  CLI::App app{"baleen trains large language models on many GPUs, or on the cores of this machine", "baleen"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "baleen 0.1.0");
  app.footer(
      "Exit codes: 0 done, 1 a check failed, 2 bad command or config, 3 bad or missing data or checkpoint, 4 a rank or link failed,\n"
      "5 the numbers went bad, 6 out of memory, 75 stopped by a signal with a checkpoint saved (run again to go on),\n"
      "128 + n killed by signal n without saving.");
  ParsedCommandLine parsed;
  Arguments& chosen = parsed.arguments;

  TrainArguments train;
  CLI::App* train_app = app.add_subcommand("train", "Train a model");
  add_config(*train_app, train.config, train.overrides);
  add_ranks(*train_app, train.ranks, "the product of the degrees");
  train_app->add_option("--trace", train.trace,
                        "Write the second step of this process as a Chrome/Perfetto trace, a row a rank and stream");
  train_app->add_option("--resume", train.resume, "auto (latest checkpoint), never (start anew: deletes the run's checkpoints), or a step")
      ->capture_default_str();
  train_app->add_option("--out", train.out, "Run directory (default: runs/NAME-OF-CONFIG)");
  choose(train_app, chosen, train);

  VerifyArguments verify;
  CLI::App* verify_app = app.add_subcommand("verify", "Prove that layouts compute what one rank computes");
  add_config(*verify_app, verify.config, verify.overrides);
  add_ranks(*verify_app, verify.ranks, "those of the largest layout");
  auto* layouts = verify_app->add_option(
      "--layouts", verify.layouts,
      "Layouts such as \"dp=2,zero=3;tp=2;pp=2,schedule=zero-bubble\"; keys: dp replicate zero tp cp pp schedule virtual");
  verify_app->add_flag("--all", verify.all, "Every layout of --ranks ranks")->excludes(layouts);
  verify_app->add_flag("--json", verify.json, "One JSON object on standard output");
  choose(verify_app, chosen, verify);

  CLI::App* bench_app = app.add_subcommand("bench", "Measure");
  bench_app->require_subcommand(1);
  BenchTrainArguments bench;
  CLI::App* bench_train_app = bench_app->add_subcommand(
      "train", "Training steps on random weights and tokens; needs no data, but the vocabulary (model.vocab_size)");
  add_config(*bench_train_app, bench.config, bench.overrides);
  add_ranks(*bench_train_app, bench.ranks, "the product of the degrees");
  bench_train_app->add_option("--steps", bench.steps, "Timed steps, after one that is not")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  bench_train_app->add_flag("--json", bench.json, "One JSON object on standard output");
  choose(bench_train_app, chosen, bench);

  BenchCommArguments bench_comm;
  CLI::App* bench_comm_app = bench_app->add_subcommand("comm", "A collective over a range of sizes, as nccl-tests measures it");
  add_ranks(*bench_comm_app, bench_comm.ranks, "1");
  bench_comm_app->add_option("--op", bench_comm.op, "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or send_recv")
      ->required();
  bench_comm_app
      ->add_option("--backend", bench_comm.backend,
                   "shm, the built-in one; mpi (under mpirun); tcp (under torchrun); nccl (one GPU a rank)")
      ->capture_default_str();
  bench_comm_app->add_flag("--in-place", bench_comm.in_place, "Results take the place of what is sent");
  bench_comm_app->add_flag("--no-peer-copies", bench_comm.no_peer_copies, "GPUs: everything by the library, nothing by copy engines");
  bench_comm_app->add_option("--sizes", bench_comm.sizes, "FIRST:LAST by doubling, or one size; bytes, with K, M or G")
      ->capture_default_str();
  bench_comm_app->add_flag("--json", bench_comm.json, "One JSON object on standard output");
  choose(bench_comm_app, chosen, bench_comm);

  TokenizeArguments tokenize;
  CLI::App* tokenize_app = app.add_subcommand("tokenize", "Turn text or .jsonl, or either as .gz or .zst, into token files");
  tokenize_app->add_option("INPUT", tokenize.inputs, "Text files, or JSON lines with a \"text\" field; either as .gz or .zst")->required();
  tokenize_app
      ->add_option("--tokenizer", tokenize.tokenizer,
                   "bytes, or a tokenizer.json, tokenizer.model, file of tiktoken ranks, tokenizer.bin of llama2.c, a FILE.json, or a "
                   "model's folder")
      ->required();
  tokenize_app->add_option("--out", tokenize.out, "FILE.bin; validation goes to FILE.val.bin, the description to FILE.json")->required();
  tokenize_app->add_option("--val-fraction", tokenize.val_fraction, "Share of the tokens held out from the end")->capture_default_str();
  tokenize_app->add_option("--threads", tokenize.threads, "0: one a core")->check(CLI::Range(0, 4096))->capture_default_str();
  choose(tokenize_app, chosen, tokenize);

  GenerateArguments generate;
  CLI::App* generate_app = app.add_subcommand("generate", "Continue a text");
  generate_app->add_option("DIR", generate.folder, "A run, a checkpoint or a model's folder")->required();
  generate_app->add_option("--prompt", generate.prompt, "Text to continue")->required();
  generate_app->add_option("--tokens", generate.tokens, "Tokens to generate")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->capture_default_str();
  generate_app->add_option("--temperature", generate.temperature, "0: always the most likely token")
      ->check(between(0.0, 1e6))
      ->capture_default_str();
  generate_app->add_option("--top-k", generate.top_k, "Draw from this many most likely tokens; 0: all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->capture_default_str();
  generate_app->add_option("--top-p", generate.top_p, "Draw from the fewest most likely tokens that together have this probability")
      ->check(between(1e-6, 1.0))
      ->capture_default_str();
  generate_app->add_option("--seed", generate.seed, "Of the sampling")->check(whole())->capture_default_str();
  generate_app->add_option("--threads", generate.threads, "0: one a core")->check(CLI::Range(0, 4096));
  choose(generate_app, chosen, generate);

  ImportArguments import_arguments;
  CLI::App* import_app = app.add_subcommand(
      "import", "Take a model over: a Hugging Face folder in baleen's form of it, a model of llama2.c as a run at step 0");
  import_app->add_option("SRC", import_arguments.source, "A Hugging Face folder, or a model.bin of llama2.c")->required();
  import_app->add_option("--out", import_arguments.out, "The folder to make: the model's, or for llama2.c a run directory")->required();
  import_app->add_option("--tokenizer", import_arguments.tokenizer, "In place of the folder's own: what `tokenize` takes");
  choose(import_app, chosen, import_arguments);

  ExportArguments export_arguments;
  CLI::App* export_app = app.add_subcommand("export", "Write a model as a Hugging Face folder, which transformers reads");
  export_app->add_option("DIR", export_arguments.folder, "A run, a checkpoint or a model's folder")->required();
  export_app->add_option("--out", export_arguments.out, "The folder to make")->required();
  export_app
      ->add_option("--dtype", export_arguments.dtype,
                   "Of the weights: auto (as in the model that it began with, otherwise fp32), bf16 or fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}))
      ->capture_default_str();
  choose(export_app, chosen, export_arguments);

  EvalArguments eval;
  CLI::App* eval_app =
      app.add_subcommand("eval", "Loss, perplexity and bits per byte on token files, or accuracy on a multiple-choice file of llm.c");
  eval_app->add_option("DIR", eval.folder, "A run, a checkpoint or a model's folder")->required();
  eval_app->add_option("--data", eval.data, "Token file or pattern, or a multiple-choice file such as HellaSwag's")->required();
  add_ranks(*eval_app, eval.ranks, "those of --layout, or 1");
  eval_app->add_option("--layout", eval.layout, "How the ranks divide the model, such as \"tp=2\" or \"dp=2,zero=3\" (default: dp)");
  eval_app->add_option("--threads", eval.threads, "0: one a core")->check(CLI::Range(0, 4096));
  eval_app->add_flag("--json", eval.json, "One JSON object on standard output");
  choose(eval_app, chosen, eval);

  InspectArguments inspect;
  CLI::App* inspect_app = app.add_subcommand("inspect", "What a safetensors, token or checkpoint file holds");
  inspect_app->add_option("FILE", inspect.file, "The file, or a checkpoint's folder")->required();
  inspect_app->add_flag("--json", inspect.json, "One JSON object on standard output");
  choose(inspect_app, chosen, inspect);

  CheckpointArguments list, check, reshard;
  list.action = CheckpointArguments::Action::list;
  check.action = CheckpointArguments::Action::verify;
  reshard.action = CheckpointArguments::Action::reshard;
  CLI::App* checkpoint_app = app.add_subcommand("checkpoint", "List, verify or reshard a run's checkpoints");
  checkpoint_app->require_subcommand(1);
  CLI::App* list_app = checkpoint_app->add_subcommand("list", "What is there");
  list_app->add_option("RUN", list.run, "Run directory")->required();
  choose(list_app, chosen, list);
  CLI::App* check_app = checkpoint_app->add_subcommand("verify", "Whether every byte is right");
  check_app->add_option("RUN", check.run, "Run directory")->required();
  choose(check_app, chosen, check);
  CLI::App* reshard_app = checkpoint_app->add_subcommand(
      "reshard", "Rewrite a checkpoint in the shards of another number of ranks (training does so on the fly)");
  reshard_app->add_option("RUN", reshard.run, "Run directory")->required();
  reshard_app->add_option("--ranks", reshard.ranks, "Ranks that states are sharded over")->required()->check(CLI::Range(1, 1 << 16));
  reshard_app->add_option("--step", reshard.step, "The checkpoint's step (default: the latest)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  choose(reshard_app, chosen, reshard);

  DoctorArguments doctor;
  CLI::App* doctor_app = app.add_subcommand("doctor", "What this machine and this build have");
  doctor_app->add_option("--layout", doctor.layouts, "Which rank has which place in a layout, such as \"pp=2,tp=4\"");
  doctor_app->add_flag("--json", doctor.json, "One JSON object on standard output");
  choose(doctor_app, chosen, doctor);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parsed.exit_code = app.exit(error) == 0 ? 0 : bad_command_line;
  }
  return parsed;
}

}  // namespace baleen::cli
