"""Stage ownership on hand-made traces: accesses and arrivals of agents that have not acquired the stage, each with its message."""

import making
import pytest
from handrings import event, ring
from touching import BLOCK_BARRIER, WARP_BARRIER

from fireiron import *
from fireiron.check.races.stage_ownership import ownership_violations
from fireiron.check.races.traces import Kind, StageEvent
from fireiron.ir import FenceKind, StageState
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS

pytestmark = pytest.mark.sampled(1)

R = ring(2)
LANES, ALL = (1, 1, 1, 1), (32, 32, 32, 32)


def full(number, of=R):
    return StageEvent(of, StageState.FULL, number)


def empty(number, of=R):
    return StageEvent(of, StageState.EMPTY, number)


def filled(number, of=R):
    return StageEvent(of, StageState.FULL, number, (1,) * 5)


def emptied(number, arrivals=LANES, of=R):
    return StageEvent(of, StageState.EMPTY, number, arrivals)


def read(stage, engine=False, mechanism=AT_ONCE, name="s"):
    return event([0], Kind.READ, engine=engine, mechanism=mechanism, stage=stage, name=name)


def load(number, stage=None, name="s"):
    fill = StageEvent(R, StageState.FULL, number, None, (0,))
    return event([0], mechanism=TMA_LOADS, engine=True, fill=fill, stage=number % 2 if stage is None else stage, name=name)


def written(stage, name="s"):
    return event([0], stage=stage, name=name)


def errors(*trace, ring_of=None):
    findings = list(ownership_violations([(trace,)], {"s": "ring"} if ring_of is None else ring_of))
    assert all((finding.kind, finding.severity) == ("race", "error") for finding in findings)
    return [finding.message for finding in findings]


AT = "(step Move(1,1)(RF,SH)(Thread) at hand.py:1)"
BY_ENGINE = "(engine Move(1,1)(RF,SH)(Thread) at hand.py:1)"
RIGHT = (full(0), read(0), WARP_BARRIER, emptied(0), full(1), read(1), WARP_BARRIER, emptied(1), full(2), read(0), WARP_BARRIER, emptied(2))


def test_correct_traces():
    assert errors() == [] and errors(*RIGHT) == []
    produced = [event_of_fill for number in range(4) for event_of_fill in (empty(number), filled(number), load(number))]
    assert errors(*produced) == []
    assert errors(full(0), full(1), read(0), read(1), WARP_BARRIER, emptied(0), emptied(1)) == []


def test_loads_by_threads_before_tma_fills_the_stage_again():
    """A release needs a proxy fence after them, or a completed wgmma. Reads by engines need none, and a wgmma in flight is none."""
    late = "follows loads by threads without fence.proxy.async between; TMA may write to the stage before they have read it"
    refill, fence, mma = load(0), making.fence(FenceKind.ASYNC_PROXY), read(1, engine=True, mechanism=WGMMA_GROUPS)
    commit, wait, barrier = making.commit(WGMMA_GROUPS), making.wait(0, mechanism=WGMMA_GROUPS), WARP_BARRIER
    group = (full(1, of=R), mma, commit)

    def found(*trace):
        produced = (empty(0), filled(0), refill)
        findings = ownership_violations([(produced, trace)], {"s": "ring"})
        return [finding.message for finding in findings if "loads by threads" in finding.message]

    start = (full(0), read(0))
    (message,) = found(*start, barrier, emptied(0))
    assert message.endswith(late)
    assert found(*start, fence, barrier, emptied(0)) == []
    assert found(*start, barrier, fence, emptied(0)) == []
    assert len(found(full(0), fence, read(0), barrier, emptied(0))) == 1, "before the read"
    assert found(*start, *group, wait, barrier, emptied(0)) == []
    assert len(found(*start, *group, barrier, emptied(0))) == 1, "in flight"
    assert len(found(*start, wait, barrier, emptied(0))) == 1, "nothing completes"
    assert found(full(0), read(0, engine=True), emptied(0)) == []
    assert errors(*start, barrier, emptied(0)) == [], "threads fill the stage"


def test_reads_of_stages_that_are_not_acquired():
    text = f"s: stage 0 is read by an agent that has not acquired it full {AT}"
    assert errors(read(0)) == [text]
    assert errors(full(1), read(0), WARP_BARRIER, emptied(1)) == [text]
    assert errors(full(0), read(0), WARP_BARRIER, emptied(0), read(0)) == [text], "released"
    assert errors(empty(0), read(0)) == [text], "acquired empty"
    assert errors(full(0), read(1), WARP_BARRIER, emptied(0)) == [text.replace("stage 0", "stage 1")]
    assert errors(read(0, name="other")) == [], "in no ring"
    (finding,) = ownership_violations([((read(0),),)], {"s": "ring"})
    assert finding.buffer == "s" and finding.at == "hand.py:1" and finding.access
    assert errors(read(0), ring_of={"s": "other ring"}) == [text]
    other = making.ring("second", 2, ("t",), bytes=0, consumers=4)
    assert errors(full(0, other), read(0), WARP_BARRIER, emptied(0, of=other)) == [text], "a stage of another ring"


def test_writes_to_stages_that_are_not_acquired():
    text = f"s: stage 1 is written by an agent that has not acquired it empty {BY_ENGINE}"
    assert errors(load(1)) == [text] and errors(empty(0), load(1)) == [text] and errors(full(1), load(1), emptied(1)) == [text]
    assert errors(empty(1), load(1)) == [] and errors(empty(3), load(3)) == []
    assert errors(written(1)) == [text.replace(BY_ENGINE, AT)]
    assert errors(empty(1), written(1)) == [], "an ordinary write has no fill"


