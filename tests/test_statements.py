"""The statement tree: traversal and rewriting; every pass and reader handles or refuses an unknown statement."""

import tempfile

import attrs
import making
import numpy as np
import pytest
from instructions import product_of_warpgroups
from problems import integers
from ringed import float16_gemm
from ringed import product as ring_product
from test_pipeline import FLOAT16, ampere, fma

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check, check_banks, check_coalescing, safety
from fireiron.check.resources import check_resources
from fireiron.compiler import Program
from fireiron.cuda import emit
from fireiron.draw import KINDS
from fireiron.inspect import show
from fireiron.inspect.synchronization import synchronization
from fireiron.ir.ask import Asks
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.ir.register_ownership import Digit, DigitKind
from fireiron.lower.passes import PASSES
from fireiron.lower.programmatic_launch import programmatic_launch
from fireiron.sim import simulate
from fireiron.values.expr import Var, as_expr
from fireiron.values.tensor import Dim


@attrs.frozen(cache_hash=True)
class Wrapped(ir.Stmt):
    """A statement for which no pass or reader has a rule, around statements that all of them know."""

    body: tuple[ir.Stmt, ...]

    @property
    def children(self):
        return (self.body,)

    def rebuilt(self, children):
        return Wrapped(*children)


def wrapped(kernel):
    """The kernel with each loop at the top, or at the top of a role, wrapped."""

    def wrap(body):
        for stmt in body:
            if isinstance(stmt, ir.Roles):
                yield stmt.rebuilt(tuple(tuple(wrap(child)) for child in stmt.children))
            else:
                yield Wrapped((stmt,)) if isinstance(stmt, ir.For) else stmt

    body = tuple(wrap(kernel.body))
    assert any(isinstance(one, Wrapped) for one in ir.statements(body))
    return attrs.evolve(kernel, body=body)


def unwrapped(kernel):
    """The kernel with each wrapper replaced by its statements."""

    def unwrap(body):
        for stmt in body:
            if isinstance(stmt, Wrapped):
                yield from unwrap(stmt.body)
            else:
                yield stmt.rebuilt(tuple(tuple(unwrap(child)) for child in stmt.children))

    return attrs.evolve(kernel, body=tuple(unwrap(kernel.body)))


PROBLEMS = {
    "threads": lambda: fma(3)(MatMul(64, 64, 40)(GL, GL, GL)(Kernel)),
    "tensor cores": lambda: ampere()(MatMul(64, 64, 128, **FLOAT16)(GL, GL, GL)(Kernel)),
    "warpgroups": lambda: product_of_warpgroups(WGMMA[0], (64, 64), 32, 2, sizes=(64, 64, 96)),
    "roles": lambda: ring_product((64, 64, 64), (64, 64), 2, blocks=2)(float16_gemm(256, 64, 192)),
    "clusters": lambda: ring_product((64, 64, 64), (64, 64), 2, blocks=2, cluster=(2, 1))(float16_gemm(256, 64, 192)),
    "counter": lambda: ring_product((64, 64, 64), (64, 64), 2, blocks=2, dynamic=True)(float16_gemm(256, 64, 192)),
}
ON_HOPPER = ("warpgroups", "roles", "clusters", "counter")
PROGRAMS = {name: make().program("sm_90a" if name in ON_HOPPER else "sm_80") for name, make in PROBLEMS.items()}


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", [name for name, _ in PASSES])
def test_a_pass_handles_or_refuses_an_unknown_statement(problem, name):
    """The result is that of the kernel without wrappers, or the error names the statement."""
    stages = PROGRAMS[problem].stages
    names = ["walk", *(one for one, _ in PASSES)]
    before = stages[names[names.index(name) - 1]]
    try:
        result = unwrapped(dict(PASSES)[name](wrapped(before)))
    except VerificationError as error:
        assert "Wrapped" in str(error)
        return
    assert result == stages[name]


def program_of(kernel):
    """A program with another final kernel."""
    hopper = "warpgroups" if kernel.architecture.name == "sm_90a" else "threads"
    known = PROGRAMS["clusters" if kernel.cluster else "counter" if kernel.counter else "roles" if kernel.rings else hopper]
    program = Program(known.strategy, known.spec, known.architecture, known.instructions, known.name)
    program.__dict__.update(ir=kernel, lowered=kernel, stages=dict.fromkeys(known.stages, kernel))
    return program


def simulated(kernel):
    generator = np.random.default_rng(0)
    a, b = (
        integers(tuple(map(int, map(str, kernel.spec.operands[name].shape))), kernel.spec.operands[name].dtype, generator) for name in "AB"
    )
    return simulate(kernel, {"A": a, "B": b}).outputs["C"].tobytes()


def exported(kernel):
    with tempfile.TemporaryDirectory() as folder:
        return [path.read_bytes() for path in export(program_of(kernel), folder, "product", cubin=False).files]


READERS = {
    "verify": ir.verify,
    "emit": emit,
    "safety": safety,
    "check": check,
    "banks": lambda kernel: tuple(check_banks(AccessTrace(kernel))),
    "coalescing": lambda kernel: tuple(check_coalescing(AccessTrace(kernel))),
    "resources": lambda kernel: tuple(check_resources(AccessTrace(kernel))),
    "sim": simulated,
    "cost": lambda kernel: predict(program_of(kernel)),
    "show": lambda kernel: show.figures(program_of(kernel)),
    "sync": synchronization,
    "export": exported,
    **{f"draw {kind}": lambda kernel, kind=kind: draw(program_of(kernel), kind).svg for kind in KINDS},
}


