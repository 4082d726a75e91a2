"""Groups of packed rows by TMA, a ring and wgmma: the ring continues from group to group, whichever are present, and loses no fill."""

import random

import attrs
import numpy as np
import pytest
import test_ragged
from printed_text import COMPILER, HostProgram, Printed
from ringed import dropped, later, of_kind, with_changed
from test_ragged import GROUPS, OFFSETS, arrays_of, error_of

from fireiron import *
from fireiron import ir
from fireiron.check import safety
from fireiron.check.data_dependent_loops import with_counted_iterations
from fireiron.errors import FireironError, VerificationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import For, StageState, rewritten, statements, verify
from fireiron.sim import simulate
from fireiron.strategies import hopper_ragged

TARGET = "sm_90a"
SMALL = {"bm": 64, "bn": 64, "bk": 32, "producer_threads": 32}
MANY = 40


def program_of(M, stages=3, groups=GROUPS, k=40, **more):
    """K is two fills of the ring, so with three stages each group begins at another stage."""
    return hopper_ragged.strategy.with_(**{**SMALL, "stages": stages, **more})(hopper_ragged.spec(M, 72, k, groups=groups)).program(TARGET)


@pytest.fixture(scope="module")
def program():
    return program_of(140)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", OFFSETS)
def test_rows_of_groups(program, name):
    arrays, expected = arrays_of(OFFSETS[name], 140)
    assert error_of(simulate(program.ir, arrays, order=random.Random(3)).outputs["D"], expected) < 1e-3


def test_executed_iterations_are_counted(program):
    assert safety(program.lowered) == ()
    assert program.cuda.count("int iterations_done = 0;") == program.cuda.count("++iterations_done;") == 2, "each role counts by itself"
    two_rounds = program_of(140, stages=2, k=128)
    assert safety(two_rounds.lowered) == () and "iterations_done" not in two_rounds.cuda, "four turns of two stages end as they began"
    run_time_sizes = program_of(sym("M"), bm=128)
    assert safety(run_time_sizes.lowered) == ()
    arrays, expected = arrays_of((0, 0, 35, 35, 70, 70), 70)
    assert error_of(simulate(run_time_sizes.ir, arrays, {"M": 70}).outputs["D"], expected) < 1e-3


def counted_otherwise(kernel, number):
    """The kernel whose ring numbers its fills by the group `g`, or from 0 for each group."""
    loop = next(one for one in statements(kernel.body) if isinstance(one, For) and one.prior_iterations is not None)
    (g,) = {one.var for one in statements(kernel.body) if isinstance(one, For) and one.var.name == "g"}
    return attrs.evolve(kernel, body=ir.substituted(kernel.body, {loop.prior_iterations: number(g)}))


def test_fill_numbers_of_skipped_iterations_are_reported(program):
    """A ring that counts all groups waits for fills that never happen; one that restarts passes by parity, or never."""
    arrays, _ = arrays_of(OFFSETS["some empty"], 140)
    for number in (lambda g: g, lambda g: 0 * g):
        faulty = counted_otherwise(program.ir, number)
        assert safety(faulty)
        with pytest.raises(FireironError):
            simulate(faulty, arrays)
    assert with_counted_iterations(program.ir) != program.ir


def test_planted_faults_are_found(program):
    for side in StageState:
        for kind in (ir.Acquire, ir.Release):
            assert safety(with_changed(program.ir, of_kind(kind, state=side), 0, dropped))
            assert safety(with_changed(program.ir, of_kind(kind, state=side), 0, later(1)))


def test_a_count_has_one_name(program):
    twice = rewritten(
        program.ir.body,
        lambda one: (attrs.evolve(one, prior_iterations=one.var),) if isinstance(one, For) and one.prior_iterations is not None else (one,),
    )
    with pytest.raises(VerificationError, match="bound twice"):
        verify(attrs.evolve(program.ir, body=twice))


@pytest.mark.nightly
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("values", [{}, {"bm": 64, "producer_threads": 32}, {"bn": 192}])
def test_no_spills(values):
    program = hopper_ragged.strategy.with_(**values)(hopper_ragged.spec(4096, 1024, 1000, groups=64)).program(TARGET)
    report = compile_cuda(program.cuda, TARGET)
    resources = report.resources[program.name]
    assert resources.spill_stores == resources.stack_frame == 0 and "C75" not in report.log


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_text_of_many_groups(tmp_path):
    """More groups than are tested at once, by a ring and by copies of all threads."""
    offsets = np.sort(np.random.default_rng(4).integers(0, 101, MANY + 1))
    arrays, expected = arrays_of(offsets, 100)
    host = HostProgram([Printed.of(program_of(100, groups=MANY)), Printed.of(test_ragged.program_of(100, groups=MANY))], tmp_path)
    for number in range(2):
        assert error_of(host.run(number, arrays, seed=number)["D"], expected) < 1e-3


# ---------------------------------------------------------------------------------------------- clusters


def clustered(*cluster):
    """The strategy by clusters of blocks."""
    definition = hopper_ragged.grouped_ragged.definition.tile(m=64, n=32).to(Block).cluster(*cluster).split(g=1).skip_masked_tiles()
    product = (
        MatMul.split(32).pipeline(2).warp_specialize(32).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 32).to(Warpgroup).done()
    )
    stored = Move.tile(64, 32).to(Warpgroup).tile(64, 32).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    return definition.step("product", product).step("store", stored).done()(hopper_ragged.spec(140, 72, 40, groups=GROUPS)).program(TARGET)


def test_clusters_along_columns():
    """The blocks have the same rows, so they process the same groups, and share the loads of the rows."""
    program = hopper_ragged.clustered.with_(**SMALL, stages=2)(hopper_ragged.spec(140, 72, 40, groups=GROUPS)).program(TARGET)
    assert "multicast" in program.cuda
    arrays, expected = arrays_of(OFFSETS["some empty"], 140)
    assert error_of(simulate(program.ir, arrays, order=random.Random(3)).outputs["D"], expected) < 1e-3


def test_clusters_along_rows_are_refused():
    """Data determine the groups of each block: one would wait for loads that another does not share. Refused by the pass, and without it."""
    with pytest.raises(FireironError, match="depends on data of each block"):
        clustered(2, 1).ir  # noqa: B018
    kernel = clustered(1, 2).lowered
    rank = next(one.var for one in statements(kernel.body) if isinstance(one, ir.Let) and one.var.name == "rank_n")
    rows = next(one.var for one in statements(kernel.body) if isinstance(one, ir.Let) and one.var.name == "block_m")

    def of_rows(stmt):
        seen = isinstance(stmt, ir.Let) and stmt.var.name == "seen"
        return (attrs.evolve(stmt, value=stmt.value.substitute({rows: rows + rank})),) if seen else (stmt,)

    faulty = attrs.evolve(kernel, body=rewritten(kernel.body, of_rows))
    assert any("may differ between the blocks of a cluster" in one.message for one in safety(faulty))
    with pytest.raises(FireironError, match="deadlock|is left in the middle|has not been"):
        simulate(faulty, arrays_of(OFFSETS["some empty"], 140)[0])
