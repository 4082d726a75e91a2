"""Level 2: sequences of operations that start with a convolution, or a transposed one."""

import functools

import numpy as np

from fireiron import int32
from kernelbench import arrays as f
from kernelbench import formulas as t
from kernelbench.problem import Problem
from kernelbench.window import INPUT, Convolution, pooled, pooled_sizes, pooling


def conv2(x=(6, 9), kernel=(3, 3), **more):
    """A convolution 2D."""
    return Convolution(x, kernel, **more)


def conv3(x=(5, 6, 7), kernel=(3, 3, 3), **more):
    """A convolution 3D."""
    return Convolution(x, kernel, **more)


def up2(x=(4, 5), kernel=(3, 3), **more):
    """A transposed convolution 2D, by default with stride 2, padding 1, output padding 1."""
    return Convolution(x, kernel, **{"transposed": True, "stride": 2, "pad": 1, "output_pad": 1, **more})


def up3(x=(3, 2, 4), kernel=(3, 3, 3), **more):
    """A transposed convolution 3D, by default with stride 2 and padding 1."""
    return Convolution(x, kernel, **{"transposed": True, "stride": 2, "pad": 1, **more})


up3_more = functools.partial(up3, output_pad=1)
grouped = {"o": 6, "norm_groups": 2}

STATISTICS = "gamma: o; beta: o; RM: o; RV: o; NM: o; NV: o"
AFFINE = "gamma: (g e); beta: (g e)"
A, Z, Y = "a[@]", "z[@]", "Y[@]"


def convolved(number, title, conv, after, reference, more="", pool=None, last=(), first=(), sizes=(), out=None, **others):
    """A convolution, the formulas of its result `a` after it, and kernels before and after; the reference is a function of the result.

    With `pool`, the formulas are those of the elements of pooling windows. `@` is the index of a result, `#` that of an element of a window.
    """
    at = t.index(conv.out)
    text = conv.text(() if pool is None else (pool,) * conv.rank) + "\n" + after
    window = {} if pool is None else pooled_sizes(conv, pool)
    kernels = [kernel.replace("@", at).replace("#", f"{at},{','.join('ijk'[: conv.rank])}") for kernel in (*first, text, *last)]

    def right(x, w, *rest):
        bias, rest = (rest[0], rest[1:]) if conv.bias else (None, rest)
        return reference(conv(x, w, bias), *rest)

    arrays = f"{conv.arrays}; {more + '; ' if more else ''}{out or 'Y: ' + conv.dims}"
    right = others.pop("whole", right)
    return Problem(2, number, title, arrays, {**conv.sizes, **window, **dict(sizes)}, tuple(kernels), right, **others)


def stored(number, title, conv, before, last, reference, more="", **others):
    """A convolution whose result, after the formulas `before` of `z[@]`, is the array T that the kernels `last` read."""
    arrays = f"T: {conv.dims}" + (f"; {more}" if more else "")
    return convolved(number, title, conv, f"{before}\nT[@] = z[@]", reference, arrays, last=last, **others)


def mean_of_positions(result, over):
    """The formulas that add the elements `z` of a result, divided by their number, to `result[b,o]`."""
    return f"z[@] = z[@] / {t.count(over)}\n{result}[b,o] += sum({', '.join(over.split())}, z[@])"


def normalized(kind, over, conv, result="y", **more):
    """The formulas of a normalization of the array T."""
    return t.normalize(result, "T", conv.out, over, conv.channel if kind == "group" else "", **more)


def vector(values, rank):
    """A vector of channels, broadcast to (channels, *spatial)."""
    return f.channels(values, rank)


def group_norm(x, gamma, beta):
    """Group normalization of two groups."""
    return f.group_norm(x, 2, gamma, beta)


def of_batch(after, before=lambda x: x):
    """The reference of a batch normalization between two functions: the new running statistics, then the result."""

    def reference(x, *statistics):
        y, *running = f.batch_norm(before(x), *statistics)
        return (*running, after(y))

    return reference


def plain(x):
    """The tensor."""
    return x


