"""Which threads share a memory, and levels above a launch, as values: order, names, and refusals."""

import pickle

import pytest

from fireiron import *
from fireiron.errors import ArgumentError, DecompositionError
from fireiron.language.store import dumps, loads
from fireiron.values.sharer import BLOCK, GRID, SHARERS, SYSTEM, THREAD, WARP, Sharer
from fireiron.values.units import check_below

SEQUENCE = Level("Sequence", consists_of=Kernel)
BY_THREADS = Move.tile(1, 1).to(Thread).done()


def test_sharers_are_ordered_by_their_number_of_threads():
    assert [str(one) for one in SHARERS] == ["system", "grid", "cluster", "block", "warpgroup", "warp", "thread"]
    for number, outer in enumerate(SHARERS):
        assert [outer.includes(other) for other in SHARERS] == [False] * number + [True] * (len(SHARERS) - number)
    between = Sharer("pair", 25)
    assert GRID.includes(between) and between.includes(BLOCK) and not between.includes(GRID)


@pytest.mark.parametrize("memory", [SH, GL, RF])
def test_a_memory_takes_a_sharer_or_its_name(memory):
    named = Memory("NEAR", 1, str(memory.shared_by), "near memory")
    assert named == Memory("NEAR", 1, memory.shared_by, "near memory") and named.like(memory)
    assert (named.of_grid, named.of_block, named.private) == (memory == GL, memory == SH, memory == RF)
    assert named.shared_by == memory.shared_by == str(memory.shared_by) and hash(named.shared_by) == hash(str(memory.shared_by))
    assert pickle.loads(pickle.dumps(named)) == named


@pytest.mark.parametrize("given", ["foo", "", 3, None, ("block",)])
def test_an_unknown_sharer_is_refused(given):
    with pytest.raises(ArgumentError, match="unknown shared_by") as caught:
        Memory("NEAR", 1, given, "near memory")
    assert "warpgroup" in caught.value.legal


def test_a_sharer_differs_from_another_with_its_name():
    with pytest.raises(ArgumentError, match="sharer block: the name is taken"):
        Memory("NEAR", 1, Sharer("block", 5), "near memory")
    for given in (("", 3), (None, 3), ("pair", "3"), ("pair", True)):
        with pytest.raises(ArgumentError):
            Sharer(*given)


@pytest.mark.parametrize("sharer", [one for one in (*SHARERS, Sharer("pair", 25)) if one not in (GRID, BLOCK, THREAD)], ids=str)
def test_a_memory_that_no_pass_orders_has_no_tensors(sharer):
    """Such a memory is a value, but a strategy or spec that stores a tensor in it is refused."""
    memory = Memory("NEAR", 1, sharer, "near memory")
    assert not (memory.of_grid or memory.of_block or memory.private or memory.in_shared)
    steps = MatMul.tile(8, 8).to(Block).split(8).load(A, memory, BY_THREADS).tile(1, 1).to(Thread).split(1).done()
    with pytest.raises(ArgumentError, match=r"a_near in NEAR: passes do not order accesses") as caught:
        _ = steps(MatMul(16, 16, 16)(GL, GL, GL)(Kernel)).program("sm_90").ir
    message = str(caught.value)
    assert f"shared by a {sharer}" in message and "legal   grid block thread" in message and "load(A, NEAR)" in message
    with pytest.raises(ArgumentError, match="C in NEAR"):
        MatMul(16, 16, 16)(GL, GL, memory)(Kernel)


def test_memories_of_all_sharers_are_stored():
    for sharer in (*SHARERS, Sharer("pair", 25, Warp)):
        strategy = MatMul.tile(8, 8).to(Block).load(A, Memory("NEAR", 1, sharer, "near memory"))
        assert loads(dumps(strategy)) == strategy
    assert '"shared_by": "warp"' in dumps(MatMul.load(A, Memory("NEAR", 1, WARP, "near memory")))


# ---------------------------------------------------------------------------------------------- levels above a launch


def test_a_level_above_a_launch_consists_of_launches():
    outer = Level("Graph", consists_of=SEQUENCE)
    assert SEQUENCE.is_above_launch and not SEQUENCE.is_launch and SEQUENCE.has_arguments and Kernel.has_arguments
    for level in (Kernel, Block, Warp, Thread, Lane):
        assert level.is_below(SEQUENCE) and level.is_below(outer) and not SEQUENCE.is_below(level) and not level.is_above_launch
    assert SEQUENCE.is_below(outer) and not outer.is_below(SEQUENCE) and not SEQUENCE.is_below(SEQUENCE)
    assert len({SEQUENCE, outer, Level("Sequence"), Kernel}) == 4 and Level("Sequence", consists_of=Kernel) == SEQUENCE


@pytest.mark.parametrize("given", [{"consists_of": Block}, {"consists_of": "Kernel"}, {"consists_of": Kernel, "parent": Block}])
def test_a_level_that_consists_of_no_launches_is_refused(given):
    with pytest.raises(ArgumentError, match="level Sequence: "):
        Level("Sequence", **given)


def test_operands_above_a_launch_are_in_global_memory():
    assert str(MatMul(16, 16, 16, A=RowMajor)(GL, GL, GL)(SEQUENCE)) == "MatMul(16,16,16)(GL,GL,GL)(Sequence) with A RowMajor"
    with pytest.raises(ArgumentError, match=r"MatMul\(SH, GL, GL\)\(Sequence\): the operands of a kernel must be in global memory"):
        MatMul(16, 16, 16)(SH, GL, GL)(SEQUENCE)


def test_decompositions_of_a_launch_do_not_apply_to_multiple_launches():
    with pytest.raises(DecompositionError, match=r"consists of launches: tile\(8, 8\).to\(Block\) divides the work of one launch"):
        _ = MatMul.tile(8, 8).to(Block)(MatMul(16, 16, 16)(GL, GL, GL)(SEQUENCE)).program("sm_90").tree
    for level in (Block, Warp, Thread):
        with pytest.raises(DecompositionError, match=rf"to\({level}\): Sequence consists of launches"):
            check_below(level, SEQUENCE, None, None)
    assert SYSTEM.level is None
