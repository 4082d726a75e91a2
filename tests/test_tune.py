"""Tuning without a GPU: fake measurements that succeed, crash, hang or return wrong results; killed runs; executors; searches."""

import concurrent.futures
import importlib.util
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import attrs
import numpy as np
import outputs
import pytest
import tuning_fakes
from forked import forked
from gpu_stand_in import Clock, stand_in
from tuning_fakes import Compiling, CrashOnce, DeadTogether, Fake, Flaky, NeverStarts, Nonsense, Turned, microseconds, strategy
from tuning_fakes import square as spec

import fireiron
import fireiron.language.library
import fireiron.tune.records
from fireiron import *
from fireiron.cli import main
from fireiron.cli import tune as command_module
from fireiron.gpu import launch
from fireiron.tune import Display, OnGpu, Progress, Prune, Result, Tuning, rank, tune
from fireiron.tune import bench as bench_module
from fireiron.tune import measure as measure_module
from fireiron.tune import run as run_module
from fireiron.tune import worker_pool as pool_module
from fireiron.tune.journal import Journal
from fireiron.tune.measure import Measure, Measured
from fireiron.tune.record import strategy_hash
from fireiron.tune.result import failures, ranked
from fireiron.tune.search import MOST_EXHAUSTIVE, Optimizer, draws, in_order
from fireiron.tune.task import Built, Candidate, Space, Surveyed, Task, build, packed, survey
from fireiron.tune.worker_pool import MEASURE, WorkerPool

TESTS = Path(__file__).parent
BEST = {"bm": 16, "bn": 32, "bk": 8}
FEW = {"bm": 16}
ALL = [dict(values) for values in strategy.assignments()]


@pytest.fixture
def fresh():
    """Each process of this test is a fresh Python process, as for users."""


