"""Programs that together have all public names: each function, reduction and combination of formulas, each instruction, and each form of
the library, one after another. Sizes are random.

Other generators draw names at random, so that rare ones may never occur. Here seed `n` has name `n`, modulo the number of names.
"""

import functools
import inspect
import random

import attrs
import instruction_generator
import test_bulk_add
import test_library_sizes as library

from fireiron import *
from fireiron.errors import FireironError
from fireiron.gpu.arguments import check_facts
from fireiron.measure.data import all_sizes
from fireiron.measure.simulated import data_for, first_value, first_wrong, simulated
from fireiron.spec import sizes_of
from fireiron.specs.formula import FUNCTIONS, REDUCTIONS

TYPES = (float32, float16, bfloat16, float64)

CALLS = {
    "bits": "bits(X[m,n]) % 7", "from_bits": "from_bits(bits(X[m,n]))", "int32": "int32(X[m,n] * 3)", "philox": "philox(m, n) % 5",
    "uniform": "uniform(m, n)", "mulhi": "mulhi(m * 65537, n * 65537)", "e2m1": "e2m1(int32(m))", "e8m0": "e8m0(int32(n) % 3 + 126)",
    "log": "log(abs(X[m,n]) + 1)", "log1p": "log1p(abs(X[m,n]))", "log2": "log2(abs(X[m,n]) + 1)", "sqrt": "sqrt(abs(X[m,n]))", "rsqrt": "rsqrt(abs(X[m,n]) + 1)",
}  # fmt: skip
"""Calls of functions whose arguments are not any numbers."""


@attrs.define(eq=False)
class DrawnName:
    """A program with a name, and the values of its symbols."""

    program: object
    features: frozenset
    symbols: dict


def call(name):
    """A formula that calls a function."""
    arguments = ("X[m,n]", "Z[m,n]", "X[m,n] * Z[m,n]")[: FUNCTIONS[name]]
    return CALLS.get(name) or f"{name}({'X[m,n] > 0, Z[m,n], X[m,n]' if name == 'where' else ', '.join(arguments)})"


def _of_function(name, rng, symbols):
    sizes = _sizes(rng, symbols)
    operands = {"X": "m n", "Z": "m n", "Y": "m n"}
    definition = Fused(name="call", dims="m n", operands=operands, body={"a": f"Y[m,n] = {call(name)} + X[m,n] * Z[m,n]"})
    strategy = definition.tile(m=8, n=32).to(Block).tile(m=1, n=rng.choice((1, 2))).to(Thread).done()
    return strategy(definition(**sizes, dtype=rng.choice(TYPES[:3]))).program(rng.choice(("sm_70", "sm_80", "sm_90a")))


def _of_combination(sign, rng, symbols):
    """A temporary that each iteration of a loop combines with a reduction."""
    sizes = _sizes(rng, symbols)
    reduction = next(name for name, own in REDUCTIONS.items() if own == sign)
    first = {"sum": "0", "prod": "1", "max": "-inf", "min": "inf"}[reduction]
    definition = Fused(
        name="combine", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"first": f"p[m] = {first}"},
        body={"a": f"p[m] {sign} {reduction}(n, 1 + X[m,n] * 0.01)"}, final={"last": "y[m] = p[m]"},
    )  # fmt: skip
    strategy = definition.tile(m=8).to(Block).split(n=rng.choice((8, 16))).tile(m=1).to(Thread).done()
    return strategy(definition(**sizes, dtype=float32)).program("sm_80")


def _of_reduction(name, rng, symbols):
    sizes = _sizes(rng, symbols)
    definition = Fused(name="reduce", dims="m n", operands={"X": "m n", "y": "m"}, body={"a": f"y[m] = {name}(n, X[m,n])"})
    strategy = definition.tile(m=32).to(Block).tile(m=1).to(Thread).done()
    return strategy(definition(**sizes, dtype=rng.choice(TYPES))).program("sm_80")


def _sizes(rng, symbols):
    sizes = {}
    for dim in "mn":
        size = rng.choice((1, 7, 31, 32, 33, 65))
        if rng.random() < 0.25:
            symbols[dim.upper()] = size
        sizes[dim] = sym(dim.upper(), high=1 << 12) if dim.upper() in symbols else size
    return sizes


