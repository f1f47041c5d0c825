"""Accuracy of `baleen eval` on a multiple-choice file as llm.c writes HellaSwag's, beside transformers' on the same examples.

    /tmp/reference/bin/python tests/by_hand/check_choices.py build/release/baleen FOLDER TEXT_FILE [EXAMPLES]

The examples are made of TEXT_FILE, whose lines end sentences: eight words of context, the words that follow, and three endings from elsewhere.
The file has FACTS' layout (llm.c, dev/data/hellaswag.py): a header of 256 int32, then uint16. Exits 1 when an accuracy differs.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers


def examples_of(words, tokenizer, count):
    dice = random.Random(11)
    ids = lambda some: tokenizer.encode(" " + " ".join(some), add_special_tokens=False)
    for _ in range(count):
        at = dice.randrange(len(words) - 30)
        endings = [ids(words[at + 8 : at + 8 + dice.randrange(2, 12)])]
        for _ in range(3):
            other = dice.randrange(len(words) - 30)
            endings.append(ids(words[other : other + dice.randrange(2, 12)]))
        right = dice.randrange(4)
        endings[0], endings[right] = endings[right], endings[0]
        yield ids(words[at : at + 8]), endings, right


def stream_of(number, context, endings, right):
    body = [number, right, len(endings), len(context), *context]
    for ending in endings:
        body += [len(ending), *ending]
    return [65535, 2 * (len(body) + 2), *body]


def sums_of(model, context, endings):
    sums = []
    for ending in endings:
        tokens = torch.tensor(context + ending)
        with torch.no_grad():
            logits = model(tokens[None, :-1]).logits[0, len(context) - 1 :].double()
        sums.append(torch.nn.functional.cross_entropy(logits, tokens[len(context) :], reduction="sum").item())
    return sums


def main():
    baleen, folder, text = sys.argv[1:4]
    count = int(sys.argv[4]) if len(sys.argv) > 4 else 100
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    examples = list(examples_of(pathlib.Path(text).read_text().split(), tokenizer, count))
    streams = [stream_of(number, *example) for number, example in enumerate(examples)]
    by_mean = by_sum = 0
    for context, endings, right in examples:
        sums = sums_of(model, context, endings)
        by_sum += int(np.argmin(sums)) == right
        by_mean += int(np.argmin([total / len(ending) for total, ending in zip(sums, endings)])) == right
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        header = np.zeros(256, np.int32)
        header[:4] = 20240522, 1, count, 2 * max(map(len, streams))
        file.write(header.tobytes() + np.array([value for stream in streams for value in stream], np.uint16).tobytes())
        file.flush()
        same = True
        for extra in ([], ["--ranks", "2"], ["--ranks", "2", "--layout", "dp=2,zero=3"], ["--ranks", "2", "--layout", "pp=2"]):
            out = subprocess.run([baleen, "eval", folder, "--data", file.name, "--json", *extra], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            ours = json.loads(out.stdout)
            print("baleen", " ".join(extra), ours)
            same &= round(ours["accuracy"] * count) == by_mean and round(ours["accuracy_unnormalized"] * count) == by_sum
    print(f"transformers: {by_mean / count:.4f} by the mean, {by_sum / count:.4f} by the sum")
    sys.exit(0 if same else 1)


main()