@pytest.fixture(autouse=True)
def processes(request, monkeypatch):
    if "fresh" not in request.fixturenames:
        monkeypatch.setattr(pool_module, "started", forked)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Journals and compiled kernels of a test stay in its folder."""
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "cache"))


def tuned(measure=None, **options):
    return tune(strategy, spec, **{"measure": Fake() if measure is None else measure, "prune": False, "jobs": 1, **options})


def at(**values):
    return tuple(values.items())


def seen(tuning):
    """The part of a result that must not depend on interruptions."""
    return {(tuple(one.values.items()), one.status, one.us, one.final_us) for one in tuning.results}


# ---------------------------------------------------------------------------------------------- the search


def test_exhaustive(tmp_path):
    progress = []
    tuning = tuned(report=progress.append, journal=tmp_path / "a.jsonl")
    assert [dict(one.values) for one in tuning.results] == ALL, "all candidates, in the order of the strategy"
    assert {one.status for one in tuning.results} == {"ok"}
    assert all(one.us == microseconds(one.values) for one in tuning.results)
    assert dict(tuning.best.values) == BEST and tuning.best.us == microseconds(BEST)
    assert [one.time for one in tuning.ranking] == sorted(one.time for one in tuning.results)
    assert sum(one.final_us is not None for one in tuning.results) == 5
    assert tuning.complete and tuning.stopped == "" and tuning.notes == ()
    assert [one.phase for one in progress] == sorted((one.phase for one in progress), key=["lower", "measure", "final"].index)
    assert progress[-1].phase == "final" and dict(progress[-1].best.values) == BEST and progress[-1].journal == str(tmp_path / "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["task"] + ["legal"] * 24 + ["result"] * 24 + ["final"]
    assert lines[0]["spec"]["sizes"] == {"M": 32, "N": 32, "K": 16} and lines[0]["gpu"] == "fake" and lines[0]["architecture"] == "sm_90"


def test_record(tmp_path):
    tuning = tuned(name="mine.py:strategy")
    record = tuning.best
    assert record.strategy == "mine.py:strategy" and record.gpu == "fake" and record.driver == "1.0" and record.toolchain == "none"
    assert record.us == microseconds(BEST) and record.regime == "burst" and record.l2 == "rotated" and record.error == 1e-6
    assert record.tflops == pytest.approx(2 * 32 * 32 * 16 / record.us / 1e6)
    assert record.source == "exhaustive search of 24, 24 measured"
    tuning.save(tmp_path / "records.jsonl")
    tuning.save(tmp_path / "records.jsonl")
    loaded = list(Records.load(tmp_path / "records.jsonl").records)
    assert record in loaded
    assert strategy_hash(strategy) == record.strategy_hash, "of the strategy with its tunables open"


def test_user_defined_kinds_are_recorded(tmp_path):
    """They are recorded with their declaration, which a lookup compares."""
    bound = tuning_fakes.crossing(40)
    tuning = tune(bound, measure=Fake(), prune=False, jobs=1, fixed={"bn": 32}, name="mine.py:several", journal=tmp_path / "a.jsonl")
    assert dict(tuning.best.values) == {"bm": 16, "bn": 32} and tuning.notes == ()
    tuning.save(tmp_path / "records.jsonl")
    record = Records.load(tmp_path / "records.jsonl").best(bound.spec, "sm_90", strategies={"mine.py:several": bound})
    assert record.exact and record.record == tuning.best and record.strategy.spec == bound.spec


def test_unrecordable_specs_are_tuned(tmp_path):
    """Such specs are tuned and resumed from their journal; the best candidate is not recorded."""
    log = tmp_path / "log"
    options = {"measure": Fake(log=str(log)), "prune": False, "jobs": 1, "journal": tmp_path / "a.jsonl", "fixed": {"bn": 32}}
    bound = tuning_fakes.crossing(40, named=True)
    tuning = tune(bound, **options)
    assert [one.values["bm"] for one in tuning.ranking] == [16, 12, 8, 32] and tuning.complete
    assert tuning.best is None and "a record cannot describe this spec, got 'Cross(40,50)(GL,GL,GL,GL,GL)(Kernel) with " in tuning.notes[0]
    assert json.loads(tuning.journal.read_text().split("\n")[0])["spec"]["text"] == "Cross(40,50)(GL,GL,GL,GL,GL)(Kernel)"
    with pytest.raises(ArgumentError, match="a record cannot describe this spec"):
        tuning.save(tmp_path / "records.jsonl")
    count = len(log.read_text().splitlines())
    assert tune(bound, **options).results == tuning.results and len(log.read_text().splitlines()) == count, "everything is in the journal"
    with pytest.raises(StoreError, match="another"):
        tune(tuning_fakes.crossing(41, named=True), **options)


def test_nothing_to_save(tmp_path):
    with pytest.raises(ArgumentError, match="nothing to save"):
        Tuning(best=None, results=()).save(tmp_path / "records.jsonl")


def test_fixed_values_share_the_journal(tmp_path):
    some = tuned(fixed={"bm": 16, "bk": 8}, journal=tmp_path / "a.jsonl")
    assert [dict(one.values) for one in some.results] == [values for values in ALL if values["bm"] == 16 and values["bk"] == 8]
    log = tmp_path / "log"
    every = tuned(Fake(log=str(log)), journal=tmp_path / "a.jsonl")
    assert len(every.results) == 24 and dict(every.best.values) == BEST == dict(some.best.values)
    first = log.read_text().splitlines()[:-5]
    assert len(first) == 21 and not any(line.startswith(("16 8 8", "16 16 8", "16 32 8")) for line in first), "measured once"
    with pytest.raises(ArgumentError, match="no such tunable"):
        tuned(fixed={"bx": 16})
    with pytest.raises(ArgumentError, match="not among its values"):
        tuned(fixed={"bm": 17})


def test_illegal_candidates(tmp_path):
    bound = MatMul(32, 32, 16)(GL, GL, GL)(Kernel)
    odd = strategy.at(Tile, index=1).replace(Tile((Tunable("tm", 4, 5), 4)).refined(To(Thread)))
    tuning = tune(odd, bound, measure=Fake(), prune=False, jobs=1, fixed={"bn": 8, "bk": 4, "bm": 8})
    assert [one.status for one in tuning.results] == ["ok", "illegal"]
    assert "5" in tuning.results[1].reason and "\n" not in tuning.results[1].reason
    assert "1 illegal" in tuning.table()
    none = tune(odd, bound, measure=Fake(), fixed={"bn": 8, "bk": 4, "bm": 8, "tm": 5}, jobs=1)
    assert none.best is None and none.table().startswith("no candidate was legal")


def test_all_kinds_of_failures(tmp_path):
    faults = (
        (at(bm=8, bn=8, bk=4), "exit"),
        (at(bm=8, bn=8, bk=8), "segv"),
        (at(bm=8, bn=16, bk=4), "hang"),
        (at(bm=8, bn=16, bk=8), "wrong"),
        (at(bm=8, bn=32, bk=4), "raise"),
        (at(bm=8, bn=32, bk=8), "launch"),
    )
    log = tmp_path / "log"
    tuning = tuned(Fake(faults, log=str(log)), timeout=1.0)
    bad = tuning.results[:6]
    assert [one.status for one in bad] == ["crashed", "crashed", "hung", "wrong", "failed", "failed"]
    assert [one.reason for one in bad] == [
        "its process ended with status 7",
        "its process ended by SIGSEGV",
        bad[2].reason,
        "C is wrong: 3 of 4 elements, got 1.0",
        "ZeroDivisionError: a defect",
        "the driver refuses to launch",
    ]
    assert bad[2].reason.startswith("stopped after 1")
    assert [one.status for one in tuning.results[6:]] == ["ok"] * 18 and dict(tuning.best.values) == BEST
    table = tuning.table()
    assert "2 crashed" in table and "1 hung" in table and "2 failed" in table and "s  (bm=8 bn=16 bk=4)" in table
    workers = {line.split()[3] for line in log.read_text().splitlines()}
    assert len(workers) == 7, "a process that failed in any way measures nothing more"
    assert not any(alive(int(worker)) for worker in workers)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_never_starts():
    with pytest.raises(LaunchError, match="a process with the role 'measure' does not start: its process ended with status 9"):
        tuned(NeverStarts())


def test_time_limit_ends_the_search():
    for seconds in (3.0, 30.0):  # a busy machine starts processes late
        tuning = tuned(Fake(pause=seconds / 10), seconds=seconds)
        if tuning.results:
            break
    assert not tuning.complete and "candidates were not measured" in tuning.stopped
    assert 0 < len(tuning.results) < 24 and tuning.best is not None and tuning.best.source.endswith("stopped early")


# ---------------------------------------------------------------------------------------------- the last measurement


def test_finalists_are_measured_together():
    tuning = tuned(Turned(), fixed={"bn": 32})
    assert dict(tuning.best.values) == {"bm": 16, "bn": 32, "bk": 4}, "the winner is decided together"
    best = tuning.ranking[0]
    assert best.us == microseconds(best.values) and best.final_us == best.us - 1, "both numbers are kept"
    assert tuning.best.us == best.final_us and tuning.best.extra["first_us"] == best.us
    assert tuning.library_us == tuning.best.library_us == 9.5
    assert "final us" in tuning.table() and "9.5 us" in tuning.table()


def test_final_measurement_is_journaled(tmp_path):
    log = tmp_path / "log"
    first = tuned(attrs.evolve(Turned(), log=str(log)), journal=tmp_path / "a.jsonl", fixed={"bn": 32})
    lines = log.read_text()
    again = tuned(attrs.evolve(Turned(), log=str(log)), journal=tmp_path / "a.jsonl", fixed={"bn": 32})
    assert log.read_text() == lines, "nothing is measured twice"
    assert seen(again) == seen(first) and again.best == first.best and again.library_us == 9.5


def test_wrong_finalist(tmp_path):
    tuning = tuned(Flaky(), journal=tmp_path / "a.jsonl", fixed=FEW)
    (bad,) = (one for one in tuning.results if one.values == BEST)
    assert bad.status == "wrong" and bad.reason == "in the final measurement: C is wrong"
    assert dict(tuning.best.values) == {"bm": 16, "bn": 32, "bk": 4}
    assert seen(tuned(Flaky(), journal=tmp_path / "a.jsonl", fixed=FEW)) == seen(tuning)


def test_failing_final_measurement():
    tuning = tuned(DeadTogether(), fixed=FEW)
    assert dict(tuning.best.values) == BEST and tuning.best.us == microseconds(BEST)
    assert "the final measurement failed; the ranking is that of the first measurements: its process ended with status 3" in tuning.notes[0]
    assert tuning.notes[0] in tuning.table()


@pytest.mark.parametrize("us", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_times_fail_a_candidate(tmp_path, us):
    """An invalid time fails its candidate, not the tuning, and is never the best. Its journal loads."""
    for _ in range(2):
        tuning = tuned(Nonsense(us=us), journal=tmp_path / "a.jsonl", fixed=FEW)
        (bad,) = (one for one in tuning.results if one.values == BEST)
        assert bad.status == "failed" and "us must be a time" in bad.reason
        assert dict(tuning.best.values) == {"bm": 16, "bn": 32, "bk": 4}
    last = tuned(Nonsense(us=us, finally_=True), fixed=FEW)
    assert dict(last.best.values) == BEST and "us must be a time" in last.notes[0]


def test_missing_finalist():
    tuning = tuned(Nonsense(), fixed=FEW)
    assert dict(tuning.best.values) == BEST and "must return one measurement for each finalist" in tuning.notes[0]


def test_changed_kernels_are_measured_again(tmp_path):
    """A journal survives changes of the code generator. Its best candidates are measured again unless their kernels are unchanged."""
    journal = tmp_path / "a.jsonl"
    tuned(journal=journal, fixed={"bk": 8})
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "result" and line["values"] == {"bm": 32, "bn": 8, "bk": 8}:
            line["us"], line["text"] = 1.0, "0" * 16
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines if line["kind"] != "final"))
    tuning = tuned(journal=journal, fixed={"bk": 8})
    assert dict(tuning.best.values) == BEST
    assert "whose text has changed" in tuning.notes[0]
    assert all(one.us == microseconds(one.values) for one in tuning.results)


# ---------------------------------------------------------------------------------------------- the journal


PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    from tuning_fakes import Fake, Turned, strategy
    from tuning_fakes import square as spec
    from fireiron.tune import tune
    faults = (((("bm", 8), ("bn", 8)), "wrong"), ((("bm", 12), ("bn", 16), ("bk", 4)), "exit"))
    tune(strategy, spec, measure=Turned(faults, pause=0.08, log={log!r}), prune=False, jobs=1, journal={journal!r})
"""


