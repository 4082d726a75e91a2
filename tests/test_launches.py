"""Programs of several launches: legal steps, the order of launches, and what the simulator knows about arrays."""

import types

import attrs
import numpy as np
import pytest
from toys.in_launches import InLaunches
from toys.sequence import SEQUENCE

from fireiron import *
from fireiron.check.launches import check_effects, check_launches
from fireiron.errors import ArgumentError, DecompositionError, FireironError, SimulationError
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.launching import Launches, LaunchRequest
from fireiron.sim import simulate, simulate_launches
from fireiron.values.expr import TRUE, as_expr
from fireiron.values.tensor import Dim, Fixed, Mode, Tensor, whole_view

BODY = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
COPY = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
SPEC = MatMul(16, 24, 32, C=RowMajor)(GL, GL, GL)(SEQUENCE)


@attrs.frozen
class MakeLaunches(Decomposition):
    """A step that makes the given launches."""

    verb = "made"
    makes_launches = True
    make: object = None

    def label(self):
        return "made()"

    def launches(self, spec, given):
        return self.make(spec, given)


def program(make, spec=SPEC, rest=BODY):
    return MatMul.then(MakeLaunches(make)).then(rest)(spec).program("sm_90")


def temporary(name, shape, dtype=float32, layout=RowMajor):
    return whole_view(Tensor(name, tuple(map(as_expr, shape)), dtype, GL, layout))


def copied(source, target):
    """A copy from one array to another."""
    spec = Move(*source.tensor.shape, dtype=source.dtype)(GL, GL)(Kernel)
    return spec.with_operands(src=source, dst=target)


# ---------------------------------------------------------------------------------------------- launches of a step


def test_a_program_of_one_launch_is_itself():
    plain = BODY(SPEC.at_level(Kernel)).program("sm_90")
    (only,) = plain.launches
    assert only.program is plain and plain.preceding == () and only.arrays == {name: name for name in "ABC"}
    assert (only.reads, only.writes, only.kernel) == (("A", "B"), ("C",), plain.ir)
    adding = BODY(SPEC.at_level(Kernel).with_options(accumulate=TRUE)).program("sm_90").launches[0]
    assert adding.reads == ("A", "B", "C")


def test_a_step_may_make_a_single_launch():
    single = program(lambda spec, given: Launches((), spec.at_level(Kernel)))
    assert single.preceding == () and single.cuda.count("__global__") == 1
    assert "// 1 launches" not in single.cuda


def test_outer_levels_are_split_one_after_the_other():
    """Each launch of the outer level is a separate sequence."""
    outer = Level("Graph", consists_of=SEQUENCE)

    def rows(spec, given):
        parts = [
            spec.at_level(SEQUENCE, **{name: spec.operands[name].with_dims({0: _part(16, 8, number)}) for name in "AC"})
            for number in (0, 1)
        ]
        return Launches((LaunchRequest("first", parts[0]),), parts[1])

    program = MatMul.then(MakeLaunches(rows)).then(InLaunches("k", 2)).then(BODY)(SPEC.at_level(outer)).program("sm_90")
    assert [launch.program.name for launch in program.launches] == ["matmul_first_part0", "matmul_first", "matmul_part0", "matmul"]
    draw = np.random.default_rng(3)
    a, b = (draw.integers(-3, 4, shape).astype(np.float32) for shape in ((16, 32), (32, 24)))
    np.testing.assert_array_equal(simulate_launches(program.launches, {"A": a, "B": b}, outputs=("C",))["C"], a @ b)


