"""Launch plans: caching, overlap and alignment byte by byte, agreeing streams, outputs, and repeated preparation."""

import itertools
import threading
import types

import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu, Interfaced, installed
from mapped import kernel_of
from problems import library

from fireiron import *
from fireiron.gpu import prepared
from fireiron.gpu.arrays import NO_DEVICE, ArrayView, library_of

ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
torch, jax = fake_gpu.torch, fake_gpu.jax

IN_PLACE = "in memory, but kernels make no updates in place"


@pytest.fixture
def gpu(monkeypatch):
    return installed(monkeypatch, FakeGpu(devices=2))


@pytest.fixture(scope="module")
def programs():
    spec, sized = library("naive").spec(20, 12, 8, **ROWS), library("naive").spec(sym("M"), 12, 8, **ROWS)
    return {"fixed": library("naive").strategy(spec).program("sm_90"), "sized": library("naive").strategy(sized).program("sm_90")}


@pytest.fixture
def kernel(programs):
    return kernel_of(programs["fixed"])


def operands(gpu, rows=20, device=None):
    return gpu.array((rows, 8), device=device), gpu.array((8, 12), device=device), gpu.array((rows, 12), device=device)


def tensors(torch):
    return tuple(torch.Tensor(shape, (shape[1], 1), torch.float32) for shape in ((20, 8), (8, 12), (20, 12)))


# ---------------------------------------------------------------------------------------------- caching


def test_the_newest_plans_are_cached(monkeypatch):
    monkeypatch.setattr(prepared, "KEPT", 3)
    kept = prepared._Kept()
    assert [kept.add(number, -number) for number in range(3)] == [0, -1, -2] and len(kept) == 3
    kept.add(3, -3)
    assert [kept.get(number) for number in range(4)] == [None, -1, -2, -3] and len(kept) == 3


def test_plans_are_cached_by_signatures_and_sizes(gpu, programs, monkeypatch):
    kernel, planned = kernel_of(programs["sized"]), []
    plain = prepared.Calls._planned
    monkeypatch.setattr(prepared.Calls, "_planned", lambda calls, *given: planned.append(given) or plain(calls, *given))
    a, b, c = operands(gpu)
    for _ in range(2):
        kernel(a, b, out=c)
        kernel(a, b, out=c, M=20)
    assert len(planned) == 2
    with pytest.raises(ArgumentError, match="A has the shape"):
        kernel(a, b, out=c, M=21)
    outputs = []
    monkeypatch.setattr(prepared.Calls, "_output_for", lambda calls, *given: outputs.append(given) or _ExistingOutput(c))
    for _ in range(2):
        kernel(a, b)
        kernel(a, b, M=20)
    assert len(outputs) == 2


class _ExistingOutput:
    """An existing output."""

    def __init__(self, array):
        self.array = array

    def make(self, stream):
        return (self.array,)

    def finished(self, arrays, stream):
        return arrays[0]


def test_a_call_without_sizes_has_a_plan_of_its_signatures_alone(gpu, kernel):
    """The key of most calls is the signature as read."""
    a, b, c = operands(gpu)
    kernel(a, b, out=c)
    (key,) = kernel._calls._plans._values
    assert key == kernel._calls.read((a, b, c), kernel._calls.names)[1]


def test_a_kernel_is_loaded_once_on_each_gpu(gpu, kernel):
    calls, threads, launchers = kernel._calls, [], []
    for device in (0, 1, 0, 1):
        threads.append(threading.Thread(target=lambda device=device: launchers.append((device, calls.launcher(device)))))
    for thread in threads:
        thread.start()
        thread.join()
    assert [device for device, _ in gpu.loaded] == [0, 1] and gpu.current == 0
    assert len({(device, id(one)) for device, one in launchers}) == 2


# ---------------------------------------------------------------------------------------------- overlap and alignment


def a_buffer(name, align=4, written=False, by_value=False):
    memory = types.SimpleNamespace(by_value=by_value)
    return types.SimpleNamespace(name=name, written=written, memory=memory, tensor=types.SimpleNamespace(align=align), dtype=float32)


def a_view(elements, step=4, device=0):
    return ArrayView((elements,), (step,), "float32", 4, device, False)


def a_plan(gpu, kind, buffers, views):
    plan = kind([one.name for one in buffers], buffers, views, [library_of(gpu.cupy.ndarray)] * len(buffers))
    plan.launch = lambda addresses, stream: gpu.done.append((tuple(addresses), stream))
    return plan


