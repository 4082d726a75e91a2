"""Random definitions with indirect operands and random strategies: gathered rows, pages, digits, scattered rows, affine indices, products.

Elements are drawn like those of `fused_generator`. `wanted_element` reads an operand by Python's integers, independently of NumPy's
indexing.
"""

import itertools

import numpy as np
from fused_generator import REFUSALS, DrawnDefinition, copy

from fireiron import *
from fireiron.specs.formula import Affine, Looked

FORMS = ("gathered", "paged", "digits", "scattered", "affine", "windows", "quotients", "convolution", "product", "pixels")
DIGITS = (2, 3, 4, 8, 16)


class DrawnIndirect(DrawnDefinition):
    """A definition with indirect operands, a strategy, and its spec; `free` are the sizes that only arrays have."""

    def __init__(self, seed, form=None):
        self.free, self.ranges, self.distinct, self.outside = {}, {}, "", {}
        super().__init__(seed, form or DrawnDefinition.choice(_Chooser(seed), FORMS))

    def spec(self, definition, sizes):
        given = {name: sizes[name] for name in sizes if name not in self.free}
        self.free_given = {}
        for name, size in self.free.items():
            symbolic = self.form != "scattered" and self.chance(0.3, "symbolic array")
            self.free_given[name] = sym(name.upper(), **self.bound_of_sizes) if symbolic else size
            self.symbols |= {name.upper(): size} if symbolic else {}
        types = {name: float32 for name, dims in self.operands.items() if self.chance(0.2, "mixed types") and name in self.floats}
        self.sizes = dict(sizes)
        for dim in self.symbolic:
            if self.chance(0.3, "symbolic"):
                given[dim] = sym(dim.upper(), **self.bound_of_sizes)
                self.symbols[dim.upper()] = sizes[dim]
        return definition(**given, **self.free_given, types=types, dtype=self.dtype)

    @property
    def bound_of_sizes(self):
        return {"high": 1 << 16}

    def promise(self, table, dim):
        if self.chance(0.3, "promised"):
            self.ranges[table] = f"0 <= {table} < {dim}"

    def close(self, dims, sizes, chain, floats, symbolic=(), dtype=None, **roles):
        """Finish a draw with array dimensions, promises and distinct tables."""
        self.floats = floats
        options = {"ranges": self.ranges} if self.ranges else {}
        options |= {"distinct": self.distinct} if self.distinct else {}
        options |= {"outside": self.outside} if self.outside else {}
        self.finish(dims, sizes, chain, symbolic=symbolic, dtype=dtype, **roles, **options)

    def tiled(self, operand, tile):
        """A chain of elements or vectors; an operand may be loaded first."""
        vector = self.choice((1, 2, 4))
        memory = self.choice((None, None, SH, RF))

        def chain(start):
            blocks = start.tile(**tile).to(Block)
            if memory is not None:
                self.features.add(f"loaded to {memory}")
                blocks = blocks.load(operand, memory) if self.chance(0.5) else blocks.load(operand, memory, copy)
            return blocks.tile(**dict.fromkeys(list(tile)[:-1], 1), **{list(tile)[-1]: vector}).to(Thread).done()

        return chain

    def use(self, element, dims):
        """The value of a step with an indirect element."""
        kind = self.choice(("{}", "{} * 0.5", "relu({})", "{} + {}"))
        return kind.format(element, self.operand(self.choice((dims, dims[-1:]))) if kind == "{} + {}" else "")

    # ------------------------------------------------------------------------------------------ forms

    def draw_gathered(self):
        self.operands = {"A": "r n", "rows": "m"}
        self.promise("rows", "r")
        self.output("Y", ("m", "n"), self.use("A[rows[m],n]", ("m", "n")))
        self.free = {"r": self.random.randint(1, 40)}
        tile = {"m": self.choice((4, 8)), "n": self.choice((16, 32))}
        sizes = {dim: self.size(size) for dim, size in tile.items()}
        self.close("m n r", {**sizes, **self.free}, self.tiled("A", tile), ("A", "Y"), symbolic=("m",))

    def draw_paged(self):
        page = self.choice(DIGITS)
        self.features.add(f"pages of {page}")
        self.operands = {"K": "page slot d", "table": "b t"}
        self.promise("table", "page")
        self.output("Y", ("b", "n", "d"), self.use(f"K[table[b,n // {page}],n % {page},d]", ("b", "n", "d")))
        self.free = {"page": self.random.randint(1, 9)}
        tile = {"b": 1, "n": self.choice((8, 16)), "d": self.choice((16, 32))}
        sizes = {"b": self.random.randint(1, 3), "n": self.size(tile["n"]), "d": self.size(tile["d"], 2)}
        self.close("b n d page slot t", {**sizes, **self.free}, self.tiled("K", tile), ("K", "Y"), symbolic=("n",), batch="b")

    def draw_digits(self):
        count, other = self.choice(DIGITS), self.choice(DIGITS)
        self.features.add(f"digit of {count}")
        index, second = f"k // {count}", f"m % {other}"
        self.operands = {"S": "n q" if self.chance(0.5) else "q", "w": "c"}
        scale = f"S[m,{index}]" if self.operands["S"] == "n q" else f"S[{index}]"
        self.operands["S"] = self.operands["S"].replace("n", "m")
        self.output("Y", ("m", "k"), self.choice(("{} * w[{}]", "{} + w[{}]")).format(scale, second))
        tile = {"m": self.choice((4, 8)), "k": self.choice((16, 32))}
        sizes = {dim: self.size(size) for dim, size in tile.items()}
        self.close("m k q c", sizes, self.tiled("S", tile), ("S", "w", "Y"), symbolic=("m",))

    def draw_scattered(self):
        page = self.choice((0, *DIGITS))
        self.distinct = "rows"
        self.operands = {"X": "m n", "rows": "t" if page else "m"}
        target = f"Y[rows[m // {page}],m % {page},n]" if page else "Y[rows[m],n]"
        self.operands["Y"] = "r slot n" if page else "r n"
        self.each["o"] = f"{target} = {self.use('X[m,n]', ('m', 'n'))}"
        self.free = {"r": self.random.randint(1, 40)}
        self.features.add("scattered pages" if page else "scattered rows")
        tile = {"m": self.choice((4, 8)), "n": self.choice((16, 32))}
        sizes = {dim: self.size(size) for dim, size in tile.items()}
        dims = "m n r slot t" if page else "m n r"
        self.close(dims, {**sizes, **self.free}, self.tiled("X", tile), ("X", "Y"), symbolic=("m",))

    def affine(self, *dims):
        """The text of a random affine index with these dimensions, each with its largest factor."""
        terms = []
        for dim, most in dims:
            factor = self.random.randint(1, most)
            terms.append(self.choice((f"{dim} * {factor}", f"{factor} * {dim}")) if factor > 1 else dim)
        offset = self.random.randint(-4, 4)
        self.features |= {"negative offset"} if offset < 0 else set()
        return " + ".join(terms) + (f" {'-' if offset < 0 else '+'} {abs(offset)}" if offset else "")

    def draw_outside(self, modes=True, values=("0", "-inf", "1.5")):
        """A value outside of X, or a padding mode; often none."""
        if self.chance(0.5):
            self.outside["X"] = self.choice((*values, *(("reflect", "replicate", "circular") if modes else ())))
            self.features.add(f"outside {self.outside['X']}")

    def draw_affine(self):
        self.draw_outside()
        self.operands = {"X": "m h"}
        if self.chance(0.3, "reversed"):
            index = f"size(h) - {self.random.randint(0, 3)} - n"
        else:
            index = self.affine(("n", 3))
        self.output("Y", ("m", "n"), self.use(f"X[m,{index}]", ("m", "n")))
        self.free = {"h": self.random.randint(1, 40)}
        tile = {"m": self.choice((4, 8)), "n": self.choice((16, 32))}
        sizes = {dim: self.size(size) for dim, size in tile.items()}
        plain = index == "n"
        self.close(
            "m n" if plain else "m n h", {**sizes, **({} if plain else self.free)}, self.tiled("X", tile), ("X", "Y"), symbolic=("m", "n")
        )

    def draw_pixels(self):
        """A dimension that enumerates images, rows and columns; taps and a reduction."""
        rows, columns, stride, step = (self.random.randint(1, most) for most in (5, 6, 3, 3))
        sign = self.choice("+-")
        self.draw_outside()
        reduction = self.choice(("sum", "max", "min")) if self.outside else "sum"
        self.features |= {reduction, f"digits {sign}"}
        self.operands = {"X": "n h w c", "Y": "m c"}
        first = f"m // {columns} % {rows} * {stride} {sign} r // 2 {self.choice('+-')} {self.random.randint(0, 3)}"
        second = f"m % {columns} * {step} + r % 2 - {self.random.randint(1, 3)}"
        self.each["o"] = f"Y[m,c] = {reduction}(r, X[m // {rows * columns},{first},{second},c])"
        self.free = {"h": self.random.randint(1, 12), "w": self.random.randint(1, 12)}
        tile = {"m": self.choice((4, 8)), "c": self.choice((16, 32))}
        sizes = {"m": self.size(tile["m"], 3), "c": self.size(tile["c"]), "r": self.random.randint(1, 4)}
        vector = self.choice((1, 2, 4))

        def chain(start):
            return start.tile(**tile).to(Block).tile(m=1, c=vector).to(Thread).done()

        self.close("m c r n h w", {**sizes, **self.free}, chain, ("X", "Y"), symbolic=("m",))

    def draw_windows(self):
        self.operands = {"X": "m h w" if self.chance(0.5, "two dimensions") else "m h"}
        both = self.operands["X"] == "m h w"
        rows, columns = self.affine(("n", 3), ("r", 2)), self.affine(("s", 2), ("q", 2))
        self.operands["Y"] = "m n q" if both else "m n"
        self.draw_outside()
        reduction = self.choice(("sum", "max", "min")) if self.outside else "sum"
        self.features.add(reduction)
        self.each["o"] = f"Y[m,n,q] = {reduction}(r, s, X[m,{rows},{columns}])" if both else f"Y[m,n] = {reduction}(r, X[m,{rows}])"
        self.free = {"h": self.random.randint(1, 30), **({"w": self.random.randint(1, 20)} if both else {})}
        tile = {"m": 2, "n": self.choice((4, 8)), **({"q": 4} if both else {})}
        sizes = {dim: self.size(size) for dim, size in tile.items()} | {"r": self.random.randint(1, 4)}
        sizes |= {"s": self.random.randint(1, 3)} if both else {}
        dims = "m n q r s h w" if both else "m n r h"

        def chain(start):
            return start.tile(**tile).to(Block).tile(**dict.fromkeys(tile, 1)).to(Thread).done()

        self.close(dims, {**sizes, **self.free}, chain, ("X", "Y"), symbolic=("m", "n"))

    def draw_quotients(self):
        self.operands = {"X": "m h", "w": "r", "Y": "m n"}
        stride, dilation, pad = self.random.randint(2, 4), self.random.randint(1, 2), self.random.randint(0, 3)
        tap = f"{dilation} * r" if dilation > 1 else "r"
        self.draw_outside(modes=False, values=("0", "1.5"))
        self.each = {
            "t": f"t[m,n,r] = X[m,(n + {pad} - {tap}) / {stride}] * w[r]" if pad else f"t[m,n,r] = X[m,(n - {tap}) / {stride}] * w[r]",
            "o": "Y[m,n] = sum(r, t[m,n,r])",
        }
        self.free = {"h": self.random.randint(1, 20)}
        tile = {"m": self.choice((2, 4)), "n": self.choice((8, 16))}
        sizes = {dim: self.size(size) for dim, size in tile.items()} | {"r": self.random.randint(1, 4)}
        memory = self.choice((None, SH))

        def chain(start):
            blocks = start.tile(**tile).to(Block)
            blocks = blocks if memory is None else blocks.load("X", memory)
            return blocks.tile(**dict.fromkeys(tile, 1)).to(Thread).done()

        self.close("m n r h", {**sizes, **self.free}, chain, ("X", "w", "Y"), symbolic=("m", "n"))

    def draw_convolution(self):
        self.operands = {"X": "b h c", "W": "r c o", "Y": "b q o"}
        rows = self.affine(("q", 2), ("r", 2))
        if self.chance(0.3, "transposed"):
            rows = f"(q + {self.random.randint(0, 2)} - r) / {self.random.randint(2, 3)}"
        self.draw_outside(modes=not rows.startswith("("), values=("0", "1.5"))
        self.first = {"z": "acc[q,o] = 0"}
        self.each = {"mm": f"acc[q,o] += sum(c, X[b,{rows},c] * W[r,c,o])"}
        self.last = {"y": "Y[b,q,o] = relu(acc[q,o])"}
        self.free = {"h": self.random.randint(1, 40)}
        (bm, bn, loop), (dtype, _, sizes) = self.product()
        sizes = {"b": self.random.randint(1, 2), "r": self.random.randint(1, 3), "q": sizes["m"], "o": sizes["n"], "c": sizes["k"]}

        def chain(start):
            return start.tile(b=1, q=bm, o=bn).to(Block).split(r=1).step("mm", loop).done()

        self.close("b q o r c h", {**sizes, **self.free}, chain, (), dtype=dtype, batch="b", scan="r")

    def draw_product(self):
        both = self.chance(0.4, "scattered product")
        self.operands = {"A": "r k", "rows": "m", "B": "k n"}
        self.each = {"mm": "acc[m,n] = sum(k, A[rows[m],k] * B[k,n])"}
        known = self.chain(["acc[m,n]"], ("m", "n"), self.random.randint(0, 2))
        if both:
            self.operands |= {"to": "m", "C": "r n"}
            self.each["store"] = f"C[to[m],n] = {known[-1]}"
            self.distinct = "to"
        else:
            self.output("C", ("m", "n"), known[-1])
        self.free = {"r": self.random.randint(1, 40)}
        (bm, bn, loop), (dtype, _, sizes) = self.product()

        def chain(start):
            return start.tile(m=bm, n=bn).to(Block).step("mm", loop).done()

        symbolic = () if both else ("m", "n")
        self.form = "scattered" if both else self.form
        self.close("m n k r", {**sizes, **self.free}, chain, (), symbolic=symbolic, dtype=dtype)


