#!/usr/bin/env bash
# Throughput of ZeRO's stages beside stage 0, in turns, so that a busy machine slows all alike.
#
#   bench/compare/zero_stages.sh [ROUNDS] [RANKS] [key=value…]
#
# A Llama of 38 M parameters, 8192 tokens a step. Prints each stage's median tokens/s, and the median over rounds of its ratio to stage 0's
# in the same round. Further arguments go to `baleen bench train --set`.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-5} ranks=${2:-2}
shift $(($# < 2 ? $# : 2))
overrides=()
for setting in "$@"; do overrides+=(--set "$setting"); done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/model.toml" <<'TOML'
[model]
hidden_size = 512
intermediate_size = 1408
num_hidden_layers = 8
num_attention_heads = 8
num_key_value_heads = 8
vocab_size = 12000
tie_word_embeddings = false
[training]
dtype = "fp32"
sequence_length = 512
micro_batch_size = 8
global_batch_size = 16
TOML

for ((round = 0; round < rounds; ++round)); do
  for zero in 0 1 2 3; do
    build/release/baleen bench train "$folder/model.toml" --ranks "$ranks" --steps 1 --json --set "parallelism.zero=$zero" "${overrides[@]}" \
      2>/dev/null | sed 's/.*"tokens_per_s":\([0-9.]*\).*/\1/' >>"$folder/$zero"
  done
done
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
echo "stage  tokens/s  ratio to stage 0 (median of $rounds rounds, $ranks ranks)"
for zero in 0 1 2 3; do
  printf '%5d  %8.0f  %.3f\n' "$zero" "$(median <"$folder/$zero")" "$(paste "$folder/$zero" "$folder/0" | awk '{ print $1 / $2 }' | median)"
done
