"""Level 1: single operations. Products, activations, norms, reductions, losses, scans, attention; pooling and convolutions are in
`windows.py`."""

import math
import re

import numpy as np

from fireiron import int32, int64, uint8
from kernelbench import arrays as f
from kernelbench import formulas as t
from kernelbench.problem import Problem

MATMUL = "A: m k; B: k n; C: m n"
PRODUCT = "C[m,n] = sum(k, A[m,k] * B[k,n])"


def uniform(random, shape):
    """Numbers from 0 to 1, as the problems draw them."""
    return random.random(shape, np.float32)


def matmul(number, title, m, n, k, arrays=MATMUL, formula=PRODUCT, reference=lambda a, b: a @ b, **more):
    """A product of two matrices."""
    return Problem(1, number, title, arrays, {"m": m, "n": n, "k": k}, (formula,), reference, **more)


def symmetric(random, shape):
    """A symmetric matrix."""
    x = random.random(shape, np.float32)
    return (x + x.T) / 2


def triangle(cut):
    """A function that draws a triangular matrix."""
    return lambda random, shape: cut(random.random(shape, np.float32)).astype(np.float32)


PRODUCTS = [
    matmul(1, "Square matrix product", 13, 13, 13),
    matmul(2, "Matrix product", 11, 19, 37),
    Problem(1, 3, "Batched matrix product", "A: b m k; B: b k n; C: b m n", {"b": 3, "m": 5, "n": 9, "k": 7},
        ("C[b,m,n] = sum(k, A[b,m,k] * B[b,k,n])",), lambda a, b: a @ b),
    matmul(4, "Matrix-vector product", 13, 1, 211),
    Problem(1, 5, "Matrix times scalar", "A: m n; s:; C: m n", {"m": 13, "n": 21}, ("C[m,n] = A[m,n] * s",), lambda a, s: a * s,
        draw={"s": lambda random, shape: np.float32(3.14)}),
    matmul(6, "Matrix product, large k", 5, 7, 523),
    matmul(7, "Matrix product, small k", 37, 35, 3),
    matmul(8, "Matrix product, irregular shapes", 17, 23, 29),
    matmul(9, "Tall matrix times wide matrix", 37, 41, 3),
    Problem(1, 10, "3D tensor times matrix", "A: a m k; B: k l; C: a m l", {"a": 3, "m": 5, "l": 6, "k": 11},
        ("C[a,m,l] = sum(k, A[a,m,k] * B[k,l])",), lambda a, b: a @ b),
    Problem(1, 11, "4D tensor times matrix", "A: b i j l; B: l k; C: b i j k", {"b": 2, "i": 3, "j": 5, "k": 7, "l": 9},
        ("C[b,i,j,k] = sum(l, A[b,i,j,l] * B[l,k])",), lambda a, b: np.einsum("bijl,lk->bijk", a, b)),
    Problem(1, 12, "Diagonal matrix times matrix", "A: n; B: n m; C: n m", {"n": 13, "m": 9}, ("C[n,m] = A[n] * B[n,m]",),
        lambda a, b: np.diag(a) @ b),
    matmul(13, "Product of symmetric matrices", 15, 15, 15, draw={"A": symmetric, "B": symmetric}),
    matmul(14, "Product of upper triangular matrices", 15, 15, 15, formula="a[m,n] = sum(k, A[m,k] * B[k,n])\nC[m,n] = where(m <= n, a[m,n], 0)",
        reference=lambda a, b: np.triu(a @ b), draw={"A": triangle(np.triu), "B": triangle(np.triu)}),
    matmul(15, "Product of lower triangular matrices", 15, 15, 15, formula="a[m,n] = sum(k, A[m,k] * B[k,n])\nC[m,n] = where(n <= m, a[m,n], 0)",
        reference=lambda a, b: np.tril(a @ b), draw={"A": triangle(np.tril), "B": triangle(np.tril)}),
    matmul(16, "Matrix product, transposed A", 11, 19, 37, "A: k m; B: k n; C: m n", "C[m,n] = sum(k, A[k,m] * B[k,n])", lambda a, b: a.T @ b),
    matmul(17, "Matrix product, transposed B", 11, 19, 37, "A: m k; B: n k; C: m n", "C[m,n] = sum(k, A[m,k] * B[n,k])", lambda a, b: a @ b.T),
    matmul(18, "Matrix product, both transposed", 11, 19, 37, "A: k m; B: n k; C: m n", "C[m,n] = sum(k, A[k,m] * B[n,k])",
        lambda a, b: a.T @ b.T),
]  # fmt: skip


