#!/usr/bin/env python3
"""`baleen bench train` on the CPU beside PyTorch (eager and torch.compile) and llm.c, taking turns; see cpu.sh.

    cpu.py [--rounds N] [--steps N] [--threads N] [--cases gpt2-fp32,gpt2-bf16,llama-fp32,llama-bf16,ddp-fp32,ddp-bf16,ranks]
           [--torch PYTHON] [--llmc-program PROGRAM] [--no-compile] [--cpus 0,1] [--baleen BINARY] [--before BINARY]

Prints each program's median tokens/s and the median over rounds of the first one's speed divided by its own in the same round, and the GEMM rate of oneDNN,
its best and its median of about a second before and after baleen's turn in every round, with the median over rounds of baleen's part of both (model FLOPs with full attention: 6N + 12·L·C·T a
token, N without the position table). --before is another baleen that takes turns with the first.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

GPT2 = """[model]
architecture = "gpt2"
n_embd = 384
n_layer = 6
n_head = 6
n_positions = 256
vocab_size = 50304
"""
LLAMA = """[model]
architecture = "llama"
hidden_size = 384
intermediate_size = 1024
num_hidden_layers = 10
num_attention_heads = 6
num_key_value_heads = 6
vocab_size = 32000
max_position_embeddings = 1024
tie_word_embeddings = true
"""
# Model, tokens of a sequence, sequences of a micro-batch, micro-batches of one rank; FLOPs of a token.
SHAPES = {
    "gpt2": (GPT2, 256, 4, 1, 6 * (50304 * 384 + 6 * 12 * 384 * 384) + 12 * 6 * 384 * 256),
    "llama": (LLAMA, 1024, 2, 1, 6 * (32000 * 384 + 10 * (4 * 384 * 384 + 3 * 384 * 1024)) + 12 * 10 * 384 * 1024),
}


def tuned(threads):
    """The environment of a well set up peer: freed memory stays with the process, in huge pages."""
    return dict(
        os.environ,
        OMP_NUM_THREADS=str(threads),
        MALLOC_TRIM_THRESHOLD_=str(1 << 36),
        MALLOC_MMAP_THRESHOLD_=str(1 << 36),
        MALLOC_TOP_PAD_=str(1 << 28),
        GLIBC_TUNABLES="glibc.malloc.hugetlb=1",
    )


def pin(pid, cpus):
    """Every thread of a process and of its children."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)
        for child in (task / "children").read_text().split():
            pin(int(child), cpus)


class Peer:
    """A program that answers `steps` with tokens/s, as cpu_peer.py does. It may start on all processors while others do, too."""

    def __init__(self, name, command, threads):
        self.name, self.command = name, command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=tuned(threads))

    def started(self, cpus):
        if self.process.stdout.readline().strip() != "ready":
            self.close()
            print(f"skipped: {self.name} did not start: {' '.join(map(str, self.command))}", flush=True)
            return False
        if cpus:
            pin(self.process.pid, cpus)
        return True

    def measure(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()


class Baleen:
    def __init__(self, name, binary, model, dtype, threads, ranks=1, accumulate=1, settings=()):
        self.name, self.binary, self.ranks, self.cpus = name, binary, ranks, None
        shape, length, batch, _, _ = SHAPES[model]
        self.file = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.file.write(
            f'{shape}[training]\ndtype = "{dtype}"\ndevice = "cpu"\nthreads = {threads}\nsequence_length = {length}\n'
            f"micro_batch_size = {batch}\nglobal_batch_size = {batch * ranks * accumulate}\n"
        )
        self.file.flush()
        self.settings = [word for setting in settings for word in ("--set", setting)]

    def measure(self, steps):
        command = [self.binary, "bench", "train", self.file.name, "--ranks", str(self.ranks), "--steps", str(steps), "--json", *self.settings]
        settle = (lambda: os.sched_setaffinity(0, self.cpus)) if self.cpus else None
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=settle)
        result = json.loads(run.stdout)
        return result["tokens_per_s"]

    def started(self, cpus):
        self.cpus = cpus
        return True

    def close(self):
        self.file.close()


