"""Time and check kernels on a simulated GPU (tests/gpu_stand_in.py); on a real one: test_timing_gpu.py."""

import functools
import itertools
import json
import math
import sys
import types

import attrs
import fused_examples
import numpy as np
import outputs
import pytest
from gpu_stand_in import LATENCY, Clock, stand_in

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu import state as gpu_state
from fireiron.gpu.kernel import CompiledKernel
from fireiron.measure import timing
from fireiron.measure.timing import Data, Timing, measure, throughput, tolerance_of


@pytest.fixture
def clock(monkeypatch):
    """The simulated GPU, without pauses in real time."""
    clock = Clock()
    clock.slept, clock.nodes = [], None
    cupy = stand_in(clock)
    monkeypatch.setattr(launch, "require_cupy", lambda: cupy)
    monkeypatch.setattr(launch, "gpu_available", lambda: True)
    monkeypatch.setattr(gpu_state, "read_state", lambda: gpu_state.State(1980, 40, 500.0, ("power cap",)))
    monkeypatch.setattr(gpu_state, "captured_nodes", lambda stream: len(clock.capture) if clock.nodes is None else clock.nodes)
    monkeypatch.setattr(timing.time, "sleep", clock.slept.append)
    monkeypatch.setitem(sys.modules, "torch", None)
    return clock


# ---------------------------------------------------------------------------------------------- measuring


def test_times_of_graphs(clock):
    calls = {"fast": [clock.kernel(f"fast{i}", 10) for i in range(3)], "slow": [clock.kernel(f"slow{i}", 25) for i in range(3)]}
    timings = measure(calls)
    assert timings["fast"].us == pytest.approx(10) and timings["slow"].us == pytest.approx(25), "without what the host needs to launch"
    for measured in timings.values():
        assert (
            len(measured.rounds) == 20 and measured.graph and measured.note == "" and (measured.regime, measured.l2) == ("burst", "rotated")
        )
        assert (
            measured.clocks == (1980, 1980)
            and measured.temperature == 40
            and measured.power == 500
            and measured.throttle_reasons == ("power cap",)
        )
        assert measured.launches % 3 == 0 and 3000 <= measured.launches * measured.us <= 4000
    assert json.dumps(attrs.asdict(timings["fast"]))