def refused(plan, *addresses):
    try:
        plan.check(addresses)
    except LaunchError as error:
        return error.asked
    return None


@pytest.mark.parametrize("kind", [prepared._Plan, prepared._MultiOutputPlan])
def test_an_output_may_be_adjacent_to_an_input(gpu, kind):
    """For each distance between four elements and three, they overlap if a byte is in both."""
    plan = a_plan(gpu, kind, [a_buffer("a"), a_buffer("b"), a_buffer("out", written=True)], [a_view(4), a_view(4), a_view(3)])
    for place, distance in itertools.product((0, 1), range(-24, 28, 4)):
        addresses = [4096, 8192, 0]
        addresses[2] = addresses[place] + distance
        meets = -12 < distance < 16
        assert refused(plan, *addresses) == (f"out overlaps {'ab'[place]} {IN_PLACE}" if meets else None)
    assert refused(plan, 4096, 4096, 8192) is None, "inputs may overlap"


def test_each_output_shares_no_byte_with_another(gpu):
    buffers = [a_buffer("a"), a_buffer("x", written=True), a_buffer("y", written=True)]
    plan = a_plan(gpu, prepared._MultiOutputPlan, buffers, [a_view(4), a_view(3), a_view(2)])
    for (place, elements), (before, others) in (((1, 3), (0, 4)), ((2, 2), (0, 4)), ((2, 2), (1, 3))):
        for distance in range(-24, 28, 4):
            addresses = [4096, 8192, 16384]
            addresses[place] = addresses[before] + distance
            meets = -4 * elements < distance < 4 * others
            assert refused(plan, *addresses) == (f"{buffers[place].name} overlaps {buffers[before].name} {IN_PLACE}" if meets else None)


@pytest.mark.parametrize("kind", [prepared._Plan, prepared._MultiOutputPlan])
def test_distant_arrays_are_not_compared_byte_by_byte(gpu, kind, monkeypatch):
    """Each launch compares twice; a comparison byte by byte would take longer than the launch."""
    plan = a_plan(gpu, kind, [a_buffer("a"), a_buffer("b"), a_buffer("out", written=True)], [a_view(4), a_view(4), a_view(3)])
    monkeypatch.setattr(prepared._Plan, "_refuse", None)
    for out in (4084, 4112, 8180, 8208, 0, 1 << 40):
        plan.check((4096, 8192, out))


@pytest.mark.parametrize("kind", [prepared._Plan, prepared._MultiOutputPlan])
def test_arrays_that_interleave_do_not_overlap(gpu, kind):
    plan = a_plan(gpu, kind, [a_buffer("a"), a_buffer("out", written=True)], [a_view(4, 8), a_view(4, 8)])
    assert refused(plan, 4096, 4100) is None and refused(plan, 4096, 4104) == f"out overlaps a {IN_PLACE}"


@pytest.mark.parametrize("kind", [prepared._Plan, prepared._MultiOutputPlan])
def test_each_address_is_a_multiple_of_its_alignment(gpu, kind):
    """Except a number passed by value, which also overlaps nothing."""
    buffers = [a_buffer("a", 16), a_buffer("n", 16, by_value=True), a_buffer("out", 8, written=True)]
    views = [a_view(4), ArrayView((), (), "float32", 4, NO_DEVICE, True), a_view(4)]
    plan = a_plan(gpu, kind, buffers, views)
    assert plan.device == 0
    for number in (3, 8192, 8200, 0):
        assert refused(plan, 4096, number, 8192) is None
    assert refused(plan, 4104, 3, 8192) == "a starts at an address that is not a multiple of 16 bytes"
    assert refused(plan, 4096, 3, 8196) == "out starts at an address that is not a multiple of 8 bytes"
    assert refused(plan, 4096, 3, 8200) is None


def test_addresses_are_passed_in_the_order_of_parameters(gpu):
    buffers = [a_buffer("a"), a_buffer("b"), a_buffer("out", written=True)]
    views = [a_view(4)] * 3
    for places, expected in (((0, 1, 2), (4096, 8192, 0)), ((2, 0, 1), (0, 4096, 8192)), ((2, 0), (0, 4096)), ((0, 1), (4096, 8192))):
        plan = a_plan(gpu, prepared._Plan, buffers, views)
        assert plan.launches(plan.launch, places) is plan
        assert tuple(plan.placed((4096, 8192, 0))) == expected
        plan.run((4096, 8192, 0), (), 640)
        plan.run((4096, 8192, 0), (), None)
        assert gpu.done[-2:] == [(expected, 640), (expected, 0)] and plan.stream(None) == 0 and plan.stream(640) == 640


