"""Level 2: sequences of operations that start with a linear layer, x W^T + bias."""

import numpy as np

from fireiron import int32
from kernelbench import arrays as f
from kernelbench import formulas as t
from kernelbench.problem import Problem

LINEAR = "X: b i; W: o i; bias: o"
GROUPED = "X: b i; W: (g k) i; bias: (g k)"
SIZES = {"b": 5, "g": 4, "k": 3, "o": 7, "i": 11, "u": 1}
A = "a[b,o]"


def product(channel, read):
    """The formulas of `a` = x W^T + bias, whose channels are the rows `read` of W."""
    return f"a[b,{channel}] = sum(i, X[b,i] * W[{read},i])\na[b,{channel}] = a[b,{channel}] + bias[{read}]"


def linear(number, title, after, reference, more="Y: b o", arrays=LINEAR, sizes=(), last=(), window=0, **others):
    """A linear layer, and the formulas of `a[b,o]` after it; the reference is a function of the layer's result.

    With a window, the formulas are those of `a[b,p,r]`: window p of features, and the feature r in it.
    """
    channel = "g,k" if "(g k)" in arrays else "p,r" if window else "o"
    text = f"{product(channel, f'p * {window} + r' if window else channel)}\n{after}"

    def right(x, w, bias, *rest):
        return reference(x @ w.T + bias, *rest)

    return Problem(2, number, title, f"{arrays}; {more}", {**SIZES, **dict(sizes)}, (text, *last), others.pop("whole", right), **others)


def grouped(number, title, before, after, reference, more="Y: b (g k)", **others):
    """A linear layer, formulas `before` a group normalization of `z`, and formulas of the normalized `y` after it."""
    text = f"{before}\n{t.normalize('y', 'z', 'b g k', 'k', 'g,k')}\n{after}"
    return linear(number, title, text, reference, f"gamma: (g k); beta: (g k); {more}", GROUPED, **others)


def group_norm(x, gamma, beta):
    """Group normalization of the simulated number of groups."""
    return f.group_norm(x, SIZES["g"], gamma, beta)


def batch_normed(number, title, before, after, reference, more="", out="Y: b o", last=(), **others):
    """A linear layer, formulas `before` a batch normalization of `z`, and formulas of the normalized `y` after it."""
    text = f"{before}\n{t.batch_norm('y', 'z', 'b o', 'b')}\n{after}"
    return linear(number, title, text, reference, f"{more}gamma: o; beta: o; RM: o; RV: o; NM: o; NV: o; {out}", last=last, **others)


def of_batch(before, after):
    """The reference of a batch normalization between two functions of a tensor and of further inputs: the running statistics, the result."""

    def reference(x, *rest):
        extra, statistics = rest[:-4], rest[-4:]
        y, *running = f.batch_norm(before(x, *extra), *statistics)
        return (*running, after(y, *extra))

    return reference


def plain(x, *_):
    """The tensor."""
    return x


ONE = "v[b,u] = s[b]"  # a dimension of extent 1, as keepdim leaves it
DROP = "where(uniform(seed, b, o) < 0.8, a[b,o] / 0.8, 0)"


def dropped(x, seed):
    """Dropout of a fifth of the elements, in training."""
    keep = f.philox_uniform(int(seed), np.arange(x.shape[0])[:, None], np.arange(x.shape[1])) < np.float32(0.8)
    return np.where(keep, x / 0.8, 0)


def windows(x, size, function):
    """A function of windows of features; features past the last whole window are ignored."""
    count = x.shape[1] // size
    return function(x[:, : count * size].reshape(len(x), count, size), axis=2)