COPY = Move.tile(16, 16).to(Block).tile(1, 1).to(Thread).done()
WGMMA_CHAIN = MatMul.epilog(RF, float32, Init.done(), Move.tile(64, 64).to(Warpgroup).done()).split(32).pipeline(2).warp_specialize(32)
WGMMA_CHAIN = WGMMA_CHAIN.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
THREADS = MatMul.tile(4, 4).to(Thread).split(1).tile(1, 1).done()

STORE = Move.tile(64, 64).to(Warpgroup).done()
AT_END = MatMul.epilog(RF, float32, Init.done(), STORE).split(32).mma_in_flight(1, at_end=True).pipeline(2).warp_specialize(32)
AT_END = AT_END.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()

TWO_PRODUCTS = Fused(
    name="two_products", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "C": "m k", "E": "k n", "D": "m n"},
    init={"zu": "u[m,n] = 0", "zv": "v[m,n] = 0"},
    body={"u": "u[m,n] += sum(k, A[m,k] * B[k,n])", "v": "v[m,n] += sum(k, C[m,k] * E[k,n])"},
    final={"add": "u[m,n] = u[m,n] + v[m,n]", "store": "D[m,n] = u[m,n]"},
)  # fmt: skip

OPTIONS = {
    "at_end": lambda tile: tile.then(AT_END),
    "raster": lambda tile: tile.rasterize(group_m=2, raster=1).then(WGMMA_CHAIN),
    "no_wait": lambda tile: tile.programmatic_launch(no_wait="B").then(WGMMA_CHAIN),
    "cluster": lambda tile: tile.cluster(1, 2).then(WGMMA_CHAIN),
    "dynamic tiles": lambda tile: tile.persistent(2, dynamic=True).then(WGMMA_CHAIN),
    "repack move": lambda tile: MatMul.repack(A, COPY).then(tile.then(THREADS)),
    "fuse_epilogue": lambda tile: tile.then(WGMMA_CHAIN),
    "any strides": lambda tile: tile.then(THREADS),
}
"""Options of tiles and of launches that other generators draw rarely."""


def _of_option(name, rng, symbols):
    sizes = [64 * rng.randint(1, 3), 64 * rng.randint(2, 4), 32 * rng.randint(1, 4)]
    types = {} if name in ("repack move", "any strides") else {"dtype": float16, "c_dtype": float32, "B": ColMajor, "C": RowMajor}
    order = {"A": Strides(m=ANY, k=ANY)} if name == "any strides" else {"A": RowMajor}
    bound = OPTIONS[name](MatMul.tile(64, 64).to(Block))(MatMul(*sizes, **types, **order)(GL, GL, GL)(Kernel))
    bound = bound.fuse_epilogue("relu(acc) * 2") if name == "fuse_epilogue" else bound
    return bound.program("sm_90a")


def _of_shared_stages(name, rng, symbols):
    """Two products per iteration whose loads share the stages of one ring."""
    chain = TWO_PRODUCTS.tile(m=64, n=64).to(Block).split(k=32).pipeline(rng.choice((2, 3))).warp_specialize()
    for operand in "ABCE":
        chain = chain.load(operand, SH, Move.done())
        chain = chain.share_stages({"C": "A", "E": "B"}[operand]) if operand in "CE" else chain
    wgmma = MatMul.split(16).unroll().done()
    stored = Move.tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    strategy = chain.tile(m=64).to(Warpgroup).step("u", wgmma).step("v", wgmma).step("store", stored).done()
    sizes = {"m": 64 * rng.choice((1, 2)), "n": 64, "k": 32 * rng.randint(4, 6)}
    return strategy(TWO_PRODUCTS(**sizes, **dict.fromkeys("ABCED", RowMajor), dtype=float16)).program("sm_90a")


def _of_kind(name, rng, symbols):
    """A new kind: lanes that receive from later ones, or a product with a scalar factor."""
    symbols.clear()
    dtype = rng.choice((float32, int32))
    if name == "lanes":
        width, rows, columns = rng.choice((8, 16, 32)), 32 * rng.randint(1, 3), rng.randint(1, 4)
        later = Kind("Later", "dst[t,v] = src[t + {delta} in {width},v]", (Parameter("delta"), Parameter("width"))).starter
        chain = later.tile(64, columns).to(Block).tile(32, columns).to(Warp).load("src", RF).done()
        return chain(later(rng.randint(1, width - 1), width, rows, columns, dtype=dtype)(GL, GL)(Kernel)).program("sm_80")
    scaled = Kind("Scaled", "C[m,n] += sum(k, alpha * A[m,k] * B[k,n])").starter
    sizes = [rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 20)]
    chain = scaled.tile(16, 16).to(Block).tile(2, 2).to(Thread).split(rng.choice((1, 2, 4))).unroll().tile(1, 1).unroll().split(1).done()
    return chain(scaled(*sizes, dtype=dtype)(VAL, GL, GL, GL)(Kernel)).program("sm_80")


