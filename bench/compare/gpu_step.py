#!/usr/bin/env python3
"""gpu_step beside other programs on the reference workloads: runs that take turns on one GPU, medians and their ratios.

    python3 bench/compare/gpu_step.py --peers DIR [--torch] [--llmq PROGRAM] [--llmc PROGRAM] [--runs 3] [--only qwen2.5-1.5b:1024,…]

DIR holds floor.py (always run) and torch_baseline.py (--torch), which need torch and triton. PROGRAM is LLMQ's `train` or llm.c's `train_gpt2cu`,
built elsewhere. With --torch the others take their turns between steps of one training by PyTorch, each turn followed by a step that is not
counted. LLMQ keeps bf16 states and gradients; for its memory, gpu_step runs once with such ones too. Prints a JSON line a workload, then a table.
"""
import argparse
import array
import contextlib
import io
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types

WORKLOADS = [  # model, sequence, micro-batch, further options of gpu_step (the peers pad GPT-2's vocabulary)
    ("qwen2.5-1.5b", 1024, 16, []),
    ("qwen2.5-1.5b", 4096, 4, []),
    ("qwen2.5-0.5b", 1024, 32, []),
    ("llama-3.2-1b", 1024, 16, []),
    ("qwen2.5-3b", 1024, 16, []),
    ("gpt2-124m", 1024, 64, ["--vocab", "50304"]),
]
LLMQ_MODELS = {"qwen2.5-0.5b": "Qwen2.5-0.5B", "qwen2.5-1.5b": "Qwen2.5-1.5B", "qwen2.5-3b": "Qwen2.5-3B"}
ACCUMULATION = 8


