"""Random texts of definitions by formulas, and of strategies for them: rows, GEMMs, scans, masks, carried state, epilogues."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import numpy as np
from second_formula import results
from second_products import _Writer, product
from second_script import Script


@dataclasses.dataclass
class Definition:
    """A random definition as the arguments of `Fused`, with a script; `positive` numbers and integers that bound groups are inputs, too."""

    script: Script
    declaration: Mapping[str, object]
    exact: bool = True
    symbols: tuple[str, ...] = ()
    groups: str = ""

    def inputs(self, sizes: Mapping[str, int], types: Mapping[str, np.dtype], seed: int) -> dict[str, np.ndarray]:
        random_ = np.random.default_rng(seed)
        operands, written = dict(self.declaration["operands"]), self._written()
        arrays = {}
        for name, dims in operands.items():
            if name in written:
                continue
            shape = tuple(sizes[dim] for dim in dims.split())
            low = 0 if types[name] in (np.dtype("uint8"), np.dtype("bool")) else -2
            arrays[name] = random_.integers(low, 3, shape).astype(types[name])
        if self.groups:
            edges = np.sort(random_.integers(0, sizes["m"] + 1, sizes["g"] - 1)) if sizes["g"] > 1 else np.zeros(0, int)
            edges = np.array([0, *edges, sizes["m"]], np.int32)
            arrays["begin"], arrays["end"] = edges[:-1].copy(), edges[1:].copy()
        return arrays

    def _written(self) -> set[str]:
        parts = [dict(self.declaration.get(part) or {}) for part in ("init", "body", "final")]
        return {text.partition("[")[0] for part in parts for text in part.values()}

    def expected(self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        return results(self.declaration, sizes, arrays)

    def meaning(self) -> str:
        return f"__import__('second_formula').results({dict(self.declaration)!r}, {dict(self.script.sizes)!r}, arrays)"


def text_of(arguments: Mapping[str, object]) -> str:
    """The definition as a user writes it."""
    lines = [f"    {key}={value!r}," for key, value in arguments.items() if value not in ({}, "", None)]
    return "\n".join(["made = Fused(", *lines, ")"])


class _Formulas:
    """Draws formulas over tensors with known bounds of absolute values, so that all results are exact."""

    def __init__(self, r: random.Random, exact: bool, sizes: Mapping[str, int]):
        self.r, self.exact, self.sizes = r, exact, sizes
        self.known: dict[str, tuple[tuple[str, ...], float]] = {}
        self.number = 0
        self.late: list[str] = []
        """Values that a loop carries, to be written after it."""

    def name(self, stem: str) -> str:
        self.number += 1
        return self.r.choice(
            (f"{stem}{self.number}", f"{stem}{self.number}", f"{stem}{self.number}_sh", f"k{self.number}", f"lane_{stem}{self.number}")
        )

    def element(self, dims: tuple[str, ...], most: float) -> tuple[str, float]:
        """A tensor with these dimensions or fewer, a number, or a coordinate."""
        fitting = [(name, have, bound) for name, (have, bound) in self.known.items() if set(have) <= set(dims) and bound <= most]
        draw = self.r.random()
        if fitting and draw < 0.8:
            name, have, bound = self.r.choice(fitting)
            return (f"{name}[{','.join(have)}]" if have else name), bound
        if draw < 0.9:
            number = self.r.choice((0, 1, 2, 3))
            return str(number), number
        dim = self.r.choice(dims)
        return (dim, self.sizes[dim]) if self.sizes[dim] <= most else ("1", 1)

    def expression(self, dims: tuple[str, ...], most: float, depth: int = 0) -> tuple[str, float]:
        """An expression whose value is at most `most`."""
        if depth > 2 or self.r.random() < 0.25:
            return self.element(dims, most)
        kinds = ["add", "add", "sub", "mul", "mul", "call", "call", "where", "max", "neg"]
        if not self.exact:
            kinds += ["function"] * 4
        kind = self.r.choice(kinds)
        if kind in ("add", "sub"):
            (a, x), (b, y) = self.expression(dims, most / 2, depth + 1), self.expression(dims, most / 2, depth + 1)
            return f"({a} {'+' if kind == 'add' else '-'} {b})", x + y
        if kind == "mul":
            a, x = self.expression(dims, most / 4, depth + 1)
            b, y = self.expression(dims, most / max(x, 1), depth + 1)
            return f"{a} * {b}" if self.r.random() < 0.5 else f"({a} * {b})", x * y
        if kind == "call":
            a, x = self.expression(dims, most, depth + 1)
            return f"{self.r.choice(('relu', 'abs'))}({a})", x
        if kind == "neg":
            a, x = self.expression(dims, most, depth + 1)
            return f"(-{a})", x
        if kind == "function":
            a, x = self.expression(dims, 4, depth + 1)
            return f"{self.r.choice(('tanh', 'sigmoid', 'exp', 'gelu', 'silu', 'exp2', 'erf'))}(0.25 * ({a}))", 4.0
        (a, x), (b, y) = self.expression(dims, most, depth + 1), self.expression(dims, most, depth + 1)
        if kind == "max":
            return f"{self.r.choice(('max', 'min'))}({_no_name(a)}, {b})", max(x, y)
        return f"where({self.condition(dims)}, {a}, {b})", max(x, y)

    def condition(self, dims: tuple[str, ...]) -> str:
        sign = self.r.choice(("<", "<=", ">", ">=", "==", "!="))
        (a, _), (b, _) = self.element(dims, 1e6), self.element(dims, 1e6)
        comparison = f"{a} {sign} {b}"
        if self.r.random() < 0.3:
            two = f"{self.r.choice(dims)} {self.r.choice(('<', '<=', '>'))} {self.r.choice((0, 1, 3, 7))} {self.r.choice(('', '+ ' + self.r.choice(dims)))}".strip()
            return f"{comparison} {self.r.choice(('and', 'or'))} {two}"
        return comparison


def _no_name(text: str) -> str:
    """A first argument other than a bare name, which would denote a dimension to reduce."""
    return f"({text} + 0)" if text.isidentifier() else text


def fused(seed: int) -> Definition:
    """A definition with a strategy, drawn from a seed."""
    r = random.Random(seed)
    return r.choices((_rows, _products, _epilogue, _groups, _online), (5, 4, 3, 1, 2))[0](r)


def _sizes(r: random.Random, **most: int) -> dict[str, int]:
    return {dim: max(1, r.choice((1, top, top - 1, top // 2 + 1, r.randint(1, top), 16, 32, 8))) for dim, top in most.items()}


def _typed(r: random.Random, names: list[str]) -> str:
    kinds = ("float32", "float32", "float16", "float16", "bfloat16", "int8", "uint8", "float64", "int32")
    chosen = {name: r.choice(kinds) for name in names if r.random() < 0.25}
    return f", types={{{', '.join(f'{name!r}: {kind}' for name, kind in chosen.items())}}}" if chosen else ""


def _rows(r: random.Random) -> Definition:
    """Steps on rows: pointwise work, several reductions in sequence, with or without a loop over n."""
    exact = r.random() < 0.75
    sizes = _sizes(r, m=20, n=r.choice((24, 40, 130)))
    f = _Formulas(r, exact, sizes)
    operands = {"X": "m n"}
    f.known["X"] = (("m", "n"), 2)
    for name, dims in (("w", "n"), ("b", "m"), ("R", "m n"), ("alpha", ""), ("T", "n m")):
        if r.random() < 0.35:
            operands[name] = dims
            f.known[name] = (tuple(dims.split()), 2)
    each: dict[str, str] = {}
    over = r.random() < 0.35
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    limit = 2.0**20 if exact else 64.0
    reductions = []
    for _ in range(r.randint(1, 5)):
        draw = r.random()
        if draw < 0.4:
            by = r.choice(("sum", "sum", "max", "min"))
            inside, bound = f.expression(("m", "n"), limit / sizes["n"] if by == "sum" else limit)
            if "[" not in inside or "n" not in inside:
                inside, bound = "X[m,n]", 2
            name, dims = f.name("s"), ("m",)
            if over:
                start = {"sum": "0", "max": "-inf", "min": "inf"}[by]
                total = f.name("all")
                first[f"z{len(first)}"] = f"{total}[m] = {start}"
                each[f"r{len(each)}"] = f"{name}[m] = {by}(n, {inside})"
                join = f"{total}[m] + {name}[m]" if by == "sum" else f"{by}({total}[m], {name}[m])"
                each[f"j{len(each)}"] = f"{total}[m] = {join}"
                f.late.append(total)
            else:
                each[f"r{len(each)}"] = f"{name}[m] = {by}(n, {inside})"
                f.known[name] = (dims, bound * (sizes["n"] if by == "sum" else 1))
            reductions.append(list(each)[-2] if over else list(each)[-1])
        else:
            dims = r.choice((("m", "n"), ("m", "n"), ("m",)))
            inside, bound = f.expression(dims, limit / 64)
            temporaries = [one for one, (have, _) in f.known.items() if one not in operands and have == dims]
            name = r.choice(temporaries) if temporaries and r.random() < 0.3 else f.name("t")
            each[f"e{len(each)}"] = f"{name}[{','.join(dims)}] = {inside}"
            f.known[name] = (dims, bound)
    outputs = {}
    late = f.late
    if over:
        for number, total in enumerate(late):
            outputs[f"y{number}"] = ("m",)
            last[f"o{number}"] = f"y{number}[m] = {total}[m]"
        if not late:
            over = False
    if not over:
        for number in range(r.randint(1, 2)):
            dims = r.choice((("m", "n"), ("m", "n"), ("m",), ("n", "m")))
            inside, bound = f.expression(tuple(sorted(dims)), limit / 64)
            outputs[f"Y{number}"] = dims
            each[f"o{number}"] = f"Y{number}[{','.join(dims)}] = {inside}"
    operands |= {name: " ".join(dims) for name, dims in outputs.items()}
    used = " ".join([*first.values(), *each.values(), *last.values()])
    import re

    operands = {name: dims for name, dims in operands.items() if re.search(rf"\b{name}\b", used)}
    arguments = {
        "name": r.choice(("rows", "k", "drawn")),
        "dims": "m n",
        "operands": operands,
        "body": each,
        "init": first,
        "final": last,
        "loop": "n" if over else "",
    }
    steps = _row_strategy(r, sizes, operands, each, over, reductions, [name for name in f.known if name not in operands], outputs)
    written = set(outputs)
    types = ", ".join(f"{name!r}: float32" for name in outputs)
    inputs = [name for name in operands if name not in written and operands[name]]
    extra = _typed(r, inputs)[len(", types={") : -1]
    spec = f"made(m={{m}}, n={{n}}{r.choice(('', ', dtype=float32'))}, types={{{', '.join(filter(None, [types, extra]))}}}{_stored(r, operands)})"
    before, symbols = _symbolic(r, ("m",) if not over else ("m", "n"), sizes) if r.random() < 0.15 else ((), ())
    for symbol in symbols:
        name, dim = symbol.split("=")
        spec = spec.replace(f"{{{dim}}}", f"size_{dim}")
    script = Script("made", spec, sizes, tuple(steps), r.choice(("sm_70", "sm_80", "sm_80", "sm_90")), (text_of(arguments), *before))
    return Definition(script, arguments, exact, tuple(symbols))


def _symbolic(r: random.Random, dims: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = r.sample(("rows", "block_n", "size", "k0", "M_", "turn"), len(dims))
    return tuple(f"size_{dim} = sym({name!r}, high=4096)" for dim, name in zip(dims, names, strict=True)), tuple(
        f"{name}={dim}" for dim, name in zip(dims, names, strict=True)
    )


def _stored(r: random.Random, operands: Mapping[str, str]) -> str:
    orders = []
    for name, dims in operands.items():
        if len(dims.split()) == 2 and r.random() < 0.12:
            last = dims.split()[-1]
            orders.append(f"{name}={r.choice(('ColMajor', f'RowMajor(ld={{{last}}} + {r.choice((1, 8))})'))}")
    return "".join(f", {one}" for one in orders)


def _row_copy(w: _Writer, n: int, in_warp: bool) -> str | None:
    v = w.pick(1, 2, 4, 8)
    return w.pick(
        f"Move.tile(1, {32 * v}).to(Warp).tile(1, {v}).to(Lane).done()" if not in_warp else f"Move.tile(1, {v}).to(Lane).done()",
        f"Move.tile(1, {32 * v * w.pick(1, 2, 4)}).to(Warp).tile(1, {v}).to(Lane).done()",
        f"Move.tile(1, {v}).to({'Lane' if in_warp else 'Thread'}).done()", f"Move.tile(1, 1).to({'Lane' if in_warp else 'Thread'}).done()",
        f"Move.coalesced_copy({v}).done()", "Move.done()", None,
    )  # fmt: skip


def _row_strategy(r, sizes, operands, each, over, reductions, temporaries, outputs):
    w = _Writer(r, r.choice((0.0, 0.05)))
    rows = w.pick(1, 1, 2, 4, 5, 8)
    if reductions and w.chance(0.12):
        w.add(f"rfactor({w.r.choice(reductions)!r}, {w.pick(32, 2, 4, 8, 64, 3)})")
    if w.chance(0.06):
        w.add(f"tile(m={rows * 2})")
    blocks = (
        [w.pick("rasterize(group_m=1)", "longest_first('m')", "persistent(2)", "min_blocks_per_sm(2)", "layout(ColMajor)")]
        if w.chance(0.15)
        else []
    )
    tiles = f"m={rows}"
    if not over and not reductions and w.chance(0.4):
        tiles += f", n={w.pick(8, 16, 32)}"
    w.add(f"tile({tiles})", "to(Block)", *blocks)
    for name in temporaries:
        if w.chance(0.08):
            w.add(f"set_memory({name!r}, {w.pick('SH', 'SH', 'RF')}{w.pick('', '', ', pad=1')})")
    loaded = [name for name, dims in operands.items() if name not in outputs and dims in ("m n", "n", "m", "n m")]

    def loads(p, in_warp):
        for name in loaded:
            if w.chance(p if name == "X" else p / 2):
                memory = w.pick("RF", "RF", "RF", "SH")
                move = _row_copy(w, sizes["n"], in_warp)
                w.add(
                    f"load({name!r}, {memory}{', ' + move if move else ''})",
                    w.pick(None, None, None, "pad(1)", "unroll()") if memory == "SH" else None,
                )

    in_warp = False
    if w.chance(0.35):
        w.add(f"tile(m={w.pick(1, 1, rows)})", f"to({w.pick('Warp', 'Warp', 'Warp', 'Warpgroup')})")
        in_warp = True
    if over:
        how = [
            verb
            for verb, p in ((f"pipeline({w.pick(1, 2, 3)})", 0.25), ("unroll()", 0.2), ("skip_masked_tiles()", 0.1), ("sync()", 0.05))
            if w.chance(p)
        ]
        w.add(f"split(n={w.pick(32, 64, 16, 128, 7, 8)})", *how)
    loads(0.75, in_warp)
    for name in each:
        if w.chance(0.08):
            kind = "Reduction" if name.startswith("r") else w.pick("Pointwise", "Pointwise", "Move", "AnySpec")
            level = "Lane" if in_warp else "Thread"
            chain = w.pick(f"{kind}.done()", f"{kind}.tile(1, 1).to({level}).done()", f"{kind}.tile(1).to({level}).done()")
            w.add(f"step({name!r}, {chain})")
    w.add("done()")
    return w.steps


def _products(r: random.Random) -> Definition:
    """A GEMM with surrounding steps: activations, reductions of A's rows or of the result's rows, two GEMMs with one A."""
    tensor = r.random() < 0.45
    sizes = _sizes(r, m=48, n=48, k=40)
    f = _Formulas(r, True, sizes)
    operands = {"A": "m k", "B": "k n"}
    each, first, last = {}, {}, {}
    over = r.random() < 0.3
    two = r.random() < 0.25
    f.known["A"] = (("m", "k"), 2)
    if two:
        operands["B2"] = "k n"
    product_names = ["product"]
    own = random.Random(f"computed {sizes} {two}")  # a separate draw: others stay the same
    computed = over and own.random() < 0.4
    bound = 4 * sizes["k"]
    if over:
        first["zero"] = "acc[m,n] = 0"
        each["product"] = r.choice(("acc[m,n] += sum(k, A[m,k] * B[k,n])",))
        if computed:
            each = {"weight": "wide[k,n] = B[k,n] * 2 - 1", "product": "acc[m,n] += sum(k, A[m,k] * wide[k,n])"}
            bound = 10 * sizes["k"]
        if r.random() < 0.6:
            first["none"] = "s[m] = 0"
            each["row"] = "s[m] += sum(k, A[m,k])"
            f.known["s"] = (("m",), 2 * sizes["k"])
        if two:
            first["zero2"] = "acc2[m,n] = 0"
            each["product2"] = "acc2[m,n] += sum(k, A[m,k] * B2[k,n])"
    else:
        if r.random() < 0.2:
            each["relu"] = "left[m,k] = relu(A[m,k] + 1)"
            each["product"] = "acc[m,n] = sum(k, left[m,k] * B[k,n])"
            bound = 6 * sizes["k"]
        else:
            each["product"] = "acc[m,n] = sum(k, A[m,k] * B[k,n])"
        if r.random() < 0.25:
            each["row"] = "s[m] = sum(k, A[m,k])"
            f.known["s"] = (("m",), 2 * sizes["k"])
        if two:
            each["product2"] = "acc2[m,n] = sum(k, A[m,k] * B2[k,n])"
    if two:
        product_names.append("product2")
        f.known["acc2"] = (("m", "n"), bound)
    f.known["acc"] = (("m", "n"), bound)
    del f.known["A"]
    for name, dims in (("bias", "n"), ("row_bias", "m"), ("R", "m n"), ("scale", ""), ("S", "n m")):
        if r.random() < 0.3:
            operands[name] = dims
            f.known[name] = (tuple(dims.split()), 2)
    place = last if over else each
    for number in range(r.randint(0, 2)):
        inside, top = f.expression(("m", "n"), 2.0**16)
        place[f"e{number}"] = f"acc[m,n] = {inside}" if r.random() < 0.5 else f"u{number}[m,n] = {inside}"
        f.known["acc" if place[f"e{number}"].startswith("acc") else f"u{number}"] = (("m", "n"), top)
    whole_n = r.random() < 0.2
    if whole_n:
        place["max"] = "peak[m] = max(n, acc[m,n])"
        f.known["peak"] = (("m",), f.known["acc"][1])
        place["total"] = "total[m] = sum(n, acc[m,n])"
        f.known["total"] = (("m",), f.known["acc"][1] * sizes["n"])
    outputs = {"C": "m n"}
    inside, _ = f.expression(("m", "n"), 2.0**20)
    place["store"] = f"C[m,n] = {inside if 'acc[' in inside else 'acc[m,n]'}"
    for name in ("s", "peak"):
        if name in f.known and r.random() < 0.7:
            outputs[f"{name}_out"] = "m"
            place[f"{name}_store"] = f"{name}_out[m] = {name}[m]"
    operands |= outputs
    import re

    used = " ".join([*first.values(), *each.values(), *last.values()])
    operands = {name: dims for name, dims in operands.items() if re.search(rf"\b{name}\b", used)}
    arguments = {
        "name": "product_and_more",
        "dims": "m n k",
        "operands": operands,
        "body": each,
        "init": first,
        "final": last,
        "loop": "k" if over else "",
    }
    w = _Writer(r, r.choice((0.0, 0.03)))
    bm, bn = (r.choice((16, 32, 48)) for _ in "mn") if tensor else (r.choice((4, 8, 16, 24)) for _ in "mn")
    if whole_n:
        bn = -(-sizes["n"] // 16) * 16
    bk = 16 * r.choice((1, 2)) if tensor else r.choice((1, 2, 4, 8))
    w.add(f"tile(m={bm}, n={bn})", "to(Block)", w.pick(None, None, None, "rasterize(group_m=2)", "layout(ColMajor)", "persistent(2)"))
    if w.chance(0.1):
        w.add(f"set_memory({w.pick('acc', 'acc', 's')!r}, {w.pick('SH', 'RF')})")
    copy = w.pick("Move.coalesced_copy(8).done()", "Move.coalesced_copy(2).done()", "")
    wm, wn = bm // w.pick(1, bm // 16) if tensor else 1, bn // w.pick(1, bn // 16) if tensor else 1
    if over:
        how = [one for one, p in ((f"pipeline({w.pick(1, 2, 3)})", 0.4), ("unroll()", 0.2)) if w.chance(p)]
        w.add(f"split(k={bk})", *how)
        for name in ("A", "B", "B2"):
            if name in operands and w.chance(0.85):
                w.add(f"load({name!r}, SH{', ' + copy if copy else ''})", w.pick(None, "swizzle_storage()", "pad(8)"))
        if computed:
            w.add(
                f"set_memory('wide', SH{own.choice(('', '', ', pad=8'))})",
                own.choice((None, "swizzle_storage()")),
                own.choice((None, "stages(2)")),
            )
        if tensor and w.chance(0.7) and not computed:
            w.add(f"tile(m={wm}, n={wn})", "to(Warp)")
            w.add("split(k=16)", "unroll()" if w.chance(0.5) else None)
            for name in ("A", "B", "B2"):
                if name in operands:
                    w.add(f"load({name!r}, RF, Move.done())")
            chain = "MatMul.tile(16, 16).mma_tile().done()"
        elif tensor:
            chain = f"MatMul.tile({wm}, {wn}).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()"
        else:
            chain = f"MatMul.tile({w.pick(1, 2)}, {w.pick(1, 2)}).to(Thread).split(1).tile(1, 1).done()"
    elif tensor:
        load = ", " + copy if copy else ""
        chain = f"MatMul.split({bk}){w.pick('', '.pipeline(2)', '.pipeline(3)')}.load(A, SH{load}){w.pick('', '.swizzle_storage()')}.load(B, SH{load}){w.pick('', '.swizzle_storage()', '.pad(8)')}.tile({wm}, {wn}).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()"
    else:
        loads = w.pick("", ".load(A, SH)", ".load(A, SH).load(B, SH)", ".load(B, SH, Move.coalesced_copy(4).done()).pad(1)")
        chain = f"MatMul.split({bk}){w.pick('', '.pipeline(2)') if loads else ''}{loads}.tile({w.pick(1, 2, 4)}, {w.pick(1, 2)}).to(Thread).split(1).tile(1, 1).done()"
    for name in product_names:
        w.add(f"step({name!r}, {chain})")
    for name in last if over else each:
        if name not in product_names and w.chance(0.07):
            w.add(
                f"step({name!r}, {w.pick('Pointwise.done()', 'Pointwise.tile(1, 1).to(Thread).done()', 'Move.done()', 'Reduction.done()')})"
            )
    w.add("done()")
    types = ", ".join(f"{name!r}: float32" for name in outputs)
    spec = f"made(m={{m}}, n={{n}}, k={{k}}, types={{{types}}}{_stored(r, operands)})"
    script = Script(
        "made",
        spec,
        sizes,
        tuple(w.steps),
        w.pick("sm_80", "sm_80", "sm_90", "sm_75") if tensor else w.pick("sm_70", "sm_80", "sm_90"),
        (text_of(arguments),),
    )
    return Definition(script, arguments)


def _epilogue(r: random.Random) -> Definition:
    """The strategy of any GEMM with a text for its elements."""
    while True:
        base = product(r.randint(0, 10**9))
        if (
            base.letters == "mk,kn->mn"
            and not base.accumulates
            and not base.symbols
            and 0 not in base.script.sizes.values()
            and base.largest >= 2
        ):
            break
    sizes = {"m": base.script.sizes["M"], "n": base.script.sizes["N"], "k": base.script.sizes["K"]}
    f = _Formulas(r, True, sizes)
    f.known["acc"] = (("m", "n"), 9 * sizes["k"])
    operands = {"A": "m k", "B": "k n"}
    for name, dims in (("bias", "n"), ("r", "m"), ("R", "m n"), ("S", "n m"), ("alpha", "")):
        if r.random() < 0.35:
            operands[name] = dims
            f.known[name] = (tuple(dims.split()), 2)
    each = {"product": "acc[m,n] = sum(k, A[m,k] * B[k,n])"}
    statements = []
    for _ in range(r.randint(0, 2)):
        name = r.choice(("acc", "acc", "extra"))
        inside, top = f.expression(("m", "n"), 2.0**14)
        statements.append(f"{name} = {inside}")
        each[f"s{len(each)}"] = f"{name}[m,n] = {inside}"
        f.known[name] = (("m", "n"), top)
    outputs = {"C": "m n"}
    inside, _ = f.expression(("m", "n"), 2.0**14)
    if "acc[" not in inside:
        inside = f"acc[m,n] + {inside}"
    if r.random() < 0.25:
        statements.append("Z = acc[m,n]")
        each["z"] = "Z[m,n] = acc[m,n]"
        outputs["Z"] = "m n"
    each["store"] = f"C[m,n] = {inside}"
    statements.append(f"C = {inside}" if len(statements) or r.random() < 0.4 else inside)
    if r.random() < 0.25:
        dim, along = r.choice((("m", "n"), ("n", "m")))
        statements.append(f"y[{dim}] += sum({along}, acc[m,n])")
        each["sums"] = f"y[{dim}] = sum({along}, acc[m,n])"
        outputs["y"] = dim
    operands |= outputs
    text = "; ".join(statements).replace("acc[m,n]", "acc").replace("extra[m,n]", "extra")
    import re

    used = " ".join(each.values())
    operands = {name: dims for name, dims in operands.items() if re.search(rf"\b{name}\b", used)}
    arguments = {"name": "gemm", "dims": "m n k", "operands": operands, "body": each}
    dtype = re.search(r"dtype=(\w+), c_dtype=(\w+)", base.script.problem)
    a_type = dtype[1]
    spec = f"made(m={{m}}, n={{n}}, k={{k}}, dtype={a_type}, types={{{', '.join(f'{name!r}: float32' for name in operands if name not in 'AB')}}}{_stored(r, operands)})"
    script = base.script.with_(problem=spec, sizes=sizes, before=(*base.script.before, f"made = MatMul.fuse_epilogue({text!r})"))
    return Definition(script, arguments)


def _groups(r: random.Random) -> Definition:
    """Packed rows of groups: masks by integers in memory, a scan that skips iterations."""
    sizes = {"m": r.choice((5, 20, 33)), "n": r.choice((8, 16, 20)), "k": r.choice((4, 16, 20)), "g": r.choice((1, 2, 3, 4))}
    keep = "acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])"
    if r.random() < 0.3:
        keep = "acc[m,n] = where(m < end[g] and begin[g] <= m, p[m,n] + g, acc[m,n])"
    arguments = {
        "name": "of_groups", "dims": "m n k g", "scan": "g", "operands": {"A": "m k", "B": "g k n", "begin": "g", "end": "g", "D": "m n"},
        "init": {"zero": "acc[m,n] = 0"}, "body": {"product": "p[m,n] = sum(k, A[m,k] * B[g,k,n])", "keep": keep}, "final": {"store": "D[m,n] = acc[m,n]"},
    }  # fmt: skip
    w = _Writer(r, 0.0)
    bm, bn = r.choice((8, 16)), r.choice((8, 16))
    w.add(f"tile(m={bm}, n={bn})", "to(Block)", w.pick(None, "persistent(2)", "rasterize(group_m=2)"))
    w.add("split(g=1)", w.pick("skip_masked_tiles()", "skip_masked_tiles()", None), "unroll()" if w.chance(0.2) else None)
    if bm == bn == 16 and w.chance(0.5):
        chain = "MatMul.split(16).pipeline(2).load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done()).tile(16, 16).to(Warp).load(A, RF, Move.done()).load(B, RF, Move.done()).mma_tile().done()"
    else:
        chain = f"MatMul.split({w.pick(1, 2, 4)}){w.pick('', '.load(A, SH)', '.load(A, SH).load(B, SH)')}.tile({w.pick(1, 2)}, {w.pick(1, 2)}).to(Thread).split(1).tile(1, 1).done()"
    w.add(f"step('product', {chain})")
    w.add("done()")
    spec = "made(m={m}, n={n}, k={k}, g={g}, types={'begin': int32, 'end': int32, 'D': float32}, end=Strides(g=1).aligned(4))"
    return Definition(Script("made", spec, sizes, tuple(w.steps), w.pick("sm_80", "sm_90"), (text_of(arguments),)), arguments, groups="g")


def _online(r: random.Random) -> Definition:
    """One-pass softmax sums, masks, lazy rescaling or not: state carried by a loop."""
    sizes = {"m": r.choice((3, 6, 12, 17)), "n": r.choice((1, 20, 64, 100, 130))}
    mask = r.choice(("", "n <= m", "n <= m + 5", "n < m or n > 40", "n >= m and n < m + 20"))
    named = {"visible": mask} if mask and random.Random(f"{mask} {sizes}").random() < 0.5 else {}  # a separate draw: others stay the same
    score = f"where({'visible' if named else mask}, X[m,n], -inf)" if mask else "X[m,n]"
    each = {}
    if mask or r.random() < 0.3:
        each["mask"] = f"s[m,n] = {score}"
        score = "s[m,n]"
    each |= {"part": f"part[m] = max(n, {score})", "new": "new[m] = max(top[m], part[m])"}
    low = "-1e30" if mask else "-inf"
    if r.random() < 0.5:
        each["alpha"] = "alpha[m] = exp(top[m] - new[m])"
        each["shrink"] = "total[m] = total[m] * alpha[m]"
    each["exp"] = f"e[m,n] = exp({score} - new[m])"
    each["sums"] = "sums[m] = sum(n, e[m,n])"
    each["total"] = "total[m] = total[m] + sums[m]" if "shrink" in each else "total[m] = total[m] * exp(top[m] - new[m]) + sums[m]"
    each["keep"] = "top[m] = new[m]"
    arguments = {
        "name": "log_sum_exp", "dims": "m n", "loop": "n", "operands": {"X": "m n", "y": "m"}, "init": {"top0": f"top[m] = {low}", "sum0": "total[m] = 0"},
        "body": each, "final": {"y": "y[m] = log(total[m] + 1) + max(top[m], -100)"}, "mask": named,
    }  # fmt: skip
    w = _Writer(r, 0.0)
    rows = w.pick(1, 2, 4)
    if w.chance(0.25):
        w.add(f"rfactor('sums', {w.pick(32, 4, 8, 64)})")
    w.add(f"tile(m={rows})", "to(Block)", w.pick(None, None, "longest_first('m')"))
    in_warp = w.chance(0.6)
    if in_warp:
        w.add("tile(m=1)", "to(Warp)")
    w.add(f"split(n={w.pick(32, 64, 128, 16)})", w.pick(None, "skip_masked_tiles()", "pipeline(2)", "unroll()"))
    w.add(f"load('X', RF, {_row_copy(w, sizes['n'], in_warp) or 'Move.done()'})")
    if "alpha" in each and w.chance(0.4):
        w.add("skip_steps('alpha', 'shrink', where='new == top')")
    elif w.chance(0.2):
        w.add("skip_steps('keep', where='new == top')")
    w.add("done()")
    return Definition(
        Script("made", "made(m={m}, n={n}, dtype=float32)", sizes, tuple(w.steps), w.pick("sm_80", "sm_90"), (text_of(arguments),)),
        arguments,
        exact=False,
    )
