"""Communication between the threads of a block: register reductions by shuffles and through shared memory, compared with NumPy."""

import random

import attrs
import making
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.explain import explain
from fireiron.inspect.show import show
from fireiron.ir import Barrier, Exec, execs, rewritten
from fireiron.language.store import dumps, loads
from fireiron.language.substrategy import temporary
from fireiron.language.tree import Child
from fireiron.sim import simulate
from fireiron.values.expr import as_expr


def whole_numbers(shape, dtype=float32, seed=3):
    """Small integers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype.to_numpy())


def shape_of(view):
    return [int(str(size)) for size in view.shape]


def errors(kernel):
    return [one for one in check(kernel) if one.severity == "error"]


def agree(strategies, folder, sizes=None):
    """Each strategy computes the result of NumPy: checked, simulated, and printed, compiled and executed on the CPU."""
    programs = [strategy.program("sm_80") for strategy in strategies]
    cases = []
    for program in programs:
        spec = program.spec
        given = {
            name: whole_numbers(
                [(sizes or {}).get(str(size)) or int(str(size)) for size in spec.operands[name].shape], spec.operands[name].dtype
            )
            for name in spec.inputs
        }
        assert not errors(program.ir)
        expected = spec.reference(*given.values())
        np.testing.assert_array_equal(simulate(program.ir, given).outputs[spec.outputs[0]], expected)
        cases.append((given, expected))
    if COMPILER is not None:
        host = HostProgram(map(Printed.of, programs), folder)
        for number, (given, expected) in enumerate(cases):
            (result,) = host.run(number, given).values()
            np.testing.assert_array_equal(result, expected)
    return programs


def used(program):
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


def masks(program):
    return [statement.spec.mask for statement, _ in execs(program.ir.body) if statement.spec.title == "Shfl"]


def barriers(program):
    statements = []
    rewritten(program.ir.body, lambda one: statements.append(one) or (one,) if isinstance(one, Barrier) else (one,))
    return len(statements)


# ---------------------------------------------------------------------------------------------- reductions

BY_WARP = Reduction.tile(4).to(Block).tile(1).to(Warp).load(Move.src, RF, Move.tile(1, 4).to(Lane).done()).done()
BY_BLOCK = Reduction.tile(2).to(Block).load(Move.src, RF, Move.tile(1, 256).to(Warp).tile(1, 4).to(Lane).done()).done()
SEVERAL = Reduction.tile(8).to(Block).tile(4).to(Warp).load(Move.src, RF, Move.tile(1, 16).to(Lane).tile(1, 4).done()).done()


@pytest.mark.nightly
@pytest.mark.sampled(3)
@pytest.mark.parametrize("by", ["sum", "max", "min"])
def test_rows(by, tmp_path):
    """One warp per row, several warps for two rows, several rows per warp: rows extend across lanes, and the user writes no shuffle."""
    strategies = []
    for dtype in (float32, float16, bfloat16, float64, int32, int8):
        options = {"by": by, "dtype": dtype, "src": RowMajor}
        strategies.append(BY_WARP(Reduction(30, 128, **options)(GL, GL)(Kernel)))
        strategies.append(BY_BLOCK(Reduction(11, 512, **options)(GL, GL)(Kernel)))
        strategies.append(SEVERAL(Reduction(20, 128, **options)(GL, GL)(Kernel)))
    for strategy in strategies:
        assert loads(dumps(strategy)) == strategy and eval(repr(strategy)) == strategy
    programs = agree(strategies, tmp_path)
    assert [masks(one) for one in programs] == [[16, 8, 4, 2, 1], [16, 8, 4, 2, 1], [4, 2, 1]] * 6
    assert [barriers(one) for one in programs] == [0, 1, 0] * 6


def test_the_text_of_a_row_sum():
    text = BY_WARP(Reduction(64, 128, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").cuda
    assert "sum_rf[0] = src_rf[0] + src_rf[1] + src_rf[2] + src_rf[3];" in text
    assert "warp_reduce_sum(sum_rf);" in text and "sum_other" not in text
    assert "if (lane == 0)\n    dst[block * 4 + warp] = sum_rf[0];" in text
    text = BY_BLOCK(Reduction(64, 512, by="max", src=RowMajor)(GL, GL)(Kernel)).program("sm_80").cuda
    assert "warp_reduce_max(max_rf);" in text and "__syncthreads();  // max_sh complete" in text


def divisors(size):
    return [one for one in range(1, size + 1) if size % one == 0]


class Distribution:
    """A random distribution of a tile's dimensions to warps, lanes and iterations, in any order."""

    def __init__(self, seed, shape):
        self.random = random.Random(seed)
        self.sizes = list(shape)
        self.chain = Move
        self.in_random_order()
        if self.random.random() < 0.6:
            self.distribute(Warp, self.random.choice((2, 3, 4)))
            self.in_random_order()
            self.distribute(self.random.choice((Lane, Thread)), 32)
        else:
            self.distribute(Thread, self.random.choice((32, 64, 96, 128)))

    def in_random_order(self):
        if self.random.random() < 0.4:
            self.sizes = [self.random.choice([one for one in divisors(size) if size // one <= 4]) for size in self.sizes]
            self.chain = self.chain.tile(*self.sizes)

    def distribute(self, level, units):
        """Tiles for most of the units; the dimensions along which they extend are drawn digit by digit."""
        left = units
        for dim in self.random.sample(range(len(self.sizes)), len(self.sizes)):
            factor = self.random.choice([one for one in divisors(self.sizes[dim]) if one <= left][-2:])
            self.sizes[dim] //= factor
            left //= factor
        order = self.random.sample(range(len(self.sizes)), len(self.sizes))
        self.chain = self.chain.tile(*self.sizes).to(level).layout(tuple(order))

    def done(self):
        return self.chain.tile(*[1] * len(self.sizes)).done()


def drawn(seed):
    """A reduction along random dimensions of a randomly distributed tile."""
    choose = random.Random(seed).choice
    shape = choose(((16, 48), (8, 64), (32, 32), (4, 128), (64, 6), (8, 4, 12), (2, 16, 8), (6, 4, 16)))
    kept = sorted(random.Random(seed + 1).sample(range(len(shape)), choose(range(1, len(shape)))))
    axes = tuple(axis for axis in range(len(shape)) if axis not in kept)
    sizes = [size * choose((1, 2)) + choose((0, 3)) if axis in kept else size for axis, size in enumerate(shape)]
    options = {"by": choose(("sum", "max", "min")), "dtype": choose((float32, float16, int32)), "src": choose((RowMajor, ColMajor))}
    spec = Reduction(*sizes, axes=axes, **options)(GL, GL)(Kernel)
    load = Distribution(seed, shape).done()
    return Reduction.tile(*(shape[axis] for axis in kept)).to(Block).load(Move.src, RF, load).done()(spec)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(0, 60, 5))
def test_random_distributions(seed, tmp_path):
    """For any distribution of dimensions to warps, lanes and iterations: by shuffles, through shared memory, or both."""
    agree([drawn(one) for one in range(seed, seed + 5)], tmp_path)


def test_random_distributions_use_all_methods():
    every, ways = {(False, False), (False, True), (True, False), (True, True)}, set()
    for program in (drawn(one).program("sm_80") for one in range(40)):
        ways.add((bool(masks(program)), bool(barriers(program))))
        if ways == every:
            return
    assert ways == every


def test_only_the_digits_of_the_reduced_dimension_are_shuffled():
    """These digits may be anywhere in the lane number."""
    spec = Reduction(64, 16, src=RowMajor)(GL, GL)(Kernel)
    for order, expected in ((RowMajor, [2, 1]), (ColMajor, [16, 8])):
        load = Move.tile(2, 4).to(Lane).layout(order).tile(1, 4).done()
        assert masks(Reduction.tile(16).to(Block).tile(16).to(Warp).load(Move.src, RF, load).done()(spec).program("sm_80")) == expected


def test_rows_of_symbolic_sizes():
    """The number of rows and their length are known at launch: a loop over the parts of a row, the last one padded."""
    strategy = Reduction.tile(4).to(Block).tile(1).to(Warp).split(128).load(Move.src, RF, Move.tile(1, 4).to(Lane).tile(1, 1).done()).done()
    program = strategy(Reduction(sym("M"), sym("N"), src=RowMajor)(GL, GL)(Kernel)).program("sm_80")
    assert not errors(program.ir) and masks(program) == [16, 8, 4, 2, 1]
    for shape in ((30, 100), (1, 1), (9, 300)):
        array = whole_numbers(shape)
        np.testing.assert_array_equal(
            simulate(program.ir, {"src": array}, symbols={"M": shape[0], "N": shape[1]}).outputs["dst"], array.sum(axis=1)
        )


def test_lanes_in_another_order_exchange_through_shared_memory(tmp_path):
    """In a permutation of the lanes, no digits of the lane number select the lanes that own a term."""
    strategies = []
    for permutation in (lambda uid: uid ^ 3, lambda uid: (uid + 5) % 32):
        load = Move.tile(1, 4).to(Lane).swizzle(permutation).tile(1, 4).done()
        chain = Reduction.tile(4).to(Block).tile(1).to(Warp).load(Move.src, RF, load).done()
        strategies.append(chain(Reduction(16, 128, src=RowMajor)(GL, GL)(Kernel)))
    assert [(masks(program), barriers(program)) for program in agree(strategies, tmp_path)] == [([], 1)] * 2


def test_terms_owned_by_other_warps_are_refused():
    """Two warps own a row that is reduced at the level of one warp."""
    chain = Reduction.tile(2).to(Block).load(Move.src, RF, Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).tile(1, 1).done()).tile(1).to(Warp)
    with pytest.raises(MatchError, match="the threads do not own all elements of src_rf that they reduce") as caught:
        _ = chain.done()(Reduction(8, 128)(GL, GL)(Kernel)).program("sm_80").ir
    assert "requires one whose threads own all of the 1x128 elements, got Warp" in str(caught.value)


def test_parts_of_split_k_are_reduced_across_lanes():
    """The sum of split_k's parts is an ordinary reduction, so its parts may extend across lanes."""
    combine = Reduction.load(Move.src, RF, Move.tile(8, 1, 2).to(Thread).layout((2, 1, 0)).tile(1, 1, 1).done()).done()
    chain = MatMul.tile(16, 16).to(Block).split_k(8, Warp, 4, combine).tile(4, 2).to(Lane).epilog(RF).split(1)
    chain = chain.load(A, RF, Move.tile(1, 1).done()).load(B, RF, Move.tile(1, 1).done()).tile(1, 1).done()
    spec = MatMul(32, 16, 64)(GL, GL, GL)(Kernel)
    program = chain(spec).program("sm_80")
    left, right = whole_numbers((32, 64)), whole_numbers((64, 16), seed=4)
    assert not errors(program.ir) and masks(program) == [2, 1]
    np.testing.assert_array_equal(simulate(program.ir, {"A": left, "B": right}).outputs["C"], left @ right)


# ---------------------------------------------------------------------------------------------- exchange

BY_ROWS = Move.tile(1, 4).to(Thread).tile(1, 4).done()
BY_COLUMNS = Move.tile(4, 1).to(Thread).layout(ColMajor).tile(4, 1).done()
TRANSPOSE = Move(64, 96, src=RowMajor, dst=ColMajor)(GL, GL)(Kernel)


def test_a_copy_between_two_distributions(tmp_path):
    """Loaded by rows, stored by columns, both by vectors with one barrier between; by the block, and by each warp for itself."""
    block = Move.tile(32, 32).to(Block)
    by_block = block.load(Move.src, RF, BY_ROWS).load(Move.src, RF).tile(4, 1).to(Thread).layout(ColMajor).tile(4, 1).done()
    lanes = Move.tile(1, 4).to(Lane).tile(1, 4).done()
    by_warp = block.tile(16, 8).to(Warp).load(Move.src, RF, lanes).load(Move.src, RF).tile(4, 1).to(Lane).layout(ColMajor).tile(4, 1).done()
    alone = block.load(Move.src, RF, BY_ROWS).load(Move.src, RF, Move.done()).then(BY_COLUMNS)
    first, second, third = agree([chain(TRANSPOSE) for chain in (by_block, by_warp, alone)], tmp_path)
    assert [barriers(one) for one in (first, second, third)] == [1, 1, 1]
    assert "__syncthreads();  // src_rf2_sh complete" in first.cuda and "__syncwarp();" in second.cuda
    assert first.cuda.count("float4*>(src_rf)") == 2 and first.ir.buffer("src_rf2_sh").bytes == 32 * 32 * 4
    assert second.ir.buffer("src_rf2_sh").bytes == 32 * 32 * 4, "each of the eight warps has its own part"


def test_equal_distributions_need_no_exchange():
    chain = Move.tile(32, 32).to(Block).load(Move.src, RF, BY_ROWS).load(Move.src, RF).tile(1, 4).to(Thread).tile(1, 4).done()
    assert barriers(chain(TRANSPOSE).program("sm_80")) == 0


def test_operands_with_other_distributions_are_exchanged(tmp_path):
    """The first operand decides which thread computes an element; the others are exchanged to match it."""
    spec = BinaryPointwise("-", 64, 96, lhs=RowMajor)(GL, GL, GL)(Kernel)
    chain = BinaryPointwise.tile(32, 32).to(Block).load("lhs", RF, BY_ROWS).load("rhs", RF, BY_COLUMNS).done()
    (program,) = agree([chain(spec)], tmp_path)
    assert barriers(program) == 1 and program.ir.buffer("rhs_sh").bytes == 32 * 32 * 4
    assert loads(dumps(chain)) == chain


def test_store_distributed_unlike_the_product(tmp_path):
    """The accumulator is in the registers of the threads that multiply; the store reads it through shared memory."""
    store = Move.load(Move.src, RF).tile(4, 1).to(Thread).layout(ColMajor).tile(4, 1).done()
    element = Move.tile(1, 1).done()
    chain = MatMul.tile(32, 32).to(Block).epilog(RF, None, store).split(8).load(A, SH).load(B, SH)
    chain = chain.tile(2, 2).to(Thread).split(1).load(A, RF, element).load(B, RF, element).tile(1, 1).done()
    agree([chain(MatMul(64, 60, 20)(GL, GL, GL)(Kernel))], tmp_path)


def two_distributions(seed):
    """A sum whose operands have two random distributions."""
    choose = random.Random(seed).choice
    shape = choose(((16, 48), (32, 32), (8, 12), (8, 4, 12), (2, 16, 8)))
    sizes = [size * choose((1, 2)) + choose((0, 3)) for size in shape]
    options = {name: choose((RowMajor, ColMajor)) for name in ("lhs", "rhs", "dst")}
    spec = BinaryPointwise("+", *sizes, dtype=choose((float32, float16, int32)), **options)(GL, GL, GL)(Kernel)
    chain = BinaryPointwise.tile(*shape).to(Block).load("lhs", RF, Distribution(seed, shape).done())
    return chain.load("rhs", RF, Distribution(seed + 1000, shape).done()).done()(spec)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_random_distributions_are_exchanged(seed, tmp_path):
    programs = agree([two_distributions(one) for one in range(seed, seed + 5)], tmp_path)
    assert any(barriers(program) for program in programs)


def test_explain_names_the_exchange():
    strategy = Move.tile(32, 32).to(Block).load(Move.src, RF, BY_ROWS).load(Move.src, RF).then(BY_COLUMNS)(TRANSPOSE)
    places = [(leaf.place, str(leaf.spec)) for leaf in explain(strategy, "sm_80").leaves]
    assert ("done() given", "Move(32,32)(RF,SH)(Block)") in places and ("done() taken", "Move(32,32)(SH,RF)(Block)") in places
    assert "src_rf to the threads that need it, through src_rf2_sh" in strategy.program("sm_80").cuda


# ---------------------------------------------------------------------------------------------- transposed copies


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", [float32, float16, int8], ids=str)
def test_transposed(dtype, tmp_path):
    """By single elements, through shared memory with vectors on both sides, through registers; the last tiles extend past the edge."""
    cases = []
    for src, dst, shape in ((RowMajor, RowMajor, (96, 64)), (RowMajor, ColMajor, (70, 101)), (ColMajor, ColMajor, (33, 32))):
        spec = Move(*shape, signature="mn->nm", dtype=dtype, src=src, dst=dst)(GL, GL)(Kernel)
        array = whole_numbers(shape[::-1], dtype)
        np.testing.assert_array_equal(spec.reference(array), array.T)
        block = Move.tile(32, 32).to(Block)
        for chain in (
            block.tile(1, 1).to(Thread).done(),
            block.tile(4, 1).to(Thread).tile(4, 1).done(),
            block.coalesced_copy(4).done(),
            block.load(Move.src, SH, Move.coalesced_copy(4).done()).pad(1).coalesced_copy(4).done(),
            block.load(Move.src, RF, Move.tile(2, 4).to(Thread).tile(1, 4).done()).done(),
        ):
            assert loads(dumps(chain(spec))) == chain(spec) and eval(repr(spec)) == spec
            cases.append(chain(spec))
    agree(cases, tmp_path)


def test_rows_that_become_columns_are_a_plain_copy():
    """If the same elements are adjacent in storage on both sides, vectors are legal on both."""
    spec = Move(128, 64, signature="mn->nm", src=RowMajor, dst=ColMajor)(GL, GL)(Kernel)
    for chain in (
        Move.tile(32, 32).to(Block).tile(4, 1).to(Thread).tile(4, 1).done(),
        Move.tile(32, 32).to(Block).coalesced_copy(4).done(),
    ):
        assert chain(spec).program("sm_80").cuda.count("float4*>(&") == 2


def test_transposed_of_three_dimensions(tmp_path):
    spec = Move(6, 5, 8, signature="mnp->pnm", src=RowMajor)(GL, GL)(Kernel)
    array = whole_numbers((8, 5, 6))
    np.testing.assert_array_equal(spec.reference(array), array.transpose(2, 1, 0))
    agree(
        [Move.tile(2, 5, 4).to(Block).tile(1, 1, 1).to(Thread).done()(spec), Move.tile(6, 5, 8).to(Block).coalesced_copy(2).done()(spec)],
        tmp_path,
    )


@pytest.mark.parametrize("seed", range(0, 20, 10))
def test_random_distributions_are_transposed(seed, tmp_path):
    """The store matches the distribution of the load, whichever it is."""
    strategies = []
    for number in range(seed, seed + 10):
        choose = random.Random(number).choice
        shape = choose(((16, 48), (32, 32), (8, 12), (64, 6)))
        spec = Move(shape[1] + 3, shape[0] * 2, signature="mn->nm", src=choose((RowMajor, ColMajor)))(GL, GL)(Kernel)
        chain = Move.tile(*shape[::-1]).to(Block).load(Move.src, RF, Distribution(number, shape).done())
        strategies.append(chain.done()(spec))
    agree(strategies, tmp_path)


def test_matrices_of_eight_are_not_transposed_by_a_plain_ldmatrix():
    """Instructions that copy matrices unchanged do not perform a transposing copy."""
    spec = Move(16, 16, signature="mn->nm", dtype=float16, src=RowMajor)(SH, RF)(Warp)
    performing = [one.name for one in INSTRUCTIONS if one.may_perform(spec) and not one.mismatches(spec, ARCHITECTURES[-1])]
    assert performing == [] and spec.moves and not spec.copies


# ---------------------------------------------------------------------------------------------- tiles with several iterations


def in_iterations(seed):
    """A tile of which each unit has several parts along its slowest dimension; in the last iteration some units are idle."""
    choose = random.Random(seed).choice
    rows, long, width = choose((1, 2, 4, 8)), choose((20, 36, 40, 100, 160)), choose((1, 2, 4))
    level = choose((Lane, Thread))
    unit = Move.tile(1, width).to(level).layout(ColMajor).tile(1, 1).done()
    flipped = Move.tile(width, 1).to(level).layout(RowMajor).tile(1, 1).done()
    return ((rows, long), unit) if choose((0, 1)) else ((long, rows), flipped)


def several_times(seed):
    """A copy, a transposing copy, and a reduction along either dimension, of a tile whose parts the lanes of a warp process in several
    iterations.
    """
    choose = random.Random(seed + 7).choice
    shape, load = in_iterations(seed)
    sizes = [size + choose((0, 3)) for size in shape]
    axis = choose((0, 1))
    order = {"src": choose((RowMajor, ColMajor))}
    sizes[axis] = shape[axis]
    specs = (
        (Move(*sizes, **order), shape),
        (Move(*sizes[::-1], signature="mn->nm", **order), shape[::-1]),
        (Reduction(*sizes, axes=axis, by=choose(("sum", "max", "min")), **order), (shape[1 - axis],)),
    )
    for operation, tile in specs:
        block = operation(GL, GL)(Kernel).tile(*tile).to(Block)
        yield block.tile(*tile).to(Warp).load(Move.src, RF, load).done()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(0, 24, 8))
