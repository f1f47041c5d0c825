"""Byte-level tokenizers as GPT-2, Llama 3, Qwen2.5 and SmolLM2 cut and normalise, trained on a small text, and their ids of mixed text.

    scripts/reference-env.sh /tmp/reference
    /tmp/reference/bin/python tests/golden/make_tokenizers.py FOLDER [BYTES]

writes FOLDER/NAME/{tokenizer.json,tokenizer_config.json}, and FOLDER/mixed.txt with about BYTES of code, Russian, Chinese, accents composed
and not, emoji, odd white space and special tokens. Without an argument: tests/golden/tokenizers, with small vocabularies and the ids in
golden.json (for tests/data/hugging_face_tokenizer_test.cpp). The vocabularies are trained here, by `tokenizers`; the expressions, flags and
special tokens are those of the published models. Made with tokenizers 0.23.3.
"""

import json
import pathlib
import random
import subprocess
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPACES = [" ", " ", "  ", "    ", "\n", "\n\n", "\t", "\t\t", "\r\n", "\r\n\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\u180e", "\ufeff", "\x85", "\x0b", "\x1c"]
SIGNS = "0123456789.,;:!?-_(){}[]<>=+*/\\'\"#@&|~`$%^"
CODE = ["for (int i = 0; i < n; ++i)", "return self.", "#include <", "std::vector<float>", "if __name__ == ", "\t\tx->y[i] += ", "0x7f", "'s", "'LL", "'Re", "I'm", "don\u2019t",
        "12345678", "3.14159", "１２３", "Ⅷ", "½", "²"]
PROSE = ["In the beginning God created the heaven and the earth.", "В начале сотворил Бог небо и землю.", "Ёлки-палки, чай и ещё йогурт", "起初，神創造天地。", "はじめに神は天と地とを創造された。",
         "Tiếng Việt có dấu", "e\u0301te\u0301 nai\u0308ve", "И\u0306од и\u0306", "\u1100\u1161\u11a8 한국어", "\u2126 \u212b \uf900", "क\u093c नमस्ते", "عربي", "👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f"]
SPECIAL = {
    "gpt2": ["<|endoftext|>"],
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "smollm2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>"],
}
PARTS = ["<|im_", "<|", "|>", "<", "<|endoftext", "endoftext|>", "<tool_call>", "<|im_start|><|im_end|>"]


def mixed_text(size, seed=7):
    dice = random.Random(seed)
    special = sorted({token for tokens in SPECIAL.values() for token in tokens})
    run = lambda first, count, longest: "".join(chr(first + dice.randrange(count)) for _ in range(1 + dice.randrange(longest)))
    some = lambda pieces, longest: "".join(dice.choice(pieces) for _ in range(1 + dice.randrange(longest)))
    makers = [lambda: dice.choice(PROSE), lambda: run(ord("a"), 26, 12), lambda: run(ord("A"), 58, 6), lambda: run(0x410, 64, 10), lambda: run(0x4E00, 2000, 8),
              lambda: run(0x1F300, 0x2FF, 3), lambda: some(SPACES, 5), lambda: some(SIGNS, 6), lambda: dice.choice(CODE), lambda: run(0xC0, 0x180, 6),
              lambda: dice.choice(special) if dice.random() < 0.3 else dice.choice(PARTS), lambda: run(0x300, 0x40, 2)]
    out, bytes_so_far = [], 0
    while bytes_so_far < size:
        piece = dice.choice(makers)() + (" " if dice.random() < 0.5 else "")
        out.append(piece)
        bytes_so_far += len(piece.encode())
    return "".join(out)


def settings(name, tokenizer):
    """What the published tokenizer.json says beside the vocabulary."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = lambda expression: pre_tokenizers.Split(Regex(expression), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    if name == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "llama3":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(CL100K % "{1,3}"), bytes_only])
    elif name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split(CL100K % ""), bytes_only])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def train(name, text, size):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    settings(name, tokenizer)
    special = SPECIAL[name]
    before = special if name == "smollm2" else []  # SmolLM2's stand at the front of the vocabulary, the others' behind it
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[AddedToken(t, special=True) for t in before], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if not before:
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=name == "gpt2") for t in special])
    if name == "qwen2":
        tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    if name == "llama3":
        first = special[0]
        template = processors.TemplateProcessing(single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, tokenizer.token_to_id(first))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def fnv1a(ids):
    value = 0xCBF29CE484222325
    for number in ids:
        value = (value ^ number) * 0x100000001B3 % 2**64
    return "%016x" % value


def main():
    golden = len(sys.argv) == 1
    folder = pathlib.Path(__file__).parent / "tokenizers" if golden else pathlib.Path(sys.argv[1])
    size = 20_000 if golden else int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000
    text = mixed_text(size)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mixed.txt").write_bytes(text.encode())
    bible = subprocess.run(["bible", "-f", "-l72", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    learned = (bible[:40_000] if golden else bible) + mixed_text(20_000 if golden else 1_000_000, seed=8)
    values = {}
    for name in SPECIAL:
        tokenizer = train(name, learned, 700 if golden else 32_000)
        (folder / name).mkdir(exist_ok=True)
        tokenizer.save(str(folder / name / "tokenizer.json"), pretty=not golden)
        if name == "llama3":  # as transformers wrote merges before tokenizers 0.20
            saved = json.loads((folder / name / "tokenizer.json").read_text())
            saved["model"]["merges"] = [" ".join(pair) for pair in saved["model"]["merges"]]
            (folder / name / "tokenizer.json").write_text(json.dumps(saved, ensure_ascii=False))
        (folder / name / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[name][-1]}))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        prompt = tokenizer.encode("Hello world").ids
        values[name] = {"tokens": len(ids), "first": ids[:40], "fnv1a": fnv1a(ids), "prompt": prompt, "vocabulary": tokenizer.get_vocab_size()}
    if golden:
        (folder / "golden.json").write_text(json.dumps(values) + "\n")


if __name__ == "__main__":
    main()
