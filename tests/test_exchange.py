"""Work across the threads of a block: reductions over registers, by shuffles and through shared memory. NumPy is the reference."""

import random

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check
from fireiron.errors import SimulationError
from fireiron.ir import Barrier, Exec, execs, rewritten
from fireiron.language.store import dumps, loads
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
    """Each strategy computes what NumPy does: checked, simulated, and printed, compiled and executed on the CPU."""
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
            (made,) = host.run(number, given).values()
            np.testing.assert_array_equal(made, expected)
    return programs


def used(program):
    return {statement.instruction.name for statement, _ in execs(program.ir.body)}


def masks(program):
    return [statement.spec.mask for statement, _ in execs(program.ir.body) if statement.spec.title == "Shfl"]


def barriers(program):
    found = []
    rewritten(program.ir.body, lambda one: found.append(one) or (one,) if isinstance(one, Barrier) else (one,))
    return len(found)


# ---------------------------------------------------------------------------------------------- reductions

BY_WARP = Reduction.tile(4).to(Block).tile(1).to(Warp).load(Move.src, RF, Move.tile(1, 4).to(Lane).done()).done()
BY_BLOCK = Reduction.tile(2).to(Block).load(Move.src, RF, Move.tile(1, 256).to(Warp).tile(1, 4).to(Lane).done()).done()
SEVERAL = Reduction.tile(8).to(Block).tile(4).to(Warp).load(Move.src, RF, Move.tile(1, 16).to(Lane).tile(1, 4).done()).done()


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int32, int8], ids=str)
@pytest.mark.parametrize("by", ["sum", "max", "min"])
def test_rows(by, dtype, tmp_path):
    """A row for each warp, several warps for two rows, several rows for a warp: rows lie across lanes, and the user writes no shuffle."""
    options = {"by": by, "dtype": dtype, "src": RowMajor}
    strategies = [
        BY_WARP(Reduction(30, 128, **options)(GL, GL)(Kernel)),
        BY_BLOCK(Reduction(11, 512, **options)(GL, GL)(Kernel)),
        SEVERAL(Reduction(20, 128, **options)(GL, GL)(Kernel)),
    ]
    for strategy in strategies:
        assert loads(dumps(strategy)) == strategy and eval(repr(strategy)) == strategy
    warp, block, several = agree(strategies, tmp_path)
    assert masks(warp) == masks(block) == [16, 8, 4, 2, 1] and masks(several) == [4, 2, 1]
    assert [barriers(one) for one in (warp, block, several)] == [0, 1, 0]


