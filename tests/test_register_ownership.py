"""Which thread owns which elements of a register tile: one statement decides, and all others follow.

An MMA, a copy whose tiles are distributed over lanes, or an ldmatrix determines by its accesses which thread owns which elements.
Statements without an explicit distribution follow, before and after it. NumPy is the reference.
"""

import inspect
import itertools
import random

import attrs
import making
import numpy as np
import pytest
from problems import integers

from fireiron import *
from fireiron.errors import FireironError
from fireiron.executable.ldmatrix import LdMatrix
from fireiron.ir import execs
from fireiron.ir.register_ownership import Ownership
from fireiron.language.tree import owners_in
from fireiron.lower.distribute import accesses_of
from fireiron.performing.layout_propagation import elementwise, lanes_of
from fireiron.performing.matrices import received
from fireiron.performing.ownership_mismatch import first_difference
from fireiron.sim import simulate
from fireiron.spec import Kind
from fireiron.values.expr import TRUE, ZERO, Var, compiled
from fireiron.values.tensor import Mode, UnitMode

ELEMENT = Move.tile(1, 1).done()
FOLLOWS = Move.done()
LDMATRIX = {one.name: one for one in INSTRUCTIONS if one.name.startswith("LDMATRIX")}


def result(program):
    """Simulated output, and the output of NumPy."""
    spec = program.spec
    generator = np.random.default_rng(5)
    given = {
        name: integers([int(str(size)) for size in spec.operands[name].shape], spec.operands[name].dtype, generator) for name in spec.inputs
    }
    (output,) = spec.outputs
    return simulate(program.ir, given).outputs[output], spec.reference(*given.values())


def right(strategy, spec, target="sm_80"):
    """Check that the program prints and equals NumPy, and return it."""
    program = strategy(spec).program(target)
    assert program.cuda
    np.testing.assert_array_equal(*result(program))
    return program


def owners(program, buffer):
    """Which thread owns which elements of a buffer in which registers, per kind of spec."""
    kernel = program.ir
    triples = {}
    for statement, loops in execs(kernel.body):
        for access in statement.accesses:
            if access.buffer == buffer:
                ownership = accesses_of(kernel, kernel.buffer(buffer), [(statement, loops, access)])
                columns = (one.tolist() for one in (ownership.threads, ownership.registers, ownership.elements))
                triples.setdefault(statement.spec.title, set()).update(zip(*columns))
    return triples


def used(program):
    """The names of the instructions of a kernel."""
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


# ---------------------------------------------------------------------------------------------- the ownership value


def enumerated(holding, program):
    """Enumerate the elements that each thread owns, by the digits of an ownership."""
    definitions = program.grown.whole.definitions
    threads = {"thread": np.arange(program.ir.workers)}
    first = []
    for value in holding.first:
        while not value.variables().isdisjoint(definitions):
            value = value.substitute(definitions)
        first.append(np.broadcast_to(compiled(value)(threads), threads["thread"].shape))
    steps = [range(0, one.end, one.stride) for one in holding.visited]
    for thread, start in enumerate(zip(*(one.tolist() for one in first))):
        for picked in itertools.product(*steps):
            place = list(start)
            for digit, step in zip(holding.visited, picked):
                place[digit.dim] += step
            yield thread, tuple(place)