def test_registers_of_several_iterations(seed, tmp_path):
    """The registers of each iteration follow those of the previous one; in the last iteration some lanes have none."""
    programs = agree([strategy for number in range(seed, seed + 8) for strategy in several_times(number)], tmp_path)
    assert any("src_rf_" in program.cuda and " < " in program.cuda for program in programs)


def test_a_row_that_32_lanes_do_not_divide():
    program = BY_WARP(Reduction(30, 160, src=RowMajor)(GL, GL)(Kernel)).program("sm_80")
    assert "if (src_rf_p * 32 + lane < 40)" in program.cuda and "if (p * 128 + lane * 4 < 160)" in program.cuda
    assert program.ir.buffer("src_rf").bytes == 8 * 4, "two iterations of four elements"


def test_iterations_that_mix_two_dimensions_are_refused():
    """With 3 columns of tiles for 32 lanes, the row of a lane differs between iterations."""
    load = Move.tile(1, 8).to(Lane).tile(1, 1).done()
    chain = Move.tile(16, 24).to(Block).tile(16, 24).to(Warp).load(Move.src, RF, load).done()
    with pytest.raises(DecompositionError, match="src_rf cannot be divided over registers: its tiles are distributed in iterations"):
        _ = chain(Move(64, 48)(GL, GL)(Kernel)).program("sm_80").ir


