"""The order of 20 samples with seed 1234 in epoch 0, for tests/data/shuffle_test.cpp: src/data/shuffle.h written again, from the papers.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install xxhash && /tmp/venv/bin/python tests/golden/shuffle.py
"""

import math
import struct

import xxhash

SIZE, SEED, EPOCH, ROUNDS = 20, 1234, 0, 16


def philox(key, low, high):
    """Philox4x32-10 (SC11): the first two words as one of 64 bits."""
    counter = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [p1 >> 32 ^ counter[1] ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ counter[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return counter[0] << 32 | counter[1]


def main():
    key = xxhash.xxh3_64_intdigest(b"data order", seed=SEED)
    key = xxhash.xxh3_64_intdigest(struct.pack("<Q", EPOCH), seed=key)
    rows = math.isqrt(SIZE - 1) + 1
    columns = -(-SIZE // rows)
    order = []
    for index in range(SIZE):
        value = index
        while True:
            row, column = divmod(value, columns)
            for i in range(ROUNDS):
                if i % 2 == 0:
                    row = (row + philox(key, column, i)) % rows
                else:
                    column = (column + philox(key, row, i)) % columns
            value = row * columns + column
            if value < SIZE:
                break
        order.append(value)
    print(order)


main()
