"""Measure attention as in BERT at MLPerf's sizes, and the unfused chain: GEMM, softmax, GEMM (Graphene, Figure 14).

    python perf/bert_attention.py FOLDER [--heads 16] [--batch 32] [--d 64] [--length 384] [--rounds 5]

The arrays (b, h, m, d) are float16. Contenders: ours by mma.sync and by wgmma (`hopper_attention`), with several tunable values; torch.bmm,
our softmax kernel, torch.bmm, as Graphene's baseline; the same with PyTorch's softmax; FlashAttention-2 and cuDNN by torch's
scaled_dot_product_attention. The scale is part of the first GEMM. Each is compared with float64 on outputs initialized to NaN. Then all,
and the parts of the chain alone, are measured alternately, in bursts, on operand sets that rotate through L2. About 20 seconds on an H200.
Writes `bert.json` and `bert.txt` into the folder.
"""

import argparse
import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attention import by_kernel, by_torch, error_of
from fused import PAUSE, say
from tabulate import tabulate

from fireiron import Strides
from fireiron.errors import FireironError
from fireiron.strategies import attention, hopper_attention, softmax

CANDIDATES = ((False, 128, 128, 32, 2), (True, 128, 64, 32, 2), (False, 128, 64, 32, 2), (False, 64, 128, 32, 2), (False, 64, 64, 32, 2))
"""Queries in registers or not, bm, bn, wm, stages."""

ENGINES = (
    {"rescale_threshold": 8},
    {"rescale_threshold": 8, "q_in_registers": True},
    {"rescale_threshold": 8, "bm": 192, "bn": 96},
    {"rescale_threshold": 8, "q_in_registers": True, "bm": 192, "bn": 96},
)
"""By wgmma: the definition's rescale threshold, queries in registers, the tile."""


def kernel_of(options, values):
    """Return our kernel with given values; None if refused."""
    held, bm, bn, wm, stages = values
    spec = spec_of(options, attention.definition())
    strategy = attention.by_rows(attention.definition(), held).with_(bm=bm, bn=bn, wm=wm, stages=stages)
    return compiled(strategy(spec), "sm_90", values)


def engine_of(options, values):
    """Return our wgmma kernel with given values; None if refused."""
    given = dict(values)
    definition = attention.definition(rescale_threshold=given.pop("rescale_threshold"))
    strategy = hopper_attention.by_rows(definition, q_in_registers=given.pop("q_in_registers", False)).with_(**given)
    return compiled(strategy(spec_of(options, definition)), "sm_90a", values)


def spec_of(options, definition):
    """Return the problem of a definition, with arrays (b, h, m, d)."""
    length, d, heads = options.length, options.d, options.heads
    order = {"b": heads * length * d, "g": length * d, "d": 1}
    queries, keys = Strides(**order, r=length * d, m=d), Strides(**order, n=d)
    return attention.spec(length, length, d, heads=heads, batch=options.batch, fused=definition, Q=queries, O=queries, K=keys, V=keys)


def compiled(strategy, target, values):
    """Return a compiled kernel; None if refused."""
    try:
        return strategy.compile(target)
    except FireironError as error:
        say(f"left out: {values}: {str(error).splitlines()[0]}")
        return None


def softmax_kernel(options):
    """Return our softmax kernel for the rows of all scores."""
    spec = softmax.spec(options.batch * options.heads * options.length, options.length)
    return softmax.strategy.with_(**softmax.values(spec))(spec).compile("sm_90")


class UnfusedAttention:
    """The unfused chain on an operand set, with separate memory for scores and probabilities."""

    def __init__(self, torch, arrays, room, kernel):
        self.torch = torch
        self.q, self.k, self.v, self.o = (one.flatten(0, 1) for one in arrays)
        self.scores, self.shares = (one.flatten(0, 1) for one in room)
        flat = [one.flatten(0, 1) for one in (self.scores, self.shares)]
        self.ours = kernel.prepare(flat[0], out=flat[1])

    def first(self):
        """Compute the scores."""
        self.scores.baddbmm_(self.q, self.k.transpose(1, 2), beta=0, alpha=self.q.shape[-1] ** -0.5)

    def last(self):
        """Compute the weighted sums of values."""
        self.torch.bmm(self.shares, self.v, out=self.o)

    def by_ours(self):
        """Run the chain with our softmax."""
        self.first()
        self.ours()
        self.last()

    def by_torch(self):
        """Run the chain with PyTorch's softmax."""
        self.first()
        self.torch.softmax(self.scores, -1, out=self.shares)
        self.last()


