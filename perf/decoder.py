"""Compare a decoder written with our functions with the same decoder on PyTorch's: training step, and tokens per second of decoding.

    python perf/decoder.py FOLDER [--layers 2] [--tokens 4096] [--rounds 5] [--no-autotune]

The layers have the sizes of an 8B model: 4096 elements, 32 heads of 128, 8 key heads, 14336 elements in the gated unit; random weights in
bfloat16, 128256 classes. A training step is forward, cross-entropy and backward of `--tokens` tokens, both through
`torch.compile(fullgraph=True)`; PyTorch's own also with mode="max-autotune-no-cudagraphs". Decoding is one token for 16 sequences of 8192
keys, each contender in a CUDA graph. Loss and gradients of both are compared first. Times are medians; the contenders alternate. Writes
`decoder.json` and `decoder.txt`.
"""

import argparse
import functools
import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import torch
from tabulate import tabulate

import fireiron

EPSILON = 1e-5
WIDTH, HEADS, GROUPS, ELEMENTS, INNER, CLASSES = 4096, 32, 8, 128, 14336, 128256


# ---------------------------------------------------------------------------------------------- functions


def ours():
    """Return the functions of the decoder, ours."""
    norm, first_norm = fireiron.function("rmsnorm_residual"), fireiron.function("rmsnorm")
    turn, entropy = fireiron.function("rope"), fireiron.function("cross_entropy")

    def rope(x, c, s):
        return turn(x.unflatten(-1, (2, -1)), c, s).flatten(-2)

    return SimpleNamespace(
        linear=lambda x, w: fireiron.matmul(x, w),
        norm=lambda x, r, w: norm(x, r, w, EPSILON),
        first_norm=lambda x, w: first_norm(x, w, EPSILON),
        rope=rope,
        attend=lambda q, k, v, causal: fireiron.attention(q, k, v, causal=causal),
        loss=lambda x, label: entropy(x, label)[0].mean(),
    )


def pytorchs():
    """Return the functions of the decoder, PyTorch's."""
    functional = torch.nn.functional

    def norm(x, r, w):
        z = x + r
        return z, functional.rms_norm(z, (WIDTH,), w, EPSILON)

    def rope(x, c, s):
        first, second = x.float().unflatten(-1, (2, -1)).unbind(-2)
        c, s = c[:, None], s[:, None]
        return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)

    return SimpleNamespace(
        linear=lambda x, w: x @ w,
        norm=norm,
        first_norm=lambda x, w: functional.rms_norm(x, (WIDTH,), w, EPSILON),
        rope=rope,
        attend=lambda q, k, v, causal: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        loss=lambda x, label: functional.cross_entropy(x.float(), label),
    )


# ---------------------------------------------------------------------------------------------- the model


def weights(layers):
    """Return random weights: of each layer, of the last norm, and of the classes."""

    def matrix(rows, columns):
        return (torch.randn(rows, columns, device="cuda") * rows**-0.5).bfloat16().requires_grad_()

    def ones():
        return torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16).requires_grad_()

    keys = GROUPS * ELEMENTS
    return [
        *(
            (ones(), matrix(WIDTH, WIDTH + 2 * keys), matrix(WIDTH, WIDTH), ones(), matrix(WIDTH, 2 * INNER), matrix(INNER, WIDTH))
            for _ in range(layers)
        ),
        (ones(), matrix(WIDTH, CLASSES)),
    ]


def tables(positions):
    """Return cosines and sines of the rotary embedding."""
    angles = positions[:, None] * 500000.0 ** (-torch.arange(ELEMENTS // 2, device="cuda") / (ELEMENTS // 2))
    return angles.cos(), angles.sin()


def projected(f, x, w, c, s):
    """Return queries, keys and values (batch, position, heads, elements), the first two rotated."""
    keys = GROUPS * ELEMENTS
    q, k, v = f.linear(x, w).split((WIDTH, keys, keys), -1)
    q, k, v = (one.unflatten(-1, (-1, ELEMENTS)) for one in (q, k, v))
    return f.rope(q, c, s), f.rope(k, c, s), v


def gated(f, x, up, down):
    """Return the gated unit of rows."""
    gate, value = f.linear(x, up).chunk(2, -1)
    return f.linear(torch.nn.functional.silu(gate) * value, down)


def logits(f, x, model, c, s, attend):
    """Return the logits of embedded tokens (batch, position, elements); `attend` takes the layer and q, k and v."""
    *layers, (last, classes) = model
    z, added = x, None
    for number, (norm, qkv, out, other, up, down) in enumerate(layers):
        z, y = (z, f.first_norm(z, norm)) if added is None else f.norm(added, z, norm)
        q, k, v = projected(f, y, qkv, c, s)
        z, y = f.norm(f.linear(attend(number, q, k, v).flatten(-2), out), z, other)
        added = gated(f, y, up, down)
    _, y = f.norm(added, z, last)
    return f.linear(y, classes)


def trained(f, model, x, label, c, s):
    """Return the loss of a training step."""

    def attend(number, q, k, v):
        return f.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), True).transpose(1, 2)

    return f.loss(logits(f, x, model, c, s, attend).flatten(0, 1), label)


