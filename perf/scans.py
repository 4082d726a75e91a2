"""Measure prefix sums and linear recurrences of long rows, each in one kernel with look-back, against a copy of the same bytes.

    python perf/scans.py FOLDER [--sizes 20,22,24,26,28] [--rounds 7]

Float32. Contenders, measured alternately in one run: `look_back` with several tiles in registers and in shared memory, `torch.cumsum`, `cupy.cumsum` (CUB), a scan of whole rows by
blocks where a row fits, and a copy with as many bytes read and written. A recurrence reads two arrays and writes one. Inputs of sums are small
integers, so that each result is compared bit by bit with a scan in float64. A second launch on normal numbers must give the same bits as the
first one. Buffer sets rotate, so that none stays in the L2 cache. Writes `scans.txt` and `scans.json` into the folder.
"""

import argparse
import functools
import json
from pathlib import Path

from tabulate import tabulate

from fireiron import *

sums = Fused(
    name="sums", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"scan": "t[m,n] = cumsum(n, X[m,n])", "out": "Y[m,n] = t[m,n]"},
)  # fmt: skip
recurrence = Fused(
    name="recurrence", dims="m n", operands={"A": "m n", "X": "m n", "Y": "m n"},
    body={"scan": "h[m,n] = linear_recurrence(n, A[m,n], X[m,n])", "out": "Y[m,n] = h[m,n]"},
)  # fmt: skip

DEFINITIONS = {"sums": sums, "recurrence": recurrence}

TILES = {
    "sums": {
        "256 threads x 16": (8, 16, 0, RF), "256 threads x 32": (8, 32, 0, RF), "512 threads x 32, 2 blocks per SM": (16, 32, 2, RF),
        "256 threads x 48 in shared memory, 4 blocks per SM": (8, 48, 4, SH), "512 threads x 48 in shared memory": (16, 48, 2, SH),
        "128 threads x 64 in shared memory, 7 blocks per SM": (4, 64, 7, SH), "256 threads x 32 in shared memory, 6 blocks per SM": (8, 32, 6, SH),
    },
    "recurrence": {
        "256 threads x 16": (8, 16, 0, RF), "256 threads x 32": (8, 32, 0, RF), "384 threads x 32": (12, 32, 0, RF),
        "256 threads x 24 in shared memory, 4 blocks per SM": (8, 24, 4, SH), "512 threads x 24 in shared memory": (16, 24, 2, SH),
        "128 threads x 32 in shared memory, 7 blocks per SM": (4, 32, 7, SH), "256 threads x 16 in shared memory, 6 blocks per SM": (8, 16, 6, SH),
    },
}  # fmt: skip
"""Warps per block, elements per thread, blocks per SM for which registers are limited, and the memory of tiles."""


def pieces(elements, *how):
    """Return the strategy of loads and stores: four adjacent elements per lane, and `elements` per thread in iterations of its warp."""
    return Move.tile(1, 32 * elements).to(Warp).tile(1, 4).to(Lane).done(*how)


def in_tiles(definition, warps, elements, length, blocks=0, memory=RF):
    """Return the strategy of one pass over tiles of `warps` x 32 x `elements` elements, in registers or in shared memory."""
    tile = warps * 32 * elements
    chain = definition.tile(m=1, n=tile).to(Block).look_back() if tile < length else definition.tile(m=1).to(Block)
    chain = chain.min_blocks_per_sm(blocks) if blocks else chain
    for name in ("A", "X") if definition is recurrence else ("X",):
        chain = chain.load(name, memory, pieces(elements, *CP_ASYNC[:1]) if memory == SH else pieces(elements))
    return chain.step("out", pieces(elements)).done()


