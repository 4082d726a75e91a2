"""Hand-made kernels with asynchronous engines: TMA copies of a tile from an array to shared memory or back, and wgmma."""

from typing import ClassVar

import attrs
import making
import numpy as np
from handmade import access, kernel_of, local, parameters

from fireiron import *
from fireiron import ir
from fireiron.executable.fma import Fma
from fireiron.executable.thread_move import MOVE
from fireiron.executable.tma import TMA_LOAD, TMA_STORE
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.ir.smem_layouts import swizzle_of
from fireiron.sim import simulate
from fireiron.values.expr import ZERO, Var, all_of, as_expr, equal, less
from fireiron.values.machine import as_architecture

THREADS = 32
STAGES = 2
LANE = Var("thread", 0, THREADS - 1)
PRODUCER = making.role("producer", THREADS, 32, (), elected=True)


def tile_of(rows, columns, span=128, dtype=float16, copies=STAGES, offset=1024):
    """A tile in shared memory with rows of `span` bytes, in adjacent chunks, swizzled."""
    width = span // dtype.bytes
    line = Layout(columns) if columns == width else Layout((width, columns // width), (1, rows * width))
    layout = Layout((rows, line.shape), (width, line.stride))
    buffer = local("tile", (rows, columns), SH, dtype, layout, copies=copies)
    storage = attrs.evolve(buffer.storage, swizzle=swizzle_of(span, dtype.bytes))
    return attrs.evolve(buffer, storage=storage, offset=offset)


def each_element(rows, columns, source, target, dtype, at, bounds, thread=LANE, stage=ZERO):
    """Threads copy the elements of a tile within `bounds`, one each at a time; `at` is the tile's origin in the array."""
    threads = thread.high + 1
    iteration = Var("element", 0, rows * columns // threads - 1)
    place = iteration * threads + thread
    here = place // columns, place % columns
    in_array = tuple(here[dim] + at[dim] for dim in (0, 1))
    tile = attrs.evolve(access("tile", here, write=target == "tile"), copy=stage)
    array = access(target if source == "tile" else source, in_array, write=source == "tile")
    guard = all_of([less(coordinate, bound) for coordinate, bound in zip(in_array, bounds, strict=True)])
    memories, accesses = ((SH, GL), (tile, array)) if source == "tile" else ((GL, SH), (array, tile))
    pieces = ((making.piece(0, 1, condition=guard),),) * 2
    move = making.execution(MOVE, Move(1, 1, dtype=dtype)(*memories)(Thread), accesses, guard=guard, pieces=pieces)
    return making.loop(iteration, as_expr(rows * columns // threads), (move,))


def tma_copy(instruction, spec, accesses, tensor_map, **fields):
    """A copy by TMA."""
    completion = TMA_LOADS if instruction is TMA_LOAD else TMA_STORES
    return making.execution(instruction, spec, accesses, mechanism=completion, tensor_map=tensor_map, **fields)


def loaded(tensor_map, array=(64, 64), tile=(64, 64), at=(0, 0), span=128, dtype=float16, layout=RowMajor, bounded=True, result=None):
    """A kernel that loads a tile of an array by TMA; threads copy the elements in bounds to `dst`, which is as large as the array or
    `result`.
    """
    rows, columns = tile
    result = result or array
    buffer = tile_of(rows, columns, span, dtype)
    load = tma_copy(
        TMA_LOAD,
        Move(rows, columns, dtype=dtype)(GL, SH)(Block),
        (access("src", at, tile, array if bounded else None), access("tile", (0, 0), tile, write=True)),
        tensor_map,
        ring="ring",
        fill_index=ZERO,
    )
    producer = (making.acquire("ring", ir.StageState.EMPTY, ZERO), making.release("ring", ir.StageState.FULL, ZERO), load)
    consumers = (
        making.acquire("ring", ir.StageState.FULL, ZERO),
        each_element(rows, columns, "tile", "dst", dtype, at, result),
        making.fence(ir.FenceKind.ASYNC_PROXY),
        making.barrier(ir.WARP_SCOPE),
        making.release("ring", ir.StageState.EMPTY, ZERO, active=equal(LANE, 0)),
    )
    roles = making.roles((making.role("consumers", 0, THREADS, consumers), attrs.evolve(PRODUCER, body=producer)))
    kernel = kernel_of(Move(*result, dtype=dtype, dst=RowMajor)(GL, GL), (roles,), buffer, threads=2 * THREADS, target="sm_90a")
    source, *others = kernel.buffers
    (source,) = [one for one in parameters(Move(*array, dtype=dtype, src=layout)(GL, GL)(Kernel)) if one.name == source.name]
    ring = making.ring("ring", STAGES, ("tile",), bytes=rows * columns * dtype.bytes, consumers=1)
    size = buffer.offset + buffer.bytes
    return attrs.evolve(kernel, buffers=(source, *others), workers=THREADS, rings=(ring,), shared_bytes=size)


def stored(tensor_map, array=(64, 64), tile=(64, 64), at=(0, 0), span=128, dtype=float16, layout=RowMajor):
    """A kernel whose threads copy a tile of `src` to shared memory, from which TMA stores it."""
    rows, columns = tile
    spec = Move(*array, dtype=dtype, src=RowMajor, dst=layout)(GL, GL)
    buffer = tile_of(rows, columns, span, dtype, copies=1)
    store = tma_copy(
        TMA_STORE,
        Move(rows, columns, dtype=dtype)(SH, GL)(Warp),
        (access("tile", (0, 0), tile), access("dst", at, tile, array, write=True)),
        tensor_map,
    )
    bulk = TMA_STORES
    body = (
        each_element(rows, columns, "src", "tile", dtype, at, array),
        making.fence(ir.FenceKind.ASYNC_PROXY),
        making.barrier(ir.WARP_SCOPE),
        store,
        making.commit(bulk),
        making.wait(0, mechanism=bulk),
    )
    kernel = kernel_of(spec, body, buffer, target="sm_90a")
    return attrs.evolve(kernel, shared_bytes=buffer.offset + buffer.bytes)


def numbered(shape, dtype=float16):
    """An array with distinct elements that are exactly representable."""
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype.to_numpy())


def copied(kernel, array, order=None):
    """The kernel's result for an array."""
    return simulate(kernel, {"src": array}, order=order).outputs["dst"]


ROWS, COLUMNS = 8, 64


def streamed(iterations=5, stages=2, warps=1, consumer=None, producer=None, **fields):
    """A kernel whose producer loads tiles of 8 rows, one per iteration, into the stages of a ring; consumers copy each to `dst`.

    `consumer` and `producer` edit the list of statements of their iteration; `fields` replace fields of the ring.
    """
    iteration, thread = Var("k", 0, iterations - 1), Var("thread", 0, THREADS * warps - 1)
    shape = iterations * ROWS, COLUMNS
    at, first = (iteration * ROWS, 0), equal(thread % THREADS, 0)
    buffer = tile_of(ROWS, COLUMNS, copies=stages)
    stage = iteration % stages
    tile = attrs.evolve(access("tile", (0, 0), (ROWS, COLUMNS), write=True), copy=stage)
    load = tma_copy(
        TMA_LOAD,
        Move(ROWS, COLUMNS, dtype=float16)(GL, SH)(Block),
        (access("src", at, (ROWS, COLUMNS)), tile),
        making.tensor_map("src_map", "src", (1, 0), (COLUMNS, ROWS), 128),
        ring="ring",
        fill_index=iteration,
    )
    copy = each_element(ROWS, COLUMNS, "tile", "dst", float16, at, shape, thread, stage)
    consumer_body = (
        making.acquire("ring", ir.StageState.FULL, iteration),
        copy,
        making.fence(ir.FenceKind.ASYNC_PROXY),
        making.barrier(ir.WARP_SCOPE),
        making.release("ring", ir.StageState.EMPTY, iteration, active=first),
    )
    fills = (making.acquire("ring", ir.StageState.EMPTY, iteration), making.release("ring", ir.StageState.FULL, iteration), load)
    extent = as_expr(iterations)
    roles = (
        making.role("consumers", 0, THREADS * warps, (making.loop(iteration, extent, (consumer or tuple)(consumer_body)),)),
        making.role("producer", THREADS * warps, 32, (making.loop(iteration, extent, (producer or tuple)(fills)),), elected=True),
    )
    spec = Move(*shape, dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)
    kernel = kernel_of(spec, (making.roles(roles),), buffer, threads=THREADS * (warps + 1), target="sm_90a")
    ring = attrs.evolve(making.ring("ring", stages, ("tile",), bytes=ROWS * COLUMNS * 2, consumers=warps), **fields)
    return attrs.evolve(kernel, workers=THREADS * warps, rings=(ring,), shared_bytes=buffer.offset + buffer.bytes)


# ---------------------------------------------------------------------------------------------- hand-made wgmma sequences


@attrs.frozen
class EngineFma(Fma):
    """A multiply-add of each thread that executes asynchronously like wgmma, but is smaller."""

    mechanism: ClassVar[ir.Mechanism] = WGMMA_GROUPS


ENGINE_FMA = EngineFma("ENGINE_FMA")
REGISTER = WGMMA_GROUPS


def kernel_of_steps(*steps):
    """A kernel of one warp from a list of steps: each is a statement, or an abbreviation of one; registers are a, b, c and d, one element
    each.

    x is in shared memory, one element per thread; `x<` is an asynchronous copy to it, with `sent` and `arrived`. `a=` loads a from the
    array, `=c` stores c, `c+=ab` is the asynchronous MMA, and `fence`, `commit` and `wait 0` are the statements of these names.
    """
    kernel = kernel_of(
        Move(32, 1, dtype=float32)(GL, GL), tuple(map(_step, steps)), *(local(name, (1, 1), RF) for name in "abcd"), local("x", (32, 1), SH)
    )
    return attrs.evolve(kernel, architecture=as_architecture("sm_90a"), shared_bytes=128)


def _step(step):
    pieces = lambda count: ((making.piece(0),),) * count
    register = lambda name, write=False: access(name, (LANE if name == "x" else 0, 0), write=write)
    if isinstance(step, ir.Stmt):
        return step
    if step == "fence":
        return making.fence(ir.FenceKind.WGMMA_REGISTERS)
    if step == "commit":
        return making.commit(REGISTER)
    if step.startswith("wait "):
        return making.wait(int(step[5:]), mechanism=REGISTER)
    if step == "proxy":
        return making.fence(ir.FenceKind.ASYNC_PROXY)
    if step == "barrier":
        return making.barrier(ir.WARP_SCOPE)
    if step == "x<":
        return making.async_copy(_step("x="))
    if step in ("sent", "arrived"):
        return making.commit() if step == "sent" else making.wait(0)
    if step.endswith("="):
        accesses = access("src", (LANE, 0)), register(step[0], True)
        return making.execution(
            MOVE, Move(1, 1, dtype=float32)(GL, SH if step[0] == "x" else RF)(Thread), accesses, pieces=pieces(2), origin=f"at {step}"
        )
    if step.startswith("="):
        accesses = register(step[1]), access("dst", (LANE, 0), write=True)
        return making.execution(
            MOVE, Move(1, 1, dtype=float32)(SH if step[1] == "x" else RF, GL)(Thread), accesses, pieces=pieces(2), origin=f"at {step}"
        )
    target, left, right = step[0], step[-2], step[-1]
    accesses = register(left), register(right), register(target, True)
    adds = as_expr(int("+" in step))
    spec = MatMul(1, 1, 1)(*(SH if name == "x" else RF for name in (left, right, target)))(Thread)
    return making.execution(ENGINE_FMA, spec, accesses, accumulate=adds, mechanism=REGISTER, pieces=pieces(3), origin=f"at {step}")


FENCE_BEFORE = "is accessed by ENGINE_FMA .* without a preceding wgmma.fence"
AFTER_FENCE = "is accessed by ENGINE_FMA .* after other statements, without wgmma.fence between"
PENDING = "is accessed by {} .* while an MMA that uses it is in flight"
ACCESSED, MULTIPLIED = PENDING.format("Move"), PENDING.format("ENGINE_FMA")

WGMMA_SEQUENCES = {
    "right": ("a=, b=, c=, fence, c+=ab, commit, wait 0, =c", None),
    "two groups in order": ("a=, b=, c=, fence, c+=ab, commit, c+=ab, commit, wait 0, =c", None),
    "an operand is read": ("a=, b=, c=, fence, c+=ab, =a, =b, commit, wait 0, =c", None),
    "another register is written": ("a=, b=, c=, fence, c+=ab, d=, commit, wait 0, =c", None),
    "another register is written after a fence": ("a=, b=, c=, fence, d=, c+=ab, commit, wait 0, =c", None),
    "written after the wait": ("a=, b=, c=, fence, c+=ab, commit, wait 0, a=, fence, c+=ab, commit, wait 0, =c", None),
    "the older group is waited for": ("a=, b=, c=, d=, fence, c+=ab, commit, d+=ab, commit, wait 1, =c, wait 0", None),
    "an MMA of an MMA's result": ("a=, b=, c=, d=, fence, c+=ab, commit, wait 0, d+=cb, commit, wait 0, =d", None),
    "a shared operand": ("b=, c=, fence, x=, proxy, barrier, c+=xb, =x, commit, wait 0, =c", None),
    "a shared operand is read before its fence": (
        "b=, c=, fence, x=, =x, proxy, barrier, =x, c+=xb, commit, wait 0, =c", None),
    "a shared operand is written": ("b=, c=, fence, x=, proxy, barrier, c+=xb, commit, wait 0, barrier, x=, =c", None),
    "a shared operand is written too early": (
        "b=, c=, fence, x=, proxy, barrier, c+=xb, commit, x=, wait 0, =c", "^x.* is written while an MMA that reads it is in flight"),
    "an asynchronous copy to a shared operand": ("b=, c=, fence, x<, sent, arrived, proxy, barrier, c+=xb, commit, wait 0, =c", None),
    "an asynchronous copy to a shared operand is not fenced": (
        "b=, c=, fence, x<, sent, arrived, barrier, c+=xb, commit, wait 0, =c", "^x is read through the async proxy.* at at x=,(?s:.*)at +at c"),
    "a shared operand is not fenced": (
        "b=, c=, fence, x=, barrier, c+=xb, commit, wait 0, =c", "^x is read through the async proxy, which does not see what was written to it"),
    "an array is written before a proxy fence": ("d=, =d, b=, c=, fence, x=, proxy, barrier, c+=xb, commit, wait 0, =c", None),
    "no fence": ("a=, b=, c=, c+=ab, commit, wait 0, =c", f"a, b, c {FENCE_BEFORE}"),
    "a proxy fence only": ("a=, b=, c=, proxy, c+=ab, commit, wait 0, =c", f"a, b, c {FENCE_BEFORE}"),
    "an operand is loaded after the fence": ("b=, c=, fence, a=, c+=ab, commit, wait 0, =c", f"^a {AFTER_FENCE}"),
    "the accumulator is loaded after the fence": ("a=, b=, fence, c=, c+=ab, commit, wait 0, =c", f"^c {AFTER_FENCE}"),
    "an operand is read after the fence": ("a=, b=, c=, fence, =b, c+=ab, commit, wait 0, =c", f"^b {AFTER_FENCE}"),
    "written after the wait, no fence": ("a=, b=, c=, fence, c+=ab, commit, wait 0, a=, c+=ab, commit, wait 0, =c", f"^a {AFTER_FENCE}"),
    "the accumulator is stored too early": ("a=, b=, c=, fence, c+=ab, commit, =c, wait 0", f"^c {ACCESSED}(?s:.*)at +at =c(?s:.*)wait for its group first"),
    "the accumulator is stored, not committed": ("a=, b=, c=, fence, c+=ab, wait 0, =c", f"^c {ACCESSED}"),
    "the younger group is not waited for": ("a=, b=, c=, d=, fence, c+=ab, commit, d+=ab, commit, wait 1, =d, wait 0", f"^d {ACCESSED}"),
    "neither of two groups is waited for": ("a=, b=, c=, d=, fence, c+=ab, commit, d+=ab, commit, wait 2, =c, wait 0", f"^c {ACCESSED}"),
    "an operand is loaded too early": ("a=, b=, c=, fence, c+=ab, commit, a=, wait 0, =c", f"^a {ACCESSED}"),
    "an operand of one of two groups is loaded": ("a=, b=, c=, fence, c+=ab, commit, c+=ab, commit, wait 1, b=, wait 0, =c", f"^b {ACCESSED}"),
    "an operand is accumulated by another MMA": ("a=, b=, c=, fence, c+=ab, commit, a+=cb, commit, wait 0, =c", f"^a, c {MULTIPLIED}"),
    "the accumulator is an operand of another MMA": ("a=, b=, c=, d=, fence, c+=ab, commit, d+=cb, commit, wait 0, =d", f"^c {MULTIPLIED}"),
    "an operand that only MMAs access": ("a=, b=, c=, fence, d=ab, commit, c+=db, commit, wait 0, =c", f"^d {MULTIPLIED}"),
    "an operand that only MMAs access, waited for": ("a=, b=, c=, fence, d=ab, commit, wait 0, c+=db, commit, wait 0, =c", None),
    "an operand is an accumulator": ("a=, b=, c=, d=, fence, c+=ab, commit, b+=dd, commit, wait 0, =c", f"^b {MULTIPLIED}"),
}  # fmt: skip
"""What asynchronous MMAs allow and what they do not: steps and the expected report."""


def wgmma_kernel(name):
    """The kernel of a given name, and the expected report."""
    steps, message = WGMMA_SEQUENCES[name]
    return kernel_of_steps(*steps.split(", ")), message


# ---------------------------------------------------------------------------------------------- dynamic tiles


def fetched(tiles=5, blocks=2, stages=2, warps=1, consumer=None, producer=None, extent=None, **fields):
    """A kernel whose blocks claim tiles of as many elements as they have consumers, one after the other, and copy each.

    `consumer` and `producer` edit the list of statements of their iteration; `fields` replace fields of the ring.
    """
    threads = THREADS * warps
    iteration, tile = Var("turn", 0, tiles), Var("tile", 0, tiles - 1)
    thread = Var("thread", 0, threads - 1)
    place, count = tile * threads + thread, as_expr(tiles)
    operands = access("src", (place,)), access("dst", (place,), write=True)
    move = making.execution(MOVE, Move(1, dtype=float32)(GL, GL)(Thread), operands, pieces=((making.piece(0),),) * 2)
    claim_tile, exit_loop = making.claim_tile(tile, count, "tiles", iteration), making.exit_if_done(tile, count)
    last = making.barrier(ir.WARP_SCOPE), making.release("tiles", ir.StageState.EMPTY, iteration, active=equal(thread % THREADS, 0))
    consumer_body = (making.acquire("tiles", ir.StageState.FULL, iteration), claim_tile, *last, exit_loop, move)
    claim = attrs.evolve(claim_tile, takes=True)
    producer_body = (
        making.acquire("tiles", ir.StageState.EMPTY, iteration),
        claim,
        making.release("tiles", ir.StageState.FULL, iteration),
        exit_loop,
    )
    iterations = as_expr(tiles + 1) if extent is None else as_expr(extent)
    roles = (
        making.role("consumers", 0, threads, (making.loop(iteration, iterations, (consumer or tuple)(consumer_body)),)),
        making.role("producer", threads, 32, (making.loop(iteration, iterations, (producer or tuple)(producer_body)),), elected=True),
    )
    kernel = kernel_of(
        Move(tiles * threads, dtype=float32)(GL, GL), (making.roles(roles),), threads=threads + 32, grid=blocks, target="sm_90a"
    )
    ring = attrs.evolve(making.ring("tiles", stages, (), bytes=0, consumers=warps, tiles=True), **fields)
    return attrs.evolve(kernel, workers=threads, rings=(ring,), shared_bytes=24 * stages, counter=making.counter("taken"))