def kill_after(journal, count, log):
    """Tune in a separate process, and kill it after a given number of further results."""
    program = textwrap.dedent(PROGRAM.format(tests=str(TESTS), log=str(log), journal=str(journal)))
    before = len(results_in(journal))
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while len(results_in(journal)) < before + count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    return results_in(journal)


def results_in(journal):
    if not journal.exists():
        return []
    text = journal.read_text()
    lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return [tuple(line["values"].values()) for line in lines if line["kind"] == "result"]


@pytest.mark.nightly
def test_resume_after_two_kills(tmp_path):
    journal, log = tmp_path / "killed.jsonl", tmp_path / "log"
    first = kill_after(journal, 4, log)
    second = kill_after(journal, 5, log)
    assert 9 <= len(second) < 24 and second[: len(first)] == first
    pids = {int(line.split()[3]) for line in log.read_text().splitlines()}
    measured = len(log.read_text().splitlines())
    measure = Turned(((at(bm=8, bn=8), "wrong"), (at(bm=12, bn=16, bk=4), "exit")), log=str(log))
    resumed = tuned(measure, journal=journal)
    third = [tuple(map(int, line.split()[:3])) for line in log.read_text().splitlines()[measured:]]
    assert not set(third[:-5]) & set(second), "what is in the journal is not measured again"
    assert len(third[:-5]) == 24 - len(second)
    whole = tuned(attrs.evolve(measure, log=""), journal=tmp_path / "whole.jsonl")
    assert seen(resumed) == seen(whole) and len(whole.results) == 24
    assert resumed.best == whole.best and dict(whole.best.values) == {"bm": 16, "bn": 32, "bk": 4}
    deadline = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "processes of a killed tuning end by themselves"
        time.sleep(0.1)


