"""What refinements ask of passes: taken by the pass that each ask names, or refused; never lost."""

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
from fireiron.ir.asks.storing import Storing
from fireiron.ir.verifier import verify_asks
from fireiron.lower.passes import PASSES
from fireiron.values.expr import Var, as_expr

EACH = (
    Pipelined(3, True), ProducerThreads(128, True, ("A", "B")), PendingMmas(0), ConsumerGroups(2), Deferred("pv", "s"), OrderedMma("s", "pv"), DynamicTiles("tile", Var("tiles", 0, 9) + 1), Storing(2),
)  # fmt: skip
SPLIT = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block).epilog(RF).split(16)


def test_each_kind_names_a_pass():
    assert {type(one) for one in EACH} == set(kinds())
    assert {one.taker for one in kinds()} <= {name for name, _ in PASSES}


@pytest.mark.parametrize("ask", EACH, ids=lambda one: type(one).__name__)
def test_a_listing_writes_and_reads_each(ask):
    written = ask.written(str)
    assert {name for name, _, _ in (option.partition("=") for option in ask.options)} == set(written)
    assert type(ask).read(written, lambda text: ask.tiles) == ask
    assert Asks((type(ask)(),)) == NOTHING, "made without arguments it asks for nothing"


def test_an_option_that_says_no_number_or_pair():
    assert (number_of({"stages": " 3 "}, "stages", 0), number_of({}, "stages", 7), pair_of({"delay": "a:b"}, "delay")) == (3, 7, ("a", "b"))
    for text in ("", "-1", "three", "1.0"):
        with pytest.raises(LayoutError, match="stages is a number"):
            number_of({"stages": text}, "stages", 0)
    for text in ("a", "a:b:c"):
        with pytest.raises(LayoutError, match="delay takes two names"):
            pair_of({"delay": text}, "delay")


def test_variables_are_replaced_in_what_is_asked():
    tiles = Var("tiles", 0, 9)
    loop = making.loop(Var("k", 0, 7), as_expr(8), dynamic_tiles=("tile", tiles + 1), consumer_groups=2)
    assert loop.substitute({tiles: as_expr(4)}).asks == Asks((DynamicTiles("tile", as_expr(5)), ConsumerGroups(2)))
    assert loop.without(DynamicTiles, ConsumerGroups) == making.loop(Var("k", 0, 7), as_expr(8))


@attrs.frozen
class Foreign(Ask):
    """An ask of a kind that no pass knows."""

    said: bool = False


def test_what_no_pass_takes_is_handed_on_and_refused():
    program = SPLIT.tile(4, 4).to(Thread).tile(1, 1).split(1).done().program("sm_80")
    walked = program.walked
    asked = attrs.evolve(walked, body=tuple(_asking(one) for one in walked.body))
    for _, function in PASSES:
        asked = ir.verify(function(asked))
    with pytest.raises(VerificationError, match=r"loop k still requests Foreign\(said=True\)"):
        ir.verify(asked, final=True)


def _asking(statement: ir.Stmt) -> ir.Stmt:
    statement = statement.rebuilt(tuple(tuple(map(_asking, child)) for child in statement.children)) if statement.children else statement
    return statement.with_asks(Foreign(True)) if isinstance(statement, ir.For) and statement.var.name == "k" else statement


@pytest.mark.parametrize("ask", EACH, ids=lambda one: type(one).__name__)
def test_behind_its_taker_an_ask_is_refused_and_before_it_stays(ask):
    names = [name for name, _ in PASSES]
    kernel = making.kernel(body=(making.loop(Var("k", 0, 7), as_expr(8)).with_asks(ask),))
    verify_asks(kernel, names[: names.index(ask.taker)])
    with pytest.raises(VerificationError, match=f"loop k still requests {type(ask).__name__}.*"):
        verify_asks(kernel, names[: names.index(ask.taker) + 1])


def test_loads_ahead_are_not_lost_in_a_loop_of_registers():
    """The loop around has loads to registers that run ahead across the iterations outside; the one inside has its own."""
    turns = SPLIT.pipeline(2).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(4).pipeline(2).load(A, RF)
    program = turns.split(2).pipeline(2).load(B, RF).tile(1, 1).split(1).done().program("sm_80")
    assert [line.strip() for line in program.cuda.splitlines() if "prologue" in line] == [
        f"// prologue: loads of the first iteration of {loop}" for loop in ("k", "k2", "k3")
    ]
    a, b = (np.asfortranarray(np.random.default_rng(seed).integers(-4, 5, (64, 64)), dtype=np.float32) for seed in (0, 1))
    assert np.array_equal(program.strategy.compile("sm_80")(a, b), a @ b)


def test_loads_ahead_are_not_lost_under_a_producer():
    halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    blocks = MatMul(256, 256, 256, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32)
    turns = blocks.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    with pytest.raises(DecompositionError, match="pipeline: no load directly under this split"):
        turns.split(32).pipeline(2).tile(64, 64).to(Warpgroup).done().cuda()
