"""Compare Stream-K with other kernels for shapes whose tiles are not a multiple of the SMs.

    python perf/stream_k.py FOLDER [--shapes 3072x3072x3072 ...] [--rounds 9] [--waves 1 0] [--quick]

Float16, row-major, float32 accumulators. Contenders, measured alternately in one run: `hopper_stream_k` with several tiles and waves, the
tiles of `hopper` without Stream-K, `fireiron.matmul`, and `torch.matmul` (cuBLAS). Each result is first verified against float64. The
buffers are rotated, so that L2 contains none of them at the start of a launch. Writes one `stream_k_SHAPE.json` per shape into the folder.
"""

import argparse
import contextlib
import fcntl
import functools
import json
import time
from pathlib import Path

from tabulate import tabulate

import fireiron
from fireiron import *
from fireiron.strategies import hopper, hopper_stream_k

SHAPES = ("5376x5376x2048", "1536x1024x2048", "3072x3072x3072", "2560x2560x8192", "1024x2048x16384", "7168x2048x16384")
"""M x N x K."""


def torch_matmul(arrays):
    """cuBLAS on one set."""
    import torch

    a, b = (torch.as_tensor(arrays[name], device="cuda") for name in ("A", "B"))
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device="cuda")
    return functools.partial(torch.matmul, a, b, out=out)


def multiplied(arrays):
    """`fireiron.matmul` on one set."""
    return functools.partial(fireiron.matmul, arrays["A"], arrays["B"])


def kernels(shape, waves, quick):
    """Return the strategies by name."""
    tiles = hopper_stream_k.defaults(*shape)[: 2 if quick else None]
    result = {}
    for tile in tiles:
        name = f"{tile['bm']}x{tile['bn']}"
        result[f"tiles {name}"] = hopper.product.with_(**tile, group_m=4)
        for number in waves:
            result[f"stream-K {name}, {number} waves"] = hopper_stream_k.strategy.with_(**tile, waves=number)
    if not quick:
        for tile in hopper.defaults(*shape):
            result.setdefault(f"tiles {tile['bm']}x{tile['bn']}", hopper.product.with_(**tile))
    return result


@contextlib.contextmanager
def alone(folder):
    """Wait until no other process of this program measures."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measured(shape, options):
    """Return the times of all contenders by name, and the errors of our kernels."""
    from fireiron.measure.data import Data
    from fireiron.measure.timing import measure

    spec = hopper_stream_k.spec(*shape)
    start = time.time()
    compiled = {name: strategy(spec).compile() for name, strategy in kernels(shape, options.waves, options.quick).items()}
    print(f"{shape}: {len(compiled)} kernels compiled in {time.time() - start:.0f} s", flush=True)
    with alone(options.folder):
        data = Data.of(spec)
        calls, errors = {}, {}
        for name, kernel in compiled.items():
            calls[name] = data.calls(kernel)
            data.reset()
            try:
                errors[name] = data.verify(calls[name][0])
            except fireiron.errors.FireironError as error:
                print(f"WRONG {shape} {name}: {str(error)[:300]}", flush=True)
                del calls[name]
        calls["matmul"] = data.calls(multiplied)
        calls["torch.matmul"] = data.calls(torch_matmul)
        return measure(calls, rounds=options.rounds, seconds=options.seconds, pause=options.pause), errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--pause", type=float, default=0.25)
    parser.add_argument("--waves", type=int, nargs="+", default=[1, 0])
    parser.add_argument("--quick", action="store_true", help="only the first two tiles")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch  # calls cuBLAS

    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    for text in options.shapes:
        shape = tuple(map(int, text.split("x")))
        times, errors = measured(shape, options)
        us = {name: timing.us for name, timing in times.items()}
        flops = 2 * shape[0] * shape[1] * shape[2]
        rows = [
            [name, time, flops / time / 1e6, us["torch.matmul"] / time, errors.get(name)]
            for name, time in sorted(us.items(), key=lambda p: p[1])
        ]
        print(
            f"{text}\n{tabulate(rows, ('', 'us', 'TFLOP/s', 'cuBLAS/ours', 'error'), floatfmt=('', '.2f', '.0f', '.3f', '.1e'))}",
            flush=True,
        )
        kept = {"shape": shape, "times": {name: [timing.us, *timing.quartiles] for name, timing in times.items()}, "errors": errors}
        (options.folder / f"stream_k_{text}.json").write_text(json.dumps({"environment": environment(), "measured": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
