"""The whole race check on hand-made kernels: the memory that it examines, the accesses that it compares, and where it stops."""

import attrs
import making
import pytest
from handrings import J, consume, full, messages_of, produce, ringed, staged
from touching import BLOCK_BARRIER, Engine, T, buffer, copies, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron.check import AccessTrace, check_races
from fireiron.check import races as subject
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import ZERO, Var, as_expr, less

pytestmark = pytest.mark.sampled(1)

N = Var("N", 1, 1 << 20, 1, True)
G, R = buffer("g", 4096, memory=GL), buffer("r", 64, memory=RF)
BULK = TMA_STORES


def diagnose(*body, **options):
    return [
        finding.message
        for finding in check_races(AccessTrace(kernel(*body, **{"buffers": (buffer("s", 4096), G, R), "symbols": (N,), **options})))
    ]


def test_memory_shared_by_threads():
    """Shared memory, and written arrays in global memory; registers are private."""
    for name, racy in (("s", True), ("g", True), ("r", False)):
        assert bool(diagnose(writes(T % 32, name=name), BLOCK_BARRIER, writes(ZERO, name=name), reads(T % 32, name=name))) == racy, name
    read_only = attrs.evolve(G, written=False)
    assert diagnose(reads(T, name="g"), reads(T + 1, name="g"), buffers=(read_only,)) == []
    assert diagnose(writes(T), reads(T, name="g"), reads(T + N, name="g"), buffers=(buffer("s", 4096), read_only)) == [], (
        "reads of an array without writes never race"
    )


def test_addresses_that_depend_on_unknown_values():
    block = Var("block", 0, 7)
    for place, names in ((T + block, "block"), (T + N, "N"), (T + N + block % 2, "N, block")):
        (message,) = diagnose(writes(place), grid=8)
        assert message.startswith(f"undecided for s: its addresses depend on {names};"), message
        assert diagnose(writes(T), reads(place), grid=8) != [] != diagnose(reads(place), grid=8)
    assert diagnose(loop(4, writes(T + i % 2 * 128), BLOCK_BARRIER)) == []
    messages = diagnose(writes(T + N), reads(T + block), BLOCK_BARRIER, grid=8)
    assert len(messages) == 1 and "depend on N" in messages[0], "one finding per buffer, with the first reason"
    trusted = check_races(AccessTrace(kernel(writes(T + N), symbols=(N,), unchecked=("known",))))
    assert [finding.severity for finding in trusted] == ["warning"]


def test_findings_of_undecided_buffers_have_their_origin():
    named = attrs.evolve(buffer("s", 4096), tensor=attrs.evolve(buffer("s", 4096).tensor, origin="mine.py:8"))
    (finding,) = check_races(AccessTrace(kernel(writes(T + N), symbols=(N,), buffers=(named,))))
    assert finding.at == "mine.py:8" and finding.buffer == "s"


def test_a_block_of_one_thread():
    """Its accesses are ordered, except for asynchronous copies to shared memory."""
    options = {"threads": 1}
    assert diagnose(writes(ZERO), reads(ZERO), **options) == [] and diagnose(writes(ZERO, name="g"), reads(ZERO, name="g"), **options) == []
    assert (
        diagnose(copies(ZERO), reads(ZERO), **options) != []
        and diagnose(copies(ZERO), making.commit(), making.wait(0), reads(ZERO), **options) == []
    )
    assert diagnose(writes(ZERO, name="g"), reads(ZERO + N, name="g"), **options) == [], "at any address"
    assert diagnose(writes(T + N), threads=2) != []


