"""Random texts of GEMM strategies: verbs in any order that the documentation allows, and in some that it does not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

import numpy as np
from second_script import Script, Step

WEIRD = (
    "k",
    "k0",
    "m",
    "block_m",
    "thread_m",
    "warp",
    "a_sh",
    "c_rf",
    "A",
    "K_",
    "k_ahead",
    "N",
    "K",
    "main",
    "int_",
    "x",
    "lane",
    "tile",
    "block",
    "k_shifted",
    "acc",
    "stage",
    "u",
    "n",
    "blockDim_",
    "smem",
    "micro",
)
"""Names that a user may give to a size: of loops, buffers, operands, CUDA keywords, and unused ones."""

LETTERS = ("mk,kn->mn",) * 8 + (
    "bmk,bkn->bmn",
    "bmk,kn->bmn",
    "km,kn->mn",
    "mk,nk->mn",
    "mk,kn->nm",
    "mkb,bkn->mbn",
    "mkl,lkn->mn",
    "abmk,abkn->abmn",
)
"""Index letters; usually those of a matrix product."""


@dataclasses.dataclass
class Product:
    """A random GEMM: its letters, types and script; `inputs` and `expected` define its meaning with NumPy alone."""

    script: Script
    letters: str
    accumulates: bool
    symbols: tuple[str, ...]
    largest: int

    exact = True
    outputs = ("C",)

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        parts = dict(zip("ABC", self.letters.replace("->", ",").split(","), strict=True))
        return {name: tuple(sizes[letter.upper()] for letter in letters) for name, letters in parts.items()}

    def inputs(self, sizes: Mapping[str, int], types: Mapping[str, np.dtype], seed: int) -> dict[str, np.ndarray]:
        """Small integers, whose sums are equal in any order."""
        random_ = np.random.default_rng(seed)
        shapes = self.shapes(sizes)
        names = "ABC" if self.accumulates else "AB"
        return {name: random_.integers(-self.largest, self.largest + 1, shapes[name]).astype(types[name]) for name in names}

    def expected(self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        a, b = (arrays[name].astype(np.float64) for name in "AB")
        product = np.einsum(self.letters, a, b)
        return {"C": product + arrays["C"].astype(np.float64) if self.accumulates else product}

    def meaning(self) -> str:
        """The meaning as text, for a program to paste."""
        added = " + arrays['C'].astype('f8')" if self.accumulates else ""
        return f"{{'C': np.einsum({self.letters!r}, arrays['A'].astype('f8'), arrays['B'].astype('f8')){added}}}"

    def transposed(self) -> Product | None:
        """The transposed problem with the whole text transposed: C' = B' A'. None if the text has more than two dimensions."""
        text = self.script.text
        if self.letters != "mk,kn->mn" or any(
            word in text
            for word in (
                "=1)",
                "mma",
                "HMMA",
                "MMA",
                "Strided",
                "Layout",
                "(m=",
                "(n=",
                "MicroKernel",
                "rasterize",
                "longest_first",
                "cluster",
                "FR(",
                "Swizzle(",
                "mk,",
                "storage_layout",
                "wgmma",
                "Warpgroup",
                "Strides",
                "hilbert",
                "lambda",
            )
        ):
            return None
        script = self.script
        swapped = {**script.sizes, "M": script.sizes["N"], "N": script.sizes["M"]}
        return dataclasses.replace(
            self,
            script=script.with_(
                problem=_transposed(script.problem),
                sizes=swapped,
                steps=tuple(Step(_transposed(one.verb), tuple(map(_transposed, one.refinements))) for one in script.steps),
            ),
        )


def _transposed(text: str) -> str:
    """The text with A and B, and rows and columns, exchanged."""
    import re

    words = {
        "A": "B",
        "B": "A",
        "RowMajor": "ColMajor",
        "ColMajor": "RowMajor",
        "to_row_major": "to_col_major",
        "to_col_major": "to_row_major",
    }
    text = re.sub(r"\b(?:A|B|RowMajor|ColMajor|to_row_major|to_col_major)\b", lambda found: words[found[0]], text)
    text = re.sub(r"ld=\{([MN])\}", lambda found: f"ld={{{'N' if found[1] == 'M' else 'M'}}}", text)
    text = re.sub(r"tile\((\w+), (\w+)\)", r"tile(\2, \1)", text)
    return re.sub(r"dtype=\((\w+), (\w+)\)", r"dtype=(\2, \1)", text)


@dataclasses.dataclass
class _State:
    """The state of a chain: the elements of a tile, the dimensions that have the problem's size, the level, the memories."""

    m: int
    n: int
    k: int
    whole: set[str]
    level: str = "Kernel"
    memory: dict[str, str] = dataclasses.field(default_factory=lambda: {"A": "GL", "B": "GL", "C": "GL"})
    split: bool = False
    piped: bool = False
    deals: int = 1
    """Tiles already assigned to the units of this level."""