class Nest:
    """A generated nest of tiles below a block's accumulator: warps, lanes or threads, with sequential tiles between them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.sizes = [self.pick((16, 24, 32, 48)), self.pick((16, 32, 40))]
        self.block = tuple(self.sizes)
        self.steps = []
        self.sequential()
        warps = self.chance(0.6)
        if warps:
            self.distributed(Warp, 4)
            self.sequential()
        self.distributed(self.pick((Lane, Thread)) if warps else Thread, 32, self.chance(0.4))
        if not isinstance(self.steps[-1][0], Strided):
            self.sequential()

    def pick(self, values):
        return self.random.choice(list(values))

    def chance(self, probability):
        return self.random.random() < probability

    def divisors(self, size, most):
        return [one for one in range(1, size + 1) if size % one == 0 and size // one <= most]

    def sequential(self):
        if self.chance(0.4):
            self.sizes = [self.pick(self.divisors(size, 4)) for size in self.sizes]
            self.steps.append((tuple(self.sizes), None, RowMajor, self.chance(0.5)))

    def distributed(self, level, units, strided=False):
        while True:
            tile = [self.pick(self.divisors(size, units)) for size in self.sizes]
            if np.prod(self.sizes) // np.prod(tile) <= units:
                break
        strided = strided and all(size % 2 == 0 for size in tile)
        shape = Strided(*((size // 2, whole // 2) for size, whole in zip(tile, self.sizes))) if strided else tuple(tile)
        self.steps.append((shape, level, self.pick((RowMajor, ColMajor)), False))
        self.sizes = tile

    def applied(self, chain):
        for shape, level, order, unroll in self.steps:
            chain = chain.tile(shape) if isinstance(shape, Strided) else chain.tile(*shape)
            if level is not None:
                chain = chain.to(level).layout(order)
            elif unroll:
                chain = chain.unroll()
        return chain

    def strategy(self):
        chain = MatMul.tile(*self.block).to(Block).epilog(RF).split(4)
        return self.applied(chain).split(1).load(A, RF, ELEMENT).load(B, RF, ELEMENT).tile(1, 1).done()


@pytest.mark.parametrize("seed", range(40))
def test_generated_nests_keep_ownership(seed):
    """Default init and store access exactly the elements that the MMA owns, in the same registers."""
    nest = Nest(seed)
    problem = MatMul(nest.block[0] + 7, nest.block[1] * 2 - 3, 6)(GL, GL, GL)(Kernel)
    program = right(nest.strategy(), problem)
    owned = owners(program, "c_rf")
    assert owned["Init"] == owned["MatMul"] == owned["Move"]
    assert len({element for _, _, element in owned["Move"]}) == np.prod(nest.block)


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_digits_enumerate_the_accessed_elements(seed):
    """The digits of an ownership give the same elements as enumerating the deciding statement."""
    nest = Nest(seed)
    program = nest.strategy()(MatMul(*nest.block, 4)(GL, GL, GL)(Kernel)).program("sm_80")
    holding = owners_in(program.tree)["c_rf"]
    columns = nest.block[1]
    wanted = {(thread, divmod(element, columns)) for thread, _, element in owners(program, "c_rf")["MatMul"]}
    busy = {thread for thread, _ in wanted}  # one beyond the tiles has digits too: its condition is none of them
    assert wanted == {(thread, place) for thread, place in enumerated(holding, program) if thread in busy}
    assert (holding.active == TRUE) == (len(busy) == program.ir.workers)


LANE = Var("lane", 0, 31)


@pytest.mark.parametrize(
    ("base", "digits", "indices"),
    [
        (LANE % 4 * 2 + LANE // 4 * 16, ((4, 2), (8, 16)), (LANE % 4, LANE // 4)),
        (LANE * 2, ((4, 2), (8, 8)), (LANE % 4, LANE // 4)),  # folded: 2 * (lane % 4) + 8 * (lane // 4)
        (LANE * 3, ((3, 3), (11, 9)), (LANE % 3, LANE // 3)),  # a mixed radix
        (LANE % 8 + 3, ((8, 1),), (LANE % 8,)),  # from a fixed coordinate on
        (LANE * 2 + 3, ((4, 2), (8, 8)), (LANE % 4, LANE // 4)),
        (LANE // 8 * 4 + LANE % 2, ((2, 1), (4, 4)), (LANE % 2, LANE // 8)),
    ],
    ids=str,
)
def test_digit_indices(base, digits, indices):
    """A coordinate is a number with the distributed digits. Each index is taken from its expression or computed by division."""
    view = Init(1, 1)(RF)(Thread).dst
    single = (Mode(1, 1),)
    modes = tuple(UnitMode(size, stride, True) for size, stride in digits)
    access = making.access(view.tensor.name, (base, ZERO), (single, single), (None, None), True, unit_modes=(modes, ()))
    holding = Ownership.of(making.execution(INSTRUCTIONS[0], Init.on(Thread, view), (access,)), access, ())
    assert [(digit.size, digit.stride) for digit in holding.digits] == list(digits)
    at = {"lane": np.arange(32)}
    for digit, index in zip(holding.digits, indices):
        assert (compiled(digit.index)(at) == compiled(index)(at)).all()


# ---------------------------------------------------------------------------------------------- layout propagation in both directions


COPY = Move(32, 32, dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)


def through_registers(load, store, tile=(16, 16)):
    """A copy by one warp from shared memory through its registers."""
    return Move.tile(32, 32).to(Block).load(SRC, SH).tile(*tile).to(Warp).load(SRC, RF, load).then(store)


def test_ldmatrix_decides_the_lanes_of_a_copy():
    """Figure 1d of Graphene: no MMA reads the registers, so the first ldmatrix that fits decides, and the store follows."""
    program = right(through_registers(FOLLOWS, FOLLOWS), COPY)
    assert {"LDMATRIX_16x16_ROW", "Move"} <= used(program)


@pytest.mark.parametrize("name", [name for name in LDMATRIX if "ROW" in name])
def test_named_ldmatrix_decides_the_lanes(name):
    program = right(through_registers(Move.done(LDMATRIX[name]), FOLLOWS, (32, 32)), COPY)
    assert name in used(program)


def test_ldmatrix_follows_a_store_distributed_over_lanes():
    """The store uses the tiles of an 8x8 matrix, so the load before it selects the instruction that fills exactly these lanes."""
    store = Move.tile(8, 8).tile(1, 2).to(Lane).done()
    program = right(through_registers(FOLLOWS, store), COPY)
    assert any(name.startswith("LDMATRIX") for name in used(program))
    columns = Move.tile(8, 8).tile(2, 1).to(Lane).layout(ColMajor).done()
    program = right(through_registers(FOLLOWS, columns), COPY)
    assert any(name.startswith("LDMATRIX") and name.endswith("_T") for name in used(program))


def test_store_that_ldmatrix_cannot_serve_gets_scalar_loads():
    program = right(through_registers(FOLLOWS, Move.tile(2, 4).to(Lane).tile(1, 4).done()), COPY)
    assert not any(name.startswith("LDMATRIX") for name in used(program))


@pytest.mark.parametrize("level", [Lane, Thread], ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (4, 2), (2, 4)], ids=str)
def test_load_distributed_over_lanes_decides(shape, level):
    """Neither an instruction nor a tile of the store determines the owners; the load does."""
    load = Move.tile(*shape).to(level).tile(1, 1).done()
    program = right(through_registers(load, FOLLOWS), COPY)
    assert len({(thread, register) for thread, register, _ in owners(program, "src_rf")["Move"]}) == 32 * 32


def test_two_followers_without_an_owner_are_refused():
    """Two copies that both follow: the error reports that no statement determines the owners."""
    with pytest.raises(MatchError, match="registers requires an operand whose thread ownership another statement decides, got none"):
        _ = Move.tile(32, 32).to(Block).tile(16, 16).to(Warp).load(SRC, RF, FOLLOWS).done()(COPY).program("sm_80").tree


def test_default_load_follows_or_copies_single_elements():
    """A default load is an ldmatrix before an MMA. Without a deciding statement it copies single elements, which is always legal."""
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(16, 16).to(Warp).load(A, RF).load(B, RF)
    program = right(chain.mma_tile().done(), MatMul(50, 40, 32, **HALF)(GL, GL, GL)(Kernel))
    assert any(name.startswith("LDMATRIX") for name in used(program))
    chain = Move.tile(32, 32).to(Block).load(SRC, RF)
    right(chain.done(), COPY)
    right(chain.tile(2, 4).to(Thread).tile(1, 4).done(), COPY)


@pytest.mark.parametrize("given", ["lhs", "rhs", None])
def test_operands_of_elementwise_work_follow_each_other(given):
    """One load or the body determines the owners; the other load and the sum follow."""
    load = Move.tile(1, 8).to(Thread).tile(1, 4).done()
    chain = BinaryPointwise.tile(32, 32).to(Block)
    for name in ("lhs", "rhs"):
        chain = chain.load(name, RF, load if name == given else None)
    chain = chain.tile(4, 2).to(Thread).tile(1, 1).done() if given is None else chain.done()
    program = right(chain, BinaryPointwise("+", 40, 50)(GL, GL, GL)(Kernel))
    assert owners(program, "lhs_rf")["Move"] == owners(program, "rhs_rf")["Move"] and program.ir.threads == 128


def test_fragments_of_a_block_are_loaded_whole():
    """A fragment that a group of lanes owns as a whole is loaded as a whole, by each warp that multiplies it."""
    fragment = FR(16, 16, 16)
    chain = MatMul.tile(32, 32).to(Block).epilog(fragment).split(16).load(A, fragment).tile(16, 16).to(Warp).load(B, fragment).done()
    right(chain, MatMul(64, 64, 32, **HALF)(GL, GL, GL)(Kernel))


def test_only_elementwise_specs_follow():
    """A spec that reads adjacent elements needs them in its own registers: the owner of one element does not own all its inputs."""
    flip = Kind("Flip", "y[m,n] = x[m ^ 1,n]").starter
    dual = Kind("Dual", "y[m,n] = x[m,n] + 1; z[m,n] = x[m,n] * 2").starter
    for spec in (
        flip(4, 4)(RF, RF)(Warp),
        Shfl(1, 32, 4)(RF, RF)(Warp),
        Reduction(4, 4, 2)(RF, RF)(Warp),
        MatMul(4, 4, 4)(RF, RF, RF)(Warp),
    ):
        assert not elementwise(spec)
    for spec in (dual(4, 4)(RF, RF, RF)(Warp), Move(4, 4)(GL, RF)(Warp), Init(4, 4)(RF)(Warp), AtomicAdd(4, 4)(RF, GL)(Warp)):
        assert elementwise(spec)


def test_incomplete_strategy_decides_no_ownership():
    """A later step may decide otherwise, so an ldmatrix is not selected yet."""
    partial = Move.tile(32, 32).to(Block).load(SRC, SH).tile(16, 16).to(Warp).load(SRC, RF, FOLLOWS)
    tree = partial(COPY).program("sm_80").tree
    assert not tree.complete and [str(leaf) for leaf in tree.open_leaves()] == ["Move(16,16)(RF,GL)(Warp)"]
    assert not list(execs(tree.child("body").child("body").child("body").child("move").program))


def test_a_follower_of_a_follower():
    """A copy from registers to registers follows too, with a conversion between the two."""
    spec = Move(32, 32, dtype=float32, dst_dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    chain = Move.tile(32, 32).to(Block).tile(16, 16).to(Warp).load(SRC, RF, Move.tile(1, 8).to(Lane).done())
    right(chain.then(FOLLOWS), spec)


# ---------------------------------------------------------------------------------------------- levels


HALF = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": RowMajor, "C": RowMajor}


def mma_chain(*epilog, instruction=None, warps=(32, 16)):
    """A matmul by MMA instructions, with the given epilog."""
    chain = MatMul.tile(64, 32).to(Block).epilog(RF, *epilog).split(16).load(A, SH).load(B, SH).tile(*warps).to(Warp).tile(16, 16).unroll()
    return chain.mma_tile(instruction).load(A, RF, FOLLOWS).load(B, RF, FOLLOWS).done()


STORES = {
    "Block": Move.done(),
    "Warp": Move.tile(32, 16).to(Warp).done(),
    "tiles of a warp": Move.tile(32, 16).to(Warp).tile(16, 16).done(),
    "halves of an instruction's tile": Move.tile(32, 16).to(Warp).tile(8, 8).done(),
    "threads of it": Move.tile(32, 16).to(Warp).tile(16, 8).tile(8, 8).tile(1, 2).to(Lane).done(),
}


@pytest.mark.parametrize("store", STORES)
def test_store_follows_at_each_level(store):
    """From the block down to tiles smaller than the instruction's tile, which the store visits sequentially."""
    program = right(mma_chain(None, STORES[store]), MatMul(70, 60, 32, **HALF)(GL, GL, GL)(Kernel))
    owned = owners(program, "c_rf")
    assert owned["Move"] == owned["MatMul"] == owned["Init"]