def dropout(x, seed):
    """Dropout of a fifth of the elements, in training; the counter is batch, channel, first position, and the other two as one number."""
    b, o, p, q, v = np.ogrid[tuple(slice(n) for n in x.shape)]
    keep = f.philox_uniform(int(seed), b, o, p, q * x.shape[4] + v) < np.float32(0.8)
    return np.where(keep, x / 0.8, 0)


def layer_then_pool(x, add, gamma, beta):
    """Problem 3 after the convolution."""
    return f.gelu(f.avg_pool(f.layer_norm(x + add, gamma, beta), 2, rank=3))


def batch_then_group(x, *rest):
    """Problem 11 after the convolution."""
    y, *running = f.batch_norm(x, *rest[:4])
    return (*running, group_norm(f.max_pool(np.tanh(y), 2), *rest[4:]))


def pooled_first(x, w, bias, scale):
    """Problem 38."""
    conv = f.conv_transposed(f.avg_pool(x, 2, rank=3), w, bias, 2, 1, 1)
    flat = np.clip(conv, 0, 1).reshape(*conv.shape[:2], -1)
    return f.softmax(flat, 2).reshape(conv.shape) * vector(scale, 3)


def number_drawn(value):
    """A function that draws a number."""
    return lambda random, shape: np.float32(value)


FIRST = up2(stride=1, output_pad=0)
GROUPS2, GROUPS3 = conv2(**grouped), conv3(**grouped)
FIVE = up2(kernel=(5, 5), stride=1, output_pad=0, **grouped)
SMALL3 = up3(**grouped)
LONG = up3((3, 3, 4))
SUMS = up3((4, 4, 7), (5, 5, 5), pad=2)
WIDE = conv3((10, 6, 7))
AVERAGED = up3_more((2, 2, 3), source="P")

