"""Random texts of copies, fills, reductions, pointwise work and user-defined kinds, of any rank and storage."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping

import numpy as np
from second_formula import results
from second_products import _near, _Writer
from second_script import Script

KINDS = (
    ("y[i,j] = 2 * x[i,j] + 1", {"x": "i j", "y": "i j"}),
    ("y[i,j] = x[j,i]", {"x": "j i", "y": "i j"}),
    ("y[i,j] = x[i,j] - w[j]", {"x": "i j", "w": "j", "y": "i j"}),
    ("y[i,j] = where(x[i,j] < w[j], x[i,j], -1)", {"x": "i j", "w": "j", "y": "i j"}),
    ("y[i] = sum(j, x[i,j])", {"x": "i j", "y": "i"}),
    ("y[j] = max(i, x[i,j])", {"x": "i j", "y": "j"}),
    ("y[i] += a * x[i]", {"a": "", "x": "i", "y": "i"}),
    ("y[i,j] = sum(k, x[i,k] * w[k,j])", {"x": "i k", "w": "k j", "y": "i j"}),
    ("y[k,i,j] = x[i,k,j] * 3", {"x": "i k j", "y": "k i j"}),
    ("y[i,k] = min(j, x[i,j,k])", {"x": "i j k", "y": "i k"}),
    ("y[i,j] = relu(x[i,j]) * relu(-x[i,j] + 2)", {"x": "i j", "y": "i j"}),
)


@dataclasses.dataclass
class Other:
    """A random spec of some kind; `formula` with `axes` defines its meaning."""

    script: Script
    formula: str
    axes: Mapping[str, str]
    output: str
    joins: bool = False
    symbols: tuple[str, ...] = ()
    exact: bool = True

    def inputs(self, sizes: Mapping[str, int], types: Mapping[str, np.dtype], seed: int) -> dict[str, np.ndarray]:
        random_ = np.random.default_rng(seed)
        names = [name for name in self.axes if name != self.output or self.joins]
        arrays = {}
        for name in names:
            shape = tuple(sizes[dim] for dim in self.axes[name].split())
            repeated = re.search(rf"\b{name}=Strides\(\w=0", self.script.problem) is not None
            low = 0 if types[name].kind == "u" else -2
            arrays[name] = random_.integers(low, 3, (1, *shape[1:]) if repeated else shape).astype(types[name])
            arrays[name] = np.broadcast_to(arrays[name], shape)
        return arrays

    def _made(self) -> dict[str, object]:
        dims = " ".join(dict.fromkeys(" ".join(self.axes.values()).split()))
        return {
            "dims": dims,
            "operands": dict(self.axes),
            "body": {"step": self.formula.replace("+=", "=", 1) if self.joins else self.formula},
        }

    def expected(self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        before = arrays.get(self.output)
        outputs = results(self._made(), sizes, {name: array for name, array in arrays.items() if name != self.output})
        return {self.output: outputs[self.output] + (0 if before is None else before.astype(float))}

    def meaning(self) -> str:
        return f"__import__('second_formula').results({self._made()!r}, {dict(self.script.sizes)!r}, {{k: v for k, v in arrays.items() if k != {self.output!r}}})"


def other(seed: int) -> Other:
    """A spec of another kind with a strategy, drawn from a seed."""
    r = random.Random(seed)
    return r.choice((_move, _move, _move, _reduction, _kind, _kind, _init))(r)


def _storage(r: random.Random, dims: str, output: bool) -> str:
    draw = r.random()
    letters = dims.split()
    if draw < 0.4:
        return "RowMajor"
    if draw < 0.6:
        return "ColMajor"
    if draw < 0.75 and len(letters) > 1:
        return f"RowMajor(ld={{{letters[-1]}}} + {r.choice((1, 4, 8, 3000))})"
    if draw < 0.85 and len(letters) == 2:
        return f"ColMajor(ld={{{letters[0]}}} + {r.choice((1, 8))})"
    if len(letters) == 2:
        return (
            f"Strides({letters[0]}={{{letters[1]}}} + {r.choice((0, 5, 8))}, {letters[1]}=1)"
            if output or r.random() < 0.7
            else f"Strides({letters[0]}=0, {letters[1]}=1)"
        )
    return "RowMajor"


TYPES = ("float32", "float32", "float16", "bfloat16", "int8", "int32", "float64", "uint8")


def _move(r: random.Random) -> Other:
    rank = r.choice((1, 2, 2, 2, 3))
    dims = ("m", "n", "p")[:rank]
    sizes = {dim: _near(r, r.choice((4, 8, 16, 32)), 60) for dim in dims}
    first, second = r.choice(TYPES[:6]), r.choice(TYPES[:6])
    if r.random() < 0.6:
        second = first
    letters = " ".join(dims)
    source, target = letters, letters
    text = f"dst[{','.join(dims)}] = src[{','.join(dims)}]"
    options = [f"dtype={first}", f"dst_dtype={second}"] if first != second else [f"dtype={first}"]
    for name in ("src", "dst"):
        options.append(f"{name}={_storage(r, letters, name == 'dst')}")
    problem = f"Move({', '.join('{' + dim + '}' for dim in dims)}, {', '.join(options)})(GL, GL)(Kernel)"
    w = _Writer(r, r.choice((0.0, 0.05)))
    tile = [r.choice((4, 8, 16, 32, 5)) for _ in dims]
    if rank == 3:
        tile[0] = 1 if r.random() < 0.6 else tile[0]
    _tiles(w, dims, tile)
    return _closed(r, w, "Move", problem, sizes, text, {"src": source, "dst": target}, "dst")


def _tiles(w: _Writer, dims: tuple[str, ...], tile: list[int]) -> None:
    """Tiles for blocks and below, with copies to nearer memories, down to a leaf."""
    if w.chance(0.1):
        w.add(f"tile({', '.join(str(one * 2) for one in tile)})")
    blocks = w.pick(
        None,
        None,
        None,
        "persistent(2)",
        "rasterize(group_m=2)",
        "hilbert()",
        "layout(ColMajor)",
        "swizzle(lambda uid: uid)",
        f"longest_first({dims[0]!r})",
    )
    w.add(
        f"tile({', '.join(map(str, tile))})"
        if w.chance(0.8)
        else f"tile({', '.join(f'{dim}={one}' for dim, one in zip(dims, tile, strict=True))})",
        "to(Block)",
        blocks,
    )
    level = "Block"
    for _ in range(w.pick(0, 0, 1, 2)):
        copy = w.pick(
            None,
            "Move.done()",
            "Move.coalesced_copy(4).done()",
            f"Move.tile({', '.join(str(w.divisor(one)) for one in tile)}).to({'Thread' if level == 'Block' else 'Lane'}).done()",
        )
        memory = w.pick("SH", "SH", "RF")
        how = (
            w.pick(None, None, "pad(1)", "swizzle_storage()", "to_col_major()", "swizzle_storage(Swizzle(2, 0, 3))", "cast_on_copy()")
            if memory == "SH"
            else None
        )
        w.add(f"load(SRC, {memory}{', ' + copy if copy else ''})", how)
        if level == "Block" and w.chance(0.4):
            tile = [w.divisor(one) for one in tile]
            w.add(f"tile({', '.join(map(str, tile))})", "to(Warp)")
            level = "Warp"
    if w.chance(0.25) and len(tile) == 2:
        w.add(f"coalesced_copy({w.pick(1, 2, 4, 8)})")
    elif w.chance(0.9):
        tile = [w.divisor(one) if w.chance(0.6) else 1 for one in tile]
        w.add(
            f"tile({', '.join(map(str, tile))})",
            f"to({'Lane' if level == 'Warp' else w.pick('Thread', 'Thread', 'Thread', 'QuadPair')})",
            w.pick(None, None, "layout(ColMajor)"),
        )
        if w.chance(0.5):
            w.add(f"tile({', '.join('1' for _ in tile)})", w.pick(None, "unroll()"))
    w.add("done()")


def _closed(
    r: random.Random,
    w: _Writer,
    start: str,
    problem: str,
    sizes: dict[str, int],
    formula: str,
    axes: dict[str, str],
    output: str,
    before: tuple[str, ...] = (),
    joins: bool = False,
) -> Other:
    symbols: list[str] = []
    if r.random() < 0.2:
        dim = r.choice(list(sizes))
        name = r.choice(("rows", "k0", "src_", "thread_n", "lane", "size"))
        fact = r.choice(("", ", high=4096", f", multiple_of={r.choice([one for one in (1, 2, 4, 8) if sizes[dim] % one == 0])}"))
        problem = re.sub(rf"\{{{dim}\}}", "size_of_it", problem)
        before = (*before, f"size_of_it = sym({name!r}{fact})")
        symbols.append(f"{name}={dim}")
    script = Script(start, problem, sizes, tuple(w.steps), r.choice(("sm_70", "sm_80", "sm_90", "sm_52")), before)
    return Other(script, formula, axes, output, joins, tuple(symbols))


def _reduction(r: random.Random) -> Other:
    rank = r.choice((2, 2, 3))
    dims = ("m", "n", "p")[:rank]
    sizes = {dim: _near(r, r.choice((4, 8, 16)), 40) for dim in dims}
    by = r.choice(("sum", "sum", "max", "min"))
    kept, last = dims[:-1], dims[-1]
    dtype = r.choice(("float32", "float32", "int32", "float64"))
    options = [f"by={by!r}", f"dtype={dtype}", f"src={_storage(r, ' '.join(dims), False)}", f"dst={_storage(r, ' '.join(kept), True)}"]
    problem = f"Reduction({', '.join('{' + dim + '}' for dim in dims)}, {', '.join(options)})(GL, GL)(Kernel)"
    w = _Writer(r, r.choice((0.0, 0.05)))
    tile = [r.choice((1, 2, 4, 8)) for _ in kept]
    w.add(f"tile({', '.join(map(str, tile))})", "to(Block)")
    if w.chance(0.3):
        w.add("epilog(RF)")
    steps = w.pick("thread", "thread", "load", "warp")
    if steps == "warp":
        w.add(f"tile({', '.join('1' for _ in tile)})", "to(Warp)")
        if w.chance(0.7):
            unit_sizes = ", ".join("1" for _ in dims)
            w.add(f"load(SRC, RF{w.pick('', ', Move.done()', f', Move.tile({unit_sizes}).to(Lane).done()')})")
    else:
        if steps == "load":
            w.add(f"load(SRC, {w.pick('SH', 'RF')}{w.pick('', ', Move.done()', ', Move.coalesced_copy(2).done()')})")
        w.add(f"tile({', '.join('1' for _ in tile)})", "to(Thread)")
        if w.chance(0.5):
            w.add(f"split({w.pick(1, 1, 2)})", w.pick(None, "unroll()"))
    w.add("done()")
    text = f"dst[{','.join(kept)}] = {by}({last}, src[{','.join(dims)}])"
    return _closed(r, w, "Reduction", problem, sizes, text, {"src": " ".join(dims), "dst": " ".join(kept)}, "dst")


def _init(r: random.Random) -> Other:
    sizes = {"m": r.randint(1, 40), "n": r.randint(1, 40)}
    value = r.choice((0, 1, -3, 7))
    problem = f"Init({{m}}, {{n}}, value={value}, dtype={r.choice(TYPES[:6])}, dst={_storage(r, 'm n', True)})(GL)(Kernel)"
    w = _Writer(r, 0.0)
    w.add(f"tile({w.pick(4, 8, 16)}, {w.pick(4, 8, 16)})", "to(Block)")
    w.add(f"tile({w.pick(1, 2, 4)}, {w.pick(1, 2, 4)})", "to(Thread)")
    if w.chance(0.7):
        w.add("tile(1, 1)", w.pick(None, "unroll()"))
    w.add("done()")
    return _closed(r, w, "Init", problem, sizes, f"dst[m,n] = {value}", {"dst": "m n"}, "dst")


def _kind(r: random.Random) -> Other:
    """A user-defined kind, declared in the text."""
    text, axes = r.choice(KINDS)
    reduced = [dim for found in re.findall(r"(?:sum|max|min)\((\w), ", text) for dim in found]
    order = [*axes["y"].split(), *reduced]
    sizes = {dim: _near(r, r.choice((4, 8, 16)), 40) for dim in order}
    joins = "+=" in text
    before = (f"mine = Kind({r.choice(('Mine', 'Scale', 'Work'))!r}, {text!r}).starter",)
    memories = ", ".join("VAL" if not dims else "GL" for dims in axes.values())
    options = "".join(f", {name}={_storage(r, dims, name == 'y')}" for name, dims in axes.items() if dims and r.random() < 0.4)
    problem = f"mine({', '.join('{' + dim + '}' for dim in order)}{', accumulate=True' if joins else ''}, dtype=float32{options})({memories})(Kernel)"
    w = _Writer(r, r.choice((0.0, 0.05)))
    out = axes["y"].split()
    tile = [r.choice((1, 2, 4, 8, 16)) for _ in out]
    w.add(f"tile({', '.join(map(str, tile))})", "to(Block)", w.pick(None, None, "persistent(2)", "layout(ColMajor)"))
    for name in axes:
        if name != "y" and axes[name] and w.chance(0.3):
            w.add(f"load({name!r}, {w.pick('SH', 'SH', 'RF')}{w.pick('', ', Move.done()')})", w.pick(None, None, "pad(1)"))
    if reduced and w.chance(0.4):
        w.add("epilog(RF)")
    w.add(f"tile({', '.join(str(w.divisor(one)) if w.chance(0.4) else '1' for one in tile)})", f"to({w.pick('Thread', 'Thread', 'Warp')})")
    ends = [f"tile({', '.join('1' for _ in tile)})", *(["split(1)"] if reduced else [])]
    r.shuffle(ends)
    for verb in ends:
        if w.chance(0.9):
            w.add(verb, w.pick(None, "unroll()"))
    w.add("done()")
    return _closed(r, w, "mine", problem, sizes, text, dict(axes), "y", before, joins)