def test_ownership_with_three_warps_along_n():
    """Mixed radix: three warps are not a power of two."""
    chain = MatMul.tile(32, 48).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(16, 16).to(Warp).mma_tile()
    program = right(chain.load(A, RF, FOLLOWS).load(B, RF, FOLLOWS).done(), MatMul(50, 90, 16, **HALF)(GL, GL, GL)(Kernel))
    assert program.ir.threads == 6 * 32


def test_store_follows_quad_pairs():
    for store in (None, Move.tile(32, 16).to(Warp).done(), Move.tile(32, 16).to(Warp).tile(8, 8).to(QuadPair).done()):
        program = right(mma_chain(None, store, instruction=HMMA_884_F32_TN), MatMul(70, 60, 32, **HALF)(GL, GL, GL)(Kernel), "sm_70")
        owned = owners(program, "c_rf")
        assert owned["Move"] == owned["MatMul"] == owned["Init"]


def test_one_warp_cannot_store_the_tile_of_two():
    """A follower of one warp has the threads of that warp only. It must not skip elements of the other warp silently."""
    store = Move.tile(64, 16).to(Warp).done()
    with pytest.raises(MatchError, match="level +requires one whose threads own all of the 64x16 elements"):
        _ = mma_chain(None, store)(MatMul(64, 32, 16, **HALF)(GL, GL, GL)(Kernel)).program("sm_80").ir