def _part(total, size, number):
    return Dim((Mode(as_expr(size), as_expr(1)),), None, (Fixed(as_expr(total // size), as_expr(size), False, as_expr(number)),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda spec, given: Launches((), spec), r"made\(\) divides Sequence into MatMul\(16,24,32\)\(GL,GL,GL\)\(Sequence\)"),
        (lambda spec, given: Launches((), spec.at_level(Block)), "of Sequence"),
        (lambda spec, given: Launches((LaunchRequest("first", spec),), spec.at_level(Kernel)), "of Sequence"),
        (
            lambda spec, given: Launches((LaunchRequest("first", copied(spec.A, temporary("t", (16, 32))), steps=COPY.steps),), _with(spec, "t", (16, 32), float16)),
            "the launches first and matmul access the array t with different",
        ),
        (
            lambda spec, given: Launches((LaunchRequest("first", copied(spec.A, temporary("t", (16, 32))), steps=COPY.steps),), _with(spec, "t", (16, 32), float32, ColMajor)),
            "the launches first and matmul access the array t with different",
        ),
        (
            lambda spec, given: Launches((LaunchRequest("first", copied(temporary("u", (16, 32)), temporary("t", (16, 32))), steps=COPY.steps),), _with(spec, "t", (16, 32), float32)),
            "the launch first reads u, which no earlier launch wrote",
        ),
        (
            lambda spec, given: Launches((LaunchRequest("first", copied(temporary("t", (16, 32)), attrs.evolve(spec.A)), steps=COPY.steps),), spec.at_level(Kernel)),
            "the launch first reads t, which no earlier launch wrote",
        ),
    ],
)  # fmt: skip
def test_an_illegal_sequence_is_refused(make, message):
    with pytest.raises(DecompositionError, match=message):
        _ = program(make).ir


def _with(spec, name, shape, dtype, layout=RowMajor):
    """The GEMM with a temporary instead of A."""
    return spec.at_level(Kernel, A=temporary(name, shape, dtype, layout))


def test_a_step_without_launches_is_refused():
    class Silent(Decomposition):
        verb, makes_launches = "silent", True

    with pytest.raises(FireironError, match="does not define launches"):
        _ = MatMul.then(Silent()).then(BODY)(SPEC).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- the order


def launch(name, spec, **arrays):
    return types.SimpleNamespace(name=name, spec=spec, arrays={operand: arrays.get(operand, operand) for operand in spec.operands})


def rows_of(spec, start, size, total):
    """A GEMM of some rows, whose number is constant or a run-time size."""
    part = Dim((Mode(as_expr(size), as_expr(1)),), None, (Fixed(as_expr(total // size), as_expr(size), False, as_expr(start)),))
    return spec.at_level(Kernel, A=spec.A.with_dims({0: part}), C=spec.C.with_dims({0: part}))


def messages(spec, *launches):
    return [finding.message for finding in check_launches(spec, launches)]


def test_parts_of_run_time_sizes_are_whole_or_undecided():
    M = sym("M", multiple_of=2)
    spec = MatMul(M, 24, 32, C=RowMajor)(GL, GL, GL)(SEQUENCE)
    assert messages(spec, launch("all", spec.at_level(Kernel))) == []
    upper_and_lower = [rows_of(spec, number, M // 2, M) for number in (0, 1)]
    assert messages(spec, *(launch(str(number), half) for number, half in enumerate(upper_and_lower))) == [
        "MatMul writes C: undecided whether the launches write all of it (legal: parts of known sizes, or whole arrays)"
    ]


def test_every_part_of_an_output_is_written():
    parts = [launch(str(number), rows_of(SPEC, number, 4, 16)) for number in range(4)]
    assert messages(SPEC, *parts) == messages(SPEC, *reversed(parts)) == []
    for number in range(4):
        assert messages(SPEC, *parts[:number], *parts[number + 1 :]) == [f"MatMul writes C, but no earlier launch wrote C[{4 * number}, 0]"]
    assert messages(SPEC) == ["MatMul writes C, but no launch does"]


def test_accumulation_needs_an_earlier_write():
    adding = launch("adds", SPEC.at_level(Kernel).with_options(accumulate=TRUE))
    assert messages(SPEC, adding) == ["the launch adds reads C, which no earlier launch wrote"]
    assert messages(SPEC.with_options(accumulate=TRUE), adding) == [], "the caller's array holds something"
    half = launch("half", rows_of(SPEC, 0, 8, 16))
    assert messages(SPEC, half, adding) == ["the launch adds reads C, but no earlier launch wrote C[8, 0]"]


def test_inputs_are_read_and_outputs_are_separate_operands():
    spec = Move(16, 16)(GL, GL)(Kernel)
    whole = Move(16, 16)(GL, GL)(SEQUENCE)
    assert "src is an input of Move, but a launch writes it" in messages(whole, launch("back", spec, src="dst", dst="src"))
    assert "the launch same writes dst as dst, but dst is also operand src of this launch" in messages(
        whole, launch("one", spec), launch("same", spec, src="dst")
    )


def test_effects_of_kernels_obey_the_order():
    first, half = launch("first", SPEC.at_level(Kernel)), launch("half", rows_of(SPEC, 1, 8, 16))
    nothing, zeroed, ready = Effects(), Effects((Zeroed(("C",)),)), Effects((DependentLaunch(True, ("A",)),))
    assert list(check_effects([(first, nothing), (first, zeroed)])) == [], "all of it is written anew"
    assert list(check_effects([(half, zeroed), (first, zeroed)])) == []
    (finding,) = check_effects([(first, nothing), (half, zeroed)])
    assert finding.message == "the launch half sets all of C to zero, but an earlier launch wrote a part of it"
    copy = launch("copy", Move(16, 32)(GL, GL)(Kernel), src="A", dst="t")
    reading = launch("reads", SPEC.at_level(Kernel), A="t")
    (finding,) = check_effects([(copy, nothing), (reading, ready)])
    assert finding.message == "the launch reads does not wait for A, but an earlier launch writes t"
    assert list(check_effects([(reading, ready), (copy, nothing)])) == []


def test_compilation_checks_requirements_on_earlier_launches():
    """C, to which blocks add in one part, would be zeroed as a whole, with the rows of another launch."""
    parts = MatMul.then(InLaunches("m", 2)).split_k(2, Block, 16).tile(8, 8).to(Block).epilog(RF).split(16)
    parts = parts.tile(1, 1).to(Thread).split(1).done()
    with pytest.raises(DecompositionError, match="sets all of C to zero, but an earlier launch wrote a part of it"):
        _ = parts(SPEC).program("sm_90").ir
    programmatic = MatMul.repack(A).tile(8, 8).to(Block).programmatic_launch(no_wait=A).tile(1, 1).to(Thread).split(1).done()
    with pytest.raises(DecompositionError, match="a preceding launch copies A, so the kernel must wait for it"):
        _ = programmatic(MatMul(16, 24, 33, A=RowMajor)(GL, GL, GL)(Kernel)).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- arrays in the simulator


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_uninitialized_elements_are_not_read(dtype):
    kernel = COPY(Move(16, 16, dtype=dtype)(GL, GL)(Kernel)).program("sm_90").ir
    given, known = np.ones((16, 16), dtype.to_numpy()), np.full((16, 16), True)
    whole = simulate(kernel, {"src": given}, known={"src": known})
    assert whole.written["dst"].all() and (whole.outputs["dst"] == 1).all()
    assert simulate(kernel, {"src": given}).written == {}
    known[3, 5] = False
    with pytest.raises(SimulationError, match=r"src\[3, 5\] .* is read before any write to it"):
        simulate(kernel, {"src": given}, known={"src": known})


def test_elements_that_a_launch_omits_are_found():
    """Rows of the output that another launch writes; a maximum, which ignores NaN, does not hide them."""
    first = BODY(rows_of(SPEC, 0, 8, 16)).program("sm_90")
    arrays = {"A": np.ones((16, 32), np.float32), "B": np.ones((32, 24), np.float32)}
    assert simulate(first.ir, arrays, known={}).written["C"].tolist() == [[row < 8] * 24 for row in range(16)]
    most = Fused(name="most", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"y": "Y[m, n] = max(X[m, n], 0)"})
    rest = most.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()(most(m=16, n=24, dtype=float32)).program("sm_90")
    launches = [
        types.SimpleNamespace(kernel=first.ir, arrays={"A": "A", "B": "B", "C": "t"}),
        types.SimpleNamespace(kernel=rest.ir, arrays={"X": "t", "Y": "Y"}),
    ]
    with pytest.raises(SimulationError, match=r"X\[8, 0\] .* is read before any write to it"):
        simulate_launches(launches, arrays, outputs=("Y",))


# ---------------------------------------------------------------------------------------------- calls


def test_a_launch_allocates_all_its_outputs_or_none():
    from fireiron.gpu.sequence import _require_all_new_or_existing

    written = types.SimpleNamespace(writes=("t", "C"), program=types.SimpleNamespace(name="both"))
    assert _require_all_new_or_existing(written, set()) and not _require_all_new_or_existing(written, {"t", "C", "D"})
    with pytest.raises(ArgumentError, match="both writes both new temporaries and arrays that exist before it"):
        _require_all_new_or_existing(written, {"C"})


def test_the_last_launch_of_a_call_writes_its_outputs():
    """Programs that end otherwise are simulated and printed; a call would return a temporary."""

    def last_elsewhere(spec, given):
        first = LaunchRequest("product", spec.at_level(Kernel), steps=BODY.steps)
        return Launches((first,), copied(spec.A, temporary("t", (16, 32))))

    rest = AnySpec.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
    ending = MatMul.then(MakeLaunches(last_elsewhere)).then(rest)(SPEC).program("sm_90")
    assert ending.cuda.count("__global__") == 2
    with pytest.raises(ArgumentError, match="the last launch must write all outputs, but matmul writes t"):
        CompiledKernel(ending)(np.ones((16, 32), np.float32), np.ones((32, 24), np.float32))


SCATTERED = Fused(
    name="scattered", dims="m n r", operands={"X": "m n", "rows": "m", "Y": "r n"}, body={"store": "Y[rows[m],n] = X[m,n]"}, distinct="rows"
)


def test_elements_that_indices_name_are_not_the_whole_array():
    """A launch that writes rows of a table: the sequence may consist of it, but no later launch reads the whole array."""
    spec = SCATTERED(m=16, n=8, r=32)
    whole = Move(32, 8, dtype=float16, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    assert messages(spec, launch("only", spec)) == []
    reads = launch("reads", whole, src="Y", dst="Z")
    assert messages(spec, launch("only", spec), reads) == [
        "the launch reads reads Y: undecided whether the launches write all of it (legal: a launch that writes whole arrays)"
    ]
    assert messages(spec, launch("only", spec, rows="others")) == [
        "the launch only reads others, which no earlier launch wrote",
        "scattered writes Y: undecided whether the launches write all of it (legal: a launch that writes whole arrays)",
    ]
