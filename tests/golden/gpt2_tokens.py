"""Golden token ids of GPT-2's tokenizer, for tests/data/rank_tokenizer_test.cpp.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tiktoken
    /tmp/venv/bin/python tests/golden/gpt2_tokens.py shared/data > tests/golden/gpt2_tokens.json

The ids come from tiktoken (MIT, openai/tiktoken) with GPT-2's ranks and its published expression. Made with tiktoken 0.14.0.
"""

import json
import sys

import tiktoken
from tiktoken.load import load_tiktoken_bpe

EXPRESSION = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "I'm sure they've said you'll see that we're here; he'd know it's rock'n'roll, DON'T you?",
    "'tis ''s 's's x're'll ’s don’t",
    "  leading, trailing  ",
    "a b  c   d    e\n\n\nf\t\tg \n h\r\ni\r\n\r\nj \t\n",
    "\n", " ", "  ", "\n ", " \n", "\t", "a\n", "a ", "a  ", "a \n b",
    "for (std::size_t i = 0; i < n; ++i) {\n    sum += values[i] * 0x1p-53;  // fp64\n}\n",
    "def f(x):\n\treturn {'a': x**2, \"b\": None}\n",
    "https://example.org/a?b=c&d=e#f user@example.org C:\\path\\to <tag attr=\"1\"/>",
    "0 1 12 123 1234 12345 3.14159 1,000,000 1e-9 0xFF ½ ² Ⅷ ٣ ৪ １２ 2024-11-29",
    "Война и мир — «ёжик», подъезд №5; съешь ещё этих мягких булок",
    "的一是在不了有和人这。中，大！为？上\n个国我\u3000以要他",
    "日本語のテキスト、カタカナ。 한국어 텍스트 ไทย हिन्दी العربية עברית Ελληνικά",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈👍🏽 🇫🇷 ❤️",
    "a\u00a0b\u2003c\u2028d\u180ee\u200bf\ufeffg\x85h\u1680i\u202fj\u205fk\u3000l \u3000 m\x0bn\x0co\x1cp\x1fq",
    "NUL \x00 and \x01\x02 controls \x7f",
    "<|endoftext|> is text here: a<|endoftext|>b",
    "cafe\u0301 café naïve Straße ǅ ﬁ",
    "=" * 70 + "\n" + "-" * 65 + " " * 67 + "x",
    "ab" * 50 + "supercalifragilisticexpialidocious" * 4,
    "pneumonoultramicroscopicsilicovolcanoconiosis Antidisestablishmentarianism",
]


def fnv1a(ids):
    """64-bit FNV-1a over the ids as little-endian 32-bit words, a word a step."""
    value = 0xCBF29CE484222325
    for token in ids:
        value = (value ^ token) * 0x100000001B3 % 2**64
    return value


def main():
    folder = sys.argv[1]
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=EXPRESSION, mergeable_ranks=load_tiktoken_bpe(f"{folder}/gpt2.tiktoken"), special_tokens={"<|endoftext|>": 50256}
    )
    with open(f"{folder}/tinyshakespeare.txt", encoding="utf-8", newline="") as file:
        shakespeare = encoding.encode_ordinary(file.read())
    lines = [json.dumps({"text": text, "ids": encoding.encode_ordinary(text)}) for text in TEXTS]
    print('{"tinyshakespeare": {"tokens": %d, "fnv1a": "%016x"},\n "texts": [' % (len(shakespeare), fnv1a(shakespeare)))
    print(",\n".join(lines) + "\n]}")


main()