class _Chooser:
    """The random numbers that choose a form."""

    def __init__(self, seed):
        import random

        self.random = random.Random(f"form {seed}")


def draw(seed, form=None):
    """A draw that lowers, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            drawn = DrawnIndirect(f"{seed}/{refused}", form)
            drawn.program = drawn.strategy(drawn.bound).program("sm_80")
            _ = drawn.program.lowered
            return drawn, refused
        except REFUSALS:
            refused += 1
            if refused > 100:
                raise


def wanted_element(stored, place, arrays):
    """The index in the array of an operand for coordinates by dimension, with Python's integers; -1 if a quotient is not exact."""
    index = []
    for size, part in zip(arrays[stored.operand].shape if stored.operand in arrays else [0] * len(stored.index), stored.index, strict=True):
        if isinstance(part, Affine):
            extent = dict(zip(stored.of, arrays[stored.operand].shape, strict=True)) if part.extents else {}
            total = part.number + sum(extent[dim] * factor for dim, factor in part.extents)
            total += sum(place[dim] * factor for dim, factor in part.terms)
            for dim, divisor, modulus, factor in part.digits:
                total += (place[dim] // divisor % modulus if modulus else place[dim] // divisor) * factor
            if isinstance(stored.outside, str):
                index.append(_moved(total, size, stored.outside))
            else:
                index.append(-1 if total % part.divisor else total // part.divisor)
        elif isinstance(part, Looked):
            index.append(int(arrays[part.array][tuple(_digit(inner, place) for inner in part.index)]))
        else:
            index.append(_digit(part, place))
    return tuple(index)


def _moved(number, size, mode):
    """The index that a padding mode reads, step by step."""
    while not 0 <= number < size:
        if mode == "replicate":
            number = 0 if number < 0 else size - 1
        elif mode == "circular":
            number += size if number < 0 else -size
        elif size == 1:
            number = 0
        else:
            number = -number if number < 0 else 2 * (size - 1) - number
    return number


def _digit(index, place):
    number = place[index.dim]
    return number // index.number if index.sign == "//" else number % index.number if index.sign == "%" else number


def gathered_by_integers(spec, arrays, sizes):
    """The inputs in their own dimensions, element by element."""
    definition, own = spec.kind.fused_definition, {}
    for stored in definition.indirect:
        if stored.operand not in arrays:
            continue
        extents = [int(spec.size(dim).evaluate(sizes)) for dim in stored.dims]
        array = arrays[stored.operand]
        values = np.zeros(extents, array.dtype)
        for place in itertools.product(*map(range, extents)):
            index = wanted_element(stored, dict(zip(stored.dims, place, strict=True)), arrays)
            inside = all(0 <= number < size for number, size in zip(index, array.shape, strict=True))
            values[place] = array[index] if inside else np.asarray(float(stored.outside or 0)).astype(array.dtype)
        own[stored.operand] = values
    return {**arrays, **own}