def test_stream_ordering_encloses_the_launch(gpu):
    events = []
    order = types.SimpleNamespace(
        before=lambda at: events.append(("before", at, gpu.current)), after=lambda at: events.append(("after", at, gpu.current))
    )
    plan = a_plan(gpu, prepared._Plan, [a_buffer("a"), a_buffer("out", written=True)], [a_view(4, device=1), a_view(4, device=1)])
    plan.launch = lambda addresses, stream: events.append((tuple(addresses), stream, gpu.current))
    plan.launches(plan.launch, (1, 0)).run((4096, 8192), [order, order], 640)
    assert events == [("before", 640, 1)] * 2 + [((8192, 4096), 640, 1)] + [("after", 640, 1)] * 2 and gpu.current == 0
    with pytest.raises(LaunchError, match="out overlaps a"):
        plan.run((4096, 4096), [order], 640)
    assert len(events) == 5


# ---------------------------------------------------------------------------------------------- streams


class Owner:
    """A library with a current stream."""

    owns_stream = True

    def __init__(self, name, stream):
        self.name, self.at = name, stream

    def stream(self, device):
        return self.at + 0 * device


class Guest(Owner):
    owns_stream = False


def test_the_current_stream_is_that_of_the_libraries_that_have_one():
    first, same, other, guest = Owner("One", 640), Owner("Same", 640), Owner("Other", 77), Guest("Guest", 5)
    stream = lambda *found: prepared._current_stream([f"x{number}" for number in range(len(found))], found)(0)
    assert stream(guest, guest) == 5 and stream(guest, first) == stream(first, guest, first) == 640 and stream(guest, same, first) == 640
    for owners, message in (
        ((guest, first, other), "x1 is an array of One, x2 one of Other, and their current streams differ"),
        ((first, same, other), "x0 is an array of One, x2 one of Other"),
        ((other, other, same, first), "x0 is an array of Other, x2 one of Same"),
    ):
        with pytest.raises(LaunchError, match=message):
            stream(*owners)


# ---------------------------------------------------------------------------------------------- outputs


def test_outputs_are_made_on_their_gpu_and_stream(gpu, torch, monkeypatch):
    """Nothing changes unless necessary."""
    changes = []
    monkeypatch.setattr(gpu.cupy.cuda.runtime, "setDevice", lambda device: (changes.append(device), setattr(gpu, "current", device)))
    library = library_of(torch.Tensor)
    here = prepared._Output(library, (4, 6), (24, 4), float32, 0)
    (outputs,) = here.make(None)
    assert outputs.index == 0 and not changes and here.finished((outputs,), None) is outputs and not changes
    (outputs,) = here.make(640)
    assert gpu.of("empty") == [(0,), (640,)] and changes == [0, 0]
    on_second_gpu = prepared._Output(library, (4, 6), (24, 4), float32, 1)
    (outputs,) = on_second_gpu.make(None)
    assert outputs.index == 1 and changes[2:] == [1, 0] and gpu.of("empty")[-1] == (0,)
    assert on_second_gpu.finished((outputs,), 640) is outputs and len(changes) == 4, "nothing is left to be done"


def test_outputs_of_jax_are_imported_on_the_stream_of_the_kernel(gpu, jax):
    output = prepared._Output(library_of(jax.Array), (4, 6), (24, 4), float32, 0)
    for stream, at in ((None, 0), (640, 640)):
        gpu.done.clear()
        (imported,) = output.make(stream)
        array = types.SimpleNamespace(**{name: getattr(imported, name) for name in ("shape", "strides", "dtype", "host", "T")})
        assert isinstance(output.finished((array,), stream), jax.Array) and gpu.of("import") == [(at,)]
    between = prepared._Output(library_of(jax.Array), (4, 6), (32, 4), float32, 0, between=True)
    (imported,) = between.make(None)
    assert between.finished((imported,), None).array is imported


def test_several_outputs_are_made_and_finished_in_order(gpu):
    parts = [
        types.SimpleNamespace(make=lambda stream, one=name: ((one, stream),), finished=lambda given, stream, one=name: (one, given, stream))
        for name in "xy"
    ]
    outputs = prepared._Outputs(parts)
    assert outputs.make(640) == (("x", 640), ("y", 640))
    assert outputs.finished((1, 2), 640) == (("x", (1,), 640), ("y", (2,), 640))


# ---------------------------------------------------------------------------------------------- prepared launches


