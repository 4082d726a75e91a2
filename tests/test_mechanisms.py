"""Compare the properties of completion mechanisms with a second table, written by hand from the PTX ISA: compiler, checks and simulator
share the first one, so none of them detects an error in it.
"""

import types

import pytest

from fireiron.executable import INSTRUCTIONS
from fireiron.ir import AT_ONCE, mechanisms
from fireiron.ir.mechanism import Mechanism, Order

# By name: order; which shared memory may still be read and written after the instruction; whether by the async proxy; results in registers;
# must be waited for before the kernel ends; issued and waited for by all lanes together.
TABLE = {
    # PTX ISA, "cp.async": "non-blocking"; "cp.async.wait_group ... the executing thread": each thread waits for its own groups. Of the proxies only
    # bulk copies and wgmma are named under "Async proxy", so it is of the generic one.
    "cp_async_group": (Order.GROUPS, False, True, False, False, False, False),
    # "wgmma.mma_async": "performed in the async proxy"; ".sync.aligned": all threads of the warpgroup; "accessing the registers ... before
    # wgmma.wait_group ... is undefined"; operands in shared memory are read meanwhile.
    "wgmma_group": (Order.GROUPS, True, False, True, True, False, True),
    # "cp.async.bulk.tensor ... .mbarrier::complete_tx::bytes": async proxy, one thread, complete when the barrier has counted the bytes.
    "mbarrier": (Order.COUNTED, False, True, True, False, False, False),
    # "cp.async.bulk.tensor ... .bulk_group", source in shared memory; "cp.async.bulk.wait_group.read": the source has been read. Shared memory of a
    # block that has exited is assigned to another block. Here one lane issues them for a warp or warpgroup, and all lanes wait.
    "bulk_group": (Order.GROUPS, True, False, True, False, True, True),
}


@pytest.mark.parametrize("mechanism", mechanisms.kinds(), ids=repr)
def test_facts_are_those_of_the_ptx_isa(mechanism):
    facts = (
        mechanism.order, mechanism.reads_late, mechanism.writes_late, mechanism.by_engine, mechanism.in_registers, mechanism.outlives,
        mechanism.shared_wait,
    )  # fmt: skip
    assert facts == TABLE[mechanism.name]
    assert mechanism.in_groups == (mechanism.order is Order.GROUPS) and mechanism.counted == (mechanism.order is Order.COUNTED)
    assert (mechanism.is_late(True), mechanism.is_late(False)) == (mechanism.writes_late, mechanism.reads_late)


def test_each_row_is_a_file_and_ranks_differ():
    assert {one.name for one in mechanisms.kinds()} == {*TABLE}
    assert len({one.rank for one in mechanisms.kinds()}) == len(TABLE)
    assert not (AT_ONCE.reads_late or AT_ONCE.writes_late or AT_ONCE.by_engine or AT_ONCE.in_registers or AT_ONCE.outlives)


COMMITS_AND_WAITS = {
    "cp_async_group": ("cp.async.commit_group", "cp.async.wait_group"),
    "wgmma_group": ("wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned"),
    "bulk_group": ("cp.async.bulk.commit_group", "cp.async.bulk.wait_group.read"),
}


@pytest.mark.parametrize("mechanism", [one for one in mechanisms.kinds() if one.in_groups], ids=repr)
def test_commits_and_waits_are_the_instructions_of_the_ptx_isa(mechanism):
    printed = []
    printer = types.SimpleNamespace(function=lambda function: printed.append(" ".join(function.body)) or function.name)
    (commit,) = mechanism.commit(printer)
    (wait,) = mechanism.wait(printer, 3, "", (), None)
    assert [text.partition('"')[2].split()[0].rstrip(';"') for text in printed] == [*COMMITS_AND_WAITS[mechanism.name]]
    assert commit.endswith("();") and wait.endswith("<3>();") and all("volatile" in text and '"memory"' in text for text in printed)


# "cp.async.mbarrier.arrive": "an arrive-on operation triggered by the system on the mbarrier object upon the completion of all the prior cp.async
# operations initiated by the executing thread"; without .noinc the pending count is incremented first, so that the arrival must not be counted by
# mbarrier.init; with it, it must be. An ordinary "mbarrier.arrive" is never deferred. Bulk copies and wgmma have no deferred arrivals.
ARRIVALS = {"cp_async_group": "cp.async.mbarrier.arrive.noinc.shared::cta.b64", "none": "mbarrier.arrive.shared::cta.b64"}


@pytest.mark.parametrize("mechanism", [AT_ONCE, *mechanisms.kinds()], ids=repr)
def test_deferred_arrivals_are_the_instructions_of_the_ptx_isa(mechanism):
    printed = []
    printer = types.SimpleNamespace(function=lambda function: printed.append(" ".join(function.body)) or function.name)
    assert mechanism.defers == (mechanism.name in ARRIVALS and mechanism is not AT_ONCE)
    if mechanism.name not in ARRIVALS:
        with pytest.raises(Exception, match="this completion mechanism has no text 'arrive'"):
            mechanism.arrive(printer, "barrier")
        return
    (line,) = mechanism.arrive(printer, "full + 8")
    (text,) = printed
    assert line.endswith("(full + 8);") and text.partition('"')[2].split()[0] == ARRIVALS[mechanism.name]
    assert "volatile" in text and '"memory"' in text and ("[%0]" in text)


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("WGMMA_", "wgmma_group"),
        ("TMA_LOAD", "mbarrier"),
        ("TMA_VECTOR", "mbarrier"),
        ("TMA_STORE", "bulk_group"),
        ("BULK_ADD", "bulk_group"),
        ("CP_ASYNC", "cp_async_group"),
    ],
)
def test_instructions_name_their_mechanism(prefix, name):
    instructions = [one for one in INSTRUCTIONS if one.name.startswith(prefix)]
    assert instructions and {one.mechanism.name for one in instructions} == {name}


def test_all_other_instructions_are_synchronous():
    late = ("WGMMA_", "TMA_", "CP_ASYNC", "BULK_")
    assert {one.mechanism for one in INSTRUCTIONS if not one.name.startswith(late)} == {AT_ONCE}


def test_a_mechanism_is_one_instance_with_defaults_for_unstated_properties():
    class Own(Mechanism):
        name = "own"

    assert Own() is Own() and Own() is not AT_ONCE and repr(Own()) == "OWN"
    for text, arguments in {
        "commit": (None,),
        "wait": (None, 0, "", (), None),
        "fence": (None, (), None),
        "pin": (None, (), None),
    }.items():
        with pytest.raises(Exception, match=f"own: this completion mechanism has no text '{text}'"):
            getattr(Own(), text)(*arguments)
