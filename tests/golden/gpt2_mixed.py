"""Golden ids of two megabytes of mixed text under GPT-2's tokenizer, for tests/data/mixed_text_test.cpp.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers
    /tmp/venv/bin/python tests/golden/gpt2_mixed.py shared/data > tests/golden/gpt2_mixed.json

The ids come from Hugging Face's tokenizers (Apache-2.0): byte-level BPE with the vocabulary and merges of GPT-2's ranks. The text (code,
Russian, Chinese, emoji, odd white space, and the texts of gpt2_tokens.json) is made from a linear congruential generator here and, the same,
in the test, so that nothing but hashes is kept. Made with tokenizers 0.23.3.
"""

import base64
import json
import pathlib
import sys

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

BYTES = 2_000_000
SPACES = [" ", " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\u180e", "\ufeff", "\x85", "\x0b", "\x1c"]
SIGNS = "0123456789.,;:!?-_(){}[]<>=+*/\\'\"#@&|~`$%^"
CODE = ["for (int i = 0; i < n; ++i)", "return self.", "#include <", "std::vector<float>", "if __name__ == ", "\t\tx->y[i] += ", "0x7f", "'s", "'ll"]


class Generator:
    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit

    def run(self, first, count, longest):
        return "".join(chr(first + self.below(count)) for _ in range(1 + self.below(longest)))


def mixed_text(texts):
    random = Generator(20240229)
    out, size = [], 0
    while size < BYTES:
        kind = random.below(9)
        if kind == 0:
            piece = texts[random.below(len(texts))]
        elif kind == 1:
            piece = random.run(ord("a"), 26, 12)
        elif kind == 2:
            piece = random.run(ord("A"), 58, 6)
        elif kind == 3:
            piece = random.run(0x410, 64, 10)
        elif kind == 4:
            piece = random.run(0x4E00, 2000, 8)
        elif kind == 5:
            piece = random.run(0x1F300, 0x2FF, 3)
        elif kind == 6:
            piece = "".join(SPACES[random.below(len(SPACES))] for _ in range(1 + random.below(5)))
        elif kind == 7:
            piece = "".join(SIGNS[random.below(len(SIGNS))] for _ in range(1 + random.below(6)))
        else:
            piece = CODE[random.below(len(CODE))]
        if random.below(2) == 0:
            piece += " "
        out.append(piece)
        size += len(piece.encode())
    return "".join(out)


def merges_of(ranks):
    """The two parts that each token of several bytes is merged from: what BPE leaves of it with lower ranks only."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            assert ranks.get(parts[best] + parts[best + 1], rank) < rank
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        merges.append(tuple(parts))
    return merges


def byte_names():
    """GPT-2's printable stand-ins for bytes."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return {byte: chr(byte) if byte in kept else chr(next(others)) for byte in range(256)}


def fnv1a(words):
    value = 0xCBF29CE484222325
    for word in words:
        value = (value ^ word) * 0x100000001B3 % 2**64
    return "%016x" % value


def main():
    folder, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent
    lines = (folder / "gpt2.tiktoken").read_text().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    names = byte_names()
    name = lambda token: "".join(names[byte] for byte in token)
    vocabulary = {name(token): rank for token, rank in ranks.items()}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [(name(a), name(b)) for a, b in merges_of(ranks)]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = mixed_text([entry["text"] for entry in json.loads((here / "gpt2_tokens.json").read_text())["texts"]])
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    result = {"bytes": len(text.encode()), "text_fnv1a": fnv1a(text.encode()), "tokens": len(ids), "fnv1a": fnv1a(ids), "tokenizers": tokenizers.__version__}
    print(json.dumps(result, indent=1))


main()
