"""Level 1: pooling, convolutions and transposed convolutions."""

from functools import partial

from kernelbench import arrays as f
from kernelbench.formulas import count, index
from kernelbench.problem import Problem
from kernelbench.window import INPUT, RESULT, TAP, Convolution, affine


def pooling(number, title, how, x, kernel, stride, pad=0, dilation=1):
    """Maxima or means of windows; a maximum ignores elements outside of the input."""
    rank = len(x)
    kernel = (kernel,) * rank
    result, taps = RESULT[:rank], TAP[:rank]
    sizes = {
        "b": 2,
        "c": 3,
        **{dim: (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for dim, n, k in zip(result, x, kernel, strict=True)},
    }
    sizes |= {**dict(zip(taps, kernel, strict=True)), **dict(zip(INPUT, x, strict=False))}
    terms = [[(dim, stride), (tap, dilation)] for dim, tap in zip(result, taps, strict=True)]
    read = f"X[b,c,{','.join(affine(term, -pad) for term in terms)}]"
    at, out = f"b,c,{','.join(result)}", f"Y[b,c,{','.join(result)}]"
    if how == "max":
        text = f"outside X -inf\n{out} = max({', '.join(taps)}, {read})"
        right = partial(f.max_pool, kernel=kernel, stride=stride, pad=pad, dilation=dilation, rank=rank)
    else:
        text = f"t[{at}] = sum({', '.join(taps)}, {read})\n{out} = t[{at}] / {count(' '.join(taps))}"
        right = partial(f.avg_pool, kernel=kernel, stride=stride, pad=pad, rank=rank)
    arrays = f"X: b c {' '.join(INPUT[:rank])}; Y: b c {' '.join(result)}"
    return Problem(1, number, title, arrays, sizes, (text,), right)


def convolution(number, title, x, kernel, bias=False, note="", **more):
    """A convolution; without a bias unless it is stated."""
    conv = Convolution(x, kernel, bias=bias, **more)
    text = f"{conv.text()}\nY[{index(conv.out)}] = a[{index(conv.out)}]"
    out = "b (g o) " + " ".join(RESULT[: conv.rank]) if conv.groups > 1 else conv.out
    return Problem(1, number, title, f"{conv.arrays}; Y: {out}", conv.sizes, (text,), conv, note=note)


transposed = partial(convolution, transposed=True)
depthwise = partial(convolution, groups=5, c=1, o=1)


def separable(x, w, v):
    """A depthwise convolution, then a pointwise one."""
    return f.conv(f.conv(x, w, pad=1, groups=x.shape[1]), v)


PROBLEMS = [
    pooling(41, "Maximum pooling 1D, kernel 8, padding 4, dilation 3", "max", (29,), 8, 1, 4, 3),
    pooling(42, "Maximum pooling 2D, kernel 4, stride 1, padding 1", "max", (7, 9), 4, 1, 1),
    pooling(43, "Maximum pooling 3D, kernel 3, stride 2, padding 1, dilation 3", "max", (9, 11, 8), 3, 2, 1, 3),
    pooling(44, "Average pooling 1D, kernel 8, padding 4", "avg", (19,), 8, 1, 4),
    pooling(45, "Average pooling 2D, kernel 11", "avg", (25, 34), 11, 11),
    pooling(46, "Average pooling 3D, kernel 3, stride 2, padding 1", "avg", (7, 8, 9), 3, 2, 1),
    convolution(50, "Convolution 2D, 3 channels, kernel 11, stride 4, padding 2, bias", (19, 23), (11, 11), True, stride=4, pad=2, o=5),
    convolution(54, "Convolution 3D, kernel 3", (5, 6, 7), (3, 3, 3)),
    convolution(55, "Convolution 2D, kernel 3, other height than width", (6, 9), (3, 3)),
    convolution(56, "Convolution 2D, kernel 5 x 7", (9, 12), (5, 7)),
    transposed(57, "Transposed convolution 2D, kernel 3", (5, 6), (3, 3)),
    transposed(58, "Transposed convolution 3D, kernel 3 x 5 x 7", (3, 4, 5), (3, 5, 7), c=2, o=3, b=1),
    convolution(59, "Convolution 3D, kernel 3 x 3 x 1", (6, 7, 4), (3, 3, 1)),
    convolution(60, "Convolution 3D, kernel 3 x 5 x 7", (5, 7, 10), (3, 5, 7), c=2, o=3),
    transposed(61, "Transposed convolution 3D, kernel 3", (3, 4, 5), (3, 3, 3)),
    convolution(62, "Convolution 2D, kernel 5 x 9", (8, 13), (5, 9)),
    convolution(63, "Convolution 2D, kernel 3, equal height and width", (9, 9), (3, 3)),
    transposed(64, "Transposed convolution 1D, kernel 3", (13,), (3,), c=5, o=6),
    transposed(65, "Transposed convolution 2D, kernel 3 x 7", (5, 6), (3, 7)),
    convolution(66, "Convolution 3D, kernel 3 x 5 x 7, other extents", (4, 7, 9), (3, 5, 7), c=2, o=3),
    convolution(67, "Convolution 1D, kernel 3", (19,), (3,), c=5, o=6),
    transposed(68, "Transposed convolution 3D, kernel 3 x 5 x 5", (3, 4, 5), (3, 5, 5), c=2, o=3, b=1),
    transposed(69, "Transposed convolution 2D, kernel 3 x 5", (5, 7), (3, 5)),
    transposed(70, "Transposed convolution 3D, kernel 3, other extents", (4, 3, 5), (3, 3, 3), b=1),
    transposed(71, "Transposed convolution 2D, kernel 3, other extents", (4, 9), (3, 3)),
    transposed(72, "Transposed convolution 3D, kernel 3 x 5 x 7, stride 2, padding 1 x 2 x 3, output padding 1, 4 groups", (2, 3, 4), (3, 5, 7),
        stride=2, pad=(1, 2, 3), output_pad=1, groups=4, b=1, c=2, o=2),
    transposed(73, "Transposed convolution 3D, kernel 3, stride 2, padding 1", (2, 3, 4), (3, 3, 3), stride=2, pad=1, b=1, c=5,
        note="one group: the problem passes its groups as an output padding, which it ignores"),
    transposed(74, "Transposed convolution 1D, kernel 5, dilation 3", (17,), (5,), dilation=3),
    transposed(75, "Transposed convolution 2D, kernel 3 x 5, stride 2 x 3, padding 1 x 2, dilation 2 x 1, 4 groups", (4, 5), (3, 5),
        stride=(2, 3), pad=(1, 2), dilation=(2, 1), groups=4, c=2, o=3),
    convolution(76, "Convolution 1D, kernel 3, stride 3, dilation 4", (31,), (3,), stride=3, dilation=4),
    transposed(77, "Transposed convolution 3D, kernel 3, stride 2, padding 1, dilation 2", (3, 2, 4), (3, 3, 3), stride=2, pad=1, dilation=2, b=1),
    transposed(78, "Transposed convolution 2D, kernel 3 x 7, padding 1 x 3", (5, 8), (3, 7), pad=(1, 3)),
    transposed(79, "Transposed convolution 1D, kernel 3, stride 2, padding 1, dilation 2", (15,), (3,), stride=2, pad=1, dilation=2),
    convolution(80, "Convolution 2D, kernel 5 x 9, padding 2 x 4, dilation 2 x 3", (8, 19), (5, 9), pad=(2, 4), dilation=(2, 3)),
    transposed(81, "Transposed convolution 2D, kernel 3, stride 5, padding 1, dilation 2", (3, 4), (3, 3), stride=5, pad=1, dilation=2),
    depthwise(82, "Depthwise convolution 2D, kernel 3", (7, 7), (3, 3)),
    depthwise(83, "Depthwise convolution 2D, kernel 3 x 1", (8, 7), (3, 1)),
    depthwise(84, "Depthwise convolution 2D, kernel 3, other height than width", (6, 9), (3, 3)),
    depthwise(85, "Depthwise convolution 2D, kernel 3 x 7", (6, 13), (3, 7)),
    Problem(1, 86, "Depthwise separable convolution 2D, kernel 3, padding 1", "X: b c h w; W: c e r s; V: o c x y; Y: b o p q",
        {"b": 2, "o": 5, "p": 6, "q": 7, "c": 3, "e": 1, "r": 3, "s": 3, "h": 6, "w": 7, "x": 1, "y": 1},
        ("d[b,c,p,q] = sum(e, r, s, X[b,c,p + r - 1,q + s - 1] * W[c,e,r,s])\na[b,o,p,q] = sum(c, x, y, d[b,c,p,q] * V[o,c,x,y])\n"
         "Y[b,o,p,q] = a[b,o,p,q]",), separable),
    convolution(87, "Pointwise convolution 2D", (5, 7), (1, 1), c=7, o=6),
]  # fmt: skip
