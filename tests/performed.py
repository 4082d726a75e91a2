"""Specs that executables perform, at least one for each: used by contract tests, and as goals of random strategies."""

import functools
import itertools

import attrs
import making

import fireiron
from fireiron import *
from fireiron import executable
from fireiron.ir.register_ownership import Ownership
from fireiron.ir.smem_layouts import swizzle_of
from fireiron.lower.walk import grow_tree
from fireiron.values.expr import as_expr
from fireiron.values.indirect import DimIndex
from fireiron.values.layout import Layout
from fireiron.values.machine import FRAGMENTS
from fireiron.values.tensor import Dim, Fixed, Mode, Through, whole_view
from fireiron.values.units import index_in

SM_90A = next(one for one in fireiron.ARCHITECTURES if one.name == "sm_90a")
"""The target with all instructions."""


def context_of(spec):
    return grow_tree(spec, (), fireiron.ARCHITECTURES[-1], INSTRUCTIONS).context


DTYPES = (float32, float64, float16, bfloat16, int32, int8)
EIGHT_BITS = (float8_e4m3, float8_e5m2)


def candidates():
    """Specs of one thread that an instruction may perform."""
    for first, result in itertools.product(DTYPES, repeat=2):
        for sizes in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 1, 4), (4, 1, 1)):
            yield MatMul(*sizes, dtype=first, c_dtype=result)(RF, RF, RF)(Thread)
    for dtype, sizes in itertools.product(DTYPES, ((1, 1), (2, 1), (1, 4), (4, 1))):
        yield Move(*sizes, dtype=dtype)(GL, RF)(Thread)
        yield Init(*sizes, dtype=dtype)(RF)(Thread)
        yield Move(*sizes, dtype=dtype)(GL, SH)(Thread)
        if hasattr(fireiron, "BinaryPointwise"):
            yield fireiron.BinaryPointwise("+", *sizes, dtype=dtype)(RF, RF, RF)(Thread)
        yield Reduction(*sizes, 3, dtype=dtype)(RF, RF)(Thread)
        yield AtomicAdd(*sizes, dtype=dtype)(RF, GL)(Thread)
    for shuffle in (fireiron.Shfl, fireiron.ShflIdx, fireiron.ShflUp, fireiron.ShflDown):
        yield shuffle(1, 32, 1)(RF, RF)(Warp)
    yield Kind("Scaled", "C[m,n] += sum(k, alpha * A[m,k] * B[k,n])").starter(1, 1, 1)(fireiron.VAL, RF, RF, RF)(Thread)


def products_of_lanes():
    """GEMM of several lanes: the tiles and types of tensor cores, and others."""
    pairs = [(one, one) for one in (*DTYPES, tf32, *EIGHT_BITS)] + list(itertools.permutations(EIGHT_BITS))
    results = (float32, float16, float64, int32)
    shapes = [(16, 8, k) for k in (4, 8, 16, 32)] + [(8, 8, 4), (8, 8, 16), (16, 16, 4)]
    orders = tuple(itertools.product((RowMajor, ColMajor), repeat=2))
    for sizes, pair, result, (a, b) in itertools.product(shapes, pairs, results, orders):
        for level in (Warp, QuadPair) if sizes == (8, 8, 4) else (Warp,):
            yield MatMul(*sizes, dtype=pair, c_dtype=result, A=a, B=b)(RF, RF, RF)(level)
    for memory in FRAGMENTS:
        yield MatMul(*memory.fragment, dtype=float16, c_dtype=float32)(memory, memory, memory)(Warp)


def products_of_warpgroups():
    """GEMM of 128 threads, with operands in shared memory stored as the instruction requires."""
    kinds = {float16: 16, bfloat16: 16, tf32: 8, float8_e4m3: 32, float8_e5m2: 32, int8: 32}
    pairs = [(one, one) for one in kinds] + list(itertools.permutations(EIGHT_BITS))
    for sizes, pair, result in itertools.product(((64, 8), (8, 64)), pairs, (float32, float16, int32)):
        yield product_of_warpgroup(*sizes, kinds[pair[0]], pair, result)
        yield product_of_warpgroup(*sizes, kinds[pair[0]], pair, result, in_registers="A" if sizes[0] == 64 else "B")