@pytest.mark.nightly
def test_hanging_workers_end_with_their_parent(tmp_path):
    log = tmp_path / "log"
    program = f"""
        import sys
        sys.path.insert(0, {str(TESTS)!r})
        from tuning_fakes import Fake, strategy
        from tuning_fakes import square as spec
        from fireiron.tune import tune
        hang = ((("bm", 16),), "hang"),
        tune(strategy, spec, measure=Fake(hang, log={str(log)!r}), fixed={{"bm": 16}}, jobs=1, journal={str(tmp_path / "a.jsonl")!r})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    deadline = time.monotonic() + 60
    while not log.exists() or not log.read_text().endswith("\n"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    hanging = int(log.read_text().split()[3])
    while alive(hanging):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def opened(path, restart=False, **changes):
    """A journal of the fake task with its results and notes, closed again."""
    head = {**Task(strategy(spec), "sm_90").describe(), "gpu": "fake", "measure": "fake", "code": "1", "search": "random", **changes}
    journal = Journal(path, Task(strategy(spec), "sm_90"), head, restart)
    journal.close()
    return journal


def written(path):
    """A journal with three results, and its text."""
    journal = Journal(path, Task(strategy(spec), "sm_90"), {}, restart=True)
    journal.close()
    path.unlink()
    opened(path)
    with open(path, "a") as file:
        for values in ALL[:3]:
            file.write(json.dumps({"kind": "result", "status": "ok", "us": 3.5, "values": values}) + "\n")
    return path.read_bytes()


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_truncated_line_is_dropped(tmp_path, cut):
    text = written(tmp_path / "a.jsonl")
    (tmp_path / "a.jsonl").write_bytes(text[:-cut])
    journal = opened(tmp_path / "a.jsonl")
    assert journal.notes == [f"{tmp_path / 'a.jsonl'}: line 4 is incomplete, because its writer was killed, and is removed"]
    assert set(journal.results) == {0, 1}
    assert (tmp_path / "a.jsonl").read_bytes() == text[: text[:-1].rfind(b"\n") + 1]
    assert opened(tmp_path / "a.jsonl").notes == []


def test_truncated_line_is_reported(tmp_path):
    journal = tmp_path / "a.jsonl"
    whole = tuned(journal=journal, fixed={"bk": 8, "bn": 32})
    text = journal.read_bytes()
    journal.write_bytes(text[:-9])
    again = tuned(journal=journal, fixed={"bk": 8, "bn": 32})
    assert "is removed" in again.notes[0] and again.notes[0] in again.table()
    assert seen(again) == seen(whole) and again.best == whole.best
    assert journal.read_bytes() == text, "it is written anew"


def test_journal_with_a_truncated_first_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"kind": "ta')
    assert "line 1 is incomplete" in opened(path).notes[0]
    assert opened(path).notes == [] and json.loads(path.read_text())["gpu"] == "fake"


@pytest.mark.parametrize("field", ["strategy_hash", "spec", "architecture", "gpu", "measure", "fireiron", "sizes"])
def test_another_task_is_refused(tmp_path, field):
    path = tmp_path / "a.jsonl"
    text = written(path)
    with pytest.raises(StoreError, match=f"the journal of another task: its {field} is"):
        opened(path, **{field: "another"})
    assert path.read_bytes() == text, "a refused journal is left as it is"
    assert len(opened(path, search="tpe", strategy="renamed").results) == 3, "another search of the same task may use it"
    assert "begun by another version of the source code" in opened(path, code="2").notes[0]
    assert opened(path, restart=True, **{field: "another"}).results == {}


def test_another_spec_is_refused(tmp_path):
    tuned(journal=tmp_path / "a.jsonl", fixed={"bk": 8, "bn": 32, "bm": 16})
    with pytest.raises(StoreError, match="the journal of another task: its spec is"):
        tune(strategy, MatMul(64, 32, 16)(GL, GL, GL)(Kernel), measure=Fake(), journal=tmp_path / "a.jsonl", jobs=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3 of the journal: it is not JSON"),
        ("[1]", "line 3 of the journal: it is not a JSON object"),
        ('{"kind": "note"}', "line 3 of the journal: the kind 'note' is unknown"),
        ('{"kind": "result", "status": "ok"}', "line 3 of the journal"),
        ('{"kind": "result", "status": "fine", "values": {"bm": 16, "bn": 32, "bk": 8}}', "line 3 of the journal"),
        ('{"kind": "result", "status": "ok", "values": {"bm": 17, "bn": 32, "bk": 8}}', "line 3 of the journal"),
        ('{"kind": "legal", "values": 3}', "line 3 of the journal"),
    ],
)
def test_a_damaged_journal_is_refused(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    lines = written(path).decode().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[2:], ""]))
    with pytest.raises(StoreError, match=message):
        opened(path)
    assert opened(path, restart=True).results == {}
    path.write_text(line + "\n" + lines[1] + "\n")
    with pytest.raises(StoreError, match="line 1 of the journal"):
        opened(path)


def test_journal_has_one_writer(tmp_path):
    journal = tmp_path / "a.jsonl"
    reached = []

    def during(progress):
        if not reached and progress.phase == "measure":
            reached.append(progress)
            with pytest.raises(StoreError, match="another tuning is writing this journal"):
                tuned(journal=journal)

    tuned(journal=journal, fixed={"bk": 8, "bn": 32}, report=during)
    assert reached


def test_the_default_journal(tmp_path):
    first = tuned(fixed={"bk": 8, "bn": 32})
    assert first.journal.parent == tmp_path / "cache" / "tune" and first.journal.exists()
    head = json.loads(first.journal.read_text().splitlines()[0])
    head = {name: value for name, value in head.items() if name not in ("kind", "format")}
    assert run_module._default_journal(head) == first.journal
    assert run_module._default_journal({**head, "search": "tpe", "date": "2000-01-01", "strategy": "b"}) == first.journal
    for name in ("gpu", "driver", "toolchain", "strategy_hash", "spec", "architecture", "measure", "code", "fireiron"):
        assert run_module._default_journal({**head, name: "another"}) != first.journal, name


def test_an_interrupted_program_keeps_its_journal(tmp_path, capfd, monkeypatch):
    """Ctrl-C: the worker processes end, the journal is kept, and the command prints how to resume."""
    journal = tmp_path / "a.jsonl"

    def interrupt(self, progress):
        if progress.phase == "measure" and progress.done >= 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(measure_module, "OnGpu", lambda: Fake(pause=0.12))
        patched.setattr(Display, "__call__", interrupt)
        patched.setattr(
            command_module._Watch, "__call__", lambda self, progress: (setattr(self, "last", progress), interrupt(self, progress))
        )
        status = main(
            [
                "tune",
                f"{TESTS}/tuning_fakes.py:strategy",
                "-M",
                "32",
                "-N",
                "32",
                "-K",
                "16",
                "--journal",
                str(journal),
                "--prune",
                "none",
                "--jobs",
                "1",
            ]
        )
    assert status == 130
    output = capfd.readouterr().err
    done = len(results_in(journal))
    assert 3 <= done < 24 and f"interrupted (measure: {done} of 24" in output and f"continues from {journal}" in output


# ---------------------------------------------------------------------------------------------- leaving out


def surveyed(*predicted):
    return {number: Surveyed(predicted_us=us, registers=64, threads=64, shared_bytes=0) for number, us in enumerate(predicted)}


def test_prune():
    four = surveyed(10.0, 31.0, 29.0, None)
    assert set(Prune().reasons(four)) == {1}
    assert Prune().reasons(four)[1] == "predicted 31 us, 3.1 times the best prediction; the limit is 3"
    assert set(Prune(factor=None, most=1).reasons(four)) == {1, 2}
    assert Prune.of(False).reasons(four) == {}
    assert Prune.of(2.5).reasons(four).keys() == {1, 2}
    assert Prune.of(True) == Prune() == Prune.of(Prune())
    many = {0: Surveyed(predicted_us=1.0, registers=255, spilled=3), 1: Surveyed(predicted_us=9.0, registers=255)}
    assert Prune().reasons(many) == {0: "its arrays do not fit into 255 registers: about 3 would spill"}, "nor is it the measure for others"
    assert in_order(four) == [0, 2, 1, 3]
    for bad in (0.5, "3", -1):
        with pytest.raises(ArgumentError, match="a number of at least 1"):
            Prune.of(bad)
    with pytest.raises(ArgumentError, match="a positive integer"):
        Prune(most=0)


def test_pruned_candidates_are_reported(monkeypatch, tmp_path):
    """The cost model determines which candidates are compiled, in its order; each pruned candidate has a reason."""
    log = tmp_path / "log"
    predicted = {number: 28.0 - number for number in range(24)}
    monkeypatch.setattr(
        run_module, "surveys", lambda pool, task, numbers, stop: ((n, Surveyed(predicted_us=predicted[n], registers=40)) for n in numbers)
    )
    tuning = tuned(Fake(log=str(log)), prune=2.0, journal=tmp_path / "a.jsonl")
    assert [one.status for one in tuning.results] == ["pruned"] * 18 + ["ok"] * 6
    assert tuning.results[17].reason == "predicted 11 us, 2.2 times the best prediction; the limit is 2"
    assert "18 pruned" in tuning.table()
    order = [tuple(map(int, line.split()[:3])) for line in log.read_text().splitlines()[:6]]
    assert order == [tuple(values.values()) for values in ALL[:17:-1]], "the best predictions first"
    wider = tuned(prune=3.0, journal=tmp_path / "a.jsonl")
    assert [one.status for one in wider.results] == ["pruned"] * 13 + ["ok"] * 11, "a pruned one is no verdict for ever"
    best = tuned(trials=4, prune=False, journal=tmp_path / "b.jsonl")
    assert best.counts == {"ok": 4, "pruned": 20}


# ---------------------------------------------------------------------------------------------- searches


def test_random_candidates_are_distinct():
    space = Space({"a": tuple(range(10)), "b": tuple(range(30))})
    assert len(space) == 300
    assert sorted(draws(space, 1)) == list(range(300)) and list(draws(space, 1)) == list(draws(space, 1)) != list(draws(space, 2))
    large = Space({name: tuple(range(100)) for name in "abcd"})
    some = [number for number, _ in zip(draws(large, 5), range(1000), strict=False)]
    assert len(set(some)) == 1000 and max(some) > len(large) // 2


def test_space_numbers_its_combinations():
    space = Task(strategy(spec), "sm_90").space
    assert [space[number] for number in range(len(space))] == ALL
    assert [space.number(values) for values in ALL] == list(range(24))
    with pytest.raises(ValueError, match="not values of the tunables"):
        space.number({"bm": 16})


def test_random_search():
    options = {"search": "random", "trials": 5, "fixed": {"bk": 8}}
    first = tuned(seed=4, restart=True, **options)
    again = tuned(seed=4, restart=True, jobs=2, **options)
    other = tuned(seed=5, **options)
    assert len(first.results) == 5 and seen(first) == seen(again) != seen(other)
    assert first.best.source == "random search of 12 with seed 4, 5 measured"
    assert len(tuned(search="random", trials=99, fixed={"bk": 8, "bm": 16}).results) == 3, "until there are no more"


def test_exhaustive_search_of_a_huge_space_is_refused():
    huge = strategy.at(Tile, index=1).replace(Tile((Tunable("tm", *range(1, 100)), Tunable("tn", *range(1, 100)))).refined(To(Thread)))
    assert len(Task(huge(spec), "sm_90").space) > MOST_EXHAUSTIVE
    with pytest.raises(ArgumentError, match="too many for an exhaustive search"):
        tune(huge, spec, measure=Fake())


def test_tpe_needs_optuna(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ArgumentError, match=r'search="tpe" requires the package optuna'):
        tuned(search="tpe")


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna (pip install 'fireiron[tune]')")
class TestOptuna:
    def test_finds_better_candidates_than_random_search(self):
        space = Space({name: tuple(range(16)) for name in "abcd"})
        optimizer = Optimizer(space, 1)
        times = []
        for _ in range(20):
            for trial, number in optimizer.ask():
                values = space[number]
                times.append(1.0 + sum((value - 11) ** 2 for value in values.values()))
                optimizer.tell(trial, None if values["a"] == 0 else times[-1])
        chance = sorted(1.0 + sum((random.Random(7 * n + i).randrange(16) - 11) ** 2 for i in range(4)) for n in range(160))
        assert min(times) < chance[3] and sum(times[80:]) < 0.85 * sum(times[:80])

    def test_same_seed_same_search(self):
        options = {"search": "tpe", "trials": 12, "restart": True}
        first, again = tuned(seed=3, **options), tuned(seed=3, jobs=2, **options)
        assert seen(first) == seen(again) and 12 <= len(first.results) < 24
        assert "tpe search of 24 with seed 3" in first.best.source

    def test_resumes(self, tmp_path):
        options = {"search": "tpe", "trials": 14, "seed": 2}
        whole = tuned(journal=tmp_path / "whole.jsonl", **options)
        lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
        (tmp_path / "part.jsonl").write_text("".join(lines[: len(lines) // 2]))
        assert seen(tuned(journal=tmp_path / "part.jsonl", **options)) == seen(whole)

    def test_terminates(self):
        tuning = tuned(search="tpe", trials=500, fixed={"bm": 16, "bk": 8})
        assert len(tuning.results) == 3 and tuning.complete


# ---------------------------------------------------------------------------------------------- processes


def test_multiple_gpus(tmp_path):
    """One process per GPU, which sees only that GPU; each candidate goes to an idle one."""
    log = tmp_path / "log"
    tuning = tuned(Fake(log=str(log), pause=0.05, faults=((at(bm=8, bn=8, bk=4), "exit"),)), gpu_ids=[0, 3])
    assert {one.gpu for one in tuning.results if one.status == "ok"} == {0, 1} and tuning.counts == {"ok": 23, "crashed": 1}
    lines = [line.split() for line in log.read_text().splitlines()[:-5]]
    devices = {pid: {line[4] for line in lines if line[3] == pid} for pid in {line[3] for line in lines}}
    assert all(len(some) == 1 for some in devices.values()) and set().union(*devices.values()) == {"0", "3"}


def test_crash_is_attributed_to_its_candidate(tmp_path):
    tuning = tuned(CrashOnce(marker=str(tmp_path / "marker")), fixed=FEW)
    assert tuning.counts == {"ok": 5, "crashed": 1}


def test_strategies_can_be_pickled():
    for target in (
        strategy,
        strategy(spec),
        fireiron.language.library.find("small").strategy,
        fireiron.language.library.find("split_k").strategy,
    ):
        assert pickle.loads(pickle.dumps(target)) == target


USERS_FILE = """
    import attrs
    from fireiron import *

    @attrs.frozen
    class Mine(Refinement):
        \"\"\"Does nothing. Legal on all tiles. rewrite: S --> S\"\"\"
        applies_to = ("tile",)

        def plan(self, plan):
            return plan

    bm = Tunable("bm", 8, 16)
    first = MatMul.tile(bm, 8).to(Block).refine(Mine()).tile(1, 1).to(Thread).split(1).tile(1, 1).done()
    second = first