class _Writer:
    """Draws the text of one chain."""

    def __init__(self, rng: random.Random, odd: float):
        self.r, self.odd, self.steps = rng, odd, []

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    def pick(self, *choices):
        return self.r.choice(choices)

    def add(self, verb: str, *refinements: str | None) -> None:
        self.steps.append(Step(verb, tuple(one for one in refinements if one)))

    def divisor(self, x: int, least: int = 1) -> int:
        """Usually a divisor, sometimes any number."""
        if self.chance(self.odd / 2):
            return self.r.randint(1, x + 2)
        legal = [one for one in range(1, x + 1) if x % one == 0 and one >= least]
        return self.r.choice(legal or [x])

    # -- copies

    def move(self, level: str, rows: int, columns: int) -> str | None:
        """A strategy for a copy by the units of a level, or none."""
        draw = self.r.random()
        if draw < 0.3:
            return None
        if draw < 0.42:
            return "Move.done()"
        if level in ("Thread", "Lane"):
            return f"Move.tile({self.divisor(rows)}, {self.divisor(columns)}){self.pick('', '.unroll()')}.done()"
        if draw < 0.6:
            return f"Move.coalesced_copy({self.pick(1, 2, 4, 8, 3)}).done()"
        a, b = self.divisor(rows), self.divisor(columns)
        if level == "Block" and draw < 0.7:
            return f"Move.tile({a}, {b}).to(Warp){self.pick('', '.layout(ColMajor)')}.tile({self.divisor(a)}, {self.divisor(b)}).to(Lane){self.pick('', '.layout(ColMajor)', '.tile(1, 1)')}.done()"
        if draw < 0.76:
            return f"Move.tile({a}, {b}).to({self.pick('Thread', 'QuadPair', 'Warp')}).tile({self.divisor(a)}, {self.divisor(b)}).unroll().done()"
        if draw < 0.8:
            return f"Move.load(SRC, {self.pick('SH', 'RF')}, {self.pick('Move.done()', 'Move.coalesced_copy(2).done()', f'Move.tile({a}, {b}).to(Thread).done()')}).tile(1, 1).to(Thread).done()"
        if draw < 0.85:
            return f"Move.tile({a}, {b}).tile({self.divisor(a)}, {self.divisor(b)}).to({'Lane' if level == 'Warp' else 'Thread'}).done()"
        thread = "Lane" if level == "Warp" and self.chance(0.8) else "Thread"
        return f"Move.tile({a if self.chance(0.5) else 1}, {b}).to({thread}){self.pick('', '', '.layout(ColMajor)')}.done()"

    def how_stored(self, rows: int, columns: int) -> list[str]:
        """Refinements of a copy's buffer."""
        refinements = [
            f"pad({self.pick(0, 1, 2, 4, 8, 3)})", "to_col_major()", "to_row_major()", "swizzle_storage()",
            f"swizzle_storage(Swizzle({self.pick(1, 2, 3)}, {self.pick(0, 1, 2, 3)}, {self.pick(2, 3, 4, 6)}))", f"align({self.pick(16, 64, 128, 256)})",
            "no_sync()", "reuse_buffer()", f"storage_layout(Layout(({rows}, {columns}), ({columns + self.pick(0, 1)}, 1)))", f"stages({self.pick(1, 2, 3)})",
        ]  # fmt: skip
        weights = [6, 4, 4, 4, 4, 2, 1, 1, 2, 0.3]
        return list(dict.fromkeys(self.r.choices(refinements, weights, k=self.pick(0, 0, 0, 1, 1, 2, 3))))

    def load(self, s: _State, operand: str, memory: str) -> None:
        rows, columns = (s.m, s.k) if operand == "A" else (s.k, s.n)
        move = self.move(s.level, rows, columns)
        refinements = self.how_stored(rows, columns) if memory == "SH" or self.chance(self.odd) else []
        self.add(f"load({operand}, {memory}{', ' + move if move else ''})", *refinements)
        s.memory[operand] = memory

    # -- tiles

    def of_block(self) -> list[str]:
        refinements = [
            f"rasterize(group_m={self.pick(1, 2, 3)})", "hilbert()", "layout(ColMajor)", f"swizzle(lambda uid: {self.pick('uid ^ 1', 'uid', '(uid + 1) % 4', 'uid // 2 * 2 + 1 - uid % 2')})",
            f"persistent({self.pick(1, 2, 3, 5)})", f"min_blocks_per_sm({self.pick(1, 2)})", f"longest_first({self.pick(repr('m'), repr('n'))})", "programmatic_launch()",
            f"max_shared_bytes({self.pick(1024, 8192, 40000)})", "unroll()", "unchecked('said so')", f"pingpong({self.pick(1, 2)})", f"cluster({self.pick(1, 2)})",
        ]  # fmt: skip
        weights = [5, 3, 5, 1, 5, 3, 3, 1, 1, 1, 0.5, 0.3, 0.3]
        return list(dict.fromkeys(self.r.choices(refinements, weights, k=self.pick(0, 0, 0, 0, 1, 1, 2))))

    def sizes(self, a: int, b: int) -> str:
        if self.chance(0.1):
            return self.pick(f"m={a}, n={b}", f"n={b}, m={a}")
        return f"{a}, {b}"

    def tile(self, s: _State, a: int, b: int, level: str | None, *refinements: str) -> None:
        words = self.sizes(a, b)
        if "m" not in s.whole and level not in (None, "Block") and self.chance(0.12):
            words = self.strided(s, a, b)
        order = (
            self.pick("layout(ColMajor)", "layout(RowMajor)", "unroll()", "swizzle(lambda uid: uid ^ 1)")
            if level and self.chance(0.12)
            else None
        )
        unroll = "unroll()" if level is None and self.chance(0.4) else None
        self.add(f"tile({words})", f"to({level})" if level else None, order, unroll, *refinements)
        s.m, s.n, s.whole = a, b, s.whole - {"m", "n"}
        s.level = level or s.level

    def strided(self, s: _State, a: int, b: int) -> str:
        """A tile with the given number of elements and a stride."""
        if self.chance(0.5):
            c, d = self.divisor(a), self.divisor(b)
            return f"Strided(({c}, {max(s.m // (a // c), 1) if a % c == 0 else c}), ({d}, {max(s.n // (b // d), 1) if b % d == 0 else d}))"
        return f"Layout({a}, {max(s.m // a, 1)}), {b if self.chance(0.5) else f'Layout({b}, {max(s.n // b, 1)})'}"

    def divide(self, s: _State, level: str | None) -> None:
        self.tile(s, self.divisor(s.m), self.divisor(s.n), level)

    def split(self, s: _State, step: int, *refinements: str) -> None:
        word = (
            f"k={step}"
            if self.chance(0.06)
            else f"Layout({step}, {max(s.k // step, 1)})"
            if "k" not in s.whole and self.chance(0.05)
            else f"{step}"
        )
        often = [
            f"pipeline({self.pick(1, 2, 3, 4)})",
            "unroll()",
            "sync()",
            f"stagger_blocks({self.pick(0, 1, 2)})",
            f"pipeline({self.pick(2, 3)}, interleave=True)",
        ]
        drawn = self.r.choices(often, [4, 5, 2, 1, 1], k=self.pick(0, 0, 1, 1, 2)) if not refinements else []
        s.piped = any("pipeline" in one for one in [*drawn, *refinements])
        self.add(f"split({word})", *refinements, *dict.fromkeys(drawn))
        s.k, s.split, s.whole = step, True, s.whole - {"k"}

    def epilog(self, s: _State, level_hint: str) -> None:
        memory = "RF" if self.chance(0.85) else self.pick("SH", "RF", "GL")
        words = [memory]
        if self.chance(0.12):
            words.append(self.pick("float32", "float64", "float16"))
        draw = self.r.random()
        if draw < 0.2:
            a, b = self.divisor(s.m), self.divisor(s.n)
            to = "Lane" if s.level == "Warp" else "Thread"
            copy = self.pick(f".tile({a}, {b}).to({to}).done()", f".tile({a}, {b}).to({to}).tile(1, 1).done()", ".done()")
            words += [
                f"Init{copy}",
                f"Move{self.pick(copy, copy, '.coalesced_copy(2).done()', '.done()', '.tile(1, 1).to(Thread).done()')}",
            ]
        elif draw < 0.26:
            words += [
                "Init.done()",
                f"Move.load(SRC, SH, Move.done()){self.pick('', '.cast_on_copy()', '.pad(1)', '.reuse_buffer()')}.coalesced_copy({self.pick(1, 2, 4)}).done()",
            ]
        self.add(f"epilog({', '.join(words)})", "prefetch_epilogue()" if self.chance(0.04) else None)
        s.memory["C"] = memory