def elementwise(number, title, formula, reference, draw=None):
    """A function of each element."""
    draw = draw or (lambda random, shape: (random.standard_normal(shape) * 4).astype(np.float32))
    return Problem(
        1,
        number,
        title,
        "X: m n; Y: m n",
        {"m": 13, "n": 37},
        ("Y[m,n] = " + re.sub(r"\bx\b", "X[m,n]", formula),),
        reference,
        draw={"X": draw},
    )


SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772  # SELU: Klambauer and others, 2017

ELEMENTWISE = [
    elementwise(19, "ReLU", "relu(x)", f.relu),
    elementwise(20, "Leaky ReLU, slope 0.01", "where(x > 0, x, 0.01 * x)", f.leaky),
    elementwise(21, "Sigmoid", "sigmoid(x)", f.sigmoid),
    elementwise(22, "Tanh", "tanh(x)", np.tanh),
    elementwise(25, "Swish", "x * sigmoid(x)", f.swish),
    elementwise(26, "GELU, exact", "gelu(x)", f.gelu),
    elementwise(27, "SELU", f"where(x > 0, {SCALE} * x, {SCALE * ALPHA} * (exp(x) - 1))",
        lambda x: SCALE * np.where(x > 0, x, ALPHA * np.expm1(x))),
    elementwise(28, "Hard sigmoid", "clamp(x / 6 + 0.5, 0, 1)", f.hard_sigmoid),
    elementwise(29, "Softplus", "relu(x) + log(1 + exp(0 - abs(x)))", f.softplus),
    elementwise(30, "Softsign", "x / (1 + abs(x))", lambda x: x / (1 + np.abs(x))),
    elementwise(31, "ELU, alpha 1", "where(x > 0, x, exp(x) - 1)", lambda x: np.where(x > 0, x, np.expm1(x))),
    elementwise(32, "Hard tanh, -1 to 1", "clamp(x, -1, 1)", lambda x: np.clip(x, -1, 1)),
    elementwise(88, "GELU by tanh", f"0.5 * x * (1 + tanh({math.sqrt(2 / math.pi)} * (x + 0.044715 * x * x * x)))",
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
]  # fmt: skip


def over_rows(number, title, formulas, reference, arrays="X: b n; Y: b n", sizes=None, **more):
    """A function of the rows of a matrix."""
    return Problem(1, number, title, arrays, sizes or {"b": 13, "n": 37}, (formulas,), reference, **more)


CUBE = {"b": 3, "m": 11, "n": 13}  # reduced over the second dimension of three
IMAGE = {"b": 3, "c": 4, "p": 5, "q": 7}
BATCH_STATE = "gamma: c; beta: c; RM: c; RV: c; Y: b c p q; NM: c; NV: c"


def reduction(number, title, formulas, reference, arrays="X: b m n; Y: b n", **more):
    """A reduction over the second of three dimensions."""
    return Problem(1, number, title, arrays, CUBE, (formulas,), reference, **more)


def ties(random, shape):
    """Numbers with equal maxima and minima, of which the first counts."""
    return random.integers(-3, 4, shape).astype(np.float32)


ROWS = [
    over_rows(23, "Softmax over rows", t.softmax("Y", "X", "b n", "n"), f.softmax),
    over_rows(24, "Logarithm of softmax over rows", t.logsumexp("l", "X", "b n", "n") + "\nY[b,n] = X[b,n] - l[b]", lambda x: x - f.logsumexp(x)),
    Problem(1, 33, "Batch normalization, training, with the running statistics", "X: b c p q; " + BATCH_STATE, IMAGE,
        (t.batch_norm("Y", "X", "b c p q", "b p q"),), f.batch_norm),
    Problem(1, 34, "Instance normalization", "X: b c p q; Y: b c p q", IMAGE, (t.normalize("Y", "X", "b c p q", "p q"),), f.instance_norm),
    Problem(1, 35, "Group normalization, 8 groups", "X: b (g k) p q; gamma: (g k); beta: (g k); Y: b (g k) p q",
        {"b": 2, "g": 8, "k": 3, "p": 3, "q": 5}, (t.normalize("Y", "X", "b g k p q", "k p q", "g,k"),),
        lambda x, gamma, beta: f.group_norm(x, 8, gamma, beta)),
    Problem(1, 36, "RMS normalization over channels", "X: b c p q; Y: b c p q", IMAGE,
        ("s[b,c,p,q] = X[b,c,p,q] * X[b,c,p,q]\n" + t.mean("r", "s", "b c p q", "c") + "\nY[b,c,p,q] = X[b,c,p,q] / sqrt(r[b,p,q] + 1e-05)",),
        lambda x: x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)),
    Problem(1, 37, "Division by the Frobenius norm", "X: (u b) c p q; total: u; Y: (u b) c p q", {"u": 1, **IMAGE},
        ("s[u,b,c,p,q] = X[u,b,c,p,q] * X[u,b,c,p,q]\ntotal[u] += sum(b, c, p, q, s[u,b,c,p,q])",
         "Y[u,b,c,p,q] = X[u,b,c,p,q] / sqrt(total[u])"), lambda x: x / np.sqrt((x**2).sum())),
    over_rows(38, "Division by the mean magnitude of rows", "a[b,n] = abs(X[b,n])\n" + t.mean("r", "a", "b n", "n") + "\nY[b,n] = X[b,n] / r[b]",
        lambda x: x / np.abs(x).mean(1, keepdims=True)),
    over_rows(39, "Division by the Euclidean norm of rows", "s[b,n] = X[b,n] * X[b,n]\nr[b] = sum(n, s[b,n])\nY[b,n] = X[b,n] / sqrt(r[b])",
        lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)),
    Problem(1, 40, "Layer normalization over all but the batch", "X: b c p q; gamma: c p q; beta: c p q; Y: b c p q", IMAGE,
        (t.normalize("Y", "X", "b c p q", "c p q", "c,p,q"),), f.layer_norm),
    reduction(47, "Sum over a dimension", "Y[b,n] = sum(m, X[b,m,n])", lambda x: x.sum(1, keepdims=True)),
    reduction(48, "Mean over a dimension", t.mean("a", "X", "b m n", "m") + "\nY[b,n] = a[b,n]", lambda x: x.mean(1)),
    reduction(49, "Maximum over a dimension", "Y[b,n] = max(m, X[b,m,n])", lambda x: x.max(1)),
    reduction(51, "Index of the maximum", "top[b,n] = max(m, X[b,m,n])\ni[b,m,n] = where(X[b,m,n] == top[b,n], m, size(m))\nfirst[b,n] = min(m, i[b,m,n])\nY[b,n] = first[b,n]",
        lambda x: x.argmax(1), draw={"X": ties}, types={"i": int32, "first": int32, "Y": int64}),
    reduction(52, "Index of the minimum", "low[b,n] = min(m, X[b,m,n])\ni[b,m,n] = where(X[b,m,n] == low[b,n], m, size(m))\nfirst[b,n] = min(m, i[b,m,n])\nY[b,n] = first[b,n]",
        lambda x: x.argmin(1), draw={"X": ties}, types={"i": int32, "first": int32, "Y": int64}),
    reduction(53, "Minimum over a dimension", "Y[b,n] = min(m, X[b,m,n])", lambda x: x.min(1)),
]  # fmt: skip


