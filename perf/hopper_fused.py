"""Measure fused kernels on Hopper: each is verified on outputs initialized to NaN, and timed with its peers in one run.

    python perf/hopper_fused.py FOLDER [--sizes 512,4096] [--dims 64,128] [--rounds 5] [--tokens 16384] [--only attention,dual] [--regime busy]

Attention: float16 arrays (b, h, m, d), 2048 elements in all heads of a token, causal and not, compared with cuDNN (torch's
scaled_dot_product_attention). Dual GEMM and row sums, in registers and in shared memory, compared with as many GEMMs of their size by
torch; LSTM compared with the faster of two cuBLASLt kernels and Triton; perceptrons of 20 layers, M 8192. About 20 seconds to compile and 4
per row. Writes `hopper_fused.md` and `hopper_fused.json`.
"""

import argparse
import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attention as peers
from tabulate import tabulate

from fireiron.errors import FireironError
from fireiron.strategies import attention, dual, gemm_row_sum, hopper_attention, lstm, mlp

DYNAMIC = tuple({"rescale_threshold": 8, "dynamic": True, "q_in_registers": True, "heads_per_group": heads} for heads in (16, 8, 4, 2))
VALUES = {
    64: (
        {"rescale_threshold": 8, "q_in_registers": True},
        {"rescale_threshold": 8, "bm": 192, "bn": 128},
        {"rescale_threshold": 8, "order_mma": True, "bm": 256, "bn": 64},
        {"rescale_threshold": 8, "dynamic": True, "order_mma": True, "bm": 256, "bn": 64, "heads_per_group": 16},
        {"rescale_threshold": 8, "dynamic": True, "order_mma": True, "bm": 256, "bn": 64, "heads_per_group": 4},
        {"rescale_threshold": 8, "dynamic": True, "order_mma": True, "bm": 192, "bn": 128, "heads_per_group": 8},
        *DYNAMIC,
    ),
    256: tuple(
        {"rescale_threshold": 8, "bn": bn, "stages": stages, **form}
        for bn, stages in ((64, 1), (64, 2), (80, 1))
        for form in (
            {"overlap": False},
            {},
            {"order_mma": True},
            {"dynamic": True, "heads_per_group": 4},
            {"dynamic": True, "order_mma": True, "heads_per_group": 4},
        )
    ),
    128: (
        {"rescale_threshold": 8, "q_in_registers": True},
        *({"rescale_threshold": 8, "q_in_registers": True, "epi_n": 128, **one} for one in ({}, *DYNAMIC)),
    ),
}
"""Candidates by head dimension: the definition's rescale threshold, forms of the strategy, and tunable values; `persistent` and `dynamic` with a
mask.
"""

FORMS = ("overlap", "q_in_registers", "persistent", "dynamic", "order_mma")

LARGE = (4096, 6144, 8192)

SUMS = ({}, {"group_m": 4}, {"bm": 256, "bn": 192, "wm": 128, "epi_n": 64})

PRODUCTS = {
    "dual": (dual, "hopper", LARGE, ({}, {"group_m": 8}, {"bm": 256, "bn": 128, "wm": 128, "group_m": 8})),
    "gemm_row_sum": (gemm_row_sum, "hopper", LARGE, SUMS),
    "gemm_row_sum_shared": (gemm_row_sum, "hopper_shared", LARGE, SUMS[:2]),
    "lstm": (lstm, "hopper", (1024, 2048, 3072, 4096), lstm.defaults(0, 0, 0)),
    "mlp": (mlp, "hopper", (0,), ({"bm": 64, "stages": 6}, {"bm": 128, "stages": 4})),
}
"""The file, the strategy, sizes, and tunable values to try."""

LAYERS = (8192, 128, 20)


@functools.cache
def kernel_of(length, d, causal, tokens, values):
    """Return a compiled kernel for attention; None if refused."""
    given = dict(values)
    rescale_threshold, forms = given.pop("rescale_threshold", 0), {name: given.pop(name) for name in FORMS if name in given}
    if causal:
        given.pop("num_blocks", None)
    try:
        strategy = hopper_attention.by_rows(attention.definition(causal=causal, rescale_threshold=rescale_threshold), **forms).with_(
            **given
        )
        return strategy(peers.spec_of(length, d, causal, tokens, rescale_threshold)).compile("sm_90a")
    except FireironError as error:
        print(f"left out: {length} {d} {causal} {given}: {error}", flush=True)
        return None


def attention_rows(sizes, dims, tokens, rounds, regime="burst"):
    """Yield rows of the table: title, TFLOP/s of cuDNN, of each of ours, and the best ratio."""
    from fireiron.measure.timing import measure

    chosen = {
        (d, c): [tuple(one.items()) for one in VALUES[d] if c or one.keys().isdisjoint(("persistent", "dynamic"))]
        for d in dims
        for c in (False, True)
    }
    jobs = [(s, d, c, tokens, v) for s in sizes for d in dims for c in (False, True) for v in chosen[d, c]]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: kernel_of(*one), jobs))
    for length, d, causal in [(s, d, c) for s in sizes for d in dims for c in (False, True)]:
        sets = peers.sets_of(length, d, tokens)
        calls = {"peer": [peers.by_torch("CUDNN_ATTENTION", causal, one) for one in sets]}
        for values in chosen[d, causal]:
            kernel = kernel_of(length, d, causal, tokens, values)
            if kernel is not None:
                calls[str(dict(values))] = [peers.by_kernel(kernel, one) for one in sets]
                error = peers.error_of(calls[str(dict(values))][0], sets[0], causal)
                print(f"right: {length} {d} {causal} {dict(values)}: error {error:.1e}", flush=True)
        work = 4 * tokens * length * peers.WIDTH / (2 if causal else 1)
        yield row(f"attention {length} d {d}{' causal' if causal else ''}", measure(calls, rounds=rounds, regime=regime), work)


