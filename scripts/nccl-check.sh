#!/usr/bin/env bash
# Tries NCCL on a machine with NVIDIA GPUs: the collective suite, training with one rank a GPU (save, resume, the same losses as through the
# host), and nccl-tests' table over all GPUs.
#
#   scripts/nccl-check.sh [FOLDER [one]]     FOLDER has the programs baleen and test_gpu; build/release by default
#
# Takes about two minutes; with `one`, what one GPU can show of a single rank and no more, half a minute. The last line is the verdict.
set -euo pipefail
folder=${1:-$(cd "$(dirname "$0")/.." && pwd)/build/release}
baleen=$folder/baleen
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$baleen" doctor | grep -E '^(GPU|NCCL|MPI|backends)' || true
gpus=$("$baleen" doctor | grep -cE '^GPU +[0-9]|^GPU [0-9]' || true)
[ "$gpus" -gt 0 ] || { echo "nccl-check: no GPU here"; exit 3; }

echo "== collective suite"
"$folder/test_gpu" --gtest_filter='*Nccl*' --gtest_brief=1

for ((i = 0; i < 4000; ++i)); do echo "Line $((i * 7919 % 1000)) of a text that is easy to learn."; done >"$work/corpus.txt"
"$baleen" tokenize --tokenizer bytes "$work/corpus.txt" --out "$work/corpus.bin" >/dev/null 2>&1
cat >"$work/config.toml" <<TOML
[model]
hidden_size = 256
intermediate_size = 512
num_hidden_layers = 4
num_attention_heads = 4
[data]
train = "corpus.bin"
[optimizer]
lr = 1e-3
[training]
steps = 20
sequence_length = 128
micro_batch_size = 4
device = "gpu"
dtype = "bf16"
deterministic = true
[checkpoint]
every = 10
TOML
losses() { grep -o '"loss":[^,]*' "$work/$1/metrics.jsonl" | cut -d: -f2; }
run() { # NAME RANKS ARGUMENT…
  local name=$1 ranks=$2
  shift 2
  "$baleen" train "$work/config.toml" --out "$work/$name" --ranks "$ranks" "$@" >"$work/$name.log" 2>&1 || { tail -n 20 "$work/$name.log"; echo "nccl-check: FAILED, training $name"; exit 1; }
}
echo "== one rank: trained through NCCL, saved at 3 of 6 steps and resumed, its collectives in the step's graph"
one() { # NAME REDUCTION ARGUMENT…
  local name=$1 reduction=$2
  shift 2
  run "$name" 1 --set comm.backend=nccl --set comm.gradient_reduction="$reduction" --set training.steps=6 --set checkpoint.every=3 "$@"
}
nodes() { grep -o 'as a graph of [0-9]* nodes' "$work/$1/log.txt" | head -n 1 | grep -o '[0-9]*'; }
one one-avg avg
one one-sum sum
one one-resumed avg --set training.steps=3
one one-resumed avg
run one-host 1 --set comm.backend=shm --set training.steps=6 --set checkpoint.every=3
grep -h "buffers were registered" "$work/one-avg/log.txt" | sed 's/^/   /'
echo "   nodes of the graph: average $(nodes one-avg) (a kernel a unit), sum $(nodes one-sum) (nothing for one rank), without NCCL $(nodes one-host)"
grep -q "communicator 'dp': [1-9][0-9]* buffers were registered, [1-9][0-9]* operations are part of graphs" "$work/one-avg/log.txt" ||
  { echo "nccl-check: FAILED, NCCL's operations are not in the graph of one rank"; exit 1; }
[ "$(nodes one-sum)" = "$(nodes one-host)" ] && [ "$(nodes one-avg)" -eq $(($(nodes one-sum) + 6)) ] ||
  { echo "nccl-check: FAILED, the graph of one rank has not a kernel of NCCL for each of 6 units"; exit 1; }
paste <(losses one-avg) <(losses one-resumed) <(losses one-sum) <(losses one-host) | awk '
  { if ($1 != $2 || $1 != $3 || $1 != $4) apart = 1; ++n }
  END { printf "   %d steps, resumed, by average, by sum and without NCCL: %s\n", n, apart ? "DIFFERENT" : "bit-identical"; exit apart || n != 6 }' ||
  { echo "nccl-check: FAILED, losses of one rank"; exit 1; }
[ "${2:-}" != one ] || { echo "nccl-check: ok"; exit 0; }

for ((ranks = 1; ranks <= gpus && ranks <= 4; ranks *= 2)); do
  for zero in 0 3; do
    echo "== training, $ranks rank(s), ZeRO-$zero: through NCCL, stopped at 10 and resumed, and through the host"
    run "nccl-$ranks-$zero" $ranks --set comm.backend=nccl --set parallelism.zero=$zero
    run "resumed-$ranks-$zero" $ranks --set comm.backend=nccl --set parallelism.zero=$zero --set training.steps=10
    run "resumed-$ranks-$zero" $ranks --set comm.backend=nccl --set parallelism.zero=$zero
    run "host-$ranks-$zero" $ranks --set comm.backend=shm --set parallelism.zero=$zero
    paste <(losses "nccl-$ranks-$zero") <(losses "resumed-$ranks-$zero") <(losses "host-$ranks-$zero") | awk '
      { d = $1 - $2; if (d != 0) apart = 1; d = $1 - $3; if (d < 0) d = -d; if (d > worst) worst = d; ++n }
      END { printf "   %d steps, resume %s, largest difference to the host %.2e\n", n, apart ? "DIFFERS" : "bit-identical", worst; exit apart || n != 20 || worst > 1e-2 }' ||
      { echo "nccl-check: FAILED, losses of $ranks ranks"; exit 1; }
  done
done

for op in all_reduce all_gather reduce_scatter broadcast all_to_all send_recv; do
  [ "$gpus" -gt 1 ] || [ $op != send_recv ] || continue
  echo "== bench comm --backend nccl --ranks $gpus --op $op"
  "$baleen" bench comm --backend nccl --ranks "$gpus" --op $op --sizes 1M:256M
done
echo "nccl-check: ok"
