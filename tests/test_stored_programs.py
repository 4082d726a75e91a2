"""Programs and choices on disk: what is kept, under which keys, and what is not used."""

import enum
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace

import attrs
import making
import pytest
from problems import library

from fireiron import *
from fireiron import disk_cache
from fireiron.cli import main
from fireiron.disk_cache import DamagedError
from fireiron.errors import CacheWarning
from fireiron.gpu import cache, programs
from fireiron.gpu.kernel import CompiledKernel
from fireiron.tune.records import choice_cache as choices
from fireiron.tune.records.choosing import Choice
from fireiron.values.machine import as_architecture, float16


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty cache, which also keeps programs that compile quickly."""
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(programs, "MIN_SECONDS", 0.0)
    return tmp_path


def bound(name="listing_2", **values):
    module = library(name)
    return module.strategy.with_(**values)(module.spec(*module.SIZES))


def fresh(strategy, architecture="sm_80", **options):
    """A program of which nothing is computed yet."""
    return strategy.program(architecture, **options)


def of_kind(kind):
    return [one for one in cache.entries() if one.kind == kind]


# ---------------------------------------------------------------------------------------------- programs


def test_explain_reports_a_kept_proof():
    from fireiron.inspect.explain import explain, text

    explanation = text(explain(bound(), "sm_80"))
    assert "proof:" not in explanation
    CompiledKernel(fresh(bound())).ready()
    again = text(explain(bound(), "sm_80"))
    head, line, *rest = again.splitlines()
    assert line.startswith("proof: checked on 20") and line.endswith("as the cache on disk kept it")
    assert "\n".join((head, *rest)) == explanation, "and nothing else is said otherwise"


def test_the_second_program_is_not_made_again(monkeypatch):
    """IR, proof and text are those of the first one, without a tree."""
    first = CompiledKernel(fresh(bound())).ready()
    assert first.proof == "checked in this process" and len(of_kind("program")) == 1
    for name in ("lower.walk.grow_tree", "check.safety"):
        monkeypatch.setattr(f"fireiron.{name}", lambda *given: pytest.fail("it is made again"))
    second = CompiledKernel(fresh(bound()))
    assert second.ready().program.cuda == first.program.cuda and second.ir == first.ir
    assert second.proof.startswith("checked on 20") and second.report() == first.report()
    assert second.program.seconds.keys() <= {"kept", "nvrtc"}


def test_preceding_copies_are_kept_too(monkeypatch):
    module = library("hopper")
    values = {name: tunable.values[0] for name, tunable in module.strategy.tunables().items()}
    strategy = module.strategy.with_(**values)(module.spec(130, 129, 131))
    first = CompiledKernel(fresh(strategy, "sm_90a")).ready()
    assert [one.name for one in first.program.preceding] == ["A", "B"] and len(of_kind("program")) == 3
    monkeypatch.setattr("fireiron.lower.walk.grow_tree", lambda *given: pytest.fail("it is made again"))
    second = CompiledKernel(fresh(strategy, "sm_90a")).ready()
    assert (second.program.cuda == first.program.cuda and second.program.preceding == first.program.preceding) or (
        [one.reason for one in second.program.preceding] == [one.reason for one in first.program.preceding]
    )


def test_inputs_of_a_program_change_its_key(monkeypatch):
    keys = {
        "as it is": programs.key_of(fresh(bound())),
        "another spec": programs.key_of(fresh(library("listing_2").strategy(library("listing_2").spec(256, 256, 128)))),
        "another target": programs.key_of(fresh(bound(), "sm_90")),
        "another name": programs.key_of(fresh(bound(), name="other")),
        "another strategy": programs.key_of(fresh(bound("gemm_tt"))),
    }
    monkeypatch.setattr(disk_cache, "build", lambda: "another build")
    keys["another build"] = programs.key_of(fresh(bound()))
    assert None not in keys.values() and len(set(keys.values())) == len(keys)
    assert programs.key_of(fresh(bound())) == keys["another build"]


def test_keys_are_the_same_in_every_process():
    script = (
        "from problems import library; from fireiron.gpu.programs import key_of; m = library('attention');"
        " print(key_of(m.strategy(m.spec(*m.SIZES)).program('sm_80')))"
    )
    path = os.pathsep.join([os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))])
    keys = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1 and len(keys.pop().strip()) == disk_cache.DIGITS


class Mine(Executable):
    """An instruction whose code this package does not know."""


def test_programs_with_foreign_code_are_not_kept(monkeypatch):
    """The user's code may change without a new version."""
    program = fresh(bound())
    assert programs.key_of(attrs.evolve(program, instructions=program.instructions[1:])) is None

    @attrs.frozen
    class Own:
        value: int = 1

    class Color(enum.Enum):
        RED = 1

    for value in (Own(), Color.RED, print, lambda: 1, {1: Own()}, Mine, object(), memoryview(b"")):
        assert disk_cache.key_of(value) is None and disk_cache.written("program", "0" * 64, value, {}) is None
    assert disk_cache.key_of(float16, GL, (1, "a", None, 2.5, {"b": frozenset((1, 2))})) is not None
    monkeypatch.setenv("FIREIRON_NO_CACHE", "1")
    assert programs.key_of(program) is None


