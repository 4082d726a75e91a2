"""Who holds what of registers: one rule, from whoever decides it to all others.

A product, a copy whose tiles are dealt to lanes, an ldmatrix: each says by its access which thread holds which elements. All that is
left out follows, whether it stands before or behind. NumPy is the reference.
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
from fireiron.language.tree import held_by
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
    """What the simulator computes, and what NumPy does."""
    spec = program.spec
    generator = np.random.default_rng(5)
    given = {
        name: integers([int(str(size)) for size in spec.operands[name].shape], spec.operands[name].dtype, generator) for name in spec.inputs
    }
    (output,) = spec.outputs
    return simulate(program.ir, given).outputs[output], spec.reference(*given.values())


def right(strategy, spec, target="sm_80"):
    """The program, if it prints and computes what NumPy does."""
    program = strategy(spec).program(target)
    assert program.cuda
    np.testing.assert_array_equal(*result(program))
    return program


def owners(program, buffer):
    """Which thread keeps which elements of a buffer in which registers, per kind of spec."""
    kernel = program.ir
    found = {}
    for statement, loops in execs(kernel.body):
        for access in statement.accesses:
            if access.buffer == buffer:
                held = accesses_of(kernel, kernel.buffer(buffer), [(statement, loops, access)])
                columns = (one.tolist() for one in (held.threads, held.registers, held.elements))
                found.setdefault(statement.spec.title, set()).update(zip(*columns))
    return found


def used(program):
    """The names of the instructions of a kernel."""
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


# ---------------------------------------------------------------------------------------------- the value


def enumerated(holding, program):
    """The elements that each thread holds by the digits of a holding."""
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
            for one, step in zip(holding.visited, picked):
                place[one.dim] += step
            yield thread, tuple(place)


class Nest:
    """A drawn nest of tiles below a block's accumulator: warps, lanes or threads, tiles in turn between them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.sizes = [self.pick((16, 24, 32, 48)), self.pick((16, 32, 40))]
        self.block = tuple(self.sizes)
        self.steps = []
        self.in_turn()
        warps = self.chance(0.6)
        if warps:
            self.dealt(Warp, 4)
            self.in_turn()
        self.dealt(self.pick((Lane, Thread)) if warps else Thread, 32, self.chance(0.4))
        if not isinstance(self.steps[-1][0], Strided):
            self.in_turn()

    def pick(self, values):
        return self.random.choice(list(values))

    def chance(self, probability):
        return self.random.random() < probability

    def divisors(self, size, most):
        return [one for one in range(1, size + 1) if size % one == 0 and size // one <= most]

    def in_turn(self):
        if self.chance(0.4):
            self.sizes = [self.pick(self.divisors(size, 4)) for size in self.sizes]
            self.steps.append((tuple(self.sizes), None, RowMajor, self.chance(0.5)))

    def dealt(self, level, units, strided=False):
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
def test_drawn_nests(seed):
    """The init and the store that are not written touch exactly what the product holds, under the same register numbers."""
    nest = Nest(seed)
    problem = MatMul(nest.block[0] + 7, nest.block[1] * 2 - 3, 6)(GL, GL, GL)(Kernel)
    program = right(nest.strategy(), problem)
    held = owners(program, "c_rf")
    assert held["Init"] == held["MatMul"] == held["Move"]
    assert len({element for _, _, element in held["Move"]}) == np.prod(nest.block)


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_digits_are_the_access(seed):
    """The digits of a holding name the elements that enumerating the deciding statement finds."""
    nest = Nest(seed)
    program = nest.strategy()(MatMul(*nest.block, 4)(GL, GL, GL)(Kernel)).program("sm_80")
    holding = held_by(program.tree)["c_rf"]
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
def test_indices_of_digits(base, digits, indices):
    """A coordinate is a number with the digits that were dealt; each index is found in it, as it was written or by division."""
    view = Init(1, 1)(RF)(Thread).dst
    one = (Mode(1, 1),)
    dealt = tuple(UnitMode(size, stride, True) for size, stride in digits)
    access = making.access(view.tensor.name, (base, ZERO), (one, one), (None, None), True, dealt=(dealt, ()))
    holding = Ownership.of(making.execution(INSTRUCTIONS[0], Init.on(Thread, view), (access,)), access, ())
    assert [(digit.size, digit.stride) for digit in holding.digits] == list(digits)
    at = {"lane": np.arange(32)}
    for digit, index in zip(holding.digits, indices):
        assert (compiled(digit.index)(at) == compiled(index)(at)).all()


# ---------------------------------------------------------------------------------------------- in any direction


COPY = Move(32, 32, dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)


def through_registers(load, store, tile=(16, 16)):
    """A warp's copy from shared memory through its registers."""
    return Move.tile(32, 32).to(Block).load(SRC, SH).tile(*tile).to(Warp).load(SRC, RF, load).then(store)


def test_a_warp_copies_by_ldmatrix_alone():
    """Figure 1d of Graphene: no product reads the registers, so the first ldmatrix that fits decides, and the store follows."""
    program = right(through_registers(FOLLOWS, FOLLOWS), COPY)
    assert {"LDMATRIX_16x16_ROW", "Move"} <= used(program)


@pytest.mark.parametrize("name", [name for name in LDMATRIX if "ROW" in name])
def test_the_ldmatrix_that_is_named_decides(name):
    program = right(through_registers(Move.done(LDMATRIX[name]), FOLLOWS, (32, 32)), COPY)
    assert name in used(program)


def test_a_store_dealt_to_lanes_decides_and_an_ldmatrix_delivers():
    """The tiles of the store are those of an 8x8 matrix: the load before it takes the instruction that fills exactly these lanes."""
    dealt = Move.tile(8, 8).tile(1, 2).to(Lane).done()
    program = right(through_registers(FOLLOWS, dealt), COPY)
    assert any(name.startswith("LDMATRIX") for name in used(program))
    columns = Move.tile(8, 8).tile(2, 1).to(Lane).layout(ColMajor).done()
    program = right(through_registers(FOLLOWS, columns), COPY)
    assert any(name.startswith("LDMATRIX") and name.endswith("_T") for name in used(program))


def test_a_store_of_other_lanes_is_followed_by_single_loads():
    program = right(through_registers(FOLLOWS, Move.tile(2, 4).to(Lane).tile(1, 4).done()), COPY)
    assert not any(name.startswith("LDMATRIX") for name in used(program))


@pytest.mark.parametrize("level", [Lane, Thread], ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (4, 2), (2, 4)], ids=str)
def test_a_load_dealt_to_lanes_decides(shape, level):
    """Neither an instruction nor a tile of the store says who holds what: the load does."""
    load = Move.tile(*shape).to(level).tile(1, 1).done()
    program = right(through_registers(load, FOLLOWS), COPY)
    assert len({(thread, register) for thread, register, _ in owners(program, "src_rf")["Move"]}) == 32 * 32


