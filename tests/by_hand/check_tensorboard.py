"""TensorBoard's own reader gives back the scalars of a run's metrics.jsonl, step by step, and nothing else.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tensorboard
    /tmp/venv/bin/python tests/by_hand/check_tensorboard.py RUN

Prints one line and exits 0, or what differs and 1. tests/e2e/events_test.cpp checks the same with a reader of its own, in CI.
"""

import json
import math
import pathlib
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def main():
    run = pathlib.Path(sys.argv[1])
    events = EventAccumulator(str(run / "events"), size_guidance={"scalars": 0})
    events.Reload()
    found = {(tag, event.step): event.value for tag in events.Tags()["scalars"] for event in events.Scalars(tag)}
    wanted = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        wanted.update({(key, row["step"]): fp32(value) for key, value in row.items() if key != "step" and value is not None})
    differing = [key for key in sorted(found.keys() | wanted.keys()) if not math.isclose(found.get(key, math.nan), wanted.get(key, math.nan), rel_tol=0)]
    for key in differing[:20]:
        print(f"{key[0]} of step {key[1]}: TensorBoard {found.get(key)}, metrics.jsonl {wanted.get(key)}")
    if differing or not wanted:
        print(f"tensorboard: FAILED, {len(differing)} of {len(wanted)} scalars differ")
        sys.exit(1)
    print(f"tensorboard: ok, {len(wanted)} scalars of {len({step for _, step in wanted})} steps")


main()
