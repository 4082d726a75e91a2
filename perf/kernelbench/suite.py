"""Problems of KernelBench in PyTorch, with extents of the suite. Extents are smaller if an array would have more than 2^27 elements.

Products and reductions state an accumulator, as a user would: `acc[m,n] = sum(...)`, then `C[m,n] = acc[m,n]`. `SUITE` has the extents and the function of tensors by the name of the problem, in the order of `Problem.inputs`.
"""

import math

import attrs
import torch
import torch.nn.functional as F

from kernelbench.problems import PROBLEMS

SUITE = {}


def add(names, sizes, *functions):
    """Add problems of equal extents: `names` is a text of problem names, each with a function."""
    for name, function in zip(names.split(), functions, strict=True):
        SUITE[name] = sizes, function


def product(a, b):
    """Return the matrix product."""
    return a @ b


add("1/1 1/13", {"m": 4096, "n": 4096, "k": 4096}, product, product)
add("1/2", {"m": 2048, "n": 4096, "k": 8192}, product)
add("1/3", {"b": 128, "m": 512, "n": 2048, "k": 1024}, product)
add("1/4", {"m": 2048, "n": 1, "k": 131072}, product)
add("1/5", {"m": 8192, "n": 8192}, lambda a, s: a * s)
add("1/6", {"m": 256, "n": 256, "k": 524288}, product)
add("1/7", {"m": 16384, "n": 16384, "k": 64}, product)
add("1/8", {"m": 8205, "n": 5921, "k": 2949}, product)
add("1/9", {"m": 16384, "n": 16384, "k": 32}, product)
add("1/10", {"a": 16, "m": 1024, "k": 2048, "l": 768}, product)
add("1/11", {"b": 8, "i": 256, "j": 512, "l": 256, "k": 768}, product)
add("1/12", {"n": 4096, "m": 4096}, lambda a, b: a[:, None] * b)
add("1/14 1/15", {"m": 4096, "n": 4096, "k": 4096}, lambda a, b: torch.triu(a @ b), lambda a, b: torch.tril(a @ b))
add("1/16 1/17 1/18", {"m": 2048, "n": 4096, "k": 8192}, lambda a, b: a.T @ b, lambda a, b: a @ b.T, lambda a, b: a.T @ b.T)
add(
    "1/19 1/20 1/21 1/22 1/25 1/26 1/27 1/28 1/29 1/30 1/31 1/32 1/88",
    {"m": 4096, "n": 16384},
    torch.relu,
    lambda x: F.leaky_relu(x, 0.01),
    torch.sigmoid,
    torch.tanh,
    lambda x: x * torch.sigmoid(x),
    F.gelu,
    torch.selu,
    F.hardsigmoid,
    F.softplus,
    F.softsign,
    F.elu,
    F.hardtanh,
    lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
)
add("1/23 1/24", {"b": 4096, "n": 16384}, lambda x: F.softmax(x, 1), lambda x: F.log_softmax(x, 1))
add(
    "1/34 1/36",
    {"b": 16, "c": 64, "p": 256, "q": 256},
    F.instance_norm,
    lambda x: x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5),
)
add("1/38 1/39", {"b": 4096, "n": 32768}, lambda x: x / x.abs().mean(1, keepdim=True), lambda x: x / torch.norm(x, 2, 1, keepdim=True))
add("1/40", {"b": 16, "c": 64, "p": 256, "q": 256}, lambda x, g, b: F.layer_norm(x, x.shape[1:], g, b))
add(
    "1/47 1/48 1/49 1/53",
    {"b": 32, "m": 1024, "n": 4096},
    lambda x: x.sum(1),
    lambda x: x.mean(1),
    lambda x: x.max(1).values,
    lambda x: x.min(1).values,
)
add("1/89 1/92", {"b": 8192, "n": 8192}, lambda x: x.cumsum(1), lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)], 1))
add(
    "1/94 1/96 1/98",
    {"b": 16384, "n": 16384},
    F.mse_loss,
    F.smooth_l1_loss,
    lambda p, t: F.kl_div(torch.log(p), t, reduction="batchmean"),
)
add("1/95", {"b": 32768, "n": 4096}, F.cross_entropy)
add("1/97", {"b": 8, "h": 16, "m": 2048, "n": 2048, "d": 128}, F.scaled_dot_product_attention)
WIDE, FEW, TALL = {"b": 1024, "i": 8192, "o": 8192}, {"b": 128, "i": 16384, "o": 16384}, {"b": 16384, "i": 4096, "o": 4096}
add(
    "2/9 2/12 2/29 2/53 2/63 2/70 2/76 2/81 2/86 2/95",
    WIDE,
    lambda x, w, c: torch.relu((F.linear(x, w, c) - 2) * 1.5),
    lambda x, w, c: F.leaky_relu(F.linear(x, w, c) * 2, 0.1),
    lambda x, w, c: F.mish(F.mish(F.linear(x, w, c))),
    lambda x, w, c: F.gelu(F.hardtanh(F.linear(x, w, c) * 0.5, -2, 2)),
    lambda x, w, c: torch.relu(F.linear(x, w, c)) / 2,
    lambda x, w, c: (lambda y: torch.sigmoid(y) * 2 + y)(F.linear(x, w, c)),
    lambda x, w, c: torch.relu(F.linear(x, w) + c),
    lambda x, w, c: torch.clamp(torch.tanh(torch.clamp(F.silu(F.linear(x, w, c)) / 2, -1, 1)), -1, 1),
    lambda x, w, c: F.gelu(F.linear(x, w, c) / 10),
    lambda x, w, c, more: F.hardtanh(F.gelu(torch.tanh(F.silu(F.linear(x, w, c) + more)))),
)
add("2/59 2/68", FEW, lambda x, w, c: F.silu(F.linear(x, w, c)) * 2, lambda x, w, c: torch.clamp(F.linear(x, w, c), max=2) - 2)
add("2/40", TALL, lambda x, w, c: (lambda y: y * 0.5 + y)(F.linear(x, w, c)))
add("2/14", WIDE, lambda x, w: (x @ w.T / 2).sum(1) * 1.5)
add("2/56", FEW, lambda x, w, c: torch.sigmoid(F.linear(x, w, c)).sum(1))
add(
    "2/62",
    {"b": 1024, "i": 8192, "g": 512, "k": 16},
    lambda x, w, c, g, b: (lambda y: y + y)(F.leaky_relu(F.group_norm(F.linear(x, w, c), 512, g, b))),
)
add("2/99", WIDE, lambda x, w, c: F.softmax(F.gelu(F.linear(x, w, c)), 1))


SCAN = "t[b,n] = cumsum(n, X[b,n])\nY[b,n] = "
KERNELS = {"1/89": (SCAN + "t[b,n]",), "1/92": (SCAN + "t[b,n] - X[b,n]",)}
"""Other formulas of problems: a scan instead of a sequential loop."""


def accumulated(text):
    """Return formulas in which an accumulator precedes the result, if they are one sum, maximum or minimum."""
    result, _, value = text.partition(" = ")
    if "\n" in text or not value.startswith(("sum(", "max(", "min(")):
        return text
    name, _, index = result.partition("[")
    return f"acc[{index} = {value}\n{name}[{index} = acc[{index}"


def stated(problem, sizes):
    """Return a problem with extents of the suite, and formulas that name their accumulators."""
    kernels = KERNELS.get(problem.name, problem.kernels)
    return attrs.evolve(problem, sizes={**problem.sizes, **sizes}, kernels=tuple(map(accumulated, kernels)))


def problems():
    """Return the problems with extents of the suite, and their functions."""
    known = {problem.name: problem for problem in PROBLEMS}
    return {name: (stated(known[name], sizes), function) for name, (sizes, function) in SUITE.items()}
