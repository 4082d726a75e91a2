"""What the checks and the simulator report about kernels with injected faults does not change unintentionally.

The faults are of the catalog (`campaign.faults`), each in a kernel of a drawn form, listed in `verdict_cases.txt` (`form/seed/fault/place`): in
each step the case that runs the most jumps of `fireiron/check` that fewer than four chosen cases run, for its time. The subject `faults`
tests that verdicts are right, for other draws. The stored ones are complete: all findings, and the report of the simulator.
"""

import functools
import re
from pathlib import Path

import pytest
from campaign.faults import KINDS, detectors
from campaign.faults.kernels import case
from goldens.cases import TEXT, Case, Outcome, cases, differences

from fireiron import ir
from fireiron.check import check
from fireiron.errors import FireironError, SimulationError

FILE = Path(__file__).parent / "verdict_cases.txt"
BY_NAME = {kind.name: kind for kind in KINDS}
PARTS, SHADOWED = 4, 3
"""The number of tests, and that of the cases of which one is simulated."""


@functools.cache
def names():
    """The names of the cases; those of a kernel are adjacent."""
    return FILE.read_text(encoding="utf-8").splitlines()


@functools.lru_cache(maxsize=2)
def drawn(form, seed):
    """The kernel of a form, and its outputs without a fault."""
    return case(form, seed)


def kernel_of(name):
    """The drawn kernel, and its copy with the fault."""
    form, seed, kind, place = name.split("/")
    plain = drawn(form, int(seed))
    if kind == "none":
        return plain, plain.kernel
    return plain, [*BY_NAME[kind].plant(plain.kernel)][int(place)][1]()


def report(plain, faulty):
    """The report of the simulator, or its outputs, with warps that run ahead."""
    try:
        outputs = detectors.outputs(plain, faulty, detectors.Greedy(1))
    except (SimulationError, FireironError) as error:
        return str(error)
    return " ".join(f"{name} {array.tobytes().hex()}" for name, array in sorted(outputs.items()))


@functools.cache
def findings(name):
    """All findings about a kernel, and those of the simulator for some."""
    plain, faulty = kernel_of(name)
    ir.verify(faulty, final=True)
    lines = [f"{one.severity} {one.kind}: {one.message}" for one in check(faulty)]
    lines += [report(plain, faulty)] if names().index(name) % SHADOWED == 0 else []
    return tuple(re.sub(r" at [\w/]+\.py:\d+", "", line) for line in lines)


def outcome(name):
    """The verdict on a kernel."""
    return Outcome(TEXT, "\n".join(findings(name)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_verdicts_do_not_change_unintentionally(part):
    size = -(-len(names()) // PARTS)
    stored = cases("verdicts")[part * size : (part + 1) * size]
    changes = differences("verdicts", [Case.of(one.name, outcome(one.name)) for one in stored])
    assert not changes and [one.name for one in stored] == names()[part * size : (part + 1) * size], changes


@pytest.mark.sampled(1)
def test_kernels_without_a_fault_have_no_errors():
    clean = [name for name in names() if "/none/" in name]
    assert len(clean) >= 3 and not [line for name in clean for line in findings(name) if line.startswith("error")]


@pytest.mark.sampled(1)
def test_most_faults_are_errors():
    faulty = [name for name in names() if "/none/" not in name]
    assert sum(any(line.startswith("error") for line in findings(name)) for name in faulty) > len(faulty) / 2
