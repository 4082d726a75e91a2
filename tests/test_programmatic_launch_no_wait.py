"""`no_wait`: inputs that no kernel of a chain writes are loaded before `griddepcontrol.wait`. Verification, printed CUDA, refusals."""

import re

import attrs
import making
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from problems import integers
from ringed import TARGET, by_threads, errors, float16_gemm, inputs_of, is_load, outcome, product, require_right, roles_of, with_changed
from test_hopper_attention import chain as keys_and_values
from test_hopper_attention import require_right as require_attention
from test_programmatic_launch import LOADS
from test_roles import COPIES, ELEMENTS, TMA, edited, fed, is_arrival, without

from fireiron import *
from fireiron import ir
from fireiron.check import races
from fireiron.check.races.order import HappensBefore
from fireiron.gpu import toolchain
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.synchronization import synchronization
from fireiron.ir import GridDepAction, verify
from fireiron.language.store import dumps, loads
from fireiron.strategies import attention
from fireiron.values.expr import Const

WAIT = making.grid_dep_control(GridDepAction.WAIT)


def with_programmatic_launch(ready, strategy):
    return strategy.at(Tile).refine(ProgrammaticLaunch(ready))


small = product((64, 64, 64), (64, 64), 3)

CASES = {
    "B, more iterations than stages": (with_programmatic_launch("B", small), float16_gemm(128, 72, 320)),
    "A, more iterations than stages": (with_programmatic_launch("A", small), float16_gemm(128, 72, 264)),
    "B, fewer iterations than stages": (with_programmatic_launch("B", small), float16_gemm(64, 64, 128, orders="NT")),
    "an iteration in flight, four stages": (
        with_programmatic_launch("B", product((64, 64, 64), (64, 64), 4, mma_in_flight=1)),
        float16_gemm(64, 64, 640),
    ),
    "a warpgroup produces": (with_programmatic_launch("B", product((128, 64, 64), (64, 64), 2, producer=128)), float16_gemm(128, 64, 192)),
}


def copied(a, b, ready, **options):
    """A GEMM whose producer copies by threads what TMA does not load, with `no_wait` inputs."""
    return with_programmatic_launch(ready, fed(a, b, (64, 64, 64), **options))


CASES |= {
    "TMA and copies, A": (copied(TMA, COPIES, "A"), float16_gemm(64, 128, 320)),
    "TMA and copies, B": (copied(TMA, COPIES, "B"), float16_gemm(128, 64, 320)),
    "copies and TMA, A": (copied(COPIES, TMA, "A", stages=2), float16_gemm(64, 64, 264)),
    "all copied, A": (copied(COPIES, COPIES, "A"), float16_gemm(128, 64, 320)),
    "all copied by a warpgroup, B": (copied(COPIES, COPIES, "B", threads=128), float16_gemm(64, 64, 256)),
    "elements, B": (copied(TMA, ELEMENTS, "B", stages=2), float16_gemm(64, 63, 192)),
    "cp.async and elements, B": (copied(COPIES, ELEMENTS, "B", stages=2), float16_gemm(64, 64, 192)),
    "cp.async and elements, A": (copied(COPIES, ELEMENTS, "A"), float16_gemm(64, 64, 128)),
}


def program_of(name):
    strategy, spec = CASES[name]
    return strategy(spec).program(TARGET)


@pytest.mark.parametrize("name", CASES)
def test_no_wait_results(name):
    require_right(*CASES[name])


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_printed_text_on_a_cpu(tmp_path):
    from test_printed_text import agrees

    host = HostProgram([Printed.of(program_of(name)) for name in CASES], tmp_path)
    for number, (_, spec) in enumerate(CASES.values()):
        assert agrees(host, number, spec, tuple(int(str(size)) for size in spec.sizes))


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5, 11, 19, 20, 21, 22, 23, 24, 25, 26, 40])
def test_race_check_decides_each_trip_count(iterations):
    """The check shortens the loops of consumers and producer alike, for any number of fills before the wait."""
    kernel = with_programmatic_launch("B", small)(float16_gemm(64, 64, 64 * iterations)).program(TARGET).ir
    assert errors(kernel) == []


K = sym("K", multiple_of=8)


