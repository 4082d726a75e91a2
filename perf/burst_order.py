"""Measure how the time of one kernel depends on what the GPU computed before: the same kernel several times among contenders.

    python perf/burst_order.py FOLDER [--shapes 1024x8192x16384,...]

Contenders are cuBLAS (through PyTorch), `fireiron.matmul`, and two compiled copies of its kernel with prepared launches. They run in several
orders, with several pauses and lengths of bursts. Each burst begins with a replay that is not timed. Each line has the rounds in
microseconds, and the SM clock before and after them. Writes `burst_order.json`.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from misaligned_choice import Case, launch_of, sets_of
from tune_grid import library, multiplied, shapes

import fireiron
from fireiron.gpu import state as gpu_state
from fireiron.gpu.kernel import CompiledKernel

SHAPES = ((1024, 8192, 16384), (6335, 1872, 9720), (4096, 8192, 1024))

PLANS = (
    ("prepared, then 3 rounds each", True, 0.012, 3, 1, False),
    ("prepared, then 3 rounds each, again", True, 0.012, 3, 1, False),
    ("prepared, backward", True, 0.012, 3, 1, True),
    ("3 bursts of 2 rounds", False, 0.012, 2, 3, False),
    ("3 bursts of 2 rounds, alternately backward", False, 0.012, 2, 3, None),
    ("3 bursts of 2 rounds, 50 ms", False, 0.05, 2, 3, None),
    ("2 bursts of 2 rounds, 150 ms", False, 0.15, 2, 2, None),
)
"""A title; whether contenders are prepared again; the pause in seconds; rounds per burst; bursts; backward (None: every other time)."""


def contenders_of(torch, case):
    """Return the launches of each contender on each operand set."""
    sets = sets_of(torch, case)
    choice = fireiron.matmul.choice(*sets[0][:2], out=sets[0][2])
    copies = [CompiledKernel(choice.program) for _ in range(2)]
    return choice, {
        "cuBLAS": [library(torch, case, one) for one in sets],
        "matmul": [multiplied(case, *one) for one in sets],
        **{f"copy {number}": [launch_of(case, 1, (copy,), one) for one in sets] for number, copy in enumerate(copies, 1)},
    }


def clock():
    """Return the SM clock in MHz, the power in watts and the reasons of a limit."""
    state = gpu_state.read_state()
    return None if state is None else (state.clock, state.power, state.throttle_reasons)


def prepared(calls):
    """Return the replays of all contenders."""
    from fireiron.gpu import launch
    from fireiron.measure.timing import _on, _prepared, _stream

    cupy = launch.require_cupy()
    stream = _stream(cupy, cupy.cuda.Device().id)
    with _on(stream):
        return {name: _prepared(cupy, stream, name, tuple(one), "rotated", None) for name, one in calls.items()}


def bursts(replays, pause, rounds, count, backward):
    """Return, for each burst in order, its contender, its rounds, and the clocks before and after."""
    lines = []
    for number in range(count):
        names = list(replays)
        if backward or (backward is None and number % 2):
            names.reverse()
        for name in names:
            time.sleep(pause)
            replays[name].warm(number * rounds)
            before = clock()
            times = [replays[name].round(number * rounds + one) for one in range(rounds)]
            lines.append((name, times, before, clock()))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", type=shapes, default=SHAPES, help="MxNxK,...")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    torch.zeros(1, device="cuda")
    start = time.monotonic()
    clock()
    print(f"reading the state takes {1000 * (time.monotonic() - start):.1f} ms: {clock()}", flush=True)
    entries = []
    for shape in options.shapes:
        choice, calls = contenders_of(torch, Case(shape, "float16", "NN"))
        print(f"{'x'.join(map(str, shape))}: {choice.why}", flush=True)
        replays = prepared(calls)
        for title, anew, pause, rounds, count, backward in PLANS:
            replays = prepared(calls) if anew else replays
            lines = bursts(replays, pause, rounds, count, backward)
            entries.append({"shape": shape, "plan": title, "bursts": lines})
            print(f" {title}, {1000 * pause:.0f} ms")
            for name in calls:
                own = [line for line in lines if line[0] == name]
                times = [one for line in own for one in line[1]]
                text = " | ".join(f"{' '.join(f'{one:.1f}' for one in line[1])} {line[2]} {line[3]}" for line in own)
                print(f"  {name:7} {statistics.median(times):.1f}: {text}", flush=True)
            (options.folder / "burst_order.json").write_text(json.dumps(entries) + "\n")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
