"""Symmetric memory of several GPUs with a simulated driver, the channels of barriers, and the allocations of a group."""

import sys
import types

import pytest

from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import barrier, peer_memory
from fireiron.gpu.peer_memory import PeerMemory
from fireiron.gpu.symmetric import Allocations, Shared

PART = 1 << 21


class Driver:
    """The calls for virtual memory. `mapped` and `held` have the parts and the handles in use; parts may differ in size."""

    def __init__(self, sizes=None, refuses=""):
        self.sizes, self.refuses = sizes or {}, refuses
        self.mapped, self.held, self.reserved, self.access = {}, [], {}, []

    def cuMemGetAddressRange_v2(self, base, size, pointer):
        start = pointer.value // (1 << 32) * (1 << 32)
        base._obj.value, size._obj.value = start, self.sizes.get(start, PART)
        return 0

    def cuMemAddressReserve(self, base, size, alignment, address, flags):
        base._obj.value = 7 << 40
        self.reserved[base._obj.value] = size.value
        return 0

    def cuMemRetainAllocationHandle(self, handle, pointer):
        handle._obj.value = pointer.value // (1 << 32)
        self.held.append(handle._obj.value)
        return 0

    def cuMemMap(self, at, size, offset, handle, flags):
        if self.refuses == "map" and self.mapped:
            return 2
        self.mapped[at.value] = handle.value, size.value
        return 0

    def cuMemSetAccess(self, at, size, access, count):
        self.access.append((at.value, size.value, access._obj.location.type, access._obj.location.id, access._obj.flags, count.value))
        return 0

    def cuMemUnmap(self, at, size):
        assert self.mapped.pop(at.value)[1] == size.value
        return 0

    def cuMemRelease(self, handle):
        self.held.remove(handle.value)
        return 0

    def cuMemAddressFree(self, base, size):
        assert self.reserved.pop(base.value) == size.value
        return 0

    def cuGetErrorString(self, status, text):
        text._obj.value = b"out of memory"
        return 0


def memory(monkeypatch, pointers, distance=None, **options):
    driver = Driver(**options)
    monkeypatch.setattr(peer_memory, "_driver", lambda: driver)
    return driver, lambda: PeerMemory(pointers, 1, distance)


POINTERS = [(5 << 32) + 64, (3 << 32) + 64, (9 << 32) + 64]


@pytest.mark.parametrize("distance", [None, 2 * PART])
def test_parts_are_mapped_at_equal_distances_and_unmapped(monkeypatch, distance):
    driver, make = memory(monkeypatch, POINTERS, distance)
    peers, stride, base = make(), distance or PART, 7 << 40
    assert driver.mapped == {base + gpu * stride: (pointer >> 32, PART) for gpu, pointer in enumerate(POINTERS)}
    assert (peers.address, peers.stride, peers.bytes, peers.gpus, peers.device) == (base + 64, stride, 3 * stride, 3, 1)
    assert driver.reserved == {base: 3 * stride}
    assert driver.access == [(base + gpu * stride, PART, 1, 1, 3, 1) for gpu in range(3)]
    for _ in range(2):  # nothing is freed twice
        peers.close()
        assert not driver.mapped and not driver.held and not driver.reserved


@pytest.mark.parametrize(
    ("options", "distance", "message"),
    [
        ({"sizes": {3 << 32: 2 * PART}}, None, "differ in size"),
        ({}, PART // 2, "larger than their distance"),
        ({"refuses": "map"}, None, "map the memory of GPU 1: out of memory"),
    ],
)
def test_parts_that_cannot_be_mapped_are_refused(monkeypatch, options, distance, message):
    _, make = memory(monkeypatch, POINTERS, distance, **options)
    with pytest.raises(LaunchError, match=message):
        make()


def test_parts_at_other_offsets_are_refused(monkeypatch):
    _, make = memory(monkeypatch, [POINTERS[0], POINTERS[1] + 64])
    with pytest.raises(LaunchError, match="differ in size"):
        make()


# ---------------------------------------------------------------------------------------------- allocations and barriers


def tensor(address, shape=(4, 8), strides=(8, 1), dtype="float32"):
    return types.SimpleNamespace(data_ptr=lambda: address, shape=shape, stride=lambda: strides, dtype=dtype)


def test_allocations_are_known_by_address_until_they_are_released():
    closed, group = [], Allocations()
    shared = Shared(tensor(4096), types.SimpleNamespace(close=lambda: closed.append(1)), None, None, 32)
    assert group.add(shared) is shared.part and group.of(tensor(4096)) is shared
    assert group.of(tensor(4096, (32,), (1,))) is shared and group.of(tensor(4096, (33,), (1,))) is None
    assert group.of(tensor(4100)) is None and group.of(tensor(4096, dtype="float16")) is None
    with pytest.raises(ArgumentError, match="not an allocation"):
        group.remove(tensor(4100))
    group.remove(shared.part)
    assert closed == [1] and group.of(shared.part) is None


def test_barriers_share_boards_until_their_channels_are_taken(monkeypatch):
    created = []

    def board(group, gpus, device):
        words = types.SimpleNamespace(memory=types.SimpleNamespace(address=4096 * len(created), stride=64))
        created.append(barrier._Board(words, types.SimpleNamespace(data_ptr=lambda: 1 << 20)))
        return created[-1]

    monkeypatch.setattr(barrier._Board, "of", board)
    group = object()
    for number in range(2 * barrier.CHANNELS + 1):
        own = barrier._board(group, 2, 0)
        assert own is created[number // barrier.CHANNELS]
        own.taken.append(len(own.taken))
    assert len(created) == 3 and barrier._board(object(), 2, 0) is created[3]


class Admitted(Exception):
    """The barrier takes a channel."""


@pytest.mark.parametrize(("gpus", "error"), [(32, Admitted), (33, ArgumentError)])
def test_a_barrier_has_at_most_as_many_gpus_as_a_warp_has_threads(monkeypatch, gpus, error):
    def board(group, gpus, device):
        raise Admitted

    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setattr(barrier, "_board", board)
    with pytest.raises(error):
        barrier.PeerBarrier(object(), 0, gpus, None, ())
