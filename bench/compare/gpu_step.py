#!/usr/bin/env python3
"""gpu_step beside floor.py and torch_baseline.py on the reference workloads: interleaved runs on one GPU, medians and their ratio.

    python3 bench/compare/gpu_step.py --step build/release/gpu_step --peers ../shared/peers --runs 3 [--torch] [--only gpt2-124m]

The peers need torch and triton. Prints a JSON line a run, then a table.
"""
import argparse
import json
import statistics
import subprocess
import sys

WORKLOADS = [  # model, sequence, micro-batch, further options of gpu_step (the peers pad GPT-2's vocabulary)
    ("qwen2.5-0.5b", 1024, 32, []),
    ("gpt2-124m", 1024, 64, ["--vocab", "50304"]),
    ("llama-3.2-1b", 1024, 16, []),
    ("qwen2.5-1.5b", 1024, 16, []),
    ("qwen2.5-1.5b", 4096, 4, []),
    ("qwen2.5-3b", 1024, 16, []),
]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--step", default="build/release/gpu_step")
    parser.add_argument("--peers", required=True, help="folder of floor.py and torch_baseline.py")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="steps of each run of gpu_step")
    parser.add_argument("--torch", action="store_true", help="torch_baseline.py too, once a workload")
    parser.add_argument("--only", default="", help="a model")
    options = parser.parse_args()
    rows = []
    for model, sequence, micro, more in WORKLOADS:
        if options.only and options.only != model:
            continue
        shape = ["--model", model, "--seq", str(sequence), "--micro", str(micro), "--accum", "8"]
        ours, floors, torch = [], [], None
        for _ in range(options.runs):
            step = run([options.step, *shape, *more, "--steps", str(options.steps)])
            floor = run([sys.executable, f"{options.peers}/floor.py", *shape])
            ours += [step] if step else []
            floors += [floor] if floor else []
        if options.torch:
            torch = run([sys.executable, f"{options.peers}/torch_baseline.py", *shape])
        for result in (*ours, *floors, torch):
            if result:
                print(json.dumps(result), flush=True)
        if ours and floors:
            rows.append((f"{model} T={sequence} [{micro}]", statistics.median(r["tokens_per_s"] for r in ours),
                         statistics.median(r["floor_tokens_per_s"] for r in floors), torch["tokens_per_s"] if torch else None,
                         ours[-1]["peak_gib"], torch["peak_gib"] if torch else None))
    print(f"{'workload':<28} {'tokens/s':>9} {'floor':>9} {'ratio':>6} {'torch':>9} {'ratio':>6} {'GiB':>6} {'torch':>6}")
    for name, speed, floor, torch, memory, torch_memory in rows:
        print(f"{name:<28} {speed:>9.0f} {floor:>9.0f} {speed / floor:>6.3f} {torch or 0:>9.0f} {speed / torch if torch else 0:>6.3f} {memory:>6} {torch_memory or 0:>6}")


if __name__ == "__main__":
    main()