def test_loads_of_another_fill_of_the_stage():
    text = f"s: fill 2 is loaded by an agent that has waited for fill 0 {BY_ENGINE}"
    assert errors(empty(0), load(2)) == [text]
    assert errors(empty(0), empty(2), load(2)) == [] and errors(empty(2), load(2)) == []
    assert errors(empty(2), load(0)) == [f"s: fill 0 is loaded by an agent that has waited for fill 2 {BY_ENGINE}"]


def test_arrivals_at_stages_that_are_not_acquired():
    assert errors(filled(0)) == ["ring: the arrival for fill 0 to be full is by an agent that has not acquired it empty"]
    assert errors(empty(1), filled(0)) == ["ring: the arrival for fill 0 to be full is by an agent that has not acquired it empty"]
    assert errors(emptied(0)) == ["ring: the arrival for fill 0 to be empty is by an agent that has not acquired it full"]
    assert errors(empty(0), emptied(0)) == ["ring: the arrival for fill 0 to be empty is by an agent that has not acquired it full"]
    assert errors(full(0), emptied(0), emptied(0)) == [
        "ring: the arrival for fill 0 to be empty is by an agent that has not acquired it full"
    ]
    twice = "ring: the arrival for fill 0 to be full is by an agent that has not acquired it empty"
    assert errors(empty(0), filled(0), filled(0)) == [twice], "reported already"
    assert errors(empty(0), filled(0), empty(2), filled(2)) == []
    assert errors(empty(0), filled(0), full(0), filled(0))[0] == twice, "the stage was acquired full, not empty"
    assert errors(empty(0), filled(2)) == ["ring: the arrival for fill 2 to be full is by an agent that has waited for fill 0 of the stage"]
    assert errors(empty(0), filled(0), empty(1), filled(1)) == []


def test_stages_that_are_never_released():
    assert errors(full(0)) == ["ring: an agent ends without releasing stage 0"]
    assert errors(full(1), full(0), emptied(0)) == ["ring: an agent ends without releasing stage 1"]
    assert errors(empty(0)) == [], "an empty stage need not be released"
    assert errors(full(0), full(2), emptied(2)) == []


def test_stages_released_while_an_mma_reads_them():
    mma, commit = read(0, engine=True, mechanism=WGMMA_GROUPS), making.commit(WGMMA_GROUPS)
    text = "ring: the arrival for fill 0 to be empty is by an agent with an asynchronous read of the stage in flight"
    done = making.wait(0, mechanism=WGMMA_GROUPS)
    assert errors(full(0), mma, commit, emptied(0)) == [text] and errors(full(0), mma, emptied(0)) == [text]
    assert errors(full(0), mma, commit, done, emptied(0)) == []
    assert errors(full(0), mma, commit, making.wait(1, mechanism=WGMMA_GROUPS), emptied(0)) == [text]
    assert errors(full(0), mma, commit, making.wait(0), emptied(0)) == [text], "a wait for copies does not count"
    other = read(1, engine=True, mechanism=WGMMA_GROUPS)
    assert errors(full(0), full(1), other, commit, emptied(0), done, emptied(1)) == [], "the MMA reads another stage"
    pending = (full(0), mma, commit, full(1), other, commit, making.wait(1, mechanism=WGMMA_GROUPS), emptied(0), done, emptied(1))
    assert errors(*pending) == []


@pytest.mark.parametrize("barrier", [WARP_BARRIER, BLOCK_BARRIER, making.cluster_barrier()])
def test_arrival_of_one_lane_needs_a_warp_barrier(barrier):
    text = "ring: the arrival for fill 0 to be empty is by one lane, and other lanes of its warp may still read the stage"
    assert errors(full(0), read(0), emptied(0)) == [text]
    assert errors(full(0), read(0), barrier, emptied(0)) == [] and errors(full(0), barrier, read(0), emptied(0)) == [text]
    assert errors(full(0), read(0), emptied(0, ALL)) == [], "all lanes arrive"
    assert errors(full(0), read(0), emptied(0, (32, 32, 31, 0))) == [text] and errors(full(0), read(0), emptied(0, (32, 0, 0, 0))) == []
    assert errors(full(0), read(0), emptied(0, (0, 0, 0, 1))) == [text]
    assert errors(full(0), full(1), read(1), emptied(0), barrier, emptied(1)) == [], "another stage"
    engine = read(0, engine=True)
    assert errors(full(0), engine, emptied(0)) == [], "the async proxy reads for all lanes"
    assert errors(full(0), read(0), making.fence(FenceKind.ASYNC_PROXY), emptied(0)) == [text]


def test_ordered_mma_rings():
    """Such a ring is never full: a group that has acquired its fill arrives for the next group."""
    order = making.ring("order", 2, (), bytes=0, consumers=4)
    assert errors(empty(1, order), emptied(0, of=order)) == []
    assert errors(emptied(0, of=order)) == ["order: the arrival for fill 0 to be empty is by an agent that has not acquired it empty"]
    assert errors(empty(0, order), emptied(0, of=order)) == [
        "order: the arrival for fill 0 to be empty is by an agent that has not acquired it empty"
    ]
    three = making.ring("order", 3, (), bytes=0, consumers=4)
    assert errors(empty(2, three), emptied(0, of=three), empty(5, three), emptied(3, of=three)) == []
    assert errors(empty(2, three), emptied(0, of=three), emptied(0, of=three)) != []


def test_each_error_is_reported_once():
    first, second = read(0), read(1)
    findings = list(ownership_violations([((first, first), (first,)), ((second,), (first, second))], {"s": "ring"}))
    assert [finding.message[:10] for finding in findings] == ["s: stage 0", "s: stage 1"]
    assert list(ownership_violations([], {})) == []
