"""Measure five networks with attention as a custom operator of PyTorch, end to end (Graphene, Figure 15): albert, bert, roberta,
distilroberta, xlm-roberta.

    python perf/networks.py FOLDER [--networks bert,albert] [--rounds 15] [--batch 32] [--length 384] [--compile layers|whole|none]

The architectures in their base configurations, built here with random weights, in float16, without masks. Each network runs with attention
as softmax(QK^T)V of single operations, as torch's scaled_dot_product_attention, and as our kernel in a `torch.library.custom_op`, the last
two also with torch.compile (layer by layer, which all networks share, or as a whole). Each output is compared with the network in float32
and with the first one; the operator alone with float64, on an output initialized to NaN; and a network whose attention ignores its scores
must be reported as wrong. Times are of whole networks, from CUDA events, medians of rounds in which all run alternately. Writes
`networks.json` and `networks.txt` into the folder; takes less than a minute on an H100 or H200.
"""

import argparse
import functools
import json
import math
import statistics
import time
from pathlib import Path

import attrs
from tabulate import tabulate

from fireiron.language.library import defaults, find
from fireiron.strategies import attention

WARM = 3
"""Runs of each contender before the rounds."""

TOLERANCE = 1e-2
"""Relative error of a network in float16, in the Frobenius norm. A network without scores must be five times as far away."""

HEADS = (
    "network", "softmax(QK^T)V, ms", "SDPA, ms", "SDPA compiled, ms", "ours, ms", "ours compiled, ms",
    "softmax / ours", "SDPA / ours", "SDPA compiled / ours", "both compiled", "attention's share", "error",
)  # fmt: skip


@attrs.frozen
class Network:
    """An encoder's configuration. `embedding`: elements of a token's embedding, projected to `hidden` if they differ; `shared`: all layers
    have the same weights; `first`: the position of the first token; `approximate`: torch's name of the GELU formula.
    """

    vocabulary: int
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    embedding: int = 768
    shared: bool = False
    positions: int = 512
    first: int = 0
    types: int = 2
    epsilon: float = 1e-12
    approximate: str = "none"

    @property
    def head(self):
        """Elements of a head."""
        return self.hidden // self.heads


ROBERTA = Network(50265, positions=514, first=2, types=1, epsilon=1e-5)

NETWORKS = {
    "albert": Network(30000, embedding=128, shared=True, approximate="tanh"),
    "bert": Network(30522),
    "roberta": ROBERTA,
    "distilroberta": attrs.evolve(ROBERTA, layers=6),
    "xlm-roberta": attrs.evolve(ROBERTA, vocabulary=250002),
}
"""The base configuration of each."""


# ------------------------------------------------------------------------------------------ attention


def program_arguments(batch, queries, keys, heads, head):
    """Return the library's arguments, and the spec, for projections of `heads * head` elements per token, stored row by row."""
    spec = attention.spec(queries, keys, head, heads=heads, batch=batch)
    name, values = defaults(spec)[0]
    return find(name).strategy.with_(**values), spec


@functools.cache
def kernel_of(*shape):
    """Return the kernel of a shape, compiled once."""
    strategy, spec = program_arguments(*shape)
    return strategy(spec).compile()


def launch(q, k, v, out, heads):
    """Launch our kernel on projections (b, m, h * d) without copies. Their views are `[b,m,g,r,d]` and `[b,n,g,d]`."""
    (batch, queries, hidden), keys = q.shape, k.shape[1]
    head = hidden // heads
    kernel = kernel_of(batch, queries, keys, heads, head)
    rows, columns = (batch, queries, heads, 1, head), (batch, keys, heads, head)
    kernel(q.view(rows), k.view(columns), v.view(columns), head**-0.5, out=out.view(rows))


@functools.cache
def operator():
    """Return our kernel as an operator of PyTorch, `torch.ops.networks.attention(q, k, v, heads)`."""
    import torch

    @torch.library.custom_op("networks::attention", mutates_args=(), device_types="cuda")
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        launch(q, k, v, out, heads)
        return out

    @attend.register_fake
    def _(q, k, v, heads):
        return torch.empty(q.shape, dtype=q.dtype, device=q.device)

    return torch.ops.networks.attention.default


def by_heads(x, heads):
    """Return a projection (b, m, h * d) as (b, h, m, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def explicit(q, k, v, heads):
    """softmax(QK^T)V by single operations."""
    q, k, v = (by_heads(x, heads) for x in (q, k, v))
    weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def fused(q, k, v, heads):
    """torch's attention, with the kernel that it chooses."""
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(*(by_heads(x, heads) for x in (q, k, v))).transpose(1, 2).flatten(2)


def without_scores(q, k, v, heads):
    """Return a wrong version: the mean of all values, whatever the scores."""
    return v.mean(1, keepdim=True).expand_as(v)


# ------------------------------------------------------------------------------------------ networks