def _of_bulk_additions(name, rng, symbols):
    return test_bulk_add.FORMS[name]().program("sm_90a")


def _of_instruction(form, rng, symbols):
    return instruction_generator.with_form(form, rng, symbols)


def _of_library(name, rng, symbols):
    """A form at sizes near its tiles; some of them known at run time."""
    step = rng.choice((1, 8, 8, 16))
    sizes = {}
    for dim in library.dimensions(name):
        near = rng.choice(library.near(name))
        size = library.size(name, dim, near, step)
        if near == "symbolic":
            symbols[size.name] = -(-library.size(name, dim, rng.choice(library.NEAR[:4]), step) // step) * step
        sizes[dim] = size
    return library.program(name, sizes)


def for_one_gpu(name):
    """Whether a form is for one GPU; the subject `nodes` draws the others."""
    return "gpus" not in inspect.signature(library.library(name.partition(":")[0]).spec).parameters


@functools.cache
def names():
    """All names in order, each with its drawing function: those of different kinds alternate."""
    kinds = (
        [(_of_function, name) for name in FUNCTIONS] + [(_of_combination, sign) for sign in REDUCTIONS.values()]
        + [(_of_reduction, name) for name in REDUCTIONS] + [(_of_option, name) for name in OPTIONS] + [(_of_shared_stages, "two products")]
        + [(_of_kind, name) for name in ("lanes", "scaled")] + [(_of_bulk_additions, name) for name in test_bulk_add.FORMS],
        [(_of_instruction, form) for form in instruction_generator.ALL],
        [(_of_library, name) for name in library.FORMS if for_one_gpu(name)],
    )  # fmt: skip
    shuffled = [random.Random(17).sample(kind, len(kind)) for kind in kinds]
    places = [((number + 1) / (len(kind) + 1), pair) for kind in shuffled for number, pair in enumerate(kind)]
    return tuple(pair for _, pair in sorted(places, key=lambda one: one[0]))


def supported(program, symbols):
    """The sizes that a program has: a form may ignore others. Raises: LaunchError if one of its kernels does not support them."""
    own = {one.name: symbols[one.name] for one in sizes_of(program.spec)}
    for launch in program.launches:
        check_facts(launch.program.lowered, all_sizes(program.spec, own))
    return own


def draw(seed):
    """A program that lowers, and the number of refused ones before it."""
    for refused in range(300):
        function, name = names()[(seed + refused // 60) % len(names())]  # the next name if all draws of one are refused
        rng, symbols = random.Random(f"name {seed}/{refused}"), {}
        try:
            program = function(name, rng, symbols)
            symbols = supported(program, symbols)
        except FireironError as error:
            draw.last = error
            continue
        word = name if isinstance(name, str) else " ".join(one.name for one in (name if isinstance(name, tuple) else (name,)))
        return DrawnName(program, frozenset({f"{function.__name__.removeprefix('_of_')} {word}"}), symbols), refused
    raise draw.last


def objection(drawn, seed):
    """An oracle's objection to a program; empty if all is well."""
    program = drawn.program
    try:
        _ = [launch.program.ir for launch in program.launches]  # with all checks
    except FireironError as error:
        return f"an alarm: {error}"
    sizes = all_sizes(program.spec, drawn.symbols)
    arrays, judge = data_for(program, sizes, seed)
    wrong = simulated(program, sizes, arrays, judge, seconds=20)
    return "" if wrong is None else str(wrong)


def wrong_of(program, sizes, arrays, judge, outputs):
    """An objection to the outputs of a launch on arrays of `data_for`."""
    wrong = first_wrong(program.spec, outputs, arrays, first_value(program.spec, sizes), judge)
    return "" if wrong is None else str(wrong["message"])


def program_to_paste(drawn):
    return f"\nfrom fireiron import *\nprogram = {drawn.program.strategy!r}.program({str(drawn.program.architecture)!r})\nsizes = {drawn.symbols}"
