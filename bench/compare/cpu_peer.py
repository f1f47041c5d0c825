#!/usr/bin/env python3
"""PyTorch on the CPU as the rival of `baleen bench train`: the same models, optimizer and clipping, random tokens.

    cpu_peer.py gpt2|llama [--dtype fp32|bf16] [--compile] [--threads N] [--length T] [--batch B] [--accumulate A] [--ranks N]

Trains two steps, prints `ready`, then for each line `steps` on standard input that many steps and the tokens/s of their median. bf16 is
autocast over fp32 weights, as PyTorch's users train on CPUs. With --ranks the processes are DistributedDataParallel over gloo; --batch and
--accumulate are of each rank. cpu.py drives several of these in turns.
"""
import argparse
import contextlib
import os
import socket
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

GPT2 = dict(width=384, layers=6, heads=6, vocabulary=50304)
LLAMA = dict(width=384, layers=10, heads=6, hidden=1024, vocabulary=32000)


class Attention(nn.Module):
    def __init__(self, width, heads, bias, angles=None):
        super().__init__()
        self.heads, self.angles = heads, angles
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)

    def rotate(self, x):
        cosines, sines = self.angles
        first, second = x.chunk(2, dim=-1)
        cosines, sines = cosines[: x.size(2)].to(x.dtype), sines[: x.size(2)].to(x.dtype)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        if self.angles is not None:
            q, k = self.rotate(q), self.rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class GeluMlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class SwigluMlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, attention, mlp, norm):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(), attention, norm(), mlp

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Loss of tokens [B, T] and targets [B, T]; head and embedding are one table."""

    def __init__(self, kind, length):
        super().__init__()
        shape = GPT2 if kind == "gpt2" else LLAMA
        width, heads = shape["width"], shape["heads"]
        self.embedding = nn.Embedding(shape["vocabulary"], width)
        self.position = nn.Embedding(length, width) if kind == "gpt2" else None
        if kind == "gpt2":
            norm, angles = (lambda: nn.LayerNorm(width)), None
        else:
            norm = lambda: nn.RMSNorm(width, eps=1e-5)
            half = width // heads // 2
            each = torch.outer(torch.arange(length), 10000.0 ** (-torch.arange(half) / half))
            angles = each.cos(), each.sin()
        self.blocks = nn.Sequential(
            *(
                Block(
                    Attention(width, heads, kind == "gpt2", angles),
                    GeluMlp(width) if kind == "gpt2" else SwigluMlp(width, shape["hidden"]),
                    norm,
                )
                for _ in range(shape["layers"])
            )
        )
        self.norm = norm()
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        if self.position is not None:
            x = x + self.position.weight[: tokens.size(1)]
        logits = F.linear(self.norm(self.blocks(x)), self.embedding.weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def worker(rank, arguments):
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    model = Model(arguments.model, arguments.length)
    step_model = model
    if arguments.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port), RANK=str(rank), WORLD_SIZE=str(arguments.ranks))
        torch.distributed.init_process_group("gloo")
        step_model = nn.parallel.DistributedDataParallel(model)
    if arguments.compile:
        step_model = torch.compile(step_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    vocabulary = model.embedding.num_embeddings
    generator = torch.Generator().manual_seed(rank)
    low = torch.autocast("cpu", torch.bfloat16, enabled=arguments.dtype == "bf16")

    def step():
        begin = time.perf_counter()
        for micro in range(arguments.accumulate):
            tokens, targets = torch.randint(vocabulary, (2, arguments.batch, arguments.length), generator=generator)
            waits = arguments.ranks > 1 and micro + 1 < arguments.accumulate
            with low, step_model.no_sync() if waits else contextlib.nullcontext():
                loss = step_model(tokens, targets) / arguments.accumulate
            with step_model.no_sync() if waits else contextlib.nullcontext():
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begin

    for _ in range(2):
        step()
    tokens = arguments.ranks * arguments.batch * arguments.length * arguments.accumulate
    if rank == 0:
        print("ready", flush=True)
    while True:
        count = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            line = sys.stdin.readline()
            count[0] = int(line) if line.strip() else 0
        if arguments.ranks > 1:
            torch.distributed.broadcast(count, 0)
        if count.item() == 0:
            break
        seconds = statistics.median(step() for _ in range(int(count.item())))
        if rank == 0:
            print(tokens / seconds, flush=True)
    if arguments.ranks > 1:
        torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=["gpt2", "llama"])
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--compile", action="store_true")
    for name, value in dict(threads=2, length=256, batch=4, accumulate=1, ranks=1).items():
        parser.add_argument("--" + name, type=int, default=value)
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        arguments.port = free.getsockname()[1]
    if arguments.ranks == 1:
        return worker(0, arguments)
    # The first rank stays here: the others have no standard input.
    context = torch.multiprocessing.get_context("spawn")
    others = [context.Process(target=worker, args=(rank, arguments)) for rank in range(1, arguments.ranks)]
    for other in others:
        other.start()
    worker(0, arguments)
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
