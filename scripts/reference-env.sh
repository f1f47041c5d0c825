#!/usr/bin/env bash
# Makes a Python virtual environment with the references that golden values and comparisons by hand come from. The product and CI need none
# of it. PyTorch 2.x is several GB.
set -euo pipefail
directory=${1:?usage: scripts/reference-env.sh DIRECTORY}
python3 -m venv "$directory"
"$directory/bin/pip" install --quiet torch numpy safetensors transformers tokenizers tensorboard gguf sentencepiece
echo "reference environment: $directory/bin/python"