def test_pairs_of_one_execution():
    """Conflicting threads within it; reads and atomic adds need no order among each other."""
    both = lambda first, second: attrs.evolve(writes(T), accesses=(first.accesses[0], second.accesses[0]))
    assert (
        diagnose(both(reads(T), writes(T))) == []
        and diagnose(both(reads(T + 1), writes(T))) != []
        and diagnose(both(reads(T), reads(T + 1))) == []
    )
    assert diagnose(both(writes(T), writes(T + 1))) != [] and diagnose(both(writes(T), writes(T + 128))) == []
    assert diagnose(both(reads(T + 1, name="g"), writes(T))) == [], "in two address spaces"
    assert diagnose(both(writes(T, name="g"), writes(T + 1))) == []
    adds = attrs.evolve(writes(ZERO), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    assert diagnose(adds) == []
    of_warp = T // 32 * 32
    pair = lambda first, second: attrs.evolve(writes(T, level=Warp), accesses=(first, second))
    wide = lambda place, write: touch(place, write=write, width=32).accesses[0]
    assert (
        diagnose(pair(wide(of_warp, False), wide(of_warp, True))) == []
        and len(diagnose(pair(wide((of_warp + 32) % 128, False), wide(of_warp, True)))) == 1
    )
    assert len(diagnose(loop(3, pair(wide((of_warp + 32) % 128, False), wide(of_warp, True)), BLOCK_BARRIER))) == 1, "reported once"


def test_copies_of_one_thread_to_one_element():
    (message,) = diagnose(loop(2, copies(T), var=Var("twice", 0, 1)))
    assert "in flight" in message
    assert diagnose(loop(2, writes(T), var=Var("twice", 0, 1))) == []


def test_address_spaces_need_no_order_between_them():
    assert diagnose(writes(T), writes(T, name="g")) == []
    assert diagnose(loop(9, writes(T), BLOCK_BARRIER)) == [] and diagnose(loop(9, writes(127 - T), writes(T))) != []


def test_stores_that_read_after_the_block_exits():
    store = attrs.evolve(reads(T, instruction=Engine(), mechanism=BULK), origin="mine.py:2")
    text = f"s: engine {store.spec} may read it after the block exits: no thread waits for its group"
    (finding,) = check_races(AccessTrace(kernel(store, making.commit(BULK))))
    assert (finding.message, finding.at, finding.buffer, finding.kind, finding.severity) == (text, "mine.py:2", "s", "race", "error")
    assert (
        diagnose(store) == [text]
        and diagnose(store, making.commit(BULK), making.wait(1, mechanism=BULK)) == [text]
        and diagnose(store, making.commit(BULK), making.wait(0)) == [text]
    )
    assert diagnose(store, making.commit(BULK), making.wait(0, mechanism=BULK)) == []
    assert diagnose(loop(3, store, making.commit(BULK)), making.wait(1, mechanism=BULK)) == [text], "reported once"
    assert diagnose(loop(3, store, making.commit(BULK)), making.wait(0, mechanism=BULK)) == []
    product = attrs.evolve(store, mechanism=WGMMA_GROUPS)
    assert diagnose(product, making.commit(WGMMA_GROUPS)) == [], "an MMA does not outlive the block"
    messages = diagnose(store, attrs.evolve(store, accesses=reads(T + 128).accesses), making.commit(BULK))
    assert len(messages) == 2


def test_rings_are_checked():
    """Only in kernels with rings."""
    assert any("has not acquired it" in message for message in messages_of(ringed([reads(T)], [])))
    acquire, read, fence, *release = consume(0)
    assert messages_of(ringed([acquire, read, fence, *release], [*produce(0)])) == []
    assert any("without fence.proxy.async" in message for message in messages_of(ringed([acquire, read, *release], [*produce(0)])))
    assert diagnose(reads(T), rings=()) == []


def test_all_deciding_lengths_are_examined():
    body = (writes(T), loop(N - 1, BLOCK_BARRIER), reads(127 - T))
    assert diagnose(*body) != [] and diagnose(writes(T), loop(N, BLOCK_BARRIER), reads(127 - T)) == []


def test_analysis_of_kernels_with_many_faults_stops_early(monkeypatch):
    """After `MAX_VIOLATIONS` findings, or `MAX_UNCHANGED` lengths without new findings."""
    options = {"symbols": (N,), "buffers": (staged(2), buffer("t", 4096, 4096))}
    extra_write = writes(T + J % 3 * 128, name="t")
    faulty = lambda: ringed([loop(N, full(J), reads(T, copy=J % 2), extra_write, var=J)], [loop(N, *produce(J), var=J)], **options)
    everything = messages_of(faulty())
    passes = []
    order = subject.HappensBefore
    monkeypatch.setattr(subject, "HappensBefore", lambda *given: passes.append(1) or order(*given))
    assert messages_of(faulty()) == everything
    all_passes = len(passes)
    passes.clear()
    monkeypatch.setattr(subject, "MAX_VIOLATIONS", 0)
    fewer = messages_of(faulty())
    assert 0 < len(passes) < all_passes and set(fewer) <= set(everything)
    passes.clear()
    monkeypatch.setattr(subject, "MAX_VIOLATIONS", 1 << 20)
    monkeypatch.setattr(subject, "MAX_UNCHANGED", 1)
    end = reads(T, name="t"), writes(127 - T, name="t")
    late = ringed([loop(N, *consume(J), extra_write, var=J), *end], [loop(N, *produce(J), var=J)], **options)
    assert messages_of(late) and len(passes) == 2, "the second length has no new finding"
    passes.clear()
    monkeypatch.setattr(subject, "MAX_UNCHANGED", 3)
    assert messages_of(late) and len(passes) == 4


def test_analysis_of_correct_kernels_never_stops_early(monkeypatch):
    monkeypatch.setattr(subject, "MAX_UNCHANGED", 1)
    body = (loop(N, writes(T + i % 3 * 128), BLOCK_BARRIER), loop(4, writes(T + i * 2), reads(T + i * 2), BLOCK_BARRIER))
    assert diagnose(*body) == []
    late = loop(N, writes(T, active=less(as_expr(3), i)), reads(127 - T, active=less(as_expr(3), i)), BLOCK_BARRIER)
    assert diagnose(late) != [], "the first lengths have no race"
