"""Printed texts in which GPUs exchange data, executed on the CPU with the memories of all GPUs; `printed_node` describes the machine."""

import itertools

import numpy as np
import pytest
from node_generator import TOGETHER, draw
from printed_node import run_exchange
from printed_text import COMPILER, HostProgram, Printed, Refused

from fireiron.sim.node import parts_of

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

SMALL = {"exchanged": 2}
"""Seeds of kernels for two GPUs."""

SUMS = {
    "no wait for the arrival of stores": (r'asm volatile\("cp\.async\.bulk\.wait_group 0;" ::: "memory"\);', ""),
    "no count": (r'asm volatile\("red\.relaxed\.sys\.global\.add\.u32 \[%0\], 1;" :: "l"\(semaphore\) : "memory"\);', ""),
    "no wait": (r"while \(static_cast<int>\(seen - position\) < 0\)", "while (false)"),
    "a wait for the launch before": (r"tiles \* \(launch \+ 1\)", "tiles * launch"),
    "the same number of a launch again": (r"\*semaphore = launch \+ 1", "*semaphore = launch"),
}
"""Faults of exchanged sums: patterns of the text, and their replacements."""


def drawn(kind, seed):
    """A drawn kernel without clusters, which the machine with several GPUs does not execute."""
    for number in itertools.count():
        case, _ = draw(seed + 1000 * number, (kind,))
        if case.program.ir.cluster is None:
            return case


def wrong(host, number, case, seed):
    """What is wrong with the last of two launches; empty if nothing is."""
    (launch,), spec = case.program.launches, case.program.spec
    stored = {name: parts_of(spec, name, array) for name, array in case.arrays.items()}
    last = [{name: stored[array][gpu] for name, array in launch.arrays.items() if array in stored} for gpu in range(spec.level.gpus)]
    first = [{name: array[::-1] for name, array in given.items()} for given in last]
    try:
        outputs = run_exchange(host, number, [first, last], case.sizes, seed)
    except Refused as refused:
        return str(refused)
    right = parts_of(spec, "C", case.expected)
    return "" if all(np.array_equal(one["C"], part) for one, part in zip(outputs, right, strict=True)) else "other values"


def found(kind, names, tmp_path):
    """Require that a kernel is right, and that the machine finds faults of its sums."""
    case = drawn(kind, SMALL[kind])
    text = Printed.of(case.program)
    host = HostProgram([text, *(text.changed(*SUMS[name]) for name in names)], tmp_path)
    assert not wrong(host, 0, case, 1)
    for number, name in enumerate(names, 1):
        message = next(filter(None, (wrong(host, number, case, seed) for seed in range(4))), "")
        assert ("deadlock" if name == "no count" else "") in message and message, name


@needs_compiler
def test_exchanged_sums_of_two_gpus(tmp_path):
    found("exchanged", ["no wait for the arrival of stores"], tmp_path)


@needs_compiler
@pytest.mark.nightly
def test_faults_of_exchanged_sums(tmp_path):
    found("exchanged", list(SUMS), tmp_path)


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("kind", TOGETHER)
def test_generated_exchanges(kind, tmp_path):
    cases = [drawn(kind, seed) for seed in range(10)]
    host = HostProgram([Printed.of(case.program) for case in cases], tmp_path)
    for number, case in enumerate(cases):
        assert not any(wrong(host, number, case, seed) for seed in range(2)), case.chain