"""


def test_classes_of_strategy_files_can_be_pickled(tmp_path):
    """Other processes can load classes that a strategy file defines."""
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(USERS_FILE))
    strategy = fireiron.language.library.find(f"{path}:first").strategy
    tuning = tune(strategy, MatMul(16, 16, 16)(GL, GL, GL)(Kernel), measure=Fake(), jobs=1, fixed={}, finalists=1, report=None, prune=False)
    assert tuning.counts == {"failed": 2}, "the fake's time needs bn"
    assert "KeyError" in tuning.results[0].reason and "its process" not in tuning.results[0].reason


def test_unpicklable_strategies_are_refused():
    @attrs.frozen
    class Local(Fake):
        pass

    with pytest.raises(ArgumentError, match="cannot be sent to another process"):
        tuned(Local())


def test_classes_of_main_are_refused(tmp_path):
    program = f"""
        import sys
        sys.path.insert(0, {str(TESTS)!r})
        from tuning_fakes import *
        from fireiron.tune import tune
        class Own(Fake): pass
        tune(strategy, square, measure=Own())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert "uses a class of the main program" in done.stderr and done.returncode == 1


@pytest.mark.nightly
def test_program_without_a_main_guard(tmp_path):
    """No `if __name__ == "__main__"` is needed: workers never execute the program again."""
    path = tmp_path / "program.py"
    path.write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nprint('once')\nfrom tuning_fakes import *\nfrom fireiron.tune import tune\n"
        "print(dict(tune(strategy, square, measure=Fake(), jobs=1, fixed={'bn': 32, 'bk': 8}).best.values))\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.stdout == f"once\n{BEST}\n", done.stderr


def test_worker_pool_replaces_dead_workers():
    task = Task(strategy(spec), "sm_90")
    with WorkerPool(packed(task, Fake(((at(bm=8), "hang"),))), {MEASURE: ["5"]}) as pool:
        assert pool.where() == [{"gpu": "fake", "driver": "1.0", "toolchain": "none", "newest": None}]
        before = pool.roles[MEASURE][0].process.pid
        pool.give(MEASURE, "a", "measure", (ALL[0], Built(text=""), None), 0.5)
        outcomes = []
        while not outcomes:
            outcomes = pool.outcomes(5.0)
        assert (outcomes[0].key, outcomes[0].kind) == ("a", "late")
        assert pool.where() and pool.roles[MEASURE][0].process.pid != before and not alive(before)
        assert pool.roles[MEASURE][0].setup[1] == "5", "the new one sees the GPU of the one that died"


# ---------------------------------------------------------------------------------------------- executors