def contenders(torch, options, sets, kernels, kernel):
    """Return launches by name: those that compute attention, and parts of the chain."""
    b, h, m, _ = sets[0][0].shape
    room = [tuple(torch.zeros(b, h, m, m, device="cuda", dtype=torch.float16) for _ in range(2)) for _ in sets]
    chains = [UnfusedAttention(torch, one, place, kernel) for one, place in zip(sets, room)]
    launches_by_name = {f"ours {values}": [by_kernel(one, arrays) for arrays in sets] for values, one in kernels.items()}
    launches_by_name |= {"chain": [one.by_ours for one in chains], "chain, torch.softmax": [one.by_torch for one in chains]}
    for name, backend in (("FA2", "FLASH_ATTENTION"), ("cuDNN", "CUDNN_ATTENTION")):
        launches = [by_torch(backend, False, one) for one in sets]
        try:
            launches[0]()
        except RuntimeError as error:
            say(f"left out: {name}: {str(error).splitlines()[0]}")
            continue
        launches_by_name[name] = launches
    parts = {
        "first product": [one.first for one in chains],
        "softmax": [one.ours for one in chains],
        "last product": [one.last for one in chains],
    }
    return launches_by_name, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    for name, value in (("heads", 16), ("batch", 32), ("d", 64), ("length", 384), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(8) as pool:
        by_name = {str(one): kernel for one, kernel in zip(CANDIDATES, pool.map(functools.partial(kernel_of, options), CANDIDATES))}
        by_name |= {f"wgmma {one}": kernel for one, kernel in zip(ENGINES, pool.map(functools.partial(engine_of, options), ENGINES))}
    kernels = {values: one for values, one in by_name.items() if one is not None}
    say(f"{len(kernels)} kernels")
    import torch

    from fireiron.measure.timing import environment, measure

    shape = (options.batch, options.heads, options.length, options.d)
    drawn = lambda: torch.randn(shape, device="cuda", dtype=torch.float16)
    sets = [[drawn(), drawn(), drawn(), torch.empty_like(drawn())] for _ in range(max(2, math.ceil(150e6 / (8 * math.prod(shape)))))]
    complete, parts = contenders(torch, options, sets, kernels, softmax_kernel(options))
    # PyTorch's attention returns a new array, so its output is not compared. The chain rounds scores to float16.
    compared = {name: calls[0] for name, calls in complete.items() if name not in ("FA2", "cuDNN")}
    errors = {name: error_of(call, sets[0], False, 3e-3 if name.startswith("chain") else 1e-3) for name, call in compared.items()}
    say(f"all results are correct: largest error {max(errors.values()):.1e}")
    times = {name: one.us for name, one in measure(complete | parts, rounds=options.rounds, pause=PAUSE).items()}
    least = lambda engines: min(
        (one for one in times if one.startswith("ours") and ("wgmma" in one) == engines), key=times.get, default=None
    )
    best, engine = least(False), least(True)
    work = 4e-6 * math.prod(shape) * options.length
    by = lambda us, one: None if one is None else us / times[one]
    rows = [[name, us, work / us if name in complete else None, by(us, best), by(us, engine)] for name, us in times.items()]
    heads = ("contender", "us", "TFLOP/s", "time by mma.sync", "by wgmma")
    text = tabulate(rows, heads, floatfmt=("", ".1f", ".0f", ".2f", ".2f")) + "\n"
    print(text)
    (options.folder / "bert.txt").write_text(text)
    given = {"heads": options.heads, "batch": options.batch, "d": options.d, "length": options.length}
    record = {"environment": environment(), **given, "us": times, "best": best, "best by wgmma": engine, "errors": errors}
    (options.folder / "bert.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