def test_quick_programs_are_not_kept(monkeypatch):
    monkeypatch.setattr(programs, "MIN_SECONDS", 1e9)
    CompiledKernel(fresh(bound())).ready()
    assert not of_kind("program")


def test_a_refused_program_is_not_kept():
    strategy = MatMul.tile(128, 128).to(Block).load("A", SH, Move.done()).done()
    with pytest.raises(FireironError):
        CompiledKernel(fresh(strategy(MatMul(256, 256, 65536)(GL, GL, GL)(Kernel)))).ready()
    assert not of_kind("program")


# ---------------------------------------------------------------------------------------------- entries


def entry_of(value, kind="program", key="0" * 64):
    data = disk_cache.written(kind, key, value, {"kernels": ["k"], "about": "", "arch": "", "toolchain": [], "seconds": 0.0})
    assert data is not None
    return data


def test_every_changed_byte_is_found():
    data = entry_of((float16, making.comment("text"), [1, 2, 3]))
    assert disk_cache.read("program", "0" * 64, data)[0] == (float16, making.comment("text"), [1, 2, 3])
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(DamagedError):
            disk_cache.read("program", "0" * 64, bytes(changed))
    for cut in (0, 1, len(data) // 2, len(data) - 1):
        with pytest.raises(DamagedError):
            disk_cache.read("program", "0" * 64, data[:cut])
    with pytest.raises(DamagedError, match="another key"):
        disk_cache.read("program", "1" * 64, data)
    with pytest.raises(DamagedError, match="format"):
        disk_cache.read("choice", "0" * 64, data)


class Runs:
    """Calls a function when an unrestricted unpickler reads it."""

    def __init__(self, function, *given):
        self.called = function, given

    def __reduce__(self):
        return self.called


@pytest.mark.parametrize(
    "value",
    [
        Runs(os.system, "true"),
        Runs(eval, "1"),
        Runs(getattr, float16, "name"),
        Runs(disk_cache.save, os.devnull, b""),
        Runs(programs.place, "program", "0" * 64),
        Runs(CompiledKernel, None),
        Runs(isinstance, 1, int),
        subprocess.Popen,
        disk_cache.DamagedError,
    ],
    ids=range(9),
)
def test_reading_an_entry_calls_no_function(value):
    """An entry with a right digest cannot create values of foreign classes, and calls nothing."""
    head = {"key": "0" * 64, "created": 0.0}
    data = disk_cache.encoded(disk_cache.first_line("program"), head, pickle.dumps(value, 5))
    with pytest.raises(DamagedError, match="it contains the class"):
        disk_cache.read("program", "0" * 64, data)


@pytest.mark.parametrize("rest", [b"", b"\x80\x05.", b"\x80\x05K\x01", b"N.", pickle.dumps(float16, 5)[:-8]], ids=range(5))
def test_an_entry_that_is_not_a_program_is_generated_again(rest):
    """A right digest does not prove that the entry is a program."""
    program = fresh(bound())
    key = programs.key_of(program)
    disk_cache.save(
        programs.place("program", key), disk_cache.encoded(disk_cache.first_line("program"), {"key": key, "created": 0.0}, rest)
    )
    with pytest.warns(CacheWarning, match="generated again"):
        compiled = CompiledKernel(program).ready()
    assert compiled.proof == "checked in this process" and "__global__" in compiled.program.cuda
    assert len(of_kind("program")) == 1 and not cache.verify()


def test_an_entry_with_the_name_of_another_is_not_used():
    first, other = fresh(bound()), fresh(bound(), name="other")
    CompiledKernel(first).ready()
    data = programs.place("program", programs.key_of(first)).read_bytes()
    _, rest = disk_cache.opened(data, disk_cache.first_line("program"))
    key = programs.key_of(other)
    disk_cache.save(
        programs.place("program", key), disk_cache.encoded(disk_cache.first_line("program"), {"key": key, "created": 0.0}, rest)
    )
    with pytest.warns(CacheWarning, match="not a program of this name"):
        assert "other(" in CompiledKernel(other).ready().program.cuda


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "file"))
    program = fresh(bound())
    assert programs.recalled(program) is program and program.cuda
    programs.remember(program)


# ---------------------------------------------------------------------------------------------- choices