def scan(number, title, formulas, reference, arrays="X: b n; Y: b n", start=0, last=(), **more):
    """A scan of rows: the state `acc` of a row."""
    first = f"scan n\ninit: acc[b] = {start}\n{formulas}"
    return Problem(1, number, title, arrays, {"b": 5, "n": 37}, (first, *last), reference, **more)


def near_one(random, shape):
    """Factors whose products neither overflow nor vanish."""
    return (0.7 + 0.6 * random.random(shape)).astype(np.float32)


def bits(random, shape):
    """A random mask."""
    return random.integers(0, 2, shape).astype(np.uint8)


SCANS = [
    scan(89, "Cumulative sum", "acc[b] = acc[b] + X[b,n]\nY[b,n] = acc[b]", lambda x: x.cumsum(1)),
    scan(90, "Cumulative product", "acc[b] = acc[b] * X[b,n]\nY[b,n] = acc[b]", lambda x: x.cumprod(1), start=1, draw={"X": near_one}),
    scan(91, "Cumulative sum from the end", "acc[b] = acc[b] + X[b,size(n) - 1 - n]\nS[b,n] = acc[b]", lambda x: x[:, ::-1].cumsum(1)[:, ::-1],
        "X: b n; S: b n; Y: b n", last=("Y[b,n] = S[b,size(n) - 1 - n]",)),
    scan(92, "Exclusive cumulative sum", "Y[b,n] = acc[b]\nacc[b] = acc[b] + X[b,n]",
        lambda x: np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)], 1)),
    scan(93, "Cumulative sum of masked elements", "acc[b] = acc[b] + X[b,n] * M[b,n]\nY[b,n] = acc[b]", lambda x, mask: (x * mask).cumsum(1),
        "X: b n; M: b n; Y: b n", types={"M": uint8}, draw={"M": bits}),
]  # fmt: skip


