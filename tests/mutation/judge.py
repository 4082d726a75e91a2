"""Judge a mutant: by kernels that run its line, tests that do or the files nearest to its module, wider tests, and digests of texts."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from mutation import battery, keeping, printing, zygote
from mutation.covering import FOLDER, Covering, nearest
from mutation.operators import ROOT, Mutant, modules, source

BATTERY = FOLDER / "battery.json"
EQUIVALENT = Path(__file__).parent / "equivalent.json"
MOST_KERNELS = 16
"""The maximum number of kernels to try among those that run the line."""

FOR_ALL = {
    "tests/test_contracts.py",
    "tests/test_documents.py",
    "tests/test_mutants.py",
    "tests/test_campaign.py",
}
"""Test files that are near no module."""

WIDE = (
    "tests/test_limits.py",
    "tests/test_choices.py",
    "tests/test_verbs_together.py",
    "tests/test_register_ownership.py",
    "tests/test_bad_inputs.py",
    "tests/test_regressions.py",
    "tests/test_inspect.py",
    "tests/test_fused_refusals.py",
    "tests/test_fused_corner_cases.py",
)
"""Tried if no nearer test kills the mutant: files about the whole compiler, each of which takes some seconds."""

DIGESTS = "tests/test_texts.py"
"""Detects nearly every changed text, but not whether it is wrong."""

CORPUS = "tests/test_corpus.py"
"""The same for four thousand stored strategies and their refusals: those that run the function are tried."""

PERTURBED = "tests/test_perturbed.py"
"""The same for kernels changed between two passes; tried together with the corpus."""

DRAWN = "tests/test_drawn_ir.py"
"""The same for random IR, which is used for the printer only."""

CORPUS_SECONDS = 240.0
"""Processor time for all tries, the quickest first."""

MOST_PRINTED = 40
"""The number of kernels to print among those that run the line; they are already lowered, so each takes milliseconds."""

MORE_THAN_TEXT = ("sim/", "check/", "ir/", "executable/", "performing/", "specs/", "values/")
"""Modules that decide more than the text of a kernel: if they change, an unchanged text proves nothing."""


@attrs.frozen
class Verdict:
    """The verdict on a mutant: killed `by` a detector, survived, or `equivalent` for a reason."""

    mutant: Mutant
    by: str
    what: str = ""
    changed: bool = False
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether a detector killed the mutant."""
        return self.by not in ("", "equivalent", "not one")

    @property
    def detector(self) -> str:
        """The detector, in a word or two."""
        return self.by.partition(":")[0] if self.by else "nobody"


@functools.cache
def equivalents() -> dict[str, str]:
    """The reasons why no test can kill some mutants, by mutant name."""
    if not EQUIVALENT.is_file():
        return {}
    return {name: reason for reason, names in json.loads(EQUIVALENT.read_text(encoding="utf-8")).items() for name in names}


def asserted(mutant: Mutant) -> str:
    """Why no test can detect a missing `strict=True`: it asserts that two lists have equal lengths, and assertions are not mutated."""
    dropped = mutant.operator == "keyword dropped" and mutant.old.count("strict=True") == mutant.new.count("strict=True") + 1
    before = source(mutant.module).encode()[: mutant.start].decode()
    negated = mutant.operator == "constant" and mutant.old == "True" and before.endswith("strict=")
    return "strict=True is an assertion" if dropped or negated else ""


def judge(mutant: Mutant, budget: float = 40.0, without: tuple[str, ...] = ()) -> Verdict:
    """The verdict on a mutant; kernels have the given seconds of processor time, tests twice as many; some test files may be left out."""
    if not mutant.is_one():
        return Verdict(mutant, "not one")
    if reason := equivalents().get(mutant.name) or asserted(mutant):
        return Verdict(mutant, "equivalent", reason)
    tests = [one for one in _tests(mutant, budget) if one.partition("::")[0] not in without]
    if mutant.module.startswith(printing.FOLDER):
        return _judge_of_text(
            mutant, tests if DIGESTS in without else [DIGESTS, *(one for one in tests if not one.startswith(DIGESTS))], budget, without
        )
    kernels = _kernels(mutant)
    request = {
        "module": mutant.module, "text": mutant.source(), "seconds": budget, "kernels": kernels, "always": mutant.module.startswith(MORE_THAN_TEXT)
    }  # fmt: skip
    if not mutant.inside:
        return _verdict(mutant, [fresh({**request, "tests": _all_tests(tests, without)})])
    of_kernels = zygote_of(mutant.module).ask(request)
    if of_kernels["by"] == "no place":
        return _verdict(mutant, [of_kernels, fresh({**request, "tests": _all_tests(tests, without)})])
    answers = [of_kernels]
    del request["kernels"]
    for some in (tests, [one for one in WIDE if one not in (*tests, *without)], [] if DIGESTS in without else [DIGESTS]):
        if answers[-1]["by"]:
            break
        answers.append(_asked_tests(mutant.module, {**request, "tests": some, "enough": 2 * budget, "seconds": 2 * budget + 60}))
    if not answers[-1]["by"] and CORPUS not in without:
        answers.append(_asked_corpus(mutant))
    return _verdict(mutant, answers)


