#!/usr/bin/env bash
# Several GPUs of one host: correctness, scaling, rivals, bandwidth and faults, in stages that fit into calls of ten minutes.
#
#   bench/compare/multi_gpu.sh STAGE…
#
#   suite                   the collectives' tests over NCCL, one rank a GPU
#   verify[:fp32,bf16]      `baleen verify --all` on all GPUs
#   alone:MODEL             tokens/s of one GPU, on each of them at once, at as many tokens a rank as with all of them
#   scaling:MODEL[:1,2,3]   tokens/s of ZeRO-1, 2 and 3 beside what `alone` measured
#   llmq:MODEL[:1,2]        the same step by LLMQ, by ZeRO level
#   fsdp2:MODEL[:2,3]       the same by PyTorch's FSDP2; `fsdp2-compile:MODEL` before it fills the compiler's cache
#   hybrid:MODEL[:2,4]      tensor parallelism of 2 and 4 beside ZeRO-1 of as many GPUs (micro-batches TP times as large)
#   pipeline:MODEL[:2,4]    two and four stages by every schedule: tokens/s, the bubble, and the bubble simulated with the passes' times
#   comm[:OP,OP]            `bench comm` beside nccl-tests
#   kill                    a rank killed in the middle of training: how long until all are gone, then the restart
#   table                   everything measured so far
#
# MODEL is a preset, such as qwen2.5-1.5b. Variables: BALEEN, TEST_GPU: the programs (build/release/…); NCCL_TESTS: the folder of all_reduce_perf …;
# LLMQ: its `train`; PEERS: the folder of torch_baseline.py (stages whose variable is unset say so and go on); RESULTS: where rows are kept (a new
# folder), from call to call; GPUS: how many ranks; BACKEND: nccl, or shm to try the script where ranks share a GPU or have none; MICRO, TOKENS (a
# step), SEQ, STEPS (timed); SIZES of comm; SETTINGS (further --set of baleen, separated by blanks); LIMIT: seconds for each program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$here/../../build/release
BALEEN=${BALEEN:-$build/baleen} TEST_GPU=${TEST_GPU:-$build/test_gpu}
BACKEND=${BACKEND:-nccl} TOKENS=${TOKENS:-524288} MICRO=${MICRO:-16} STEPS=${STEPS:-2} SEQ=${SEQ:-1024} LIMIT=${LIMIT:-150}
RESULTS=${RESULTS:-$(mktemp -d)}
GPUS=${GPUS:-$("$BALEEN" doctor --json | python3 -c 'import json, sys; print(max(1, len(json.load(sys.stdin)["gpus"])))')}
[ $# -gt 0 ] || { sed -n '2,27p' "$0" >&2; exit 2; }
mkdir -p "$RESULTS"
rows=$RESULTS/rows.tsv work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# STAGE WHAT RANKS VALUE UNIT NOTE
row() {
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >>"$rows"
  printf '%-22s %-38s %2s ranks %14s %-12s %s\n' "$@"
}
settings() { for setting in ${SETTINGS:-}; do printf ' --set %s' "$setting"; done; }
config() { # MODEL
  cat >"$work/config.toml" <<TOML
[model]
preset = "$1"
[training]
sequence_length = $SEQ
micro_batch_size = $MICRO
global_batch_size = $((TOKENS / SEQ))
dtype = "bf16"
[comm]
backend = "$BACKEND"
TOML
}
field() { python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
step = sorted(r["step_ms"])[len(r["step_ms"]) // 2]
r["words"] = f"""a step {step:.0f} ms, exposed {100 * r["comm_exposed_ms"] / step:.2f} %, host {r["host_ms"]:.0f} ms, {r["memory_peak_bytes"] / 2**30:.1f} GiB"""
p = r.get("pipeline")
if p:
    r["words"] += f""", bubble {p["bubble_fraction"]:.4f}, simulated {p["simulated_bubble_fraction"]:.4f} (measured / simulated {p["bubble_fraction"] / p["simulated_bubble_fraction"]:.3f}), message {p["message_ms"]:.2f} ms"""
r["tokens_per_s"] = round(r["tokens_per_s"])
print(r[sys.argv[2]])' "$1" "$2"; }
# NAME RANKS STAGE --set…: one training benchmark, a row; its JSON stays in $RESULTS.
train() {
  local name=$1 ranks=$2 stage=$3
  shift 3
  local json=$RESULTS/${stage//:/-}-$name.json code=0
  # shellcheck disable=SC2046
  timeout -k 5 "$LIMIT" "$BALEEN" bench train "$work/config.toml" --ranks "$ranks" --steps "$STEPS" --json "$@" $(settings) >"$json" 2>"$json.log" || code=$?
  if [ $code -ne 0 ]; then
    local why
    why="exit $code: $({ grep -v -E '^$|^I ' "$json.log" || true; } | head -n 1 | cut -c1-250)"
    [ $code -ne 124 ] && [ $code -ne 137 ] || why="no end within $LIMIT s (LIMIT)"
    row "$stage" "$name" "$ranks" "failed" "-" "$why"
    return 0
  fi
  local speed
  speed=$(field "$json" tokens_per_s)
  row "$stage" "$name" "$ranks" "$speed" tokens/s "$(field "$json" words)${base:+, $(awk -v v="$speed" -v n="$ranks" -v a="$base" 'BEGIN { printf "%.3f", v / n / a }') of $base_name each}"
}
base="" base_name=""  # tokens/s of a GPU that rows are compared with

suite() {
  if timeout -k 5 "$LIMIT" "$TEST_GPU" --gtest_filter='*Nccl*' --gtest_brief=1 >"$RESULTS/suite.log" 2>&1; then
    row suite "collectives over NCCL" "$GPUS" passed "-" "$(grep -oE '[0-9]+ tests? ran|\[  PASSED  \] [0-9]+' "$RESULTS/suite.log" | tail -n 1)"
  else
    row suite "collectives over NCCL" "$GPUS" FAILED "-" "$(grep -m3 -E 'FAILED|Failure' "$RESULTS/suite.log" | tr '\n' ' ')"
  fi
}

verify() {
  local dtype words
  for dtype in ${1//,/ }; do
    cat >"$work/verify.toml" <<TOML
[model]
hidden_size = 256
intermediate_size = 512
num_hidden_layers = 8
num_attention_heads = 8
num_key_value_heads = 4
vocab_size = 1000
[training]
sequence_length = 128
micro_batch_size = 1
dtype = "$dtype"
[comm]
backend = "$BACKEND"
TOML
    # shellcheck disable=SC2046
    timeout -k 5 "$LIMIT" "$BALEEN" verify "$work/verify.toml" --all --ranks "$GPUS" --json >"$RESULTS/verify-$dtype.json" 2>"$RESULTS/verify-$dtype.log" || true
    words=$(python3 -c '
import json, sys
r = json.load(open(sys.argv[1]))
bad = [l["layout"] for l in r["layouts"] if not l["ok"]]
print(f"""{len(r["layouts"])} layouts, {len(bad)} outside{": " + " ".join(bad) if bad else ""}, worst parameter {max(l["worst_error"] for l in r["layouts"]):.2e}, {len(r["refused"])} refused""")' \
      "$RESULTS/verify-$dtype.json" 2>/dev/null) || words="no result: $(tail -n 1 "$RESULTS/verify-$dtype.log")"
    row verify "verify --all, $dtype" "$GPUS" "$(grep -q ', 0 outside' <<<"$words" && echo passed || echo FAILED)" "-" "$words"
  done
}

alone() {
  local tokens=$TOKENS pids=() gpu
  TOKENS=$((tokens / GPUS)) config "$1"
  base=""
  for ((gpu = 0; gpu < GPUS; ++gpu)); do
    CUDA_VISIBLE_DEVICES=$gpu train "GPU$gpu" 1 "alone:$1" &
    pids+=($!)
  done
  wait "${pids[@]}"
}

# Compares with the mean of the GPUs alone, where they were measured.
scaling() {
  config "$1"
  base=$({ cat "$RESULTS/alone-$1"-GPU*.json 2>/dev/null || true; } | python3 -c '
import json, sys
speeds = [json.loads(line)["tokens_per_s"] for line in sys.stdin if line.strip()]
if speeds: print(sum(speeds) / len(speeds))') base_name="one GPU"
  local zero
  for zero in ${2//,/ }; do train "zero=$zero" "$GPUS" "scaling:$1" --set parallelism.zero="$zero"; done
}

llmq() {
  [ -n "${LLMQ:-}" ] || { echo "llmq: LLMQ is unset"; return 0; }
  local name level speed
  name=$(sed 's/qwen/Qwen/; s/b$/B/' <<<"$1")
  python3 - "$work/tokens.bin" <<'PYTHON'
import array, random, struct, sys
random.seed(1)
tokens = array.array("i", (random.randrange(151936) for _ in range(1 << 21)))
with open(sys.argv[1], "wb") as out:
    header = bytearray(1024)
    header[0:8] = b"BIN.TOK\n"
    struct.pack_into("<6i", header, 8, 2, 4, len(tokens), 151936, 0, 0)
    out.write(header + tokens.tobytes())
PYTHON
  for level in ${2//,/ }; do
    (cd "$work" && timeout -k 5 "$LIMIT" stdbuf -oL "$LLMQ" --from-scratch "--model=$name" --train-file=tokens.bin --eval-file=tokens.bin --model-dtype=bf16 --matmul-dtype=bf16 \
      --opt-m-dtype=bf16 --opt-v-dtype=bf16 "--gpus=$GPUS" --use-cuda-graphs "--batch-size=$MICRO" "--seq-length=$SEQ" "--grad-accumulation=$((TOKENS / SEQ / MICRO / GPUS))" \
      "--zero-level=$level" --lmhead-chunks=4 "--steps=$((STEPS + 2))" --ckpt-interval=10000 --eval-every-n-steps=10000 --eval-num-steps=1 --log-gpu-util=0 >"$RESULTS/llmq-$1-$level.log" 2>&1) || true
    speed=$({ grep -F '[T] step' "$RESULTS/llmq-$1-$level.log" | grep -oE 'time: *[0-9]+ ms' | grep -oE '[0-9]+' | tail -n +2 | sort -n || true; } |
      awk -v t="$TOKENS" '{ v[NR] = $1 } END { if (NR) printf "%.0f", 1000 * t / v[int((NR + 1) / 2)] }')
    row "llmq:$1" "LLMQ zero-level=$level, bf16 states" "$GPUS" "${speed:-failed}" tokens/s "$([ -n "$speed" ] || tail -n 1 "$RESULTS/llmq-$1-$level.log" | cut -c1-150)"
  done
}

run_fsdp2() { # MODEL ZERO OUT further options
  OMP_NUM_THREADS=4 timeout -k 5 "$LIMIT" python3 -m torch.distributed.run --standalone --nproc-per-node "$GPUS" "$here/fsdp2.py" --peers "$PEERS" --model "$1" --seq "$SEQ" \
    --micro "$MICRO" --zero "$2" "${@:4}" >"$RESULTS/$3.json" 2>"$RESULTS/$3.log"
}
fsdp2() {
  [ -n "${PEERS:-}" ] || { echo "fsdp2: PEERS is unset"; return 0; }
  local zero name
  for zero in ${2//,/ }; do
    name=fsdp2-$1-$zero
    run_fsdp2 "$1" "$zero" "$name" --accum $((TOKENS / SEQ / MICRO / GPUS)) --steps "$STEPS" || true
    row "fsdp2:$1" "FSDP2 + torch.compile, as ZeRO-$zero" "$GPUS" "$(python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])["tokens_per_s"])' "$RESULTS/$name.json" 2>/dev/null || echo failed)" tokens/s \
      "$({ cat "$RESULTS/$name.json"; grep -E 'Error|error' "$RESULTS/$name.log" || true; } | tail -n 1 | cut -c1-200)"
  done
}
# The blocks of two layers are those of all.
fsdp2-compile() {
  [ -n "${PEERS:-}" ] || { echo "fsdp2: PEERS is unset"; return 0; }
  run_fsdp2 "$1" 2 "fsdp2-compile-$1" --accum 2 --steps 1 --layers 2 || echo "fsdp2-compile: failed; see $RESULTS/fsdp2-compile-$1.log"
}

hybrid() {
  config "$1"
  base=""
  train "zero=1" "$GPUS" "hybrid:$1" --set parallelism.zero=1
  base=$(awk -v v="$(field "$RESULTS/hybrid-$1-zero=1.json" tokens_per_s 2>/dev/null || echo 0)" -v n="$GPUS" 'BEGIN { if (v) print v / n }') base_name="ZeRO-1"
  local tensor
  for tensor in ${2//,/ }; do
    [ "$tensor" -le "$GPUS" ] || continue
    train "tp=$tensor" "$GPUS" "hybrid:$1" --set parallelism.tensor="$tensor" --set parallelism.zero=1 --set training.micro_batch_size=$((MICRO * tensor))
  done
}

pipeline() {
  config "$1"
  base=""
  local stages schedule
  for stages in ${2//,/ }; do
    [ "$stages" -le "$GPUS" ] || continue
    for schedule in 1f1b interleaved zero-bubble; do
      local more=()
      [ $schedule != interleaved ] || more=(--set parallelism.virtual_stages=2)
      train "pp=$stages,$schedule" "$stages" "pipeline:$1" --set parallelism.pipeline="$stages" --set parallelism.schedule=$schedule "${more[@]}"
    done
  done
}

comm() {
  local op tests sizes=${SIZES:-1M:1G}
  for op in ${1//,/ }; do
    timeout -k 5 "$LIMIT" "$BALEEN" bench comm --backend "$BACKEND" --ranks "$GPUS" --op "$op" --sizes "$sizes" --json >"$RESULTS/comm-$op.json" 2>"$work/comm.log" || { row comm "$op" "$GPUS" failed "-" "$(tail -n 1 "$work/comm.log")"; continue; }
    tests=${NCCL_TESTS:-}/${op/send_recv/sendrecv}_perf
    if [ -x "$tests" ]; then timeout -k 5 "$LIMIT" "$tests" -b "${sizes%:*}" -e "${sizes#*:}" -f 2 -g "$GPUS" -n 50 -w 5 -c 0 -d float -z 0 >"$RESULTS/nccl-tests-$op.txt" 2>&1 || true; fi
    python3 - "$RESULTS/comm-$op.json" "$RESULTS/nccl-tests-$op.txt" >"$work/comm.txt" <<'PYTHON'
import json, os, sys
ours = {r["bytes"]: r["busbw_gbs"] for r in json.load(open(sys.argv[1]))["rows"]}
theirs = {}
if os.path.exists(sys.argv[2]):
    for line in open(sys.argv[2]):
        words = line.split()
        if len(words) > 7 and words[0].isdigit():
            theirs[int(words[0])] = float(words[7])
for size, speed in ours.items():
    print(f"{size >> 20}M\t{speed:.2f}\t" + (f"nccl-tests {theirs[size]:.2f}, ratio {speed / theirs[size]:.3f}" if size in theirs else ""))
PYTHON
    while IFS=$'\t' read -r size speed note; do row comm "$op $size" "$GPUS" "$speed" "GB/s (bus)" "$note"; done <"$work/comm.txt"
  done
}

kill_a_rank() {
  for ((i = 0; i < 4000; ++i)); do echo "Line $((i * 7919 % 1000)) of a text that is easy to learn."; done >"$work/corpus.txt"
  "$BALEEN" tokenize --tokenizer bytes "$work/corpus.txt" --out "$work/corpus.bin" >/dev/null 2>&1
  cat >"$work/kill.toml" <<TOML
[model]
hidden_size = 1024
intermediate_size = 4096
num_hidden_layers = 12
num_attention_heads = 8
[data]
train = "corpus.bin"
[training]
steps = ${KILL_STEPS:-400}
sequence_length = 256
micro_batch_size = 8
dtype = "bf16"
[parallelism]
zero = 3
[comm]
backend = "$BACKEND"
[checkpoint]
every = 20
[fault]
max_restarts = 0
TOML
  local run=$work/killed code=0 begin pid victim
  # shellcheck disable=SC2046
  "$BALEEN" train "$work/kill.toml" --out "$run" --ranks "$GPUS" $(settings) >"$RESULTS/killed.log" 2>&1 &
  pid=$!
  for ((wait = 0; wait < 1200; ++wait)); do
    if ls -d "$run"/checkpoints/step_*[0-9] >/dev/null 2>&1; then break; fi
    sleep 0.1
  done
  victim=$(pgrep -P "$pid" | tail -n 1)
  begin=$(date +%s.%N)
  kill -KILL "$victim"
  wait "$pid" || code=$?
  local gone
  gone=$(awk -v a="$begin" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
  row kill "SIGKILL of a rank: all gone after" "$GPUS" "$gone" s "exit $code; $(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | grep -c . || true) processes on the GPUs"
  local last
  last=$(ls -d "$run"/checkpoints/step_*[0-9] | tail -n 1)
  code=0
  # shellcheck disable=SC2046
  timeout -k 5 "$LIMIT" "$BALEEN" train "$work/kill.toml" --out "$run" --ranks "$GPUS" $(settings) --set training.steps="$((10#${last##*_} + 20))" >"$RESULTS/restarted.log" 2>&1 || code=$?
  row kill "started again from $(basename "$last")" "$GPUS" "exit $code" "-" "$(tail -n 1 "$run/metrics.jsonl" | cut -c1-100)"
}

for stage in "$@"; do
  IFS=: read -r name model levels <<<"$stage"
  case $stage in
    suite) suite ;;
    comm | comm:*) comm "${model:-all_reduce,all_gather,reduce_scatter,send_recv}" ;;
    verify | verify:*) verify "${model:-fp32,bf16}" ;;
    kill) kill_a_rank ;;
    alone:* | fsdp2-compile:*) "$name" "$model" ;;
    hybrid:* | pipeline:*) "$name" "$model" "${levels:-2,4}" ;;
    scaling:*) scaling "$model" "${levels:-1,2,3}" ;;
    llmq:*) llmq "$model" "${levels:-1,2}" ;;
    fsdp2:*) fsdp2 "$model" "${levels:-2,3}" ;;
    table) [ -f "$rows" ] && column -t -s $'\t' "$rows" ;;
    *)
      echo "multi_gpu: no stage '$stage'; see the head of $0" >&2
      exit 2
      ;;
  esac
done