TWO_DIMENSIONS = [
    convolved(1, "Convolution 2D, ReLU, plus a vector", conv2(), f"{Y} = relu({A}) + add[o]", lambda x, add: f.relu(x) + vector(add, 2), "add: o"),
    convolved(2, "Transposed convolution 2D, plus a vector, clamp, times 2, clamp, divide by 2", up2(),
        f"{Y} = clamp(clamp({A} + add[o], 0, 1) * 2, 0, 1) / 2", lambda x, add: np.clip(np.clip(x + vector(add, 2), 0, 1) * 2, 0, 1) / 2, "add: o"),
    convolved(4, "Convolution 2D, Mish, Mish", conv2(), f"{Z} = {t.mish(A)}\n{Y} = {t.mish(Z)}", lambda x: f.mish(f.mish(x))),
    convolved(5, "Transposed convolution 2D, kernel 4, subtract a vector, tanh", up2(kernel=(4, 4)), f"{Y} = tanh({A} - sub[o])",
        lambda x, sub: np.tanh(x - vector(sub, 2)), "sub: o"),
    convolved(10, "Transposed convolution 2D, maximum pooling, hard tanh, mean of positions, tanh", FIRST,
        f"{Z} = max(i, j, a[#])\n{Z} = clamp({Z}, -1, 1)\n{mean_of_positions('G', 'p q')}",
        lambda x: np.tanh(np.clip(f.max_pool(x, 2), -1, 1).mean((2, 3))), "G: b o", 2, ("Y[b,o] = tanh(G[b,o])",), out="Y: b o"),
    stored(11, "Transposed convolution 2D, kernel 5, batch normalization, tanh, maximum pooling, group normalization", FIVE, f"{Z} = {A}",
        (f"{t.batch_norm('y', 'T', FIVE.out, 'b p q')}\nV[@] = tanh(y[@])",
         f"{pooling('max', 'w', 'V', 'b,g,e', 2, 2)}\n{t.normalize('Y', 'w', 'b g e l m', 'e l m', 'g,e', vectors=('gain', 'shift'))}"),
        batch_then_group, f"{STATISTICS}; V: {FIVE.dims}; gain: o; shift: o".replace(": o", ": (g e)"), out="Y: b (g e) l m",
        sizes=pooled(FIVE.result, 2)),
    convolved(16, "Transposed convolution 2D, Mish, plus 0.5, hard tanh, times 2", up2(), f"{Y} = clamp({t.mish(A)} + 0.5, -1, 1) * 2",
        lambda x: np.clip(f.mish(x) + 0.5, -1, 1) * 2),
    stored(17, "Convolution 2D, instance normalization, divide by 2", conv2(), f"{Z} = {A}",
        (f"{normalized('instance', 'p q', conv2())}\n{Y} = y[@] / 2",), lambda x: f.instance_norm(x) / 2),
    stored(19, "Transposed convolution 2D, stride 1, GELU, group normalization", up2(stride=1, pad=0, output_pad=0, **grouped), f"{Z} = gelu({A})",
        (normalized("group", "e p q", GROUPS2, "Y"),), lambda x, *affine: group_norm(f.gelu(x), *affine), AFFINE),
    stored(21, "Convolution 2D, plus a vector, times a vector, sigmoid, group normalization", GROUPS2,
        f"{Z} = sigmoid(({A} + add[g,e]) * scale[g,e])", (normalized("group", "e p q", GROUPS2, "Y"),),
        lambda x, add, scale, *affine: group_norm(f.sigmoid((x + vector(add, 2)) * vector(scale, 2)), *affine), f"add: (g e); scale: (g e); {AFFINE}"),
    convolved(25, "Convolution 2D, minimum over channels, tanh, tanh", conv2(), f"low[b,p,q] = min(o, {A})\nY[b,p,q] = tanh(tanh(low[b,p,q]))",
        lambda x: np.tanh(np.tanh(x.min(1, keepdims=True))), out="Y: b p q"),
    convolved(31, "Convolution 2D, minimum with 0.5, plus a vector, times 2", conv2(), f"{Y} = (min({A}, 0.5) + add[o]) * 2",
        lambda x, add: (np.minimum(x, 0.5) + vector(add, 2)) * 2, "add: o"),
    convolved(32, "Convolution 2D, times 2, minimum over channels", conv2(), f"{Z} = {A} * 2\nY[b,p,q] = min(o, {Z})",
        lambda x: (x * 2).min(1, keepdims=True), out="Y: b p q"),
    convolved(35, "Convolution 2D, subtract 0.5, hard Swish, maximum pooling, Mish", conv2(),
        f"z[#] = a[#] - 0.5\nz[#] = {t.hard_swish('z[#]')}\nw[@] = max(i, j, z[#])\n{Y} = {t.mish('w[@]')}",
        lambda x: f.mish(f.max_pool(f.hard_swish(x - 0.5), 2)), pool=2),
    convolved(36, "Transposed convolution 2D, minimum over channels, sum over the height, GELU, plus a number", up2(),
        f"low[b,p,q] = min(o, {A})\ns[b,q] = sum(p, low[b,p,q])\nY[m,b,q] = gelu(s[b,q]) + add[m]",
        lambda x, add: f.gelu(x.min(1, keepdims=True).sum(2, keepdims=True)) + add, "add: m", sizes={"m": 1}, out="Y: m b q",
        draw={"bias": lambda random, shape: (random.standard_normal(shape) + 4).astype(np.float32)}),
    convolved(42, "Transposed convolution 2D, mean of positions, plus a vector, logsumexp over channels, sum, times 10",
        up2(stride=1, pad=0, output_pad=0), f"{Z} = {A}\n{mean_of_positions('G', 'p q')}",
        lambda x, add: 10 * f.logsumexp(x.mean((2, 3), keepdims=True) + vector(add, 2)).sum((2, 3)), "G: b o; add: o",
        last=(f"y[b,o] = G[b,o] + add[o]\n{t.logsumexp('l', 'y', 'b o', 'o')}\nw[b,i,j] = l[b]\nS[b] = sum(i, j, w[b,i,j])\nY[b] = S[b] * 10",),
        sizes={"i": 1, "j": 1}, out="Y: b"),
    convolved(44, "Transposed convolution 2D, times 0.5, mean of positions, mean of one position", up2(),
        f"{Z} = {A} * 0.5\n{mean_of_positions('G', 'p q')}", lambda x: (x * 0.5).mean((2, 3), keepdims=True).mean((2, 3), keepdims=True), "G: b o",
        last=(f"w[b,o,i,j] = G[b,o]\n{t.mean('y', 'w', 'b o i j', 'i j')}\nY[b,o] = y[b,o]",), sizes={"i": 1, "j": 1}, out="Y: b o"),
    convolved(46, "Convolution 2D, subtract 0.5, tanh, subtract 0.2, average pooling", conv2(),
        f"z[#] = tanh(a[#] - 0.5) - 0.2\nw[@] = sum(i, j, z[#])\n{Y} = w[@] / 4", lambda x: f.avg_pool(np.tanh(x - 0.5) - 0.2, 2), pool=2),
    stored(52, "Convolution 2D, times tanh of softplus, batch normalization", conv2(), f"{Z} = tanh({t.softplus(A)}) * {A}",
        (t.batch_norm("Y", "T", "b o p q", "b p q"),), of_batch(plain, f.mish), STATISTICS),
    convolved(54, "Convolution 2D, times a vector, leaky ReLU, GELU", conv2(), f"{Z} = {A} * scale[o]\n{Y} = gelu({t.leaky(Z)})",
        lambda x, scale: f.gelu(f.leaky(x * vector(scale, 2))), "scale: o"),
    convolved(57, "Convolution 2D, ReLU, hard Swish", conv2(), f"{Z} = relu({A})\n{Y} = {Z} * clamp(({Z} + 3) / 6, 0, 1)",
        lambda x: f.relu(x) * np.clip((f.relu(x) + 3) / 6, 0, 1)),
    convolved(65, "Convolution 2D, average pooling of 4 x 4, sigmoid, sum over all but the batch", conv2((11, 13)),
        "w[@] = sum(i, j, a[#])\nw[@] = sigmoid(w[@] / 16)\nY[b] += sum(o, p, q, w[@])", lambda x: f.sigmoid(f.avg_pool(x, 4)).sum((1, 2, 3)),
        pool=4, out="Y: b"),
    convolved(67, "Convolution 2D, GELU, mean of positions", conv2(), f"{Z} = gelu({A})\n{mean_of_positions('Y', 'p q')}",
        lambda x: f.gelu(x).mean((2, 3)), out="Y: b o"),
    convolved(69, "Convolution 2D, hard Swish, ReLU", conv2(), f"{Y} = relu({t.hard_swish(A)})", lambda x: f.relu(f.hard_swish(x))),
    convolved(71, "Convolution 2D, divide by 2, leaky ReLU", conv2(), f"{Z} = {A} / 2\n{Y} = {t.leaky(Z)}", lambda x: f.leaky(x / 2)),
    stored(73, "Convolution 2D, batch normalization, times 2", conv2(), f"{Z} = {A}",
        (f"{t.batch_norm('y', 'T', 'b o p q', 'b p q')}\n{Y} = y[@] * 2",), of_batch(lambda y: y * 2), STATISTICS),
    convolved(82, "Convolution 2D, tanh, times 2, plus a vector, maximum pooling of 4 x 4", conv2((11, 13)),
        f"z[#] = tanh(a[#]) * 2 + add[o]\n{Y} = max(i, j, z[#])", lambda x, add: f.max_pool(np.tanh(x) * 2 + vector(add, 2), 4), "add: o", 4),
    stored(85, "Convolution 2D, group normalization, times a vector, maximum pooling of 4 x 4, clamp", conv2((11, 13), **grouped), f"{Z} = {A}",
        (f"{normalized('group', 'e p q', GROUPS2)}\nV[@] = y[@] * scale[g,e]",
         f"{pooling('max', 'w', 'V', 'b,g,e', 4, 2)}\nY[b,g,e,l,m] = clamp(w[b,g,e,l,m], 0, 1)"),
        lambda x, gamma, beta, scale: np.clip(f.max_pool(group_norm(x, gamma, beta) * vector(scale, 2), 4), 0, 1),
        f"{AFFINE}; scale: (g e); V: b (g e) p q", out="Y: b (g e) l m", sizes=pooled((9, 11), 4)),
    convolved(87, "Convolution 2D, subtract 0.5, subtract 0.2, Mish", conv2(), f"{Z} = {A} - 0.5 - 0.2\n{Y} = {t.mish(Z)}",
        lambda x: f.mish(x - 0.5 - 0.2)),
    convolved(91, "Transposed convolution 2D, kernel 4, softmax over channels, plus a vector, times 2, sigmoid", up2(kernel=(4, 4)),
        f"{t.softmax('y', 'a', 'b o p q', 'o')}\n{Y} = sigmoid((y[@] + add[o]) * 2)",
        lambda x, add: f.sigmoid((f.softmax(x) + vector(add, 2)) * 2), "add: o"),
    stored(92, "Convolution 2D, group normalization, tanh, hard Swish, plus the convolution, logsumexp over channels", GROUPS2, f"{Z} = {A}",
        (f"{normalized('group', 'e p q', GROUPS2)}\nz[@] = tanh(y[@])\nV[@] = {t.hard_swish(Z)} + T[@]",
         f"{t.logsumexp('l', 'V', 'b g e p q', 'g e')}\nY[b,p,q] = l[b,p,q]"),
        lambda x, *affine: f.logsumexp(f.hard_swish(np.tanh(group_norm(x, *affine))) + x), f"{AFFINE}; V: b (g e) p q", out="Y: b p q"),
    convolved(93, "Transposed convolution 2D, kernel 4, plus 0.5, minimum with 0, GELU, times 2", up2(kernel=(4, 4), pad=0, output_pad=0),
        f"{Y} = gelu(min({A} + 0.5, 0)) * 2", lambda x: f.gelu(np.minimum(x + 0.5, 0)) * 2),
]  # fmt: skip