def random_weights(network):
    """Return a network's weights: normally distributed with deviation 0.02, as these networks are initialized.

    For queries and keys the deviation is 0.05, so that scores have an effect.
    """
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape, deviation=0.02):
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16) * deviation

    def linear(inputs, outputs, deviation=0.02):
        return normal(outputs, inputs, deviation=deviation), normal(outputs)

    def norm(size):
        return 1 + normal(size), normal(size)

    def layer():
        hidden, wide = network.hidden, network.intermediate
        return {
            "query": linear(hidden, hidden, 0.05),
            "key": linear(hidden, hidden, 0.05),
            "value": linear(hidden, hidden),
            "out": linear(hidden, hidden),
            "attention norm": norm(hidden),
            "up": linear(hidden, wide),
            "down": linear(wide, hidden),
            "norm": norm(hidden),
        }

    return {
        "words": normal(network.vocabulary, network.embedding),
        "positions": normal(network.positions, network.embedding),
        "types": normal(network.types, network.embedding),
        "norm": norm(network.embedding),
        "projection": linear(network.embedding, network.hidden),
        "layers": [layer()] * network.layers if network.shared else [layer() for _ in range(network.layers)],
        "pooler": linear(network.hidden, network.hidden),
    }


def in_float32(weights):
    """Return the same weights in float32."""
    if isinstance(weights, dict):
        return {name: in_float32(one) for name, one in weights.items()}
    return type(weights)(map(in_float32, weights)) if isinstance(weights, list | tuple) else weights.float()


def layer_of(network, attend):
    """Return a layer of the network, a function of its input (b, m, hidden) and its weights."""
    from torch.nn.functional import gelu, layer_norm, linear

    heads, sizes, epsilon, approximate = network.heads, (network.hidden,), network.epsilon, network.approximate

    def layer(x, weights):
        q, k, v = (linear(x, *weights[name]) for name in ("query", "key", "value"))
        attended = linear(attend(q, k, v, heads), *weights["out"])
        x = layer_norm(x + attended, sizes, *weights["attention norm"], epsilon)
        wide = gelu(linear(x, *weights["up"]), approximate=approximate)
        return layer_norm(x + linear(wide, *weights["down"]), sizes, *weights["norm"], epsilon)

    return layer


def forward_of(network, layer):
    """Return the network, a function of its weights and of tokens (b, m).

    The function returns the hidden states (b, m, hidden), and the pooled output of each sequence.
    """
    import torch
    from torch.nn.functional import layer_norm, linear

    def forward(weights, tokens):
        places = torch.arange(network.first, network.first + tokens.shape[1], device=tokens.device)
        x = weights["words"][tokens] + weights["positions"][places] + weights["types"][0]
        x = layer_norm(x, (network.embedding,), *weights["norm"], network.epsilon)
        if network.embedding != network.hidden:
            x = linear(x, *weights["projection"])
        for layer_weights in weights["layers"]:
            x = layer(x, layer_weights)
        return x, torch.tanh(linear(x[:, 0], *weights["pooler"]))

    return forward


def contenders_of(network, weights, tokens, compiling):
    """Return calls that run the network, by name."""
    import torch

    def eager(attend):
        return forward_of(network, layer_of(network, attend))

    def compiled(attend):
        make = functools.partial(torch.compile, fullgraph=True, dynamic=False)
        return make(eager(attend)) if compiling == "whole" else forward_of(network, make(layer_of(network, attend)))

    networks_by_name = {"softmax": eager(explicit), "SDPA": eager(fused), "ours": eager(operator())}
    if compiling != "none":
        networks_by_name |= {"SDPA compiled": compiled(fused), "ours compiled": compiled(operator())}
    return {name: functools.partial(forward, weights, tokens) for name, forward in networks_by_name.items()}


# ------------------------------------------------------------------------------------------ checks and times


def distance(got, want):
    """Return the relative difference in the Frobenius norm; infinite for NaN."""
    import torch

    if not bool(torch.isfinite(got).all()):
        return math.inf
    return float((got.double() - want.double()).norm() / want.double().norm())


def projections(network, batch, length):
    """Return random q, k, v (b, m, h * d) for the attention of a network, with scores that matter, and an output initialized to NaN."""
    import torch

    shape = (batch, length, network.hidden)
    inputs = [torch.randn(shape, device="cuda", dtype=torch.float16) for _ in range(3)]
    return [*inputs, torch.full(shape, math.nan, device="cuda", dtype=torch.float16)]


