"""transformers' loss of a Hugging Face folder on a token file, in the windows of `baleen eval` (1,024 tokens, or the model's length).

    /tmp/reference/bin/python tests/by_hand/check_loss.py FOLDER FILE.bin
"""

import pathlib
import sys

import numpy as np
import torch
import transformers


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    raw = pathlib.Path(sys.argv[2]).read_bytes()
    wide = int.from_bytes(raw[:4], "little") == 20240801
    tokens = torch.from_numpy(np.frombuffer(raw[1024:], np.uint32 if wide else np.uint16).astype(np.int64))
    length = min(len(tokens) - 1, 1024, model.config.max_position_embeddings)
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, (len(tokens) - 1) // length * length, length):
            window = tokens[begin : begin + length + 1]
            logits = model(window[None, :-1]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            count += length
    print(f"loss {total / count:.6f} ({count} tokens, windows of {length})")


main()