FAULTS = ((at(bm=8), "exit"), (at(bm=12), "hang"), (at(bm=32, bk=4), "wrong"))
SMALL = {"bn": 32}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of local worker processes, for comparison with all executors."""
    journal = tmp_path_factory.mktemp("alone") / "b.jsonl"
    return tuned(Turned(FAULTS), timeout=0.5, fixed=SMALL, journal=journal, arch="sm_90")


def check_executor(executor, tmp_path, alone):
    tuning = tuned(Turned(FAULTS), executor=executor, timeout=0.5, fixed=SMALL, journal=tmp_path / "a.jsonl", arch="sm_90")
    assert seen(tuning) == seen(alone) and len(tuning.results) == 8
    assert tuning.counts == {"ok": 3, "wrong": 1, "crashed": 2, "hung": 2}
    assert tuning.best == alone.best and tuning.library_us == 9.5
    assert all(one.text for one in tuning.results if one.status == "ok")


def test_an_executor_measures_a_candidate():
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        tuning = tuned(Turned(), executor=executor, fixed=BEST, arch="sm_90")
    assert tuning.counts == {"ok": 1} and dict(tuning.best.values) == BEST and tuning.library_us == 9.5
    assert tuning.results[0].text


def test_threads(tmp_path, monkeypatch, alone):
    monkeypatch.setattr(bench_module, "BUILD_SECONDS", 1.5)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        check_executor(executor, tmp_path, alone)


@pytest.mark.nightly
def test_processes(tmp_path, monkeypatch, alone):
    import multiprocessing

    monkeypatch.setattr(bench_module, "BUILD_SECONDS", 1.5)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        check_executor(executor, tmp_path, alone)


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask (pip install 'fireiron[distributed]')")
def test_dask(tmp_path, monkeypatch, alone):
    import distributed

    monkeypatch.setattr(bench_module, "BUILD_SECONDS", 1.5)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None, "local_directory": str(tmp_path)}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        check_executor(client.get_executor(), tmp_path, alone)


def test_an_executor_that_is_shut_down():
    executor = concurrent.futures.ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(LaunchError, match="the executor does not accept jobs"):
        tuned(executor=executor)


# ---------------------------------------------------------------------------------------------- one candidate


def test_survey_and_build():
    task = Task(strategy(spec), "sm_90")
    candidates = survey(task, BEST)
    assert (
        candidates.reason is None
        and candidates.threads == 32
        and candidates.shared_bytes == 1536
        and candidates.registers >= 24
        and candidates.predicted_us > 0
    )
    assert Surveyed.of(json.loads(json.dumps(candidates.plain()))) == candidates
    kernel = build(task, BEST, None, compiles=False)
    assert kernel.compiled is None and len(kernel.text) == 16 and kernel.text == build(task, BEST, None, compiles=False).text
    assert kernel.text != build(task, ALL[0], None, compiles=False).text


def test_machine_code_is_reused(monkeypatch):
    """A candidate's kernel uses the code that another process compiled."""
    task = Task(strategy(spec), "sm_90")
    built = build(task, BEST, None, compiles=True)
    assert built.registers > 0 and built.spills == 0 and built.seconds > 0
    monkeypatch.setattr("fireiron.gpu.cache.compile_cached", lambda *_, **__: pytest.fail("compiled again"))
    monkeypatch.setattr("fireiron.gpu.toolchain.compile_cuda", lambda *_, **__: pytest.fail("compiled again"))
    kernel = Candidate(task, BEST, pickle.loads(pickle.dumps(built))).kernel
    assert kernel.compiled.cubin == built.compiled.cubin and kernel.compiled.cubin[:4] == b"\x7fELF"
    assert kernel.resources.registers == built.registers


def test_compiled_in_parallel(tmp_path):
    tuning = tuned(Compiling(), jobs=2, fixed={"bn": 32, "bk": 8})
    assert dict(tuning.best.values) == BEST and tuning.counts == {"ok": 4}
    assert all(one.registers > 0 and one.compile_seconds > 0 for one in tuning.results)
    assert tuning.best.registers > 0 and list((tmp_path / "cache").rglob("*.kernel")), "through the cache on disk"


def test_compiler_errors_and_crashes():
    """A compile error is a result, and so is a compiler whose process ends."""
    text = MatMul.tile(Tunable("bm", 8, 16), 8).to(Block).done(MicroKernel.of("not a CUDA", threads=32))
    tuning = tune(text, spec, measure=Compiling(), jobs=1, prune=False)
    assert tuning.counts == {"compile failed": 2} and tuning.best is None
    assert "no candidate was verified and timed" in tuning.table()


@attrs.frozen
class DyingPrinter(Refinement):
    """Ends the process that lowers. Legal on tiles. rewrite: S --> S"""

    applies_to = ("tile",)
    amount: int = 1

    def plan(self, plan):
        if self.amount == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.amount == 3:
            raise ZeroDivisionError("a defect of a refinement")
        return plan


def test_crash_while_lowering():
    dying = MatMul.tile(8, 8).to(Block).refine(DyingPrinter(Tunable("n", 1, 2, 3))).tile(1, 1).to(Thread).split(1).tile(1, 1).done()
    tuning = tune(dying, spec, measure=Constant(), jobs=1, prune=False)
    assert [one.status for one in tuning.results] == ["ok", "failed", "failed"]
    assert tuning.results[1].reason == "lowering: its process ended by SIGKILL"
    assert tuning.results[2].reason == "lowering: ZeroDivisionError: a defect of a refinement"


@attrs.frozen
class Constant(Measure):
    """Each candidate takes a microsecond."""

    def measure(self, candidate):
        return Measured(us=1.0, quartiles=(1.0, 1.0), error=0.0)


