"""Fused kernels on Hopper, each verified on outputs that were NaN, and timed beside its peer in one run.

    python perf/hopper_fused.py FOLDER [--sizes 512,4096] [--dims 64,128] [--rounds 5] [--tokens 16384] [--only attention,dual]

Attention: halves, arrays (b, h, m, d), 2048 elements in all heads of a token, causal and not, beside cuDNN (torch's
scaled_dot_product_attention). Dual products, row sums and LSTM of M = N = K = 4096 beside one product of their size by torch, and perceptrons of
20 layers, M 8192. About 20 seconds to compile and 4 a row. Writes `hopper_fused.md` and `hopper_fused.json`.
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

DYNAMIC = tuple({"slack": 8, "dynamic": True, "held": True, "together": together} for together in (16, 8, 4, 2))
VALUES = {
    64: ({"slack": 8}, {"slack": 8, "held": True}, {"slack": 8, "bm": 192, "bn": 96}, {"slack": 8, "held": True, "stays": True}, *DYNAMIC),
    128: ({"slack": 8}, {"slack": 8, "held": True}, {"slack": 8, "bm": 192, "bn": 80}, {"slack": 8, "held": True, "stays": True}, *DYNAMIC),
}
"""What is tried, by the size of a head: the definition's slack, forms of the strategy, and its tunables; `stays` and `dynamic` under a mask."""

PRODUCTS = {
    "dual": (
        dual,
        "hopper",
        ({}, {"fly": 0}, {"depth": 3}, {"depth": 4}, {"bk": 32, "stages": 4, "depth": 4}, {"bk": 32, "stages": 5, "depth": 4}),
    ),
    "gemm_row_sum": (gemm_row_sum, "hopper", ({}, {"stages": 3})),
    "lstm": (lstm, "hopper", ({}, {"bk": 32, "stages": 4})),
    "mlp": (mlp, "hopper", ({"bm": 64, "stages": 6}, {"bm": 128, "stages": 4})),
}
"""The file, the strategy, and tunables that are tried."""

SIZE, LAYERS = 4096, (8192, 128, 20)


@functools.cache
def kernel_of(length, d, causal, tokens, values):
    """A compiled kernel for attention; None where it is refused."""
    given = dict(values)
    slack, forms = given.pop("slack", 0), {name: given.pop(name) for name in ("delayed", "held", "stays", "dynamic") if name in given}
    if causal:
        given.pop("blocks", None)
    try:
        strategy = hopper_attention.by_rows(attention.definition(causal=causal, slack=slack), **forms).with_(**given)
        return strategy(peers.spec_of(length, d, causal, tokens, slack)).compile("sm_90a")
    except FireironError as error:
        print(f"left out: {length} {d} {causal} {given}: {error}", flush=True)
        return None


def attention_rows(sizes, dims, tokens, rounds):
    """Rows of the table: what, TFLOP/s of cuDNN, of each of ours, and the best ratio."""
    from fireiron.measure.timing import measure

    chosen = {
        (d, c): [tuple(one.items()) for one in VALUES[d] if c or one.keys().isdisjoint(("stays", "dynamic"))]
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
        yield row(f"attention {length} d {d}{' causal' if causal else ''}", measure(calls, rounds=rounds), work)


def product_rows(names, rounds):
    """The same of products, beside torch's product of one of them."""
    import torch

    from fireiron.measure.timing import measure

    for name in names:
        module, chosen, tried = PRODUCTS[name]
        spec = module.spec(*(LAYERS if name == "mlp" else (SIZE,) * 3))
        shapes = [tuple(int(str(size)) for size in spec.operands[one].shape) for one in (*spec.inputs, *spec.outputs)]
        count = len(spec.inputs)
        arrays = [
            torch.randn(one, device="cuda") * (one[-2] ** -0.5 if len(one) > 1 and number else 1)
            for number, one in enumerate(shapes[:count])
        ]
        arrays = [one.half() for one in arrays]
        single = spec.outputs[1:] and [torch.empty(shapes[-1], device="cuda")]
        outputs = [torch.empty(shapes[count], device="cuda").half(), *(single or ())]
        wanted, calls = reference(name, [one.double() for one in arrays]), {}
        if name != "mlp":
            other = torch.empty_like(outputs[0])
            calls["peer"] = [lambda other=other, arrays=arrays: torch.matmul(arrays[0], arrays[1], out=other)] * 2
        for values in tried:
            kernel = getattr(module, chosen).with_(**values)(spec).compile("sm_90a")
            call = kernel.prepare(*arrays, out=outputs[0] if len(outputs) == 1 else tuple(outputs))
            for one in outputs:
                one.fill_(math.nan)
            call()
            for got, right in zip(outputs, wanted, strict=True):
                error = float((got.double() - right).norm() / right.norm())
                if not error < 2e-3:
                    raise SystemExit(f"wrong: {name} {values}: error {error}")
            print(f"right: {name} {values}", flush=True)
            calls[str(values)] = [call] * 2
        products = {"dual": 2, "lstm": 2}.get(name, 1)
        work = 2 * LAYERS[0] * 128 * 128 * LAYERS[2] if name == "mlp" else 2 * SIZE**3 * products
        yield row(name, measure(calls, rounds=rounds), work, 2 * SIZE**3)


def reference(name, arrays):
    """The outputs, in float64."""
    if name == "mlp":
        x, weights, bias = arrays
        for w, b in zip(weights, bias, strict=True):
            x = (x @ w + b).relu().half().double()
        return [x]
    if name == "dual":
        a, left, right = arrays
        return [a @ left + a @ right]
    if name == "gemm_row_sum":
        a, b = arrays
        return [a @ b, a.sum(1)]
    x, w, h, r, bias = arrays
    return [(x @ w + h @ r + bias).relu()]


def kept(rows):
    """The rows of the table by name."""
    names = ("what", "peer TFLOP/s", "ours TFLOP/s", "us", "ratio", "values", "all")
    return (dict(zip(names, one, strict=True)) for one in rows)


def row(what, times, work, of_peer=None):
    """A row: TFLOP/s of the peer and of ours, microseconds of the best, and its ratio."""
    speed = {name: (work if name != "peer" or of_peer is None else of_peer) / one.us / 1e6 for name, one in times.items()}
    ours = {name: one for name, one in speed.items() if name != "peer"}
    best = max(ours, key=ours.get)
    found = [what, speed.get("peer"), ours[best], times[best].us, ours[best] / speed["peer"] if "peer" in speed else None, best]
    print(found, {name: round(one) for name, one in ours.items()}, flush=True)
    return [*found, ours]


def main():
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="512,4096")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--only", default=",".join(("attention", *PRODUCTS)))
    given = parser.parse_args()
    from fireiron.measure.timing import environment

    sizes, dims = ([int(one) for one in text.split(",")] for text in (given.sizes, given.dims))
    names = given.only.split(",")
    rows = list(attention_rows(sizes, dims, given.tokens, given.rounds)) if "attention" in names else []
    rows += product_rows([one for one in names if one in PRODUCTS], given.rounds)
    table = tabulate(
        [one[:-1] for one in rows], ("what", "peer TFLOP/s", "ours TFLOP/s", "us", "ratio", "values"), floatfmt=".4g", tablefmt="github"
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "hopper_fused.md").write_text(table + "\n")
    (given.folder / "hopper_fused.json").write_text(json.dumps({"environment": environment(), "measured": [*kept(rows)]}, indent=1) + "\n")
    print(table)


if __name__ == "__main__":
    main()
