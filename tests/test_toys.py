"""What an extension costs: a kernel effect and a completion mechanism of one's own, each two files in `toys/`, and no other file knows them.

Each is simulated, checked and printed; a fault planted in its kernel is found by the checks and by the simulator.
"""

import random

import attrs
import numpy as np
import pytest
from toys.late_copies import LATE
from toys.late_copy import LateCopy
from toys.max_registers import MaxRegisters
from toys.max_registers_step import AtMostRegisters

from fireiron import *
from fireiron import ir
from fireiron.check import check
from fireiron.errors import FireironError, ResourceError, SimulationError
from fireiron.gpu import toolchain
from fireiron.ir.effect import Effects
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.store import dumps
from fireiron.sim import simulate

DATA = np.random.default_rng(7)


def product(copies=None, count=None, sizes=(16, 16, 32)):
    """A product by threads, of tiles in shared memory."""
    blocks = MatMul.tile(8, 8).to(Block)
    blocks = blocks if count is None else blocks.refine(AtMostRegisters(count))
    copied = Move.tile(1, 1).to(Thread).done(copies) if copies is not None else Move.tile(1, 1).to(Thread).done()
    steps = blocks.epilog(RF, Init.tile(1, 1).to(Thread).done(), Move.tile(1, 1).to(Thread).done()).split(8)
    return steps.load(A, SH, copied).load(B, SH, copied).tile(1, 1).to(Thread).split(1).done()(MatMul(*sizes)(GL, GL, GL)(Kernel))


def outputs(kernel, M=16, N=16, K=32):
    a, b = DATA.integers(-3, 4, (M, K)).astype(np.float32), DATA.integers(-3, 4, (K, N)).astype(np.float32)
    return simulate(kernel, {"A": a, "B": b}, order=random.Random(3)).outputs["C"], a @ b


def compiles(program):
    if toolchain.serving("sm_90", None) is not None:
        assert toolchain.compile_cuda(program.cuda, "sm_90").cubin


# ---------------------------------------------------------------------------------------------- an effect


def test_an_effect_is_stated_kept_and_printed():
    program = product(count=64).program("sm_90")
    assert program.ir.effects[MaxRegisters] == MaxRegisters(64)
    assert "__launch_bounds__(64) __maxnreg__(64)" in program.cuda
    np.testing.assert_array_equal(*outputs(program.ir))
    plain = product().program("sm_90")
    assert MaxRegisters not in {type(one) for one in plain.ir.effects} and "__maxnreg__" not in plain.cuda


def test_an_effect_that_is_not_kept_is_an_error():
    blocks = MatMul.tile(16, 16).to(Block).refine(AtMostRegisters(3))
    steps = blocks.epilog(RF, Init.tile(2, 2).to(Thread).done(), Move.tile(2, 2).to(Thread).done()).split(8)
    bound = steps.tile(2, 2).to(Thread).split(1).tile(1, 1).done()(MatMul(16, 16, 32)(GL, GL, GL)(Kernel))
    with pytest.raises(ResourceError, match=r"max_registers\(3\): buffers alone take [0-9]+ registers"):
        _ = bound.program("sm_90").ir


def test_effects_of_one_kind_are_joined_from_the_outside_in():
    outer, inner = Effects((MaxRegisters(64), Zeroed(("C",)))), Effects((MaxRegisters(48), Zeroed(("D",))))
    assert outer.joined(inner)[MaxRegisters].count == 48 and outer.joined(inner)[Zeroed].names == ("C", "D")
    assert outer.joined(Effects()) == outer == Effects().joined(outer) and not Effects((MaxRegisters(),))


def test_an_effect_is_about_tiles_of_blocks():
    inner = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).refine(AtMostRegisters(64)).split(1).done()
    with pytest.raises(FireironError, match="are about blocks"):
        _ = inner(MatMul(16, 16, 32)(GL, GL, GL)(Kernel)).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- a mechanism in order


def late():
    return product(LateCopy("LATE_COPY")).program("sm_90")


def test_a_mechanism_gets_its_commits_waits_and_barriers():
    program = late()
    kernel = program.ir
    inside = list(ir.statements(kernel.body))
    assert {one.mechanism for one in inside if isinstance(one, ir.Exec) and one.asynchronous} == {LATE}
    waits = [one for one in inside if isinstance(one, ir.Wait)]
    assert waits and all(one.mechanism is LATE for one in waits) and "have come late" in waits[0].reason
    assert "late_commit();" in program.cuda and "late_wait<0>();" in program.cuda
    np.testing.assert_array_equal(*outputs(kernel))
    assert not [one for one in check(kernel) if one.severity == "error"]
    compiles(program)


@pytest.mark.parametrize("what", ["wait", "commit", "barrier"])
def test_what_is_left_out_is_found_by_both_detectors(what):
    kernel = late().ir
    kinds = {"wait": ir.Wait, "commit": ir.Commit, "barrier": ir.Barrier}
    wrong = attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: () if isinstance(one, kinds[what]) else (one,)))
    assert [one for one in check(wrong) if one.severity == "error"]
    with pytest.raises(SimulationError):
        outputs(wrong)


def test_a_program_with_parts_of_ones_own_is_not_kept_on_disk():
    from fireiron.gpu import programs

    assert programs.key_of(late()) is None
    with pytest.raises(FireironError):
        dumps(product(LateCopy("LATE_COPY")))