def check_operator(network, batch, length):
    """Compare the kernel alone with float64, and run PyTorch's own check of an operator.

    Raises: SystemExit if the kernel is wrong; torch's error if the operator is.
    """
    import torch

    q, k, v, out = projections(network, batch, length)
    launch(q, k, v, out, network.heads)
    error = max(
        distance(out[index : index + 1], explicit(*(x[index : index + 1].double() for x in (q, k, v)), network.heads))
        for index in {0, batch // 2, batch - 1}
    )
    if not error < 1e-3 or not bool(torch.isfinite(out).all()):
        raise SystemExit(f"attention {tuple(q.shape)}, {network.heads} heads, is wrong: relative error {error}")
    torch.library.opcheck(operator(), (q, k, v, network.heads), test_utils=("test_schema", "test_faketensor"))
    return error


def errors_of(network, weights, tokens, calls):
    """Each contender's distance from the network in float32, for two sequences, and from the first contender; and which are wrong."""
    few = tokens[:2]
    want = forward_of(network, layer_of(network, explicit))(in_float32(weights), few)[0]
    control = distance(forward_of(network, layer_of(network, without_scores))(weights, few)[0], want)
    results = {name: call()[0] for name, call in calls.items()}
    first = results["softmax"]
    errors = {name: {"float32": distance(one[:2], want), "softmax": distance(one, first)} for name, one in results.items()}
    wrong = [f"{name}: {one}" for name, one in errors.items() if not max(one.values()) < TOLERANCE]
    if not control > 5 * TOLERANCE:
        wrong.append(f"a network without scores differs only by {control}")
    return errors | {"without scores": {"float32": control}}, wrong


def network_times(calls, rounds):
    """Return milliseconds of each contender, one value per round; all run alternately."""
    import torch

    for call in calls.values():
        for _ in range(WARM):
            call()
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times[name].append(start.elapsed_time(stop))
    return times


def attention_times(network, batch, length, rounds):
    """Return milliseconds of attention alone, from CUDA graphs, by contender."""
    from fireiron.measure.timing import measure

    sets = [projections(network, batch, length) for _ in range(2)]
    calls = {
        "softmax": [functools.partial(explicit, *one[:3], network.heads) for one in sets],
        "SDPA": [functools.partial(fused, *one[:3], network.heads) for one in sets],
        "ours": [functools.partial(launch, *one, network.heads) for one in sets],
    }
    return {name: one.us / 1000 for name, one in measure(calls, rounds=rounds).items()}


def measured(name, alone, options):
    """Return the measurements of a network; `alone`: milliseconds of its attention."""
    import torch

    network = NETWORKS[name]
    weights = random_weights(network)
    tokens = torch.randint(network.vocabulary, (options.batch, options.length), device="cuda")
    calls = contenders_of(network, weights, tokens, options.compile)
    began = time.perf_counter()
    errors, wrong = errors_of(network, weights, tokens, calls)
    checked = time.perf_counter() - began
    times = network_times(calls, options.rounds)
    measurement = {
        "network": name,
        "configuration": attrs.asdict(network),
        "ms": times,
        "attention ms": alone,
        "errors": errors,
        "wrong": wrong,
    }
    return measurement | {"seconds to compile and check": checked}


def row_of(measurement):
    """Return a row of the table."""
    ms = {name: statistics.median(one) for name, one in measurement["ms"].items()}
    ours, compiled = ms["ours"], ms.get("SDPA compiled")
    ratios = [ms["softmax"] / ours, ms["SDPA"] / ours, compiled and compiled / ours, compiled and compiled / ms["ours compiled"]]
    share = measurement["configuration"]["layers"] * measurement["attention ms"]["softmax"] / ms["softmax"]
    shown = [ms.get(one) for one in ("softmax", "SDPA", "SDPA compiled", "ours", "ours compiled")]
    return [measurement["network"], *shown, *ratios, share, measurement["errors"]["ours"]["float32"]]


def options_of():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--compile", choices=("layers", "whole", "none"), default="layers")
    options = parser.parse_args()
    options.networks = options.networks.split(",")
    unknown = [one for one in options.networks if one not in NETWORKS]
    if unknown:
        parser.error(f"unknown networks: {', '.join(unknown)}; legal: {', '.join(NETWORKS)}")
    return options


def main():
    options = options_of()
    options.folder.mkdir(parents=True, exist_ok=True)
    import torch
    import torch._dynamo

    from fireiron.measure.timing import environment

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 64  # one function, compiled for each network
    alone, results, table = {}, [], []
    for name in options.networks:
        network = NETWORKS[name]
        shape = (network.heads, network.head)
        if shape not in alone:
            error = check_operator(network, options.batch, options.length)
            alone[shape] = attention_times(network, options.batch, options.length, 5)
            print(f"attention, {shape[0]} heads of {shape[1]}: {alone[shape]} ms, relative error {error:.1e}", flush=True)
        results.append(measured(name, alone[shape], options))
        table.append(row_of(results[-1]))
        print(table[-1], results[-1]["wrong"], flush=True)
        torch.cuda.empty_cache()
    text = tabulate(table, HEADS, floatfmt=("", *[".2f"] * 5, *[".3f"] * 5, ".1e")) + "\n"
    print(text)
    (options.folder / "networks.txt").write_text(text)
    given = {"batch": options.batch, "length": options.length, "compile": options.compile}
    record = {"environment": environment(), **given, "measured": results}
    (options.folder / "networks.json").write_text(json.dumps(record, indent=1) + "\n")
    wrong = [f"{one['network']}: {text}" for one in results for text in one["wrong"]]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