@pytest.fixture(scope="module", params=["B in a ring of three stages", "A in a cluster"])
def of_any_length(request):
    """A problem with run-time K, and its program."""
    ready, cluster = ("B", None) if request.param.startswith("B") else ("A", (2, 1))
    spec = float16_gemm(128, 64, K)
    return spec, with_programmatic_launch(ready, product((64, 64, 64), (64, 64), 3, cluster=cluster))(spec).program(TARGET)


def test_race_check_decides_run_time_trip_counts(of_any_length):
    """The number of fills before the wait is the minimum of iterations and stages, so one length determines the other."""
    _, program = of_any_length
    assert errors(program.ir) == []


@pytest.mark.parametrize("length", [8, 64, 72, 128, 192, 200, 384, 648])
def test_run_time_trip_counts(of_any_length, length):
    """Fewer iterations than stages, as many, and more."""
    spec, program = of_any_length
    sizes = {"K": length}
    arrays, expected = inputs_of(spec, sizes)
    for order in (None, 1):
        assert outcome(program.lowered, arrays, expected, order, sizes) == "right"


def with_own_stages(ready, of_a, of_b):
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(2).warp_specialize()
    chain = chain.load(A, SH, Move.done()).stages(of_a).load(B, SH, Move.done()).stages(of_b)
    return with_programmatic_launch(ready, chain.tile(64, 64).to(Warpgroup).done())


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("case", [("B", 4, 2), ("B", 2, 4), ("A", 3, 2), ("A", 1, 3)], ids=str)
def test_rings_with_different_numbers_of_stages(case, iterations):
    """No ring is filled beyond its stages: its consumer waits for loads that follow the wait."""
    require_right(with_own_stages(*case), float16_gemm(64, 64, 64 * iterations))


BIASED = {
    "B": (product(), ("B",), "relu(acc + bias[n])", 1),
    "A, two vectors": (product((64, 64, 64), (64, 64), 3), ("A",), "relu(acc * r[m] + bias[n])", 2),
    "B and a vector": (product(), ("B", "bias"), "relu(acc + bias[n])", 0),
    "B and one of two vectors": (product(), ("B", "bias"), "relu(acc * r[m] + bias[n])", 2),
    "in a cluster": (product((64, 64, 64), (64, 64), cluster=(2, 1)), ("A",), "relu(acc + bias[n])", 1),
}
"""Strategies, `no_wait` inputs, the epilogue, and the number of vectors loaded after the wait: all vectors of a ring, or none."""


def prefetched(strategy, ready):
    return with_programmatic_launch(ready, strategy).at(Epilog).refine(PrefetchEpilogue())


@pytest.mark.parametrize("name", BIASED)
def test_prefetched_vectors_wait_unless_no_wait(name):
    """Prefetched vectors wait, too, unless they are `no_wait` inputs."""
    strategy, ready, text, late = BIASED[name]
    spec = prefetched(strategy, ready)(float16_gemm(128, 64, 320)).fuse_epilogue(text)
    kernel = spec.program(TARGET).ir
    producer = roles_of(kernel)[1].body
    after = [one for one in producer[producer.index(WAIT) :] if is_load(one)]
    assert len(after) == late and errors(kernel) == []
    generator = np.random.default_rng(3)
    shapes = {name: [int(str(size)) for size in kernel.spec.operands[name].shape] for name in kernel.spec.inputs}
    arrays = {name: integers(shape, kernel.spec.operands[name].dtype, generator) for name, shape in shapes.items()}
    for order in (None, 1):
        assert outcome(kernel, arrays, kernel.spec.reference(*arrays.values()), order) == "right"


def test_no_wait_with_shared_stages():
    """K and V of attention share the stages of one ring, two fills per iteration; Q is loaded before the loop."""
    strategy = with_programmatic_launch("K", keys_and_values(attention.definition(), shares=True))
    require_attention(strategy(attention.spec(64, 160, 64, fused=attention.definition())).program(TARGET), orders=(None,))