LEVELS = ("Kernel", "Block", "Warpgroup", "Warp", "QuadPair", "Thread")
INNER = {
    "Block": ("Thread", "Warp", "Warp", "Warpgroup", "QuadPair"),
    "Warpgroup": ("Warp", "Thread", "Lane"),
    "Warp": ("Lane", "Lane", "QuadPair", "Thread"),
    "QuadPair": ("Thread", "Lane"),
}


def _near(r: random.Random, tile: int, most: int) -> int:
    """A size at or near the edges of tiles."""
    tiles = r.choice((1, 1, 1, 2, 2, 3))
    return max(
        1,
        min(
            most, r.choice((tile * tiles, tile * tiles - 1, tile * tiles + 1, tile * tiles - r.randint(0, tile), r.randint(1, 2 * tile), 1))
        ),
    )


SCALARS = (
    ("float32", "float32", 3, ("sm_52", "sm_70", "sm_75", "sm_80", "sm_90", "sm_90a")),
    ("float16", "float16", 2, ("sm_70", "sm_75", "sm_80", "sm_90")),
    ("float16", "float32", 3, ("sm_70", "sm_80", "sm_52")),
    ("bfloat16", "float32", 3, ("sm_80", "sm_90a")),
    ("bfloat16", "bfloat16", 1, ("sm_80", "sm_90")),
    ("float64", "float64", 3, ("sm_60", "sm_80", "sm_90")),
    ("int32", "int32", 3, ("sm_61", "sm_80")),
    ("int8", "int32", 3, ("sm_61", "sm_80")),
    ("float32", "float16", 2, ("sm_80",)),
)  # fmt: skip


