#!/usr/bin/env bash
# Fuzzes the parsers of foreign files with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [PARSER…]
#
# Default: every parser (tests/fuzz/parsers.cpp) for 1200 s, one at a time. Needs clang++-19 with libclang-rt-19-dev and libomp-19-dev. What was
# found goes to build/fuzz/findings/, corpora grow in build/fuzz/corpus/. Prints a line a parser: inputs, peak memory, findings. An input fails
# that crashes, takes longer than 10 s, or makes the parser hold more than 2 GiB. Exits 0 when nothing was found, else 1.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=1200 jobs=1 names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=$2 && shift 2 ;;
    --jobs) jobs=$2 && shift 2 ;;
    -*) echo "fuzz: unknown argument '$1'; usage: scripts/fuzz.sh [--seconds N] [--jobs N] [PARSER…]" >&2 && exit 2 ;;
    *) names+=("$1") && shift ;;
  esac
done

export CCACHE_BASEDIR="$PWD" CCACHE_NOHASHDIR=true
for preset in fuzz release; do
  cmake --preset "$preset" >/dev/null
  cmake --build --preset "$preset" --parallel "$(nproc)" --target parsers_fuzz >/dev/null
done
corpus=build/fuzz/corpus findings=build/fuzz/findings logs=build/fuzz/logs
mkdir -p "$corpus" "$findings" "$logs"
build/release/parsers_fuzz --seeds "$corpus"
# Real files, as far as they are here.
shared=${BALEEN_SHARED:-../shared}/data
golden=tests/golden/tokenizers
add() { for file in "${@:2}"; do if [ -f "$file" ]; then cp "$file" "$corpus/$1/$(basename "$(dirname "$file")")_$(basename "$file")"; fi; done; }
add safetensors "$shared"/safetensors/*.safetensors
add llama2c "$shared"/tok512.bin
add sentencepiece "$golden"/sentencepiece/tokenizer.model
add model_config tests/golden/folders/*/config.json
add config examples/*.toml
add tokenizer_json "$golden"/*/tokenizer.json
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(ls "$corpus")

fuzz_one() {
  local name=$1 log="$logs/$1.log" status=0
  # Memory files, because some parsers take paths.
  TMPDIR=/dev/shm build/fuzz/parsers_fuzz --parser="$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -max_len=65536 -artifact_prefix="$findings/$name-" -print_final_stats=1 "$corpus/$name" >"$log" 2>&1 || status=$?
  local inputs memory
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  memory=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
  echo "fuzz: $name: ${inputs:-?} inputs, peak ${memory:-?} MB, $([ $status -eq 0 ] && echo "nothing found" || echo "FOUND something: $log")"
  return $status
}
failed=0 running=0
for name in "${names[@]}"; do
  fuzz_one "$name" &
  running=$((running + 1))
  if [ $running -ge "$jobs" ]; then
    wait -n || failed=1
    running=$((running - 1))
  fi
done
while [ $running -gt 0 ]; do
  wait -n || failed=1
  running=$((running - 1))
done
exit $failed
