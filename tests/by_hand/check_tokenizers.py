"""baleen's ids against Hugging Face's `tokenizers`, and the time of each on one thread.

    scripts/reference-env.sh /tmp/reference
    /tmp/reference/bin/python tests/golden/make_tokenizers.py /tmp/tokenizers 2000000
    /tmp/reference/bin/python tests/by_hand/check_tokenizers.py build/release/baleen /tmp/tokenizers/mixed.txt /tmp/tokenizers/* [more folders]

A folder has a tokenizer.json, or a SentencePiece tokenizer.model. Prints a line for each and exits 1 when ids differ.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def reference(folder, text):
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        started = time.perf_counter()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    else:
        import sentencepiece

        tokenizer = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        started = time.perf_counter()
        ids = tokenizer.encode(text)
    return np.array(ids), time.perf_counter() - started


def baleen(binary, folder, path, times):
    """Ids, and the seconds that `times` more copies of the text take, a copy."""
    with tempfile.TemporaryDirectory() as scratch:
        many = pathlib.Path(scratch) / "many.txt"
        many.write_bytes(path.read_bytes() * times)
        seconds = []
        for source, name in ((path, "one"), (many, "many")):
            out = pathlib.Path(scratch) / f"{name}.bin"
            started = time.perf_counter()
            subprocess.run([binary, "tokenize", "--tokenizer", folder, source, "--out", out, "--threads", "1"], check=True, stderr=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        raw = (pathlib.Path(scratch) / "one.bin").read_bytes()
        wide = int.from_bytes(raw[:4], "little") == 20240801
        return np.frombuffer(raw[1024:], np.uint32 if wide else np.uint16).astype(np.int64), (seconds[1] - seconds[0]) / (times - 1)


def main():
    binary, path = sys.argv[1], pathlib.Path(sys.argv[2])
    text = path.read_bytes().decode()
    failed = False
    for folder in map(pathlib.Path, sys.argv[3:]):
        if not folder.is_dir():
            continue
        expected, theirs = reference(folder, text)
        ids, ours = baleen(binary, folder, path, 6)
        offset = len(ids) - 1 - len(expected)  # a BOS in front, the end of the document behind
        same = 0 <= offset <= 1 and np.array_equal(ids[offset:-1], expected)
        failed |= not same
        size = len(text.encode()) / 1e6
        print(f"{folder.name:24} {'identical' if same else 'DIFFERENT'} {len(expected):>9,} ids  baleen {size / ours:6.1f} MB/s  reference {size / theirs:6.1f} MB/s  {theirs / ours:4.1f} x")
        if not same:
            common = min(len(ids) - 1, len(expected))
            at = next((i for i in range(common) if ids[i + max(offset, 0)] != expected[i]), common)
            print("  first difference at", at, ids[at - 3 : at + 8].tolist(), expected[at - 3 : at + 8].tolist())
    sys.exit(1 if failed else 0)


main()
