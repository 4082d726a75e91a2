"""An error of a check stops compilation, on every path from a strategy to code."""

import ast
import inspect

import attrs
import making
import numpy as np
import pytest
import test_look_back
from handmade import THREAD, access, execution, kernel_of, local
from ringed import float16_gemm, is_load, product, with_changed
from test_build_gate import attended
from touching import BLOCK_BARRIER, MMA_GROUPS, REGISTERS_FENCE, SHARED, T, buffer, i, kernel, loop, mma, on_registers, reads, writes

import fireiron
from fireiron import *
from fireiron import ir
from fireiron.check import ADVICE, CHECKS, PROMISES, AccessTrace, Finding, checks, safety
from fireiron.errors import DecompositionError, FireironError, ResourceError, SynchronizationError
from fireiron.executable.thread_move import MOVE
from fireiron.gpu.kernel import CompiledKernel
from fireiron.tune.run import task_of
from fireiron.tune.task import build

RINGED = product((64, 64, 64), (64, 64), producer=128)(float16_gemm(64, 64, 320)).program("sm_90a").ir
SMALL = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()(MatMul(8, 8, 8)(GL, GL, GL)(Kernel))


def shared(*body, **options):
    """A kernel with shared memory, which needs its launch attribute."""
    return kernel(*body, **{"shared_bytes": 1 << 14, **options})


def moved(row, *, rows=32, register=None):
    """Each thread copies an element of an array, or an uninitialized register, to the same row of another one."""
    if register is None:
        accesses = [access(name, (row, 0), write=name == "dst") for name in ("src", "dst")]
        return kernel_of(Move(rows, 1)(GL, GL), (execution(MOVE, Move(1, 1)(GL, GL)(Thread), *accesses),))
    statement = execution(MOVE, Move(1, 1)(RF, GL)(Thread), access("r", (register, 0)), access("dst", (row, 0), write=True))
    return kernel_of(Move(rows, 1)(GL, GL), (statement,), local("r", (2, 1), RF))


def with_tensor_map(**change):
    return with_changed(RINGED, is_load, 0, lambda load: (attrs.evolve(load, tensor_map=attrs.evolve(load.tensor_map, **change)),))


def with_registers(*numbers):
    """The kernel of a ring whose roles exchange registers."""
    exchanged = [
        making.roles(tuple(attrs.evolve(role, registers=number) for role, number in zip(statement.roles, numbers, strict=True)))
        if isinstance(statement, ir.Roles)
        else statement
        for statement in RINGED.body
    ]
    return making.evolved(RINGED, resident=2, body=tuple(exchanged))


def of_large_sizes():
    """An array of three unbounded sizes: the offset of an element may need more than 64 bits."""
    sizes = [sym(name) for name in "MNK"]
    chain = Move.tile(1, 1, 1).to(Block).tile(1, 1, 1).to(Thread).done()
    return chain(Move(*sizes)(GL, GL)(Kernel)).program("sm_80").lowered


def without_reset():
    """Blocks that each compute a part of the sum over k, and a counter that is right for one launch only."""
    blocks = MatMul.split_k(4, Block, 8).reduce_in_last_block().tile(16, 8).to(Block).epilog(RF, float32)
    program = blocks.tile(1, 1).to(Thread).split(1).done()(MatMul(16, 8, 32)(GL, GL, GL)(Kernel)).program("sm_80")
    resets = lambda stmt: (attrs.evolve(stmt, resets=False) if isinstance(stmt, ir.SemaphoreBarrier) else stmt,)
    return attrs.evolve(program.lowered, body=ir.rewritten(program.lowered.body, resets))


