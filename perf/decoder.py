"""Compare a decoder written with our functions with the same decoder on PyTorch's: training step, and tokens per second of decoding.

    python perf/decoder.py FOLDER [--layers 2] [--tokens 4096] [--rounds 5] [--steps 5] [--autotune training,decoding] [--profile N]

The layers have the sizes of an 8B model: 4096 elements, 32 heads of 128, 8 key heads, 14336 elements in the gated unit; random weights in
bfloat16, 128256 classes. A training step is forward, cross-entropy and backward of `--tokens` tokens, both through
`torch.compile(fullgraph=True)`; a round has several steps, so the clock is that of a busy GPU. With `--autotune`, PyTorch's own also with
mode="max-autotune-no-cudagraphs". Decoding is one token for 16 sequences of 8192 keys, each contender in a CUDA graph. `ours, chained` are our kernels with programmatic launch: a product loads its weights
before the previous kernel ends, the rotation writes into the caches, the gated unit is one kernel, and norms sum the parts of products. Results of all are compared
first. Times are medians; the contenders alternate. `--profile N` prints the times of N kernels. Writes `decoder.json` and `decoder.txt`.
"""

import argparse
import functools
import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import torch
from gpu_turns import alone
from tabulate import tabulate

import fireiron

EPSILON = 1e-5
WIDTH, HEADS, GROUPS, ELEMENTS, INNER, CLASSES = 4096, 32, 8, 128, 14336, 128256


# ---------------------------------------------------------------------------------------------- functions


def ours(separate=False):
    """Return the functions of the decoder, ours; the product of the classes in a separate kernel if `separate`."""
    entropy = fireiron.function("cross_entropy")
    norm, first_norm = fireiron.function("rmsnorm_residual"), fireiron.function("rmsnorm")
    turn, swiglu = fireiron.function("rope"), fireiron.function("swiglu")

    def rope(x, c, s):
        return turn(x.unflatten(-1, (2, -1)), c, s).flatten(-2)

    return SimpleNamespace(
        linear=lambda x, w: fireiron.matmul(x, w),
        norm=lambda x, r, w: norm(x, r, w, EPSILON),
        first_norm=lambda x, w: first_norm(x, w, EPSILON),
        rope=rope,
        attend=lambda q, k, v, causal: fireiron.attention(q, k, v, causal=causal),
        gate=lambda x: swiglu(x.unflatten(-1, (2, -1))),
        loss=lambda x, classes, label: (
            entropy(fireiron.matmul(x, classes), label)[0].mean() if separate else fireiron.linear_cross_entropy(x, classes.T, label)
        ),
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

    def gate(x):
        first, second = x.chunk(2, -1)
        return functional.silu(first) * second

    return SimpleNamespace(
        linear=lambda x, w: x @ w,
        norm=norm,
        gate=gate,
        first_norm=lambda x, w: functional.rms_norm(x, (WIDTH,), w, EPSILON),
        rope=rope,
        attend=lambda q, k, v, causal: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        loss=lambda x, classes, label: functional.cross_entropy((x @ classes).float(), label),
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
    return f.linear(f.gate(f.linear(x, up)), down)


def features(f, x, model, c, s, attend):
    """Return the last features of embedded tokens (batch, position, elements); `attend` takes the layer and q, k and v."""
    *layers, (last, _) = model
    z, added = x, None
    for number, (norm, qkv, out, other, up, down) in enumerate(layers):
        z, y = (z, f.first_norm(z, norm)) if added is None else f.norm(added, z, norm)
        q, k, v = projected(f, y, qkv, c, s)
        z, y = f.norm(f.linear(attend(number, q, k, v).flatten(-2), out), z, other)
        added = gated(f, y, up, down)
    return f.norm(added, z, last)[1]


def trained(f, model, x, label, c, s):
    """Return the loss of a training step."""

    def attend(number, q, k, v):
        return f.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), True).transpose(1, 2)

    return f.loss(features(f, x, model, c, s, attend).flatten(0, 1), model[-1][1], label)