def _all_tests(tests: list[str], without: tuple[str, ...]) -> list[str]:
    """The tests to run, in order, in a process that imports the change."""
    return [one for one in dict.fromkeys([*tests, *WIDE, DIGESTS, CORPUS, PERTURBED]) if one not in without]


def _asked_corpus(mutant: Mutant) -> dict[str, Any]:
    numbers = kept().of(mutant.module, mutant.where)
    request = {"module": mutant.module, "text": mutant.source(), "kept": numbers, "enough": CORPUS_SECONDS, "seconds": CORPUS_SECONDS + 60}
    return zygote_of(mutant.module).ask(request)


FAILING: set[str] = set()
"""Tests that fail in such a process without any change: they kill no mutant."""

PASSING: set[str] = set()
"""Tests that do not fail."""


def _asked_tests(module: str, request: dict[str, Any]) -> dict[str, Any]:
    return asked_tests(zygote_of(module).ask, request)


def asked_tests(ask: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    """The result of the tests for a change; tests that also fail without it are not run again."""
    while True:
        answer = ask({**request, "without": sorted(FAILING)})
        if answer["by"] != "tests":
            return answer
        test = answer["what"]
        if test not in PASSING:
            alone = ask({**request, "text": None, "tests": [test], "without": []})
            (FAILING if alone["by"] else PASSING).add(test)
        if test in PASSING:
            return answer


def _judge_of_text(mutant: Mutant, tests: list[str], budget: float, without: tuple[str, ...]) -> Verdict:
    """The verdict on a mutant of the printer: the digests of texts, the results of the battery's texts, then the other tests."""
    request: dict[str, Any] = {"module": mutant.module, "text": mutant.source(), "seconds": budget + 60, "enough": budget}
    if not mutant.inside:
        return _verdict(mutant, [fresh({**request, "kernels": _kernels(mutant)[:3], "always": False, "tests": _all_tests(tests, without)})])
    questions: list[dict[str, Any]] = [
        {"tests": [one for one in tests if one.startswith(DIGESTS)]},
        {"printed": _kernels(mutant, MOST_PRINTED)},
        {"tests": [one for one in tests if not one.startswith(DIGESTS)]},
    ]
    answers: list[dict[str, Any]] = []
    for question in questions:
        ask = zygote_of(mutant.module).ask if "printed" in question else functools.partial(_asked_tests, mutant.module)
        answers.append(ask({**request, **question}))
        if answers[-1]["by"] == "no place":
            return _verdict(
                mutant, [fresh({**request, "kernels": _kernels(mutant)[:3], "always": False, "tests": _all_tests(tests, without)})]
            )
        if answers[-1]["by"]:
            break
    if not answers[-1]["by"] and CORPUS not in without:
        answers.append(_asked_corpus(mutant))
    return _verdict(mutant, answers)


def _verdict(mutant: Mutant, answers: list[dict[str, Any]]) -> Verdict:
    last = answers[-1]
    changed = any(one.get("changed", False) for one in answers)
    by = last["by"]
    if by == "tests":
        file, _, name = last["what"].partition("::")
        who = (
            "digests" if file in (DIGESTS, CORPUS, PERTURBED, DRAWN) else "tests" if file in nearest(mutant.module) else "tests further off"
        )
        by, what = f"{who}: {file.removeprefix('tests/')}", name
    else:
        what = next((one["what"] for one in answers[::-1] if one.get("what")), "")
    return Verdict(mutant, by, what, changed, sum(one.get("seconds", 0.0) for one in answers))


def _kernels(mutant: Mutant, most: int = MOST_KERNELS) -> list[str]:
    """Kernels that run the line: the cheapest ones, then some of all others, since the cheap ones are similar."""
    runners = sorted((one for one in kernels() if mutant.line in one.lines.get(mutant.module, ())), key=lambda one: one.seconds)
    cheap, others = runners[: most // 2], runners[most // 2 :]
    step = -(-len(others) // (most // 2)) or 1
    return [one.name for one in (*cheap, *others[::step])]


def _tests(mutant: Mutant, budget: float) -> list[str]:
    """Tests that run the line: of the nearest files first, short ones first; then all of the nearest files."""
    near, files = nearest(mutant.module), set(collected(mutant.module))
    by_nearness = sorted(covering().of(mutant.module, mutant.line), key=lambda one: (one[0].partition("::")[0] not in near, one[1]))
    chosen, left = [], budget / 2
    for name, seconds in by_nearness:
        if seconds <= left and name.partition("::")[0] in files:
            chosen.append(name)
            left -= seconds
    return [*chosen, *near]  # for a line that many tests run, not all are listed


@functools.cache
def covering() -> Covering:
    """The tests that run each line."""
    return Covering.load()


@functools.cache
def kept() -> keeping.Kept:
    """The corpus strategies that run each function, traced if unknown for the present sources."""
    file = FOLDER / f"kept-{battery.source()}.json"
    if not file.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        keeping.Kept.traced().save(temporary)
        temporary.replace(file)
    return keeping.Kept.load(file)


@functools.cache
def collected(module: str) -> tuple[str, ...]:
    """The test files to use for a module."""
    folder = module.partition("/")[0]
    files = dict.fromkeys(file for one in modules(folder) for file in nearest(one))
    files |= dict.fromkeys(file for one in modules(folder) for file in covering().files(one))
    return tuple(sorted(file for file in {*files, *WIDE, DIGESTS, CORPUS} - FOR_ALL if (ROOT / file).is_file()))


@functools.cache
def kernels() -> list[battery.Item]:
    """The battery."""
    return battery.load(_battery())


@functools.cache
def _battery() -> Path:
    """The file of the battery, created if missing for the present sources."""
    file = BATTERY.with_stem(f"battery-{battery.source()}")
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        battery.save(battery.built(), temporary)
        temporary.replace(file)
    return file


# ---------------------------------------------------------------------------------------------- processes


@attrs.define
class Zygote:
    """A process that waits for requests (`zygote`), restarted if it dies. A bare one prepares no kernels."""

    files: tuple[str, ...]
    prints: bool = False
    bare: bool = False
    process: subprocess.Popen[bytes] | None = None
    lines: Any = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its answer."""
        for _ in range(2):
            if self.process is None or self.process.poll() is not None:
                self._begin()
            try:
                self.lines.write(json.dumps(request) + "\n")
                self.lines.flush()
                if line := self.lines.readline():
                    return dict(json.loads(line))
            except BrokenPipeError:
                pass
            except BaseException:  # its answer would be taken for that of the next request
                self.stop()
                raise
            self.stop()
        raise RuntimeError(f"the process of {self.files} dies; see {FOLDER / 'zygote.log'}")

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.lines.close()
            self.process.kill()
            self.process.wait()
            self.process = None

    def _begin(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        ours, child_end = socket.socketpair()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-s",
            "-p",
            "mutation.zygote",
            "-p",
            "no:cacheprovider",
            *zygote.ASKED,
            *self.files,
        ]
        environment = {**_environment(self.bare), zygote.SOCKET: str(child_end.fileno())} | ({zygote.PRINTED: "1"} if self.prints else {})
        with (FOLDER / "zygote.log").open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=(child_end.fileno(),),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        child_end.close()
        self.lines = ours.makefile("rw", encoding="utf-8")
        ours.close()
        if not self.lines.readline():
            raise RuntimeError(f"pytest does not collect {self.files}: see {FOLDER / 'zygote.log'}")


MOST_PROCESSES = 3
ZYGOTES: dict[tuple[str, ...], Zygote] = {}


def zygote_of(module: str) -> Zygote:
    """The process for a module; modules with the same tests share it."""
    files = collected(module)
    if files not in ZYGOTES:
        if len(ZYGOTES) == MOST_PROCESSES:
            ZYGOTES.pop(next(iter(ZYGOTES))).stop()
        ZYGOTES[files] = Zygote(files, module.startswith(printing.FOLDER))
    return ZYGOTES[files]


def _environment(bare: bool = False) -> dict[str, str]:
    """The environment of such a process; unless it is bare, with the battery, which is created if missing."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FIREIRON_", "PYTEST_", "MUTATION_"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    own |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "FIREIRON_CACHE_DIR": str(FOLDER / "cache")}
    return own if bare else own | {zygote.KERNELS: str(_battery())}


def fresh(asked: dict[str, Any], bare: bool = False) -> dict[str, Any]:
    """The answer of a process that imports the change; all its tests share the given seconds, and a process that takes much longer is
    killed.
    """
    asked = {**asked, "enough": asked["seconds"] + CORPUS_SECONDS}
    hanging = asked["enough"] + 120
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "request.json"
        request.write_text(json.dumps(asked), encoding="utf-8")
        before = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "mutation.fresh"], cwd=ROOT, env={**_environment(bare), zygote.FRESH: str(request)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=functools.partial(zygote.limit, hanging),
        )  # fmt: skip
        try:
            stdout, _ = process.communicate(timeout=10 * hanging)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"by": "time", "seconds": time.monotonic() - before}
    lines = stdout.strip().splitlines()
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"by": "time", "seconds": hanging}
    try:
        return {**json.loads(lines[-1]), "seconds": time.monotonic() - before}
    except (IndexError, ValueError):
        return {"by": "crash: process", "what": f"exit {process.returncode}", "seconds": time.monotonic() - before}


def summary(verdicts: Iterable[Verdict]) -> tuple[int, int, int]:
    """The numbers of judged, killed and equivalent mutants."""
    judged = [one for one in verdicts if one.by != "not one"]
    return len(judged), sum(one.killed for one in judged), sum(one.by == "equivalent" for one in judged)