def product_of_warpgroup(m, n, k, pair, result, free=True, in_registers=""):
    """A GEMM whose operands are in shared memory, without a given layout if they are `free`, or one of them in registers."""
    shapes = {"A": ((m, k), pair[0], RowMajor), "B": ((k, n), pair[1], ColMajor)}
    factors = [
        Tensor(name, shape, dtype, RF if name == in_registers else SH, order, free=free and name != in_registers)
        for name, (shape, dtype, order) in shapes.items()
    ]
    return MatMul.on(Warpgroup, *map(whole_view, (*factors, Tensor("C", (m, n), result, RF, ColMajor))))


def copies_of_lanes():
    """Copies and initializations by several lanes, small tiles first."""
    tiles = ((8, 8), (8, 16), (16, 8), (8, 32), (32, 8), (16, 16))
    for sizes, src, dst in itertools.product(tiles, (RowMajor, ColMajor), (RowMajor, ColMajor)):
        for memories in ((SH, RF), (RF, SH), (RF, RF), (GL, RF)):
            yield Move(*sizes, dtype=float16, src=src, dst=dst)(*memories)(Warp)
    yield Init(16, 8)(RF)(Warp)
    yield AtomicAdd(16, 8)(RF, GL)(Warp)
    for memory in FRAGMENTS:
        m, n, _ = memory.fragment
        yield Move(m, n)(SH, memory)(Warp)
        yield Move(m, n, dtype=float16)(SH, memory)(Warp)
        yield Move(m, n)(memory, SH)(Warp)
        yield Init(m, n)(memory)(Warp)


def copies_of_engines():
    """Copies of whole tiles between global and shared memory, there in swizzled chunks, or as the instruction requires."""
    inside = Tensor("inside", (64, 64), float16, SH, RowMajor, swizzle=swizzle_of(128, 2))
    outside = whole_view(Tensor("outside", (64, 64), float16, GL, RowMajor))
    yield Move.on(Block, outside, whole_view(inside))
    for level in (Warpgroup, Warp):
        yield Move.on(level, whole_view(attrs.evolve(inside, swizzle=None, free=True)), outside)
    array = Tensor("words", (as_expr(64), as_expr(8)), int32, GL, RowMajor)
    words = Tensor("words", (as_expr(64), as_expr(64)), int32, GL, RowMajor, through=Through(array, (DimIndex(0), DimIndex(1, 8))))
    once = Tensor("once", (64, 64), int32, SH, Layout((64, (8, 8)), (8, (0, 1))))
    firsts = {1: Dim((Mode(8, 8),), None, (Fixed(8, 1, False, 0),))}
    yield Move.on(Block, *(whole_view(one).with_dims(firsts) for one in (words, once)))


def copies_of_warpgroups():
    """Accumulators to shared memory, rounded; and operands from there to registers."""
    for sizes, dst in itertools.product(((64, 16), (16, 64)), (RowMajor, ColMajor)):
        yield Move(*sizes, dst_dtype=float16, dst=dst)(RF, SH)(Warpgroup)
        yield Move(*sizes, dtype=float16, src=dst)(SH, RF)(Warpgroup)


@functools.cache
def all_candidates():
    stated = (spec for module in executable.MODULES for spec in getattr(module, "EXAMPLES", ()))
    return (
        *candidates(),
        *products_of_lanes(),
        *products_of_warpgroups(),
        *copies_of_lanes(),
        *copies_of_engines(),
        *copies_of_warpgroups(),
        *stated,
    )


@functools.cache
def own_spec(instruction):
    """A spec that an instruction performs."""
    context = functools.partial(own_context, instruction)
    worth = filter(instruction.may_perform, all_candidates())
    return next((spec for spec in worth if not instruction.mismatches(spec, SM_90A) and not instruction.fits(spec, context(spec))), None)


def own_context(instruction, spec):
    """The context in which it does: lanes own what a lane instruction requires, or an accumulator."""
    maps = instruction.maps() if hasattr(instruction, "maps") else {}
    operands = spec.operands.items() if spec.level.threads != 1 and maps else ()
    registers = {view.tensor.name: holding_of(maps[name], view, spec.level) for name, view in operands if view.memory == RF}
    return attrs.evolve(context_of(spec), architecture=SM_90A, owners=registers)


def holding_of(lane_map, view, level):
    """The ownership that a lane instruction requires for a view."""
    access = lane_map.access(view, index_in(level), True, None)
    return Ownership.of(making.execution(INSTRUCTIONS[0], Init.on(level, view), (access,), lane_maps=(lane_map,)), access, ())