def text_of(letters: str) -> str:
    """A GEMM by its letters, as the documentation describes: an element by as many indices as its operand has, and inputs only within their
    own sizes, also if the output is a whole tile.
    """
    operands = dict(zip("abc", letters.replace("->", ",").split(","), strict=True))
    at = {name: f"{name}_at({', '.join(f'at_{one}' for one in indices)})" for name, indices in operands.items()}
    inside = " && ".join(f"at_{one} < {name}_size_{one}" for name in "ab" for one in operands[name])
    lines = [f"for (int at_{one} = 0; at_{one} < c_size_{one}; ++at_{one})" for one in operands["c"]]
    lines += ["{", f"  {at['c']} = accumulate ? {at['c']} : c_type(0);"]
    lines += [f"  for (int at_{one} = 0; at_{one} < a_size_{one}; ++at_{one})" for one in operands["a"] if one not in operands["c"]]
    lines += [f"    if ({inside}) {at['c']} = {at['c']} + {at['a']} * {at['b']};", "}"]
    return "\n".join(lines) + "\n"


def product(seed: int) -> Product:
    """The GEMM drawn from a seed."""
    r = random.Random(seed)
    family = r.random()
    if family < 0.62:
        return _scalar(r)
    return r.choices((_tensor, _volta, _wmma, _hopper), (5, 1, 1, 2))[0](r)


def _orders(r: random.Random, letters: str) -> list[str]:
    """The storage orders of the operands, as text after the types."""
    orders = []
    for name, indices in zip("ABC", letters.replace("->", ",").split(","), strict=True):
        draw = r.random()
        if draw < 0.45:
            orders.append(f"{name}=RowMajor")
        elif draw < 0.6:
            orders.append(f"{name}=ColMajor")
        elif draw < 0.68 and len(indices) > 1:
            orders.append(f"{name}=RowMajor(ld={{{indices[-1].upper()}}} + {r.choice((1, 3, 4, 8, 16, 1000))})")
        elif draw < 0.74 and len(indices) > 1:
            orders.append(f"{name}=ColMajor(ld={{{indices[0].upper()}}} + {r.choice((1, 4, 8, 40000))})")
        elif draw < 0.78 and len(indices) == 2:
            last = indices[-1]
            orders.append(f"{name}=Strides({indices[0]}={{{last.upper()}}} + {r.choice((0, 8, 5))}, {last}=1)")
    return orders


def _problem(
    r: random.Random, letters: str, sizes: dict[str, int], types: str, symbols: bool, accumulates: bool
) -> tuple[str, list[str], tuple[str, ...]]:
    """The text of a spec, the lines before it, and the sizes that are symbols."""
    (out,) = (letters.split("->")[1],)
    order = [*out, *dict.fromkeys(one for one in letters.split("->")[0].replace(",", "") if one not in out)]
    before, named, texts = [], [], []
    names = r.sample(WEIRD, len(WEIRD))
    for letter in order:
        if symbols and r.random() < 0.6:
            name = names.pop()
            facts = r.choice(
                (
                    "",
                    "",
                    f", high={max(4096, sizes[letter.upper()])}",
                    f", multiple_of={r.choice([one for one in (1, 2, 4, 8) if sizes[letter.upper()] % one == 0])}",
                    ", low=1",
                )
            )
            before.append(f"size_{letter} = sym({name!r}{facts})")
            named.append(f"{name}={letter.upper()}")
            texts.append(f"size_{letter}")
        else:
            texts.append(f"{{{letter.upper()}}}")
    options = [types, *_orders(r, letters)]
    if letters != "mk,kn->mn":
        options.append(f"signature={letters!r}")
    if accumulates:
        options.append("accumulate=True")
    return f"MatMul({', '.join([*texts, *options])})(GL, GL, GL)(Kernel)", before, tuple(named)


def _types(dtype: str, c_dtype: str) -> str:
    return f"dtype={dtype}, c_dtype={c_dtype}"


def _finished(
    r: random.Random,
    w: _Writer,
    letters: str,
    sizes: dict[str, int],
    types: str,
    target: str,
    largest: int,
    before: tuple[str, ...] = (),
    symbols: float = 0.25,
) -> Product:
    accumulates = r.random() < 0.08
    problem, lines, named = _problem(r, letters, sizes, types, r.random() < symbols, accumulates)
    script = Script("MatMul", problem, sizes, tuple(w.steps), target, (*before, *lines))
    return Product(script, letters, accumulates, named, largest)