def test_contenders_alternate_after_a_pause(clock):
    calls = {name: [clock.kernel(name, 100)] * 2 for name in "ab"}
    measure(calls, rounds=20)
    assert clock.slept == [0.25] * len(clock.slept)
    order = [name for name, before in zip(clock.launched, [None, *clock.launched]) if name != before][2:]
    assert order == list("abab" * (len(order) // 4)) and len(order) == len(clock.slept) == 8
    timed = clock.launched[-2 * 6 * 40 * 4 :]
    assert timed.count("a") == timed.count("b"), "each burst is a replay and five rounds of 4 ms"


def test_short_bursts_alternate_more_often(clock):
    """Four rounds of 4 ms run in one burst, or in four bursts of 4 ms."""
    calls = {name: [clock.kernel(name, 100)] * 2 for name in "ab"}
    for options, bursts in (({}, 1), ({"burst": 4000.0}, 4)):
        clock.slept.clear()
        assert all(len(timing.rounds) == 4 for timing in measure(calls, rounds=4, **options).values())
        assert len(clock.slept) == 2 * bursts


def test_the_first_burst_begins_some_time_after_the_preparation(clock):
    measure({name: [clock.kernel(name, 100)] * 2 for name in "ab"}, rounds=2, pause=0.05)
    assert clock.slept == pytest.approx([timing.SETTLING - 0.05, 0.05, 0.05])


def test_busy(clock):
    timings = measure({name: [clock.kernel(name, 100)] * 2 for name in "ab"}, regime="busy", heating=0.01)
    assert clock.slept == [] and timings["a"].regime == "busy" and timings["a"].us == pytest.approx(100)


def test_sets_rotate(clock):
    timings = measure({"x": [clock.kernel(str(i), 2000) for i in range(7)]}, rounds=30, launches=2)
    assert timings["x"].launches == 2
    timed = clock.launched[-60:]
    assert all(int(after) == (int(before) + 1) % 7 for before, after in itertools.pairwise(timed)) or len(set(timed)) == 7
    pairs = {(timed[i], timed[i + 1]) for i in range(0, 60, 2)}
    assert len(pairs) == 7, "no replay is the one before"
    measure({"x": [clock.kernel(str(i), 9000) for i in range(3)]}, rounds=6, pause=0)
    assert clock.launched[-9:] == list("201120012"), "one launch a round, each on another set, and before each burst the one before"


def test_hot_is_one_set(clock):
    timings = measure({"x": [clock.kernel(str(i), 50) for i in range(3)]}, l2="hot")
    assert set(clock.launched) == {"0"} and timings["x"].l2 == "hot"
    assert measure({"x": [clock.kernel("only", 50)]}, l2="hot")["x"].us == pytest.approx(50)


def test_flushed_times_each_launch_alone(clock):
    measured = measure({"x": [clock.kernel("x", 8)]}, l2="flushed", launches=5)["x"]
    assert measured.us == pytest.approx(8), "the flush is not counted"
    assert clock.launched[-10:] == ["flush", "x"] * 5


def test_method_of_the_paper(clock):
    times = iter(np.random.default_rng(0).uniform(20, 30, 100_000))
    measured = measure({"x": [clock.kernel("x", 20)]}, rounds=1000, launches=1, l2="hot")["x"]
    assert len(measured.rounds) == 1000 and measured.launches == 1
    timed = Timing.of([next(times) for _ in range(1000)])
    assert timed.minimum == min(timed.rounds) < timed.quartiles[0] < timed.us < timed.quartiles[1]


@pytest.mark.parametrize(("regime", "l2"), [("burst", "rotated"), ("burst", "flushed"), ("burst", "hot"), ("busy", "rotated")])
def test_slow_kernels_have_fewer_rounds(clock, regime, l2):
    calls = {"slow": [clock.kernel("slow", 650_000)] * 64, "fast": [clock.kernel("fast", 20)] * 64}
    timings = measure(calls, regime=regime, l2=l2, heating=0)
    assert len(timings["fast"].rounds) == 20 and len(timings["slow"].rounds) == (7 if regime == "burst" else 15)
    assert timings["slow"].us == pytest.approx(650_000) and timings["slow"].launches == 1 and timings["slow"].clocks == (1980, 1980)
    assert clock.launched.count("slow") * 0.65 < 10 + 5, "seconds: rounds, and to find out how long one takes"
    assert len(measure({"slow": calls["slow"]}, heating=0, regime=regime, l2=l2, seconds=math.inf)["slow"].rounds) == 20


@pytest.mark.parametrize(
    ("us", "rounds", "seconds", "there_are"), [(9e6, 20, 10, 3), (9e6, 2, 10, 2), (20, 1000, 10, 1000), (2e5, 20, 1, 3), (2e4, 20, 0.2, 5)]
)
def test_rounds_follow_from_the_time_of_a_launch(clock, us, rounds, seconds, there_are):
    measured = measure({"x": [clock.kernel("x", us)] * 2}, rounds=rounds, seconds=seconds, pause=0)["x"]
    assert len(measured.rounds) == there_are and measured.us == pytest.approx(us)


def test_uncapturable_calls_are_launched(clock):
    def waits():
        clock.launch("waits", 30)
        if clock.capture is not None:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    timings = measure({"waits": [waits] * 2, "fine": [clock.kernel("fine", 30)] * 2})
    assert not timings["waits"].graph and timings["waits"].us == pytest.approx(30 + LATENCY)
    assert timings["waits"].note == "it cannot be captured: operation not permitted when stream is capturing"
    assert timings["fine"].graph and timings["fine"].us == pytest.approx(30)
    assert clock.capture is None


def test_another_stream_is_refused(clock):
    """Work on another stream leaves an empty graph, whose replay takes no time."""
    clock.nodes = 0
    with pytest.raises(ArgumentError, match="x does not launch on the current stream"):
        measure({"x": [clock.kernel("x", 30)] * 2})
    assert clock.capture is None


def test_errors_of_contenders_propagate(clock):
    def broken():
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        measure({"x": [broken] * 2})

    def later():
        clock.launch("x", 1)
        if clock.capture is not None:
            raise ValueError("while it is captured")

    with pytest.raises(ValueError, match="while it is captured"):
        measure({"x": [later] * 2})
    assert clock.capture is None, "the stream can be used again"


def test_torch_works_on_the_same_stream(clock, monkeypatch):
    entered = []

    class Context:
        def __init__(self, stream):
            self.stream = stream

        def __enter__(self):
            entered.append(self.stream)

        def __exit__(self, *_):
            entered.append("left")

    cuda = types.SimpleNamespace(is_available=lambda: True, stream=Context, ExternalStream=lambda ptr, device: (ptr, device))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    measure({"x": [clock.kernel("x", 30)] * 2}, rounds=1)
    assert entered == [(7, 0), "left"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("contenders", "options"),
    [
        ({}, {}),
        ({"x": []}, {}),
        ({"x": [3, 4]}, {}),
        ({"x": [print] * 2}, {"rounds": 0}),
        ({"x": [print] * 2}, {"rounds": True}),
        ({"x": [print] * 2}, {"launches": 0}),
        ({"x": [print] * 2}, {"seconds": 0}),
        ({"x": [print] * 2}, {"seconds": math.nan}),
        ({"x": [print] * 2}, {"seconds": True}),
        ({"x": [print] * 2}, {"seconds": "10"}),
        ({"x": [print] * 2}, {"regime": "cold"}),
        ({"x": [print] * 2}, {"l2": "warm"}),
        ({"x": [print]}, {"l2": "rotated"}),
    ],
)
def test_wrong_arguments(contenders, options):
    with pytest.raises(ArgumentError):
        measure(contenders, **options)


def test_timing_of():
    timing_ = Timing.of([3, 1, 2, 4])
    assert (timing_.us, timing_.quartiles, timing_.minimum) == (2.5, (1.75, 3.25), 1)
    assert Timing.of([5]).quartiles == (5, 5)
    for wrong in ([], [0.0], [math.nan], [-1]):
        with pytest.raises(ArgumentError):
            Timing.of(wrong)


@pytest.mark.skipif(launch.gpu_available(), reason="there is a GPU")
def test_no_gpu():
    with pytest.raises(LaunchError):
        measure({"x": [print] * 2})
    environment = timing.environment()
    assert environment["gpu"] is None and environment["fireiron"] and json.dumps(environment)


# ---------------------------------------------------------------------------------------------- data


def matmul(*sizes, **options):
    return MatMul(*sizes, **options)(GL, GL, GL)(Kernel)


def one_set(spec, **options):
    return Data.of(spec, rotate_bytes=0, **options)


def computed(data, change=lambda c: None):
    """A launch that computes the spec and then changes the output."""
    (output,) = data.spec.outputs
    arrays = data.sets[0]

    def call():
        values = data.spec.reference(*(arrays[name] for name in data.inputs))
        arrays[output][...] = values if data.initial is None else (values + data.initial).astype(values.dtype)
        change(arrays[output])

    return call


SPECS = {
    "float32": matmul(40, 30, 50),
    "rows": matmul(40, 30, 50, A=RowMajor, B=RowMajor, C=RowMajor),
    "float16": matmul(40, 30, 500, dtype=float16, c_dtype=float16, accumulator=float32),
    "float64": matmul(40, 30, 50, dtype=float64),
    "int8": matmul(40, 30, 50, dtype=int8),
    "tf32": matmul(40, 30, 50, dtype=tf32),
    "adds": matmul(40, 30, 50, accumulate=True),
    "leading": matmul(40, 30, 50, A=ColMajor(ld=48), C=RowMajor(ld=32)),
    "one": matmul(1, 1, 1),
    "move": Move(20, 30, dst_dtype=float16, dst=RowMajor)(GL, GL)(Kernel),
    "init": Init(20, 30, value=3)(GL)(Kernel),
    "init zero": Init(20, 30)(GL)(Kernel),
    "pointwise": BinaryPointwise("*", 20, 30)(GL, GL, GL)(Kernel),
    "reduction": Reduction(20, 30, 7)(GL, GL)(Kernel),
    "atomic": AtomicAdd(20, 30)(GL, GL)(Kernel),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
class TestData:
    def test_right(self, clock, spec):
        data = one_set(spec)
        assert data.verify(computed(data)) <= tolerance_of(spec)

    def test_one_element_is_wrong(self, clock, spec):
        data = one_set(spec)
        (output,) = spec.outputs
        place = tuple(size - 1 for size in data.sets[0][output].shape)

        def change(out):
            out[place] = out[place] * 3 + 9

        with pytest.raises(WrongResultError, match=rf"1 of {data.sets[0][output].size} elements, the first is {output}\[{place[0]}, "):
            data.verify(computed(data, change))

    def test_nothing_is_written(self, clock, spec):
        data = one_set(spec)
        with pytest.raises(WrongResultError) as caught:
            data.verify(lambda: None)
        assert ("may not write" in str(caught.value)) == (data.initial is None)

    def test_layouts_and_sets(self, clock, spec):
        data = Data.of(spec, rotate_bytes=100_000)
        assert len(data.sets) >= 2
        for name, view in spec.operands.items():
            step = view.dtype.bytes
            for arrays in data.sets:
                array = arrays[name]
                assert array.shape == tuple(int(str(size)) for size in view.shape) and array.dtype == view.dtype.to_numpy()
                order = view.tensor.layout.order
                assert min(array.strides) == step or array.size == 1
                if array.ndim == 2 and array.size > 1:
                    assert array.strides[0 if order == "col" else 1] == step
                if name in data.inputs:
                    np.testing.assert_array_equal(array, data.sets[0][name])
        assert not np.shares_memory(data.sets[0][data.output], data.sets[1][data.output])
        assert len(Data.of(spec, rotate_bytes=0).sets) == 1

    def test_deterministic(self, clock, spec):
        first, again, other = one_set(spec), one_set(spec), one_set(spec, seed=1)
        for name in first.inputs:
            np.testing.assert_array_equal(first.sets[0][name], again.sets[0][name])
            if first.sets[0][name].size > 1:
                assert (first.sets[0][name] != other.sets[0][name]).any()


def test_sizes_known_at_run_time(clock):
    M, K = sym("M"), sym("K")
    spec = matmul(M, 30, K, A=ColMajor(ld=sym("lda")))
    data = one_set(spec, sizes={"M": 20, "K": 10, "lda": 24})
    assert data.sets[0]["A"].shape == (20, 10) and data.sets[0]["A"].strides == (4, 96)
    data.verify(computed(data))
    with pytest.raises(ArgumentError, match="no value for K"):
        one_set(spec, sizes={"M": 20, "lda": 24})
    with pytest.raises(ArgumentError):
        one_set(spec, sizes={"M": 20, "K": 10, "lda": 24, "Z": 3})


def test_poison(clock):
    data = Data.of(SPECS["float16"], rotate_bytes=500_000)
    assert len(data.sets) > 2 and all(np.isnan(arrays["C"]).all() for arrays in data.sets)
    data.sets[0]["C"][...] = 0
    data.reset()
    assert np.isnan(data.sets[0]["C"]).all()
    assert (one_set(SPECS["int8"]).sets[0]["C"] == -(2**31)).all()
    assert not np.isnan(one_set(SPECS["adds"]).sets[0]["C"]).any()


def test_small_problems_cannot_rotate(clock, monkeypatch):
    monkeypatch.setattr("fireiron.measure.data.MAX_SETS", 50)
    data = Data.of(SPECS["float32"])
    assert len(data.sets) == 50 and data.bytes == 50 * 4 * (40 * 50 + 50 * 30 + 40 * 30)
    with pytest.raises(ArgumentError, match="fit into the L2 cache"):
        data.check_rotation()
    big = Data.of(Move(3000, 3000)(GL, GL)(Kernel), rotate_bytes=80e6)
    assert len(big.sets) == 2
    big.check_rotation()


def test_missing_terms_are_found(clock):
    """Eight of 500 terms are missing in each element: no single element is an outlier, but the norm is."""
    data = one_set(SPECS["float16"])
    a, b, c = data.sets[0].values()

    def call():
        c[...] = (a[:, 8:].astype(np.float64) @ b[8:].astype(np.float64)).astype(np.float16)

    with pytest.raises(WrongResultError):
        data.verify(call)
    assert data.verify(call, tolerance=0.5) == pytest.approx(math.sqrt(8 / 500), rel=0.3)


def test_single_wrong_element_is_found(clock):
    """The norm of the whole matrix is within its bound; the element is not."""
    data = one_set(matmul(2000, 2000, 4, dtype=float16, c_dtype=float16, accumulator=float32))

    def change(out):
        out[1234, 567] += 1

    with pytest.raises(WrongResultError, match=r"1 of 4000000 elements, the first is C\[1234, 567\]"):
        data.verify(computed(data, change))


def test_tolerance_follows_the_accumulator_type(clock):
    """A float16 spec allows float16 sums. A kernel that accumulates in float32 has a tighter bound, so one lost step of k is found."""
    from fireiron.strategies import hgemm_nt, hmma_ampere, naive

    def bound(module):
        spec = module.spec(64, 64, 4096, **({} if module is hgemm_nt else {"dtype": float16, "c_dtype": float16}))
        tolerance = one_set(spec).tolerance_for(module.strategy(spec).compile("sm_90"))
        return tolerance_of(spec, accumulator=tolerance.accumulator)

    assert bound(hmma_ampere) == pytest.approx(0.58e-3, rel=0.05)
    assert bound(hgemm_nt) > 0.02 and bound(naive) > 0.02
    one_step_lost = math.sqrt(16 / 4096)
    assert bound(hmma_ampere) < one_step_lost / 50


def test_reference_uses_inputs_before_the_launch(clock):
    """A kernel that zeroes inputs and outputs is wrong: the reference uses the inputs before the launch."""
    data = one_set(matmul(40, 30, 50))

    def call():
        for array in data.sets[0].values():
            array[...] = 0

    before = {name: data.sets[0][name].copy() for name in data.inputs}
    with pytest.raises(WrongResultError, match="the launch writes to its input A"):
        data.verify(call)
    np.testing.assert_array_equal(data.sets[0]["A"], before["A"], err_msg="restored for the next launch")


def test_written_input_is_found_despite_a_correct_result(clock):
    data = one_set(matmul(40, 30, 50))
    right = computed(data, lambda out: None)

    def call():
        right()
        data.sets[0]["B"][3, 4] += 1

    with pytest.raises(WrongResultError, match="the launch writes to its input B"):
        data.verify(call)
    assert data.verify(right) < 1e-6


def test_each_check_starts_from_poison(clock):
    data = one_set(SPECS["float32"])
    data.verify(computed(data))
    with pytest.raises(WrongResultError, match="may not write"):
        data.verify(lambda: None)


def test_a_small_error_everywhere_is_found(clock):
    data = one_set(matmul(64, 64, 64, dtype=float64, c_dtype=float32))
    bound = data.tolerance
    with pytest.raises(WrongResultError, match="no single element is an outlier"):
        data.verify(computed(data, lambda out: np.multiply(out, 1 + 2 * bound, out=out)))


def test_tolerances():
    for K in (128, 4096, 16384):
        spec = matmul(128, 128, K, dtype=float16, c_dtype=float16, accumulator=float32)
        assert 2.0**-11 < tolerance_of(spec) < 1e-3, "as the benchmarks have always asked"
    assert tolerance_of(matmul(128, 128, 4096)) < 1e-4
    assert tolerance_of(matmul(8, 8, 8, dtype=int8)) == tolerance_of(SPECS["move"]) == 0
    symbolic = matmul(sym("M"), 8, sym("K"))
    assert tolerance_of(symbolic, {"M": 8, "K": 4096}) == tolerance_of(matmul(8, 8, 4096))


@pytest.mark.parametrize("K", [1, 16, 1000, 8192])
@pytest.mark.parametrize(("dtype", "adder"), [(float16, np.float32), (float32, np.float32), (float16, np.float16)], ids=str)
def test_tolerance_of_sums_in_order(clock, dtype, adder, K):
    """A kernel that adds term by term with rounding passes; a kernel that omits a sixteenth of the terms does not."""
    accumulator = float32 if adder == np.float32 else float16
    data = one_set(matmul(48, 48, K, dtype=dtype, c_dtype=dtype, accumulator=accumulator))
    a, b, c = data.sets[0].values()

    def call(last=K):
        total = np.zeros(c.shape, adder)
        for k in range(last):
            total = (total + a[:, k, None].astype(adder) * b[None, k].astype(adder)).astype(adder)
        c[...] = total

    assert data.verify(call) < data.tolerance / 2
    if K >= 16:
        with pytest.raises(WrongResultError):
            data.verify(lambda: call(K - K // 16))


KERNEL = timing.Derived(float32)
"""As for a kernel that accumulates in float32: each element within its own bound."""


@pytest.mark.parametrize(
    ("dtype", "c_dtype", "K"), [(float32, float32, 1000), (float16, float16, 500), (tf32, float32, 64), (float64, float64, 100)], ids=str
)
def test_elements_have_their_own_bounds(clock, dtype, c_dtype, K):
    """An error of four times an element's bound is found, though it is small compared with the largest error that the norm allows."""
    data = one_set(matmul(60, 40, K, dtype=dtype, c_dtype=c_dtype, accumulator=max(float32, c_dtype, key=lambda one: one.bits)))
    bound = timing.Derived(data.spec.accumulator)
    assert data.verify(computed(data), bound) < 2.0**-c_dtype.mantissa
    bounds = data._element_bounds(bound.accumulator)["C"].bounds
    place = tuple(map(int, np.unravel_index(int(bounds.argmin()), bounds.shape)))

    def change(out):
        out[place] = data.expected[place] + max(4 * bounds[place], np.spacing(out[place]) * 4)

    with pytest.raises(WrongResultError, match=rf"1 of 2400 elements, the first is C\[{place[0]}, {place[1]}\](?s:.*)an error of at most"):
        data.verify(computed(data, change), bound)
    if dtype != float64:
        assert data.verify(computed(data, change), 0.01) < 0.01, "a tolerance of the whole says nothing of one element"


def test_float16_sums_exceed_the_float32_tolerance(clock):
    data = one_set(matmul(48, 48, 512, dtype=float16, c_dtype=float16, accumulator=float32))
    a, b, c = data.sets[0].values()

    def call():
        total = np.zeros(c.shape, np.float16)
        for k in range(512):
            total = total + a[:, k, None] * b[None, k]
        c[...] = total

    assert data.verify(call, timing.Derived(float16)) > 1e-3
    with pytest.raises(WrongResultError):
        data.verify(call, KERNEL)


def softmax_rows(m=64, n=40):
    """A spec of several steps."""
    return fused_examples.layernorm(m=m, n=n)


@pytest.mark.parametrize("work", [1 << 27, 400], ids=["all", "some"])
def test_definitions_are_compared_within_bounds(clock, monkeypatch, work):
    """Of large outputs, sampled rows are compared by element, and the rest by the norm that follows from the bounds."""
    monkeypatch.setattr("fireiron.measure.data.WORK", work)
    data = one_set(softmax_rows())
    own = data._element_bounds(None)["Y"]
    assert (list(own.places) == ["m"]) == (work == 400) and own.bounds.shape == ((8 if own.places else 64), 40)
    assert data.verify(computed(data), KERNEL) < 1e-3
    row = 63 if own.places else 17  # the last one is always among them

    def change(out):
        out[row, 5] += 8 * own.bounds[-1 if own.places else row, 5]

    compared = "1 of 320 compared" if own.places else "1 of 2560"
    with pytest.raises(WrongResultError, match=rf"^Y is wrong: {compared} elements, the first is Y\[{row}, 5\]"):
        data.verify(computed(data, change), KERNEL)
    other = next(row for row in range(64) if not own.places or row not in own.places["m"])
    with pytest.raises(WrongResultError, match=rf"the first is Y\[{other}, 3\]"):
        data.verify(computed(data, lambda out: out.__setitem__((other, 3), out[other, 3] + 0.5)), KERNEL)


def test_infinities_and_nan(clock):
    """Infinity and NaN are correct if the reference has the same, and do not hide other errors."""
    data = one_set(matmul(8, 8, 8))
    data.sets[0]["A"][3, 4], data.sets[0]["A"][5, 4] = np.inf, np.nan
    assert data.verify(computed(data)) < 1e-6
    with pytest.raises(WrongResultError, match=r"1 of 64 elements, the first is C\[0, 0\]"):
        data.verify(computed(data, lambda out: out.__setitem__((0, 0), out[0, 0] + 1)))
    with pytest.raises(WrongResultError, match=r"8 of 64 elements, the first is C\[5, 0\]"):
        data.verify(computed(data, lambda out: out.__setitem__(5, 0)))


def test_calls(clock):
    data = Data.of(SPECS["float32"], rotate_bytes=100_000)
    seen = []
    calls = data.calls(lambda arrays: lambda: seen.append(arrays["C"]))
    assert len(calls) == len(data.sets)
    for call in calls:
        call()
    assert all(one is arrays["C"] for one, arrays in zip(seen, data.sets, strict=True))


def test_time_kernel(clock, monkeypatch):
    """A correct kernel is timed, a wrong one refused; the kernel runs in the simulator here."""
    spec = matmul(8, 8, 8)
    kernel = MatMul.tile(4, 4).to(Block).tile(2, 2).to(Thread).tile(1, 1).split(1).done()(spec).compile("sm_90")

    def prepare(self, a, b, out, **sizes):
        return lambda: clock.launch("ours", 12, lambda: self(a, b, out=out))

    monkeypatch.setattr(type(kernel), "prepare", prepare, raising=False)
    assert timing.time_kernel(kernel, l2="hot", rounds=2, launches=1).us == pytest.approx(12)
    wrong = attrs.evolve(spec, accumulate=True)
    with pytest.raises(WrongResultError):
        timing.time_kernel(kernel, data=Data.of(wrong, rotate_bytes=0), l2="hot")
    with pytest.raises(ArgumentError):
        timing.time_kernel(print)


# ---------------------------------------------------------------------------------------------- data of several outputs


def written(data, **changes):
    """A launch that writes the specified outputs and then changes some."""
    arrays, spec = data.sets[0], data.spec

    def call():
        right = spec.reference(*(arrays[name] for name in data.inputs))
        right = right if isinstance(right, dict) else dict(zip(spec.outputs, right, strict=True))
        for name, value in right.items():
            arrays[name][...] = value + data.initials[name] if name in data.initials else value
            changes.get(name, lambda out: None)(arrays[name])

    return call


SEVERAL = {
    "cross": outputs.cross(20, 30, apart=RowMajor(ld=32)),
    "added": outputs.cross(20, 30, kind=outputs.ADDED),
    "rows": outputs.rows(20, 7),
}


@pytest.mark.parametrize("spec", SEVERAL.values(), ids=SEVERAL)
class TestDataOfSeveralOutputs:
    def test_right(self, clock, spec):
        data = one_set(spec)
        assert data.outputs == spec.outputs and set(data.references) == set(spec.outputs)
        assert data.verify(written(data)) <= max(data.tolerance.values())
        assert (set(data.initials) == set(spec.outputs)) == (spec is SEVERAL["added"])

    def test_one_element_of_one_output_is_wrong(self, clock, spec):
        for name in spec.outputs:
            data = one_set(spec)
            place = tuple(size - 1 for size in data.sets[0][name].shape)

            def change(out, place=place):
                out[place] = out[place] * 3 + 9

            with pytest.raises(
                WrongResultError, match=rf"^{name} is wrong: 1 of {data.sets[0][name].size} elements, the first is {name}\["
            ):
                data.verify(written(data, **{name: change}))

    def test_one_output_is_not_written(self, clock, spec):
        for name in spec.outputs:
            data = one_set(spec)
            before = data.sets[0][name].copy()
            with pytest.raises(WrongResultError, match=f"^{name} is wrong") as caught:
                data.verify(written(data, **{name: functools.partial(np.copyto, src=before)}))
            assert ("may not write" in str(caught.value)) == (not data.initials)

    def test_each_check_starts_from_poison(self, clock, spec):
        data = one_set(spec)
        data.verify(written(data))
        with pytest.raises(WrongResultError, match=f"^{spec.outputs[0]} is wrong"):
            data.verify(lambda: None)

    def test_options_for_single_outputs(self, clock, spec):
        data = one_set(spec)
        for what in ("output", "initial", "expected"):
            with pytest.raises(ArgumentError, match=f"{spec.title} has {len(spec.outputs)} outputs"):
                getattr(data, what)


def test_exchanged_outputs_are_found(clock):
    data = one_set(SEVERAL["rows"])
    total, largest = (data.sets[0][name] for name in data.outputs)

    def call():
        written(data)()
        total[...], largest[...] = largest.copy(), total.copy()

    with pytest.raises(WrongResultError, match="^total is wrong: 20 of 20"):
        data.verify(call)


def test_each_output_has_its_own_tolerance(clock):
    """Sums are rounded, integers are not. One bound may apply to all outputs; with several bounds none may be missing."""
    data = one_set(SEVERAL["cross"])
    assert data.tolerance["apart"] == 0 < data.tolerance["transposed"] < data.tolerance["total"] < 1e-6
    assert data.tolerance_for("a function") == data.tolerance
    rows = one_set(SEVERAL["rows"])
    assert rows.tolerance["total"] == tolerance_of(SEVERAL["rows"], output="total") == tolerance_of(SEVERAL["rows"])

    def off(out):
        out += 0.01

    with pytest.raises(WrongResultError, match="^largest is wrong"):
        rows.verify(written(rows, largest=off))
    assert 1e-3 < rows.verify(written(rows, largest=off), 0.1) < 0.1
    assert rows.verify(written(rows, largest=off), {"total": 1e-6, "largest": 0.1}) > 1e-3
    with pytest.raises(WrongResultError, match="^largest is wrong"):
        rows.verify(written(rows, largest=off), {"total": 0.1, "largest": 1e-6})
    with pytest.raises(ArgumentError, match="tolerance: there is no bound for largest"):
        rows.verify(written(rows), {"total": 0.1})


def test_written_input_with_several_outputs(clock):
    data = one_set(SEVERAL["rows"])

    def call():
        written(data)()
        data.sets[0]["src"][3, 3] = 7

    with pytest.raises(WrongResultError, match="writes to its input src") as caught:
        data.verify(call)
    assert "writes to total and largest only" in str(caught.value)
    data.verify(written(data))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (lambda src: src.sum(axis=1), "Rows.reference: Rows has 2 outputs"),
        (lambda src: (src.sum(axis=1),), "Rows.reference: 1 arrays are given, but Rows has 2 outputs"),
        (lambda src: {"total": src.sum(axis=1)}, "Rows.reference: largest missing"),
        (lambda src: {"total": src, "least": src}, "Rows.reference: Rows has no output 'least'"),
        (lambda src: (src.sum(axis=1), src.max()), "Rows.reference: largest does not have the shape"),
        (lambda src: (src.sum(axis=1, keepdims=True), src.max(axis=1)), "Rows.reference: total does not have the shape"),
    ],
)
def test_references_that_do_not_fit_the_outputs_are_refused(clock, monkeypatch, reference, message):
    monkeypatch.setattr(Spec, "reference", lambda self, src: reference(src))
    with pytest.raises(ArgumentError, match=message):
        _ = one_set(SEVERAL["rows"]).references


def test_calls_and_times_of_several_outputs(clock, monkeypatch):
    data = Data.of(SEVERAL["cross"], rotate_bytes=50_000)
    seen = []

    class Kernel_(CompiledKernel):
        def __call__(self, *arrays, out, **sizes):
            seen.append((arrays, out, sizes))

    kernel = Kernel_(outputs.by_elements(SEVERAL["cross"]).program("sm_80"))
    monkeypatch.setattr(Kernel_, "prepare", None)
    for arrays, call in zip(data.sets, data.calls(kernel), strict=True):
        call()
        given, out, sizes = seen.pop()
        assert all(one is arrays[name] for one, name in zip(given, ("a", "b"), strict=True)) and not sizes
        assert type(out) is tuple and all(one is arrays[name] for one, name in zip(out, data.outputs, strict=True))
    rates = throughput(SEVERAL["cross"], 10.0, flops=1200)
    assert rates.bytes == 20 * 30 * (4 + 4 + 4 + 4 + 8) and rates.flops == 1200
    assert throughput(SEVERAL["added"], 10.0, flops=1200).bytes == 20 * 30 * (4 + 4 + 2 * (4 + 4 + 8))


# ---------------------------------------------------------------------------------------------- other facts


def test_throughput():
    rates = throughput(matmul(4096, 4096, 4096, dtype=float16, c_dtype=float16), 200.0)
    assert rates.flops == 2 * 4096**3 and rates.bytes == 3 * 2 * 4096**2
    assert rates.tflops == pytest.approx(687.2, rel=1e-3) and rates.gb_s == pytest.approx(503.3, rel=1e-3)
    assert throughput(matmul(8, 8, 8, accumulate=True), 1.0).bytes == 4 * 4 * 64
    assert throughput(Move(100, 10, dst_dtype=float16)(GL, GL)(Kernel), 1.0) == timing.Throughput(0, 6000, 0.0, 6.0)
    assert throughput(SPECS["reduction"], 1.0).flops == 20 * 30 * 7
    assert throughput(matmul(sym("M"), 8, 8), 1.0, {"M": 16}).flops == 2 * 16 * 64
    assert throughput(SPECS["move"], 1.0, flops=7).flops == 7
    with pytest.raises(ArgumentError, match="no value for M"):
        throughput(matmul(sym("M"), 8, 8), 1.0)
    with pytest.raises(ArgumentError):
        throughput(SPECS["one"], 0)


def test_cublas_without_torch(clock, monkeypatch):
    data = one_set(SPECS["rows"])
    data.verify(data.calls(timing.cublas)[0])


class Nvml:
    """The NVML functions that are called."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        return bus.decode()

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert (handle, kind) == ("0000:19:00.0", 1)
        return 1410

    def nvmlDeviceGetTemperature(self, handle, kind):
        return 61

    def nvmlDeviceGetPowerUsage(self, handle):
        raise self.NVMLError

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0x4 | 0x60

    def nvmlSystemGetDriverVersion(self):
        return "580.1"


@pytest.fixture
def bus(monkeypatch):
    device = types.SimpleNamespace(pci_bus_id="0000:19:00.0")
    monkeypatch.setattr(launch, "require_cupy", lambda: types.SimpleNamespace(cuda=types.SimpleNamespace(Device=lambda: device)))


def test_state_by_nvml(bus, monkeypatch):
    monkeypatch.setattr(gpu_state, "_nvml", Nvml)
    assert gpu_state.read_state() == gpu_state.State(1410, 61, None, ("power cap", "heat"))
    assert gpu_state.driver_release() == "580.1"


def test_state_by_nvidia_smi(bus, monkeypatch):
    monkeypatch.setattr(gpu_state, "_nvml", lambda: None)
    commands = []

    def run(command, **_):
        commands.append(command)
        return types.SimpleNamespace(stdout="1980, 35, 112.5, 580.2\n")

    monkeypatch.setattr(gpu_state.subprocess, "run", run)
    assert gpu_state.read_state() == gpu_state.State(1980, 35, 112.5)
    assert commands[0][-2:] == ["-i", "0000:19:00.0"]
    assert gpu_state.driver_release() == "580.2"
    monkeypatch.setattr(gpu_state.subprocess, "run", lambda *_, **__: types.SimpleNamespace(stdout="[N/A], [N/A], [N/A], x\n"))
    assert gpu_state.read_state() is None


def test_unknown_gpu_state(bus, monkeypatch):
    monkeypatch.setattr(gpu_state, "_nvml", lambda: None)

    def run(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(gpu_state.subprocess, "run", run)
    assert gpu_state.read_state() is None and gpu_state.driver_release() is None
