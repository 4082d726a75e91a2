"""Kernels with a ring, a producer and consumers: strategies, problems, and faults injected into their final IR."""

import random

import attrs
import numpy as np
from problems import integers

from fireiron import *
from fireiron import ir
from fireiron.check import safety
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.ir.smem_layouts import swizzle_of
from fireiron.lower.passes import PASSES
from fireiron.lower.specialize import specialize
from fireiron.sim import simulate
from fireiron.values.expr import TRUE, Const

TARGET = "sm_90a"
ORDERS = {"NN": (RowMajor, RowMajor), "NT": (RowMajor, ColMajor), "TN": (ColMajor, RowMajor), "TT": (ColMajor, ColMajor)}


def product(
    tiles=(128, 64, 64),
    warpgroup=(64, 64),
    stages=2,
    *,
    producer=32,
    chunk=64,
    mma_in_flight=None,
    group_m=0,
    blocks=0,
    dynamic=False,
    tma=True,
    pingpong=1,
    cluster=None,
    stagger=None,
):
    """A wgmma GEMM with TMA loads through a ring; TMA or all threads store the result; with clusters if requested."""
    bm, bn, bk = tiles
    wm, wn = warpgroup
    store = Move.done()
    if tma:
        store = Move.tile(wm, wn).to(Warpgroup).tile(min(64, wm), min(chunk, wn)).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(bm, bn).to(Block)
    chain = chain if cluster is None else chain.cluster(*cluster)
    chain = chain.rasterize(*(group_m if isinstance(group_m, tuple) else (group_m,))) if group_m else chain
    chain = chain.persistent(blocks, dynamic) if blocks else chain
    chain = chain.pingpong(pingpong) if pingpong > 1 else chain
    chain = chain.epilog(RF, float32, Init.done(), store).split(bk).pipeline(stages).warp_specialize(producer)
    chain = chain if mma_in_flight is None else chain.mma_in_flight(mma_in_flight)
    chain = chain if stagger is None else chain.stagger_blocks(stagger)
    return chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(wm, wn).to(Warpgroup).done()


ROWS_OF_128_BYTES = swizzle_of(128, 2)
"""TMA swizzle modes of 64 adjacent float16 values."""


def by_warps(stages=2, *, target=(64, 64), tma=False, producer=32, bk=64):
    """A GEMM whose consumers are warps with mma.sync, on tiles with the storage that the load requested."""
    store = Move.tile(32, 32).to(Warp)
    store = store.load(SRC, SH, Move.done()).cast_on_copy().done() if tma else store.done()
    chain = MatMul.tile(*target).to(Block).epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), store)
    chain = chain.split(bk).pipeline(stages).warp_specialize(producer)
    for operand in (A, B):
        chain = chain.load(operand, SH, Move.done()).storage_layout(RowMajor).swizzle_storage(ROWS_OF_128_BYTES)
    chain = chain.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done())
    return chain.tile(16, 16).unroll().mma_tile().done()


def by_threads(stages=2):
    """A GEMM whose consumers are threads that multiply element by element."""
    chain = MatMul.tile(64, 64).to(Block).split(64).pipeline(stages).warp_specialize()
    for operand in (A, B):
        chain = chain.load(operand, SH, Move.done()).storage_layout(RowMajor).swizzle_storage(ROWS_OF_128_BYTES)
    return chain.tile(8, 4).to(Thread).tile(1, 1).split(1).done()


def float16_gemm(*sizes, orders="NN", **options):
    """A float16 GEMM."""
    a, b = ORDERS[orders]
    options = {"dtype": float16, "c_dtype": float16, "A": a, "B": b, "C": RowMajor, **options}
    return MatMul(*sizes, **options)(GL, GL, GL)(Kernel)


def inputs_of(spec, sizes=None, seed=7):
    """Small integers for A and B, and NumPy's result."""
    generator = np.random.default_rng(seed)
    shapes = {name: tuple(size.evaluate(sizes or {}) for size in spec.operands[name].shape) for name in "AB"}
    arrays = {name: integers(shape, spec.operands[name].dtype, generator) for name, shape in shapes.items()}
    return arrays, spec.reference(arrays["A"], arrays["B"])


def errors(kernel):
    """The errors of the static checks."""
    return [one.message for one in safety(kernel) if one.severity == "error"]


def outcome(kernel, arrays, expected, order=None, sizes=None):
    """`right`, `wrong`, or the simulator's report."""
    try:
        got = simulate(kernel, arrays, sizes or {}, order=None if order is None else random.Random(order)).outputs["C"]
    except FireironError as error:
        return str(error)
    return "right" if np.array_equal(got, expected) else "wrong"