def _scalar(r: random.Random) -> Product:
    odd = r.choice((0.0, 0.0, 0.05, 0.15))
    w = _Writer(r, odd)
    dtype, c_dtype, largest, targets = r.choice(SCALARS) if r.random() < 0.5 else SCALARS[0]
    letters = r.choice(LETTERS)
    bm, bn = (r.choice((1, 2, 4, 8, 12, 16, 16, 20, 24, 32, 32, 48, 64)) for _ in "mn")
    bk = r.choice((1, 2, 3, 4, 8, 8, 16, 5))
    sizes = {
        "M": _near(r, bm, 90),
        "N": _near(r, bn, 90),
        "K": max(1, r.choice((1, 2, bk - 1, bk, bk + 1, 3 * bk, r.randint(1, 40), r.randint(1, 40)))),
    }
    sizes |= {letter: r.choice((1, 2, 3)) for letter in "BAL"}
    if r.random() < 0.02:
        sizes[r.choice("MNK")] = 0
    s = _State(sizes["M"], sizes["N"], sizes["K"], {"m", "n", "k"})
    matrices = letters == "mk,kn->mn"
    for batch in ("a", "b"):
        if batch in letters and w.chance(0.9):
            w.add(f"tile({batch}=1)", "to(Block)" if w.chance(0.7) else None)
    if "l" in letters:
        w.add("split(l=1)" if w.chance(0.7) else "split(1, 1)")
    if matrices and w.chance(0.05):
        w.add(f"repack({w.pick('A', 'B')}{w.pick('', ', order=RowMajor', ', order=ColMajor')})")
    if w.chance(0.08):
        w.add(f"split_k({w.pick(1, 2, 3)}, Block, {bk * w.pick(1, 2)})")
    if w.chance(0.12):
        more = w.pick(1, 2, 3)
        w.tile(s, bm * more, bn * w.pick(1, 2), None)
    if w.chance(0.03):
        w.epilog(s, "Kernel")
    w.tile(s, bm, bn, "Block", *w.of_block())
    _descend(w, s, bk)
    text = text_of(letters)
    micro = _close(w, s, text, matrices=all(len(one) == 2 for one in letters.replace("->", ",").split(",")))
    before = (f"micro = MicroKernel('mine', {text!r})",) if micro else ()
    return _finished(r, w, letters, sizes, _types(dtype, c_dtype), r.choice(targets), largest, before)


def _descend(w: _Writer, s: _State, bk: int) -> None:
    """Verbs in a random order, down to a thread."""
    epilog = w.chance(0.75)
    for _ in range(w.r.randint(6, 16)):
        if s.level in ("Thread", "Lane") and w.chance(0.25):
            return
        weighed: dict[str, float] = {}
        may = weighed.__setitem__

        if epilog and s.memory["C"] == "GL" and not s.split:
            may("epilog", 4)
        if s.memory["C"] != "GL" or s.split:
            may("epilog again", 0.12)
        if s.k > 1 and (not epilog or s.memory["C"] != "GL" or w.chance(0.05)):
            may("split", 3 if "k" in s.whole else 0.8)
        if not ("k" in s.whole and s.k > 64):
            for operand in "AB":
                rows, columns = (s.m, s.k) if operand == "A" else (s.k, s.n)
                if s.level not in ("Kernel", "Thread", "Lane", "QuadPair") and s.memory[operand] != "RF" and rows * columns <= 4096:
                    may(f"{operand} SH", 2.5 if s.memory[operand] == "GL" else 0.25)
                if s.memory[operand] != "RF" and rows * columns <= 512:
                    may(f"{operand} RF", 1.2 if s.level in ("Thread", "Lane") else 0.3)
                may(f"{operand} any", 0.03)
        if s.level in INNER:
            may("deal", 3)
        may("loop", 0.5)
        if s.memory["C"] == "GL" and not s.split and s.level in ("Block", "Warpgroup", "Warp") and s.k > 1:
            may("split_k", 0.4)
        step = w.r.choices(list(weighed), list(weighed.values()))[0]
        if step.startswith("epilog"):
            w.epilog(s, s.level)
        elif step == "split":
            w.split(s, min(bk, s.k) if "k" in s.whole and w.chance(0.8) else w.divisor(s.k))
        elif step == "deal":
            w.divide(s, w.pick(*INNER[s.level]))
        elif step == "loop":
            w.divide(s, None)
        elif step == "split_k":
            level = w.pick(*(one for one in INNER[s.level] if one != "Thread"), "Warp")
            combine = w.pick("", "", "", ", Reduction.tile(1, 1).to(Thread).done()")
            w.add(f"split_k({w.pick(1, 2, 3, 4)}, {level}, {w.pick(1, 2, 4, 8)}{combine})")
            s.level = level
        else:
            operand, memory = step.split()
            w.load(s, operand, w.pick("SH", "RF", "GL", "FR(16, 16, 16)", "VAL") if memory == "any" else memory)


