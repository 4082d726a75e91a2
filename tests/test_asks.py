"""Requests of refinements to passes (`ir.asks`): each is handled by the pass that it names, or rejected; none is lost."""

import attrs
import making
import numpy as np
import pytest

from fireiron import *
from fireiron import ir
from fireiron.errors import LayoutError, VerificationError
from fireiron.ir.ask import NOTHING, Ask, Asks, number_of, pair_of
from fireiron.ir.asks import kinds
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.asks.separate_masks import SeparateMasks
from fireiron.ir.asks.storing import Storing
from fireiron.ir.verifier import verify_asks
from fireiron.lower.passes import PASSES
from fireiron.values.expr import Var, as_expr

EACH = (
    Pipelined(3, True), ProducerThreads(128, True, ("A", "B")), PendingMmas(0), PendingMmas(0, True), ConsumerGroups(2), Deferred("pv", "s"), OrderedMma("s", "pv"), DynamicTiles("tile", Var("tiles", 0, 9) + 1), Storing(2), SeparateMasks(True),
)  # fmt: skip
SPLIT = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block).epilog(RF).split(16)


def test_each_kind_names_a_pass():
    assert {type(one) for one in EACH} == set(kinds())
    assert {one.taker for one in kinds()} <= {name for name, _ in PASSES}


@pytest.mark.parametrize("ask", EACH, ids=lambda one: type(one).__name__)
def test_a_listing_writes_and_reads_each(ask):
    written = ask.written(str)
    assert set(written) <= {part.partition("=")[0] for option in ask.options for part in option.split()}
    assert type(ask).read(written, lambda text: ask.tiles) == ask
    assert Asks((type(ask)(),)) == NOTHING, "without arguments it requests nothing"


def test_options_that_are_neither_a_number_nor_a_pair():
    assert (number_of({"stages": " 3 "}, "stages", 0), number_of({}, "stages", 7), pair_of({"delay": "a:b"}, "delay")) == (3, 7, ("a", "b"))
    for text in ("", "-1", "three", "1.0"):
        with pytest.raises(LayoutError, match="stages must be a number"):
            number_of({"stages": text}, "stages", 0)
    for text in ("a", "a:b:c"):
        with pytest.raises(LayoutError, match="delay takes two names"):
            pair_of({"delay": text}, "delay")


def test_variables_are_replaced_in_asks():
    tiles = Var("tiles", 0, 9)
    loop = making.loop(Var("k", 0, 7), as_expr(8), dynamic_tiles=("tile", tiles + 1), consumer_groups=2)
    assert loop.substitute({tiles: as_expr(4)}).asks == Asks((DynamicTiles("tile", as_expr(5)), ConsumerGroups(2)))
    assert loop.without(DynamicTiles, ConsumerGroups) == making.loop(Var("k", 0, 7), as_expr(8))


@attrs.frozen
class Foreign(Ask):
    """An ask of a kind that no pass knows."""

    declared: bool = False


def test_unknown_asks_are_kept_and_rejected():
    program = SPLIT.tile(4, 4).to(Thread).tile(1, 1).split(1).done().program("sm_80")
    walked = program.walked
    program_ir = attrs.evolve(walked, body=tuple(_with_asks(one) for one in walked.body))
    for _, function in PASSES:
        program_ir = ir.verify(function(program_ir))
    with pytest.raises(VerificationError, match=r"loop k still requests Foreign\(declared=True\)"):
        ir.verify(program_ir, final=True)


def _with_asks(statement: ir.Stmt) -> ir.Stmt:
    statement = statement.rebuilt(tuple(tuple(map(_with_asks, child)) for child in statement.children)) if statement.children else statement
    return statement.with_asks(Foreign(True)) if isinstance(statement, ir.For) and statement.var.name == "k" else statement


@pytest.mark.parametrize("ask", EACH, ids=lambda one: type(one).__name__)
def test_asks_are_kept_until_their_pass_and_rejected_after_it(ask):
    names = [name for name, _ in PASSES]
    kernel = making.kernel(body=(making.loop(Var("k", 0, 7), as_expr(8)).with_asks(ask),))
    verify_asks(kernel, names[: names.index(ask.taker)])
    with pytest.raises(VerificationError, match=f"loop k still requests {type(ask).__name__}.*"):
        verify_asks(kernel, names[: names.index(ask.taker) + 1])


def test_loads_ahead_are_not_lost_in_a_loop_of_registers():
    """The outer loop has register loads that run ahead across its iterations; the inner loop has others."""
    chain = SPLIT.pipeline(2).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(4).pipeline(2).load(A, RF)
    program = chain.split(2).pipeline(2).load(B, RF).tile(1, 1).split(1).done().program("sm_80")
    assert [line.strip() for line in program.cuda.splitlines() if "prologue" in line] == [
        f"// prologue: loads of the first iteration of {loop}" for loop in ("k", "k2", "k3")
    ]
    a, b = (np.asfortranarray(np.random.default_rng(seed).integers(-4, 5, (64, 64)), dtype=np.float32) for seed in (0, 1))
    assert np.array_equal(program.strategy.compile("sm_80")(a, b), a @ b)


def test_loads_ahead_are_not_lost_under_a_producer():
    float16_operands = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    blocks = MatMul(256, 256, 256, **float16_operands)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32)
    chain = blocks.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    with pytest.raises(DecompositionError, match="pipeline: no load directly under this split"):
        chain.split(32).pipeline(2).tile(64, 64).to(Warpgroup).done().cuda()