def test_producer_waits_between_no_wait_loads_and_others():
    consumers, producer = roles_of(program_of("B, more iterations than stages").ir)
    before, wait, after, rest = producer.body[-4:]
    assert wait == WAIT and consumers.body.count(WAIT) == 1
    assert [one.spec.operands["src"].tensor.name for one in before.body if is_load(one)] == ["B"]
    assert [one.spec.operands["src"].tensor.name for one in after.body if is_load(one)] == ["A"]
    assert (str(before.extent), str(after.extent), str(rest.extent), rest.first) == ("3", "3", "5", 3)
    touching = [one for one in consumers.body if any(kind.instruction.name.startswith("TMA") for kind, _ in ir.execs((one,)))]
    assert consumers.body.index(WAIT) < consumers.body.index(touching[0])


# ---------------------------------------------------------------------------------------------- injected faults


def in_producer(kernel, change):
    """The kernel with a changed producer body."""
    consumers, producer = roles_of(kernel)
    roles = making.roles((consumers, attrs.evolve(producer, body=change(producer.body))))
    return attrs.evolve(kernel, body=tuple(roles if isinstance(one, ir.Roles) else one for one in kernel.body))


def without_wait_of_consumers(kernel):
    return with_changed(kernel, lambda one: one == WAIT, 0, lambda one: ())


def later_wait(body):
    *before, wait, after, rest = body
    return (*before, after, wait, rest)


