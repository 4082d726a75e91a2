"""Wrong inputs: each gets the project's own error, at once, and with the user's line if there is one.

`POSITIONS` are the arguments of all public constructors and verbs; each gets all of `VALUES` except those that are right there. `ORDERS`
are steps that are right one by one, and wrong together. The last test draws chains with wrong arguments anywhere; `FIREIRON_FUZZ`
multiplies its draws.
"""

import itertools
import os
import random
import time

import numpy as np
import pytest

from fireiron import *
from fireiron.copies import copied
from fireiron.language.tunable import Derived as DerivedTunable

FUZZ = int(os.environ.get("FIREIRON_FUZZ", "1"))
SECONDS = 5.0  # of CPU time: a late refusal enumerates first, and takes minutes


class Hostile:
    """An object with all expected attributes and wrong values."""

    def __index__(self):
        raise TypeError("no index")

    def __eq__(self, other):
        return NotImplemented

    __hash__ = None


class Plain:
    def __repr__(self):
        return "Plain()"


mm = MatMul(64, 64, 16)(GL, GL, GL)(Kernel)
mv = Move(64, 64)(GL, GL)(Kernel)
block = MatMul.tile(32, 32).to(Block)
bm = Tunable("bm", 16, 32)
done = block.tile(4, 4).to(Thread).split(1).tile(1, 1).done()
loaded = block.split(8).load(A, SH)
tile_views = mm.tile(32, 32).to(Block).result

VALUES = {
    "0": 0,
    "-1": -1,
    "-2**40": -(2**40),
    "True": True,
    "False": False,
    "1.5": 1.5,
    "8.0": 8.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "1j": 1j,
    "'8'": "8",
    "''": "",
    "'\\0'": "\0",
    "'a b'": "a b",
    "b'8'": b"8",
    "None": None,
    "object": Plain(),
    "hostile": Hostile(),
    "type": int,
    "2**31": 2**31,
    "2**40": 2**40,
    "10**400": 10**400,
    "()": (),
    "(8,)": (8,),
    "[8]": [8],
    "{}": {},
    "{8}": {8},
    "range": range(8),
    "lambda": lambda: 8,
    "slice": slice(8),
    "np.float32": np.float32(8),
    "np.bool": np.bool_(True),
    "np.array": np.array([8, 8]),
    "np.array1": np.array([8]),
    "GL": GL,
    "SH": SH,
    "Block": Block,
    "Lane": Lane,
    "Kernel": Kernel,
    "float16": float16,
    "RowMajor": RowMajor,
    "ColMajor(ld)": ColMajor(ld=4096),
    "Layout": Layout((4, 2), (2, 1)),
    "Swizzle": Swizzle(2, 0, 3),
    "operand": A,
    "symbol": sym("S"),
    "variable": Var("v", 0, 7),
    "spec": mm,
    "MatMul": MatMul,
    "strategy": block,
    "bound strategy": block(mm),
    "finished": done,
    "copy": Move.tile(1, 1).done(),
    "fill": Init.tile(1, 1).done(),
    "Tile": Tile,
    "Tile((8, 8))": Tile((8, 8)),
    "Pad(4)": Pad(4),
    "Unroll": Unroll,
    "FFMA": FFMA,
    "Strided": Strided((4, 8)),
    "tunable": bm,
    "derived": bm // 2,
    "shape": MatMul(8, 8, 8),
    "architecture": ARCHITECTURES[0],
    "NotImplemented": NotImplemented,
    "Ellipsis": ...,
}

SIZES = ("2**31", "2**40", "10**400")
NUMBERS = ("0", "-1", "1.5", "8.0", "inf", "np.float32", "2**31", "2**40", "-2**40")


def only(*names):
    """All values except the named ones are wrong."""
    return set(names)


def size(*more):
    return only("symbol", *more)


def number(*more):
    """Accepts numbers and tunables, which then have a value."""
    return only("tunable", "derived", *more)


def tile_size(*more):
    """Accepts a tile size: a number, or a layout of its elements."""
    return number("Layout", *more)


TEXTS = ("'8'", "'a b'")
COPIES = ("None", "copy")
FILLS = ("None", "copy", "fill")
DTYPES = ("float16",)


def bind(strategy):
    """The kernel of a strategy, which shows whether it is legal."""
    return (strategy if strategy.spec is not None else strategy(mm)).program("sm_80").ir


def finish(chain):
    """The rest of a kernel after a tile, a load, a split or an epilog of a block."""
    return bind(chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done())