def decoded(f, model, x, caches, position, c, s):
    """Return the logits of one token per sequence, whose keys and values are written to the caches."""

    def attend(number, q, k, v):
        keys, values = caches[number]
        keys[:, :, position], values[:, :, position] = k.squeeze(1), v.squeeze(1)
        return f.attend(q.transpose(1, 2), keys, values, False).transpose(1, 2)

    return f.linear(features(f, x, model, c, s, attend), model[-1][1])


# ---------------------------------------------------------------------------------------------- decoding by a chain of kernels


class Chain:
    """Our kernels for one token of each sequence. Weights are complete before the first kernel starts, so products do not wait for them.

    Products whose result is added to the residual stream have `parts` parts of their terms in float32, which the next norm sums, so that
    more blocks read weights.
    """

    def __init__(self, model, caches, sequences, position, parts=2, product=None, gate=None):
        self.parts = parts
        *layers, (_, classes) = model
        keys = GROUPS * ELEMENTS
        half = functools.partial(torch.empty, device="cuda", dtype=torch.bfloat16)
        matrices = [*(one for one in layers[0] if one.dim() == 2), classes]
        weights = {tuple(one.shape): one for one in matrices if one.shape[1] != 2 * INNER}
        forms = PRODUCTS if product is None else (product,)
        self.products = {size: fastest_product(sequences, one, parts, forms) for size, one in weights.items()}
        self.gate = fastest_gate(sequences, layers[0][4], GATES if gate is None else (gate,))
        self.rope = rope_kernel(sequences, caches[0][0].shape[2])
        self.first, self.norm = norm_kernels(sequences, parts)
        self.y, self.qkv, self.q = half(sequences, WIDTH), half(sequences, WIDTH + 2 * keys), half(sequences, WIDTH)
        self.inner, self.added = half(sequences, INNER), torch.empty(parts, sequences, WIDTH, device="cuda")
        self.streams = half(sequences, WIDTH), half(sequences, WIDTH)
        self.logits = half(sequences, CLASSES)
        number = torch.arange(sequences, device="cuda")[:, None] * GROUPS + torch.arange(GROUPS, device="cuda")
        self.slot = (number * caches[0][0].shape[2] + position).int()

    def __call__(self, model, x, caches, position, c, s):
        *layers, (last, classes) = model
        count = len(x)
        z, added, wide = x.view(count, WIDTH), None, c.shape[-1]
        c, s = c.expand(count, wide), s.expand(count, wide)
        for number, (norm, qkv, out, other, up, down) in enumerate(layers):
            z = self.normalized(z, added, norm)
            self.products[tuple(qkv.shape)](self.y, qkv, out=self.qkv)
            q, k, v = self.qkv.split((WIDTH, GROUPS * ELEMENTS, GROUPS * ELEMENTS), -1)
            q = q.view(count, GROUPS, -1, 2, wide)
            k, v = (one.view(count, GROUPS, 2, wide) for one in (k, v))
            keys, values = caches[number]
            self.rope(q, k, v, c, s, self.slot, out=(self.q.view(q.shape), keys.view(-1, 2, wide), values.view(-1, 2, wide)))
            attended = fireiron.attention(self.q.view(count, 1, HEADS, ELEMENTS).transpose(1, 2), keys, values)
            self.summed(attended.transpose(1, 2).reshape(count, WIDTH), out)
            z = self.normalized(z, self.added, other)
            self.gate(self.y, up[:, :INNER], up[:, INNER:], out=self.inner)
            self.summed(self.inner, down)
            added = self.added
        self.normalized(z, added, last)
        self.products[tuple(classes.shape)](self.y, classes, out=self.logits)
        return self.logits.view(count, 1, CLASSES)

    def summed(self, x, weight):
        """Multiply parts of the terms; the next norm sums the results."""
        self.products[tuple(weight.shape)](cut(x, self.parts, 1), cut(weight, self.parts, 0), out=self.added)

    def normalized(self, z, added, weight):
        """Normalize the residual stream plus what is added to it; return the new stream."""
        if added is None:
            self.first(z, weight, EPSILON, out=self.y)
            return z
        new = next(one for one in self.streams if one.data_ptr() != z.data_ptr())
        self.norm(added, z, weight, EPSILON, out=(new, self.y))
        return new


def cut(array, parts, dim):
    """Return the parts of a dimension of a matrix as a batch of matrices: the same memory."""
    return array.unflatten(dim, (parts, -1)).movedim(dim, 0)