def _close(w: _Writer, s: _State, text: str, matrices: bool) -> bool:
    """The end of a chain for a multiply-add, or a micro-kernel text; true for a text.

    A copy of more than two dimensions may omit those of one element, so that a text has other indices than the letters.
    """
    while s.level not in ("Thread", "Lane"):
        level = w.pick(*INNER[s.level]) if s.level in INNER else "Block"
        threads = {"Block": 256, "Warpgroup": 128, "Warp": 32, "QuadPair": 8}.get(s.level, 256)
        a = w.divisor(s.m, -(-s.m // threads))
        b = w.divisor(s.n, max(1, -(-s.m * s.n // (a * threads))))
        w.tile(s, a, b, level)
    if w.chance(0.05) and (matrices or {*s.memory.values()} == {"GL"}):
        w.add("done(micro)" if w.chance(0.8) else f"done({text!r})")
        return True
    if w.chance(0.3):
        w.load(s, "A", "RF") if s.memory["A"] != "RF" and s.m * s.k <= 64 else None
    ends = []
    if s.k > 1 or "k" in s.whole or w.chance(0.5):
        ends.append((("split(1)",), "unroll()" if w.chance(0.4) else None))
    if s.m * s.n > 1 or w.chance(0.3):
        ends.append((("tile(1, 1)",), "unroll()" if w.chance(0.4) else None))
    w.r.shuffle(ends)
    for (verb,), refinement in ends:
        w.add(verb, refinement)
    w.add("done()" if w.chance(0.97) else f"done({w.pick('FFMA', 'HFMA', 'HFMA2', 'IMAD', 'DFMA')})")
    return False


MATRIX = (
    ("float16", "float32", ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90"), 3, 16, ("", "", "HMMA_16816_F32", "HMMA_1688_F32")),
    ("float16", "float16", ("sm_75", "sm_80", "sm_90"), 1, 16, ("", "", "HMMA_16816_F16", "HMMA_1688_F16")),
    ("bfloat16", "float32", ("sm_80", "sm_90"), 3, 16, ("", "HMMA_16816_F32_BF16", "HMMA_1688_F32_BF16")),
    ("tf32", "float32", ("sm_80", "sm_90"), 3, 8, ("", "HMMA_1688_F32_TF32", "HMMA_1684_F32_TF32")),
    ("float64", "float64", ("sm_80", "sm_90"), 3, 16, ("", "DMMA_884", "DMMA_16816")),
    ("int8", "int32", ("sm_75", "sm_80", "sm_90"), 3, 32, ("", "IMMA_16832_S8", "IMMA_16816_S8", "IMMA_8816_S8")),
    ("float8_e4m3", "float32", ("sm_89", "sm_90"), 2, 32, ("", "QMMA_16832_F32_E4M3", "QMMA_16816_F32_E4M3")),
    ("float8_e5m2", "float32", ("sm_89", "sm_90"), 2, 32, ("", "QMMA_16832_F32_E5M2")),
    ("float16", "bfloat16", ("sm_80",), 1, 16, ("",)),
)  # fmt: skip


def _tensor(r: random.Random) -> Product:
    """mma.sync inside tiles of any multiples."""
    w = _Writer(r, r.choice((0.0, 0.0, 0.05)))
    dtype, c_dtype, targets, largest, step, leaves = r.choice(MATRIX) if r.random() < 0.6 else MATRIX[0]
    letters = "mk,kn->mn" if r.random() < 0.85 else r.choice(("bmk,bkn->bmn", "km,kn->mn", "mk,nk->mn"))
    wm, wn = (16 * r.choice((1, 1, 2, 2, 3)) for _ in "mn")
    bm, bn = wm * r.choice((1, 1, 2, 3)), wn * r.choice((1, 1, 2))
    bk = step * r.choice((1, 1, 2, 2, 3))
    sizes = {
        "M": _near(r, bm, 100),
        "N": _near(r, bn, 100),
        "K": max(1, r.choice((1, bk - 1, bk, bk + 1, 2 * bk, r.randint(1, 100), 8 * r.randint(1, 12)))),
        "B": 2,
        "A": 1,
        "L": 1,
    }
    s = _State(sizes["M"], sizes["N"], sizes["K"], {"m", "n", "k"})
    if "b" in letters:
        w.add("tile(b=1)", "to(Block)")
    if w.chance(0.04):
        w.add(f"repack({w.pick('A', 'B')})")
    if w.chance(0.06):
        w.tile(s, bm * 2, bn, None)
    w.tile(s, bm, bn, "Block", *w.of_block())
    accumulator = "float32" if c_dtype in ("float32", "float16", "bfloat16") and w.chance(0.8) else ""
    deep = w.chance(0.12)
    if not deep:
        _matrix_epilog(w, s, wm, wn, accumulator)
    if w.chance(0.08):
        w.add(f"split_k({w.pick(1, 2)}, {w.pick('Warp', 'Warpgroup')}, {bk})")
        s.level = "Warp"
    by_threads = w.chance(0.15)
    if by_threads:
        w.tile(s, wm, wn, "Warp")
        if deep:
            _matrix_epilog(w, s, wm, wn, accumulator)
    if w.chance(0.92):
        w.split(s, bk)
    for operand in r.sample("AB", 2):
        if w.chance(0.85):
            rows, columns = (s.m, s.k) if operand == "A" else (s.k, s.n)
            move = f"Move.coalesced_copy({w.pick(8, 8, 4, 16, 2)}).done()" if w.chance(0.6) else w.move(s.level, rows, columns)
            refinements = w.how_stored(rows, columns) if w.chance(0.5) else w.r.choice((["swizzle_storage()"], []))
            w.add(f"load({operand}, SH{', ' + move if move else ''})", *refinements)
    if not by_threads:
        if w.chance(0.1) and wm * wn > 256:
            w.tile(s, wm, wn, "Warpgroup")
            w.tile(s, 16, 16, "Warp")
        else:
            w.tile(s, wm, wn, "Warp")
        if deep:
            _matrix_epilog(w, s, wm, wn, accumulator)
    if w.chance(0.8):
        w.split(s, step if w.chance(0.9) else w.divisor(s.k))
    loads = [f"load({one}, RF{w.pick(', Move.done()', ', Move.done()', ', Move.done()', '')})" for one in r.sample("AB", 2)]
    where = w.pick("above", "above", "between", "below")
    leaf = r.choice(leaves) if dtype != "float16" or w.chance(0.3) else ""
    if where == "above":
        for load in loads:
            w.add(load)
    if w.chance(0.92):
        w.tile(s, 16, 16, None)
    if where == "between":
        for load in loads:
            w.add(load)
    if w.chance(0.9):
        w.add(f"mma_tile({leaf})")
        leaf = ""
    else:
        w.add(f"tile(16, {w.pick(8, 8, 16)})", "unroll()" if w.chance(0.5) else None)
    if where == "below":
        for load in loads:
            w.add(load)
    w.add(f"done({leaf})")
    return _finished(r, w, letters, sizes, _types(dtype, c_dtype), r.choice(targets), largest, symbols=0.15)


def _matrix_epilog(w: _Writer, s: _State, wm: int, wn: int, accumulator: str) -> None:
    words = ["RF", *([accumulator] if accumulator else [])]
    draw = w.r.random()
    to = f".tile({wm}, {wn}).to(Warp).done()"
    if draw < 0.15:
        words += [f"Init{to}", f"Move{to}"]
    elif draw < 0.3:
        staged = f"Move.load(SRC, SH, {w.pick('Move.done()', 'Move' + to)}){w.pick('', '.cast_on_copy()')}{w.pick('', '.pad(8)', '.swizzle_storage()')}{w.pick('', '.reuse_buffer()')}.coalesced_copy({w.pick(8, 4)}).done()"
        words += ["Init.done()", staged]
    w.add(f"epilog({', '.join(words)})")
    s.memory["C"] = "RF"


def _volta(r: random.Random) -> Product:
    """m8n8k4 by an even or odd number of quad-pairs."""
    w = _Writer(r, r.choice((0.0, 0.05)))
    accumulator = r.choice(("float32", "float16"))
    bm, bn = (8 * r.choice((1, 2, 3, 4, 5)) for _ in "mn")
    bk = 4 * r.choice((1, 2, 3, 4))
    sizes = {
        "M": _near(r, bm, 60),
        "N": _near(r, bn, 60),
        "K": max(1, r.choice((1, bk, bk + 1, 2 * bk, r.randint(1, 40)))),
        "B": 1,
        "A": 1,
        "L": 1,
    }
    s = _State(sizes["M"], sizes["N"], sizes["K"], {"m", "n", "k"})
    w.tile(s, bm, bn, "Block", *w.of_block())
    w.add(f"epilog(RF, {accumulator})")
    if w.chance(0.2):
        w.add(f"split_k({w.pick(1, 2, 3)}, {w.pick('QuadPair', 'Warp')}, {bk})")
    else:
        w.split(s, bk)
    for operand in "AB":
        if w.chance(0.7):
            rows, columns = (s.m, s.k) if operand == "A" else (s.k, s.n)
            move = w.move(s.level, rows, columns)
            w.add(f"load({operand}, SH{', ' + move if move else ''})", *w.how_stored(rows, columns))
    if w.chance(0.5):
        w.tile(s, w.pick(8, 16, s.m), w.pick(8, 16, s.n), "Warp")
    w.tile(s, 8, 8, "QuadPair")
    w.split(s, 4)
    for operand in "AB":
        if w.chance(0.9):
            w.add(f"load({operand}, RF, Move.done())")
    form = f"HMMA_884_{'F32' if accumulator == 'float32' else 'F16'}_{w.pick('NN', 'NT', 'TN', 'TT')}"
    w.add(f"done({form if w.chance(0.3) else ''})")
    return _finished(
        r,
        w,
        "mk,kn->mn",
        sizes,
        _types("float16", r.choice(("float16", "float32"))),
        "sm_70" if w.chance(0.8) else "sm_75",
        1,
        symbols=0.15,
    )


def _wmma(r: random.Random) -> Product:
    """Fragments whose layout only the instruction defines."""
    w = _Writer(r, r.choice((0.0, 0.05)))
    fragment = r.choice(((16, 16, 16), (16, 16, 16), (32, 8, 16), (8, 32, 16)))
    fm, fn, fk = fragment
    bm, bn = fm * r.choice((1, 2, 3)), fn * r.choice((1, 2))
    bk = fk * r.choice((1, 2))
    sizes = {"M": bm * r.choice((1, 2)), "N": bn, "K": bk * r.choice((1, 2, 3)), "B": 1, "A": 1, "L": 1}
    if w.chance(0.3):
        sizes |= {"M": _near(r, bm, 80), "K": r.randint(1, 70)}
    s = _State(sizes["M"], sizes["N"], sizes["K"], {"m", "n", "k"})
    kind = r.choice(("float32", "float32", "float16"))
    w.tile(s, bm, bn, "Block", *w.of_block())
    store = f"Move.tile({fm}, {fn}).to(Warp).done()"
    if w.chance(0.5):
        store = f"Move.load(SRC, SH, {store}){w.pick('', '.reuse_buffer()', '.pad(8)')}.{w.pick('tile(1, 1).to(Thread)', 'coalesced_copy(4)')}.done()"
    w.add(
        f"epilog(FR{fragment}, {kind}, Init.tile({fm}, {fn}).to(Warp).done(), {store})"
        if w.chance(0.8)
        else f"epilog(FR{fragment}, {kind})"
    )
    w.split(s, bk)
    for operand in "AB":
        if w.chance(0.6):
            w.add(
                f"load({operand}, SH{w.pick('', ', Move.coalesced_copy(8).done()')})",
                *w.r.choice(((), ("pad(8)",), ("to_col_major()",), ("pad(3)",), ("swizzle_storage()",))),
            )
    w.tile(s, fm, fn, "Warp")
    if bk != fk:
        w.split(s, fk)
    for operand in "AB":
        w.add(f"load({operand}, FR{fragment}, Move.done())")
    w.add("done()")
    return _finished(r, w, "mk,kn->mn", sizes, _types("float16", kind), r.choice(("sm_70", "sm_75", "sm_80", "sm_90")), 1, symbols=0.1)


def _hopper(r: random.Random) -> Product:
    """wgmma, with or without rings and producers."""
    w = _Writer(r, r.choice((0.0, 0.05)))
    dtype, c_dtype, largest = r.choice(
        (
            ("float16", "float32", 3),
            ("float16", "float16", 1),
            ("bfloat16", "float32", 2),
            ("float8_e4m3", "float32", 2),
            ("int8", "int32", 2),
            ("tf32", "float32", 2),
        )
    )
    n = r.choice((8, 16, 24, 32, 40, 64))
    bm, bn = 64 * r.choice((1, 1, 2)), n * r.choice((1, 1, 2))
    bk = r.choice((16, 32, 64, 64, 128))
    sizes = {
        "M": r.choice((bm, bm - 1, bm + 3, 2 * bm, r.randint(1, 130))),
        "N": r.choice((bn, 2 * bn, bn + 8, r.randint(1, 80))),
        "K": r.choice((16, bk, 2 * bk, 3 * bk, bk + 8, r.randint(1, 200))),
        "B": 2,
        "A": 1,
        "L": 1,
    }
    letters = "mk,kn->mn" if w.chance(0.9) else "bmk,bkn->bmn"
    s = _State(sizes["M"], sizes["N"], sizes["K"], {"m", "n", "k"})
    if "b" in letters:
        w.add("tile(b=1)", "to(Block)")
    if w.chance(0.08):
        w.add(f"repack({w.pick('A', 'B')})")
    special = w.chance(0.6)
    blocks = [
        f"rasterize(group_m={w.pick(1, 2)})" if w.chance(0.3) else "hilbert()" if w.chance(0.2) else None,
        f"persistent({w.pick(1, 2, 3)}{', dynamic=True' if special and w.chance(0.2) else ''})" if w.chance(0.4) else None,
    ]
    blocks.append(f"cluster({w.pick('2', '1, 2', '2, 2')})" if special and w.chance(0.25) else None)
    blocks.append("pingpong(2)" if special and w.chance(0.15) else None)
    w.tile(s, bm, bn, "Block", *(one for one in blocks if one))
    words = ["RF", *(["float32"] if c_dtype != "int32" else [])]
    if w.chance(0.3):
        words += [
            "Init.done()",
            f"Move.tile(64, {n}).to(Warpgroup){f'.tile(64, {w.pick(8, 16, n)}).unroll()' if w.chance(0.5) else ''}.load(SRC, SH, Move.done()).cast_on_copy().done()",
        ]
    w.add(f"epilog({', '.join(words)})")
    ring = [f"pipeline({w.pick(1, 2, 3, 4)})"] if special or w.chance(0.4) else []
    if special:
        ring.append(f"warp_specialize({w.pick('', '', '128', '32')})")
        if w.chance(0.25):
            ring.append(f"mma_in_flight({w.pick(0, 1, 2)})")
    if w.chance(0.08):
        ring.append(f"stagger_blocks({w.pick(1, 2)})")
    w.split(s, bk, *ring)
    for operand in r.sample("AB", 2):
        rows, columns = (s.m, s.k) if operand == "A" else (s.k, s.n)
        move = "Move.done()" if w.chance(0.8) else w.move(s.level, rows, columns)
        refinements = w.r.choice(((), (), (), (), ("swizzle_storage()",), ("to_col_major()",), ("stages(2)",), ("pad(8)",)))
        w.add(f"load({operand}, SH{', ' + move if move else ''})", *refinements)
    w.tile(s, 64 if w.chance(0.9) else bm, n, "Warpgroup")
    if w.chance(0.2):
        w.split(s, w.pick(16, 32), "unroll()")
        if w.chance(0.5):
            w.add("load(A, RF, Move.done())")
    w.add("done()")
    return _finished(r, w, letters, sizes, _types(dtype, c_dtype), "sm_90a", largest, symbols=0.1)
