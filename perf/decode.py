"""Compare attention of one query to many keys with cuDNN and FlashAttention-2 (torch), and with a kernel that only reads the same bytes.

    python perf/decode.py FOLDER [--sizes 4096,16384,65536] [--rounds 5] [--all]

Float16, 32 query heads over 8 key heads, head dimension 128, 8 sequences; keys and values (b, g, n, d). Ours are the two kernels of
`attention_decode`, the second started while the first ends. Torch's attention gets the queries of the heads that share keys as rows of one
head (`rows`: keys are read once), and as separate heads (`enable_gqa`). Each result is first verified against float64, on outputs
initialized to NaN. With `--all` more sizes of parts and more tunable values. About 10 seconds per size. Writes `decode.md`.
"""

import argparse
import functools
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from skinny import READER
from tabulate import tabulate

from fireiron import Strides
from fireiron.errors import FireironError
from fireiron.strategies import attention_decode

BATCH, HEADS, ROWS, D = 8, 8, 4, 128

FEW = ({}, {"parts": 2}, {"parts": 4}, {"bn": 64, "stages": 2}, {"stages": 2})
MORE = (
    {"parts": 8},
    {"bn": 16, "stages": 4},
    {"stages": 4},
    {"bn": 16, "stages": 4, "parts": 2},
    {"stages": 2, "parts": 2},
    {"bn": 64, "stages": 3},
)
"""Candidates: multiples of the library's number of parts, and tunable values."""


@functools.cache
def kernels_of(keys, values):
    """Return the two kernels, compiled; None if refused."""
    given = dict(values)
    default_size = attention_decode.size_for(keys, BATCH * HEADS)
    size = max(64, default_size // given.pop("parts", 1))
    strides = Strides(b=HEADS * keys * D, g=keys * D, n=D, d=1)
    try:
        return attention_decode.kernels(
            ROWS, keys, D, HEADS, BATCH, size, architecture="sm_90a", tunables=tuple(given.items()), K=strides, V=strides
        )
    except FireironError as error:
        print(f"left out: {keys} {dict(values)}: {error}", flush=True)
        return None


def by_kernels(pair, arrays):
    """Return a launch of both kernels."""
    import numpy
    import torch

    q, k, v, o = arrays
    first, second = pair
    parts = [torch.empty([int(str(one)) for one in first.program.spec.operands[name].shape], device="cuda") for name in "PTS"]
    launch_parts = first.prepare(q, k.transpose(1, 2), v.transpose(1, 2), numpy.float32(D**-0.5), out=tuple(parts))
    combine = second.prepare(*parts, out=o)

    def call():
        launch_parts()
        combine()

    return call


def by_torch(backend, rows, arrays):
    """Return a launch of torch's attention by a backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, _ = arrays
    q = q if rows else q.reshape(BATCH, HEADS * ROWS, 1, D)

    def call():
        with sdpa_kernel(getattr(SDPBackend, backend)), torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=not rows)

    return call


def reader(arrays):
    """Return a launch that reads keys and values, which are in one array."""
    import cupy

    _, k, v, _ = arrays
    kernel, sink = cupy.RawKernel(READER, "read_all"), cupy.zeros(1, dtype=cupy.uint32)
    blocks = 4 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    count, start = 2 * k.numel() * 2 // 16, min(k.data_ptr(), v.data_ptr())
    return functools.partial(kernel, (blocks,), (512,), (start, count, sink))


def sets_of(keys):
    """Return two sets (q, k, v, o) of standard normal numbers, with keys and values adjacent."""
    import torch

    def random(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.float16)

    torch.manual_seed(0)
    both = [random(2, BATCH, HEADS, keys, D) for _ in range(2)]
    return [[random(BATCH, HEADS, ROWS, D), *one, torch.empty(BATCH, HEADS, ROWS, D, device="cuda", dtype=torch.float16)] for one in both]


def error_of(call, arrays):
    """Return the error of a launch in the norm, against float64."""
    q, k, v, o = arrays
    o.fill_(math.nan)
    call()
    wanted = [((q[b].double() @ k[b].double().transpose(-1, -2)) * D**-0.5).softmax(-1) @ v[b].double() for b in range(BATCH)]
    return max(float((got.double() - one).norm() / one.norm()) for got, one in zip(o, wanted, strict=True))


def measured(keys, chosen, rounds):
    """Return the times of all contenders by name."""
    from fireiron.measure.timing import measure

    sets, calls = sets_of(keys), {}
    for values in chosen:
        pair = kernels_of(keys, values)
        if pair is None:
            continue
        calls[str(dict(values))] = [by_kernels(pair, one) for one in sets]
        errors = [error_of(call, one) for call, one in zip(calls[str(dict(values))], sets, strict=True)]
        if not max(errors) < 2e-3:
            raise SystemExit(f"wrong: {keys} {dict(values)}: {errors}")
        print(f"right: {keys} {dict(values)}: error {max(errors):.1e}", flush=True)
    for backend, rows in ((name, rows) for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION") for rows in (True, False)):
        name = f"{'cuDNN' if backend[0] == 'C' else 'FA2'} {'rows' if rows else 'gqa'}"
        peers = [by_torch(backend, rows, one) for one in sets]
        try:
            peers[0]()
        except RuntimeError as error:
            print(f"left out: {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        calls[name] = peers
    return measure({**calls, "reader": [reader(one) for one in sets]}, rounds=rounds, pause=0.1)


def main():
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="4096,16384,65536")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    sizes = [int(one) for one in given.sizes.split(",")]
    chosen = [tuple(one.items()) for one in FEW + (MORE if given.all else ())]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: kernels_of(*one), [(keys, one) for keys in sizes for one in chosen]))
    rows = []
    for keys in sizes:
        us = {name: one.us for name, one in measured(keys, chosen, given.rounds).items()}
        print(keys, {name: round(one, 1) for name, one in us.items()}, flush=True)
        ours = {name: one for name, one in us.items() if name.startswith("{")}
        best, peers = min(ours, key=ours.get), [one for name, one in us.items() if name.startswith(("cuDNN", "FA2"))]
        speed = 2 * BATCH * HEADS * keys * D * 2 / us["reader"] / 1e6
        rows.append(
            [keys, us["{}"], us[best], min(peers, default=math.nan), us["reader"], speed, us["reader"] / us["{}"], us["reader"] / us[best], min(peers, default=math.nan) / us[best], best]
        )  # fmt: skip
    heads = ("keys", "own us", "best us", "best peer us", "reader us", "reader TB/s", "reader/own", "reader/best", "peer/best", "best")
    table = tabulate(rows, heads, floatfmt=".4g", tablefmt="github")
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "decode.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
