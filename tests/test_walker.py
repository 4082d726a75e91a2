"""The generator that draws from what extensions offer: a new extension is drawn as soon as it is there. What fails shrinks to a program that runs."""

import types

import attrs
import making
import pytest
import walker
from campaign import shrink
from campaign.impossible import IMPOSSIBLE, OF_DEFINITIONS
from campaign.judged import wrong
from campaign.subjects import walks
from test_random import without_barrier

from fireiron import *
from fireiron import ARCHITECTURES, decomp, refine
from fireiron.language.dividing import divide, loop_over
from fireiron.language.tree import legal_among
from fireiron.lower import passes
from fireiron.values.expr import constant


@attrs.frozen
class Parts(Decomposition):
    """As many parts along m, one after the other."""

    verb = "parts"
    count: int

    @classmethod
    def choices(cls, spec, context):
        yield from legal_among(map(cls, (1, 2, 4)), spec, context)

    def expand(self, spec, context):
        size = constant(spec.size("m")) if "m" in spec.dims else None
        if size is None or size % self.count or spec.level == Kernel:
            raise DecompositionError("parts: no multiple")
        draft = context.draft()
        views, digits = divide(spec, {"m": (size // self.count, None)}, "parts")
        views, program, _ = loop_over(spec, views, digits, False, draft, (making.hole("body"),))
        return draft.expansion((Child("body", spec.with_operands(**views)),), program)


@attrs.frozen
class Remark(Refinement):
    """A remark in front of the step."""

    applies_to = ("tile", "split", "parts")
    text: str = "a remark"

    def rewrite(self, expansion, context):
        return attrs.evolve(expansion, program=(making.comment(self.text), *expansion.program))


def test_pairs_that_are_not_asked_for_are_refused():
    """With the reason that stands beside each."""
    for reason in (*OF_DEFINITIONS.values(), *IMPOSSIBLE.values()):
        with pytest.raises(DecompositionError, match=reason.says):
            _ = reason.tried().program("sm_90a").lowered


SHORT = (
    MatMul(4, 4, 4)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).split(2).load(A, SH).pad(1).tile(1, 1).to(Thread).split(1).unroll().done()
)  # fmt: skip


@pytest.fixture
def planted(monkeypatch):
    """A decomposition and a refinement of our own, as files of their folders."""
    for package, one in ((decomp, Parts), (refine, Remark)):
        monkeypatch.setattr(package, "MODULES", (*package.MODULES, types.SimpleNamespace(__all__=(one.__name__,), **{one.__name__: one})))


@pytest.mark.usefixtures("planted")
def test_a_new_extension_is_drawn():
    """By nothing but its being there, and together with whatever is asked."""
    assert {"verb parts", "refine Remark"} <= set(walks.names())
    one, _ = walker.draw("planted", ("verb parts", "refine Remark"))
    assert {"verb parts", "refine Remark"} <= one.features
    assert not wrong(one.program, one.symbols, 1)


def test_a_new_instruction_and_a_new_target_are_drawn(monkeypatch):
    mine = attrs.evolve(FFMA, name="MINE")
    assert mine != FFMA
    later = attrs.evolve(ARCHITECTURES[-1], name="sm_130")
    monkeypatch.setattr(walker.executable, "INSTRUCTIONS", (mine,))
    monkeypatch.setattr(walker, "ARCHITECTURES", (*ARCHITECTURES, later))
    walker.targets_of.cache_clear()
    assert walker.goals() == {"own": [mine]}
    assert later in walker.targets_of(mine)
    walker.targets_of.cache_clear()


LONG = (
    MatMul(33, 40, 24, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)
    .tile(16, 16).to(Block).rasterize(group_m=2).layout(ColMajor).epilog(RF).split(8).unroll()
    .load(A, SH, Move.coalesced_copy(4).done()).pad(4).load(B, SH).align(64)
    .tile(4, 2).to(Thread).split(2).load(A, RF, Move.tile(1, 1).done()).split(1).tile(1, 1).unroll().done()
)  # fmt: skip


def test_a_failing_strategy_shrinks_to_what_matters():
    """Whoever loads A with a pad is wrong, say: nothing but that is left, in a text that evaluates."""
    says = lambda program, symbols: "wrong" * any(isinstance(one, Pad) for step in program.strategy.steps for one in step.refinements)
    small = shrink.shrunk(shrink.Case.of(LONG, "sm_80", {}), says)
    assert small.text == "MatMul(1, 1, 1)(GL, GL, GL)(Kernel).load(A, SH).pad(1)" and small.target == "sm_80"
    assert shrink.objection_of(small, says) == ("values", "wrong")


def test_what_is_refused_or_right_does_not_shrink():
    case = shrink.Case.of(LONG, "sm_80", {})
    assert shrink.shrunk(case, lambda program, symbols: "") == case
    assert shrink.objection_of(
        shrink.Case("MatMul(4, 4, 4)(GL, GL, GL)(Kernel).tile(3)", "sm_80"), lambda program, symbols: str(program.tree)[:0]
    ) == ("", "")


def test_sizes_of_run_time_shrink_too():
    bound = (
        MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done()(MatMul(sym("M"), 8, sym("K", multiple_of=2))(GL, GL, GL)(Kernel))
    )
    says = lambda program, symbols: "wrong" * (symbols.get("K", 0) >= 6)
    small = shrink.shrunk(shrink.Case.of(bound, "sm_80", {"M": 50, "K": 40}), says)
    assert small.symbols == (("K", 6),) and "sym('M'" not in small.text


def test_a_planted_bug_is_found_and_its_program_shows_it(monkeypatch, capsys):
    """A pass that forgets the first barrier: what is printed is a whole program, much shorter than the draw, and shows the race."""
    assert not wrong(SHORT.program("sm_80"), {}, 3)
    forgotten = lambda kernel: attrs.evolve(kernel, body=without_barrier(kernel.body, 0))
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, ("forgets", forgotten)))
    says = lambda program, symbols: wrong(program, symbols, 3)
    text = shrink.story(SHORT, "sm_80", {}, says, 3)
    program = text.partition("):\n\n")[2]
    assert "race" in text.partition("\n")[0] and len(program.partition("strategy = ")[2].partition("\n")[0]) < len(repr(SHORT))
    with pytest.raises(SimulationError, match="no barrier orders them"):
        exec(program, {})
    assert "race" in capsys.readouterr().out