FAULTS = {
    "a race": ("check_races", SynchronizationError, lambda: shared(writes(T), reads(127 - T))),
    "a counter of which nobody takes tiles": (
        "check_dynamic_scheduler",
        SynchronizationError,
        lambda: shared(writes(T), BLOCK_BARRIER, reads(T), counter=making.counter("tiles")),
    ),
    "a group of MMAs without a wait": (
        "check_wgmma_registers",
        SynchronizationError,
        lambda: shared(
            loop(16, writes(i * 128 + T)), making.fence(ir.FenceKind.ASYNC_PROXY), BLOCK_BARRIER, on_registers(), REGISTERS_FENCE, mma(0),
            making.commit(MMA_GROUPS), on_registers(), making.wait(0, mechanism=MMA_GROUPS), buffers=(*SHARED, buffer("r", 64, memory=RF)),
        ),
    ),
    "an A operand that ptxas overwrites": (
        "check_ptxas_register_hazard", DecompositionError, lambda: attended(overlap=False, q_in_registers=True).lowered,
    ),
    "a register before its first write": ("check_uninitialized_registers", DecompositionError, lambda: moved(THREAD, register=1)),
    "shared memory before its first write": ("check_uninitialized_shared", DecompositionError, lambda: shared(reads(T))),
    "an access out of bounds": ("check_bounds", DecompositionError, lambda: moved(THREAD + 1)),
    "places of more than 64 bits": ("check_bounds", DecompositionError, of_large_sizes),
    "a box in another order": ("check_tma_boxes", DecompositionError, lambda: with_tensor_map(span=64)),
    "an mbarrier between its places": (
        "check_alignment",
        DecompositionError,
        lambda: attrs.evolve(RINGED, rings=tuple(attrs.evolve(ring, offset=ring.offset + 4) for ring in RINGED.rings)),
    ),
    "a semaphore that is not reset": ("check_joint_tiles", SynchronizationError, without_reset),
    "tiles of a scan in the opposite order": (
        "check_look_back",
        SynchronizationError,
        lambda: test_look_back.FAULTS["tiles in the opposite order"](test_look_back.program("cumsum", 2, 300).ir),
    ),
    "setmaxnreg that does not add up": ("check_resources", ResourceError, lambda: with_registers(240, 40)),
    "more threads than a block has": ("check_resources", ResourceError, lambda: shared(writes(T, active=T < 1), threads=2048)),
}  # fmt: skip


def program_of(faulty):
    """A program whose passes produced the given kernel."""
    program = SMALL.program("sm_80")
    program.__dict__["lowered"] = faulty
    return program


@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_that_one_check_refuses_is_not_compiled(name):
    check, error, make = FAULTS[name]
    faulty = make()
    access_trace = AccessTrace(faulty)
    errors = {one.__name__: [finding for finding in one(access_trace) if finding.severity == "error"] for one in PROMISES}
    assert [one for one, findings in errors.items() if findings] == [check], errors
    for compiled in (lambda program: program.cuda, lambda program: program.ir, lambda program: CompiledKernel(program).ready()):
        with pytest.raises(error) as raised:
            compiled(program_of(faulty))
        assert type(raised.value) is error and raised.value.asked == errors[check][0].message


def test_each_promise_has_a_kernel_that_it_alone_refuses():
    assert {check for check, _, _ in FAULTS.values()} == {check.__name__ for check in PROMISES}


def test_all_checks_are_errors_or_advice():
    """Compilation runs every check that reports errors: those that only advise report warnings and notes."""
    assert (*PROMISES, *ADVICE) == CHECKS
    for check in ADVICE:
        words = {node.value for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(check)))) if isinstance(node, ast.Constant)}
        assert "error" not in words and words & {"warning", "note"}, check


def test_errors_alone_are_returned():
    clean = SMALL.program("sm_80").lowered
    assert any(finding.severity != "error" for check in PROMISES for finding in check(AccessTrace(clean))) and safety(clean) == ()


# ---------------------------------------------------------------------------------------------- all paths to code


class AlwaysRefuses:
    """A check that reports an error for every kernel, and counts its calls."""

    def __init__(self, kind):
        self.kind, self.calls = kind, 0

    def __call__(self, access_trace):
        self.calls += 1
        return (Finding(self.kind, "error", None, "injected: refused"),)


def float16_array(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float16)


def tuned(folder):
    """The tuner's work on one candidate, in its worker process."""
    strategy = MatMul.tile(Tunable("b", 4, 8), 8).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()
    return build(
        task_of(strategy, SMALL.spec, "sm_80", fixed=None, sizes=None, name="small", instructions=None), {"b": 8}, None, compiles=False
    )


WAYS = {
    "cuda": lambda folder: SMALL.cuda("sm_80"),
    "compile": lambda folder: SMALL.compile("sm_80"),
    "export": lambda folder: fireiron.export(SMALL, folder / "out", arch="sm_80"),
    "matmul": lambda folder: fireiron.matmul(float16_array(24, 40), float16_array(40, 56)),
    "attention": lambda folder: fireiron.attention(*(float16_array(1, 2, 24, 64) for _ in range(3))),
    "function": lambda folder: fireiron.function("softmax")(np.ones((3, 40), np.float32)),
    "tune": tuned,
    "run": lambda folder: SMALL.compile("sm_80")(np.ones((8, 8), np.float32), np.ones((8, 8), np.float32)),
}


@pytest.mark.parametrize("kind", ["race", "resources", "bounds", "shared"])
@pytest.mark.parametrize("way", WAYS)
def test_each_path_to_code_runs_the_checks(monkeypatch, tmp_path, way, kind):
    injected = AlwaysRefuses(kind)
    monkeypatch.setattr(checks, "PROMISES", (injected,))
    with pytest.raises(FireironError, match="injected: refused"):
        WAYS[way](tmp_path)
    assert injected.calls