def test_nobody_decides():
    """Two copies that both follow: it is said that nothing else holds anything."""
    with pytest.raises(MatchError, match="registers requires an operand whose thread ownership another statement decides, got none"):
        _ = Move.tile(32, 32).to(Block).tile(16, 16).to(Warp).load(SRC, RF, FOLLOWS).done()(COPY).program("sm_80").tree


def test_a_load_that_is_not_given_follows_or_deals_element_by_element():
    """What is left out is an ldmatrix in front of a product, and where nobody decides the copy that is always right."""
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(16, 16).to(Warp).load(A, RF).load(B, RF)
    program = right(chain.mma_tile().done(), MatMul(50, 40, 32, **HALF)(GL, GL, GL)(Kernel))
    assert any(name.startswith("LDMATRIX") for name in used(program))
    chain = Move.tile(32, 32).to(Block).load(SRC, RF)
    right(chain.done(), COPY)
    right(chain.tile(2, 4).to(Thread).tile(1, 4).done(), COPY)


@pytest.mark.parametrize("given", ["lhs", "rhs", None])
def test_operands_of_arithmetic_follow_each_other(given):
    """One load says who holds what, or the body does: the other load and the sum follow."""
    load = Move.tile(1, 8).to(Thread).tile(1, 4).done()
    chain = BinaryPointwise.tile(32, 32).to(Block)
    for name in ("lhs", "rhs"):
        chain = chain.load(name, RF, load if name == given else None)
    chain = chain.tile(4, 2).to(Thread).tile(1, 1).done() if given is None else chain.done()
    program = right(chain, BinaryPointwise("+", 40, 50)(GL, GL, GL)(Kernel))
    assert owners(program, "lhs_rf")["Move"] == owners(program, "rhs_rf")["Move"] and program.ir.threads == 128