def test_run_time_sizes():
    symbolic = MatMul(sym("M"), 32, 16)(GL, GL, GL)(Kernel)
    with pytest.raises(ArgumentError, match="tuning requires values of the run-time sizes M"):
        tune(strategy, symbolic, measure=Fake())
    with pytest.raises(ArgumentError, match="no such run-time size"):
        tune(strategy, symbolic, measure=Fake(), sizes={"Q": 3})
    tuning = tune(strategy, symbolic, measure=Fake(), sizes={"M": 100}, jobs=1, fixed={"bn": 32, "bk": 8})
    assert tuning.best.tflops == pytest.approx(2 * 100 * 32 * 16 / tuning.best.us / 1e6)
    assert tuning.best.extra["sizes"] == {"M": 100}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "grid"}, "the search is unknown"),
        ({"trials": 0}, "trials must be an integer"),
        ({"seconds": -1}, "seconds must be a positive number"),
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"gpu_ids": [0, 0]}, "different GPU numbers"),
        ({"gpu_ids": []}, "different GPU numbers"),
        ({"gpu_ids": [0], "executor": concurrent.futures.ThreadPoolExecutor(1)}, "exclude each other"),
        ({"executor": 3}, "executor must be an executor"),
        ({"prune": "all"}, "a number of at least 1"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        tuned(**options)


def test_wrong_strategies():
    with pytest.raises(ArgumentError, match="strategy must be a Strategy"):
        tune(3, spec, measure=Fake())
    with pytest.raises(ArgumentError, match="not bound"):
        tune(strategy, measure=Fake())
    with pytest.raises(ArgumentError, match="measure must be a measurement"):
        tune(strategy, spec, measure=3)


@pytest.mark.skipif(launch.gpu_available(), reason="there is a GPU")
def test_no_gpu(capsys):
    with pytest.raises(LaunchError, match="CuPy"):
        tune(strategy, spec)
    assert main(["tune", "gemm_nn", "-M", "64"]) == 2
    assert "--predict" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- showing


def test_results_round_trip_as_json():
    result = Result(values=BEST, status="ok", us=3.0, quartiles=(2.0, 4.0), clocks=(1980, 1900), text="ab")
    assert Result.of(json.loads(json.dumps(result.plain()))) == result
    assert hash(result) == hash(Result.of(result.plain()))
    with pytest.raises(StoreError, match="is not a result of tuning"):
        Result.of({"values": BEST, "status": "good"})
    two = Result(values=BEST, status="ok", us=1.0)
    final = Result(values=BEST, status="ok", us=2.0, final_us=5.0)
    assert ranked([result, two, final]) == (final, two, result), "finalists stand before the rest"


def test_failures_are_grouped():
    bad = [Result(values={"n": n}, status="wrong", reason=f"element [{n}, 0] is {n}.5") for n in range(3)]
    bad.append(Result(values={"n": 9}, status="wrong", reason="another"))
    groups = failures(bad)["wrong"]
    assert [len(group) for group in groups.values()] == [3, 1]


class Stream:
    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.mark.parametrize("rich", [True, False])
def test_progress(rich, monkeypatch):
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    best = Result(values=BEST, status="ok", us=12.345)
    state = Progress(phase="measure", done=3, total=20, best=best, failures={"wrong": 2}, seconds=1.0, remaining=200.0)
    assert str(state) == "measure: 3 of 20, best 12.35 us (bm=16 bn=32 bk=8), 2 wrong, about 3 min left"
    for terminal in (False, True):
        stream = Stream(terminal)
        display = Display(stream)
        display(state)
        display(attrs.evolve(state, done=4))
        display(attrs.evolve(state, phase="final"))
        if terminal:
            time.sleep(0.3)
        display.close()
        if not terminal:
            assert stream.text == f"{state}\n{attrs.evolve(state, phase='final')}\n", "a line every few seconds, and one for a new phase"
        elif not rich:
            assert stream.text.startswith(f"\r\x1b[K{state}") and stream.text.endswith("\r\x1b[K")


def command(monkeypatch, *arguments):
    monkeypatch.setattr(measure_module, "OnGpu", Fake)
    return main(
        ["tune", f"{TESTS}/tuning_fakes.py:strategy", "-M", "32", "-N", "32", "-K", "16", "--jobs", "1", "--prune", "none", *arguments]
    )


def test_command(monkeypatch, capsys, tmp_path):
    records = tmp_path / "records.jsonl"
    assert command(monkeypatch, "--set", "bk=8", "--journal", str(tmp_path / "a.jsonl"), "--save", str(records)) == 0
    output = capsys.readouterr()
    assert "best: --set bm=16 --set bn=32 --set bk=8" in output.out and f"journal: {tmp_path / 'a.jsonl'}" in output.out
    assert "final us" in output.out and "measure: " in output.err
    (record,) = Records.load(records).records
    assert dict(record.values) == BEST and record.strategy.endswith("tuning_fakes.py:strategy")
    assert command(monkeypatch, "--set", "bk=8", "--journal", str(tmp_path / "a.jsonl"), "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["best"]["values"] == BEST and plain["counts"] == {"ok": 12} and len(plain["results"]) == 12 and plain["complete"]


def test_command_on_a_spec_that_is_not_recorded(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(measure_module, "OnGpu", Fake)
    arguments = ["tune", f"{TESTS}/tuning_fakes.py:many_outputs", "--set", "bn=32", "--jobs", "1", "--prune", "none"]
    arguments += ["--journal", str(tmp_path / "a.jsonl")]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert (
        "best: --set bm=16 --set bn=32" in output and "the best candidate cannot be recorded: a record cannot describe this spec" in output
    )
    assert main([*arguments, "--save", str(tmp_path / "records.jsonl")]) == 2
    assert "a record cannot describe this spec" in capsys.readouterr().err and not (tmp_path / "records.jsonl").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arguments", [["--gpus", "a"], ["--prune", "0.5"], ["--prune", "some"], ["--seconds", "0"], ["--search", "grid"]])
def test_wrong_options(arguments, monkeypatch, capsys):
    assert command(monkeypatch, *arguments) == 2 and arguments[0] in capsys.readouterr().err


def test_command_refuses(monkeypatch, capsys):
    assert command(monkeypatch, "--set", "bm=7") == 2
    assert "not among its values" in capsys.readouterr().err
    assert command(monkeypatch, "--predict", "--save", "x.jsonl") == 2
    assert "measures nothing" in capsys.readouterr().err
    assert command(monkeypatch, "--predict", "--seed", "20", "--search", "random") == 2
    assert "--search, --seed would have no effect" in capsys.readouterr().err


def test_no_candidate_survives(monkeypatch, capsys):
    monkeypatch.setattr(measure_module, "OnGpu", lambda: Fake(((at(bk=8), "wrong"),)))
    arguments = [
        "tune",
        f"{TESTS}/tuning_fakes.py:strategy",
        "-M",
        "32",
        "-N",
        "32",
        "-K",
        "16",
        "--set",
        "bk=8",
        "--set",
        "bm=8",
        "--jobs",
        "1",
    ]
    assert main(arguments) == 1
    assert "no candidate was verified and timed" in capsys.readouterr().out


def test_lazy():
    program = "import sys, fireiron; print(any(name in sys.modules for name in ('fireiron.tune.run', 'optuna', 'distributed', 'multiprocessing')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    assert fireiron.tune is tune and not hasattr(sys.modules["fireiron.tune"], "nothing")
    assert OnGpu().compiles and repr(OnGpu()) == OnGpu().identity()
    assert tuning_fakes.Fake().devices([0, 2]) == ("0", "2")


# ---------------------------------------------------------------------------------------------- predictions


def test_rank():
    tuning = rank(strategy, spec, fixed={"bk": 8, "bn": 32}, jobs=1)
    assert tuning.counts == {"predicted": 4} and tuning.best is None and tuning.journal is None
    assert all(one.predicted_us > 0 and one.us is None for one in tuning.results)
    assert [one.predicted_us for one in tuning.ranking] == sorted(one.predicted_us for one in tuning.results)
    assert tuning.table().startswith("predicted by the cost model; nothing was measured") and "final us" not in tuning.table()


def test_predict_command(monkeypatch, capsys):
    assert command(monkeypatch, "--predict", "--set", "bk=8", "--set", "bn=32") == 0
    output = capsys.readouterr().out
    assert "nothing was measured" in output and "best:" not in output and "journal" not in output
    assert command(monkeypatch, "--predict", "--set", "bk=8", "--set", "bn=32", "--json") == 0
    assert json.loads(capsys.readouterr().out)["best"] is None


def test_slow_predictions_are_pruned(tmp_path):
    """Candidates with slow predictions are neither compiled nor measured; the rest follow in the order of predictions."""
    log = tmp_path / "log"
    tuning = tuned(Fake(log=str(log)), prune=Prune(factor=None, most=3), fixed={"bk": 8})
    order = rank(strategy, spec, fixed={"bk": 8}, jobs=1).ranking[:3]
    assert tuning.counts == {"ok": 3, "pruned": 9}
    measured = [tuple(map(int, line.split()[:3])) for line in log.read_text().splitlines()[:3]]
    assert measured == [tuple(one.values.values()) for one in order]
    assert all("not among the best 3 predictions" in one.reason for one in tuning.results if one.status == "pruned")


# ---------------------------------------------------------------------------------------------- the GPU's measurement, on fakes


class Runtime:
    """The functions of CuPy's runtime that the measurement calls; `dead` after an illegal address."""

    def __init__(self):
        self.dead = False

    def deviceSynchronize(self):
        if self.dead:
            raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    def getDeviceCount(self):
        return 2

    def getDeviceProperties(self, number):
        return {"uuid": bytes(range(16 * number, 16 * number + 16))}


@attrs.frozen
class FakeTiming:
    us: float
    quartiles: tuple[float, float]
    regime: str = "burst"
    l2: str = "rotated"
    clocks: tuple[int, int] = (1980, 1975)


class FakeData:
    """Data whose calls are their names: `bad` is wrong, `dead` loses the GPU, `torch` is the library."""

    def __init__(self, spec, runtime):
        self.spec, self.runtime = spec, runtime
        self.initials, self.references, self.sets = {}, {"C": None}, ({"C": {}},)

    def calls(self, contender):
        return ("library",) if callable(contender) else (contender,)

    def tolerance_for(self, contender):
        return None

    def verify(self, call, tolerance=None):
        if callable(call):
            call()
            assert ... in self.sets[0]["C"], "what is right is written, and accepted, before the first candidate"
        if call == "bad":
            raise WrongResultError("C is wrong")
        if call == "refused":
            raise LaunchError("too many threads")
        if call == "dead":
            self.runtime.dead = True
            raise LaunchError("the driver refuses to launch")
        return 1e-4


@attrs.frozen
class Named:
    kernel: str


@pytest.fixture
def gauge(monkeypatch):
    from types import SimpleNamespace

    from fireiron.measure import data, timing

    runtime = Runtime()
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(launch, "require_cupy", lambda: cupy)
    monkeypatch.setattr(launch, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    monkeypatch.setattr(data.Data, "of", staticmethod(lambda spec, sizes, seed: FakeData(spec, runtime)))
    requests = []

    def measured(contenders, rounds):
        requests.append((tuple(contenders), rounds))
        return {name: FakeTiming(10.0 + len(calls[0]), (9.0, 12.0)) for name, calls in contenders.items()}

    monkeypatch.setattr(timing, "measure", measured)
    monkeypatch.setattr(timing, "environment", lambda: {"gpu": "NVIDIA H200", "driver": "580.1"})
    gauge = OnGpu(rounds=3, final_rounds=7).start(Task(strategy(spec), "sm_90"))
    return SimpleNamespace(gauge=gauge, asked=requests, runtime=runtime)


def test_on_gpu_one(gauge):
    assert gauge.gauge.measure(Named("good")) == Measured(
        us=14.0, quartiles=(9.0, 12.0), error=1e-4, regime="burst", l2="rotated", clocks=(1980, 1975)
    )
    assert gauge.asked == [(("candidate",), 3)]
    with pytest.raises(WrongResultError):
        gauge.gauge.measure(Named("bad"))
    with pytest.raises(LaunchError, match="too many threads"):
        gauge.gauge.measure(Named("refused"))
    with pytest.raises(measure_module.GpuLostError, match="illegal memory access"):
        gauge.gauge.measure(Named("dead"))
    assert len(gauge.asked) == 1, "what is wrong is not timed"


def test_on_gpu_together(gauge):
    results = gauge.gauge.together([Named("good"), Named("bad"), Named("better")])
    assert [one.us for one in results.measured] == [14.0, None, 16.0] and results.measured[1].reason == "C is wrong"
    assert results.library_us == 17.0 and gauge.asked == [(("0", "2", "library"), 7)]
    with pytest.raises(measure_module.GpuLostError):
        gauge.gauge.together([Named("good"), Named("dead")])


def test_on_gpu_without_a_library(gauge, monkeypatch):
    monkeypatch.setattr(FakeData, "verify", lambda self, call, tolerance=None: 1e-4 if call != "library" else suffer_wrong())
    assert gauge.gauge.together([Named("good")]).library_us is None
    gauge.gauge.data.initials = {"C": 1.0}
    assert gauge.gauge._library() is None


def suffer_wrong():
    raise WrongResultError("C is wrong")


def test_on_gpu_with_several_outputs(monkeypatch):
    """The expected value is written to each output before the first candidate; a candidate that omits an output is wrong."""
    cupy = stand_in(Clock())
    cupy.cuda.runtime.deviceSynchronize = lambda: None
    monkeypatch.setattr(launch, "require_cupy", lambda: cupy)
    monkeypatch.setattr("fireiron.measure.data.MAX_SETS", 3)
    monkeypatch.setattr(
        "fireiron.measure.timing.measure", lambda contenders, rounds: {name: FakeTiming(10.0, (9.0, 12.0)) for name in contenders}
    )
    bound = outputs.by_elements(outputs.cross(20, 30))
    gauge = OnGpu().start(Task(bound, "sm_90"))
    right = dict(zip(bound.spec.outputs, bound.spec.reference(gauge.data.sets[0]["a"], gauge.data.sets[0]["b"]), strict=True))
    for name, expected in right.items():
        np.testing.assert_array_equal(gauge.data.sets[0][name], expected)

    def writing(*names):
        def launches(arrays):
            return lambda: [arrays[name].__setitem__(..., right[name]) for name in names]

        return Named(launches)

    assert gauge.measure(writing(*right)).us == 10.0
    for left_out in right:
        with pytest.raises(WrongResultError, match=f"^{left_out} is wrong"):
            gauge.measure(writing(*(name for name in right if name != left_out)))


def test_on_gpu_places(gauge):
    where = dict(gauge.gauge.where())
    assert (
        where["gpu"] == "NVIDIA H200"
        and where["driver"] == "580.1"
        and where["newest"] == [13, 0]
        and where["toolchain"].startswith("NVRTC 1")
    )
    assert OnGpu().architecture() == "sm_90a"
    assert OnGpu().devices([1]) == ("GPU-10111213-1415-1617-1819-1a1b1c1d1e1f",)
    with pytest.raises(ArgumentError, match="there is no GPU 2"):
        OnGpu().devices([0, 2])