def turns(title, programs, arguments, steps, flops=0, rate=None):
    """Every program once a round; the first is baleen. rate() gives the best and the median GEMM rate of the moment."""
    rounds, programs = arguments.rounds, [program for program in programs if program.started(arguments.cpus)]
    speeds, rates = {program.name: [] for program in programs}, []
    for _ in range(rounds):
        for program in programs:
            first = rate is not None and program is programs[0]
            before = rate() if first else None
            speeds[program.name].append(program.measure(steps))
            if first:
                rates.append([(one + other) / 2 for one, other in zip(before, rate())])
    for program in programs:
        program.close()
    spread = lambda values: 100 * (max(values) - min(values)) / statistics.median(values)
    ours = speeds[programs[0].name]
    print(f"\n{title} ({rounds} rounds of {steps} steps)", flush=True)
    for name, values in speeds.items():
        ratios = [a / b for a, b in zip(ours, values)]
        print(
            f"  {name:<34} {statistics.median(values):>9.1f} tokens/s (best {max(values):.1f}, spread {spread(values):3.0f} %)"
            f"   first / this {statistics.median(ratios):6.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )
    for kind, of_rounds in zip(("best", "median"), zip(*rates)):
        reached = [speed * flops / 1e9 for speed in ours]
        parts = [part / rate for part, rate in zip(reached, of_rounds)]
        print(
            f"  {f'baleen of the {kind} GEMM rate':<34} {statistics.median(reached):>9.1f} of {statistics.median(of_rounds):.1f} GFLOP/s"
            f" (spread {spread(of_rounds):3.0f} %)   {statistics.median(parts):.3f} ({min(parts):.3f} to {max(parts):.3f}),"
            f" the best of the greatest {max(reached) / max(of_rounds):.3f}",
            flush=True,
        )


def gemm_rate(arguments, dtype):
    """Prints the library's version and rates, and returns a function that measures the better one; None without the program."""
    program = ROOT / "build/release/matmul_rate" if arguments.rate is None else Path(arguments.rate)
    if not program.exists():
        print("GEMM rate: skipped, build the target matmul_rate for it")
        return None
    settle = (lambda: os.sched_setaffinity(0, arguments.cpus)) if arguments.cpus else None

    def measure():
        run = subprocess.run([program, dtype, "0.5"], stdout=subprocess.PIPE, text=True, env=tuned(arguments.threads), preexec_fn=settle)
        return run.stdout.splitlines()

    lines = measure()
    for line in lines:
        print(line)
    return (lambda: [float(word) for word in measure()[-1].split()[2:4]]) if lines else None


def torch_peer(arguments, name, model, dtype, threads, compiled, ranks=1, accumulate=1):
    _, length, batch, _, _ = SHAPES[model]
    command = [arguments.torch, HERE / "cpu_peer.py", model, "--dtype", dtype, "--threads", str(threads), "--length", str(length)]
    command += ["--batch", str(batch), "--accumulate", str(accumulate), "--ranks", str(ranks)] + (["--compile"] if compiled else [])
    return Peer(name, command, threads)


def peers(arguments, model, dtype, **how):
    found = []
    if arguments.torch:
        for compiled in (False, True) if arguments.compile else (False,):
            label = "DDP over gloo" if how.get("ranks", 1) > 1 else "PyTorch"
            found.append(torch_peer(arguments, f"{label}, {'torch.compile' if compiled else 'eager'}", model, dtype, compiled=compiled, **how))
    if arguments.llmc_program and model == "gpt2" and dtype == "fp32" and how.get("ranks", 1) == 1:
        checkpoint = Path(arguments.folder) / "llmc.bin"
        found.append(Peer("llm.c", [arguments.llmc_program, checkpoint, "4", "256"], how["threads"]))
    return found


def run_case(case, arguments):
    kind, _, dtype = case.partition("-")
    steps = arguments.steps

    def baleens(name, *what, **how):
        binaries = {name: arguments.baleen} | ({f"{name}, before": arguments.before} if arguments.before else {})
        return [Baleen(label, binary, *what, **how) for label, binary in binaries.items()]

    if kind in SHAPES:
        rate = gemm_rate(arguments, dtype)
        ours = baleens("baleen", kind, dtype, arguments.threads)
        others = peers(arguments, kind, dtype, threads=arguments.threads)
        turns(f"{kind} {dtype}, {arguments.threads} threads", [*ours, *others], arguments, steps, SHAPES[kind][4], rate)
    elif kind == "ddp":
        # 8,192 tokens a step on two ranks of one thread.
        ours = baleens("baleen 2 x 1", "gpt2", dtype, 1, ranks=2, accumulate=4)
        others = peers(arguments, "gpt2", dtype, threads=1, ranks=2, accumulate=4)
        turns(f"gpt2 {dtype}, 2 ranks x 1 thread, 8,192 tokens a step", [*ours, *others], arguments, max(1, steps // 3))
    elif kind == "ranks":
        # The same 8,192 tokens a step on one thread, on two ranks of one, on one rank of two.
        make = lambda name, threads, ranks, *settings: Baleen(name, arguments.baleen, "gpt2", "fp32", threads, ranks, 8 // ranks, settings)
        programs = [make("2 ranks x 1 thread", 1, 2), make("1 rank x 1 thread", 1, 1), make("1 rank x 2 threads", 2, 1)]
        programs.append(make("2 ranks x 1 thread, no overlap", 1, 2, "comm.overlap=false"))
        turns("gpt2 fp32, 8,192 tokens a step", programs, arguments, max(1, steps // 3))
    else:
        sys.exit(f"no case named '{case}'")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", default="gpt2-fp32,gpt2-bf16,llama-fp32,llama-bf16,ddp-fp32,ddp-bf16,ranks")
    parser.add_argument("--torch", default="", help="a Python with PyTorch; none: PyTorch is left out")
    parser.add_argument("--llmc-program", default="", help="llmc_step.c, built")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--cpus", type=lambda text: [int(cpu) for cpu in text.split(",")], help="processors that all programs are kept on, as 0,1")
    parser.add_argument("--baleen", default=str(ROOT / "build/release/baleen"))
    parser.add_argument("--before", help="a baleen to compare with")
    parser.add_argument("--rate", help="the program matmul_rate")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments.folder = folder
        for case in arguments.cases.split(","):
            run_case(case, arguments)


if __name__ == "__main__":
    main()