def require_right(strategy, spec, sizes=None, orders=(None, 1)):
    """Require that the kernel has no findings and equals NumPy, with warps in lockstep and in random order."""
    program = strategy(spec).program(TARGET)
    assert errors(program.ir) == []
    arrays, expected = inputs_of(spec, sizes)
    for order in orders:
        assert outcome(program.ir, arrays, expected, order, sizes) == "right", (str(strategy), spec, sizes, order)
    return program


def in_roles(strategy, spec, divide):
    """The final kernel with roles from a partition made by hand."""
    program = strategy(spec).program(TARGET)
    names = [name for name, _ in PASSES]
    kernel = ir.verify(specialize(program.stages["prune"], divide))
    for _, function in PASSES[names.index("specialize") + 1 :]:
        kernel = ir.verify(function(kernel))
    return ir.verify(kernel, final=True)


# ---------------------------------------------------------------------------------------------- parts of a kernel


def roles_of(kernel):
    """The consumers and the producer."""
    (roles,) = (one for one in kernel.body if isinstance(one, ir.Roles))
    return roles.roles


def all_of_kind(kernel, kind):
    """The statements of a class, in program order."""
    return [one for one in ir.statements(kernel.body) if isinstance(one, kind)]


def is_load(statement):
    """Whether a statement fills a ring."""
    return isinstance(statement, ir.Exec) and statement.ring != ""


def is_product(statement):
    """Whether a statement is an asynchronous MMA."""
    return isinstance(statement, ir.Exec) and statement.mechanism is WGMMA_GROUPS


def with_changed(kernel, which, number, change):
    """The kernel with the `number`-th of the statements that `which` accepts replaced."""
    candidates = [one for one in ir.statements(kernel.body) if which(one)]
    assert number < len(candidates), "no such statement: adapt this fault"
    chosen = candidates[number]  # by identity: equal statements occur at several places
    body = ir.rewritten(kernel.body, lambda one: change(one) if one is chosen else (one,))
    assert body != kernel.body
    return attrs.evolve(kernel, body=body)


def with_rings(kernel, change):
    """The kernel with its rings changed."""
    return attrs.evolve(kernel, rings=tuple(map(change, kernel.rings)))


def stage_moved(position, stages):
    """A change of the stage that an operand of a statement accesses."""

    def change(stmt):
        accesses = list(stmt.accesses)
        accesses[position] = attrs.evolve(accesses[position], copy=(accesses[position].copy + 1) % stages)
        return (attrs.evolve(stmt, accesses=tuple(accesses)),)

    return change


def dropped(_):
    """Remove the statement."""
    return ()


def later(fills):
    """The same wait or arrival, a given number of fills later."""
    return lambda one: (attrs.evolve(one, fill_index=one.fill_index + fills),)


def weaker(wait):
    """A wait that leaves one more group in flight."""
    return (attrs.evolve(wait, groups=wait.groups + 1),)


def by_all_lanes(arrival):
    """An arrival by each lane."""
    return (attrs.evolve(arrival, active=TRUE),)


def of_kind(kind, /, **fields):
    """A predicate for statements of a class with given fields."""
    return lambda one: isinstance(one, kind) and all(getattr(one, name) == value for name, value in fields.items())


def another_mask(peers, kernel):
    """Faulty sets of blocks as destinations of a statement."""
    blocks = kernel.cluster.blocks
    yield "one block left out", attrs.evolve(peers, pattern=peers.pattern & (peers.pattern - 1))
    yield "the last block left out", attrs.evolve(peers, pattern=peers.pattern ^ 1 << peers.pattern.bit_length() - 1)
    yield "a block beyond", attrs.evolve(peers, pattern=peers.pattern | 1 << blocks)
    if peers.pattern != (1 << blocks) - 1:
        yield "all blocks", attrs.evolve(peers, pattern=(1 << blocks) - 1, first=Const(0))


