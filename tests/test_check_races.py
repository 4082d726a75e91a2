"""The race check as a whole, by hand: which memory it looks at, which accesses it compares, and where it stops."""

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


def said(*body, **options):
    return [
        one.message for one in check_races(AccessTrace(kernel(*body, **{"buffers": (buffer("s", 4096), G, R), "symbols": (N,), **options})))
    ]


def test_memory_that_threads_share():
    """Shared memory, and arrays in global memory that somebody writes; registers are each thread's own."""
    for name, racy in (("s", True), ("g", True), ("r", False)):
        assert bool(said(writes(T % 32, name=name), BLOCK_BARRIER, writes(ZERO, name=name), reads(T % 32, name=name))) == racy, name
    kept = attrs.evolve(G, written=False)
    assert said(reads(T, name="g"), reads(T + 1, name="g"), buffers=(kept,)) == []
    assert said(writes(T), reads(T, name="g"), reads(T + N, name="g"), buffers=(buffer("s", 4096), kept)) == [], (
        "where nobody writes it does not matter where"
    )


def test_addresses_that_depend_on_what_nobody_knows():
    block = Var("block", 0, 7)
    for place, names in ((T + block, "block"), (T + N, "N"), (T + N + block % 2, "N, block")):
        (one,) = said(writes(place), grid=8)
        assert one.startswith(f"undecided for s: its addresses depend on {names};"), one
        assert said(writes(T), reads(place), grid=8) != [] != said(reads(place), grid=8)
    assert said(loop(4, writes(T + i % 2 * 128), BLOCK_BARRIER)) == []
    two = said(writes(T + N), reads(T + block), BLOCK_BARRIER, grid=8)
    assert len(two) == 1 and "depend on N" in two[0], "each buffer once, by the first"
    trusted = check_races(AccessTrace(kernel(writes(T + N), symbols=(N,), unchecked=("known",))))
    assert [one.severity for one in trusted] == ["warning"]


def test_findings_of_undecided_buffers_have_their_origin():
    named = attrs.evolve(buffer("s", 4096), tensor=attrs.evolve(buffer("s", 4096).tensor, origin="mine.py:8"))
    (one,) = check_races(AccessTrace(kernel(writes(T + N), symbols=(N,), buffers=(named,))))
    assert one.at == "mine.py:8" and one.buffer == "s"


def test_a_block_of_one_thread():
    """What it does is in order, but for copies under way; those that go to shared memory."""
    one = {"threads": 1}
    assert said(writes(ZERO), reads(ZERO), **one) == [] and said(writes(ZERO, name="g"), reads(ZERO, name="g"), **one) == []
    assert said(copies(ZERO), reads(ZERO), **one) != [] and said(copies(ZERO), making.commit(), making.wait(0), reads(ZERO), **one) == []
    assert said(writes(ZERO, name="g"), reads(ZERO + N, name="g"), **one) == [], "wherever it is"
    assert said(writes(T + N), threads=2) != []


