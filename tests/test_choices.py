"""The choices of each step for a spec: the legal arguments that the tuner, the fuzzer and messages use."""

import itertools
from pathlib import Path

import attrs
import pytest
from performed import context_of

from fireiron import *
from fireiron.specs.fused import fused
from fireiron.strategies import attention
from fireiron.values.expr import Var

KERNEL = MatMul(64, 48, 12)(GL, GL, GL)(Kernel)
BLOCK = MatMul(64, 48, 12)(GL, GL, GL)(Block)
WARP = MatMul(12, 8, 6)(SH, SH, RF)(Warp)
FLOAT16 = MatMul(16, 16, 16, dtype=float16)(SH, SH, SH)(Warp)
COPY = Move(24, 18)(GL, SH)(Block)
ATTENTION = attention.spec(64, 64, 16)
ROWS = ATTENTION.tile(m=16, r=1, g=1, b=1).to(Block).result


def offered(step, spec, distributed=False):
    """The choices for a spec; `distributed` to a warp of threads, or before any step defines the threads."""
    context = context_of(spec)
    context = attrs.evolve(context, workers=32, thread=Var("thread", 0, 31)) if distributed else context
    return list(step.choices(spec, context))


def divisors(number):
    return [size for size in range(1, number + 1) if number % size == 0]


def test_tiles_are_all_divisors():
    assert {one.sizes for one in offered(Tile(), WARP)} == set(itertools.product((1, 2, 3, 4, 6, 12), (1, 2, 4, 8)))
    huge = MatMul(2**31 - 1, 2**30, 1)(GL, GL, GL)(Block)
    assert len(offered(Tile(), huge)) == 2 * 31


def test_tiles_divide_the_contiguous_sizes_of_operands():
    """Three rows, and three others six rows further, do not form three pairs."""
    layout_tile = Move(24, 16)(GL, GL)(Kernel).tile(Layout((3, 2), (1, 6)), 8).to(Block).result
    assert {one.sizes for one in offered(Tile(), layout_tile)} == set(itertools.product((1, 3, 6), (1, 2, 4, 8)))


def test_chunks_of_a_split_are_all_divisors_of_the_reduced_size():
    assert [one.by_dim for one in offered(Split(), WARP)] == [(("k", size),) for size in divisors(6)]
    assert [one.by_dim for one in offered(Split(), ATTENTION)] == [
        ((dim, size),) for dim, of in (("n", 64), ("d", 16)) for size in divisors(of)
    ]


def test_loads_are_to_nearer_memories():
    assert [(one.operand, one.memory) for one in offered(Load("A", SH), WARP)] == [("A", RF), ("B", RF)]
    assert [(one.operand, one.memory) for one in offered(Load("A", SH), BLOCK)] == list(itertools.product("AB", (SH, RF)))
    assert offered(Load("A", SH), KERNEL) == [], "no group of threads shares them"


def test_epilogs_in_other_memories_and_wider_types():
    assert offered(Epilog(), WARP) == [Epilog(SH)]
    assert offered(Epilog(), BLOCK) == [Epilog(SH), Epilog(RF)]
    assert offered(Epilog(), FLOAT16) == [Epilog(RF), Epilog(RF, dtype=float32)]
    bfloats = MatMul(16, 16, 16, dtype=bfloat16)(SH, SH, SH)(Warp)
    assert offered(Epilog(), bfloats) == [Epilog(RF), Epilog(RF, dtype=float32)]
    assert offered(Epilog(), KERNEL) == [], "not at the kernel"
    assert offered(Epilog(), MatMul(sym("M"), 48, 12)(GL, GL, GL)(Block)) == [], "of known size"


@pytest.mark.parametrize(
    ("spec", "distributed", "level", "most"), [(KERNEL, False, Block, 4), (BLOCK, False, Warp, 4), (BLOCK, True, Warp, 1)]
)
def test_parts_of_k_are_as_many_as_there_are_units(spec, distributed, level, most):
    choices = [(one.parts, one.step) for one in offered(SplitK(2, Warp, 4), spec, distributed) if one.level == level]
    assert choices == list(itertools.product(range(1, most + 1), divisors(12)))


def test_parts_of_k_of_a_block_go_to_groups_of_warps_too():
    assert {one.level for one in offered(SplitK(2, Warp, 4), BLOCK)} == {Warpgroup, Warp}
    assert offered(SplitK(2, Warp, 4), MatMul(64, 48, sym("K"))(GL, GL, GL)(Kernel)) == [], "K is known"
    assert offered(SplitK(2, Warp, 4), COPY) == [], "a copy sums nothing"


