"""Locations: windows, rows, positions and parts of distributed arrays, read and written (`fireiron.sim.locations`)."""

import types

import numpy as np
import pytest

from fireiron.errors import SimulationError
from fireiron.sim.locations import (
    CoordinateValues,
    DistributedPart,
    Flat,
    Rows,
    ThreadGroup,
    Window,
    first_true,
    pick,
    steps_of,
    vector_environment,
)
from fireiron.sim.memory import Memory
from fireiron.sim.shadow import Clock

THREADS, BLOCKS, REGISTERS = 4, 3, 6


def memory(rows=REGISTERS * THREADS, width=BLOCKS, defined=False):
    """Rows of distinct numbers, then a row of zeros and one for masked writes."""
    data = np.arange((rows + 2) * width, dtype=np.int64).reshape(-1, width)
    data[rows] = 0
    return Memory(data, 0, rows, rows, np.zeros(data.shape, bool) if defined else None)


def group(*threads):
    return ThreadGroup(np.array(threads), {})


def site(**loops):
    """The part of a statement that locations use: its vectorized loops."""
    return types.SimpleNamespace(loops=tuple((name, lambda env, size=size: size) for name, size in loops.items()), lets=())


@pytest.mark.parametrize(
    "numbers, steps",
    [
        ([[3]], (0, 0)),
        ([1, 3, 5], (2,)),
        ([1, 3, 6], None),
        ([[0, 1], [4, 5]], (4, 1)),
        ([[0, 1], [4, 6]], None),
        ([[2], [9]], (7, 0)),
        ([[5, 4]], (0, -1)),
    ],
)
def test_steps_of_affine_arrays(numbers, steps):
    assert steps_of(np.array(numbers)) == steps


@pytest.mark.parametrize("first, count", [(0, THREADS), (1, 2), (3, 1)])
@pytest.mark.parametrize("numbers", [[0, 1, 2], [1, 3, 5], [4]])
def test_a_window_of_registers(numbers, first, count):
    """Register `n` of thread `t` is row `n * threads + t`."""
    own, threads = memory(defined=True), range(first, first + count)
    window = Window(own, np.array(numbers), THREADS, group(*threads))
    expected = np.array([[own.data[number * THREADS + thread] for thread in threads] for number in numbers])
    np.testing.assert_array_equal(window.get(), expected)
    before = own.data.copy()
    window.put(-expected)
    rows = [number * THREADS + thread for number in numbers for thread in threads]
    np.testing.assert_array_equal(own.data[rows], -before[rows])
    others = [row for row in range(len(before)) if row not in rows]
    np.testing.assert_array_equal(own.data[others], before[others])
    assert not window.defined().any()
    window.define()
    assert window.defined().all() and own.defined.sum() == len(rows) * BLOCKS


@pytest.mark.parametrize("width", [1, BLOCKS])
def test_rows(width):
    own = memory(width=width, defined=True)
    place = Rows(own, np.array([[5, 2], [own.zero, 7]]))
    np.testing.assert_array_equal(place.get(), own.data[[[5, 2], [own.zero, 7]]])
    assert place.get().shape == place.shape == (2, 2, width)
    np.testing.assert_array_equal(place.masked()[..., 0], [[False, False], [True, False]])
    values = np.arange(4 * width).reshape(2, 2, width) - 100
    place.put(values)
    np.testing.assert_array_equal(own.data[[5, 2, 7]], values.reshape(4, width)[[0, 1, 3]])
    place.define()
    assert place.defined().all() and own.defined.sum() == 4 * width


def test_positions():
    own = memory(defined=True)
    rows = np.array([5, own.zero * BLOCKS + 1, 8])
    place = Flat(own, rows)
    np.testing.assert_array_equal(place.get(), own.flat[rows])
    assert [*place.masked()] == [False, True, False]
    place.put(np.array([-1, -2, -3]))
    assert [own.flat[5], own.flat[8]] == [-1, -3]
    place.define()
    assert place.defined().all() and own.defined.sum() == 3


def test_coordinates_have_no_location():
    place = CoordinateValues(np.array([3, 4]), memory())
    assert [*place.get()] == [3, 4] and place.get().dtype == np.int32 and place.defined().all() and place.shape == (2,)
    with pytest.raises(SimulationError, match="a statement writes a coordinate tensor, which is read-only"):
        place.put(np.array([1]))
    with pytest.raises(SimulationError, match="a statement writes a coordinate tensor, which is read-only"):
        place.define()


def test_parts_of_a_distributed_array():
    """An element is read at one of its locations, and written at all of them."""
    own = memory(defined=True)
    place = DistributedPart(own, np.array([4, 9]), np.array([4, 6, 9]), np.array([0, 0, 1]))
    np.testing.assert_array_equal(place.get(), own.data[[4, 9]])
    place.put(np.array([[-1] * BLOCKS, [-2] * BLOCKS]))
    assert [own.data[row, 0] for row in (4, 6, 9)] == [-1, -1, -2]
    assert not place.defined().any()
    place.define()
    assert place.defined().all() and own.defined.sum() == 3 * BLOCKS


@pytest.mark.parametrize(
    "index, thread, block, loops", [((1, 2, 3, 1), 13, 1, {"i": 2}), ((0, 0, 0, 0), 10, 0, {"i": 0}), ((0, 1, 2, 2), 12, 2, {"i": 1})]
)
def test_first_true_value(index, thread, block, loops):
    """It has the thread number, and the block's position in the batch."""
    bad = np.zeros((2, 3, 4, 3), bool)
    bad[index] = True
    bad[1, 2, 3, 2] = True
    location = first_true(bad, site(i=3), group(10, 11, 12, 13))
    assert location == (index, thread, block, loops)


def test_first_true_value_of_a_shared_array():
    bad = np.zeros((2, 1, 1), bool)
    bad[1] = True
    assert first_true(bad, site(), group(7, 8)) == ((1, 0, 0), 7, 0, {})


def test_a_value_of_a_broadcast_array():
    assert pick(np.array([[5], [6]]), (9, 1, 2)) == 6 and pick(np.array(4), (1, 2)) == 4 and pick(np.array([[1, 2]]), (3, 1)) == 2


def test_loops_as_axes():
    """Before threads and blocks, in the order of the loops; names bound in them are computed from them."""
    loops_site = site(i=2, j=3)
    loops_site.lets = (("sum", lambda env: env["i"] * 10 + env["j"]),)
    environment = vector_environment(loops_site, {"k": 5})
    assert environment["i"].shape == (2, 1, 1, 1) and environment["j"].shape == (1, 3, 1, 1) and environment["k"] == 5
    np.testing.assert_array_equal(environment["sum"][..., 0, 0], [[0, 1, 2], [10, 11, 12]])
    same = {"k": 5}
    assert vector_environment(site(), same) is same


def test_a_group_at_its_start():
    new_group = group(0)
    assert (
        new_group.clock.count == Clock().count == 0
        and not new_group.in_flight
        and not (new_group.fenced or new_group.accessed or new_group.conflicting or new_group.cluster_barriers)
    )


def test_memory_is_complete_when_all_is_written():
    """Completeness is tested occasionally, and not again once true."""
    own = memory(defined=True)
    own.defined[: own.rows] = True
    own.defined[3, 1] = False
    for _ in range(8):
        own.update_complete()
        assert not own.complete
    own.defined[3, 1] = True
    for _ in range(8):
        own.update_complete()
    assert own.complete