def loss(number, title, formulas, reference, arrays="P: b n; T: b n; L:", sizes=None, **more):
    """A loss: the terms `t` divided by their number, and their sum over the whole batch, to which blocks add."""
    return Problem(1, number, title, arrays, sizes or {"b": 13, "n": 21}, (formulas,), reference, **more)


def distribution(random, shape):
    """Rows that sum to 1."""
    return f.softmax(random.random(shape)).astype(np.float32)


def triplet(a, p, n):
    """The triplet margin loss with margin 1; a difference has 1e-6 added, as in PyTorch."""
    near, far = (np.linalg.norm(a - other + 1e-6, axis=1) for other in (p, n))
    return f.relu(near - far + 1).mean()


def distance(result, x, y):
    """The distance of rows, with 1e-6 added to each difference."""
    d = f"{result}_d[b,n]"
    return f"{d} = {x}[b,n] - {y}[b,n] + 1e-06\n{d} = {d} * {d}\n{result}[b] = sum(n, {d})\n{result}[b] = sqrt({result}[b])"


MEAN = "\nL += sum(b, n, t[b,n])"
LOSSES = [
    loss(94, "Mean squared error", "t[b,n] = (P[b,n] - T[b,n]) * (P[b,n] - T[b,n]) / (size(b) * size(n))" + MEAN, lambda p, y: ((p - y) ** 2).mean()),
    loss(95, "Cross entropy of labels", t.logsumexp("l", "P", "b n", "n") + "\nk[b,n] = where(n == T[b], P[b,n], 0)\npicked[b] = sum(n, k[b,n])\n"
        "t[b] = (l[b] - picked[b]) / size(b)\nL += sum(b, t[b])", lambda p, y: -(p - f.logsumexp(p))[np.arange(len(y)), y].mean(),
        "P: b n; T: b; L:", types={"T": int64}, draw={"T": lambda random, shape: random.integers(0, 21, shape)}),
    loss(96, "Smooth L1 loss, beta 1", "d[b,n] = abs(P[b,n] - T[b,n])\nt[b,n] = where(d[b,n] < 1, 0.5 * d[b,n] * d[b,n], d[b,n] - 0.5) / (size(b) * size(n))" + MEAN,
        lambda p, y: np.where(np.abs(p - y) < 1, 0.5 * (p - y) ** 2, np.abs(p - y) - 0.5).mean()),
    loss(98, "Kullback-Leibler divergence, mean over the batch",
        "t[b,n] = where(T[b,n] > 0, T[b,n] * (log(T[b,n]) - log(P[b,n])), 0) / size(b)" + MEAN,
        lambda p, y: (y * (np.log(y) - np.log(p))).sum() / len(y), draw={"P": distribution, "T": distribution}),
    loss(99, "Triplet margin loss, margin 1",
        f"{distance('near', 'A', 'P')}\n{distance('far', 'A', 'N')}\nt[b] = relu(near[b] - far[b] + 1) / size(b)\nL += sum(b, t[b])", triplet,
        "A: b n; P: b n; N: b n; L:"),
    loss(100, "Hinge loss; the targets are broadcast along rows", "t[b,n] = relu(1 - P[b,n] * T[n]) / (size(b) * size(n))" + MEAN,
        lambda p, y: f.relu(1 - p * y).mean(), "P: b n; T: n; L:", {"b": 13, "n": 13},
        draw={"P": uniform, "T": lambda random, shape: (random.integers(0, 2, shape) * 2 - 1).astype(np.float32)}),
    Problem(1, 97, "Scaled dot product attention", "Q: b h m d; K: b h n d; V: b h n d; O: b h m d", {"b": 2, "h": 3, "m": 5, "n": 5, "d": 7},
        ("s[b,h,m,n] = sum(d, Q[b,h,m,d] * K[b,h,n,d])\ns[b,h,m,n] = s[b,h,m,n] * rsqrt(size(d))\n"
         + t.softmax("w", "s", "b h m n", "n") + "\nO[b,h,m,d] = sum(n, w[b,h,m,n] * V[b,h,n,d])",),
        lambda q, k, v: f.softmax(q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), 3) @ v),
]  # fmt: skip

PROBLEMS = [*PRODUCTS, *ELEMENTWISE, *ROWS, *SCANS, *LOSSES]
