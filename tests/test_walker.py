"""The generator that draws from all extensions: a new extension is drawn as soon as it exists. Failures shrink to a program that runs."""

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
    """Split m into `count` parts, one after the other."""

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
    """A remark before the step."""

    applies_to = ("tile", "split", "parts")
    text: str = "a remark"

    def rewrite(self, expansion, context):
        return attrs.evolve(expansion, program=(making.comment(self.text), *expansion.program))


def test_pairs_that_are_not_requested_are_refused():
    """With the reason that the table has for each."""
    for reason in (*OF_DEFINITIONS.values(), *IMPOSSIBLE.values()):
        with pytest.raises(DecompositionError, match=reason.says):
            _ = reason.tried().program("sm_90a").lowered


SHORT = (
    MatMul(4, 4, 4)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).split(2).load(A, SH).pad(1).tile(1, 1).to(Thread).split(1).unroll().done()
)  # fmt: skip


@pytest.fixture
def planted(monkeypatch):
    """Add a decomposition and a refinement, as files of their folders would."""
    for package, extension in ((decomp, Parts), (refine, Remark)):
        monkeypatch.setattr(
            package, "MODULES", (*package.MODULES, types.SimpleNamespace(__all__=(extension.__name__,), **{extension.__name__: extension}))
        )


@pytest.mark.usefixtures("planted")
def test_a_new_extension_is_drawn():
    """It needs no other change, and is drawn together with each requested feature."""
    assert {"verb parts", "refine Remark"} <= set(walks.names())
    drawn, _ = walker.draw("planted", ("verb parts", "refine Remark"))
    assert {"verb parts", "refine Remark"} <= drawn.features
    assert not wrong(drawn.program, drawn.symbols, 1)


def test_a_new_instruction_and_a_new_target_are_drawn(monkeypatch):
    instruction = attrs.evolve(FFMA, name="MINE")
    assert instruction != FFMA
    later = attrs.evolve(ARCHITECTURES[-1], name="sm_130")
    monkeypatch.setattr(walker.executable, "INSTRUCTIONS", (instruction,))
    monkeypatch.setattr(walker, "ARCHITECTURES", (*ARCHITECTURES, later))
    walker.targets_of.cache_clear()
    assert walker.goals() == {"own": [instruction]}
    assert later in walker.targets_of(instruction)
    walker.targets_of.cache_clear()


LONG = (
    MatMul(33, 40, 24, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)
    .tile(16, 16).to(Block).rasterize(group_m=2).layout(ColMajor).epilog(RF).split(8).unroll()
    .load(A, SH, Move.coalesced_copy(4).done()).pad(4).load(B, SH).align(64)
    .tile(4, 2).to(Thread).split(2).load(A, RF, Move.tile(1, 1).done()).split(1).tile(1, 1).unroll().done()
)  # fmt: skip


def test_a_failing_strategy_shrinks_to_what_matters():
    """If every load of A with a pad counts as wrong, only that load is left, in a text that evaluates."""
    finding = lambda program, symbols: "wrong" * any(isinstance(one, Pad) for step in program.strategy.steps for one in step.refinements)
    small = shrink.shrunk(shrink.Case.of(LONG, "sm_80", {}), finding)
    assert small.text == "MatMul(1, 1, 1)(GL, GL, GL)(Kernel).load(A, SH).pad(1)" and small.target == "sm_80"
    assert shrink.objection_of(small, finding) == ("values", "wrong")


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
    finding = lambda program, symbols: "wrong" * (symbols.get("K", 0) >= 6)
    small = shrink.shrunk(shrink.Case.of(bound, "sm_80", {"M": 50, "K": 40}), finding)
    assert small.symbols == (("K", 6),) and "sym('M'" not in small.text


def test_an_injected_bug_is_found_and_its_program_shows_it(monkeypatch, capsys):
    """A pass that omits the first barrier: the printed program is whole, much shorter than the draw, and shows the race."""
    assert not wrong(SHORT.program("sm_80"), {}, 3)
    forgotten = lambda kernel: attrs.evolve(kernel, body=without_barrier(kernel.body, 0))
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, ("forgets", forgotten)))
    finding = lambda program, symbols: wrong(program, symbols, 3)
    text = shrink.story(SHORT, "sm_80", {}, finding, 3)
    program = text.partition("):\n\n")[2]
    assert "race" in text.partition("\n")[0] and len(program.partition("strategy = ")[2].partition("\n")[0]) < len(repr(SHORT))
    with pytest.raises(SimulationError, match="no barrier orders them"):
        exec(program, {})
    assert "race" in capsys.readouterr().out


def test_a_race_of_an_unchecked_strategy_is_no_finding():
    unchecked = MatMul(1, 2, 1)(GL, GL, GL)(Kernel).tile(1).to(Block).unchecked("drawn").load(A, SH).no_sync().tile(1, 1).to(Thread).done()
    assert not wrong(unchecked.program("sm_80"), {}, 1)