def test_fragments_of_a_block_are_shared():
    """What a group of lanes holds as a whole is loaded as a whole, by each warp that multiplies it."""
    fragment = FR(16, 16, 16)
    chain = MatMul.tile(32, 32).to(Block).epilog(fragment).split(16).load(A, fragment).tile(16, 16).to(Warp).load(B, fragment).done()
    right(chain, MatMul(64, 64, 32, **HALF)(GL, GL, GL)(Kernel))


def test_only_work_on_elements_follows():
    """What reads its neighbours needs them in its own registers: who holds one element does not hold all that it is made of."""
    flip = Kind("Flip", "y[m,n] = x[m ^ 1,n]").starter
    dual = Kind("Dual", "y[m,n] = x[m,n] + 1; z[m,n] = x[m,n] * 2").starter
    for one in (
        flip(4, 4)(RF, RF)(Warp),
        Shfl(1, 32, 4)(RF, RF)(Warp),
        Reduction(4, 4, 2)(RF, RF)(Warp),
        MatMul(4, 4, 4)(RF, RF, RF)(Warp),
    ):
        assert not elementwise(one)
    for one in (dual(4, 4)(RF, RF, RF)(Warp), Move(4, 4)(GL, RF)(Warp), Init(4, 4)(RF)(Warp), AtomicAdd(4, 4)(RF, GL)(Warp)):
        assert elementwise(one)


def test_while_the_chain_is_open_nobody_decides():
    """What comes behind may decide otherwise: an ldmatrix waits too."""
    partial = Move.tile(32, 32).to(Block).load(SRC, SH).tile(16, 16).to(Warp).load(SRC, RF, FOLLOWS)
    tree = partial(COPY).program("sm_80").tree
    assert not tree.complete and [str(leaf) for leaf in tree.open_leaves()] == ["Move(16,16)(RF,GL)(Warp)"]
    assert not list(execs(tree.child("body").child("body").child("body").child("move").program))