def test_choices(monkeypatch, tmp_path):
    """A choice brings its program, IR and text along; the files of records are part of its key."""
    target, program = as_architecture("sm_80"), fresh(bound())
    key = choices.key_of("matmul", target, None, program.spec)
    assert key is not None and choices.recalled(key) is None
    CompiledKernel(program).ready()
    choices.remember(key, Choice(None, False, "for a reason", program), 1)
    choice, number = choices.recalled(key)
    assert number == 1 and choice.why == "for a reason" and choice.record is None and choice.strategy == program.strategy
    assert choice.program.is_complete and choice.program.ir == program.ir and choice.program.cached_since is not None
    other = tmp_path / "records.jsonl"
    other.write_text("")
    monkeypatch.setenv("FIREIRON_RECORDS", str(other))
    assert choices.key_of("matmul", target, None, program.spec) != key
    assert choices.recalled(None) is None
    path = programs.place("choice", key)
    path.write_bytes(disk_cache.encoded(disk_cache.first_line("choice"), {"key": key, "created": 0.0}, pickle.dumps((1, 2), 5)))
    with pytest.warns(CacheWarning, match="written again"):
        assert choices.recalled(key) is None
    assert not path.exists()


def test_a_call_uses_the_choice_of_another_process(monkeypatch):
    """On a fake GPU, whose compiler is not called."""
    import numpy as np

    from fireiron import matmul_choice
    from fireiron.gpu import launch
    from fireiron.matmul import request
    from fireiron.matmul_problem import key_and_views

    a = np.ones((32, 48), "float16")
    key, _ = key_and_views(request(a, a.T, arch="sm_80"))
    key = attrs.evolve(key, place=attrs.evolve(key.place, device=0))
    monkeypatch.setattr(launch, "gpu_available", lambda: True)
    monkeypatch.setattr(launch, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(choices, "device_name", lambda device: "NVIDIA H200")
    first = matmul_choice.cached_or_chosen(key)
    monkeypatch.setattr(matmul_choice, "decided", lambda asked: pytest.fail("it is chosen again"))
    second = matmul_choice.cached_or_chosen(key)
    assert second.choice.why == first.choice.why and second.problem == first.problem
    assert second.kernel.program.strategy == first.kernel.program.strategy
    with pytest.raises(pytest.fail.Exception):
        matmul_choice.cached_or_chosen(attrs.evolve(key, aligned=(16, 16, 16)))


# ---------------------------------------------------------------------------------------------- the command


def test_the_command_shows_and_removes_them(capsys):
    CompiledKernel(fresh(bound())).ready()
    assert main(["cache"]) == 0
    assert "program" in capsys.readouterr().out
    (entry,) = of_kind("program")
    entry.path.write_bytes(entry.path.read_bytes()[:-1])
    assert main(["cache", "verify", "--fix"]) != 0 and "digest is wrong" in capsys.readouterr().out
    CompiledKernel(fresh(bound())).ready()
    assert main(["cache", "prune", "--all"]) == 0 and not cache.entries()


# ---------------------------------------------------------------------------------------------- deferred garbage collection


def test_collection_is_deferred_and_resumed():
    import gc

    from fireiron.collecting import postponed

    assert gc.isenabled()
    with postponed():
        assert not gc.isenabled()
        with postponed():
            assert not gc.isenabled()
        assert not gc.isenabled(), "by the outer one"
    assert gc.isenabled()
    with pytest.raises(ValueError), postponed():
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with postponed():
            pass
        assert not gc.isenabled(), "as it was"
    finally:
        gc.enable()


def test_frozen_objects_are_counted_once(monkeypatch):
    """A program may have frozen millions of objects, and each call of the library would count them."""
    import gc

    from fireiron import collecting

    counts = [0, 0, 5]
    monkeypatch.setattr(collecting, "_program", collecting._Program())
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.pop(0))
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    for _ in range(5):
        with collecting.postponed(keeps=True):
            pass
    assert not counts


def test_a_refused_program_leaves_collection_on():
    import gc

    with pytest.raises(FireironError):
        _ = Move.tile(8, 8).to(Block).done()(Move(8, 8)(GL, GL)(Kernel)).program("sm_80").cuda
    assert gc.isenabled()


def test_the_driver_is_asked_once_for_the_name_of_a_gpu(monkeypatch):
    asked = []

    class Runtime:
        @staticmethod
        def getDeviceProperties(device):
            asked.append(device)
            return {"name": b"NVIDIA H200"}

    monkeypatch.setattr(choices.launch, "require_cupy", lambda: SimpleNamespace(cuda=SimpleNamespace(runtime=Runtime)))
    assert [choices.device_name(device) for device in (0, 0, 1, 0)] == ["NVIDIA H200"] * 4 and asked == [0, 1]