def few_rows(rows, terms, columns, parts=0, **others):
    """Return the product of few rows, which loads B before it waits for the previous kernel; with `parts` a batch of parts of the terms."""
    from fireiron import Block, MatMul, Strides
    from fireiron.strategies import hopper_batched, hopper_skinny

    values = {"bm": 16, "bn": 64, "bk": 128, "epi_m": 16, "epi_n": 64, "stages": 8, "mma_in_flight": 1, "stagger": 0, **others}
    strategy = hopper_skinny.strategy.with_(**values).at(fireiron.Tile).refine(fireiron.ProgrammaticLaunch(("B",)))
    if not parts:
        return strategy(hopper_skinny.spec(rows, columns, terms, dtype=fireiron.bfloat16, c_dtype=fireiron.bfloat16)).compile()
    kinds = {"dtype": fireiron.bfloat16, "c_dtype": fireiron.float32, "A": Strides(b=terms // parts, m=terms, k=1)}
    spec = hopper_batched.spec(rows, columns, terms // parts, batch=parts, **kinds)
    return MatMul.tile(b=1).to(Block).then(strategy)(spec).compile()


def gated_rows(rows, terms, columns, wide=64, deep=128, stages=5):
    """Return the gated product of few rows: B1 and B2 are the two halves of one matrix."""
    from fireiron import SH, SRC, Block, MatMul, Move, Strides, Warpgroup
    from fireiron.strategies.gated import definition

    product = MatMul.tile(16, wide).to(Warpgroup).done()
    store = Move.tile(16, wide).to(Warpgroup).load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = definition.tile(m=16, n=wide).to(Block).programmatic_launch(no_wait=("B1", "B2")).split(k=deep).pipeline(stages)
    chain = chain.warp_specialize(32).mma_in_flight(1)
    for name in ("A", "B1", "B2"):
        chain = chain.load(name, SH, Move.done())
    strategy = chain.step("gate", product).step("up", product).step("store", store).done()
    half = Strides(k=2 * columns, n=1)
    return strategy(definition(m=rows, n=columns, k=terms, dtype=fireiron.bfloat16, B1=half, B2=half)).compile()


PRODUCTS = ({}, {"stages": 4}, {"bk": 64, "stages": 8}, {"bk": 64, "stages": 16})
"""Values of tunables of products of few rows: one or several blocks per SM."""

GATES = ({"deep": 64}, {}, {"deep": 64, "stages": 10})
"""Arguments of `gated_rows`."""

CHAINS = {
    "160 KB": {"product": {}, "gate": {}},
    "160 KB, whole terms": {"product": {}, "gate": {}, "parts": 1},
    "80 KB": {"product": {"stages": 4}, "gate": {"deep": 64}},
    "80 KB, gates 160 KB": {"product": {"stages": 4}, "gate": {}},
    "40 KB": {"product": {"bk": 64, "stages": 4}, "gate": {"deep": 64, "stages": 3}},
}
"""Arguments of `Chain` by the shared memory of a block. With 80 KB, a block of the next product loads its weights next to one of this."""


def fastest_product(rows, weight, parts, forms):
    """Return the fastest product of few rows for a weight; of parts of the terms if the next norm sums them."""
    terms, columns = weight.shape
    x, out = (torch.randn(rows, size, device="cuda").bfloat16() for size in (terms, columns))
    if columns == WIDTH:
        out, x, weight = torch.empty(parts, rows, columns, device="cuda"), cut(x, parts, 1), cut(weight, parts, 0)
    words_of = {"parts": parts} if columns == WIDTH else {}
    return fastest(lambda words: few_rows(rows, terms, columns, **words_of, **words), forms, lambda kernel: kernel(x, weight, out=out))


def fastest_gate(rows, weight, forms):
    """Return the fastest gated product for both halves of a weight."""
    x, out = torch.randn(rows, WIDTH, device="cuda").bfloat16(), torch.empty(rows, INNER, device="cuda", dtype=torch.bfloat16)
    halves = weight[:, :INNER], weight[:, INNER:]
    return fastest(lambda words: gated_rows(rows, WIDTH, INNER, **words), forms, lambda kernel: kernel(x, *halves, out=out))


def fastest(make, forms, launch, count=8):
    """Return the fastest of several kernels, each launched alone, after the L2 cache is overwritten."""
    flush, times = torch.empty(1 << 28, device="cuda", dtype=torch.uint8), []
    kernels = [make(words) for words in forms]
    if len(kernels) == 1:
        return kernels[0]
    for kernel in kernels:
        launch(kernel)
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin, end in pairs:
            flush.fill_(1)
            begin.record()
            launch(kernel)
            end.record()
        torch.cuda.synchronize()
        times.append(statistics.median(begin.elapsed_time(end) for begin, end in pairs))
    best = times.index(min(times))
    print("us", [round(1e3 * ms, 1) for ms in times], "of", forms, flush=True)
    return kernels[best]


def rope_kernel(sequences, positions):
    """Return the rotation into the caches; queries, keys and values are parts of one array."""
    from fireiron import Strides
    from fireiron.strategies import rope_cache

    row, half = WIDTH + 2 * GROUPS * ELEMENTS, ELEMENTS // 2
    orders = {"Q": Strides(b=row, g=WIDTH // GROUPS, r=ELEMENTS, q=half, d=1)}
    orders |= {name: Strides(b=row, g=ELEMENTS, q=half, d=1) for name in "KV"} | dict.fromkeys("CS", Strides(b=0, d=1))
    sizes = (half, sequences, GROUPS, HEADS // GROUPS, sequences * GROUPS * positions)
    spec = rope_cache.spec(*sizes, dtype=fireiron.bfloat16, **orders)
    return rope_cache.hopper.with_(**rope_cache.values(spec))(spec).compile()


def norm_kernels(rows, parts):
    """Return both norms: of the residual stream, and of the stream plus the parts of what is added to it."""
    from fireiron import RF, Block, Fused, Lane, Move, Warp, float32
    from fireiron.strategies import rmsnorm, rmsnorm_residual

    spec = rmsnorm.spec(rows, WIDTH, dtype=fireiron.bfloat16)
    strategy = rmsnorm.strategy.with_(**rmsnorm.values(spec)).at(fireiron.Tile).refine(fireiron.ProgrammaticLaunch())
    body = {
        "parts": "x[m,n] = sum(p, X[p,m,n])",
        **rmsnorm_residual.NORMALIZED,
        "add": "t[m,n] = x[m,n] + R[m,n]",
        "store": "Y[m,n] = y[m,n]",
    }
    arrays = {**rmsnorm_residual.INPUTS, "X": "p m n", "Z": "m n", "Y": "m n"}
    definition = Fused(name="rmsnorm_of_parts", dims="m n p", operands=arrays, body=body, types={"X": float32})
    wide = WIDTH // 8
    vectors = Move.tile(parts, 1, wide).to(Warp).tile(parts, 1, wide // 32).to(Lane).tile(1, 1, 4).unroll().done()
    row = Move.tile(1, wide).to(Warp).tile(1, wide // 32).to(Lane).tile(1, 8).unroll().done()
    chain = definition.tile(m=1).to(Block).programmatic_launch().load("X", RF, vectors).load("R", RF, row).load("weight", RF, Move.done())
    return strategy(spec).compile(), chain.done()(definition(m=rows, n=WIDTH, p=parts, dtype=fireiron.bfloat16)).compile()


# ---------------------------------------------------------------------------------------------- measurement

LONG, MOST_LISTED = 150, 45
"""Microseconds of kernels that a profile lists in their order, and how many of the last ones."""


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
    forms = {"ours": (ours(options.separate), {}), "PyTorch": (pytorchs(), {})}
    if "training" in options.autotune:
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
    steps = {name: functools.partial(repeated, call, options.steps) for name, call in calls.items()}
    with alone():
        for name, call in steps.items():
            call()
            if options.profile:
                profiled(name, call, options.profile)
        return {name: ms / options.steps for name, ms in median_ms(steps, options.rounds).items()}


def repeated(call, count):
    """Call several times, as a training loop does: the host does not wait for the GPU in between."""
    for _ in range(count):
        call()


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
    forms = {"ours": (ours(), None), "PyTorch": (pytorchs(), None), "PyTorch, compiled": (pytorchs(), {})}
    if "decoding" in options.autotune:
        forms["PyTorch, autotuned"] = pytorchs(), {"mode": "max-autotune-no-cudagraphs"}
    steps = {name: compiled(functools.partial(decoded, f), words) for name, (f, words) in forms.items()}
    chains = {f"ours, chained, {name}": Chain(model, caches, sequences, keys - 1, **words) for name, words in CHAINS.items()}
    if options.few:
        steps = {name: step for name, step in steps.items() if name in ("PyTorch", "PyTorch, compiled")}
    for name, step in {**chains, **steps}.items():
        for _ in range(3):
            results[name] = step(model, x, caches, keys - 1, c, s).clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step(model, x, caches, keys - 1, c, s)
        graph.replay()
        if not difference(result, results[name]) < 1e-2:
            raise SystemExit(f"{name} is wrong in a graph: {difference(result, results[name])}")
        calls[name] = graph.replay
        if options.profile and name != "PyTorch":
            profiled(name, graph.replay, options.profile)
    for name, result in results.items():
        print(name, "differs by", difference(result, results["PyTorch"]), flush=True)
        if not difference(result, results["PyTorch"]) < 3e-2:
            raise SystemExit(f"{name} is wrong: {difference(result, results['PyTorch'])}")
    return median_ms(calls, 4 * options.rounds)


def compiled(step, words):
    """Return a compiled step; the step itself if `words` is None."""
    return step if words is None else torch.compile(step, fullgraph=True, **words)


def profiled(name, call, count):
    """Print the kernels of a call by their time, and the part of the time in which none runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    kernels = [one for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    if not kernels:
        return print(name, "no kernels were recorded", flush=True)
    total = max(one.time_range.end for one in kernels) - min(one.time_range.start for one in kernels)
    if len(kernels) < 40:
        first = min(one.time_range.start for one in kernels)
        for kernel in sorted(kernels, key=lambda kernel: kernel.time_range.start):
            print(f"  {kernel.time_range.start - first:7.1f} {kernel.time_range.end - first:7.1f}  {kernel.name[:60]}")
    long = [one for one in sorted(kernels, key=lambda one: one.time_range.start) if one.time_range.end - one.time_range.start > LONG]
    print("in order:", *(f"{one.name[:12]} {one.time_range.end - one.time_range.start:.0f}" for one in long[-MOST_LISTED:]), flush=True)
    times = {}
    for kernel in kernels:
        times.setdefault(kernel.name, []).append(kernel.time_range.end - kernel.time_range.start)
    busy = sum(map(sum, times.values()))
    print(f"{name}: {total:.0f} us from first to last kernel, {len(kernels)} kernels, {busy:.0f} us in kernels")
    for kernel, each in sorted(times.items(), key=lambda pair: -sum(pair[1]))[:count]:
        print(f"  {sum(each):9.1f} us  {len(each):3d} x  {kernel[:110]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="training steps of a round; the host does not wait for the GPU in between")
    parser.add_argument("--autotune", default="", help="training, decoding, or both: also measure mode=max-autotune-no-cudagraphs")
    parser.add_argument("--profile", type=int, default=0, help="number of kernels of each contender to print with their times")
    parser.add_argument("--separate", action="store_true", help="training: the logits in memory, and `cross_entropy`")
    parser.add_argument("--few", action="store_true", help="decoding: only the chains, PyTorch, and PyTorch compiled")
    parser.add_argument("--only", choices=("training", "decoding"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    from fireiron.measure.timing import environment

    torch.manual_seed(0)
    result, table = {}, []
    for what, run in (("decoding", decoding), ("training", training)):
        if options.only in (None, what):
            times = result[what] = run(options)
            best = min(ms for name, ms in times.items() if name.startswith("PyTorch"))
            table += [(what, name, ms, best / ms) for name, ms in times.items()]
            print(what, times, flush=True)
            torch.cuda.empty_cache()
    text = tabulate(table, ("what", "contender", "ms", "best PyTorch / this"), floatfmt=("", "", ".3f", ".3f")) + "\n"
    print(text)
    (options.folder / "decoder.txt").write_text(text)
    (options.folder / "decoder.json").write_text(json.dumps({"environment": environment(), "milliseconds": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