def test_a_prepared_launch_on_moved_tensors_is_prepared_again_once(gpu, torch, kernel, monkeypatch):
    """However many of them have moved."""
    a, b, c = tensors(torch)
    ready, preparations = kernel.prepare(a, b, out=c), []
    plain = prepared.PreparedLaunch._prepare
    monkeypatch.setattr(prepared.PreparedLaunch, "_prepare", lambda one: preparations.append(one) or plain(one))
    ready()
    assert not preparations
    for tensor in (a, b, c):
        tensor.bytes = fake_gpu.memory(2000)
    assert ready() is c and len(preparations) == 1
    assert gpu.launches[-1][-1] == [one.data_ptr() for one in (a, b, c)]
    ready()
    assert len(preparations) == 1 and gpu.launches[-1] == gpu.launches[-2]
    b.bytes = fake_gpu.memory(2000, 2)
    with pytest.raises(LaunchError, match="B starts at an address"):
        ready()


def test_a_prepared_launch_of_sizes_compares_with_these(gpu, programs):
    kernel = kernel_of(programs["sized"])
    gpu.parameters = 4
    a, b, c = operands(gpu)
    ready = kernel.prepare(a, b, out=c, M=20)
    ready()
    others = operands(gpu)
    ready(*others[:2], out=others[2])
    fresh = ready(*others[:2])
    assert [one[-1][3] for one in gpu.launches] == [20] * 3 and gpu.launches[-1][-1][2] == fresh.data.ptr
    with pytest.raises(ArgumentError, match="A differs from the array") as caught:
        ready(*operands(gpu, 21)[:2])
    assert caught.value.legal == "CuPy float32, shape (20, 8), strides (32, 4) bytes, GPU 0"
    assert caught.value.got == "CuPy float32, shape (21, 8), strides (32, 4) bytes, GPU 0"
    assert caught.value.hint == "call the kernel, or prepare another launch"


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_arrays_of_a_prepared_launch(gpu, kernel, count):
    a, b, c = operands(gpu)
    ready = kernel.prepare(a, b, out=c)
    with pytest.raises(ArgumentError, match=f"{count} arrays given, the launch was prepared for 2") as caught:
        ready(*(a, b, a)[:count], out=c)
    assert tuple(caught.value.legal) == ("A", "B") or caught.value.legal == "A B"


def test_prepared_launches_run_on_the_stream_of_the_call(gpu, kernel):
    a, b, c = operands(gpu)
    ready = kernel.prepare(a, b, out=c)
    ready(stream=640)
    ready(a, b, out=c, stream=641)
    ready(a, b, stream=642)
    with gpu.cupy.cuda.Stream(8192):
        ready()
    assert [one[4] for one in gpu.launches] == [640, 641, 642, 8192]


def test_arrays_read_again_are_ordered_each_time(gpu, kernel):
    a, b, c = operands(gpu)
    ready = kernel.prepare(Interfaced(a, stream=640), b, out=c)
    assert not gpu.done
    for number in (1, 2):
        assert ready() is c and len(gpu.of("wait")) == 2 * number
    assert ready.out is c


def test_a_launch_on_jax_arrays_alone_keeps_no_output(gpu, jax, kernel):
    ready = kernel.prepare(jax.Array((20, 8)), jax.Array((8, 12)))
    assert ready.out is None
    c = gpu.array((20, 12))
    given = kernel.prepare(jax.Array((20, 8)), jax.Array((8, 12)), out=c)
    assert given.out is c and given() is c


def test_read_only_outputs(gpu, jax, kernel):
    a, b, c = operands(gpu)
    for out, message in (
        (Interfaced(c, readonly=True), "out is read-only"),
        (jax.Array((20, 12)), "out is a JAX array, which cannot be written"),
    ):
        with pytest.raises(LaunchError) as caught:
            kernel(a, b, out=out)
        assert caught.value.asked == message and not gpu.launches
    kernel(Interfaced(a, readonly=True), b, out=c)


def test_numpy_arrays_mixed_with_gpu_arrays_are_refused(gpu, kernel):
    a, b, c = operands(gpu)
    host = np.zeros((8, 12), np.float32)
    assert kernel._calls.read((a, host, c), kernel._calls.names) is None
    assert kernel._calls.read((a, b), kernel._calls.names) is None and kernel._calls.read((a, b), kernel._calls.inputs)[0] == [
        a.data.ptr,
        b.data.ptr,
    ]
    with pytest.raises(ArgumentError, match="a prepared launch runs on a GPU"):
        kernel.prepare(a, b, out=c)(a, host)