# ---------------------------------------------------------------------------------------------- results that stay in registers

SOFTMAX = Kind("Softmax", "y[m,n] = exp(x[m,n])").starter
"""The formula cannot name the inner sum, so the decomposition defines it."""


@attrs.frozen
class Softmax(Decomposition):
    """Normalize the powers of each row to sum 1; the row's statistics are in memory that the step allocates."""

    verb = "softmax"
    memory: Memory = RF

    def expand(self, spec, context):
        draft = context.draft()
        x, y = spec.operands["x"], spec.operands["y"]
        power, of_power = temporary(spec, draft, "power", x.shape, float32, RF)
        top, of_top = temporary(spec, draft, "top", x.shape[:1], float32, self.memory)
        total, of_total = temporary(spec, draft, "total", x.shape[:1], float32, self.memory)
        steps = {
            "most": Reduction.on(spec.level, x, top, by="max"),
            "power": Pointwise.on(spec.level, x, top, power, formula="y[m,n] = exp(x[m,n] - t[m])"),
            "all": Reduction.on(spec.level, power, total),
            "rest": Pointwise.on(spec.level, power, total, y, formula="y[m,n] = x[m,n] / t[m]"),
        }
        children = (of_power, of_top, of_total, *(Child(f"{name}_step", one, (Done(),)) for name, one in steps.items()))
        return draft.expansion(children, tuple(making.hole(child.name) for child in children))