def product_rows(names, rounds, regime="burst"):
    """Yield the same for GEMM, with the peers' times for the same work."""
    from fireiron.measure.timing import measure

    for name, size in ((one, size) for one in names for size in PRODUCTS[one][2]):
        module, chosen, _, tried = PRODUCTS[name]
        spec = module.spec(*((size,) * 3 if size else LAYERS))
        sets = [operands(spec) for _ in range(2)]
        wanted = reference(module, [one.double() for one in sets[0][0]])
        calls = peers_of(module, sets)
        for values in tried:
            try:
                kernel = getattr(module, chosen).with_(**values)(spec).compile("sm_90a")
            except FireironError as error:
                print(f"left out: {name} {size} {values}: {error}", flush=True)
                continue
            launches = [kernel.prepare(*given, out=made[0] if len(made) == 1 else tuple(made)) for given, made in sets]
            for output in sets[0][1]:
                output.fill_(math.nan)
            launches[0]()
            for got, right in zip(sets[0][1], wanted, strict=True):
                error = float((got.double() - right).norm() / right.norm())
                if not error < 2e-3:
                    raise SystemExit(f"wrong: {name} {size} {values}: error {error}")
            print(f"right: {name} {size} {values}", flush=True)
            calls[str(values)] = launches
        work = 2 * size**3 * (2 if module in (dual, lstm) else 1) if size else 2 * LAYERS[0] * LAYERS[1] ** 2 * LAYERS[2]
        yield row(f"{name} {size}" if size else name, measure(calls, rounds=rounds, regime=regime), work)


def operands(spec):
    """Return random inputs of a spec, and outputs."""
    import torch

    shapes = [[int(str(size)) for size in spec.operands[one].shape] for one in (*spec.inputs, *spec.outputs)]
    count = len(spec.inputs)
    inputs = [
        torch.randn(shape_of_input, device="cuda") * (shape_of_input[-2] ** -0.5 if len(shape_of_input) > 1 and number else 1)
        for number, shape_of_input in enumerate(shapes[:count])
    ]
    return [one.half() for one in inputs], [
        torch.empty(shape_of_output, device="cuda", dtype=[torch.half, torch.float][len(shape_of_output) == 1])
        for shape_of_output in shapes[count:]
    ]


def peers_of(module, sets):
    """Return the launches of other libraries."""
    import torch

    if module is lstm:
        from cublas_lt import cublas_lt
        from fused_peers import CELLS, cells

        def two(given, out):
            between = torch.empty_like(out)
            x, w, h, r, bias = given
            first, second = cublas_lt().plan(x, w, between), cublas_lt().plan(h, r, out, bias, between)
            return lambda: (first(), second())

        calls = {"peer, two of cuBLASLt": [two(given, made[0]) for given, made in sets]}
        return calls | {f"peer, Triton {one}": [cells(*given, made[0], one, False) for given, made in sets] for one in CELLS[1:]}
    if module is mlp:
        return {}
    products = 2 if module is dual else 1

    def repeated_matmul(given, outputs):
        other = torch.empty_like(outputs[0])
        return lambda: [torch.matmul(given[0], given[1 + number], out=other) for number in range(products)]

    return {"peer, cuBLAS": [repeated_matmul(*one) for one in sets]}


def reference(module, arrays):
    """Return the outputs, in float64."""
    if module is mlp:
        x, weights, bias = arrays
        for w, b in zip(weights, bias, strict=True):
            x = (x @ w + b).relu().half().double()
        return [x]
    if module is dual:
        a, left, right = arrays
        return [a @ left + a @ right]
    if module is gemm_row_sum:
        a, b = arrays
        return [a @ b, a.sum(1)]
    x, w, h, r, bias = arrays
    return [(x @ w + h @ r + bias).relu()]


def kept(rows):
    """Return the rows of the table by name."""
    names = ("what", "peer TFLOP/s", "ours TFLOP/s", "us", "ratio", "values", "all")
    return (dict(zip(names, one, strict=True)) for one in rows)


def row(what, times, work):
    """Return a row: TFLOP/s of the best peer and of ours, microseconds of the best, and its ratio."""
    speed = {name: work / one.us / 1e6 for name, one in times.items()}
    ours = {name: one for name, one in speed.items() if not name.startswith("peer")}
    peer = max((one for name, one in speed.items() if name.startswith("peer")), default=None)
    best = max(ours, key=ours.get)
    cells = [what, peer, ours[best], times[best].us, ours[best] / peer if peer else None, best]
    print(cells, {name: round(one) for name, one in speed.items()}, flush=True)
    return [*cells, speed]


def main():
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="512,4096")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--only", default=",".join(("attention", *PRODUCTS)))
    parser.add_argument("--regime", choices=("burst", "busy"), default="burst")
    given = parser.parse_args()
    from fireiron.measure.timing import environment

    sizes, dims = ([int(one) for one in text.split(",")] for text in (given.sizes, given.dims))
    names = given.only.split(",")
    rows = list(attention_rows(sizes, dims, given.tokens, given.rounds, given.regime)) if "attention" in names else []
    rows += product_rows([one for one in names if one in PRODUCTS], given.rounds, given.regime)
    table = tabulate(
        [one[:-1] for one in rows], ("what", "peer TFLOP/s", "ours TFLOP/s", "us", "ratio", "values"), floatfmt=".4g", tablefmt="github"
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "hopper_fused.md").write_text(table + "\n")
    (given.folder / "hopper_fused.json").write_text(json.dumps({"environment": environment(), "measured": [*kept(rows)]}, indent=1) + "\n")
    print(table)


if __name__ == "__main__":
    main()