def test_the_text_of_a_row_sum():
    text = BY_WARP(Reduction(64, 128, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").cuda
    assert "sum_rf[0] = src_rf[0] + src_rf[1] + src_rf[2] + src_rf[3];" in text
    assert "sum_other[0] = __shfl_xor_sync(0xffffffff, sum_rf[0], 16);\n  sum_rf[0] = sum_rf[0] + sum_other[0];" in text
    assert "if (lane < 1)\n    dst[block * 4 + warp] = sum_rf[0];" in text
    text = BY_BLOCK(Reduction(64, 512, by="max", src=RowMajor)(GL, GL)(Kernel)).program("sm_80").cuda
    assert "max_rf[0] = fmaxf(max_rf[0], max_other[0]);" in text and "__syncthreads();  // max_sh complete" in text


def divisors(size):
    return [one for one in range(1, size + 1) if size % one == 0]


class Dealing:
    """A drawn dealing of a tile's dimensions to warps, lanes and turns, in any order."""

    def __init__(self, seed, shape):
        self.random = random.Random(seed)
        self.sizes = list(shape)
        self.chain = Move
        self.in_turn()
        if self.random.random() < 0.6:
            self.deal(Warp, self.random.choice((2, 3, 4)))
            self.in_turn()
            self.deal(self.random.choice((Lane, Thread)), 32)
        else:
            self.deal(Thread, self.random.choice((32, 64, 96, 128)))

    def in_turn(self):
        if self.random.random() < 0.4:
            self.sizes = [self.random.choice([one for one in divisors(size) if size // one <= 4]) for size in self.sizes]
            self.chain = self.chain.tile(*self.sizes)

    def deal(self, level, units):
        """Tiles for most of the units: which dimensions they lie along is drawn digit by digit."""
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
    """A reduction along drawn dimensions of a tile that is dealt anyhow."""
    choose = random.Random(seed).choice
    shape = choose(((16, 48), (8, 64), (32, 32), (4, 128), (64, 6), (8, 4, 12), (2, 16, 8), (6, 4, 16)))
    kept = sorted(random.Random(seed + 1).sample(range(len(shape)), choose(range(1, len(shape)))))
    axes = tuple(axis for axis in range(len(shape)) if axis not in kept)
    whole = [size * choose((1, 2)) + choose((0, 3)) if axis in kept else size for axis, size in enumerate(shape)]
    options = {"by": choose(("sum", "max", "min")), "dtype": choose((float32, float16, int32)), "src": choose((RowMajor, ColMajor))}
    spec = Reduction(*whole, axes=axes, **options)(GL, GL)(Kernel)
    load = Dealing(seed, shape).done()
    return Reduction.tile(*(shape[axis] for axis in kept)).to(Block).load(Move.src, RF, load).done()(spec)


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_drawn_dealings(seed, tmp_path):
    """Whichever dimensions go to warps, lanes and turns: by shuffles, through shared memory, or both."""
    agree([drawn(one) for one in range(seed, seed + 10)], tmp_path)


def test_drawn_dealings_take_all_ways():
    ways = {(bool(masks(program)), bool(barriers(program))) for program in (drawn(one).program("sm_80") for one in range(40))}
    assert ways == {(False, False), (False, True), (True, False), (True, True)}


def test_only_the_digits_of_the_reduced_dimension_are_shuffled():
    """They stand anywhere in the lane's number."""
    spec = Reduction(64, 16, src=RowMajor)(GL, GL)(Kernel)
    for order, found in ((RowMajor, [2, 1]), (ColMajor, [16, 8])):
        load = Move.tile(2, 4).to(Lane).layout(order).tile(1, 4).done()
        assert masks(Reduction.tile(16).to(Block).tile(16).to(Warp).load(Move.src, RF, load).done()(spec).program("sm_80")) == found


def test_rows_of_symbolic_sizes():
    """Rows and their length are known when the kernel is launched: a loop over the parts of a row, the last of which is filled up."""
    strategy = Reduction.tile(4).to(Block).tile(1).to(Warp).split(128).load(Move.src, RF, Move.tile(1, 4).to(Lane).tile(1, 1).done()).done()
    program = strategy(Reduction(sym("M"), sym("N"), src=RowMajor)(GL, GL)(Kernel)).program("sm_80")
    assert not errors(program.ir) and masks(program) == [16, 8, 4, 2, 1]
    for shape in ((30, 100), (1, 1), (9, 300)):
        array = whole_numbers(shape)
        np.testing.assert_array_equal(simulate(program.ir, {"src": array}).outputs["dst"], array.sum(axis=1))


def test_parts_of_split_k_meet_across_lanes():
    """The sum of split_k's parts is a reduction like any other: its parts may lie across lanes."""
    combine = Reduction.load(Move.src, RF, Move.tile(8, 1, 2).to(Thread).layout((2, 1, 0)).tile(1, 1, 1).done()).done()
    chain = MatMul.tile(16, 16).to(Block).split_k(8, Warp, 4, combine).tile(4, 2).to(Lane).epilog(RF).split(1)
    chain = chain.load(A, RF, Move.tile(1, 1).done()).load(B, RF, Move.tile(1, 1).done()).tile(1, 1).done()
    spec = MatMul(32, 16, 64)(GL, GL, GL)(Kernel)
    program = chain(spec).program("sm_80")
    left, right = whole_numbers((32, 64)), whole_numbers((64, 16), seed=4)
    assert not errors(program.ir) and masks(program) == [2, 1]
    np.testing.assert_array_equal(simulate(program.ir, {"A": left, "B": right}).outputs["C"], left @ right)


# ---------------------------------------------------------------------------------------------- planted faults


def result(kernel, array):
    return simulate(kernel, {"src": array}).outputs["dst"]


def test_a_missing_barrier_is_found():
    """By the static check, and by the simulator for some order of the warps."""
    kernel = BY_BLOCK(Reduction(8, 512, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").ir
    without = attrs.evolve(kernel, body=rewritten(kernel.body, lambda one: () if isinstance(one, Barrier) else (one,)))
    assert not errors(kernel) and any(one.kind == "race" for one in errors(without))
    with pytest.raises(SimulationError, match="sum_sh"):
        simulate(without, {"src": whole_numbers((8, 512))})


@pytest.mark.parametrize("number", range(5))
def test_a_wrong_mask_is_found(number):
    """A lane that joins what it has joined before: the result differs."""
    kernel = BY_WARP(Reduction(8, 128, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").ir
    array = whole_numbers((8, 128))
    shuffles = [one for one, _ in execs(kernel.body) if one.spec.title == "Shfl"]
    wrong = shuffles[(number + 1) % 5].spec

    def planted(one):
        return (attrs.evolve(one, spec=wrong),) if one is shuffles[number] else (one,)

    np.testing.assert_array_equal(result(kernel, array), array.sum(axis=1))
    assert (result(attrs.evolve(kernel, body=rewritten(kernel.body, planted)), array) != array.sum(axis=1)).any()


def test_results_that_all_lanes_write_are_found():
    """Without the condition that the first lane stores, 32 of them do."""
    kernel = BY_WARP(Reduction(8, 128, src=RowMajor)(GL, GL)(Kernel)).program("sm_80").ir

    def planted(one):
        return (attrs.evolve(one, active=as_expr(1)),) if isinstance(one, Exec) and one.accesses[-1].buffer == "dst" else (one,)

    without = attrs.evolve(kernel, body=rewritten(kernel.body, planted))
    assert any(one.kind == "race" for one in errors(without))
