"""Random multi-step definitions with random strategies: pointwise chains, row reductions, GEMM with epilogues, carried sums.

The project's own errors may refuse a draw, as in `generator.py`; it is then repeated with the number of refusals in its seed.
"""

import random

from fireiron import *
from fireiron.errors import ArgumentError, DecompositionError, MatchError, ResourceError, SynchronizationError

REFUSALS = (ArgumentError, DecompositionError, MatchError, ResourceError, SynchronizationError)
"""Errors by which a draw may be refused."""

UNARY = (
    "relu({})",
    "tanh({})",
    "sigmoid({})",
    "abs({})",
    "silu({})",
    "-{}",
    "{} * 0.5",
    "exp2(min({}, 2))",
    "sqrt(abs({}) + 1)",
    "gelu({})",
    "sin({})",
    "clamp({}, -1, 0.5)",
)
BINARY = ("{} + {}", "{} - {}", "{} * {}", "max({}, {})", "min({}, {})")
REDUCED = ("sum", "max", "min")

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()


class DrawnDefinition:
    """A definition, a strategy that starts from it or includes it, and its spec."""

    def __init__(self, seed, form=None):
        self.seed = seed
        self.random = random.Random(seed)
        self.features = set()
        self.symbols = {}
        self.operands, self.each, self.first, self.last = {}, {}, {}, {}
        self.conditions = []
        self.form = form or self.choice(("elements", "rows", "product", "carried", "transposed"))
        if form is None and random.Random(f"{seed} placed").random() < 0.1:  # a separate draw: others stay the same
            self.form = "placed"
        elif form is None and random.Random(f"{seed} added").random() < 0.1:
            self.form = "added"
        self.features.add(self.form)
        getattr(self, f"draw_{self.form}")()

    def choice(self, values, feature=None):
        return self.random.choice(values)

    def chance(self, share, feature=None):
        happens = self.random.random() < share
        if happens and feature is not None:
            self.features.add(feature)
        return happens

    # ------------------------------------------------------------------------------------------ formulas

    def operand(self, dims):
        """A new input of some dimensions, as an element."""
        name = f"x{len(self.operands)}"
        self.operands[name] = " ".join(dims)
        return f"{name}[{','.join(dims)}]" if dims else name

    def value(self, known, dims):
        """A value of known tensors and new inputs, one operation deep."""
        kind = self.random.random()
        if kind < 0.35:
            return self.choice(UNARY).format(self.choice(known))
        if kind < 0.6:
            return self.choice(BINARY).format(self.choice(known), self.choice(known))
        if kind < 0.75:
            self.features.add("mask")
            row, column = self.choice(dims), self.choice(dims)
            condition = self.choice(
                (
                    f"{row} <= {column}",
                    f"{row} + 3 < {column}",
                    f"{row} > 5 and {column} < size({column}) - 2",
                    f"({row} + {column}) % 3 != 0",
                    f"{row} // 4 & 1 == {column} >> 2 & 1",
                    f"uniform({row}, {column}, 7) < 0.75",
                )
            )
            self.conditions.append(condition)
            return f"where({condition}, {self.choice(known)}, {self.choice((0, 0.25))})"
        some = self.choice(((), dims, dims[-1:], dims[:1]))
        self.features.add("number" if not some else "broadcast" if len(some) < len(dims) else "tensor")
        return self.choice(BINARY).format(self.choice(known), self.operand(some))

    def chain(self, known, dims, steps, part=None, prefix="t"):
        """Pointwise steps; some write the temporary of another one again."""
        index = ",".join(dims)
        names = []
        part = self.each if part is None else part
        for number in range(steps):
            name = names[-1] if names and self.chance(0.3, "in place") else f"{prefix}{number}"
            part[f"{prefix}_step{number}"] = f"{name}[{index}] = {self.value(known, dims)}"
            names.append(name)
            known = [*dict.fromkeys((*known, f"{name}[{index}]"))]
        return known

    def output(self, name, dims, value, part=None):
        self.operands[name] = " ".join(dims)
        (self.each if part is None else part)[f"store_{name}"] = f"{name}[{','.join(dims)}] = {value}"

    # ------------------------------------------------------------------------------------------ specs

    def spec(self, definition, sizes):
        """The spec, with random types and storage; a size may be known at run time only."""
        self.sizes = dict(sizes)
        given = dict(sizes)
        for dim in self.symbolic:
            if self.chance(0.3, "symbolic"):
                given[dim] = sym(dim.upper(), **self.bound_of_sizes)
                self.symbols[dim.upper()] = sizes[dim]
        orders = {name: ColMajor for name, dims in self.operands.items() if len(dims.split()) == 2 and self.chance(0.15, "column-major")}
        types = {name: float32 for name, dims in self.operands.items() if dims and self.chance(0.2, "mixed types")}
        return definition(
            **given, **orders, types={name: dtype for name, dtype in types.items() if name not in self.float16_operands}, dtype=self.dtype
        )

    @property
    def bound_of_sizes(self):
        """For batches, whose addresses may otherwise exceed 64 bits."""
        return {"high": 1 << 20} if len(self.sizes) > 2 and self.form == "elements" else {}

    def size(self, tile, most=3):
        """A number of elements that tiles need not divide."""
        return tile * self.random.randint(1, most) - (self.random.randrange(tile) if self.chance(0.5, "overhanging") else 0)

    def finish(self, dims, sizes, chain, symbolic=(), float16_operands=(), dtype=None, **roles):
        self.symbolic, self.float16_operands = symbolic, float16_operands
        self.dtype = dtype or self.choice((float16, float32))
        self.name_masks()
        parts = {name: part for name, part in (("init", self.first), ("final", self.last), ("mask", self.masks)) if part}
        self.definition = Fused(name="drawn", dims=dims, operands=self.operands, body=self.each, **parts, **roles)
        self.strategy = chain(self.definition)
        self.bound = self.spec(self.definition, sizes)

    def name_masks(self):
        """Name some conditions, in all formulas or in the first one only; the choice is separate, so that other draws stay the same."""
        choice, self.masks = random.Random(f"{self.seed} masks"), {}
        for condition in dict.fromkeys(self.conditions):
            named = [(part, step) for part in (self.first, self.each, self.last) for step in part if f"where({condition}," in part[step]]
            if not named or choice.random() < 0.5:
                continue
            self.features.add("named mask")
            name = f"mask{len(self.masks)}"
            self.masks[name] = condition
            for part, step in named[: choice.choice((1, len(named)))]:
                part[step] = part[step].replace(f"where({condition},", f"where({name},")

    # ------------------------------------------------------------------------------------------ forms

    def draw_elements(self):
        dims = self.choice((("i",), ("i", "j"), ("i", "j", "l")))
        known = self.chain([self.operand(dims)], dims, self.random.randint(1, 4))
        for number in range(self.random.randint(1, 2)):
            self.output(f"y{number}", dims, self.choice(known[1:]) if number == 0 else self.value(known, dims))
        tile = dict(zip(dims, self.choice(((64,), (32,))) if len(dims) == 1 else self.choice(((8, 32), (4, 16), (16, 8))), strict=False))
        tile |= {"l": 1} if "l" in dims else {}
        inner = {dim: self.choice((1, 2)) for dim in dims if dim != "l"}

        def chain(start):
            blocks = start.tile(**tile).to(Block)
            if self.chance(0.3, "warps"):
                lanes = {dim: size // 4 for dim, size in tile.items() if dim == dims[0]} | {dim: tile[dim] for dim in dims[1:]}
                blocks = blocks.tile(**lanes).to(Warp)
                return blocks.tile(**dict.fromkeys(dims, 1)).to(Lane).done()
            return blocks.tile(**{**dict.fromkeys(dims, 1), **inner}).to(Thread).done()

        self.finish(" ".join(dims), {dim: self.size(size) for dim, size in tile.items()}, chain, symbolic=dims)

    def rows(self, known, part, index):
        """A reduction of a value along n, with steps on its result; returns its name."""
        by = self.choice(REDUCED)
        self.features.add(by)
        part[f"reduce{index}"] = f"r{index}[m] = {by}(n, {self.choice([one for one in known if one.endswith('[m,n]')])})"
        value = f"r{index}[m]" if by != "sum" else f"r{index}[m] / size(n)"
        part[f"rows{index}"] = f"q{index}[m] = {self.choice(('{}', 'tanh({})', '{} * 0.5')).format(value)}"
        return f"q{index}[m]"

    def draw_rows(self):
        known = [self.operand(("m", "n"))]
        (operand,) = self.operands
        if self.chance(0.7):
            known = self.chain(known, ("m", "n"), self.random.randint(1, 2))
        for index in range(self.random.randint(1, 3)):
            known.append(self.rows(known, self.each, index))
            if self.chance(0.6):
                known = [*known, *self.chain(known, ("m", "n"), 1, prefix=f"u{index}_")[-1:]]
        rows = [one for one in known if one.endswith("[m]")]
        if self.chance(0.7):
            self.output("y", ("m", "n"), self.choice(BINARY).format(known[0], rows[-1]))
        if self.chance(0.5) or "y" not in self.operands:
            self.output("z", ("m",), self.choice(rows), self.each)
        width, vector = self.choice((64, 128, 32)), self.choice((1, 2))
        across = self.choice((1, 2, 4))
        rows_of_block = self.choice((1, 2))

        def chain(start):
            warps = Move.tile(1, width).to(Warp).tile(1, vector).to(Lane).done() if across > 1 else None
            if warps is None:
                self.features.add("row of a warp")
                lanes = Move.tile(1, vector).to(Lane).done()
                return start.tile(m=4).to(Block).tile(m=1).to(Warp).load(operand, RF, lanes).done()
            self.features.add("row of a block")
            return start.tile(m=rows_of_block).to(Block).load(operand, RF, warps).done()

        columns = width * across - (self.random.randrange(width // 2) if self.chance(0.5, "overhanging") else 0)
        self.finish("m n", {"m": self.random.randint(1, 9), "n": columns}, chain, symbolic=("m",))

    def draw_product(self):
        self.operands = {"A": "m k", "B": "k n"}
        self.each = {"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])"}
        known = self.chain(["acc[m,n]"], ("m", "n"), self.random.randint(0, 3))
        value = known[-1]
        self.output("C", ("m", "n"), value)
        if self.chance(0.3, "two outputs"):
            self.output("Z", ("m", "n"), self.choice(known))
        (bm, bn, loop), (dtype, float16_operands, sizes) = self.product()

        def chain(start):
            blocks = start.tile(m=bm, n=bn).to(Block)
            if self.chance(0.5, "epilog"):
                return blocks.then(MatMul.epilog(RF).then(loop))
            return blocks.step("mm", loop).done()

        self.finish("m n k", sizes, chain, symbolic=("m", "n"), float16_operands=float16_operands, dtype=dtype)

    def product(self, square=False):
        """Tiles and strategy of a GEMM; its element type, operands of that type, and sizes. A `square` one has all elements in one tile."""
        count = 1 if square else 2
        if self.chance(0.5, "mma"):
            bm, bn, bk = self.choice((32, 64)), self.choice((32, 64)), self.choice((16, 32))
            bn = bm if square else bn
            loop = MatMul.split(bk)
            loop = loop.pipeline(2) if self.chance(0.5, "pipeline") else loop
            loop = (
                loop.load(A, SH, copy)
                .swizzle_storage()
                .load(B, SH, copy)
                .swizzle_storage()
                .tile(bm // 2, bn // 2)
                .to(Warp)
                .split(16)
                .unroll()
            )
            loop = loop.load(A, RF, fragments).load(B, RF, fragments).then(mma)
            dtype, float16_operands, columns = float16, ("A", "B"), 8 * self.random.randint(1, bn // 8 if square else 9)
            sizes = {"m": columns if square else self.size(bm, count), "n": columns, "k": 8 * self.random.randint(1, 9)}
            return (bm, bn, loop), (dtype, float16_operands, sizes)
        bm, bn, bk = self.choice((16, 32)), self.choice((16, 32)), self.choice((4, 8))
        bn = bm if square else bn
        near = Move.tile(1, 1).to(Thread).done()
        loop = MatMul.split(bk)
        loop = loop.load(A, SH, near).load(B, SH, near) if self.chance(0.6, "shared") else loop
        loop = loop.tile(4, 4).to(Thread).split(1).tile(1, 1).done()
        rows = self.size(bm, count)
        return (bm, bn, loop), (None, (), {"m": rows, "n": rows if square else self.size(bn, count), "k": self.random.randint(1, 30)})

    def draw_transposed(self):
        """A GEMM whose elements at (n, m) other steps read or write: in registers, or placed where all threads read it."""
        self.operands = {"A": "m k", "B": "k n"}
        self.each = {"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])"}
        known = self.chain(["acc[m,n]"], ("m", "n"), self.random.randint(0, 2))
        transposed = known[-1].replace("[m,n]", "[n,m]")
        if self.chance(0.5, "turned temporary"):
            self.each["turn"] = f"u[m,n] = {self.choice(('{}', 'relu({})')).format(transposed)}"
            transposed = self.choice(("u[m,n]", "u[n,m]"))
        bias = self.operand(self.choice((("m", "n"), ("n",), ("m",))))
        self.output("C", ("m", "n"), self.choice(("{}", "{} * 0.5", "{} + " + bias)).format(transposed))
        if bias.partition("[")[0] not in self.each["store_C"]:
            del self.operands[bias.partition("[")[0]]
        if self.chance(0.3, "turned result"):
            self.operands["Z"] = "m n"
            self.each["store_Z"] = f"Z[n,m] = {self.choice(known)}"
        (bm, bn, loop), (dtype, float16_operands, sizes) = self.product(square=True)
        temporary = next((one for one in ("u", "t0") if any(text.startswith(f"{one}[") for text in self.each.values())), None)

        def chain(start):
            blocks = start.tile(m=bm, n=bn).to(Block)
            if temporary and self.chance(0.3, "placed"):
                blocks = blocks.set_memory(temporary, SH)
            return blocks.step("mm", loop).done()

        self.finish("m n k", sizes, chain, float16_operands=float16_operands, dtype=dtype)

    def draw_placed(self):
        """A GEMM in a loop over k: elementwise steps compute an operand into shared memory, where ldmatrix reads it."""
        dims = self.choice((("n", "k"), ("k", "n")))
        index = ",".join(dims)
        self.operands = {"A": "m k", "W": " ".join(dims)}
        self.first = {"zero": "acc[m,n] = 0"}
        known = self.chain([f"W[{index}]"], dims, self.random.randint(1, 2), prefix="w")
        self.each["mm"] = f"acc[m,n] += sum(k, A[m,k] * {known[-1]})"
        self.output("C", ("m", "n"), self.choice(("acc[m,n]", "relu(acc[m,n])")), self.last)
        name, bm, bn, bk = known[-1].partition("[")[0], self.choice((32, 64)), self.choice((32, 64)), self.choice((16, 32))
        storage, stages, depth = self.choice(("free", "swizzled", "padded")), self.choice((0, 0, 2, 3)), self.choice((0, 1, 2, 3))
        self.features |= {f"storage {storage}", f"stages {stages}", f"pipeline {depth}"}
        product = MatMul.tile(bm // 2, bn // 2).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)

        def chain(start):
            steps = start.tile(m=bm, n=bn).to(Block).split(k=bk)
            steps = (steps.pipeline(depth) if depth else steps).load("A", SH, copy).swizzle_storage()
            for other in {one.partition("[")[0] for one in known[1:-1]} - {name}:
                steps = steps.set_memory(other, SH)
            steps = steps.set_memory(name, SH, pad=8 if storage == "padded" else 0)
            steps = steps.swizzle_storage() if storage == "swizzled" else steps
            return (steps.stages(stages) if stages else steps).step("mm", product).done()

        sizes = {
            "m": self.size(bm, 2),
            "n": 8 * self.random.randint(1, bn // 4),
            "k": bk * self.random.randint(1, 5) - self.choice((0, 0, 8)),
        }
        self.finish("m n k", sizes, chain, symbolic=("m",), float16_operands=("A",), dtype=float16, loop="k")

    def draw_carried(self):
        known = self.chain([self.operand(("m", "n"))], ("m", "n"), self.random.randint(0, 2))
        operand = next(iter(self.operands))
        carried = []
        for index in range(self.random.randint(1, 2)):
            by = self.choice(REDUCED)
            self.features.add(f"carried {by}")
            neutral = {"sum": "0", "max": "-inf", "min": "inf"}[by]
            self.first[f"init{index}"] = f"l{index}[m] = {neutral}"
            source = self.choice(known)
            if self.chance(0.5, "joined"):
                self.each[f"part{index}"] = f"p{index}[m] = {by}(n, {source})"
                joined = f"l{index}[m] + p{index}[m]" if by == "sum" else f"{by}(l{index}[m], p{index}[m])"
                self.each[f"join{index}"] = f"l{index}[m] = {joined}"
            else:
                sign = {"sum": "+=", "max": "max=", "min": "min="}[by]
                self.each[f"join{index}"] = f"l{index}[m] {sign} {by}(n, {source})"
            carried.append(f"l{index}[m]")
        self.output(
            "y", ("m",), self.choice(UNARY[:6]).format(self.choice(carried)) if len(carried) == 1 else " + ".join(carried), self.last
        )
        if self.chance(0.3, "stored by parts"):
            self.output("z", ("m", "n"), known[-1] if len(known) > 1 else f"{known[0]} * 2")
        step, vector = self.choice((32, 64)), self.choice((1, 2))

        def chain(start):
            lanes = Move.tile(1, vector).to(Lane).done()
            chunk = start.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=step)
            return chunk.load(operand, RF, lanes).done()

        count = step * self.random.randint(1, 4) - (self.random.randrange(step) if self.chance(0.5, "overhanging") else 0)
        self.finish("m n", {"m": self.random.randint(1, 9), "n": count}, chain, symbolic=("m",), loop="n")

    def draw_added(self):
        """Outputs to which blocks, iterations or elements of a batch add: of elements, rows and columns, or a product."""
        variant = self.choice(("batch", "columns", "iterations", "products"))
        self.features.add(f"added by {variant}")
        getattr(self, f"draw_added_{variant}")()

    def draw_added_batch(self):
        known = self.chain([self.operand(("b", "m", "n"))], ("m", "n"), self.random.randint(1, 2))
        self.operands["y"] = "m n"
        self.each["add"] = f"y[m,n] += {self.choice(('{}', '{} * 0.5', 'relu({})')).format(known[-1])}"
        inner = {"b": 1, "m": self.choice((1, 2)), "n": self.choice((1, 2))}

        def chain(start):
            return start.tile(b=1, m=8, n=32).to(Block).tile(**inner).to(Thread).done()

        self.finish(
            "b m n", {"b": self.random.randint(1, 3), "m": self.size(8), "n": self.size(32)}, chain, batch="b", types={"y": float32}
        )

    def draw_added_columns(self):
        known = self.chain([self.operand(("m", "n"))], ("m", "n"), self.random.randint(1, 2))
        dims, over = self.choice((("m", "n"), ("n", "m")))
        self.operands["y"] = dims
        self.each["add"] = f"y[{dims}] += sum({over}, {known[-1]})"
        if self.chance(0.5, "added twice"):
            self.each["again"] = f"y[{dims}] += sum({over}, {self.choice(known)})"
        if self.chance(0.5):
            self.output("z", ("m", "n"), known[-1])
        inner = {"m": self.choice((1, 2)), "n": self.choice((1, 2))}

        def chain(start):
            return start.tile(m=8, n=32).to(Block).tile(**inner).to(Thread).done()

        self.finish("m n", {"m": self.size(8), "n": self.size(32)}, chain, symbolic=("m", "n"), types={"y": float32})

    def draw_added_iterations(self):
        operand = self.operand(("m", "n"))
        known = self.chain([operand], ("m", "n"), self.random.randint(1, 2))
        self.operands |= {"y": "m", "z": "n"}
        self.each["rows"] = f"y[m] += sum(n, {self.choice(known)})"
        self.each["columns"] = f"z[n] += sum(m, {known[-1]})"
        step, vector = self.choice((32, 64)), self.choice((1, 2))

        def chain(start):
            chunk = start.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=step)
            return chunk.load(operand.partition("[")[0], RF, Move.tile(1, vector).to(Lane).done()).done()

        count = step * self.random.randint(1, 4) - (self.random.randrange(step) if self.chance(0.5, "overhanging") else 0)
        sizes = {"m": self.random.randint(1, 9), "n": count}
        self.finish("m n", sizes, chain, symbolic=("m",), loop="n", types={"y": float32, "z": float32})

    def draw_added_products(self):
        self.operands = {"A": "m k", "B": "k n", "y": "m n"}
        if self.chance(0.5, "product of a temporary"):
            self.each["mm"] = "acc[m,n] = sum(k, A[m,k] * B[k,n])"
            known = self.chain(["acc[m,n]"], ("m", "n"), self.random.randint(0, 2))
            self.operands["total"] = "n"
            self.each["add"] = f"y[m,n] += {known[-1]}"
            self.each["columns"] = f"total[n] += sum(m, {known[-1]})"
        else:
            self.each["mm"] = "y[m,n] += sum(k, A[m,k] * B[k,n])"
        (bm, bn, loop), (dtype, float16_operands, sizes) = self.product()
        parts = {"k": self.choice((16, 32))} if "add" not in self.each and self.chance(0.7, "parts of k") else {}

        def chain(start):
            return start.tile(m=bm, n=bn, **parts).to(Block).step("mm", loop).done()

        types = {name: float32 for name in ("y", "total") if name in self.operands}
        self.finish("m n k", sizes, chain, symbolic=("m",), float16_operands=float16_operands, dtype=dtype, types=types)


def draw(seed, form=None):
    """A draw that lowers, of a given form if there is one, and the number of refused ones before it."""
    refused = 0
    while True:
        try:
            drawn = DrawnDefinition(f"{seed}/{refused}", form)
            drawn.program = drawn.strategy(drawn.bound).program("sm_80")
            _ = drawn.program.lowered
            return drawn, refused
        except REFUSALS:
            refused += 1
            if refused > 100:
                raise