def by_rows(permute, store):
    """64 threads own a row of four elements each, and the first step of the store divides the rows over two warps."""
    chain = MatMul.tile(64, 4).to(Block).epilog(RF, None, store).split(4).load(A, SH).load(B, SH).tile(1, 4).to(Thread).swizzle(permute)
    return right(chain.tile(1, 1).split(1).done(), MatMul(70, 9, 8)(GL, GL, GL)(Kernel))


def test_store_splits_a_digit():
    """One warp owns the lower 32 of the 64 rows or, with a permutation, every second one."""
    by_rows(lambda uid: uid, Move.tile(32, 4).to(Warp).done())
    by_rows(lambda uid: uid % 32 * 2 + uid // 32, Move.tile(Strided((1, 2), (4, 4))).to(Warp).done())


def test_digit_spans_two_chunks_of_memory():
    """Eight rows of a matrix are two chunks of four rows in the other operand."""
    chain = Move.tile(32, 32).to(Block).tile(Strided((4, 8), (8, 16))).to(Warp).load(SRC, SH).load(SRC, RF, FOLLOWS).done()
    assert any(name.startswith("LDMATRIX") for name in used(right(chain, COPY)))


def test_idle_warps_store_nothing():
    """Three tiles for the four warps of a warpgroup."""
    chain = MatMul.tile(48, 16).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(48, 16).to(Warpgroup).tile(16, 16).to(Warp)
    program = right(chain.load(A, RF).load(B, RF).mma_tile().done(), MatMul(50, 40, 32, **HALF)(GL, GL, GL)(Kernel))
    owned = owners(program, "c_rf")
    assert owned["Init"] == owned["MatMul"] == owned["Move"] and {thread // 32 for thread, _, _ in owned["Move"]} == {0, 1, 2}


def test_tiles_that_change_per_iteration_are_refused():
    """The tile of a thread changes per iteration, and its registers cannot hold all of them."""
    chain = MatMul.tile(48, 16).to(Block).epilog(RF).split(4).tile(24, 16).to(Warp).tile(1, 8).to(Lane).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match="c_rf cannot be divided over registers: its tiles are distributed in iterations"):
        _ = chain(MatMul(48, 32, 8)(GL, GL, GL)(Kernel)).program("sm_80").ir


def test_error_names_the_reduction_of_split_k():
    """20 x 32 sums for 64 threads, column by column: the error names the sums and the argument that distributes them."""
    problem = MatMul.fuse_epilogue("acc + r[m]")(m=20, n=32, k=8, types={"r": float32, "C": float32})
    chain = MatMul.tile(20, 32).to(Block).split_k(2, Warp, 2)
    rest = MatMul.tile(4, 4).to(Lane).split(1).tile(1, 1).done()
    message = (
        r"Reduction\(1,1,2\)\(SH,RF\)\(Thread\), whose tile changes in each iteration(.|\n)*split_k distributes them by its last argument"
    )
    with pytest.raises(DecompositionError, match=message):
        _ = chain.then(rest)(problem).program("sm_80").ir
    by_rows_of_tiles = MatMul.tile(20, 32).to(Block).split_k(2, Warp, 2, Reduction.tile(1, 1).to(Thread).layout(RowMajor).done())
    assert by_rows_of_tiles.then(rest)(problem).program("sm_80").ir.threads == 64


def test_ownership_at_thread_level():
    """At the level of a thread all digits are sequential."""
    chain = (
        MatMul.tile(32, 32).to(Block).tile(8, 8).to(Thread).epilog(RF).split(1).load(A, RF, ELEMENT).load(B, RF, ELEMENT).tile(1, 1).done()
    )
    right(chain, MatMul(40, 70, 5)(GL, GL, GL)(Kernel))


def test_atomic_add_follows_the_mma():
    chain = MatMul.split_k(2, Block, 16).tile(64, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(32, 16).to(Warp)
    chain = chain.tile(16, 16).unroll().mma_tile().load(A, RF, FOLLOWS).load(B, RF, FOLLOWS).done()
    program = right(chain, MatMul(70, 60, 64, **HALF)(GL, GL, GL)(Kernel))
    owned = owners(program, "c_rf")
    assert owned["AtomicAdd"] == owned["MatMul"] == owned["Init"]


# ---------------------------------------------------------------------------------------------- replication, threads


@pytest.mark.parametrize("load", [FOLLOWS, None], ids=["done", "left out"])
@pytest.mark.parametrize("stage", [True, False], ids=["through SH", "from GL"])
def test_warps_along_n_replicate_a(load, stage):
    """The digit of the warps along n does not index A, so each of these warps owns a copy of A."""
    chain = MatMul.tile(32, 64).to(Block).epilog(RF).split(16)
    chain = (chain.load(A, SH).load(B, SH) if stage else chain).load(A, RF, load).tile(16, 16).to(Warp).load(B, RF, FOLLOWS)
    program = right(chain.mma_tile().done(), MatMul(60, 70, 32, **HALF)(GL, GL, GL)(Kernel))
    owned = owners(program, "a_rf")
    assert owned["Move"] == owned["MatMul"] and program.ir.threads == 8 * 32
    copies = {}
    for thread, _, element in owned["Move"]:
        copies.setdefault(element, set()).add(thread // 32 % 4)
    assert all(warps == {0, 1, 2, 3} for warps in copies.values())
    assert any(name.startswith("LDMATRIX") for name in used(program)) == stage


def test_threads_along_n_replicate_a():
    chain = (
        MatMul.tile(32, 32).to(Block).epilog(RF).split(4).load(A, RF).tile(8, 8).to(Thread).split(1).load(B, RF, ELEMENT).tile(1, 1).done()
    )
    program = right(chain, MatMul(32, 64, 8)(GL, GL, GL)(Kernel))
    owned = owners(program, "a_rf")
    assert owned["Move"] == owned["MatMul"] and program.ir.threads == 16


@attrs.frozen
class ReplicateOverUnits(Decomposition):
    """Each unit of a level performs the whole spec."""

    verb = "replicate_over_units"
    level: Level = Warp

    def threads(self, spec, context):
        return 2 * self.level.threads if spec.level == Block else None

    def expand(self, spec, context):
        return context.draft().expansion((Child("body", spec.at_level(self.level)),), (making.hole("body"),))


@pytest.mark.parametrize("store", [FOLLOWS, Move.then(Done(ThreadMove("Move")))], ids=["done", "named"])
def test_first_owner_stores_replicated_elements(store):
    """Both warps load the whole tile; only the first one stores it, so no element is written twice."""
    load = Move.then(ReplicateOverUnits()).tile(1, 8).to(Lane).tile(1, 1).done()
    program = right(Move.tile(16, 16).to(Block).load(SRC, RF, load).then(store), Move(32, 48)(GL, GL)(Kernel))
    owned = owners(program, "src_rf")["Move"]
    assert program.ir.threads == 64 and {thread // 32 for thread, _, _ in owned} == {0, 1}
    (stored,) = (one for one, _ in execs(program.ir.body) if one.spec.memories == (RF, GL))
    busy = np.broadcast_to(compiled(stored.active)({"thread": np.arange(64), "warp": np.arange(64) // 32}), 64)
    assert np.flatnonzero(busy).tolist() == list(range(32))


def test_atomic_add_of_replicated_elements_adds_once():
    """Atomic adds by both warps would add twice."""
    load = Move.then(ReplicateOverUnits()).tile(1, 8).to(Lane).tile(1, 1).done()
    chain = AtomicAdd.tile(16, 16).to(Block).load(SRC, RF, load).done()
    program = chain(AtomicAdd(32, 48)(GL, GL)(Kernel)).program("sm_80")
    source, target = np.arange(32 * 48, dtype=np.float32).reshape(32, 48), np.full((32, 48), 7, np.float32)
    np.testing.assert_array_equal(simulate(program.ir, {"src": source, "dst": target}).outputs["dst"], target + source)


def test_deciding_load_determines_the_thread_count():
    """The body distributes nothing: without the tiles of the load, a block would have one thread. A load into shared memory does not count."""
    load = Move.tile(2, 4).to(Thread).tile(1, 4).done()
    chain = Move.tile(32, 32).to(Block)
    assert right(chain.load(SRC, RF, load).done(), COPY).ir.threads == 32 * 32 // 8
    assert right(chain.load(SRC, SH, load).tile(4, 4).to(Thread).tile(1, 4).done(), COPY).ir.threads == 64


@pytest.mark.parametrize("load", ["Move.tile(1, 2)", "Move.tile(4, 2).tile(1, 2)"])
def test_load_tiles_must_cover_all_owners(load):
    """Two threads own every second row each. A tile of one row belongs to one thread, and each would overwrite its own rows with all rows."""
    start = MatMul.tile(8, 16).to(Block)
    rest = lambda chain: chain.tile(2, 4).tile(1, 1).to(Thread).split(1).done()(MatMul(8, 16, 2)(GL, GL, GL)(Kernel)).program("sm_80")
    with pytest.raises(MatchError, match="tiles that cover all threads which own a part"):
        _ = rest(start.load(A, RF, eval(load).done())).lowered
    spec = rest(start.load(A, RF, Move.tile(2, 2).done()))
    a, b = np.arange(16.0).reshape(8, 2).astype("f4"), np.arange(32.0).reshape(2, 16).astype("f4")
    assert np.array_equal(simulate(spec.ir, {"A": a, "B": b}).outputs["C"], a @ b)


@pytest.mark.parametrize("k", (1, 7))
@pytest.mark.parametrize("between", ("", ".load(B, SH, Move.coalesced_copy(2).done())"))
def test_vector_across_the_end_is_checked_per_element(k, between):
    """The MMA takes four elements along k at once and so determines how many of B a thread owns; B ends within them."""
    chain = MatMul.tile(16, 48).to(Block).epilog(RF).tile(16, 48).to(Warp).load(B, RF).split(k=4).tile(16, 16)
    chain = eval(f"chain{between}").load(A, RF).load(B, RF).done()
    assert "if (0)" not in right(chain, MatMul(16, 48, k, dtype=float16)(GL, GL, GL)(Kernel)).cuda


# ---------------------------------------------------------------------------------------------- lane maps from digits


@pytest.mark.parametrize("instruction", [one for one in LDMATRIX.values() if isinstance(one, LdMatrix)], ids=lambda one: one.name)
def test_lane_maps_are_rebuilt_from_digits(instruction):
    """Without its instruction, the digits of an ownership give the same lanes the same elements."""
    program = right(through_registers(Move.done(instruction), FOLLOWS, (32, 32)), COPY if instruction.along else _columns())
    (statement, loops) = next(pair for pair in execs(program.stages["walk"].body) if pair[0].instruction == instruction)
    holding = Ownership.of(statement, statement.accesses[1], loops)
    forgotten = Ownership(Warp, holding.first, holding.digits)
    context = program.grown.context
    again = lanes_of(statement.spec, "dst", forgotten, context)
    assert again is not None and again.threads == 32
    assert first_difference(again, received(instruction.matrices, instruction.pairs)) is None


def _columns():
    return Move(32, 32, dtype=float16, src=ColMajor, dst=RowMajor)(GL, GL)(Kernel)


# ---------------------------------------------------------------------------------------------- stored strategies


@pytest.mark.parametrize(
    ("former", "start", "now"), [("LaneMove", Move, "Move"), ("LaneInit", Init, "Init"), ("LaneAtomicAdd", AtomicAdd, "AtomicAdd")]
)
def test_stored_lane_copies_load_as_thread_copies(former, start, now):
    """Stored strategies that name former lane-level copies load as the thread-level copies, which follow."""
    (today,) = (one for one in INSTRUCTIONS if one.name == now)
    text = start.tile(16, 16).to(Warp).done(today).to_json()
    stored = text.replace(f'"type": "{type(today).__name__}"', f'"type": "{former}"').replace(f'"name": "{now}"', f'"name": "{former}"')
    assert stored != text and Strategy.from_json(stored) == Strategy.from_json(text)


def test_missing_instruction_is_reported_at_the_line_of_done():
    chain = MatMul.tile(16, 16).to(Block)
    line = inspect.currentframe().f_lineno + 1
    strategy = chain.done()
    with pytest.raises(FireironError) as caught:
        _ = strategy(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    assert str(caught.value.at).endswith(f"test_register_ownership.py:{line}") and str(strategy.steps[-1].origin).endswith(
        f"test_register_ownership.py:{line}"
    )
