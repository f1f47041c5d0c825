#!/usr/bin/env bash
# From a fresh Debian 12 to a language model: installs what is missing, builds, takes a public-domain text (the King James Bible from the
# Debian package bible-kjv), trains a Llama of about two million parameters on two ranks for at most five minutes, compares it with gzip
# on text it has not seen, and prints a sample.
#
#   scripts/quickstart.sh [--data FILE] [--seconds N] [--out DIR]
#
# --data FILE    train on your own text instead (100 kB at least; a few megabytes are better)
# --seconds N    time to train (default 280)
# --out DIR      where corpus, run and checkpoints go (default runs/quickstart)
#
# Needs root or sudo to install packages. The last line is `quickstart: ok, X.XX bits/byte, N tokens/s`; exits 1 when the model does not beat gzip.
set -euo pipefail

usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'; }
stop() {
  echo "quickstart: $1" >&2
  exit "${2:-1}"
}

data="" seconds=280 out=""
while [ $# -gt 0 ]; do
  case "$1" in
    --data | --seconds | --out)
      [ $# -ge 2 ] || stop "$1 needs a value" 2
      declare "${1#--}=$2"
      shift 2
      ;;
    -h | --help) usage; exit 0 ;;
    *) stop "unknown argument '$1'; usage: scripts/quickstart.sh [--data FILE] [--seconds N] [--out DIR]" 2 ;;
  esac
done
[[ "$seconds" =~ ^[1-9][0-9]*$ ]] || stop "--seconds: '$seconds' is not a positive number of seconds" 2
[ -z "$data" ] || data=$(realpath -e -- "$data" 2>/dev/null) || stop "--data: no such file" 3
[ -z "$out" ] || { mkdir -p -- "$out" && out=$(realpath -- "$out"); }
cd "$(dirname "$0")/.."
out=${out:-$PWD/runs/quickstart}
mkdir -p -- "$out"

echo "== packages"
bash scripts/install-deps.sh --quickstart

echo "== build"
log=$(mktemp)
if ! { cmake --preset release && cmake --build --preset release --parallel "$(nproc)" --target baleen; } >"$log" 2>&1; then
  tail -n 40 "$log"
  stop "the build failed" 2
fi
rm -f "$log"
baleen=$PWD/build/release/baleen

echo "== text"
if [ -z "$data" ]; then
  data=$out/king-james.txt
  "$(command -v bible || echo /usr/bin/bible)" -f -l72 gen1:1-rev22:21 </dev/null >"$data"
fi
[ "$(stat -c %s -- "$data")" -ge 100000 ] || stop "$data: fewer than 100,000 bytes of text; too few to learn from" 3
"$baleen" tokenize --tokenizer bytes "$data" --out "$out/corpus.bin" --val-fraction 0.05

# Bytes of text behind FILE.val.bin: the end of the text.
held_out=$(tr -d ' \n' <"$out/corpus.json" | sed -n 's/.*"validation":{[^}]*"bytes":\([0-9]*\).*/\1/p')
gzip_bits=$(tail -c "$held_out" -- "$data" | gzip -9 | wc -c | awk -v n="$held_out" '{ printf "%.2f", 8 * $1 / n }')
echo "gzip -9 on the $held_out bytes held out: $gzip_bits bits/byte"

echo "== speed"
config=examples/quickstart.toml
paths=(--set "data.train=$out/corpus.bin" --set "data.validation=$out/corpus.val.bin")
speed=$("$baleen" bench train "$config" --ranks 2 --steps 8 --set model.vocab_size=257 --json 2>/dev/null | sed -n 's/.*"tokens_per_s":\([0-9]*\).*/\1/p')
batch=$(sed -n 's/^global_batch_size *= *\([0-9]*\).*/\1/p' "$config")
length=$(sed -n 's/^sequence_length *= *\([0-9]*\).*/\1/p' "$config")
# A little less than the time there is, because machines do not keep their speed.
steps=$(awk -v s="$speed" -v t="$seconds" -v b="$batch" -v l="$length" 'BEGIN { n = int(0.9 * s * t / (b * l)); print n < 50 ? 50 : n }')
echo "$speed tokens/s: $steps steps of $batch sequences of $length bytes in about $seconds s"

echo "== train"
rm -rf "$out/run"
begin=$SECONDS
timeout --foreground --signal=TERM "$((seconds + 20))" "$baleen" train "$config" --ranks 2 --out "$out/run" "${paths[@]}" --set "training.steps=$steps" \
  --set "lr_schedule.decay_steps=$steps" --set "training.eval_every=$(((steps + 3) / 4))" || [ $? -eq 124 ] || [ $? -eq 75 ] || stop "training failed"
took=$((SECONDS - begin))
trained=$(tail -n 3 "$out/run/metrics.jsonl" | sed -n 's/.*"tokens":\([0-9]*\).*/\1/p' | tail -n 1)

echo "== result"
bits=$("$baleen" eval "$out/run" --data "$out/corpus.val.bin" --json | sed -n 's/.*"bits_per_byte":\([0-9.]*\).*/\1/p' | awk '{ printf "%.2f", $1 }')
echo "on the held-out text: baleen $bits bits/byte, gzip -9 $gzip_bits bits/byte"
echo "a sample:"
"$baleen" generate "$out/run" --prompt "And " --tokens 300 --temperature 0.7
awk -v a="$bits" -v b="$gzip_bits" 'BEGIN { exit !(a < b) }' || stop "the model does not beat gzip: $bits against $gzip_bits bits/byte"
echo "quickstart: ok, $bits bits/byte, $((trained / (took > 0 ? took : 1))) tokens/s"
