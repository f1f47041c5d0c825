"""The greedy text of transformers and of `baleen generate` from one folder.

    /tmp/reference/bin/python tests/by_hand/check_greedy.py build/release/baleen FOLDER PROMPT TOKENS

Prints the text and exits 0, or both and 1.
"""

import subprocess
import sys

import torch
import transformers


def main():
    binary, folder, prompt, tokens = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        ids = model.generate(inputs["input_ids"], do_sample=False, max_new_tokens=tokens)[0]
    if ids[-1].item() in (model.generation_config.eos_token_id if isinstance(model.generation_config.eos_token_id, list) else [model.generation_config.eos_token_id]):
        ids = ids[:-1]
    theirs = prompt + tokenizer.decode(ids[inputs["input_ids"].shape[1] :], clean_up_tokenization_spaces=False)
    ours = subprocess.run([binary, "generate", folder, "--prompt", prompt, "--tokens", str(tokens), "--temperature", "0"], capture_output=True, text=True, check=True).stdout
    ours = ours.removesuffix("\n")
    if ours != theirs:
        print(f"DIFFERENT\nbaleen:       {ours!r}\ntransformers: {theirs!r}")
        sys.exit(1)
    print(f"identical: {ours!r}")


main()
