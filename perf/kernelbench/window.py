"""Convolutions, transposed convolutions and pooling as formulas: dimensions, sizes, and the texts of kernels.

The dimensions of results are `p q v`, those of the window `r s u`, those of the input `h1 h2 h3`; `b` is the batch, `c` the channels, `o` the
results, `g` the groups of channels, `e` the channels of a group that is normalized. A pooled position is `p * 2 + i`: `i j k` are the
dimensions of the pooling window, `l m n` the positions of an array that another kernel pools.
"""

import attrs

from kernelbench import arrays as f

RESULT, TAP, POOL, POOLED = "pqv", "rsu", "ijk", "lmn"
INPUT = ("h1", "h2", "h3")


def times(dim, factor):
    """The term `dim * factor`."""
    return dim if factor == 1 else f"{dim} * {factor}"


def affine(terms, offset=0):
    """The affine expression of terms (dimension, factor) and an offset."""
    text = ""
    for dim, factor in terms:
        text += f" {'-' if factor < 0 else '+'} {times(dim, abs(factor))}" if text else times(dim, factor)
    return text + (f" {'-' if offset < 0 else '+'} {abs(offset)}" if offset else "")


def extents(value, rank):
    """Return a number as a tuple of equal numbers."""
    return f.tuples(value, rank)


@attrs.frozen
class Convolution:
    """A convolution, or a transposed one, of an input with the extents `x`.

    Its text computes `a[b,o,p,q] = ...`, with `bias[o]` if it has a bias. A transposed convolution with a stride reads its input at exact
    quotients, `X[b,c,(p + 1 - r) / 2]`. With `norm_groups`, results have two dimensions of channels, for a group normalization. `source` is
    the name of the input.
    """

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    pad: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    output_pad: int | tuple[int, ...] = 0
    groups: int = 1
    b: int = 2
    c: int = 3
    o: int = 4
    transposed: bool = False
    bias: bool = True
    norm_groups: int = 0
    source: str = "X"

    @property
    def rank(self):
        """The number of spatial dimensions."""
        return len(self.x)

    def _each(self, name):
        return extents(getattr(self, name), self.rank)

    @property
    def result(self):
        """The spatial extents of the result."""
        parts = zip(self.x, self.kernel, *map(self._each, ("stride", "pad", "dilation", "output_pad")), strict=True)
        if self.transposed:
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in parts)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in parts)

    @property
    def _channel(self):
        """The dimensions of a channel of the result."""
        return ("g", "e") if self.norm_groups else ("g", "o") if self.groups > 1 else ("o",)

    @property
    def out(self):
        """The dimensions of the result: `b o p q`."""
        return " ".join(("b", *self._channel, *RESULT[: self.rank]))

    @property
    def channel(self):
        """The index of a channel of the result: `o`, or `g,o`."""
        return ",".join(self._channel)

    @property
    def channels(self):
        """The dimensions of a vector of channels of the result, as the problem states them."""
        return "o" if len(self._channel) == 1 else f"({' '.join(self._channel)})"

    @property
    def dims(self):
        """The dimensions of the result, as the problem states them: `b (g o) p q`."""
        return " ".join(("b", self.channels, *RESULT[: self.rank]))

    @property
    def arrays(self):
        """The arrays X, W and bias, and the array with zeros between elements."""
        grouped = self.groups > 1
        x, spatial, taps = ("b (g c)" if grouped else "b c"), " ".join(INPUT[: self.rank]), " ".join(TAP[: self.rank])
        first = ("(g c) o" if grouped else f"c {self.channels}") if self.transposed else f"{self.channels} c"
        return f"{self.source}: {x} {spatial}; W: {first} {taps}" + (f"; bias: {self.channels}" if self.bias else "")

    @property
    def sizes(self):
        """The extents of all dimensions; pooling changes those of the result."""
        norm = {"g": self.norm_groups, "e": self.o // self.norm_groups} if self.norm_groups else {"g": self.groups}
        sizes = {"b": self.b, **norm, "o": self.o, **dict(zip(RESULT, self.result, strict=False)), "c": self.c}
        sizes |= {**dict(zip(TAP, self.kernel, strict=False)), **dict(zip(INPUT, self.x, strict=False))}
        return sizes

    def text(self, pool=(), result="a"):
        """The formulas of the result; with `pool`, those of the elements of pooling windows: `a[b,o,p,q,i,j]`."""
        lead = "b,g,c," if self.groups > 1 else "b,c,"
        places = []
        for axis in range(self.rank):
            stride, pad, dilation = (self._each(name)[axis] for name in ("stride", "pad", "dilation"))
            place = [(RESULT[axis], pool[axis]), (POOL[axis], 1)] if pool else [(RESULT[axis], 1)]
            if self.transposed:
                index = affine([*place, (TAP[axis], -dilation)], pad)
                places.append(index if stride == 1 else f"({index}) / {stride}")
            else:
                places.append(affine([*((dim, n * stride) for dim, n in place), (TAP[axis], dilation)], -pad))
        taps = TAP[: self.rank]
        *group, last = self._channel if self.groups > 1 else (self.channel,)
        weight = ",".join((*group, *(("c", last) if self.transposed else (last, "c")), *taps))
        target = self.target(bool(pool), result)
        total = f"{target} = sum(c, {', '.join(taps)}, {self.source}[{lead}{','.join(places)}] * W[{weight}])"
        return total + (f"\n{target} = {target} + bias[{self.channel}]" if self.bias else "")

    def target(self, pooled=False, result="a"):
        """The element `a[b,o,p,q]`, or `a[b,o,p,q,i,j]` in a pooling window."""
        return f"{result}[{','.join((*self.out.split(), *(POOL[: self.rank] if pooled else ())))}]"

    def __call__(self, x, w, bias=None):
        """Return the result in NumPy."""
        if self.transposed:
            return f.conv_transposed(x, w, bias, self.stride, self.pad, self.output_pad, self.dilation, self.groups)
        return f.conv(x, w, bias, self.stride, self.pad, self.dilation, self.groups)


def pooled_sizes(conv, kernel, stride=None):
    """The extents of a result that is pooled without padding: the positions `p q v`, and the window `i j k`."""
    kernel = extents(kernel, conv.rank)
    steps = kernel if stride is None else extents(stride, conv.rank)
    sizes = {dim: (n - k) // s + 1 for dim, n, k, s in zip(RESULT, conv.result, kernel, steps, strict=False)}
    return sizes | dict(zip(POOL, kernel, strict=False))


def pooling(how, result, source, lead, kernel, rank, positions=POOLED, taps=POOL):
    """The formulas of the maxima or means of windows of a whole array, without padding: `result[b,o,l,m] = max(i, j, source[b,o,...])`."""
    places = ",".join(affine([(position, kernel), (tap, 1)]) for position, tap in zip(positions, taps[:rank], strict=False))
    at, over = f"{lead},{','.join(positions[:rank])}", ", ".join(taps[:rank])
    if how == "avg":
        return f"total[{at}] = sum({over}, {source}[{lead},{places}])\n{result}[{at}] = total[{at}] / {kernel**rank}"
    return f"outside {source} -inf\n{result}[{at}] = max({over}, {source}[{lead},{places}])"


def pooled(extents, kernel, positions=POOLED, taps=POOL):
    """The extents of the positions of windows of a whole array, and those of the window."""
    return {position: n // kernel for position, n in zip(positions, extents, strict=False)} | dict.fromkeys(taps[: len(extents)], kernel)
