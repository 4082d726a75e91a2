"""Run the program of docs/ladder.md, block after block as printed there, and compare each rung with cuBLAS.

    python perf/ladder.py FOLDER [--rounds 7]

Each rung is first verified against float64; all are measured together with cuBLAS (through PyTorch) in one run per size: bursts, buffers
rotated through L2. Writes `ladder.json`, `ladder.txt` and `ladder.svg` into the folder.
"""

import argparse
import json
import re
from pathlib import Path

from tabulate import tabulate

from fireiron.draw.picture import Picture
from fireiron.draw.shapes import Line, Rect, Text
from fireiron.draw.svg import svg
from fireiron.specs.matmul import MatMul
from fireiron.values.machine import GL, Kernel

DOCUMENT = Path(__file__).parent.parent / "docs" / "ladder.md"
SIZES = (2048, 4096, 8192)
LIBRARY = "cuBLAS"
WIDE, HIGH, LEFT, TOP = 420, 22, 230, 48


def program():
    """Return the results of the page's program: the strategies by rung, and the problem."""
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(compile(block, str(DOCUMENT), "exec"), scope)
    return scope["rungs"], scope["problem"]


def measured(size, rounds):
    """Return times of all rungs and of cuBLAS."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import cublas, measure

    rungs, problem = program()
    data = Data.of(MatMul(size, size, size, **problem)(GL, GL, GL)(Kernel))
    calls = {LIBRARY: data.calls(cublas)}
    for name, strategy in rungs.items():
        launches = data.calls(strategy(data.spec).compile())
        data.reset()
        data.verify(launches[0])
        calls[name] = launches
    return measure(calls, rounds=rounds)


def picture(speed, size):
    """Return the rungs as bars, with cuBLAS as a line; `speed` is TFLOP/s by name."""
    names = [name for name in speed if name != LIBRARY]
    scale = WIDE / (1.05 * max(speed.values()))
    bottom = TOP + HIGH * len(names)
    shapes = [Text(16, 26, f"TFLOP/s at {size}, bfloat16, one H200", size=14, bold=True)]
    for number, name in enumerate(names):
        y = TOP + HIGH * number
        shapes.append(Text(LEFT - 8, y + 14, name, anchor="end"))
        shapes.append(Rect(LEFT, y + 3, speed[name] * scale, HIGH - 6, fill="#4c78a8"))
        shapes.append(Text(LEFT + speed[name] * scale + 6, y + 14, f"{speed[name]:.0f}", mono=True))
    at = LEFT + speed[LIBRARY] * scale
    shapes += [Line(((at, TOP - 6), (at, bottom + 4)), stroke="#e45756", line=1.5, dash=True)]
    shapes += [Text(at, bottom + 18, f"{LIBRARY} {speed[LIBRARY]:.0f}", anchor="middle", color="#e45756")]
    return Picture("ladder", "The ladder", LEFT + WIDE + 60, bottom + 30, tuple(shapes))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    times = {size: measured(size, options.rounds) for size in SIZES}
    speed = {size: {name: 2.0 * size**3 / one.us / 1e6 for name, one in found.items()} for size, found in times.items()}
    rows = [[name, *(speed[size][name] for size in SIZES)] for name in times[SIZES[0]]]
    text = tabulate(rows, ("TFLOP/s", *map(str, SIZES)), floatfmt=".0f") + "\n"
    print(text)
    (options.folder / "ladder.txt").write_text(text)
    (options.folder / "ladder.svg").write_text(svg(picture(speed[4096], 4096)))
    us = {size: {name: [one.us, *one.quartiles] for name, one in found.items()} for size, found in times.items()}
    (options.folder / "ladder.json").write_text(
        json.dumps({"environment": environment(), "rounds": options.rounds, "us": us}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