# (title, use of the value, the values that are right there, whether the error knows the line)
POSITIONS = [
    # ---------------------------------------------------------------- specs
    ("MatMul(x, 8, 8)", lambda x: MatMul(x, 8, 8), size(), True),
    ("MatMul(8, x, 8)", lambda x: MatMul(8, x, 8), size(), True),
    ("MatMul(8, 8, x)", lambda x: MatMul(8, 8, x), size(), True),
    ("Move(x, 8)", lambda x: Move(x, 8), size(), True),
    ("Move(8, x)", lambda x: Move(8, x), size(), True),
    ("Init(x, 8)", lambda x: Init(x, 8), size(), True),
    ("Init(8, x)", lambda x: Init(8, x), size(), True),
    ("MatMul dtype", lambda x: MatMul(8, 8, 8, dtype=x), only(*DTYPES), True),
    ("MatMul dtype of A", lambda x: MatMul(8, 8, 8, dtype=(x, float32)), only(*DTYPES), True),
    ("MatMul dtype of B", lambda x: MatMul(8, 8, 8, dtype=(float32, x)), only(*DTYPES), True),
    ("MatMul c_dtype", lambda x: MatMul(8, 8, 8, c_dtype=x), only("None", *DTYPES), True),
    ("MatMul accumulator", lambda x: MatMul(8, 8, 8, accumulator=x), only("None", *DTYPES), True),
    ("MatMul accumulate", lambda x: MatMul(8, 8, 8, accumulate=x), only("0", "True", "False"), True),
    ("MatMul A", lambda x: MatMul(8, 8, 8, A=x), only("None", "RowMajor", "ColMajor(ld)"), True),
    ("MatMul B", lambda x: MatMul(8, 8, 8, B=x), only("None", "RowMajor", "ColMajor(ld)"), True),
    ("MatMul C", lambda x: MatMul(8, 8, 8, C=x), only("None", "RowMajor", "ColMajor(ld)"), True),
    ("Move dtype", lambda x: Move(8, 8, dtype=x), only(*DTYPES), True),
    ("Move dst_dtype", lambda x: Move(8, 8, dst_dtype=x), only("None", *DTYPES), True),
    ("Move src", lambda x: Move(8, 8, src=x), only("None", "RowMajor", "ColMajor(ld)"), True),
    ("Move dst", lambda x: Move(8, 8, dst=x), only("None", "RowMajor", "ColMajor(ld)"), True),
    ("Init dtype", lambda x: Init(8, 8, dtype=x), only(*DTYPES), True),
    ("Init dst", lambda x: Init(8, 8, dst=x), only("None", "RowMajor", "ColMajor(ld)"), True),
    ("Init value", lambda x: Init(8, 8, value=x), only(*NUMBERS), True),
    ("memory of A", lambda x: MatMul(8, 8, 8)(x, SH, SH), only("GL", "SH"), True),
    ("memory of B", lambda x: MatMul(8, 8, 8)(SH, x, SH), only("GL", "SH"), True),
    ("memory of C", lambda x: MatMul(8, 8, 8)(SH, SH, x), only("GL", "SH"), True),
    ("memory of src", lambda x: Move(8, 8)(x, SH), only("GL", "SH"), True),
    ("memory of dst", lambda x: Move(8, 8)(SH, x), only("GL", "SH"), True),
    ("memory of Init", lambda x: Init(8, 8)(x), only("GL", "SH"), True),
    ("memories of MatMul", lambda x: MatMul(8, 8, 8)(x), only(), True),
    ("level of MatMul", lambda x: MatMul(8, 8, 8)(SH, GL, RF)(x), only("Block", "Lane"), True),
    ("level of Move", lambda x: Move(8, 8)(GL, SH)(x), only("Block", "Lane"), True),
    ("level of Init", lambda x: Init(8, 8)(SH)(x), only("Block", "Lane"), True),
    ("ld", lambda x: MatMul(8, 8, 8, A=RowMajor(ld=x)), only("2**31", "2**40", "10**400", "symbol"), None),
    ("MatMul.on level", lambda x: MatMul.on(x, mm.A, mm.B, mm.C), only("Block", "Lane", "Kernel"), None),
    ("MatMul.on A", lambda x: MatMul.on(Block, x, mm.B, mm.C), only(), None),
    ("MatMul.on C", lambda x: MatMul.on(Block, mm.A, mm.B, x), only(), None),
    ("MatMul.on accumulate", lambda x: MatMul.on(Block, mm.A, mm.B, mm.C, accumulate=x), only("0", "True", "False"), None),
    ("MatMul.on accumulator", lambda x: MatMul.on(Block, mm.A, mm.B, mm.C, accumulator=x), only("None", "float16"), None),
    ("Move.on src", lambda x: Move.on(Block, x, mv.dst), only(), None),
    ("Move.on names", lambda x: Move.on(Block, mv.src, mv.dst, names=x), only("()"), None),
    ("Init.on value", lambda x: Init.on(Block, mv.dst, value=x), only(*NUMBERS), None),
    ("reference", lambda x: mm.reference(*(x if isinstance(x, tuple) else (x,))), only(), None),
    ("sym name", lambda x: sym(x), only(), None),
    ("sym multiple_of", lambda x: sym("M", multiple_of=x), only(), None),
    ("sym low", lambda x: sym("M", low=x), only(), None),
    ("sym high", lambda x: sym("M", high=x), only(), None),
    # ---------------------------------------------------------------- the GPU
    ("Level name", lambda x: Level(x, Warp, Layout(4)), only(), None),
    ("Level parent", lambda x: Level("Quad", x, Layout(4)), only("None", "Block", "Kernel"), None),
    ("Level layout", lambda x: Level("Quad", Warp, x), only("None", "Layout"), None),
    ("Level label", lambda x: Level("Quad", Warp, Layout(4), x), only("''"), None),
    ("DType name", lambda x: DType(x, 32, "float", "float", "float32"), only(*TEXTS, "'\\0'"), None),
    ("DType bits", lambda x: DType("f", x, "float", "float", "float32"), only("2**31", "2**40", "10**400"), None),
    ("DType kind", lambda x: DType("f", 32, x, "float", "float32"), only(), None),
    ("Memory shared_by", lambda x: Memory("TM", 2, x, "tensor memory"), only(), None),
    ("Memory depth", lambda x: Memory("TM", x, "block", "tensor memory"), only("0", *SIZES), None),
    ("Architecture", lambda x: Architecture("sm_99", x, 1, 1, 1), only(*SIZES), None),
    # ---------------------------------------------------------------- verbs
    ("tile(x, 8)", lambda x: block.tile(x, 8), tile_size(), True),
    ("tile(8, x)", lambda x: block.tile(8, x), tile_size(), True),
    ("tile(x)", lambda x: block.tile(x), tile_size("Strided"), True),
    ("tile(m=x)", lambda x: block.tile(m=x), tile_size(), True),
    ("tile(8, n=x)", lambda x: block.tile(8, n=x), tile_size(), True),
    ("tile(8, Strided)", lambda x: block.tile(8, x), tile_size(), True),
    ("Strided chunk", lambda x: Strided((x, 8)), number(), True),
    ("Strided repeat", lambda x: Strided((4, x)), number(), None),
    ("Strided", lambda x: Strided(x), only(), True),
    ("split(x)", lambda x: block.split(x), tile_size(), True),
    ("split(k=x)", lambda x: block.split(k=x), tile_size(), True),
    ("load(x, SH)", lambda x: finish(block.load(x, SH)), only("operand"), None),
    ("load(A, x)", lambda x: block.load(A, x), only("GL", "SH"), True),
    ("load(A, SH, x)", lambda x: block.load(A, SH, x), only(*COPIES), True),
    ("epilog(x)", lambda x: block.epilog(x), only("GL", "SH"), True),
    ("epilog(RF, x)", lambda x: block.epilog(RF, x), only(*FILLS, *DTYPES), True),
    ("epilog(RF, None, x)", lambda x: block.epilog(RF, None, x), only(*COPIES), True),
    ("epilog(RF, float32, x)", lambda x: block.epilog(RF, float32, x), only(*FILLS), True),
    ("epilog(RF, float32, None, x)", lambda x: block.epilog(RF, float32, None, x), only(*COPIES), True),
    ("epilog(RF, None, None, x)", lambda x: block.epilog(RF, None, None, x), only("None"), True),
    ("epilog init", lambda x: block.epilog(RF, init=x), only(*FILLS), True),
    ("epilog store", lambda x: block.epilog(RF, store=x), only(*COPIES), True),
    ("epilog dtype", lambda x: block.epilog(RF, dtype=x), only("None", *DTYPES), True),
    ("done(x)", lambda x: block.done(x), only("None", *TEXTS, "FFMA"), True),
    ("then(x)", lambda x: block.then(x), only("strategy", "finished", "Tile((8, 8))"), True),
    ("refine(x)", lambda x: block.refine(x), only(), True),
    ("refine a load(x)", lambda x: loaded.refine(x), only("Pad(4)"), True),
    ("to(x)", lambda x: MatMul.tile(8, 8).to(x), only("Block", "Lane", "Kernel"), True),
    ("layout(x)", lambda x: block.layout(x), only("RowMajor"), True),
    ("swizzle(x) of a tile", lambda x: block.swizzle(x), only("0", "-1", "-2**40", "'8'", "2**31", "2**40"), True),
    ("swizzle(x) of a tile, bound", lambda x: finish(block.swizzle(x)), only(), None),
    ("swizzle(x) of threads, bound", lambda x: bind(block.tile(4, 4).to(Thread).swizzle(x).split(1).tile(1, 1).done()), only(), None),
    ("unchecked(x)", lambda x: block.unchecked(x), only(*TEXTS), True),
    ("storage_layout(x)", lambda x: loaded.storage_layout(x), only("RowMajor", "ColMajor(ld)", "Layout"), True),
    ("pad(x)", lambda x: loaded.pad(x), only("0", "tunable", "derived"), True),
    ("align(x)", lambda x: loaded.align(x), only(), True),
    ("swizzle_storage(x) of a load", lambda x: loaded.swizzle_storage(x), only("Swizzle", "None"), True),
    # ---------------------------------------------------------------- strategies
    ("bind(x)", lambda x: block(x), only("spec", "shape"), True),
    ("program(x)", lambda x: done(mm).program(x).ir, only("None", "architecture"), None),
    ("cuda(x)", lambda x: done(mm).cuda(x), only("None", "architecture"), None),
    ("compile(x)", lambda x: done(mm).compile(x), only("None", "architecture"), None),
    ("program(name=x)", lambda x: done(mm).program(name=x), only("None"), None),
    ("at(x)", lambda x: loaded.at(x), only("Tile"), True),
    ("at(Load, x)", lambda x: loaded.at(Load, x), only("None", "operand"), True),
    ("at(Load, A, x)", lambda x: loaded.at(Load, A, x), only("0", "-1"), True),
    ("at(Load).refine(x)", lambda x: loaded.at(Load).refine(x), only("Pad(4)"), True),
    ("at(Tile).unrefine(x)", lambda x: MatMul.tile(8, 8).unroll().at(Tile).unrefine(x), only("Unroll"), True),
    ("at(Load).replace(x)", lambda x: loaded.at(Load).replace(x), only("Tile((8, 8))"), True),
    ("with_(bm=x)", lambda x: MatMul.tile(bm, 8).with_(bm=x), only(), True),
    ("Strategy(x)", lambda x: Strategy(x), only("()"), True),
    ("Strategy(spec=x)", lambda x: Strategy((), x), only("None", "spec"), True),
    ("Strategy(start=x)", lambda x: Strategy((), None, x), only("MatMul"), True),
    ("Tunable(x, 8)", lambda x: Tunable(x, 8), only(), True),
    ("Tunable('t', x)", lambda x: Tunable("t", x), only("0"), True),
    ("Tunable + x", lambda x: bm + x, only("0", "-1", "-2**40", *SIZES, "tunable", "derived"), None),
    ("Tunable - x", lambda x: bm - x, only("0", "-1", "-2**40", *SIZES, "tunable", "derived"), None),
    ("Tunable * x", lambda x: bm * x, only("0", "-1", "-2**40", *SIZES, "tunable", "derived"), None),
    ("Tunable // x", lambda x: (bm // x) and MatMul.tile(bm // x, 8).with_(bm=16)(mm).result, only("tunable", "derived"), None),
    ("Tunable % x", lambda x: bm % x, only("0", "-1", "-2**40", *SIZES, "tunable", "derived"), None),
    ("Tunable / x", lambda x: bm / x, only(), None),
    ("Tunable < x", lambda x: bm < x, only(), None),
    ("Derived op", lambda x: DerivedTunable(x, bm, 2), only(), True),
    ("Operand(x)", lambda x: Operand(x), only(), True),
    # ---------------------------------------------------------------- constructors of steps and refinements
    ("Tile(x)", lambda x: bind(block.then(Tile(x)).done()), only(), None),
    ("Tile((x, 8))", lambda x: finish(block.then(Tile((x, 8)))), tile_size(), None),
    ("Tile(by_dim=x)", lambda x: Tile((8, 8), x), only("()"), True),
    ("Tile(by_dim=((x, 8),))", lambda x: finish(block.then(Tile((), ((x, 8),)))), only(), None),
    ("Tile(by_dim=(('m', x),))", lambda x: finish(block.then(Tile((), (("m", x),)))), tile_size(), None),
    ("Split(x)", lambda x: finish(block.then(Split(x))), only("(8,)"), None),
    ("Split((x,))", lambda x: finish(block.then(Split((x,)))), tile_size(), None),
    ("Load(x)", lambda x: finish(block.then(Load(x, SH))), only("operand"), None),
    ("Load('A', x)", lambda x: Load("A", x), only("GL", "SH"), True),
    ("Load('A', SH, x)", lambda x: Load("A", SH, x), only("()"), True),
    ("Epilog(x)", lambda x: Epilog(x), only("GL", "SH"), True),
    ("Epilog(RF, x)", lambda x: Epilog(RF, x), only("()"), True),
    ("Epilog(RF, (), x)", lambda x: Epilog(RF, (), x), only("()"), True),
    ("Epilog(RF, (), (), x)", lambda x: Epilog(RF, (), (), x), only("None", *DTYPES), True),
    ("Done(x)", lambda x: Done(x), only("None", "FFMA"), True),
    ("To(x)", lambda x: To(x), only("Block", "Lane", "Kernel"), True),
    ("TileOrder(x)", lambda x: TileOrder(x), only("RowMajor"), True),
    ("Permute(x)", lambda x: Permute(x), only(), True),
    ("Pad(x)", lambda x: finish(loaded.refine(Pad(x))), only("0", "tunable", "derived"), None),
    ("Align(x)", lambda x: Align(x), only(), True),
    ("StorageLayout(x)", lambda x: StorageLayout(x), only("RowMajor", "ColMajor(ld)", "Layout"), True),
    ("SwizzleStorage(x)", lambda x: SwizzleStorage(x), only("Swizzle", "None"), True),
    ("Unchecked(x)", lambda x: Unchecked(x), only(*TEXTS), True),
    # ---------------------------------------------------------------- executables
    ("MicroKernel.of(x)", lambda x: MicroKernel.of(x), only(*TEXTS), True),
    ("MicroKernel(name=x)", lambda x: MicroKernel(x, ";"), only(*TEXTS), True),
    ("MicroKernel(text=x)", lambda x: MicroKernel("k", x), only(*TEXTS), True),
    ("MicroKernel(performs_spec=x)", lambda x: MicroKernel("k", ";", performs_spec=x), only("None", *TEXTS, "''", "'\\0'"), True),
    ("MicroKernel(scratch_bytes=x)", lambda x: MicroKernel("k", ";", scratch_bytes=x), only("0"), True),
    ("MicroKernel(threads=x)", lambda x: MicroKernel("k", ";", threads=x), only("None"), True),
    ("vector(x)", lambda x: vector(x), only(), True),
    ("ThreadMove(vector_bytes=x)", lambda x: ThreadMove("v", x), only("None"), True),
    ("Fma(name=x)", lambda x: Fma(x), only(*TEXTS), True),
    ("Fma(result=x)", lambda x: Fma("F", x), only(*DTYPES), True),
    ("Fma(factors=x)", lambda x: Fma("F", float32, (x,)), only(*DTYPES), True),
    ("Fma(text=x)", lambda x: Fma("F", float32, (float32,), x), only(*TEXTS, "''", "'\\0'"), True),
    ("Fma(capability=x)", lambda x: Fma("F", capability=x), only("0", *SIZES), True),
    ("ThreadPointwise(pairs=x)", lambda x: ThreadPointwise("p", x), only("True", "False"), True),
    ("BinaryPointwise('+', x, 8)", lambda x: BinaryPointwise("+", x, 8), size(), None),
    ("BinaryPointwise memory", lambda x: BinaryPointwise("+", 8, 8)(SH, x, SH), only("GL", "SH"), None),
    ("BinaryPointwise level", lambda x: BinaryPointwise("+", 8, 8)(SH, SH, SH)(x), only("Block", "Lane"), None),
    ("Hfma2(result=x)", lambda x: Hfma2("H", x), only(*DTYPES), True),
]  # fmt: skip


def attempt(action, what, knows_line=None):
    """None if the action raises the project's own error, in time; otherwise a description."""
    start = time.process_time()
    try:
        action()
    except FireironError as error:
        if not str(error).strip() or not error.asked.strip():
            return f"{what}: an error without a message"
        if knows_line and "test_bad_inputs.py" not in (error.at or ""):
            return f"{what}: the error does not say where: {error.at}"
        seconds = time.process_time() - start
        return f"{what}: took {seconds:.1f} s" if seconds > SECONDS else None
    except Exception as error:
        return f"{what}: {type(error).__name__}: {str(error)[:100]}"
    return f"{what}: was accepted"


def wrong(position):
    """The wrong values of a position."""
    return [(name, value) for name, value in VALUES.items() if name not in position[2]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position[0])
def test_wrong_value(position):
    what, action, _, knows_line = position
    failures = [attempt(lambda value=value: action(value), f"{what} with {name}", knows_line) for name, value in wrong(position)]
    assert [one for one in failures if one] == []


# ---------------------------------------------------------------------------------------------- wrong combinations

ALL = (Kernel, Block, Warpgroup, Warp, QuadPair, Thread, Lane)
BELOW = {
    Kernel: (Block,),
    Block: (Warpgroup, Warp, QuadPair, Thread),
    Warpgroup: (Warp, QuadPair, Thread),
    Warp: (QuadPair, Thread, Lane),
    QuadPair: (Thread, Lane),
    Thread: (),
    Lane: (),
}
"""The levels below each level."""

REFINEMENTS = {
    "to": To(Thread),
    "unroll": Unroll(),
    "layout": TileOrder(ColMajor),
    "permute": Permute(Var("uid", 0, 2**31 - 1) ^ 1),
    "no_sync": NoSync(),
    "storage_layout": StorageLayout(RowMajor),
    "pad": Pad(4),
    "align": Align(16),
    "reuse_buffer": ReuseBuffer(),
    "swizzle": SwizzleStorage(Swizzle(2, 0, 3)),
    "sync": Sync(),
    "unchecked": Unchecked("for this test"),
}
REFINES = {
    "tile": ("to", "unroll", "layout", "permute", "unchecked"),
    "split": ("unroll", "sync", "unchecked"),
    "load": ("no_sync", "storage_layout", "pad", "align", "reuse_buffer", "swizzle", "unchecked"),
    "epilog": ("unchecked",),
    "done": (),
}
CHAINS = {"tile": block, "split": block.split(8), "load": loaded, "epilog": block.epilog(RF), "done": done}

NOT_BIJECTIVE = (
    "0", "1", "uid // 2", "uid % 2", "uid + 1", "uid - 1", "uid * 2", "uid | 1", "uid & 3", "uid ^ 64", "uid << 1", "uid >> 1", "uid * uid",
    "63 - uid * 2", "(uid + 1) % 63", "uid % 32 + uid // 32", "uid ^ 63 ^ uid", "uid % 64 * 63 % 62", "uid * 0 + 5", "uid // 1 * 2 % 64",
)  # fmt: skip
MALFORMED = (
    "", " ", "uid +", "+", "(", ")", "((uid)", "uid uid", "vid", "uid.bit_length()", "uid[0]", "uid()", "lambda: uid", "uid if uid else 0", "-uid",
    "~uid", "not uid", "uid and 1", "uid < 3", "uid == uid", "uid = 1", "uid := 1", "(uid := 1)", "[uid]", "{uid}", "uid, 1", "f'{uid}'", "'uid'",
    "True", "None", "1.5", "1e3", "1j", "uid / 2", "uid ** 2", "uid @ 2", "uid // 0", "uid % 0", "uid // (uid - uid)", "uid << -1", "uid << 63",
    "1 << 10000000000", "9**9**9**9", "uid << uid", "9" * 5000, "uid" + " + uid * uid" * 5000, "(" * 3000 + "uid" + ")" * 3000,
    "uid ^ 1" + " ^ uid * 3" * 150, "-" * 1000 + "uid", "__import__('os').system('true')", "exec('1')", "open('/etc/passwd')", "().__class__",
    "uid\n1", "uid;1", "import os", "uid # 1\n + 1\n", "\0", "uid\0", "\u00fcid", "uid \u00d7 2", "await uid", "yield uid", "*uid", "uid * 9999999999999",
    "uid * uid * uid", "uid + 4611686018427387904", "x = 1", "print(uid)", "globals()", "uid ^ 1 ^ (lambda: 1)()", "{**uid}", "...", "uid:int",
)  # fmt: skip
HOSTILE = (
    lambda uid: "x",
    lambda uid: None,
    lambda uid: uid / 2,
    lambda uid: uid.foo,
    lambda uid: uid + 1.5,
    lambda uid: uid + "8",
    lambda uid: uid[0],
    lambda uid: 1 // 0,
    lambda uid: uid // 0,
    lambda uid: uid if uid else 0,
    lambda uid: int(uid),
    lambda uid: float("nan"),
    lambda uid: uid ^ sym("M"),
    lambda uid: uid ^ Var("thread", 0, 1023),
    lambda uid: uid << 10**9,
    lambda: 1,
    lambda a, b: a,
    int,
    len,
    Swizzle(2, 0, 3),
    Layout((8, 8), (8, 1)),
)


def chained(levels):
    chain, extent = MatMul, 64
    for level in levels:
        chain = chain.tile(extent, extent).to(level)
        extent //= 2
    return chain(MatMul(128, 128, 8)(GL, GL, GL)(Kernel)).result


def of_levels():
    """All orders of up to four levels with a wrong step in them; tiles for Block after tiles for Block are right."""
    for count in (1, 2, 3, 4):
        for levels in itertools.product(ALL, repeat=count):
            parents = (Kernel, *levels)
            if levels == (Block, Block):
                continue
            if levels[-1] not in BELOW[parents[-2]] and all(level in BELOW[above] for above, level in itertools.pairwise(parents[:-1])):
                yield f"to {levels}", lambda levels=levels: chained(levels)


def of_divisors():
    """Tiles and splits that do not divide a static tile."""
    for size_ in range(1, 71):
        if 32 % size_:
            yield f"tile({size_}, 8)", lambda size_=size_: block.tile(size_, 8)(mm).result
            yield f"tile(8, {size_})", lambda size_=size_: block.tile(8, size_)(mm).result
            yield f"move tile({size_})", lambda size_=size_: finish(block.split(8).load(A, SH, Move.tile(size_, 1).to(Thread).done()))
        if 8 % size_:
            yield f"split({size_})", lambda size_=size_: block.split(8).split(size_)(mm).result
            yield f"split(k={size_})", lambda size_=size_: block.split(8).split(k=size_)(mm).result
    for chunk, repeat in itertools.product(range(1, 17), repeat=2):
        if repeat % chunk or 32 % repeat:
            yield f"Strided({chunk}, {repeat})", lambda chunk=chunk, repeat=repeat: block.tile(Strided((chunk, repeat), (1, 1)))(mm).result


def of_operands():
    names = ("A", "B", "C", "D", "a", "src", "dst", "AB", "self", "tile", "__class__")
    for name, memory in itertools.product(names, (GL, SH, RF)):
        if name in "AB" and len(name) == 1 and memory != GL:
            # Between registers other threads may own the elements afterwards, but not for a single thread.
            few = block.tile(4, 4).to(Thread) if memory == RF else block
            yield (
                f"load {name} to {memory} twice",
                lambda name=name, memory=memory, few=few: few.split(8).load(name, memory).load(name, memory)(mm).result,
            )
            yield f"load {name} at the kernel", lambda name=name, memory=memory: MatMul.load(name, memory)(mm).result
        else:
            yield f"load {name} to {memory}", lambda name=name, memory=memory: block.split(8).load(name, memory)(mm).result
    for name in ("A", "B", "C", "dst", "D"):
        yield f"load {name} of a Move", lambda name=name: Move.tile(32, 32).to(Block).load(name, SH)(mv).result
    for memory in (GL, SH, RF):
        yield f"epilog({memory}) at the kernel", lambda memory=memory: MatMul.epilog(memory)(mm).result
        yield f"epilog({memory}) inside a split", lambda memory=memory: block.split(8).epilog(memory)(mm).result
        yield f"epilog({memory}) of a Move", lambda memory=memory: Move.tile(8, 8).to(Block).epilog(memory)(mv).result
        if memory != GL:
            yield f"epilog({memory}) twice", lambda memory=memory: block.epilog(memory).epilog(memory)(mm).result
    yield "epilog(GL)", lambda: block.epilog(GL)(mm).result
    for start, spec in ((Move, mv), (Init, Init(64, 64)(GL)(Kernel))):
        yield f"split of {start}", lambda start=start, spec=spec: start.split(8)(spec).result
        yield f"split(k) of {start}", lambda start=start, spec=spec: start.split(k=8)(spec).result
        yield f"split(m) of {start}", lambda start=start, spec=spec: start.split(m=8)(spec).result
        yield f"tile(k) of {start}", lambda start=start, spec=spec: start.tile(k=8)(spec).result
    for arguments, names in (
        ((8, 8, 8), {}),
        ((), {}),
        ((8,), {"m": 8}),
        ((), {"k": 8}),
        ((), {"z": 8}),
        ((8, 8), {"k": 8}),
        ((), {"m": 8, "z": 8}),
    ):
        yield f"tile{arguments}{names}", lambda arguments=arguments, names=names: MatMul.tile(*arguments, **names)(mm).result
    for arguments, names in (((8, 8), {}), ((), {}), ((8,), {"k": 8}), ((), {"m": 8}), ((), {"z": 8}), ((), {"k": 8, "m": 8})):
        yield f"split{arguments}{names}", lambda arguments=arguments, names=names: MatMul.split(*arguments, **names)(mm).result
    yield "Strided of three dimensions", lambda: block.tile(Strided((1, 1), (1, 1), (1, 1)))(mm).result
    yield (
        "Strided of a whole tensor known at run time",
        lambda: MatMul.tile(Strided((4, 8), (4, 8)))(MatMul(sym("M"), 8, 8)(GL, GL, GL)(Kernel)).result,
    )


def of_swizzles():
    threads = block.tile(4, 4).to(Thread)
    warps = block.tile(16, 16).to(Warp)
    for text in NOT_BIJECTIVE:
        yield f"swizzle {text} of threads", lambda text=text: bind(threads.swizzle(text).split(1).tile(1, 1).done())
        if sorted(eval(text, {"uid": uid}) for uid in range(4)) != [0, 1, 2, 3]:
            yield f"swizzle {text} of warps", lambda text=text: bind(warps.swizzle(text).tile(4, 4).to(Lane).split(1).tile(1, 1).done())
            yield f"swizzle {text} of blocks", lambda text=text: finish(block.swizzle(text))
    for text in MALFORMED:
        yield f"swizzle {text[:20]!r}", lambda text=text: block.swizzle(text)
        yield f"swizzle {text[:20]!r} on threads", lambda text=text: threads.swizzle(text)
    for number, function in enumerate(HOSTILE):
        yield f"swizzle by callable {number}", lambda function=function: block.swizzle(function)
    run_time = MatMul(sym("M"), 64, 16)(GL, GL, GL)(Kernel)
    yield (
        "swizzle of a grid known at run time",
        lambda: bind(block.swizzle(lambda uid: uid ^ 1).tile(4, 4).to(Thread).split(1).tile(1, 1).done()(run_time)),
    )
    for bits, base, shift in itertools.product((-1, 3, 2.0, "2", None, True, 2**40), (-1, 0, "0", None), (0, 1, "3", None)):
        if bits != 3 or base != 0 or shift not in (3,):
            yield f"Swizzle({bits}, {base}, {shift})", lambda bits=bits, base=base, shift=shift: Swizzle(bits, base, shift)


def of_targets():
    half = MatMul(64, 64, 16, dtype=float16)(GL, GL, GL)(Kernel)
    brain = MatMul(64, 64, 16, dtype=bfloat16)(GL, GL, GL)(Kernel)
    for arch in ("sm_50", "sm_52"):
        yield f"half on {arch}", lambda arch=arch: done(half).program(arch).ir
    for arch in ("sm_50", "sm_52", "sm_53", "sm_70", "sm_75"):
        yield f"bfloat16 on {arch}", lambda arch=arch: done(brain).program(arch).ir
    for instruction in (HFMA, BFMA, DFMA, IMAD, HFMA2, BFMA2, vector(4), ThreadInit("i")):
        yield f"{instruction.name} for float32", lambda one=instruction: bind(block.tile(4, 4).to(Thread).split(1).tile(1, 1).done(one))
    for name in ("sm_30", "sm_999", "", "SM_80", "80", "sm_80 ", "compute_80", "sm_90aa", "hopper"):
        yield f"target {name!r}", lambda name=name: done(mm).program(name)
    for rows, columns in ((1, 1), (2, 1), (1, 2), (1, 4)):
        yield (
            f"threads of {rows} x {columns}",
            lambda rows=rows, columns=columns: bind(MatMul.tile(64, 64).to(Block).tile(rows, columns).to(Thread).split(1).done()),
        )
    for size_ in (256, 1024, 65536, 2**24, 2**31 - 1):
        big = MatMul(size_, 64, 64)(GL, GL, GL)(Kernel)
        chain = MatMul.tile(size_, 64).to(Block).load(A, SH).tile(-(-size_ // 8), 64).to(Thread).split(1)
        yield f"shared memory for {size_} x 64", lambda big=big, chain=chain: chain.tile(1, 1).done()(big).program("sm_50").ir
    yield "scratch", lambda: bind(block.tile(4, 4).to(Thread).done(MicroKernel("k", "scratch[0] = 1;", scratch_bytes=2**20)))
    for text in ("MatMul(4,4,16)(GL,GL,GL)(Block)", "MatMul(4,4,8)(GL,GL,GL)(Thread)", "Move(4,4)(GL,GL)(Thread)", "nonsense"):
        yield (
            f"micro-kernel for {text}",
            lambda text=text: bind(block.tile(4, 4).to(Thread).done(MicroKernel("k", ";", performs_spec=text))),
        )
    for name in ("no_such_file.cu", "tests/no.cu", "/dev/no/x.cuh", ".cu", "a\0b.cu", "x" * 5000 + ".cu"):
        yield f"micro-kernel file {name[:20]!r}", lambda name=name: MatMul.done(name)
    yield "a micro-kernel of a size known at run time", lambda: bind(MatMul.done("c[0] = 0;")(MatMul(sym("M"), 8, 8)(GL, GL, GL)(Kernel)))


def of_chains():
    verbs = {
        "tile": lambda chain: chain.tile(8, 8),
        "split": lambda chain: chain.split(8),
        "load": lambda chain: chain.load(A, SH),
        "epilog": lambda chain: chain.epilog(RF),
        "done": lambda chain: chain.done(),
        "then": lambda chain: chain.then(block),
        "then step": lambda chain: chain.then(Tile((8, 8))),
    }
    for verb, go in verbs.items():
        yield f"{verb} on a finished chain", lambda go=go: go(done)
        yield f"{verb} on a finished Move", lambda go=go: go(Move.tile(8, 8).done())
        yield f"{verb} on a finished chain, bound", lambda go=go: go(done(mm))
    for verb, chain in CHAINS.items():
        for name, refinement in REFINEMENTS.items():
            if name not in REFINES[verb]:
                yield f"{name} on {verb}", lambda chain=chain, refinement=refinement: chain.refine(refinement)
                yield f"{name} on the step {verb}", lambda chain=chain, refinement=refinement: chain.steps[-1].refined(refinement)
    for action in ("result", "trace", "program", "cuda", "compile"):
        yield (
            f"{action} of an unbound strategy",
            lambda action=action: getattr(done, action) if action == "result" else getattr(done, action)(),
        )
    for name, chain in CHAINS.items():
        if name != "done":
            yield f"code for open leaves behind {name}", lambda chain=chain: chain(mm).cuda()
            yield f"compile open leaves behind {name}", lambda chain=chain: chain(mm).compile().ir
    yield "code for no steps", lambda: Strategy()(mm).cuda()
    yield "refine nothing", lambda: Strategy().refine(Unroll())
    yield "done in the middle", lambda: Strategy((*done.steps, Tile((8, 8))))
    yield "done in the middle of a load", lambda: Load("A", SH, (*done.steps, Tile((8, 8))))
    yield "replaced by done", lambda: loaded.at(Tile).replace(Done())
    yield "no such step", lambda: block.at(Load)
    yield "no such operand", lambda: loaded.at(Load, B)
    yield "no second step", lambda: loaded.at(Load, A, 1)
    yield "blocks behind warps", lambda: chained((Block, Warp, Block))
    yield "bands before the last blocks", lambda: MatMul.tile(16, 16).to(Block).rasterize(group_m=2).tile(8, 8).to(Block)(mm).result
    yield "two blocks in a copy", lambda: finish(block.split(8).load(A, SH, Move.tile(4, 4).to(Block).tile(1, 1).done()))
    yield "layout without to", lambda: finish(block.tile(16, 16).layout(ColMajor))
    yield "swizzle without to", lambda: finish(block.tile(16, 16).swizzle(lambda uid: uid ^ 1))
    yield "open leaf in a copy", lambda: finish(block.split(8).load(A, SH, Move.tile(1, 1).to(Thread)))
    yield "open leaf in an init", lambda: finish(block.epilog(RF, init=Init.tile(4, 4).to(Thread)))
    yield "open leaf in a store", lambda: finish(block.epilog(RF, store=Move.tile(4, 4).to(Thread)))
    yield "code below the kernel", lambda: done(MatMul(64, 64, 8)(GL, GL, GL)(Block)).cuda()
    yield "no instruction", lambda: bind(block.done())
    yield "a buffer whose size is known at run time", lambda: block.load(A, SH)(MatMul(64, 64, sym("K"))(GL, GL, GL)(Kernel)).result
    yield (
        "an accumulator whose size is known at run time",
        lambda: MatMul.tile(m=8).to(Block).epilog(RF)(MatMul(64, sym("N"), 8)(GL, GL, GL)(Kernel)).result,
    )
    yield "tiles known at run time to threads", lambda: chained_symbolic()


def chained_symbolic():
    return MatMul.tile(m=64).to(Block).tile(8, 8).to(Thread)(MatMul(sym("M"), sym("N"), 8)(GL, GL, GL)(Kernel)).result


def of_tunables():
    other = Tunable("bm", 16, 64)
    yield "two tunables of one name", lambda: MatMul.tile(bm, other).tunables()
    yield "two tunables of one name, bound", lambda: MatMul.tile(bm, other).done()(mm).result
    yield "no legal combination", lambda: MatMul.tile(16, 16).to(Block).tile(Tunable("t", 3, 5, 7), 1)(mm).result
    yield "no tunable of this name", lambda: MatMul.tile(bm, 8).with_(bn=16)
    yield "a tunable that has its value", lambda: MatMul.tile(bm, 8).with_(bm=16).with_(bm=16)
    yield "Tunable without values", lambda: Tunable("t")
    for values in ((16, -1), (16, 1.5), (16, "8"), (16, True), (16, None), (2**31,), ((16, 32),)):
        yield f"Tunable{values}", lambda values=values: Tunable("t", *values)
    for size_ in (bm - 16, bm - 17, bm // 64, bm % 16, bm * 2**31, 8 - bm, bm // (bm - 16), bm % (bm - 16)):
        yield f"tile({size_})", lambda size_=size_: MatMul.tile(size_, 8).with_(bm=16).done()(mm).result
        yield f"Strided({size_})", lambda size_=size_: block.tile(Strided((size_, size_), (1, 1))).with_(bm=16)(mm).result
        yield f"split({size_})", lambda size_=size_: block.split(size_).with_(bm=16)(mm).result
    for size_ in (bm - 17, bm * 2**31, 8 - bm):
        yield f"pad({size_})", lambda size_=size_: loaded.pad(size_).with_(bm=16)(mm).result
    deep = bm
    for _ in range(32):
        deep = deep + 1
    yield "deep arithmetic", lambda: deep + 1


def of_specs():
    for sizes in itertools.product((0, 1, -8, 8), repeat=3):
        if min(sizes) < 1:
            yield f"MatMul{sizes}", lambda sizes=sizes: MatMul(*sizes)
    for count in (0, 1, 2, 4, 5):
        yield f"{count} memories", lambda count=count: MatMul(8, 8, 8)(*[GL] * count)
    for memories in itertools.product((GL, SH, RF), repeat=3):
        if set(memories) != {GL}:
            yield f"{memories} at the kernel", lambda memories=memories: MatMul(8, 8, 8)(*memories)(Kernel)
    for ld in range(1, 8):
        for name, order in itertools.product("ABC", (RowMajor, ColMajor)):
            yield f"{name} {order} ld={ld}", lambda ld=ld, name=name, order=order: MatMul(8, 8, 8, **{name: order(ld=ld)})
    for dtypes in ((), (float32,), (float32, float32, float32), (float32, "float"), ("f32", float32), ("float32", None)):
        yield f"dtype={dtypes}", lambda dtypes=dtypes: MatMul(8, 8, 8, dtype=dtypes)
    for name in ("float", "f32", "fp16", "half", "double", "int", "uint16", "float8", "Float32", "FLOAT32", "float32 "):
        yield f"dtype={name!r}", lambda name=name: MatMul(8, 8, 8, dtype=name)
    for size_ in (
        sym("M") - 1000,
        sym("M") * -1,
        Var("lane", 0, 31),
        Var("M", 0, 8),
        sym("M") - sym("N"),
        Const(0),
        Const(-1),
        Const(2**31),
    ):
        yield f"MatMul({size_}, 8, 8)", lambda size_=size_: MatMul(size_, 8, 8)
    two = (sym("M"), sym("M", multiple_of=8))
    yield "one symbol with two facts", lambda: bind(done(MatMul(*two, 8)(GL, GL, GL)(Kernel)))
    for name in ("", "1", "M N", "M-1", "for", "int", "float", "float4?", "\u00e9", "class", "None", "a.b", "__global__ x", 'M"'):
        yield f"sym({name!r})", lambda name=name: sym(name)
    yield "a spec whose operands do not fit", lambda: MatMul.on(Block, mm.A, mm.B, tile_views.C)
    yield "a spec whose operands do not fit in k", lambda: MatMul.on(Block, mm.A, mm.A, mm.C)
    yield "a spec with a vector", lambda: MatMul.on(Block, mm.A, mm.B, View(mm.C.tensor, mm.C.dims[:1]))
    for value in (2**24 + 1, -(2**24) - 1):
        yield f"Init float32 {value}", lambda value=value: Init(8, 8, value=value)
    for dtype, value in ((float16, 2049), (bfloat16, 257), (int8, 128), (int8, -129), (int32, 2**31)):
        yield f"Init {dtype} {value}", lambda dtype=dtype, value=value: Init(8, 8, dtype=dtype, value=value)


def of_arrays():
    kernel = done(mm).compile("sm_80")
    a, b = np.zeros((64, 16), np.float32), np.zeros((16, 64), np.float32)
    arrays = {
        "none": (), "one": (a,), "three": (a, b, a), "swapped": (b, a), "flat": (a.ravel(), b), "deep": (a[None], b), "short": (a[:-1], b),
        "float64": (a.astype(np.float64), b), "float16": (a, b.astype(np.float16)), "int32": (a, b.astype(np.int32)), "complex": (a.astype(complex), b),
        "object": (a.astype(object), b), "bool": (a > 0, b), "empty": (a[:0], b), "0-d": (np.array(1.0, np.float32), b),
    }  # fmt: skip
    for name, given in arrays.items():
        yield f"kernel({name})", lambda given=given: kernel(*given)
    outs = {"shape": np.zeros((64, 63), np.float32), "dtype": np.zeros((64, 64)), "flat": np.zeros(64 * 64, np.float32), "a": a}
    for name, out in outs.items():
        yield f"kernel(out={name})", lambda out=out: kernel(a, b, out=out)
    yield "kernel with a size it has not", lambda: kernel(a, b, M=64)
    M, K = sym("M", multiple_of=8), sym("K")
    sized = done(MatMul(M, 64, K, A=ColMajor(ld=sym("lda")))(GL, GL, GL)(Kernel)).compile("sm_80")
    for name, sizes in {
        "nothing": {}, "text": {"lda": "64"}, "None": {"lda": None}, "float": {"lda": 64.0}, "bool": {"lda": True}, "zero": {"lda": 0},
        "negative": {"lda": -64}, "huge": {"lda": 2**40}, "short": {"lda": 63}, "other": {"ldb": 64}, "wrong M": {"lda": 64, "M": 56}, "array": {"lda": a},
    }.items():  # fmt: skip
        yield f"kernel({name})", lambda sizes=sizes: sized(a, b, **sizes)
    yield "a size that breaks its facts", lambda: sized(a[:63], b, lda=64)
    yield "sizes that differ", lambda: sized(a, b[:15], lda=64)
    adds = done(MatMul(64, 64, 16, accumulate=True)(GL, GL, GL)(Kernel)).compile("sm_80")
    yield "a kernel that adds, without its output", lambda: adds(a, b)
    for key in ("cu", "", None, 1, "sass?"):
        yield f"asm[{key!r}]", lambda key=key: kernel.asm[key]


def of_no_arrays():
    """Values that are not arrays, or are not writable."""
    kernel = done(mm).compile("sm_80")
    a, b = np.zeros((64, 16), np.float32), np.zeros((16, 64), np.float32)
    for name, given in {
        "scalar": (np.float32(1), b),
        "text": ("a", b),
        "list": (a.tolist(), b),
        "None": (None, b),
        "spec": (mm, mm),
    }.items():
        yield f"kernel({name})", lambda given=given: kernel(*given)
    for name, out in {"list": [1], "text": "c", "read-only": np.broadcast_to(np.float32(0), (64, 64))}.items():
        yield f"kernel(out={name})", lambda out=out: kernel(a, b, out=out)


GROUPS = (of_levels, of_divisors, of_operands, of_swizzles, of_targets, of_chains, of_tunables, of_specs, of_arrays)


def orders():
    """All wrong combinations."""
    for group in GROUPS:
        yield from group()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_wrong_together(group):
    failures = [attempt(action, what) for what, action in group()]
    assert [one for one in failures if one] == []


def test_no_arrays():
    assert [one for one in (attempt(action, what) for what, action in of_no_arrays()) if one] == []


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position[0])
def test_right_value(position):
    """The control: a right value is accepted in its position, so the refusals above have no other cause."""
    _, action, right, _ = position
    for name in right:
        action(VALUES[name])


LEGAL = (
    ("NumPy sizes of a spec", lambda: MatMul(np.int64(8), np.uint8(8), np.int32(8)), lambda: MatMul(8, 8, 8)),
    ("a 0-d array as a size", lambda: MatMul(np.array(8), 8, 8), lambda: MatMul(8, 8, 8)),
    ("NumPy sizes of a tile", lambda: MatMul.tile(np.int64(8), n=np.uint16(4)), lambda: MatMul.tile(8, n=4)),
    ("NumPy sizes of a step", lambda: Tile((np.int64(8), 4)), lambda: Tile((8, 4))),
    ("NumPy sizes of a split", lambda: MatMul.split(np.int64(8)), lambda: MatMul.split(8)),
    ("NumPy sizes of chunks", lambda: Strided((np.int64(4), np.int64(8))), lambda: Strided((4, 8))),
    ("NumPy elements of a pad", lambda: loaded.pad(np.int16(4)), lambda: loaded.pad(4)),
    ("NumPy bytes of an alignment", lambda: loaded.align(np.int64(32)), lambda: loaded.align(32)),
    ("NumPy values of a tunable", lambda: Tunable("t", np.int64(8), 16), lambda: Tunable("t", 8, 16)),
    ("a NumPy value chosen", lambda: MatMul.tile(bm, 8).with_(bm=np.int64(16)), lambda: MatMul.tile(16, 8)),
    ("NumPy in arithmetic", lambda: bm // np.int64(2), lambda: bm // 2),
    ("NumPy bytes of a vector", lambda: vector(np.int64(4)), lambda: vector(4)),
    ("a NumPy leading dimension", lambda: RowMajor(ld=np.int64(8)), lambda: RowMajor(ld=8)),
    ("types by name", lambda: MatMul(8, 8, 8, dtype="float16", c_dtype="float32"), lambda: MatMul(8, 8, 8, dtype=float16, c_dtype=float32)),
    ("operands by name", lambda: block.load("A", SH), lambda: block.load(A, SH)),
    ("sizes by dimension", lambda: MatMul.tile(8, 4)(mm).result, lambda: MatMul.tile(n=4, m=8)(mm).result),
    ("a tile larger than the problem", lambda: finish(MatMul.tile(256, 256).to(Block).tile(32, 32)) is not None, lambda: True),
    ("a split larger than K", lambda: finish(block.split(1024).tile(32, 32)) is not None, lambda: True),
    ("a swizzle by its text", lambda: block.swizzle("uid ^ 1"), lambda: block.swizzle(lambda uid: uid ^ 1)),
    ("a swizzle with spaces", lambda: block.swizzle("  uid ^ 1 "), lambda: block.swizzle(lambda uid: uid ^ 1)),
    ("the swizzle that changes nothing", lambda: finish(block.swizzle("uid")).body, lambda: finish(block).body),
    ("no padding", lambda: finish(block.split(8).load(A, SH).pad(0)).body, lambda: finish(block.split(8).load(A, SH)).body),
    ("the second of a kind in its place", lambda: loaded.pad(4).at(Load).refine(Pad(8)), lambda: loaded.pad(8)),
    ("a tunable of one value", lambda: MatMul.tile(Tunable("t", 8, 8, 8), 8), lambda: MatMul.tile(Tunable("t", 8), 8)),
    ("chunks from tunables", lambda: block.tile(Strided((bm // 8, bm // 4), (1, 2))).with_(bm=32), lambda: block.tile(Strided((4, 8), (1, 2)))),
    ("an accumulate of 1", lambda: MatMul(8, 8, 8, accumulate=1), lambda: MatMul(8, 8, 8, accumulate=True)),
    ("the least int8", lambda: Init(8, 8, dtype=int8, value=-128)(GL)(Kernel).value, lambda: -128),
    ("the most negative index", lambda: loaded.at(Load, A, -1), lambda: loaded.at(Load, A, 0)),
    ("None for no strategy", lambda: block.load(A, SH, None), lambda: block.load(A, SH)),
    ("a leading dimension that just fits", lambda: MatMul(8, 8, 8, A=ColMajor(ld=8))(GL, GL, GL)(Kernel).notation, lambda: "MatMul(8,8,8)(GL,GL,GL)(Kernel)"),
)  # fmt: skip


@pytest.mark.parametrize("case", LEGAL, ids=lambda case: case[0])
def test_legal_though_it_looks_wrong(case):
    _, unusual, other = case
    assert unusual() == other()
    assert repr(unusual()) == repr(other())


def test_arrays_with_the_strides_of_the_spec():
    """However they were created; strides along a dimension of one element do not matter."""
    kernel = done(mm).compile("sm_80")
    a, b = np.arange(64 * 16, dtype=np.float32).reshape(64, 16) % 5, np.arange(16 * 64, dtype=np.float32).reshape(16, 64) % 3
    expected, a, b = a @ b, np.asfortranarray(a), np.asfortranarray(b)
    for first in (a, a.T.copy().T, a[::-1][::-1], np.concatenate([a, a], 1)[:, :16].copy(order="F")):
        np.testing.assert_array_equal(kernel(first, b), expected)
    for first in (a.copy(order="C"), np.stack([a, a], 2)[:, :, 0], a[::-1], np.repeat(a, 2, axis=0)[::2]):
        with pytest.raises(LaunchError, match="A has other strides"):
            kernel(first, b)
    out = np.zeros((128, 64), np.float32, order="F")
    with pytest.raises(LaunchError, match="out has other strides"):
        kernel(a, b, out=out[::2])
    assert not out.any()
    wide = MatMul(64, 64, 16, C=ColMajor(ld=128))(GL, GL, GL)(Kernel)
    done(wide).compile("sm_80")(a, b, out=out[:64])
    np.testing.assert_array_equal(out[:64], expected)
    assert not out[64:].any()


# ---------------------------------------------------------------------------------------------- random chains


def drawn(generator):
    """A chain with arguments of all kinds, most of them right: the steps as text, and the call."""
    right = {
        "size": (1, 2, 4, 8, 8, 16, 16, 32, 3, bm // 2),
        "level": (Block, Warp, Warp, Thread, Thread, Lane, QuadPair),
        "memory": (SH, SH, SH, RF, GL),
        "operand": (A, A, B, B, "src", C),
        "move": (None, None, None, Move.tile(1, 1).to(Thread).done(), Move.tile(4, 1).to(Thread).done(), Move.tile(8, 8)),
        "order": (RowMajor, ColMajor),
        "swizzle": ("uid", "uid ^ 1", lambda uid: uid ^ 3),
        "executable": (None, "c[0] = 0;", FFMA),
        "step": (Tile((8, 8)), block, done),
    }
    verbs = {
        "tile": ("size", "size"), "split": ("size",), "load": ("operand", "memory", "move"), "epilog": ("memory", "move", "move"),
        "done": ("executable",), "then": ("step",), "to": ("level",), "layout": ("order",), "swizzle": ("swizzle",), "unroll": (), "sync": (),
        "no_sync": (), "pad": ("size",), "align": ("size",), "storage_layout": ("order",), "reuse_buffer": (), "unrefined": (),
    }  # fmt: skip
    often = ("tile", "to", "tile", "to", "split", "load", "epilog")
    chain = generator.choice((MatMul, block, block.split(8), loaded, block.epilog(RF), block.epilog(RF).split(4), loaded.load(B, SH)))
    text = repr(chain)
    for position in range(generator.randint(1, 6)):
        legal = [verb for verb in verbs if hasattr(chain, verb)]
        verb = generator.choice([one for one in often if one in legal] if generator.random() < 0.6 else legal)
        arguments = [
            generator.choice(list(VALUES.values())) if generator.random() < 0.05 else generator.choice(right[kind]) for kind in verbs[verb]
        ]
        text += f".{verb}({', '.join(map(repr, arguments))})"
        yield text, lambda chain=chain, verb=verb, arguments=arguments: getattr(chain, verb)(*arguments)
        try:
            chain = getattr(chain, verb)(*arguments)
        except FireironError:
            return
        if position and not chain.tunables():
            yield f"{text}, bound", lambda chain=chain: chain(mm).result
    for end in (lambda chain: chain.tile(1, 1).split(1).done(), lambda chain: chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done()):
        yield f"{text}, compiled", lambda end=end: (chain if chain.finished else end(chain))(mm).program("sm_80").cuda


@pytest.mark.parametrize("part", range(4))
def test_drawn(part):
    """Every random chain is accepted, or refused by the project's own error, at once."""
    failures = []
    for seed in range(part, 1000 * FUZZ, 4):
        for text, action in drawn(random.Random(seed)):
            wrong_ = attempt(action, f"seed {seed}: {text}")
            if wrong_ and not wrong_.endswith("was accepted"):
                failures.append(wrong_)
    assert failures == []


def test_there_are_enough():
    assert sum(len(wrong(position)) for position in POSITIONS) + sum(1 for _ in orders()) >= 2000


NO_ARGUMENTS = {
    "a tensor without a memory": lambda: Tensor("A", (8, 8), float32, 8, Layout(8)),
    "no option of schedule": lambda: block(mm).derive("sm_80", k=1),
    "stored classes that are a type": lambda: block.to_json(classes=int),
    "stored classes without dimensions": lambda: Strategy.from_json("{}", programs=np.array(8)),
    "metadata that is no array": lambda: decompress_2_4(np.zeros((2, 2)), {}),
    "metadata without dimensions": lambda: decompress_2_4(np.zeros(()), np.zeros((), np.uint8)),
    "the derivative of no text": lambda: derivative(Plain(), "x"),
    "a formula without a hash": lambda: elementwise(slice(8)),
    "a graph without dimensions": lambda: KernelGraph(np.array(8), {}, ()),
    "a copy that is too large": lambda: copied(np.lib.stride_tricks.as_strided(np.zeros((8, 4)), (2**40, 2), (0, 0))),
}
"""Calls that raised errors of Python in a campaign."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("call", NO_ARGUMENTS)
def test_answers_are_those_of_the_project(call):
    with pytest.raises(FireironError):
        NO_ARGUMENTS[call]()