def decoded(f, model, x, caches, position, c, s):
    """Return the logits of one token per sequence, whose keys and values are written to the caches."""

    def attend(number, q, k, v):
        keys, values = caches[number]
        keys[:, :, position], values[:, :, position] = k.squeeze(1), v.squeeze(1)
        return f.attend(q.transpose(1, 2), keys, values, False).transpose(1, 2)

    return logits(f, x, model, c, s, attend)


# ---------------------------------------------------------------------------------------------- measurement


def median_ms(calls, rounds, sync=torch.cuda.synchronize):
    """Return median milliseconds of alternating calls by name."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            sync()
            begin.record()
            call()
            end.record()
            sync()
            times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(rounds_of) for name, rounds_of in times.items()}


def difference(result, right):
    """Return the relative Frobenius distance."""
    return float((result.double() - right.double()).norm() / right.double().norm())


def training(options):
    """Return milliseconds of a training step by contender."""
    model = weights(options.layers)
    x = torch.randn(1, options.tokens, WIDTH, device="cuda").bfloat16().requires_grad_()
    label = torch.randint(CLASSES, (options.tokens,), device="cuda")
    c, s = tables(torch.arange(options.tokens, device="cuda"))
    parameters = [x, *(one for layer in model for one in layer)]
    forms = {"ours": (ours(), {}), "PyTorch": (pytorchs(), {})}
    if not options.no_autotune:
        forms["PyTorch, autotuned"] = pytorchs(), {"mode": "max-autotune-no-cudagraphs"}
    calls, results = {}, {}
    for name, (f, words) in forms.items():
        step = torch.compile(functools.partial(trained, f), fullgraph=True, **words)

        def call(step=step):
            loss = step(model, x, label, c, s)
            return loss, torch.autograd.grad(loss, parameters)

        loss, gradients = call()
        results[name] = loss.detach(), [gradients[0].clone(), gradients[2].clone()]
        del gradients
        calls[name] = call
        print(name, "loss", float(loss), flush=True)
    check(results)
    for call in calls.values():
        call()
    return median_ms(calls, options.rounds)


def check(results):
    """Compare losses and gradients with those of PyTorch."""
    loss, gradients = results["PyTorch"]
    for name, (other, others) in results.items():
        distances = [difference(one, right) for one, right in zip(others, gradients, strict=True)]
        if abs(float(other - loss)) > 2e-2 or max(distances) > 5e-2:
            raise SystemExit(f"{name} is wrong: loss {float(other)}, PyTorch {float(loss)}; gradients differ by {distances}")


@torch.no_grad()
def decoding(options, sequences=16, keys=8192):
    """Return milliseconds of one token for all sequences by contender."""
    model = [tuple(one.detach() for one in layer) for layer in weights(options.layers)]
    x = torch.randn(sequences, 1, WIDTH, device="cuda").bfloat16()
    c, s = tables(torch.tensor([keys - 1], device="cuda"))

    def cache():
        return torch.randn(sequences, GROUPS, keys, ELEMENTS, device="cuda").bfloat16()

    caches = [(cache(), cache()) for _ in range(options.layers)]
    calls, results = {}, {}
    forms = {"ours": (ours(), False), "PyTorch": (pytorchs(), False), "PyTorch, compiled": (pytorchs(), True)}
    for name, (f, is_compiled) in forms.items():
        step = functools.partial(decoded, f)
        step = torch.compile(step, fullgraph=True) if is_compiled else step
        for _ in range(3):
            results[name] = step(model, x, caches, keys - 1, c, s)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(model, x, caches, keys - 1, c, s)
        calls[name] = graph.replay
    for name, result in results.items():
        if not difference(result, results["PyTorch"]) < 3e-2:
            raise SystemExit(f"{name} is wrong: {difference(result, results['PyTorch'])}")
    return median_ms(calls, 4 * options.rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-autotune", action="store_true")
    parser.add_argument("--only", choices=("training", "decoding"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    result, table = {}, []
    for what, run in (("decoding", decoding), ("training", training)):
        if options.only in (None, what):
            times = result[what] = run(options)
            best = min(ms for name, ms in times.items() if name != "ours")
            table += [(what, name, ms, best / ms) for name, ms in times.items()]
            print(what, times, flush=True)
            torch.cuda.empty_cache()
    text = tabulate(table, ("what", "contender", "ms", "best PyTorch / this"), floatfmt=("", "", ".3f", ".3f")) + "\n"
    print(text)
    (options.folder / "decoder.txt").write_text(text)
    (options.folder / "decoder.json").write_text(json.dumps({"environment": environment(), "milliseconds": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