PROBLEMS = [
    linear(9, "Linear, subtract 2, times 1.5, ReLU", f"Y[b,o] = relu(({A} - 2) * 1.5)", lambda x: f.relu((x - 2) * 1.5)),
    linear(12, "Linear, times 2, leaky ReLU 0.1", f"z[b,o] = {A} * 2\nY[b,o] = {t.leaky('z[b,o]', 0.1)}", lambda x: f.leaky(x * 2, 0.1)),
    Problem(2, 14, "Matrix product, divide by 2, sum over features, times 1.5", "X: b i; W: o i; Y: b", SIZES,
        ("a[b,o] = sum(i, X[b,i] * W[o,i])\na[b,o] = a[b,o] / 2\ns[b] = sum(o, a[b,o])\nY[b] = s[b] * 1.5",),
        lambda x, w: (x @ w.T / 2).sum(1, keepdims=True) * 1.5),
    linear(18, "Linear, sum over features; maximum, mean, twice logsumexp of one element",
        f"s[b] = sum(o, {A})\n{ONE}\nm[b] = max(u, v[b,u])\nv[b,u] = m[b]\n{t.mean('n', 'v', 'b u', 'u')}\nv[b,u] = n[b]\n"
        f"{t.logsumexp('l', 'v', 'b u', 'u')}\nv[b,u] = l[b]\n{t.logsumexp('l', 'v', 'b u', 'u')}\nY[b] = l[b]",
        lambda x: f.logsumexp(f.logsumexp(x.sum(1, keepdims=True).max(1, keepdims=True).mean(1, keepdims=True))), "Y: b"),
    linear(22, "Linear, times 2, plus itself, clamp, logsumexp, times its Mish",
        f"z[b,o] = {A} * 2\nz[b,o] = clamp(z[b,o] + z[b,o], -10, 10)\n{t.logsumexp('l', 'z', 'b o', 'o')}\nY[b] = l[b] * {t.mish('l[b]')}",
        lambda x: (lambda y: y * f.mish(y))(f.logsumexp(np.clip(x * 4, -10, 10))), "Y: b"),
    linear(28, "Linear, instance normalization of the features, plus Z, times Z",
        f"{t.normalize('y', 'a', 'b o', 'o')}\nY[b,o] = (y[b,o] + Z[b,o]) * Z[b,o]", lambda x, z: (f.normalized(x, 1) + z) * z, "Z: b o; Y: b o"),
    linear(29, "Linear, Mish, Mish", f"z[b,o] = {t.mish(A)}\nY[b,o] = {t.mish('z[b,o]')}", lambda x: f.mish(f.mish(x))),
    grouped(30, "Linear, group normalization, hard tanh -2 to 2", "z[b,g,k] = a[b,g,k]", "Y[b,g,k] = clamp(y[b,g,k], -2, 2)",
        lambda x, gamma, beta: np.clip(group_norm(x, gamma, beta), -2, 2)),
    batch_normed(33, "Linear, times a vector, batch normalization", f"z[b,o] = {A} * scale[o]", "Y[b,o] = y[b,o]",
        of_batch(np.multiply, plain), "scale: o; "),
    grouped(37, "Linear, Swish, plus a vector, group normalization", f"z[b,g,k] = {t.swish('a[b,g,k]')} + add[g,k]", "Y[b,g,k] = y[b,g,k]",
        lambda x, gamma, beta, add: group_norm(f.swish(x) + add, gamma, beta), "add: (g k); Y: b (g k)"),
    batch_normed(39, "Linear, times a vector, batch normalization; other sizes", f"z[b,o] = {A} * scale[o]", "Y[b,o] = y[b,o]",
        of_batch(np.multiply, plain), "scale: o; ", sizes={"b": 7, "o": 5}),
    linear(40, "Linear, times 0.5, plus itself", f"Y[b,o] = {A} * 0.5 + {A}", lambda x: x * 0.5 + x),
    batch_normed(41, "Linear, batch normalization, GELU, ReLU", f"z[b,o] = {A}", "Y[b,o] = relu(gelu(y[b,o]))",
        of_batch(plain, lambda y: f.relu(f.gelu(y)))),
    linear(45, "Linear, sigmoid, linear, logsumexp over features",
        f"{A} = sigmoid({A})\nz[b,k] = sum(o, {A} * V[k,o])\nz[b,k] = z[b,k] + c[k]\n{t.logsumexp('l', 'z', 'b k', 'k')}\nY[b] = l[b]",
        lambda x, v, c: f.logsumexp(f.sigmoid(x) @ v.T + c), "V: k o; c: k; Y: b"),
    linear(51, "Linear, subtract a vector, mean of features, logsumexp of one element, GELU, plus X",
        f"z[b,o] = {A} - sub[o]\n{t.mean('s', 'z', 'b o', 'o')}\n{ONE}\n{t.logsumexp('l', 'v', 'b u', 'u')}\nl[b] = gelu(l[b])\nY[b,i] = l[b] + X[b,i]",
        None, "sub: o; Y: b i", sizes={"o": 11},
        whole=lambda x, w, bias, sub: f.gelu(f.logsumexp((x @ w.T + bias - sub).mean(1, keepdims=True))) + x),
    linear(53, "Linear, times 0.5, hard tanh -2 to 2, GELU", f"Y[b,o] = gelu(clamp({A} * 0.5, -2, 2))", lambda x: f.gelu(np.clip(x * 0.5, -2, 2))),
    linear(55, "Linear, maximum pooling of 2 features, sum, times 0.5", "m[b,p] = max(r, a[b,p,r])\ns[b] = sum(p, m[b,p])\nY[b] = s[b] * 0.5",
        lambda x: windows(x, 2, np.max).sum(1) * 0.5, "Y: b",
        sizes={"o": 13, "p": 6, "r": 2}, window=2),
    linear(56, "Linear, sigmoid, sum over features", f"{A} = sigmoid({A})\nY[b] = sum(o, {A})", lambda x: f.sigmoid(x).sum(1, keepdims=True), "Y: b"),
    linear(59, "Linear, Swish, times 2", f"Y[b,o] = {t.swish(A)} * 2", lambda x: f.swish(x) * 2),
    grouped(62, "Linear, group normalization, leaky ReLU, plus itself", "z[b,g,k] = a[b,g,k]",
        f"y[b,g,k] = {t.leaky('y[b,g,k]')}\nY[b,g,k] = y[b,g,k] + y[b,g,k]", lambda x, gamma, beta: 2 * f.leaky(group_norm(x, gamma, beta))),
    linear(63, "Linear, ReLU, divide by 2", f"Y[b,o] = relu({A}) / 2", lambda x: f.relu(x) / 2),
    linear(64, "Linear, logsumexp over features, twice leaky ReLU, twice GELU",
        f"{t.logsumexp('l', 'a', 'b o', 'o')}\nl[b] = {t.leaky('l[b]')}\nl[b] = {t.leaky('l[b]')}\nl[b] = gelu(l[b])\nY[b] = gelu(l[b])",
        lambda x: f.gelu(f.gelu(f.leaky(f.leaky(f.logsumexp(x))))), "Y: b"),
    linear(66, "Linear, dropout 0.2 in training, softmax", f"z[b,o] = {DROP}\n{t.softmax('Y', 'z', 'b o', 'o')}",
        lambda x, seed: f.softmax(dropped(x, seed)), "seed:; Y: b o", types={"seed": int32}, draw={"seed": lambda random, shape: np.int32(1234)}),
    linear(68, "Linear, minimum with 2, subtract 2", f"Y[b,o] = min({A}, 2) - 2", lambda x: np.minimum(x, 2) - 2),
    linear(70, "Linear, sigmoid, times 2, plus the layer's result", f"Y[b,o] = sigmoid({A}) * 2 + {A}", lambda x: f.sigmoid(x) * 2 + x),
    grouped(75, "Linear, group normalization, minimum over features, plus a vector (1, features, 1, 1): (1, features, batch, 1)",
        "z[b,g,k] = a[b,g,k]", "least[b] = min(g, k, y[b,g,k])\nY[o,b] = least[b] + add[o]",
        lambda x, gamma, beta, add: group_norm(x, gamma, beta).min(1)[None, :] + add[:, None], "add: o; Y: o b", sizes={"o": 12}),
    Problem(2, 76, "Linear without bias, plus a vector, ReLU", "X: b i; W: o i; add: o; Y: b o", SIZES,
        ("a[b,o] = sum(i, X[b,i] * W[o,i])\nY[b,o] = relu(a[b,o] + add[o])",), lambda x, w, add: f.relu(x @ w.T + add)),
    linear(80, "Linear, maximum over features, subtract the mean of one element, GELU",
        f"s[b] = max(o, {A})\n{ONE}\n{t.mean('m', 'v', 'b u', 'u')}\nY[b,u] = gelu(v[b,u] - m[b])",
        lambda x: f.gelu(x.max(1, keepdims=True) - x.max(1, keepdims=True).mean(1, keepdims=True)), "Y: b u"),
    linear(81, "Linear, Swish, divide by 2, clamp, tanh, clamp", f"Y[b,o] = clamp(tanh(clamp({t.swish(A)} / 2, -1, 1)), -1, 1)",
        lambda x: np.clip(np.tanh(np.clip(f.swish(x) / 2, -1, 1)), -1, 1)),
    batch_normed(84, "Linear, batch normalization, times a number, softmax", f"z[b,o] = {A}", "w[u,b,o] = y[b,o] * scale[u]\nS[u,b,o] = w[u,b,o]",
        of_batch(plain, lambda y, scale: f.softmax(y * scale)), "scale: u; ", "S: u b o; Y: u b o", (t.softmax("Y", "S", "u b o", "o"),)),
    linear(86, "Linear, divide by 10, GELU", f"Y[b,o] = gelu({A} / 10)", lambda x: f.gelu(x / 10)),
    grouped(88, "Linear, group normalization, Swish, times a vector, Swish", "z[b,g,k] = a[b,g,k]",
        f"y[b,g,k] = {t.swish('y[b,g,k]')} * scale[g,k]\nY[b,g,k] = {t.swish('y[b,g,k]')}",
        lambda x, gamma, beta, scale: f.swish(f.swish(group_norm(x, gamma, beta)) * scale), "scale: (g k); Y: b (g k)"),
    grouped(94, "Linear, plus a vector, hard tanh, Mish, group normalization",
        f"z[b,g,k] = clamp(a[b,g,k] + add[g,k], -1, 1)\nz[b,g,k] = {t.mish('z[b,g,k]')}", "Y[b,g,k] = y[b,g,k]",
        lambda x, gamma, beta, add: group_norm(f.mish(np.clip(x + add, -1, 1)), gamma, beta), "add: (g k); Y: b (g k)"),
    linear(95, "Linear, plus a vector, Swish, tanh, GELU, hard tanh", f"z[b,o] = {A} + add[o]\nY[b,o] = clamp(gelu(tanh({t.swish('z[b,o]')})), -1, 1)",
        lambda x, add: np.clip(f.gelu(np.tanh(f.swish(x + add))), -1, 1), "add: o; Y: b o"),
    batch_normed(97, "Linear, batch normalization, plus a number, divide by 1, Swish", f"z[b,o] = {A}",
        f"w[u,b,o] = (y[b,o] + add[u]) / 1\nY[u,b,o] = {t.swish('w[u,b,o]')}",
        of_batch(plain, lambda y, add: f.swish((y + add) / 1)), "add: u; ", "Y: u b o"),
    linear(98, "Linear, average pooling of 16 features, GELU, times 2, maximum",
        f"{t.mean('m', 'a', 'b p r', 'r')}\nm[b,p] = gelu(m[b,p]) * 2\nY[b] = max(p, m[b,p])", lambda x: (f.gelu(windows(x, 16, np.mean)) * 2).max(1), "Y: b",
        sizes={"o": 50, "p": 3, "r": 16}, window=16),
    linear(99, "Linear, GELU, softmax", f"z[b,o] = gelu({A})\n{t.softmax('Y', 'z', 'b o', 'o')}", lambda x: f.softmax(f.gelu(x))),
]  # fmt: skip
