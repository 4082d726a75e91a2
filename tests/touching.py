"""Hand-made programs that only access shared memory, and a reference race check for them, thread by thread."""

import itertools

import attrs
import making

from fireiron import *
from fireiron.ir import BLOCK_SCOPE, WARP_SCOPE, Barrier, Commit, Exec, FenceKind, For, Wait
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.language.tree import Executable
from fireiron.lower.synchronize import synchronize
from fireiron.values.expr import ZERO, Var, as_expr
from fireiron.values.layout import Layout
from fireiron.values.machine import ARCHITECTURES
from fireiron.values.tensor import Mode, Storage, Tensor

SPEC = MatMul(64, 64, 64)(GL, GL, GL)(Kernel)
"""The nominal spec of the kernels; the race check does not read it."""

REGISTERS_FENCE, PROXY_FENCE = making.fence(FenceKind.WGMMA_REGISTERS), making.fence(FenceKind.ASYNC_PROXY)
MMA_GROUPS = WGMMA_GROUPS

BLOCK_BARRIER, WARP_BARRIER = making.barrier(BLOCK_SCOPE), making.barrier(WARP_SCOPE)


@attrs.frozen
class Step:
    """An instruction of which only the name matters."""

    name: str = "step"
    mechanism = AT_ONCE
    prepared = Executable.prepared

    def cuda(self, printer, statement):
        raise AssertionError("nothing here is printed")


@attrs.frozen
class Engine(Step):
    """An instruction that accesses shared memory through the async proxy."""

    name: str = "engine"
    mechanism = TMA_LOADS


def buffer(name, elements, offset=0, memory=SH, dtype=float32):
    tensor = Tensor(name, (as_expr(elements),), dtype, memory, ColMajor)
    return making.buffer(tensor, Storage(Layout((elements,), (1,)), elements), elements, offset=offset, written=memory == GL)


def touch(place, *, write, name="s", width=1, level=Thread, spread=False, bound=None, copy=ZERO, **options):
    """A statement with one access: `width` elements from `place` on."""
    modes = ((Mode(width, 1),),)
    access = making.access(
        name, (as_expr(place),), modes, (bound,), write, copy=as_expr(copy), unit_modes=((),), spread=spread, origin="hand.py:1"
    )
    options.setdefault("instruction", Step())
    return making.execution(spec=Move(1, 1)(RF, SH)(level), accesses=(access,), **options)


def writes(place, **options):
    return touch(place, write=True, **options)


def reads(place, **options):
    return touch(place, write=False, **options)


def copies(place, **options):
    """A copy in flight until a wait."""
    return touch(place, write=True, mechanism=CP_ASYNC_GROUPS, **options)


def mma(*places, registers="r", level=Warpgroup, **options):
    """An MMA in flight until a wait: it reads 16 bytes per thread at each of the places, and accumulates in registers."""
    reading = [reads(place, width=4, spread=True, level=level, **options).accesses[0] for place in places]
    adding = writes(0, name=registers, level=level).accesses[0]
    return making.execution(
        Engine(), MatMul(1, 1, 1)(SH, SH, RF)(level), (*reading, adding), lane_maps=(None,) * (len(reading) + 1), mechanism=MMA_GROUPS
    )


def on_registers(name="r", write=True):
    """An ordinary statement that accesses registers."""
    return touch(0, write=write, name=name)


SM_80 = next(one for one in ARCHITECTURES if one.name == "sm_80")


SHARED = (buffer("s", 4096),)
COMMIT = (making.commit(),)


def kernel(*body, threads=128, buffers=SHARED, grid=1, symbols=(), **options):
    return making.kernel("k", SM_80, as_expr(grid), threads, tuple(buffers), tuple(symbols), tuple(body), SPEC, **options)


T = Var("thread", 0, 127)
T256 = Var("thread", 0, 255)
K = Var("K", 0, 1 << 20, 1, True)
i = Var("i", 0, 1 << 20)


def loop(extent, *body, var=i, **options):
    return making.loop(var, as_expr(extent), body, **options)


def shape(body):
    """A list with the scope of each barrier, `.` for executions, and lists for loops."""
    shown = []
    for stmt in body:
        match stmt:
            case Barrier():
                shown.append(stmt.scope.name)
            case For():
                shown.append(shape(stmt.body))
            case Exec() | Commit() | Wait():
                shown.append({Exec: ".", Commit: "commit", Wait: "wait"}[type(stmt)])
    return shown


def placed(*body, **options):
    """The shape of a program after `synchronize`."""
    return shape(synchronize(kernel(*body, **options)).body)


def racy_by_hand(program, **sizes):
    """The reference check, with all loops executed completely: whether two accesses conflict and are unordered."""
    threads = program.threads
    known, issued = [0] * threads, [0] * threads
    groups = [[] for _ in range(threads)]
    touched, count = {}, itertools.count()

    def run(body, values):
        for stmt in body:
            match stmt:
                case For():
                    extent = stmt.extent.evaluate(values)
                    if any(run(stmt.body, {**values, stmt.var.name: number}) for number in range(extent)):
                        return True
                case Barrier():
                    size = stmt.scope.threads or threads
                    for first in range(0, threads, size):
                        part = range(first, min(first + size, threads))
                        union = 0
                        for thread in part:
                            union |= known[thread]
                        for thread in part:
                            known[thread] = union
                case Commit():
                    for thread in range(threads):
                        groups[thread].append(issued[thread])
                        issued[thread] = 0
                case Wait():
                    for thread in range(threads):
                        done = max(len(groups[thread]) - stmt.groups, 0)
                        for group in groups[thread][:done]:
                            known[thread] |= group
                        del groups[thread][:done]
                case Exec():
                    if any(touches(stmt, thread, {**values, "thread": thread, "block": 0}) for thread in range(threads)):
                        return True
        return False

    def touches(stmt, thread, values):
        if not stmt.active.evaluate(values):
            return False
        (access,) = stmt.accesses
        bit = 1 << next(count)
        places = [access.base[0].evaluate(values) + offset for (offset,) in access.elements()]
        for place in places:
            for other, write in touched.setdefault(place, []):
                if (write or access.write) and not known[thread] & other:
                    return True
        for place in places:
            touched[place].append((bit, access.write))
        if stmt.asynchronous:
            issued[thread] |= bit
        else:
            known[thread] |= bit
        return False

    return run(program.body, sizes)
