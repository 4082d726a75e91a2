"""Compare attention forward with FlashAttention-2 and cuDNN (both by torch's scaled_dot_product_attention), in one run.

    python perf/attention.py FOLDER [--sizes 512,1024,2048,4096,8192,16384] [--dims 64,128] [--types float16] [--rounds 7] [--tokens 16384]
        [--masks 0,1] [--pause 0.25] [--forms] [--rival FILE] [--peers FA2,cuDNN]

16k tokens, 2048 elements in all heads of a token, arrays (b, h, m, d), causal and not. "fireiron" is `fireiron.attention`. With `--forms`,
forms of `hopper_attention` with other values of their tunables (`FORMS`) are measured, too. Each result is first verified against float64,
on outputs initialized to NaN; then all are measured in bursts, with buffers rotated through L2. Writes `attention.json` (all times) and
`attention.md` (the table).

The file of a rival is a Python file with a name `NAME` and a function `forward(q, k, v, out, causal)`, which returns a launch, or None if the
rival does not support the problem. So other libraries can be compared in the same run, and nothing of them is part of this repository.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import math
from pathlib import Path

from tabulate import tabulate

from fireiron import Strides
from fireiron.errors import FireironError
from fireiron.strategies import attention, hopper_attention

WIDTH = 2048
"""Elements of all heads of a token."""

PEERS = {"FA2": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION"}
"""Backends of torch."""

MOST = {"float16": 1e-3, "bfloat16": 8e-3}
"""Maximum relative Frobenius error by element type."""

FORMS = {
    (64, False): (("strategy", {}), ("order_mma", {}), ("q_in_registers", {})),
    (64, True): (
        ("causal_order_mma", {"bm": 256, "bn": 64}),
        ("causal_order_mma", {"bm": 192, "bn": 128}),
        ("causal_order_mma", {"bm": 192, "bn": 96}),
        ("causal_order_mma", {"bm": 192, "bn": 112}),
        ("causal_dynamic", {"bm": 192, "bn": 128}),
    ),
    (128, False): (
        ("q_in_registers", {"num_blocks": 65536}),
        ("order_mma", {"bm": 192, "bn": 80}),
        ("order_mma", {"bm": 192, "bn": 80, "num_blocks": 65536}),
        ("strategy", {"bn": 160, "num_blocks": 65536}),
        ("wide", {"bn": 176}),
        ("q_in_registers", {"bn": 144}),
    ),
    (128, True): (
        ("causal_dynamic_q_in_registers", {"heads_per_group": 1}),
        ("causal_dynamic_q_in_registers", {"heads_per_group": 2}),
        ("causal_dynamic_q_in_registers", {"heads_per_group": 4}),
        ("causal_dynamic_q_in_registers", {"bn": 112}),
        ("causal_order_mma", {"bm": 192, "bn": 80}),
        ("causal_order_mma", {"bm": 192, "bn": 64}),
    ),
    (256, False): (("wide", {}), ("strategy", {})),
    (256, True): (("causal", {}), ("causal_wide", {}), ("causal_dynamic", {})),
}
"""Forms of `hopper_attention`, with tunables that differ from their usual values, by elements of a head and mask."""


def spec_of(length, d, causal, tokens, rescale_threshold=0, **options):
    """Return the problem, with arrays of torch, (b, h, m, d)."""
    heads = WIDTH // d
    order = {"b": heads * length * d, "g": length * d, "d": 1}
    queries, keys = Strides(**order, r=length * d, m=d), Strides(**order, n=d)
    definition = attention.definition(causal=causal, rescale_threshold=rescale_threshold)
    return attention.spec(
        length, length, d, heads=heads, batch=tokens // length, fused=definition, Q=queries, O=queries, K=keys, V=keys, **options
    )


@functools.cache
def kernel_of(length, d, causal, tokens, dtype, form, values):
    """Return the compiled kernel of a form of `hopper_attention` with pairs of tunables and values; None if refused."""
    import fireiron

    spec = spec_of(length, d, causal, tokens, hopper_attention.RESCALE_THRESHOLD, dtype=getattr(fireiron, dtype))
    strategy = getattr(hopper_attention, form)
    known = {**hopper_attention.values_of(form, spec), **dict(values)}
    try:
        return strategy.with_(**{name: value for name, value in known.items() if name in strategy.tunables()})(spec).compile("sm_90a")
    except FireironError as error:
        print(f"left out: {length} {d} {causal} {form} {values}: {error}", flush=True)
        return None


def as_queries(array):
    """Return an array (b, h, m, d) as `[b,m,g,r,d]`."""
    b, h, m, d = array.shape
    return array.as_strided((b, m, h, 1, d), (h * m * d, d, m * d, m * d, 1))


def as_keys(array):
    """Return an array (b, h, n, d) as `[b,n,g,d]`."""
    return array.permute(0, 2, 1, 3)


def sets_of(length, d, tokens, dtype="float16"):
    """Return arrays (q, k, v, o) of standard normal numbers, more than L2 holds."""
    import torch

    shape = (tokens // length, WIDTH // d, length, d)
    set_bytes = 4 * 2 * math.prod(shape)
    generator = torch.Generator(device="cuda").manual_seed(0)
    count, kind = max(2, -(-120_000_000 // set_bytes)), {"device": "cuda", "dtype": getattr(torch, dtype)}
    return [[*(torch.randn(shape, generator=generator, **kind) for _ in range(3)), torch.empty(shape, **kind)] for _ in range(count)]


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


def by_fireiron(causal, arrays):
    """Return a launch of `fireiron.attention`."""
    import fireiron

    q, k, v, o = arrays
    return functools.partial(fireiron.attention, q, k, v, causal=causal, out=o)


def rival_of(file):
    """Return the module of a rival."""
    loaded = importlib.util.spec_from_file_location("rival", file)
    module = importlib.util.module_from_spec(loaded)
    loaded.loader.exec_module(module)
    return module


def forms_of(length, d, causal, tokens, dtype):
    """Return the compiled kernels of `FORMS` by name."""
    listed = {f"{form} {values or ''}".strip(): (form, tuple(values.items())) for form, values in FORMS[d, causal]}
    kernels = {name: kernel_of(length, d, causal, tokens, dtype, *one) for name, one in listed.items()}
    return {name: kernel for name, kernel in kernels.items() if kernel is not None}


def own_launches(length, d, causal, dtype, sets, given):
    """Return the launches that write to the given outputs, by contender: a launch for each set of arrays."""
    calls = {"fireiron": [by_fireiron(causal, one) for one in sets]}
    if given.rival is not None:
        rival = rival_of(given.rival)
        calls |= {rival.NAME: [rival.forward(*one, causal) for one in sets]}
    if given.forms:
        kernels = forms_of(length, d, causal, given.tokens, dtype)
        calls |= {name: [by_kernel(kernel, one) for one in sets] for name, kernel in kernels.items()}
    return {name: launches for name, launches in calls.items() if None not in launches}


def measured(length, d, causal, dtype, given):
    """Return TFLOP/s and errors by contender."""
    from fireiron.measure.timing import measure

    sets = sets_of(length, d, given.tokens, dtype)
    calls = own_launches(length, d, causal, dtype, sets, given)
    errors = {name: error_of(launches[0], sets[0], causal, MOST[dtype]) for name, launches in calls.items()}
    for name in filter(None, given.peers.split(",")):
        launches = [by_torch(PEERS[name], causal, one) for one in sets]
        try:
            launches[0]()
        except RuntimeError as error:
            print(f"left out: {name}: {str(error).splitlines()[0]}", flush=True)
            continue
        calls[name] = launches
    times = measure(calls, rounds=given.rounds, pause=given.pause)
    work = 4 * given.tokens * length * WIDTH / (2 if causal else 1)
    return {name: work / one.us / 1e6 for name, one in times.items()}, errors


def table_of(records):
    """Return the table, with the ratios of `fireiron` to the other contenders, and their geometric means by (d, type, causal)."""
    names = list(dict.fromkeys(name for record in records for name in record["TFLOP/s"] if name != "fireiron"))
    rows, ratios = [], {}
    for record in records:
        speed, key = record["TFLOP/s"], (record["d"], record["type"], record["causal"])
        own = {name: speed["fireiron"] / speed[name] for name in names if name in speed}
        ratios.setdefault(key, []).append(own)
        rows.append([*key, record["length"], speed["fireiron"], *(text for name in names for text in (speed.get(name), own.get(name)))])
    heads = ["d", "type", "causal", "length", "fireiron TFLOP/s", *(text for name in names for text in (name, "ratio"))]
    lines = [tabulate(rows, heads, floatfmt=".4g", tablefmt="github"), ""]
    for key, listed in ratios.items():
        means = {name: statistics_of([one[name] for one in listed if name in one]) for name in names}
        lines.append(f"{key}: geometric mean (lowest) of " + ", ".join(f"{name} {mean}" for name, mean in means.items() if mean))
    return "\n".join(lines)


def statistics_of(ratios):
    """Return the geometric mean and the lowest value, as text."""
    return f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} ({min(ratios):.3f})" if ratios else ""


def main():
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="512,1024,2048,4096,8192,16384")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--types", default="float16")
    parser.add_argument("--masks", default="0,1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pause", type=float, default=0.25)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--peers", default="FA2,cuDNN")
    parser.add_argument("--forms", action="store_true", help="measure `FORMS`, too")
    parser.add_argument("--rival", type=Path, help="a Python file with NAME and forward")
    given = parser.parse_args()
    sizes, dims, masks = ([int(one) for one in text.split(",")] for text in (given.sizes, given.dims, given.masks))
    records = []
    for d, dtype, causal, length in itertools.product(dims, given.types.split(","), [bool(one) for one in masks], sizes):
        speed, errors = measured(length, d, causal, dtype, given)
        records.append({"d": d, "type": dtype, "causal": causal, "length": length, "TFLOP/s": speed, "errors": errors})
        print(d, dtype, "causal" if causal else "full", length, {name: round(one) for name, one in speed.items()}, flush=True)
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "attention.json").write_text(json.dumps(records, indent=1))
    (given.folder / "attention.md").write_text(table_of(records) + "\n")
    print(table_of(records))


if __name__ == "__main__":
    main()