def sets_of(rows, length, names, integers=True):
    """Return sets of arrays on the GPU, with at least 240 MB."""
    import torch

    count = min(max(2, -(-240_000_000 // (4 * rows * length * (len(names) + 1)))), 16)
    result = []
    for _ in range(count):
        arrays = {name: torch.randint(-4, 5, (rows, length), device="cuda").float() for name in names}
        if not integers:
            arrays = {name: torch.randn(rows, length, device="cuda") for name in names}
        if "A" in names:
            arrays["A"] = torch.rand(rows, length, device="cuda") * 0.5 + 0.5
        result.append({**arrays, "Y": torch.full((rows, length), float("nan"), device="cuda")})
    return result


def launched(kernel, arrays, names):
    """Return the call of a kernel on one set."""
    return functools.partial(kernel, *(arrays[name] for name in names), out=arrays["Y"])


def verified(kernel, arrays, names):
    """Return a text about the result of a kernel; a `ValueError` if it is wrong."""
    import torch

    arrays["Y"].fill_(float("nan"))
    launched(kernel, arrays, names)()
    first = arrays["Y"].clone()
    if names == ["X"]:
        exact = torch.equal(first, torch.cumsum(arrays["X"].double(), 1).float())
        if not exact:
            raise ValueError("the sums of integers are not exact")
    else:
        wanted = recurred(arrays["A"], arrays["X"])
        error = (first.double() - wanted).norm() / wanted.norm()
        if not error < 1e-5:
            raise ValueError(f"relative error {error:.1e}")
    other = {name: torch.randn_like(arrays[name]) if name == "X" else arrays[name] for name in names}
    results = []
    for _ in range(3):
        result = torch.full_like(first, float("nan"))
        kernel(*(other[name] for name in names), out=result)
        results.append(result)
    if not all(torch.equal(results[0], result) for result in results):
        raise ValueError("two launches differ")


def recurred(a, x):
    """Return the recurrence in float64, by doubling."""
    import torch

    factor, value, distance = a.double(), x.double(), 1
    while distance < a.shape[1]:
        earlier_factor, earlier = torch.ones_like(factor), torch.zeros_like(value)
        earlier_factor[:, distance:], earlier[:, distance:] = factor[:, :-distance], value[:, :-distance]
        value, factor, distance = factor * earlier + value, factor * earlier_factor, distance * 2
        if distance > 4096:  # a product of 4096 factors below 1 is zero in float64
            break
    return value


def copied(arrays, names):
    """Return copies that read and write as many bytes."""
    import torch

    if names == ["X"]:
        return functools.partial(arrays["Y"].copy_, arrays["X"])
    return functools.partial(torch.add, arrays["A"], arrays["X"], out=arrays["Y"])


@functools.cache
def compiled(label, warps, elements, in_parts, blocks, memory):
    """Return a kernel for rows of any length that is a multiple of 4, or, if rows are not in parts, of one tile."""
    tile = warps * 32 * elements
    definition, length = DEFINITIONS[label], sym("N", multiple_of=4) if in_parts else tile
    return in_tiles(definition, warps, elements, tile + 1 if in_parts else tile, blocks, memory)(
        definition(m=sym("M"), n=length, dtype=float32)
    ).compile()


def measured(label, names, rows, length, rounds):
    """Return microseconds of all contenders by name."""
    import cupy
    import torch

    from fireiron.measure.timing import measure

    sets, calls = sets_of(rows, length, names), {}
    for name, (warps, elements, blocks, memory) in TILES[label].items():
        tile = warps * 32 * elements
        if tile > max(length, 4096):
            continue
        kernel = compiled(label, warps, elements, tile < length or length % tile != 0, blocks, memory)
        try:
            verified(kernel, sets[0], names)
        except ValueError as error:
            print(f"left out: {rows} x {length}, {name}: {error}", flush=True)
            continue
        calls[name] = [launched(kernel, arrays, names) for arrays in sets]
    calls["copy"] = [copied(arrays, names) for arrays in sets]
    if names == ["X"]:
        calls["torch.cumsum"] = [functools.partial(torch.cumsum, arrays["X"], 1, out=arrays["Y"]) for arrays in sets]
        if rows == 1:
            flat = [[cupy.from_dlpack(arrays[name].reshape(-1)) for name in ("X", "Y")] for arrays in sets]
            calls["cupy.cumsum"] = [functools.partial(cupy.cumsum, x, out=y) for x, y in flat]
    return {name: timing.us for name, timing in measure(calls, rounds=rounds, seconds=0.3, pause=0.05).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="20,22,24,26,28")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    shapes = [(1, 2 ** int(size)) for size in options.sizes.split(",")] + [(4096, 4096), (64, 2**18)]
    rows, kept = [], []
    for label, names in (("sums", ["X"]), ("recurrence", ["A", "X"])):
        for m, n in shapes:
            if names != ["X"] and n > 2**26:
                continue
            us = measured(label, names, m, n, options.rounds)
            torch.cuda.empty_cache()
            best = min((name for name in us if name in TILES[label]), key=us.get, default="copy")
            moved = 4 * m * n * (len(names) + 1)
            rows.append(
                [label, f"{m} x {n}", us[best], moved / us[best] / 1e6, us["copy"] / us[best], us.get("torch.cumsum"),
                 us.get("cupy.cumsum"), best]
            )  # fmt: skip
            kept.append({"definition": label, "rows": m, "length": n, "us": us})
            print(rows[-1], {name: round(time, 1) for name, time in us.items()}, flush=True)
    heads = ("definition", "rows x length", "look_back us", "TB/s", "copy/look_back", "torch.cumsum us", "cupy.cumsum us", "tile")
    text = tabulate(rows, heads, floatfmt=".3f") + "\n"
    print(text)
    (options.folder / "scans.txt").write_text(text)
    (options.folder / "scans.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