class Memory:
    """The most GPU memory in use while the block ran, beyond what was in use before, in GiB (None without pynvml)."""

    def __enter__(self):
        self.peak, self.done = None, threading.Event()
        try:
            import pynvml
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]))
        except Exception:  # pylint: disable=broad-except
            return self
        used = lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**30
        before = used()

        def watch():
            while not self.done.wait(0.1):
                self.peak = max(self.peak or 0, used() - before)
        self.thread = threading.Thread(target=watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        if hasattr(self, "thread"):
            self.thread.join()


def complain(command, text):
    print(f"{' '.join(command)}: {text.strip()[-400:]}", file=sys.stderr, flush=True)


class Comparison:
    def __init__(self, options, workload):
        self.options = options
        self.model, self.seq, self.micro, self.more = workload
        self.tokens = self.micro * self.seq * ACCUMULATION
        self.results = {}  # program: tokens/s of each run
        self.memory = {}  # program: GiB of each run
        self.environment = dict(os.environ)
        if options.library_path:
            self.environment["LD_LIBRARY_PATH"] = options.library_path

    def add(self, program, speed, memory=None):
        self.results.setdefault(program, []).append(round(speed))
        if memory:
            self.memory.setdefault(program, []).append(round(memory, 1))

    def ours(self, name="baleen", more=()):
        command = [self.options.step, "--model", self.model, "--seq", str(self.seq), "--micro", str(self.micro), "--accum", str(ACCUMULATION),
                   *self.more, *more, "--steps", "2"]
        with Memory() as memory:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        if done.returncode != 0:
            return complain(command, f"exit {done.returncode}: {done.stderr}")
        return self.add(name, json.loads(done.stdout.strip().splitlines()[-1])["tokens_per_s"], memory.peak)

    def floor(self):
        import floor
        import torch
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            floor.main(types.SimpleNamespace(model=self.model, seq=self.seq, micro=self.micro, accum=ACCUMULATION, fp8=False))
        torch.cuda.empty_cache()
        self.add("floor", json.loads(text.getvalue())["floor_tokens_per_s"])

    def timed_lines(self, name, command, pattern, count):
        """Runs `command` until it has said `count` step times (ms); the first is not counted."""
        times, tail = [], ""
        with Memory() as memory, tempfile.TemporaryDirectory() as folder:
            program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment, cwd=folder)
            for line in program.stdout:
                tail = (tail + line)[-2000:]
                if match := re.search(pattern, line):
                    times.append(float(match.group(1)))
                if len(times) == count:
                    break
            program.kill()
            program.wait()
        if len(times) < 2:
            return complain(command, tail)
        return self.add(name, self.tokens / statistics.median(times[1:]) * 1e3, memory.peak)

    def llmq(self):
        data = token_file("llmq", 151_936)
        self.timed_lines("LLMQ", [
            self.options.llmq, "--from-scratch", f"--model={LLMQ_MODELS[self.model]}", f"--train-file={data}", f"--eval-file={data}",
            "--model-dtype=bf16", "--matmul-dtype=bf16", "--opt-m-dtype=bf16", "--opt-v-dtype=bf16", "--gpus=1", "--use-cuda-graphs",
            f"--batch-size={self.micro}", f"--seq-length={self.seq}", f"--grad-accumulation={ACCUMULATION}", f"--lmhead-chunks={self.options.llmq_chunks}",
            "--steps=100", "--ckpt-interval=10000", "--eval-every-n-steps=10000", "--log-gpu-util=0"], r"step .*time:\s*(\d+) ms", 3)

    def llmc(self):
        data = token_file("llmc", 50_257)
        self.timed_lines("llm.c", [
            "stdbuf", "-oL",  # it writes to a pipe in blocks
            self.options.llmc, "-e", "d12", "-i", data, "-j", data, "-b", str(self.micro), "-t", str(self.seq), "-d", str(self.tokens), "-x", "100",
            "-v", "1000000", "-m", "1", "-s", "0", "-h", "0", "-r", "0", "-w", "1"], r"step .*\| (\d+\.\d+) ms", 4)

    def turn(self, number):
        programs = [self.ours, self.floor]
        if self.options.llmq and self.model in LLMQ_MODELS:
            programs.append(self.llmq)
        if self.options.llmc and self.model == "gpt2-124m":
            programs.append(self.llmc)
        for i in range(len(programs)):
            try:
                programs[(i + number) % len(programs)]()
            except Exception as error:  # pylint: disable=broad-except
                complain([self.model, programs[(i + number) % len(programs)].__name__], repr(error))
        if number == 0 and self.llmq in programs:
            self.ours("baleen, bf16 states and gradients", ["--bf16-states", "--bf16-gradients"])

    def torch_with_turns(self):
        """torch_baseline's own loop synchronises before and after each step: the turns happen in the synchronisation before every second one."""
        import torch
        import torch_baseline
        synchronize, calls = torch.cuda.synchronize, [0]

        def between_steps(*arguments):
            synchronize(*arguments)
            if sys._getframe(1).f_code is not torch_baseline.train.__code__:  # compiling synchronises too
                return
            step, before = calls[0] // 2, calls[0] % 2 == 0
            calls[0] += 1
            if before and step >= 2 and step % 2 == 0:
                torch.cuda.empty_cache()
                self.turn(step // 2 - 1)

        text = io.StringIO()
        torch.cuda.synchronize = between_steps
        try:
            torch.cuda.reset_peak_memory_stats()
            with contextlib.redirect_stdout(text):
                torch_baseline.train(types.SimpleNamespace(
                    model=self.model, seq=self.seq, micro=self.micro, accum=ACCUMULATION, steps=2 * self.options.runs, compile="block", attn="cudnn",
                    params="fp32" if self.model == "gpt2-124m" else "bf16", budget=1e9))
        finally:
            torch.cuda.synchronize = synchronize
        result = json.loads(text.getvalue().strip().splitlines()[-1])
        for seconds in result["step_s"][3::2]:  # the second after each turn
            self.add("torch.compile", self.tokens / seconds, result["peak_gib"])

    def run(self):
        begin = time.time()
        if self.options.torch:
            self.torch_with_turns()
            import torch
            torch._dynamo.reset()
            torch.cuda.empty_cache()
        else:
            for number in range(self.options.runs):
                self.turn(number)
        print(json.dumps({"workload": f"{self.model} T={self.seq} [{self.micro}]", "tokens_per_s": self.results, "gib": self.memory,
                          "seconds": round(time.time() - begin)}), flush=True)


def token_file(kind, vocabulary, count=4_000_000):
    """Random tokens in the format that LLMQ or llm.c reads."""
    path = os.path.join(tempfile.gettempdir(), f"{kind}-{os.getpid()}.bin")
    if not os.path.exists(path):
        header = array.array("i", [0] * 256)
        if kind == "llmc":
            header[0], header[1], header[2] = 20240520, 1, count
        else:
            header[0], header[1] = array.array("i", b"BIN.TOK\n")
            header[2], header[3], header[4], header[5] = 2, 4, count, vocabulary
        draw = random.Random(1)
        tokens = array.array("H" if kind == "llmc" else "i", (draw.randrange(vocabulary) for _ in range(count // 8)))
        with open(path, "wb") as file:
            header.tofile(file)
            for _ in range(8):
                tokens.tofile(file)
    return path


def print_table(comparisons):
    others = ["floor", "torch.compile", "LLMQ", "llm.c"]
    middle = lambda values: statistics.median(values) if values else None
    print("| workload | baleen | " + " | ".join(f"{o} | ratio" for o in others) + " | GiB: baleen, torch, LLMQ; baleen with bf16 states and gradients |")
    for c in comparisons:
        speed = middle(c.results.get("baleen"))
        cells = [f"{c.model} T={c.seq} [{c.micro}]", f"{speed or 0:,.0f}"]
        for other in others:
            rival = middle(c.results.get(other))
            cells += [f"{rival:,.0f}", f"{speed / rival:.3f}"] if rival and speed else ["–", "–"]
        cells.append(", ".join(str(middle(c.memory.get(p)) or "–") for p in ("baleen", "torch.compile", "LLMQ", "baleen, bf16 states and gradients")))
        print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", default="build/release/gpu_step")
    parser.add_argument("--peers", required=True, help="folder of floor.py and torch_baseline.py")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--llmq", default="", help="LLMQ's train")
    parser.add_argument("--llmq-chunks", type=int, default=4, help="its --lmhead-chunks")
    parser.add_argument("--llmc", default="", help="llm.c's train_gpt2cu, with cuDNN")
    parser.add_argument("--library-path", default="", help="LD_LIBRARY_PATH of the programs that are not Python")
    parser.add_argument("--only", default="", help="workloads: model:sequence,…")
    options = parser.parse_args()
    sys.path.insert(0, options.peers)
    wanted = [w for w in options.only.split(",") if w]
    comparisons = [Comparison(options, w) for w in WORKLOADS if not wanted or f"{w[0]}:{w[1]}" in wanted]
    for comparison in comparisons:
        comparison.run()
    print_table(comparisons)


if __name__ == "__main__":
    main()
