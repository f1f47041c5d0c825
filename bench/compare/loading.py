"""How fast ranks load a model's weights, beside `cat` of the same files from the page cache, and how much memory of its own each has then.

    python3 bench/compare/loading.py build/release/baleen FOLDER [RANKS [TURNS]]

FOLDER is a model as Hugging Face has it. `cat` and each kind of run take turns; a run's rate is the bytes that all its ranks read by the
seconds that the slowest of them says. Memory is what a rank has of its own, or shares, when it has loaded, the most over ranks and turns,
beside what it keeps: weights, and with bf16 the fp32 master weights.

The host of a virtual machine takes memory back that its guest has not used for a while, and giving it again takes longer than all loading. That
comes and goes by chance, so the quickest turns are compared, too.
"""

import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

CONFIG = """[model]
path = "{folder}"
init = "weights"
[training]
steps = 0
sequence_length = 128
micro_batch_size = 1
global_batch_size = {ranks}
device = "cpu"
[checkpoint]
every = 0
"""


def files_of(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".safetensors"))


def parameters_of(files):
    """Elements of all tensors of the files."""
    total = 0
    for path in files:
        with open(path, "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        for name, tensor in header.items():
            if name != "__metadata__":
                elements = 1
                for extent in tensor["shape"]:
                    elements *= extent
                total += elements
    return total


def seconds_of_cat(files):
    begin = time.monotonic()
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - begin


def own_bytes(pid):
    """Anonymous memory, and what the process has touched of memory that ranks share."""
    with open(f"/proc/{pid}/status") as file:
        return sum(int(value) * 1024 for value in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", file.read()))


def load(baleen, config, ranks, dtype, zero):
    """Seconds of the slowest rank, and the most memory of a rank before the run goes on."""
    with tempfile.TemporaryDirectory() as run:
        command = [baleen, "train", config, "--out", run + "/run", "--ranks", str(ranks), "--set", f"training.dtype={dtype}", "--set", f"parallelism.zero={zero}"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines, memory = [], 0
        reader = threading.Thread(target=lambda: lines.extend(process.stderr))
        reader.start()
        killed = False
        while process.poll() is None:
            if any("read in" in line for line in lines):
                # Enough: what would be saved now takes memory that the next turn then gets back cold.
                time.sleep(0.1)
                process.kill()
                killed = True
                process.wait()
            else:
                try:
                    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
                        memory = max([memory] + [own_bytes(int(pid)) for pid in file.read().split() or [process.pid]])
                except OSError:
                    pass  # it has just ended
            time.sleep(0.005)
        reader.join()
        text = "".join(lines)
        if process.returncode != 0 and not killed:
            sys.exit(text)
        seconds = [float(value) for value in re.findall(r"weights of .* read in ([0-9.]+) s", text)]
        return max(seconds), memory


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    baleen, folder = sys.argv[1:3]
    ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 2
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    files = files_of(folder)
    size, parameters = sum(os.path.getsize(path) for path in files), parameters_of(files)
    kinds = [("fp32", 3), ("bf16", 3), ("fp32", 2), ("bf16", 2)]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(CONFIG.format(folder=os.path.abspath(folder), ranks=ranks))
        config.flush()
        seconds_of_cat(files)  # into the page cache
        cat, loads = [], {kind: [] for kind in kinds}
        for _ in range(turns):
            for kind in kinds:
                cat.append(seconds_of_cat(files))
                loads[kind].append(load(baleen, config.name, ranks, *kind))
    rate, best_rate = size / statistics.median(cat) / 1e9, size / min(cat) / 1e9
    print(f"{size / 1e6:.0f} MB, {parameters / 1e6:.1f} M parameters, {ranks} ranks, medians of {turns} turns; cat {rate:.2f} GB/s, its quickest {best_rate:.2f}")
    print("| dtype, ZeRO stage | GB/s | of cat's | quickest | of cat's quickest | memory / what a rank keeps, MB |\n| --- | --- | --- | --- | --- | --- |")
    for (dtype, zero), values in loads.items():
        read = size if zero == 3 else ranks * size
        loading = read / statistics.median(seconds for seconds, _ in values) / 1e9
        best = read / min(seconds for seconds, _ in values) / 1e9
        weights = parameters * (4 if dtype == "fp32" else 2) / (ranks if zero == 3 else 1)
        kept = weights + (parameters * 4 / ranks if dtype == "bf16" else 0)
        memory = max(memory for _, memory in values)
        print(f"| {dtype}, {zero} | {loading:.2f} | {loading / rate:.2f} | {best:.2f} | {best / best_rate:.2f} | {memory / 1e6:.0f} / {kept / 1e6:.0f} = {memory / kept:.3f} |")


main()
