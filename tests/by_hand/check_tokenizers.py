"""baleen's ids against Hugging Face's `tokenizers`, and the time of each on one thread.

    scripts/reference-env.sh /tmp/reference
    /tmp/reference/bin/python tests/golden/make_tokenizers.py /tmp/tokenizers 2000000
    /tmp/reference/bin/python tests/by_hand/check_tokenizers.py build/release/baleen /tmp/tokenizers/mixed.txt /tmp/tokenizers/* [more folders]

A folder has a tokenizer.json, or a SentencePiece tokenizer.model: then the time is that of the same model in `tokenizers`, whose ids must
be those of SentencePiece. Prints a line for each and exits 1 when ids differ.
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


def byte_pairs_of(library):
    """A SentencePiece model as `tokenizers` runs it (what transformers makes of Llama 2's): all pairs of pieces that make a piece, best first."""
    from tokenizers import Tokenizer, models, normalizers

    scores = {library.id_to_piece(i): library.get_score(i) for i in range(library.vocab_size())}
    vocabulary = {piece: i for i, piece in enumerate(scores)}
    merges = [(piece[:k], piece[k:]) for piece in scores for k in range(1, len(piece)) if piece[:k] in scores and piece[k:] in scores]
    merges.sort(key=lambda pair: (-scores[pair[0] + pair[1]], vocabulary[pair[0]], vocabulary[pair[1]]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return tokenizer


def reference(folder, text):
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        started = time.perf_counter()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    else:
        import sentencepiece

        library = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
        tokenizer = byte_pairs_of(library)
        started = time.perf_counter()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == library.encode(text), "the two references differ"
    return np.array(ids), time.perf_counter() - started


def baleen(binary, folder, path):
    """Ids, and the median of three turns of the seconds that the text takes beyond a text of one letter."""
    with tempfile.TemporaryDirectory() as scratch:
        letter = pathlib.Path(scratch) / "letter.txt"
        letter.write_text("a")
        out = pathlib.Path(scratch) / "ids.bin"
        seconds = []
        for _ in range(3):
            turn = []
            for source in (letter, path):
                started = time.perf_counter()
                subprocess.run([binary, "tokenize", "--tokenizer", folder, source, "--out", out, "--threads", "1"], check=True, stderr=subprocess.DEVNULL)
                turn.append(time.perf_counter() - started)
            seconds.append(turn[1] - turn[0])
        raw = out.read_bytes()
        wide = int.from_bytes(raw[:4], "little") == 20240801
        return np.frombuffer(raw[1024:], np.uint32 if wide else np.uint16).astype(np.int64), sorted(seconds)[1]


def main():
    binary, path = sys.argv[1], pathlib.Path(sys.argv[2])
    text = path.read_bytes().decode()
    failed = False
    for folder in map(pathlib.Path, sys.argv[3:]):
        if not folder.is_dir():
            continue
        expected, theirs = reference(folder, text)
        ids, ours = baleen(binary, folder, path)
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
