#!/usr/bin/env bash
# `baleen bench train` on the CPU beside what else trains there, all programs taking turns so that a busy machine slows them alike.
#
#   bench/compare/cpu.sh [--llmc LLM.C] [what cpu.py takes: --rounds N --steps N --threads N --cases …]
#
# PyTorch is used where python3 has it, or the Python that PYTHON names; llm.c where --llmc names a checkout, whose CPU trainer is then built
# in a folder that is removed at the end. What is not there is left out, and said so. Needs the targets baleen and matmul_rate.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3} llmc="" arguments=()
while (($# > 0)); do
  if [[ $1 == --llmc ]]; then
    [[ $# -ge 2 && -f $2/train_gpt2.c ]] || { echo "cpu.sh: --llmc takes a folder with train_gpt2.c" >&2 && exit 2; }
    llmc=$(cd "$2" && pwd)
    shift
  else
    arguments+=("$1")
  fi
  shift
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
grep -m1 "model name" /proc/cpuinfo | sed 's/.*: /processor: /'
if version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null); then
  echo "PyTorch $version"
  arguments+=(--torch "$python")
else
  echo "skipped: PyTorch ($python has none; PYTHON names another)"
fi
if [[ -n $llmc ]]; then
  cc -O3 -march=native -ffast-math -fno-finite-math-only -fopenmp -DOMP -DLLMC="\"$llmc/train_gpt2.c\"" "$here/llmc_step.c" -o "$folder/llmc_step" -lm
  arguments+=(--llmc-program "$folder/llmc_step")
else
  echo "skipped: llm.c (--llmc names a checkout)"
fi
python3 "$here/cpu.py" "${arguments[@]}"
