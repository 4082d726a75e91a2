"""Compare attention forward with FlashAttention-2 and cuDNN (both by torch's scaled_dot_product_attention), in one run.

    python perf/attention.py FOLDER [--sizes 512,1024,2048,4096,8192,16384] [--dims 64,128] [--rounds 7] [--tune 4096] [--tokens 16384]
        [--default]

Float16, 16k tokens, 2048 elements in all heads of a token, arrays (b, h, m, d), causal and not. At the size `--tune` all of `CANDIDATES`
are measured, and the best of each (d, causal) is used for the other sizes. Each kernel is first verified against float64, on outputs
initialized to NaN; then all are measured in bursts, with buffers rotated through L2. Writes `attention.json` (all times) and `attention.md`
(the table).
"""

import argparse
import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tabulate import tabulate

from fireiron import Strides
from fireiron.errors import FireironError
from fireiron.language.library import defaults, find
from fireiron.strategies import attention

WIDTH = 2048
"""Elements of all heads of a token."""

FIRST = {"q_in_registers": False, "bm": 128, "bn": 64, "wm": 32, "stages": 2, "bd": 64, "heads_per_group": 0, "rescale_threshold": 0}
"""The strategy's values: queries in registers or not, the tunables, and the rescale threshold."""

LIBRARY = ("library",)
"""The default strategy and values of the library."""

CANDIDATES = {
    128: (
        {},
        {"bd": 128},
        {"rescale_threshold": 8},
        {"rescale_threshold": 8, "bd": 128},
        {"bn": 32, "bd": 128, "rescale_threshold": 8},
        {"wm": 16, "rescale_threshold": 8},
        {"heads_per_group": 4},
        {"heads_per_group": 1, "rescale_threshold": 8},
    ),
    64: (
        {},
        {"bn": 128},
        {"rescale_threshold": 8},
        {"bn": 128, "rescale_threshold": 8},
        {"q_in_registers": True, "rescale_threshold": 8},
        {"wm": 16, "rescale_threshold": 8},
        {"heads_per_group": 4, "bn": 128},
    ),
}
"""Differences from these, by head dimension."""


def candidates_of(d, causal):
    """Return the values to measure. The order of blocks is varied only with a mask."""
    return [tuple({**FIRST, **one}.values()) for one in CANDIDATES[d] if causal or "heads_per_group" not in one]


HEADS = ("d", "causal", "length", "FA2 TFLOP/s", "cuDNN TFLOP/s", "fireiron TFLOP/s", "of FA2", "of cuDNN", "values")