def softmax(array):
    power = np.exp(array - array.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


DISTRIBUTIONS = {
    "a row for a warp": (4, Warp, Move.tile(1, 4).to(Lane).tile(1, 4).done()),
    "rows of several warps": (2, Block, Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()),
    "several rows for a warp": (8, Warp, Move.tile(2, 8).to(Lane).tile(1, 4).done()),
}


@pytest.mark.parametrize("memory", [RF, SH], ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_results_are_replicas_for_those_that_read_them(name, memory, tmp_path):
    """All lanes of a row have its maximum and its sum, so later steps use their own registers without another exchange."""
    rows, level, load = DISTRIBUTIONS[name]
    chain = SOFTMAX.tile(rows, 128).to(Block)
    chain = chain if level == Block else chain.tile(rows // 4 if rows > 4 else 1, 128).to(level)
    spec = SOFTMAX(30, 128, x=RowMajor, y=RowMajor)(GL, GL)(Kernel)
    program = chain.load("x", RF, load).then(Softmax(memory))(spec).program("sm_80")
    assert not errors(program.ir)
    assert len(masks(program)) == 2 * {"several rows for a warp": 4}.get(name, 5)
    assert bool(barriers(program)) == (memory == SH or level == Block)
    array = whole_numbers((30, 128)) / 4
    np.testing.assert_allclose(simulate(program.ir, {"x": array}).outputs["y"], softmax(array), rtol=1e-5)
    if COMPILER is not None:
        (result,) = HostProgram([Printed.of(program)], tmp_path).run(0, {"x": array}).values()
        np.testing.assert_allclose(result, softmax(array), rtol=1e-5)


def test_allocations_of_a_step_are_counted():
    """An `Allocate` in the tree needs no instruction and has no statement, and its bytes count for the kernel."""
    chain = SOFTMAX.tile(4, 128).to(Block).load("x", RF, Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).then(Softmax(SH))
    program = chain(SOFTMAX(32, 128)(GL, GL)(Kernel)).program("sm_80")
    allocations = [node for node in program.tree.nodes() if node.spec.title == "Allocate"]
    assert {"Allocate(4)(SH)(Block)", "Allocate(4,128)(RF)(Block)"} <= {str(node.spec) for node in allocations}
    assert all(node.complete and not node.program and not node.children for node in allocations)
    sizes = {buffer.name: buffer.bytes for buffer in program.ir.buffers if buffer.memory == SH}
    assert sizes["top"] == sizes["total"] == 4 * 4 and program.ir.shared_bytes >= sum(sizes.values())
    assert {buffer.name: buffer.bytes for buffer in program.ir.buffers}["power"] == 4 * 128 * 4 // program.ir.threads
    assert "Allocate" not in str(explain(program.strategy, "sm_80").leaves) and "needs no instruction" in "".join(map(str, show(program)))


def test_the_texts_are_taken():
    """NVRTC compiles the texts, if it is installed."""
    for number in range(4) if toolchains() else ():
        for strategy in (drawn(number), two_distributions(number), *several_times(number)):
            compile_cuda(strategy.program("sm_80").cuda, "sm_90")


# ---------------------------------------------------------------------------------------------- injected faults


def result(kernel, array):
    return simulate(kernel, {"src": array}).outputs["dst"]


EXCHANGED = (
    Move.tile(32, 32).to(Block).load(Move.src, RF, BY_ROWS).load(Move.src, RF).tile(4, 1).to(Thread).layout(ColMajor).tile(4, 1).done()
)
FAULTY = {"sum_sh": BY_BLOCK(Reduction(8, 512, src=RowMajor)(GL, GL)(Kernel)), "src_rf2_sh": EXCHANGED(TRANSPOSE)}


@pytest.mark.parametrize("buffer", FAULTY)
def test_a_missing_barrier_is_found(buffer):
    """The static check and the simulator both report it."""
    program = FAULTY[buffer].program("sm_80")
    kernel = program.ir
    without = attrs.evolve(kernel, body=rewritten(kernel.body, lambda one: () if isinstance(one, Barrier) else (one,)))
    assert not errors(kernel) and any(one.kind == "race" for one in errors(without))
    with pytest.raises(SimulationError, match=buffer):
        simulate(without, {"src": whole_numbers(shape_of(program.spec.src))})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", range(5))
def test_a_wrong_mask_is_found(number):
    """A lane combines with a lane that it has combined with before, so the result differs."""
    kernel = BY_WARP(Reduction(8, 128, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").ir
    array = whole_numbers((8, 128))
    shuffles = [one for one, _ in execs(kernel.body) if one.spec.title == "Shfl"]
    wrong = shuffles[(number + 1) % 5].spec

    def changed(stmt):
        return (attrs.evolve(stmt, spec=wrong),) if stmt is shuffles[number] else (stmt,)

    np.testing.assert_array_equal(result(kernel, array), array.sum(axis=1))
    assert (result(attrs.evolve(kernel, body=rewritten(kernel.body, changed)), array) != array.sum(axis=1)).any()


def test_results_that_all_lanes_write_are_found():
    """Without the condition for the first lane, 32 lanes store."""
    kernel = BY_WARP(Reduction(8, 128, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").ir

    def changed(stmt):
        return (attrs.evolve(stmt, active=as_expr(1)),) if isinstance(stmt, Exec) and stmt.accesses[-1].buffer == "dst" else (stmt,)

    without = attrs.evolve(kernel, body=rewritten(kernel.body, changed))
    assert any(one.kind == "race" for one in errors(without))
