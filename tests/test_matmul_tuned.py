"""`matmul.tuned`: what is measured, chosen and kept. The GPU and its times are fake."""

import importlib
import re

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
    """Times are `gpu.us` of the number of candidates measured before; `gpu.decided` is the kept choice."""

    class Gpu:
        decided, names, sets = (), (), ()

        def us(self, number):
            return 10.0 + number

    fake = Gpu()

    def measure(contenders, **options):
        fake.sets = [len(calls) for calls in contenders.values()]
        assert len(set(fake.sets)) == 1 and options["l2"] == ("rotated" if fake.sets[0] > 1 else "hot")
        fake.names = list(contenders)
        return {name: Timing.of([fake.us(number)], l2=options["l2"]) for number, name in enumerate(contenders)}

    monkeypatch.setattr(tuned, "measure", measure)
    monkeypatch.setattr(tuned, "_prepared", lambda *given: lambda: None)
    monkeypatch.setattr(place, "gpu_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(place, "refused_by_compiler", lambda kernel: None)
    monkeypatch.setattr(tuned, "with_reduction", lambda choice, problem, device: matmul_choice.with_reduction(choice, problem, None))
    monkeypatch.setattr(choice_cache, "decided", lambda *given: setattr(fake, "decided", given))
    return fake


def key_of(m, n, k, dtype="float16"):
    a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
    key, views = key_and_views(request(a, b, arch="sm_90a", require_record=False))
    problems = (*key.problems, attrs.evolve(key.problems[0], transposed=True))  # as for views of arrays
    return attrs.evolve(key, problems=problems, place=attrs.evolve(key.place, device=0)), views, (a, b, None)


def test_the_fastest_is_chosen_and_kept(tuned, gpu):
    key, views, arrays = key_of(1100, 1104, 512)
    gpu.us = lambda number: [9.0, 7.0, 8.0, 6.5, 7.5][number]
    lines = []
    measured = tuned.measured(key, views, arrays, 4, lines.append)
    assert len(gpu.names) == len(lines) in (4, 5) and lines[1].startswith("7.00 us  1: hopper")
    assert f"fastest of {len(lines)} that were measured for these arrays, 6.5 us" in measured.choice.why
    call, architecture, device, disk_key, choice, number = gpu.decided
    assert (call, architecture, device, disk_key, number) == ("matmul", key.place.architecture, 0, key.disk_key, 0)
    assert choice is measured.choice


def test_the_default_choice_is_measured_first(tuned, gpu):
    key, views, arrays = key_of(1100, 1104, 512)
    unasked, _ = matmul_choice.decided(key)
    measured = tuned.measured(key, views, arrays, 3, lambda line: None)
    assert measured.choice.program.strategy == unasked.program.strategy and unasked.why in measured.choice.why
    values = [name.split(": ", 1)[1] for name in gpu.names]
    assert len(set(values)) == len(values) in (3, 4), "each once"
    tuned.measured(key, views, arrays, 0, lambda line: None)
    assert len(gpu.names) == 1


def test_parts_of_k_are_measured_too(tuned, gpu):
    key, views, arrays = key_of(128, 128, 4096)
    gpu.us = lambda number: 10.0 - number
    measured = tuned.measured(key, views, arrays, 1, lambda line: None)
    assert measured.parts > 1 and measured.sum_kernel is not None and "parts of K" in measured.choice.why
    assert sum("parts of K" in name for name in gpu.names) >= 2 and sum("parts of K" not in name for name in gpu.names) == 1


def test_tiles_differ(tuned, gpu):
    """The values of a tile that differ in pieces of C only take one place."""
    tuned.measured(*key_of(1100, 1104, 512), 3, lambda line: None)
    tiles = [re.search(r"bm=(\d+) .*bn=(\d+)", name).groups() + tuple(re.findall(r"cluster_.=(\d)", name)) for name in gpu.names[1:]]
    assert len(set(tiles)) == len(tiles) >= 2


def test_strategies_that_copy_by_threads_are_measured(tuned, gpu):
    """No tile is expected for rows that TMA does not accept, if copies save no time."""
    gpu.us = lambda number: [9.0, 7.0, 8.0][number]
    measured = tuned.measured(*key_of(68, 67, 65), 2, lambda line: None)
    assert "split_k bm=32 bn=32" in measured.choice.why and len(gpu.names) == 2 and "split_k bm=16 bn=16" in gpu.names[0]


def test_arrays_that_fit_in_l2_are_copied(tuned, gpu, monkeypatch):
    """The copies have the strides of the arrays, and exceed L2 together."""
    a, b, c = np.ones((512, 768), "float16"), np.ones((256, 768), "float16").T, np.zeros((512, 256), "float16")
    sets = tuned._sets((a, b, c))
    assert len(sets) == -(-tuned.ROTATED // (a.nbytes + b.nbytes + c.nbytes)) and sets[0] == (a, b, c)
    for copies in sets[1:3]:
        for array, copy in zip((a, b, c), copies, strict=True):
            assert copy.strides == array.strides and not np.shares_memory(copy, array) and (copy == array).all()
    assert all(out is None for _, _, out in tuned._sets((a, b, None))) and len(tuned._sets((a[:, ::2], b[:384], c))) == 1
    monkeypatch.setattr(tuned, "ROTATED", 1_000_000)
    assert len(tuned._sets((a, b, c))) == 1
    tuned.measured(*key_of(512, 512, 512), 0, lambda line: None)
    assert gpu.sets == [1]


@pytest.mark.parametrize("count", [-1, 1.5, True, "4"])
def test_numbers_of_candidates(tuned, gpu, count):
    key, views, arrays = key_of(512, 512, 512)
    with pytest.raises(ArgumentError, match="candidates"):
        tuned.measured(key, views, arrays, count, lambda line: None)


def test_without_a_gpu():
    a, b = np.ones((64, 64), "float16"), np.ones((64, 64), "float16")
    with pytest.raises(ArgumentError, match="measures only on a GPU"):
        matmul.tuned(a, b)
    with pytest.raises(ArgumentError, match="must read the arrays in place(.|\n)*must be copied"):
        matmul.tuned(a[:, ::2], b[:32])
    with pytest.raises(ArgumentError, match="must read the arrays in place(.|\n)*must be copied"):
        matmul.tuned(a[:0], b)


def test_calls_use_the_measured_choice(tuned, monkeypatch):
    """Calls of the same problem use it, and the choices of other problems are kept."""
    a, b, c = np.ones((32, 48), "float16"), np.ones((48, 32), "float16"), np.ones((48, 64), "float16")
    matmul.clear()
    matmul(a, b, arch="sm_80"), matmul(a, c, arch="sm_80")
    before = dict(matmul.answers.entries)

    def measured(key, views, arrays, candidates, report):
        entry = matmul.kernels.entries[key]
        return attrs.evolve(entry, choice=attrs.evolve(entry.choice, why="measured"))

    monkeypatch.setattr(tuned, "measured", measured)
    assert matmul.tuned(a, b, arch="sm_80").why == "measured" == matmul.choice(a, b, arch="sm_80").why
    assert matmul.choice(a, c, arch="sm_80").why != "measured"
    assert sum(matmul.answers.entries.get(key) is one for key, one in before.items()) == 1
    matmul.clear()