def cluster_faults(kernel):
    """`(name, faulty kernel)`: removed cluster synchronization, and loads and arrivals with other destinations."""
    if kernel.cluster is None:
        return
    for number, name in enumerate(("start", "end")):
        yield f"dropped: the cluster's barrier at the {name}", with_changed(kernel, of_kind(ir.ClusterBarrier), number, dropped)
    for number, stmt in enumerate(filter(is_multicast, ir.statements(kernel.body))):
        for name, peers in another_mask(stmt.multicast, kernel):
            changed = attrs.evolve(stmt, multicast=peers)
            yield f"load {number}: {name}", with_changed(kernel, is_multicast, number, lambda _, changed=changed: (changed,))
        alone = attrs.evolve(stmt, multicast=None)
        yield f"load {number}: to its own block", with_changed(kernel, is_multicast, number, lambda _, alone=alone: (alone,))
    for number, stmt in enumerate(filter(is_across, ir.statements(kernel.body))):
        for position, peers in enumerate(stmt.to):
            for name, other in another_mask(peers, kernel):
                to = (*stmt.to[:position], other, *stmt.to[position + 1 :])
                ranks = [reached(kernel, part) for part in (stmt.to, to)]
                if ranks[0] != ranks[1]:
                    yield (
                        f"arrival {number}: {name}",
                        with_changed(kernel, is_across, number, lambda one, to=to: (attrs.evolve(one, to=to),)),
                    )
        alone = attrs.evolve(stmt, to=())
        yield f"arrival {number}: to its own block", with_changed(kernel, is_across, number, lambda _, alone=alone: (alone,))
    own = -(-kernel.workers // 32)
    yield "only its own block's consumers", with_rings(kernel, lambda ring: attrs.evolve(ring, consumers=own))


def reached(kernel, peers):
    """The destination blocks of each block of a cluster."""
    ranks = range(kernel.cluster.blocks)
    return [{one for part in peers for one in part.ranks(part.first.evaluate(dict(kernel.cluster.values(rank))))} for rank in ranks]


def is_multicast(statement):
    """Whether a statement loads for several blocks."""
    return isinstance(statement, ir.Exec) and statement.multicast is not None


def is_across(statement):
    """Whether a statement arrives in several blocks."""
    return isinstance(statement, ir.Release) and statement.to != ()


def ring_faults(kernel):
    """`(name, faulty kernel)`: synchronization between producer and consumers removed, moved or weakened, and stages exchanged."""
    rings = [one for one in kernel.rings if one.buffers]
    yield from cluster_faults(kernel)
    fill_faults = {"dropped": dropped, "a fill later": later(1), "a round later": lambda one: later(kernel.ring(one.ring).stages)(one)}
    if len(rings) > 1:
        others = {one.name: rings[number - 1].name for number, one in enumerate(rings)}
        fill_faults |= {"of another ring": lambda one: (attrs.evolve(one, ring=others.get(one.ring, one.ring)),)}
        yield from early_releases(kernel)
    for kind, changes in (
        (ir.Acquire, fill_faults),
        (ir.Release, {**fill_faults, "by all lanes": by_all_lanes}),
        (ir.Wait, {"dropped": dropped, "weaker": weaker}),
        (ir.Commit, {"dropped": dropped}),
        (ir.Barrier, {"dropped": dropped}),
        (ir.Fence, {"dropped": dropped}),
    ):
        which = of_kind(kind)
        for number, stmt in enumerate(filter(which, ir.statements(kernel.body))):
            for name, change in changes.items():
                if change(stmt) != (stmt,):
                    yield f"{name}: {kind.__name__} {number}, {stmt}", with_changed(kernel, which, number, change)
    for ring in rings:
        for name, changed in (
            ("more bytes", {"bytes": ring.bytes + 16}),
            ("fewer bytes", {"bytes": ring.bytes - 4096}),
            ("a consumer less", {"consumers": ring.consumers - 1}),
            ("a consumer more", {"consumers": ring.consumers + 1}),
        ):
            changed = attrs.evolve(ring, **changed)
            yield f"{name} of {ring.name}", with_rings(kernel, lambda one, ring=ring, changed=changed: changed if one is ring else one)
        filling = with_changed(kernel, lambda one, ring=ring: is_load(one) and one.ring == ring.name, 0, stage_moved(1, ring.stages))
        yield f"a load to another stage of {ring.name}", filling
        for position in range(2):
            using = [one for one in ir.statements(kernel.body) if is_product(one) and one.accesses[position].buffer in ring.buffers]
            if using:
                moved = with_changed(kernel, lambda one, using=using: one is using[0], 0, stage_moved(position, ring.stages))
                yield f"a product of another stage of {ring.name}, {position}", moved


def early_releases(kernel):
    """`(name, faulty kernel)`: each stage released before the wait or barrier that precedes its release."""
    for number, release in enumerate(filter(of_kind(ir.Release, state=ir.StageState.EMPTY), ir.statements(kernel.body))):
        for body in lists_of(kernel.body):
            place = next((at for at, other in enumerate(body) if other is release), None)
            waits = [at for at, other in enumerate(body[:place]) if isinstance(other, (ir.Wait, ir.Barrier))] if place is not None else []
            if waits:
                moved = (*body[: waits[-1]], release, *body[waits[-1] : place], *body[place + 1 :])
                yield f"early: Release {number}, {release}", with_list(kernel, body, moved)


def lists_of(body):
    """All lists of statements within a list, itself included."""
    yield body
    for stmt in body:
        for child in stmt.children:
            yield from lists_of(child)


def with_list(kernel, old, new):
    """The kernel with one list of statements replaced."""

    def change(stmt):
        children = tuple(new if child is old else child for child in stmt.children)
        return (stmt.rebuilt(children),) if any(child is new for child in children) else (stmt,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))