@pytest.mark.parametrize("problem", ["threads", "warpgroups", "roles"])
@pytest.mark.parametrize("name", READERS)
def test_a_reader_handles_or_refuses_an_unknown_statement(name, problem):
    """The reader's output is that for the kernel without wrappers, or the error names the statement."""
    kernel, read = PROGRAMS[problem].lowered, READERS[name]
    try:
        result = read(wrapped(kernel))
    except VerificationError as error:
        assert "Wrapped" in str(error)
        return
    assert result == read(kernel) and name != "verify"


def test_statements_of_rings_are_all_read():
    """A persistent kernel with a producer has every kind of statement but holes; every reader handles them, and so does a picture."""
    kernel = PROGRAMS["roles"].lowered
    kinds = {type(one) for one in ir.statements(kernel.body)}
    assert kinds >= {ir.Roles, ir.Acquire, ir.Release, ir.Fence, ir.Commit, ir.Wait, ir.Barrier, ir.For, ir.Let, ir.Exec, ir.Comment}
    assert {one.mechanism for one, _ in ir.execs(kernel.body)} >= {TMA_LOADS, WGMMA_GROUPS, TMA_STORES}
    for read in READERS.values():
        assert read(kernel) is not None or read is ir.verify


def test_statements_of_clusters_are_all_read():
    """Both cluster barriers, multicast loads and remote arrivals; every reader handles them."""
    kernel = PROGRAMS["clusters"].lowered
    assert sum(isinstance(one, ir.ClusterBarrier) for one in kernel.body) == 2
    assert any(one.multicast for one, _ in ir.execs(kernel.body))
    assert any(isinstance(one, ir.Release) and one.to for one in ir.statements(kernel.body))
    for read in READERS.values():
        assert read(kernel) is not None or read is ir.verify


def test_statements_of_the_dynamic_scheduler_are_all_read():
    """The producer claims tiles, consumers read their numbers, and both exit the loop; every reader handles them."""
    kernel = PROGRAMS["counter"].lowered
    assert [one.takes for one in ir.statements(kernel.body) if isinstance(one, ir.ClaimTile)] == [False, True]
    assert sum(isinstance(one, ir.ExitIfDone) for one in ir.statements(kernel.body)) == 2
    for read in READERS.values():
        assert read(kernel) is not None or read is ir.verify
    assert READERS["sim"](kernel) == READERS["sim"](PROGRAMS["roles"].lowered)


def test_statements_of_a_programmatic_launch_are_all_read():
    """Every reader has the same output for a kernel with a programmatic launch, except for its text and its launch."""
    kernel = programmatic_launch(making.evolved(PROGRAMS["roles"].lowered, chained=True))
    assert {one.action for one in ir.statements(kernel.body) if isinstance(one, ir.GridDepControl)} == set(ir.GridDepAction)
    for name, read in READERS.items():
        same = read(kernel) == read(PROGRAMS["roles"].lowered)
        assert same != (name in ("verify", "emit", "sync", "export")), name


def test_statements_of_wgmma_are_all_read():
    """A warpgroup kernel has both fences, and commits and waits of wgmma and of copies; every reader handles them."""
    kernel = PROGRAMS["warpgroups"].lowered
    kinds = {(type(one).__name__, getattr(one, "mechanism", getattr(one, "kind", None))) for one in ir.statements(kernel.body)}
    wanted = {("Fence", reach) for reach in ir.FenceKind}
    wanted |= {(name, kind) for name in ("Commit", "Wait") for kind in (CP_ASYNC_GROUPS, WGMMA_GROUPS)}
    assert wanted <= kinds
    for read in READERS.values():
        read(kernel)


def test_fast_constructors_keep_every_field():
    """Loops, specs and digits are rebuilt without attrs for speed: that code must copy every field of their classes."""
    asks, prior = Asks((Pipelined(3),)), Var("taken", 0, 7)
    loop = making.loop(
        Var("i", 0, 7), as_expr(8), (), unroll=True, origin="a.py:1", period=3, first=1, step=2, prior_iterations=prior, increment=as_expr(2), pinned_registers=("a",),
        asks=asks, separated=True,
    )  # fmt: skip
    assert all(getattr(loop, one.name) != one.default for one in attrs.fields(ir.For) if one.default is not attrs.NOTHING)
    others = (making.comment("inside"),)
    assert attrs.asdict(loop.rebuilt((others,)), recurse=False) == attrs.asdict(attrs.evolve(loop, body=others), recurse=False)
    product = MatMul(8, 8, 8, dtype=float16, accumulator=float32)(GL, GL, GL)(Kernel).with_options(accumulate=True, names=("a", "b", "c"))
    stack = MatMul(2, 8, 8, 8, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
    for spec in (attrs.evolve(product, in_parts=True), Reduction(8, 8, by="max")(RF, RF)(Warp), stack):
        assert attrs.asdict(spec.at_level(Block), recurse=False) == attrs.asdict(attrs.evolve(spec, level=Block), recurse=False)
    digit = Digit(1, 4, 2, DigitKind.THREADS, prior, False)
    assert digit.along(0) == attrs.evolve(digit, dim=0) and digit.between(16, 32) == attrs.evolve(digit, size=1)
    assert digit.between(4, 8) == attrs.evolve(digit, size=2, stride=4, index=prior // 2)
    assert tuple(attrs.fields_dict(Dim)) == ("modes", "bound", "fixed")