THREE_DIMENSIONS = [
    stored(3, "Transposed convolution 3D, plus a number, layer normalization of the last dimension, average pooling, GELU", up3_more(),
        f"{Z} = {A} + add\n{t.normalize('y', 'z', 'b o p q v', 'v', 'v')}\nz[@] = y[@]",
        (f"{pooling('avg', 'w', 'T', 'b,o', 2, 3)}\nY[b,o,l,m,n] = gelu(w[b,o,l,m,n])",), layer_then_pool, "add:; gamma: v; beta: v",
        out="Y: b o l m n", sizes=pooled(up3_more().result, 2), draw={"add": number_drawn(1)}),
    stored(6, "Convolution 3D, softmax over channels, maximum pooling, maximum pooling", WIDE, t.softmax("z", "a", "b o p q v", "o"),
        (pooling("max", "V", "T", "b,o", 2, 3), pooling("max", "Y", "V", "b,o", 2, 3, ("l2", "m2", "n2"))),
        lambda x: f.max_pool(f.max_pool(f.softmax(x), 2, rank=3), 2, rank=3), "V: b o l m n", out="Y: b o l2 m2 n2",
        sizes={**pooled(WIDE.result, 2), **pooled(tuple(n // 2 for n in WIDE.result), 2, ("l2", "m2", "n2"))}),
    convolved(7, "Convolution 3D, ReLU, leaky ReLU, GELU, sigmoid, plus a vector", conv3(),
        f"{Z} = relu({A})\n{Z} = {t.leaky(Z)}\n{Y} = sigmoid(gelu({Z})) + add[o]", lambda x, add: f.sigmoid(f.gelu(f.leaky(f.relu(x)))) + vector(add, 3), "add: o"),
    convolved(8, "Convolution 3D, divide by 2, maximum pooling, mean of positions, plus a vector, sum over channels", conv3(),
        f"w[#] = a[#] / 2\n{Z} = max(i, j, k, w[#])\n{mean_of_positions('G', 'p q v')}",
        lambda x, add: (f.max_pool(x / 2, 2, rank=3).mean((2, 3, 4), keepdims=True) + vector(add, 3)).sum(1), "G: b o; add: o", 2,
        ("w[b,o] = G[b,o] + add[o]\nY[b] = sum(o, w[b,o])",), out="Y: b"),
    convolved(13, "Transposed convolution 3D, stride 1, mean over the depth, plus a vector, softmax over channels, tanh, times 2",
        up3(stride=1), f"{t.mean('y', 'a', 'b o p q v', 'p')}\ny[b,o,q,v] = y[b,o,q,v] + add[o]\n{t.softmax('w', 'y', 'b o q v', 'o')}\n"
        "Y[b,o,q,v] = tanh(w[b,o,q,v]) * 2", lambda x, add: np.tanh(f.softmax(x.mean(2, keepdims=True) + vector(add, 3))) * 2, "add: o", out="Y: b o q v"),
    stored(15, "Transposed convolution 3D, batch normalization, subtract the mean of positions", up3(), f"{Z} = {A}",
        (f"{t.batch_norm('y', 'T', 'b o p q v', 'b p q v')}\n{t.mean('w', 'y', 'b o p q v', 'p q v')}\n{Y} = y[@] - w[b,o]",),
        of_batch(lambda y: y - y.mean((2, 3, 4), keepdims=True)), STATISTICS),
    convolved(20, "Transposed convolution 3D, plus a vector, plus the convolution, times it, plus it", up3_more(),
        f"{Z} = {A} + add[o]\n{Z} = {Z} + {A}\n{Z} = {Z} * {A}\n{Y} = {Z} + {A}", lambda x, add: (x + vector(add, 3) + x) * x + x, "add: o"),
    stored(23, "Convolution 3D, group normalization, mean of all but the batch", GROUPS3, f"{Z} = {A}",
        (f"{normalized('group', 'e p q v', GROUPS3)}\nz[@] = y[@] / {t.count('g e p q v')}\nY[b] += sum(g, e, p, q, v, z[@])",),
        lambda x, *affine: group_norm(x, *affine).mean((1, 2, 3, 4)), AFFINE, out="Y: b"),
    convolved(24, "Convolution 3D, minimum over the depth, softmax over channels", conv3(),
        f"low[b,o,q,v] = min(p, {A})\n{t.softmax('Y', 'low', 'b o q v', 'o')}", lambda x: f.softmax(x.min(2)), out="Y: b o q v"),
    convolved(26, "Transposed convolution 3D, plus another input, times its hard Swish", up3_more(), f"{Z} = {A} + N[@]\n{Y} = {Z} * ({t.hard_swish(Z)})",
        lambda x, more: (x + more) * f.hard_swish(x + more), "N: b o p q v"),
    stored(27, "Convolution 3D, kernel 4, hard Swish, group normalization, mean of positions", conv3(kernel=(4, 4, 4), **grouped), f"{Z} = {t.hard_swish(A)}",
        (f"{normalized('group', 'e p q v', GROUPS3)}\n{t.mean('w', 'y', 'b g e p q v', 'p q v')}\nY[b,g,e] = w[b,g,e]",),
        lambda x, *affine: group_norm(f.hard_swish(x), *affine).mean((2, 3, 4)), AFFINE, out="Y: b (g e)"),
    convolved(34, "Transposed convolution 3D, kernel 4, layer normalization of the last dimension, GELU, times 1", up3(kernel=(4, 4, 4)),
        f"{t.normalize('y', 'a', 'b o p q v', 'v', 'v')}\n{Y} = gelu(y[@]) * 1", lambda x, *affine: f.gelu(f.layer_norm(x, *affine)) * 1,
        "gamma: v; beta: v"),
    stored(38, "Average pooling 3D, transposed convolution, clamp, softmax over positions, times a vector", AVERAGED, f"{Z} = clamp({A}, 0, 1)",
        (f"{t.softmax('y', 'T', 'b o p q v', 'p q v')}\n{Y} = y[@] * scale[o]",), None, "X: b c l m n; scale: o", whole=pooled_first,
        first=(pooling("avg", "P", "X", "b,c", 2, 3, INPUT),), sizes={"l": 5, "m": 4, "n": 7, "i": 2, "j": 2, "k": 2}),
    convolved(43, "Convolution 3D, padding 1, maximum pooling, logsumexp over channels, ReLU", conv3((4, 3, 5), pad=1),
        f"{Z} = max(i, j, k, a[#])\n{t.logsumexp('w', 'z', 'b o p q v', 'o')}\nY[b,p,q,v] = relu(w[b,p,q,v])",
        lambda x: f.relu(f.logsumexp(f.max_pool(x, 2, rank=3))), pool=2, out="Y: b p q v"),
    convolved(47, "Convolution 3D, Mish, tanh", conv3(), f"{Y} = tanh({t.mish(A)})", lambda x: np.tanh(f.mish(x))),
    convolved(48, "Convolution 3D, times a vector, tanh, times a vector, sigmoid", conv3(), f"{Y} = sigmoid(tanh({A} * scale[o]) * gain[o])",
        lambda x, scale, gain: f.sigmoid(np.tanh(x * vector(scale, 3)) * vector(gain, 3)), "scale: o; gain: o"),
    convolved(49, "Transposed convolution 3D, softmax over channels, sigmoid", up3_more(), f"{t.softmax('y', 'a', 'b o p q v', 'o')}\n{Y} = sigmoid(y[@])",
        lambda x: f.sigmoid(f.softmax(x))),
    convolved(50, "Transposed convolution 3D, times a number, average pooling, plus a vector, times a number", up3(),
        f"z[#] = a[#] * first\nw[@] = sum(i, j, k, z[#])\n{Y} = (w[@] / 8 + add[o]) * second",
        lambda x, first, add, second: (f.avg_pool(x * first, 2, rank=3) + vector(add, 3)) * second, "first:; add: o; second:", 2,
        draw={"first": number_drawn(0.5), "second": number_drawn(1)}),
    convolved(58, "Transposed convolution 3D, logsumexp over channels, hard Swish by sigmoid, subtract a number, clamp", up3(),
        f"{t.logsumexp('w', 'a', 'b o p q v', 'o')}\ny[m,b,p,q,v] = w[b,p,q,v] * sigmoid(w[b,p,q,v] + 3) / 6 - sub[m]\nY[m,b,p,q,v] = clamp(y[m,b,p,q,v], -1, 1)",
        lambda x, sub: (lambda y: np.clip(y * f.sigmoid(y + 3) / 6 - sub, -1, 1))(f.logsumexp(x)), "sub: m", sizes={"m": 1}, out="Y: m b p q v"),
    stored(60, "Transposed convolution 3D, Swish, group normalization, hard Swish", SMALL3, f"{Z} = {t.swish(A)}",
        (f"{normalized('group', 'e p q v', SMALL3)}\n{Y} = {t.hard_swish('y[@]')}",), lambda x, *affine: f.hard_swish(group_norm(f.swish(x), *affine)), AFFINE),
    stored(61, "Transposed convolution 3D, stride 1, no bias, ReLU, group normalization", up3(stride=1, pad=0, bias=False, **grouped), f"{Z} = relu({A})",
        (normalized("group", "e p q v", SMALL3, "Y"),), lambda x, *affine: group_norm(f.relu(x), *affine), AFFINE),
    stored(72, "Transposed convolution 3D, batch normalization, average pooling, average pooling", LONG, f"{Z} = {A}",
        (t.batch_norm("V", "T", "b o p q v", "b p q v"), pooling("avg", "S", "V", "b,o", 2, 3),
         pooling("avg", "Y", "S", "b,o", 2, 3, ("l2", "m2", "n2"))),
        of_batch(lambda y: f.avg_pool(f.avg_pool(y, 2, rank=3), 2, rank=3)), f"{STATISTICS}; V: b o p q v; S: b o l m n", out="Y: b o l2 m2 n2",
        sizes={**pooled(LONG.result, 2), **pooled(tuple(n // 2 for n in LONG.result), 2, ("l2", "m2", "n2"))}),
    convolved(74, "Transposed convolution 3D, leaky ReLU 0.2, times a vector, leaky ReLU 0.2, maximum pooling", up3_more(),
        f"z[#] = {t.leaky('a[#]', 0.2)} * scale[o]\nz[#] = {t.leaky('z[#]', 0.2)}\n{Y} = max(i, j, k, z[#])",
        lambda x, scale: f.max_pool(f.leaky(f.leaky(x, 0.2) * vector(scale, 3), 0.2), 2, rank=3), "scale: o", 2),
    stored(77, "Transposed convolution 3D, kernel 5, times 2, batch normalization, mean of positions", up3((2, 1, 3), (5, 5, 5), stride=1, pad=0),
        f"{Z} = {A} * 2", (f"{t.batch_norm('y', 'T', 'b o p q v', 'b p q v')}\n{t.mean('w', 'y', 'b o p q v', 'p q v')}\nY[b,o] = w[b,o]",),
        of_batch(lambda y: y.mean((2, 3, 4), keepdims=True), lambda x: x * 2), STATISTICS, out="Y: b o"),
    convolved(78, "Transposed convolution 3D, kernel 5, maximum pooling of 2, of 3, sum over channels", SUMS, "T[@] = max(i, j, k, a[#])",
        lambda x: f.max_pool(f.max_pool(x, 2, rank=3), 3, rank=3).sum(1, keepdims=True), "T: b o p q v", 2,
        (f"{pooling('max', 'w', 'T', 'b,o', 3, 3, taps=('i2', 'j2', 'k2'))}\nY[b,l,m,n] = sum(o, w[b,o,l,m,n])",), out="Y: b l m n",
        sizes=pooled(tuple(n // 2 for n in SUMS.result), 3, taps=("i2", "j2", "k2"))),
    stored(79, "Convolution 3D, times a vector, instance normalization, clamp, times the vector, maximum over channels", conv3(), f"{Z} = {A} * scale[o]",
        (f"{normalized('instance', 'p q v', conv3())}\nV[@] = clamp(y[@], -1, 1) * scale[o]", "Y[b,p,q,v] = max(o, V[@])"),
        lambda x, scale: (np.clip(f.instance_norm(x * vector(scale, 3)), -1, 1) * vector(scale, 3)).max(1), "scale: o; V: b o p q v", out="Y: b p q v"),
    stored(83, "Convolution 3D, group normalization, minimum with 0, clamp, dropout 0.2 in training", GROUPS3, f"{Z} = {A}",
        (f"{normalized('group', 'e p q v', GROUPS3)}\nz[@] = clamp(min(y[@], 0), 0, 1)\n"
         f"{Y} = where(uniform(seed, b, g * size(e) + e, p, q * size(v) + v) < 0.8, z[@] / 0.8, 0)",),
        lambda x, gamma, beta, seed: dropout(np.clip(np.minimum(group_norm(x, gamma, beta), 0), 0, 1), seed), f"{AFFINE}; seed:",
        types={"seed": int32}, draw={"seed": lambda random, shape: np.int32(77)}),
    convolved(89, "Transposed convolution 3D, maximum pooling, softmax over channels, subtract a vector, Swish, maximum over channels", up3_more(),
        f"{Z} = max(i, j, k, a[#])\n{t.softmax('y', 'z', 'b o p q v', 'o')}\n{Z} = y[@] - sub[o]\n{Z} = {t.swish(Z)}\nY[b,p,q,v] = max(o, {Z})",
        lambda x, sub: f.swish(f.softmax(f.max_pool(x, 2, rank=3)) - vector(sub, 3)).max(1), "sub: o", 2, out="Y: b p q v"),
    convolved(90, "Convolution 3D, leaky ReLU 0.2, plus a vector, clamp, GELU", conv3(), f"{Y} = gelu(clamp({t.leaky(A, 0.2)} + add[o], -1, 1))",
        lambda x, add: f.gelu(np.clip(f.leaky(x, 0.2) + vector(add, 3), -1, 1)), "add: o"),
    convolved(96, "Transposed convolution 3D, times 0.5, maximum pooling, mean of positions, clamp", up3(),
        f"w[#] = a[#] * 0.5\n{Z} = max(i, j, k, w[#])\n{mean_of_positions('G', 'p q v')}",
        lambda x: np.clip(f.max_pool(x * 0.5, 2, rank=3).mean((2, 3, 4), keepdims=True), 0, 1), "G: b o", 2, ("Y[b,o] = clamp(G[b,o], 0, 1)",),
        out="Y: b o"),
    convolved(100, "Transposed convolution 3D, at least -1, divide by 2", up3(), f"{Y} = max({A}, -1) / 2", lambda x: np.maximum(x, -1) / 2),
]  # fmt: skip

PROBLEMS = [*TWO_DIMENSIONS, *THREE_DIMENSIONS]
