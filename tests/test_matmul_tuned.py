"""`matmul.tuned`: what is measured, what is taken, and that it is kept. The GPU is pretended; its times are made up."""

import importlib

import attrs
import numpy as np
import pytest

from fireiron import matmul, matmul_choice
from fireiron.errors import ArgumentError
from fireiron.front import place
from fireiron.matmul import request
from fireiron.matmul_problem import key_and_views
from fireiron.measure.timing import Timing
from fireiron.tune.records import choice_cache


@pytest.fixture
def tuned(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    return importlib.import_module("fireiron.matmul_tuned")


@pytest.fixture
def gpu(tuned, monkeypatch):
    """Measures by `gpu.us`, a function of how many were measured before; `gpu.decided` is what was kept."""

    class Gpu:
        decided, names = (), ()

        def us(self, number):
            return 10.0 + number

    found = Gpu()

    def measure(contenders, **options):
        assert options["l2"] == "hot" and all(len(calls) == 1 for calls in contenders.values())
        found.names = list(contenders)
        return {name: Timing.of([found.us(number)], l2="hot") for number, name in enumerate(contenders)}

    monkeypatch.setattr(tuned, "measure", measure)
    monkeypatch.setattr(tuned, "_prepared", lambda *given: lambda: None)
    monkeypatch.setattr(place, "gpu_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(place, "refused_by_compiler", lambda kernel: None)
    monkeypatch.setattr(tuned, "with_reduction", lambda choice, problem, device: matmul_choice.with_reduction(choice, problem, None))
    monkeypatch.setattr(choice_cache, "decided", lambda *given: setattr(found, "decided", given))
    return found


def asked_of(m, n, k, dtype="float16"):
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    asked, views = key_and_views(request(a, b, arch="sm_90a", require_record=False))
    problems = (*asked.problems, attrs.evolve(asked.problems[0], transposed=True))  # as of arrays with views
    return attrs.evolve(asked, problems=problems, place=attrs.evolve(asked.place, device=0)), views, (a, b, None)


def test_the_fastest_is_taken_and_kept(tuned, gpu):
    asked, views, arrays = asked_of(1100, 1104, 512)
    gpu.us = lambda number: [9.0, 7.0, 8.0, 6.5, 7.5][number]
    lines = []
    made = tuned.measured(asked, views, arrays, 4, lines.append)
    assert len(gpu.names) == len(lines) in (4, 5) and lines[1].startswith("7.00 us  1: hopper")
    assert f"fastest of {len(lines)} that were measured for these arrays, 6.5 us" in made.choice.why
    call, architecture, device, disk_key, choice, number = gpu.decided
    assert (call, architecture, device, disk_key, number) == ("matmul", asked.place.architecture, 0, asked.disk_key, 0)
    assert choice is made.choice


def test_what_is_taken_unasked_is_measured_first(tuned, gpu):
    asked, views, arrays = asked_of(1100, 1104, 512)
    unasked, _ = matmul_choice.decided(asked)
    made = tuned.measured(asked, views, arrays, 3, lambda line: None)
    assert made.choice.program.strategy == unasked.program.strategy and unasked.why in made.choice.why
    values = [name.split(": ", 1)[1] for name in gpu.names]
    assert len(set(values)) == len(values) in (3, 4), "each once"
    tuned.measured(asked, views, arrays, 0, lambda line: None)
    assert len(gpu.names) == 1


def test_parts_of_k_are_measured_too(tuned, gpu):
    asked, views, arrays = asked_of(128, 128, 4096)
    gpu.us = lambda number: 10.0 - number
    made = tuned.measured(asked, views, arrays, 1, lambda line: None)
    assert made.parts > 1 and made.sum_kernel is not None and "parts of K" in made.choice.why
    assert sum("parts of K" in name for name in gpu.names) >= 2 and sum("parts of K" not in name for name in gpu.names) == 1


@pytest.mark.parametrize("count", [-1, 1.5, True, "4"])
def test_numbers_of_candidates(tuned, gpu, count):
    asked, views, arrays = asked_of(512, 512, 512)
    with pytest.raises(ArgumentError, match="candidates"):
        tuned.measured(asked, views, arrays, count, lambda line: None)


def test_without_a_gpu():
    a, b = np.ones((64, 64), "float16"), np.ones((64, 64), "float16")
    with pytest.raises(ArgumentError, match="measures on a GPU"):
        matmul.tuned(a, b)
    with pytest.raises(ArgumentError, match="must read the arrays in place(.|\n)*must be copied"):
        matmul.tuned(a[:, ::2], b[:32])
    with pytest.raises(ArgumentError, match="must read the arrays in place(.|\n)*must be copied"):
        matmul.tuned(a[:0], b)


def test_calls_take_what_was_measured(tuned, monkeypatch):
    """The calls of the same problem, and no other is forgotten."""
    a, b, c = np.ones((32, 48), "float16"), np.ones((48, 32), "float16"), np.ones((48, 64), "float16")
    matmul.clear()
    matmul(a, b, arch="sm_80"), matmul(a, c, arch="sm_80")
    before = dict(matmul.answers.entries)

    def measured(asked, views, arrays, candidates, report):
        made = matmul.kernels.entries[asked]
        return attrs.evolve(made, choice=attrs.evolve(made.choice, why="measured"))

    monkeypatch.setattr(tuned, "measured", measured)
    assert matmul.tuned(a, b, arch="sm_80").why == "measured" == matmul.choice(a, b, arch="sm_80").why
    assert matmul.choice(a, c, arch="sm_80").why != "measured"
    assert sum(matmul.answers.entries.get(key) is one for key, one in before.items()) == 1
    matmul.clear()