FAULTS = {
    "consumers that do not wait": (without_wait_of_consumers, "1 at the top level, 1 inside"),
    "a producer that does not wait": (
        lambda kernel: in_producer(kernel, lambda body: tuple(one for one in body if one != WAIT)),
        "1 inside",
    ),
    "A before the wait": (lambda kernel: in_producer(kernel, later_wait), "A is accessed before griddepcontrol.wait"),
    "B is not ready": (lambda kernel: making.evolved(kernel, ready=("A",)), "B is accessed before griddepcontrol.wait"),
    "nothing is ready": (lambda kernel: making.evolved(kernel, ready=()), "1 at the top level, 2 in loops or roles"),
    "two waits": (lambda kernel: in_producer(kernel, lambda body: (WAIT, *body)), "3 inside"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FAULTS)
def test_verifier_refuses_misplaced_waits(name):
    fault, message = FAULTS[name]
    kernel = program_of("B, more iterations than stages").ir
    assert verify(kernel, final=True) is kernel
    with pytest.raises(VerificationError, match=message):
        verify(fault(kernel), final=True)


def loop(number, **fields):
    """Change one of the last three loops of the producer."""

    def change(body):
        loops = [place for place, one in enumerate(body) if isinstance(one, ir.For)]
        body = list(body)
        body[loops[number]] = attrs.evolve(body[loops[number]], **fields)
        return tuple(body)

    return lambda kernel: in_producer(kernel, change)


RING_FAULTS = {
    "a fill is loaded twice": loop(2, first=2),
    "a fill is missing": loop(2, first=4),
    "A of one fill is missing": loop(1, extent=Const(2)),
    "B of one fill is missing": loop(0, extent=Const(2)),
}


@pytest.mark.parametrize("name", RING_FAULTS)
def test_race_check_and_simulator_find_fill_faults(name):
    _, spec = CASES["B, more iterations than stages"]
    kernel = RING_FAULTS[name](program_of("B, more iterations than stages").ir)
    arrays, expected = inputs_of(spec)
    assert errors(kernel) != [], "the static check"
    assert outcome(kernel, arrays, expected) != "right", "the simulator"


@pytest.mark.parametrize("name", ["a fill is loaded twice", "a fill is missing", "A of one fill is missing", "B of one fill is missing"])
def test_fill_faults_are_found_at_run_time_lengths(name, of_any_length):
    _, program = of_any_length
    assert errors(RING_FAULTS[name](program.lowered)) != []


def test_fault_at_all_lengths_stops_the_check_early(monkeypatch):
    """If further lengths add no new facts, the check refuses the kernel without examining the remaining ones."""
    program = with_programmatic_launch("B", product((64, 64, 64), (64, 64), 5))(float16_gemm(64, 64, K)).program(TARGET)
    given, followed = [], []
    unordered, run = races._unordered, HappensBefore.run
    monkeypatch.setattr(races, "_unordered", lambda *arguments: given.append(len(arguments[0])) or unordered(*arguments))
    monkeypatch.setattr(HappensBefore, "run", lambda one: (type(one) is HappensBefore and followed.append(one)) or run(one))
    consumers, _ = roles_of(program.lowered)
    products = next(one for one in ir.statements(consumers.body) if isinstance(one, ir.Wait))
    assert errors(with_changed(program.lowered, lambda one: one is products, 0, lambda one: ())) != []
    assert len(followed) == races.MAX_UNCHANGED + 1 < given[0]


# ---------------------------------------------------------------------------------------------- copies by threads

COPIED = tuple(name for name in CASES if "cop" in name or "elements" in name)


def loaded_around_the_wait(role):
    """The arrays that a role loads before and after its wait."""
    place = role.body.index(WAIT)
    parts = (role.body[:place], role.body[place + 1 :])
    return tuple({one.spec.operands["src"].tensor.name for one, _ in ir.execs(part) if one.ring} for part in parts)


# Per producer: arrays loaded before the wait, and after it.
AROUND = {
    "TMA and copies, A": [(set(), {"B"}), ({"A"}, {"A"})],
    "TMA and copies, B": [({"B"}, {"B"}), (set(), {"A"})],
    "copies and TMA, A": [({"A"}, {"A"}), (set(), {"B"})],
    "all copied, A": [({"A"}, {"A", "B"})],
    "all copied by a warpgroup, B": [({"B"}, {"A", "B"})],
    "elements, B": [({"B"}, {"B"}), (set(), {"A"})],
    "cp.async and elements, B": [({"B"}, {"A", "B"})],
    "cp.async and elements, A": [({"A"}, {"B"})],
}


@pytest.mark.parametrize("name", COPIED)
def test_copying_producers_load_no_wait_inputs_before_the_wait(name):
    kernel = program_of(name).ir
    consumers, *producers = roles_of(kernel)
    assert [loaded_around_the_wait(role) for role in producers] == AROUND[name]
    assert loaded_around_the_wait(consumers) == (set(), set()) and errors(kernel) == []


@pytest.mark.parametrize(
    "strategy", [fed(TMA, COPIES), fed(COPIES, COPIES), fed(TMA, ELEMENTS, stages=2)], ids=["mixed", "copies", "elements"]
)
def test_all_roles_wait_before_any_load_without_no_wait(strategy):
    """Copies read the output of the preceding kernel, so no thread issues one before the wait."""
    spec = float16_gemm(128, 64, 320)
    kernel = with_programmatic_launch((), strategy)(spec).program(TARGET).ir
    place = next(place for place, one in enumerate(kernel.body) if isinstance(one, ir.Roles))
    assert kernel.body.index(WAIT) < place and not any(True for _ in ir.execs(kernel.body[: kernel.body.index(WAIT)]))
    require_right(with_programmatic_launch((), strategy), spec)


@pytest.mark.parametrize("name", ["TMA and copies, A", "TMA and copies, B", "all copied, A"])
def test_ptx_has_no_copy_before_the_wait(name):
    """In PTX each role has a wait, and other inputs are loaded after it."""
    program = program_of(name)
    if toolchain.serving(TARGET, None) is None:
        pytest.skip("no CUDA compiler")
    ptx = toolchain.compile_cuda(program.cuda, TARGET).ptx
    body = ptx[ptx.index(".entry") :]
    waits, roles = body.count("griddepcontrol.wait"), len(roles_of(program.ir))
    assert waits == roles and ".nc" not in "".join(re.findall(r"ld\.global\S*", body)) and re.search(LOADS, body) is not None


def test_copy_before_the_wait_requires_no_wait():
    """Injected fault: the role that copies B, which is not a `no_wait` input, waits after its loop."""
    kernel = program_of("TMA and copies, A").ir
    consumers, copying, producer = roles_of(kernel)
    late = attrs.evolve(copying, body=(*(one for one in copying.body if one != WAIT), WAIT))
    wrong = attrs.evolve(
        kernel, body=tuple(making.roles((consumers, late, producer)) if isinstance(one, ir.Roles) else one for one in kernel.body)
    )
    assert verify(kernel, final=True) is kernel
    with pytest.raises(VerificationError, match="B is accessed before griddepcontrol.wait"):
        verify(wrong, final=True)


ARRIVAL_FAULTS = {
    "no arrival": without(is_arrival),
    "no arrivals of the fills before the wait": lambda kernel: with_changed(kernel, is_arrival, 0, lambda one: ()),
    "two arrivals": lambda kernel: edited(kernel, lambda one: (one, one) if is_arrival(one) else (one,)),
}


@pytest.mark.parametrize("name", ["TMA and copies, B", "all copied, A", "cp.async and elements, A"])
@pytest.mark.parametrize("fault", ARRIVAL_FAULTS)
def test_race_check_and_simulator_find_arrival_faults(name, fault):
    _, spec = CASES[name]
    kernel = ARRIVAL_FAULTS[fault](program_of(name).ir)
    arrays, expected = inputs_of(spec)
    assert errors(kernel) != [], "the static check"
    assert outcome(kernel, arrays, expected) not in ("right", "wrong"), "the simulator"


# ---------------------------------------------------------------------------------------------- printed CUDA and refusals


def test_printed_kernel_states_the_no_wait_requirement():
    text = program_of("B, more iterations than stages").cuda
    assert "// requires: no kernel that may still run writes B, which is read before griddepcontrol_wait" in text
    body = text[text.index("// producer") :]
    assert body.index("&B_map") < body.index("griddepcontrol_wait();") < body.index("&A_map")
    assert text.count("griddepcontrol_wait();") == 2


def test_no_wait_round_trips():
    strategy = CASES["B, more iterations than stages"][0]
    assert eval(repr(strategy)) == strategy and loads(dumps(strategy)) == strategy and ProgrammaticLaunch([B]) == ProgrammaticLaunch("B")
    assert str(ProgrammaticLaunch("B")) == "programmatic_launch(no_wait=B)" and MatMul.tile(8, 8).to(Block).programmatic_launch(
        "B"
    ).done().steps[0].refinements[-1] == ProgrammaticLaunch("B")
    program = program_of("B, more iterations than stages")
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    assert [point.kind for point in synchronization(program.ir).points].count("griddepcontrol.wait") == 2


REFUSED = {
    "an output": ("C", small, float16_gemm(64, 64, 128), r"C is not an input.*legal   A B"),
    "no operand": ("W", small, float16_gemm(64, 64, 128), "W is not an input"),
    "all of them": (("A", "B"), small, float16_gemm(64, 64, 128), "the producer loads only these inputs"),
    "all of them, copied": (("A", "B"), fed(TMA, COPIES), float16_gemm(128, 64, 128), "the producer loads only these inputs"),
    "several tiles, copied": ("B", fed(TMA, COPIES, (64, 64, 64), blocks=2), float16_gemm(256, 64, 128), "a block has several tiles"),
    "several tiles": ("B", product((64, 64, 64), (64, 64), 2, blocks=2), float16_gemm(256, 64, 128), "a block has several tiles"),
    "no producer": ("B", MatMul.tile(16, 16).to(Block).split(8).load(A, SH).load(B, SH).tile(2, 2).to(Thread).tile(1, 1).split(1).done(),
                    float16_gemm(64, 64, 64), r"the kernel has no producer.*pipeline\(stages\)\.warp_specialize\(\)"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_no_wait_refusals(name):
    ready, strategy, spec, message = REFUSED[name]
    with pytest.raises(DecompositionError, match=f"(?s){message}"):
        _ = with_programmatic_launch(ready, strategy)(spec).program(TARGET).ir


def test_no_wait_with_ordinary_consumers():
    """Consumers that do not use wgmma: they read stages by ordinary loads and wait before their stores."""
    require_right(with_programmatic_launch("B", by_threads()), float16_gemm(64, 64, 192, c_dtype=float32))


def test_no_wait_names_are_checked():
    with pytest.raises(DecompositionError, match="`no_wait` must name each operand once"):
        ProgrammaticLaunch(("A", "A"))
    for wrong in ((1,), "", 1):
        with pytest.raises(ArgumentError, match="not an operand"):
            ProgrammaticLaunch(wrong)


def test_no_wait_is_refused_for_repacked_operands():
    """Rows of 146 bytes are illegal for TMA, so a preceding kernel copies B, and this kernel waits for it."""
    strategy = with_programmatic_launch("B", MatMul.repack(A).repack(B).then(small))
    with pytest.raises(DecompositionError, match="a preceding launch copies B"):
        _ = strategy(float16_gemm(64, 73, 128)).program(TARGET).ir
    assert making.effect_of(strategy(float16_gemm(64, 72, 128)).program(TARGET).ir, "ready") == ("B",)