def spec_of(length, d, causal, tokens, rescale_threshold=0):
    """Return the problem, with arrays of torch, (b, h, m, d)."""
    heads = WIDTH // d
    order = {"b": heads * length * d, "g": length * d, "d": 1}
    queries, keys = Strides(**order, r=length * d, m=d), Strides(**order, n=d)
    definition = attention.definition(causal=causal, rescale_threshold=rescale_threshold)
    return attention.spec(length, length, d, heads=heads, batch=tokens // length, fused=definition, Q=queries, O=queries, K=keys, V=keys)


@functools.cache
def kernel_of(length, d, causal, tokens, values):
    """Return a compiled kernel with given values, or the library's default; None if refused."""
    if values == LIBRARY:
        spec = spec_of(length, d, causal, tokens)
        name, own = defaults(spec, "sm_90")[0]
        return find(name).strategy.with_(**own)(spec).compile("sm_90")
    given = dict(zip(FIRST, values, strict=True))
    held, rescale_threshold = given.pop("q_in_registers"), given.pop("rescale_threshold")
    if not causal:
        del given["heads_per_group"]
    strategy = attention.by_rows(attention.definition(causal=causal, rescale_threshold=rescale_threshold), held).with_(**given)
    try:
        return strategy(spec_of(length, d, causal, tokens, rescale_threshold)).compile("sm_90")
    except FireironError as error:
        print(f"left out: {length} {d} {causal} {values}: {error}", flush=True)
        return None


def as_queries(array):
    """Return an array (b, h, m, d) as `[b,m,g,r,d]`."""
    b, h, m, d = array.shape
    return array.as_strided((b, m, h, 1, d), (h * m * d, d, m * d, m * d, 1))


def as_keys(array):
    """Return an array (b, h, n, d) as `[b,n,g,d]`."""
    return array.permute(0, 2, 1, 3)


def sets_of(length, d, tokens):
    """Return arrays (q, k, v, o) of standard normal numbers, more than L2 holds."""
    import torch

    shape = (tokens // length, WIDTH // d, length, d)
    set_bytes = 4 * 2 * math.prod(shape)
    generator = torch.Generator(device="cuda").manual_seed(0)
    count = max(2, -(-120_000_000 // set_bytes))
    return [
        [*(torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16) for _ in range(3)), torch.empty(shape, device="cuda", dtype=torch.float16)]
        for _ in range(count)
    ]  # fmt: skip


def by_torch(backend, causal, arrays):
    """Return a launch of torch's attention by a backend."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v, _ = arrays

    def call():
        with sdpa_kernel(getattr(SDPBackend, backend)), torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return call


def by_kernel(kernel, arrays):
    """Return a launch of our kernel."""
    import numpy

    q, k, v, o = arrays
    scale = numpy.float32(q.shape[-1] ** -0.5)
    return functools.partial(kernel, as_queries(q), as_keys(k), as_keys(v), scale, out=as_queries(o))


def error_of(call, arrays, causal, most=1e-3):
    """The Frobenius error of the first, the middle and the last head compared with float64, on an output initialized to NaN; `most` is
    allowed.
    """
    import torch

    q, k, v, o = arrays
    o.fill_(math.nan)
    call()
    worst = 0.0
    b, h = o.shape[:2]
    for batch, head in {(0, 0), (b // 2, h // 2), (b - 1, h - 1)}:
        keys, values = k[batch, head].double(), v[batch, head].double()
        for start in range(0, o.shape[2], 2048):
            rows = slice(start, start + 2048)
            scores = q[batch, head, rows].double() @ keys.T * q.shape[-1] ** -0.5
            if causal:
                places = torch.arange(scores.shape[1], device=q.device)
                scores.masked_fill_(places[None] > torch.arange(start, start + len(scores), device=q.device)[:, None], -math.inf)
            right = scores.softmax(-1) @ values
            worst = max(worst, float((o[batch, head, rows].double() - right).norm() / right.norm()))
    if not (worst < most) or not bool(torch.isfinite(o).all()):
        raise SystemExit(f"wrong: {tuple(o.shape)} causal {causal}: error {worst}")
    return worst


def measured(length, d, causal, tokens, chosen, rounds):
    """Return times in microseconds by contender."""
    from fireiron.measure.timing import measure

    sets = sets_of(length, d, tokens)
    calls, errors = {}, {}
    for name, backend in (("FA2", "FLASH_ATTENTION"), ("cuDNN", "CUDNN_ATTENTION")):
        launches = [by_torch(backend, causal, one) for one in sets]
        try:
            launches[0]()
        except RuntimeError as error:
            print(f"left out: {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        calls[name] = launches
    for values in chosen:
        kernel = kernel_of(length, d, causal, tokens, values)
        if kernel is not None:
            launches = [by_kernel(kernel, one) for one in sets]
            errors[values] = error_of(launches[0], sets[0], causal)
            calls[values] = launches
    return measure({str(name): one for name, one in calls.items()}, rounds=rounds), errors, {str(name): name for name in calls}


def main():
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tune", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--default", action="store_true", help="measure what the library takes, and no candidates")
    given = parser.parse_args()
    sizes, dims = ([int(one) for one in text.split(",")] for text in (given.sizes, given.dims))
    order = [given.tune, *(one for one in sizes if one != given.tune)]
    best, rows, records = {(d, c): LIBRARY for d in dims for c in (False, True)} if given.default else {}, {}, []
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda one: kernel_of(*one),
                [
                    (given.tune, d, c, given.tokens, v)
                    for d in dims
                    for c in (False, True)
                    for v in (() if given.default else candidates_of(d, c))
                ],
            )
        )
        for length in order:
            problems = [(d, causal) for d in dims for causal in (False, True)]
            if length != given.tune or given.default:
                list(pool.map(lambda one: kernel_of(*one), [(length, *one, given.tokens, best[one]) for one in problems]))
            for d, causal in problems:
                chosen = candidates_of(d, causal) if length == given.tune and not given.default else (best[d, causal],)
                times, errors, names = measured(length, d, causal, given.tokens, chosen, given.rounds)
                work = 4 * given.tokens * length * WIDTH / (2 if causal else 1)
                speed = {names[name]: work / one.us / 1e6 for name, one in times.items()}
                ours = {name: one for name, one in speed.items() if isinstance(name, tuple)}
                best.setdefault((d, causal), max(ours, key=ours.get))
                values = best[d, causal]
                peers = [speed.get("FA2"), speed.get("cuDNN")]
                rows[d, causal, length] = [d, causal, length, *peers, ours[values], *(one and ours[values] / one for one in peers), values]
                print(rows[d, causal, length], {str(name): round(one) for name, one in ours.items()}, flush=True)
                records.append({"d": d, "causal": causal, "length": length, "TFLOP/s": {str(k): v for k, v in speed.items()}, "errors": {str(k): v for k, v in errors.items()}})  # fmt: skip
    table = tabulate([rows[one] for one in sorted(rows)], HEADS, floatfmt=".3g", tablefmt="github")
    for d in dims:
        for causal in (False, True):
            ratios = [row[6] for key, row in rows.items() if key[:2] == (d, causal) and row[6]]
            mean = math.exp(sum(map(math.log, ratios)) / max(len(ratios), 1))
            table += f"\n\nd {d}, causal {causal}: geometric mean of FA2 {mean:.3f}"
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "attention.json").write_text(json.dumps(records, indent=1))
    (given.folder / "attention.md").write_text(table + "\n")
    print(table)


if __name__ == "__main__":
    main()