def test_several_steps_follow_one():
    """A copy of what is followed follows too: registers to registers, with a conversion between."""
    spec = Move(32, 32, dtype=float32, dst_dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    chain = Move.tile(32, 32).to(Block).tile(16, 16).to(Warp).load(SRC, RF, Move.tile(1, 8).to(Lane).done())
    right(chain.then(FOLLOWS), spec)


# ---------------------------------------------------------------------------------------------- levels


HALF = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": RowMajor, "C": RowMajor}


def mma_chain(*epilog, instruction=None, warps=(32, 16)):
    """A product by matrix instructions, with the epilog as given."""
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
def test_a_store_follows_at_any_level(store):
    """From the block down to tiles smaller than the instruction's, which the store visits by itself."""
    program = right(mma_chain(None, STORES[store]), MatMul(70, 60, 32, **HALF)(GL, GL, GL)(Kernel))
    held = owners(program, "c_rf")
    assert held["Move"] == held["MatMul"] == held["Init"]


def test_three_warps_along_n():
    """A mixed radix: digits are no bits."""
    chain = MatMul.tile(32, 48).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(16, 16).to(Warp).mma_tile()
    program = right(chain.load(A, RF, FOLLOWS).load(B, RF, FOLLOWS).done(), MatMul(50, 90, 16, **HALF)(GL, GL, GL)(Kernel))
    assert program.ir.threads == 6 * 32


def test_a_quarter_of_a_warp_follows():
    for store in (None, Move.tile(32, 16).to(Warp).done(), Move.tile(32, 16).to(Warp).tile(8, 8).to(QuadPair).done()):
        program = right(mma_chain(None, store, instruction=HMMA_884_F32_TN), MatMul(70, 60, 32, **HALF)(GL, GL, GL)(Kernel), "sm_70")
        held = owners(program, "c_rf")
        assert held["Move"] == held["MatMul"] == held["Init"]


def test_one_warp_that_is_asked_for_what_two_hold_is_refused():
    """A follower of one warp has that warp's threads only: what others hold, it does not store silently."""
    one = Move.tile(64, 16).to(Warp).done()
    with pytest.raises(MatchError, match="level +requires one whose threads own all of the 64x16 elements"):
        _ = mma_chain(None, one)(MatMul(64, 32, 16, **HALF)(GL, GL, GL)(Kernel)).program("sm_80").ir


def by_rows(permute, store):
    """64 threads with a row of four elements each, and a store whose first step divides the rows among two warps."""
    chain = MatMul.tile(64, 4).to(Block).epilog(RF, None, store).split(4).load(A, SH).load(B, SH).tile(1, 4).to(Thread).swizzle(permute)
    return right(chain.tile(1, 1).split(1).done(), MatMul(70, 9, 8)(GL, GL, GL)(Kernel))


def test_a_store_takes_a_part_of_a_digit():
    """The digit of 64 rows has its lower 32 in a warp, or, dealt otherwise, every second one."""
    by_rows(lambda uid: uid, Move.tile(32, 4).to(Warp).done())
    by_rows(lambda uid: uid % 32 * 2 + uid // 32, Move.tile(Strided((1, 2), (4, 4))).to(Warp).done())


def test_a_digit_goes_over_chunks_of_memory():
    """Eight rows of a matrix lie in two chunks of four in the other operand."""
    chain = Move.tile(32, 32).to(Block).tile(Strided((4, 8), (8, 16))).to(Warp).load(SRC, SH).load(SRC, RF, FOLLOWS).done()
    assert any(name.startswith("LDMATRIX") for name in used(right(chain, COPY)))


def test_idle_warps_store_nothing():
    """Three tiles for the four warps of a warpgroup."""
    chain = MatMul.tile(48, 16).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(48, 16).to(Warpgroup).tile(16, 16).to(Warp)
    program = right(chain.load(A, RF).load(B, RF).mma_tile().done(), MatMul(50, 40, 32, **HALF)(GL, GL, GL)(Kernel))
    held = owners(program, "c_rf")
    assert held["Init"] == held["MatMul"] == held["Move"] and {thread // 32 for thread, _, _ in held["Move"]} == {0, 1, 2}


def test_tiles_dealt_in_turns_are_refused():
    """Which tile is a thread's changes from turn to turn: its registers cannot hold all of them."""
    chain = MatMul.tile(48, 16).to(Block).epilog(RF).split(4).tile(24, 16).to(Warp).tile(1, 8).to(Lane).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match="c_rf cannot be divided over registers: its tiles are distributed in iterations"):
        _ = chain(MatMul(48, 32, 8)(GL, GL, GL)(Kernel)).program("sm_80").ir


def test_a_sum_of_parts_that_is_dealt_in_turns_says_whose_it_is():
    """20 x 32 sums for 64 threads, column by column: the error named neither them nor what deals them."""
    problem = MatMul.fuse_epilogue("acc + r[m]")(m=20, n=32, k=8, types={"r": float32, "C": float32})
    chain = MatMul.tile(20, 32).to(Block).split_k(2, Warp, 2)
    rest = MatMul.tile(4, 4).to(Lane).split(1).tile(1, 1).done()
    said = (
        r"Reduction\(1,1,2\)\(SH,RF\)\(Thread\), whose tile changes in each iteration(.|\n)*split_k distributes them by its last argument"
    )
    with pytest.raises(DecompositionError, match=said):
        _ = chain.then(rest)(problem).program("sm_80").ir
    dealt = MatMul.tile(20, 32).to(Block).split_k(2, Warp, 2, Reduction.tile(1, 1).to(Thread).layout(RowMajor).done())
    assert dealt.then(rest)(problem).program("sm_80").ir.threads == 64


def test_a_thread_follows_itself():
    """At the level of a thread all digits are visited."""
    chain = (
        MatMul.tile(32, 32).to(Block).tile(8, 8).to(Thread).epilog(RF).split(1).load(A, RF, ELEMENT).load(B, RF, ELEMENT).tile(1, 1).done()
    )
    right(chain, MatMul(40, 70, 5)(GL, GL, GL)(Kernel))


def test_atomic_additions_follow():
    chain = MatMul.split_k(2, Block, 16).tile(64, 32).to(Block).epilog(RF).split(16).load(A, SH).load(B, SH).tile(32, 16).to(Warp)
    chain = chain.tile(16, 16).unroll().mma_tile().load(A, RF, FOLLOWS).load(B, RF, FOLLOWS).done()
    program = right(chain, MatMul(70, 60, 64, **HALF)(GL, GL, GL)(Kernel))
    held = owners(program, "c_rf")
    assert held["AtomicAdd"] == held["MatMul"] == held["Init"]


# ---------------------------------------------------------------------------------------------- replicas, threads


@pytest.mark.parametrize("load", [FOLLOWS, None], ids=["done", "left out"])
@pytest.mark.parametrize("stage", [True, False], ids=["through SH", "from GL"])
def test_warps_along_n_share_a(load, stage):
    """A block's operand in registers: the digit of the warps along n moves nothing in A, so each of them holds it."""
    chain = MatMul.tile(32, 64).to(Block).epilog(RF).split(16)
    chain = (chain.load(A, SH).load(B, SH) if stage else chain).load(A, RF, load).tile(16, 16).to(Warp).load(B, RF, FOLLOWS)
    program = right(chain.mma_tile().done(), MatMul(60, 70, 32, **HALF)(GL, GL, GL)(Kernel))
    held = owners(program, "a_rf")
    assert held["Move"] == held["MatMul"] and program.ir.threads == 8 * 32
    copies = {}
    for thread, _, element in held["Move"]:
        copies.setdefault(element, set()).add(thread // 32 % 4)
    assert all(warps == {0, 1, 2, 3} for warps in copies.values())
    assert any(name.startswith("LDMATRIX") for name in used(program)) == stage


def test_threads_along_n_share_a():
    chain = (
        MatMul.tile(32, 32).to(Block).epilog(RF).split(4).load(A, RF).tile(8, 8).to(Thread).split(1).load(B, RF, ELEMENT).tile(1, 1).done()
    )
    program = right(chain, MatMul(32, 64, 8)(GL, GL, GL)(Kernel))
    held = owners(program, "a_rf")
    assert held["Move"] == held["MatMul"] and program.ir.threads == 16


@attrs.frozen
class Everybody(Decomposition):
    """Each unit of a level does all of it."""

    verb = "everybody"
    level: Level = Warp

    def threads(self, spec, context):
        return 2 * self.level.threads if spec.level == Block else None

    def expand(self, spec, context):
        return context.draft().expansion((Child("body", spec.at_level(self.level)),), (making.hole("body"),))


@pytest.mark.parametrize("store", [FOLLOWS, Move.then(Done(ThreadMove("Move")))], ids=["done", "named"])
def test_the_first_of_those_that_hold_the_same_stores(store):
    """Both warps load all of a tile; the store is the first one's, so that no element is written twice."""
    load = Move.then(Everybody()).tile(1, 8).to(Lane).tile(1, 1).done()
    program = right(Move.tile(16, 16).to(Block).load(SRC, RF, load).then(store), Move(32, 48)(GL, GL)(Kernel))
    held = owners(program, "src_rf")["Move"]
    assert program.ir.threads == 64 and {thread // 32 for thread, _, _ in held} == {0, 1}
    (stored,) = (one for one, _ in execs(program.ir.body) if one.spec.memories == (RF, GL))
    busy = np.broadcast_to(compiled(stored.active)({"thread": np.arange(64), "warp": np.arange(64) // 32}), 64)
    assert np.flatnonzero(busy).tolist() == list(range(32))


def test_additions_of_what_two_hold_count_once():
    """An atomic addition by both would add twice."""
    load = Move.then(Everybody()).tile(1, 8).to(Lane).tile(1, 1).done()
    chain = AtomicAdd.tile(16, 16).to(Block).load(SRC, RF, load).done()
    program = chain(AtomicAdd(32, 48)(GL, GL)(Kernel)).program("sm_80")
    source, target = np.arange(32 * 48, dtype=np.float32).reshape(32, 48), np.full((32, 48), 7, np.float32)
    np.testing.assert_array_equal(simulate(program.ir, {"src": source, "dst": target}).outputs["dst"], target + source)


def test_threads_are_counted_by_the_load_that_decides():
    """The body deals nothing: without the load's tiles a block would have one thread. A load to shared memory does not count."""
    load = Move.tile(2, 4).to(Thread).tile(1, 4).done()
    chain = Move.tile(32, 32).to(Block)
    assert right(chain.load(SRC, RF, load).done(), COPY).ir.threads == 32 * 32 // 8
    assert right(chain.load(SRC, SH, load).tile(4, 4).to(Thread).tile(1, 4).done(), COPY).ir.threads == 64


@pytest.mark.parametrize("load", ["Move.tile(1, 2)", "Move.tile(4, 2).tile(1, 2)"])
def test_tiles_of_some_threads_are_refused(load):
    """Two threads hold every second row each: a tile of one row is one's, and each would copy all rows over its own."""
    start = MatMul.tile(8, 16).to(Block)
    rest = lambda chain: chain.tile(2, 4).tile(1, 1).to(Thread).split(1).done()(MatMul(8, 16, 2)(GL, GL, GL)(Kernel)).program("sm_80")
    with pytest.raises(MatchError, match="tiles that cover all threads which own a part"):
        _ = rest(start.load(A, RF, eval(load).done())).lowered
    spec = rest(start.load(A, RF, Move.tile(2, 2).done()))
    a, b = np.arange(16.0).reshape(8, 2).astype("f4"), np.arange(32.0).reshape(2, 16).astype("f4")
    assert np.array_equal(simulate(spec.ir, {"A": a, "B": b}).outputs["C"], a @ b)


@pytest.mark.parametrize("k", (1, 7))
@pytest.mark.parametrize("between", ("", ".load(B, SH, Move.coalesced_copy(2).done())"))
def test_values_at_once_beyond_an_end_are_asked_one_by_one(k, between):
    """The product takes four elements along k at once, and so decides how many of B a thread holds; B ends among them."""
    chain = MatMul.tile(16, 48).to(Block).epilog(RF).tile(16, 48).to(Warp).load(B, RF).split(k=4).tile(16, 16)
    chain = eval(f"chain{between}").load(A, RF).load(B, RF).done()
    assert "if (0)" not in right(chain, MatMul(16, 48, k, dtype=float16)(GL, GL, GL)(Kernel)).cuda


# ---------------------------------------------------------------------------------------------- lanes from digits


@pytest.mark.parametrize("one", [one for one in LDMATRIX.values() if isinstance(one, LdMatrix)], ids=lambda one: one.name)
def test_lane_maps_come_back_from_digits(one):
    """A holding whose instruction is forgotten: its digits give the same lanes the same elements."""
    program = right(through_registers(Move.done(one), FOLLOWS, (32, 32)), COPY if one.along else _columns())
    (statement, loops) = next(pair for pair in execs(program.stages["walk"].body) if pair[0].instruction == one)
    holding = Ownership.of(statement, statement.accesses[1], loops)
    forgotten = Ownership(Warp, holding.first, holding.digits)
    context = program.grown.context
    again = lanes_of(statement.spec, "dst", forgotten, context)
    assert again is not None and again.threads == 32
    assert first_difference(again, received(one.matrices, one.pairs)) is None


def _columns():
    return Move(32, 32, dtype=float16, src=ColMajor, dst=RowMajor)(GL, GL)(Kernel)


# ---------------------------------------------------------------------------------------------- what was stored


@pytest.mark.parametrize(
    ("former", "start", "now"), [("LaneMove", Move, "Move"), ("LaneInit", Init, "Init"), ("LaneAtomicAdd", AtomicAdd, "AtomicAdd")]
)
def test_texts_with_instructions_that_are_no_more(former, start, now):
    """Strategies that name the copies of lanes of before are read as those of threads, which follow."""
    (today,) = (one for one in INSTRUCTIONS if one.name == now)
    text = start.tile(16, 16).to(Warp).done(today).to_json()
    stored = text.replace(f'"type": "{type(today).__name__}"', f'"type": "{former}"').replace(f'"name": "{now}"', f'"name": "{former}"')
    assert stored != text and Strategy.from_json(stored) == Strategy.from_json(text)


def test_what_no_instruction_does_is_told_where_done_stands():
    chain = MatMul.tile(16, 16).to(Block)
    line = inspect.currentframe().f_lineno + 1
    strategy = chain.done()
    with pytest.raises(FireironError) as caught:
        _ = strategy(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    assert str(caught.value.at).endswith(f"test_register_ownership.py:{line}") and str(strategy.steps[-1].origin).endswith(
        f"test_register_ownership.py:{line}"
    )