def test_pairs_of_one_execution():
    """Threads that meet in it; reads, and additions, need no order among each other."""
    both = lambda first, second: attrs.evolve(writes(T), accesses=(first.accesses[0], second.accesses[0]))
    assert said(both(reads(T), writes(T))) == [] and said(both(reads(T + 1), writes(T))) != [] and said(both(reads(T), reads(T + 1))) == []
    assert said(both(writes(T), writes(T + 1))) != [] and said(both(writes(T), writes(T + 128))) == []
    assert said(both(reads(T + 1, name="g"), writes(T))) == [], "of two spaces"
    assert said(both(writes(T, name="g"), writes(T + 1))) == []
    adds = attrs.evolve(writes(ZERO), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    assert said(adds) == []
    of_warp = T // 32 * 32
    pair = lambda first, second: attrs.evolve(writes(T, level=Warp), accesses=(first, second))
    wide = lambda place, write: touch(place, write=write, width=32).accesses[0]
    assert (
        said(pair(wide(of_warp, False), wide(of_warp, True))) == []
        and len(said(pair(wide((of_warp + 32) % 128, False), wide(of_warp, True)))) == 1
    )
    assert len(said(loop(3, pair(wide((of_warp + 32) % 128, False), wide(of_warp, True)), BLOCK_BARRIER))) == 1, "said once"


def test_copies_of_one_thread_to_one_place():
    (one,) = said(loop(2, copies(T), var=Var("twice", 0, 1)))
    assert "in flight" in one
    assert said(loop(2, writes(T), var=Var("twice", 0, 1))) == []


def test_spaces_that_one_step_touches_need_no_order():
    assert said(writes(T), writes(T, name="g")) == []
    assert said(loop(9, writes(T), BLOCK_BARRIER)) == [] and said(loop(9, writes(127 - T), writes(T))) != []


def test_stores_that_read_when_the_memory_is_gone():
    store = attrs.evolve(reads(T, instruction=Engine(), mechanism=BULK), origin="mine.py:2")
    text = f"s: engine {store.spec} may read it after the block exits: no thread waits for its group"
    (one,) = check_races(AccessTrace(kernel(store, making.commit(BULK))))
    assert (one.message, one.at, one.buffer, one.kind, one.severity) == (text, "mine.py:2", "s", "race", "error")
    assert (
        said(store) == [text]
        and said(store, making.commit(BULK), making.wait(1, mechanism=BULK)) == [text]
        and said(store, making.commit(BULK), making.wait(0)) == [text]
    )
    assert said(store, making.commit(BULK), making.wait(0, mechanism=BULK)) == []
    assert said(loop(3, store, making.commit(BULK)), making.wait(1, mechanism=BULK)) == [text], "said once"
    assert said(loop(3, store, making.commit(BULK)), making.wait(0, mechanism=BULK)) == []
    product = attrs.evolve(store, mechanism=WGMMA_GROUPS)
    assert said(product, making.commit(WGMMA_GROUPS)) == [], "which a product does not"
    two = said(store, attrs.evolve(store, accesses=reads(T + 128).accesses), making.commit(BULK))
    assert len(two) == 2


def test_rings_are_held():
    """In kernels with rings alone."""
    assert any("has not acquired it" in one for one in messages_of(ringed([reads(T)], [])))
    assert messages_of(ringed([*consume(0)], [*produce(0)])) == []
    assert said(reads(T), rings=()) == []


def test_the_lengths_of_loops_are_all_looked_at():
    body = (writes(T), loop(N - 1, BLOCK_BARRIER), reads(127 - T))
    assert said(*body) != [] and said(writes(T), loop(N, BLOCK_BARRIER), reads(127 - T)) == []


def test_kernels_with_many_faults_are_left_early(monkeypatch):
    """Behind so many findings of barriers, or so many lengths that say nothing new."""
    turns = {"symbols": (N,), "buffers": (staged(2), buffer("t", 4096, 4096))}
    apart = writes(T + J % 3 * 128, name="t")
    faulty = lambda: ringed([loop(N, full(J), reads(T, copy=J % 2), apart, var=J)], [loop(N, *produce(J), var=J)], **turns)
    everything = messages_of(faulty())
    seen = []
    order = subject.HappensBefore
    monkeypatch.setattr(subject, "HappensBefore", lambda *given: seen.append(1) or order(*given))
    assert messages_of(faulty()) == everything
    whole = len(seen)
    seen.clear()
    monkeypatch.setattr(subject, "ENOUGH", 0)
    fewer = messages_of(faulty())
    assert 0 < len(seen) < whole and set(fewer) <= set(everything)
    seen.clear()
    monkeypatch.setattr(subject, "ENOUGH", 1 << 20)
    monkeypatch.setattr(subject, "NOTHING_NEW", 1)
    end = reads(T, name="t"), writes(127 - T, name="t")
    late = ringed([loop(N, *consume(J), apart, var=J), *end], [loop(N, *produce(J), var=J)], **turns)
    assert messages_of(late) and len(seen) == 2, "the second one says nothing new"
    seen.clear()
    monkeypatch.setattr(subject, "NOTHING_NEW", 3)
    assert messages_of(late) and len(seen) == 4


def test_a_right_kernel_is_never_left_early(monkeypatch):
    monkeypatch.setattr(subject, "NOTHING_NEW", 1)
    body = (loop(N, writes(T + i % 3 * 128), BLOCK_BARRIER), loop(4, writes(T + i * 2), reads(T + i * 2), BLOCK_BARRIER))
    assert said(*body) == []
    late = loop(N, writes(T, active=less(as_expr(3), i)), reads(127 - T, active=less(as_expr(3), i)), BLOCK_BARRIER)
    assert said(late) != [], "the first lengths have nothing wrong"