def test_copies_of_several_threads_are_coalesced():
    assert offered(CoalescedCopy(4), COPY) == [CoalescedCopy(width) for width in (1, 2, 4, 8)]
    assert offered(CoalescedCopy(4), Move(24, 18)(GL, SH)(Thread)) == offered(CoalescedCopy(4), Move(24, 18)(GL, GL)(Kernel)) == []
    assert offered(CoalescedCopy(4), Move(24, sym("N"))(GL, SH)(Block)) == offered(CoalescedCopy(4), WARP) == []


def test_the_end_is_offered_where_an_instruction_performs_the_spec():
    """Without an instruction, and with each instruction that performs it unchanged."""
    spec = MatMul(1, 1, 1)(RF, RF, RF)(Thread)
    assert {type(found.executable).__name__ for found in offered(Done(), spec, distributed=True)} >= {"NoneType", "Fma"}
    assert offered(Done(), MatMul(3, 5, 7)(SH, SH, RF)(Warp), distributed=True) == []


def test_matrix_instructions_are_offered_to_warps():
    assert offered(MmaTile(), FLOAT16) == [MmaTile()]
    assert offered(MmaTile(), WARP) == offered(MmaTile(), BLOCK) == []


def test_layouts_of_repacked_operands():
    """A separate launch, so only at the kernel."""
    assert offered(Repack("A"), KERNEL) == [Repack(name, order=order) for name in "AB" for order in (None, RowMajor, ColMajor)]
    assert offered(Repack("A"), BLOCK) == []


# ---------------------------------------------------------------------------------------------- definitions


def test_reductions_are_offered_in_parts():
    """Maxima and sums that stay in registers; MMAs and pointwise values are not offered."""
    choices = [(one.step, one.parts) for one in offered(Rfactor("sums", 4), ROWS)]
    assert choices == list(itertools.product(("top", "sums"), (2, 4, 8, 16, 32)))
    assert offered(Rfactor("sums", 4), KERNEL) == []


def test_temporaries_are_placed_in_either_memory_and_padded():
    by_tensor = {}
    for choice in offered(SetMemory("s", SH), ROWS):
        by_tensor.setdefault(choice.tensor, []).append((choice.memory, choice.pad))
    assert {"mx", "l", "acc", "s", "p"} <= by_tensor.keys() and not by_tensor.keys() & set("QKVO")
    assert all(places == [(SH, 0), (SH, 1), (SH, 4), (RF, 0)] for places in by_tensor.values())
    assert offered(SetMemory("s", SH), KERNEL) == offered(SetMemory("s", SH), ATTENTION) == []


def test_each_step_of_a_definition_may_have_a_strategy():
    assert [one.name for one in offered(StepOf("s", ()), ROWS)] == list(fused(ROWS).names)
    assert offered(StepOf("s", ()), KERNEL) == []


def test_steps_are_skipped_where_values_of_one_shape_agree_or_are_zero_or_one():
    conditions = {one.where for one in offered(SkipSteps(("keep",), "alpha == 1"), ROWS)}
    assert {"alpha == 1", "alpha == 0", "mx == new"} <= conditions
    assert "mx == s" not in conditions, "of one shape"
    assert offered(SkipSteps(("keep",), "alpha == 1"), KERNEL) == []


def test_each_step_has_its_line():
    """For any verb: messages name the line."""
    block = MatMul.tile(64, 64).to(Block)
    verbs = {
        "tile": lambda: MatMul.tile(64, 64), "split": lambda: block.split(8), "load": lambda: block.load(A, SH), "epilog": lambda: block.epilog(RF),
        "split_k": lambda: block.split_k(2, Warp, 8), "repack": lambda: MatMul.repack(A), "mma_tile": lambda: block.tile(16, 16).to(Warp).mma_tile(),
        "coalesced_copy": lambda: Move.coalesced_copy(4), "done": lambda: block.done(), "text": lambda: block.done("c[0] = 0;"),
        "step": lambda: Fused.of(ATTENTION.kind).tile(m=16).to(Block).step("s", MatMul.split(16).done()),
    }  # fmt: skip
    for name, verb in verbs.items():
        origin = str(verb().steps[-1].origin)
        assert origin.rpartition(":")[0].endswith("test_choices.py"), name
        assert name in ("text", "step") or f'"{name}"' in LINES[int(origin.rpartition(":")[2]) - 1], name


LINES = Path(__file__).read_text(encoding="utf-8").splitlines()
