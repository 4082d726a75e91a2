"""Who notices a mutant: kernels that run its line; tests that do, or the files nearest to its module; wider ones; digests of texts."""

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
"""Kernels that are asked of those which run the line."""

FOR_ALL = {
    "tests/test_contracts.py",
    "tests/test_documents.py",
    "tests/test_mutants.py",
    "tests/test_campaign.py",
}
"""Files of tests that are near to nothing."""

WIDE = (
    "tests/test_limits.py",
    "tests/test_choices.py",
    "tests/test_verbs_together.py",
    "tests/test_register_ownership.py",
    "tests/test_bad_inputs.py",
    "tests/test_regressions.py",
    "tests/test_inspect.py",
    "tests/test_fused_refusals.py",
    "tests/test_fused_mended.py",
)
"""Asked of what nobody nearer notices: files about the whole compiler, each of which takes some seconds."""

DIGESTS = "tests/test_texts.py"
"""Notices nearly each text that is another, and says nothing of right and wrong."""

CORPUS = "tests/test_corpus.py"
"""The same of four thousand strategies that are kept, and of how those are refused that are: of them those are asked that run the function."""

PERTURBED = "tests/test_perturbed.py"
"""The same of kernels that are changed between two passes; asked with the corpus."""

DRAWN = "tests/test_drawn_ir.py"
"""The same of kernels that are drawn as IR, which the printer alone is asked about."""

CORPUS_SECONDS = 240.0
"""Of processor time for all that are asked, the quickest first."""

MOST_PRINTED = 40
"""Kernels that are printed of those which run the line; they are lowered already, so that each takes milliseconds."""

MORE_THAN_TEXT = ("sim/", "check/", "ir/", "executable/", "performing/", "specs/", "values/")
"""Modules that decide more than the text of a kernel: where they change, the same text proves nothing."""


@attrs.frozen
class Verdict:
    """What came of a mutant: killed `by` somebody, survived, or `equivalent` for a reason."""

    mutant: Mutant
    by: str
    what: str = ""
    changed: bool = False
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether somebody noticed."""
        return self.by not in ("", "equivalent", "not one")

    @property
    def detector(self) -> str:
        """Who, in a word or two."""
        return self.by.partition(":")[0] if self.by else "nobody"


@functools.cache
def equivalents() -> dict[str, str]:
    """The reasons why no test can notice some mutants, by their names."""
    if not EQUIVALENT.is_file():
        return {}
    return {name: reason for reason, names in json.loads(EQUIVALENT.read_text(encoding="utf-8")).items() for name in names}


def asserted(mutant: Mutant) -> str:
    """Why nobody can notice that `strict=True` is gone: it asserts that two lists are as long as each other, and assertions are left alone."""
    dropped = mutant.operator == "keyword dropped" and mutant.old.count("strict=True") == mutant.new.count("strict=True") + 1
    before = source(mutant.module).encode()[: mutant.start].decode()
    turned = mutant.operator == "constant" and mutant.old == "True" and before.endswith("strict=")
    return "strict=True is an assertion" if dropped or turned else ""


def judge(mutant: Mutant, budget: float = 40.0, without: tuple[str, ...] = ()) -> Verdict:
    """Who notices a mutant; kernels have so many seconds of processor time, and tests twice as many; some files of tests are not asked."""
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
    asked = {
        "module": mutant.module, "text": mutant.source(), "seconds": budget, "kernels": kernels, "always": mutant.module.startswith(MORE_THAN_TEXT)
    }  # fmt: skip
    if not mutant.inside:
        return _verdict(mutant, [fresh({**asked, "tests": _all_tests(tests, without)})])
    of_kernels = zygote_of(mutant.module).ask(asked)
    if of_kernels["by"] == "no place":
        return _verdict(mutant, [of_kernels, fresh({**asked, "tests": _all_tests(tests, without)})])
    answers = [of_kernels]
    del asked["kernels"]
    for some in (tests, [one for one in WIDE if one not in (*tests, *without)], [] if DIGESTS in without else [DIGESTS]):
        if answers[-1]["by"]:
            break
        answers.append(_asked_tests(mutant.module, {**asked, "tests": some, "enough": 2 * budget, "seconds": 2 * budget + 60}))
    if not answers[-1]["by"] and CORPUS not in without:
        answers.append(_asked_corpus(mutant))
    return _verdict(mutant, answers)


def _all_tests(tests: list[str], without: tuple[str, ...]) -> list[str]:
    """What a process that imports the change is asked, one after the other."""
    return [one for one in dict.fromkeys([*tests, *WIDE, DIGESTS, CORPUS, PERTURBED]) if one not in without]


def _asked_corpus(mutant: Mutant) -> dict[str, Any]:
    numbers = kept().of(mutant.module, mutant.where)
    asked = {"module": mutant.module, "text": mutant.source(), "kept": numbers, "enough": CORPUS_SECONDS, "seconds": CORPUS_SECONDS + 60}
    return zygote_of(mutant.module).ask(asked)


FAILING: set[str] = set()
"""Tests that fail in such a process without any change: they kill nobody."""

PASSING: set[str] = set()
"""Tests that do not."""


def _asked_tests(module: str, asked: dict[str, Any]) -> dict[str, Any]:
    return asked_tests(zygote_of(module).ask, asked)


def asked_tests(ask: Callable[[dict[str, Any]], dict[str, Any]], asked: dict[str, Any]) -> dict[str, Any]:
    """What tests say of a change; those that fail without it too are not asked again."""
    while True:
        answer = ask({**asked, "without": sorted(FAILING)})
        if answer["by"] != "tests":
            return answer
        test = answer["what"]
        if test not in PASSING:
            alone = ask({**asked, "text": None, "tests": [test], "without": []})
            (FAILING if alone["by"] else PASSING).add(test)
        if test in PASSING:
            return answer


def _judge_of_text(mutant: Mutant, tests: list[str], budget: float, without: tuple[str, ...]) -> Verdict:
    """Who notices a mutant of the printer: the digests of texts, what texts of the battery compute, then the other tests."""
    asked: dict[str, Any] = {"module": mutant.module, "text": mutant.source(), "seconds": budget + 60, "enough": budget}
    if not mutant.inside:
        return _verdict(mutant, [fresh({**asked, "kernels": _kernels(mutant)[:3], "always": False, "tests": _all_tests(tests, without)})])
    questions: list[dict[str, Any]] = [
        {"tests": [one for one in tests if one.startswith(DIGESTS)]},
        {"printed": _kernels(mutant, MOST_PRINTED)},
        {"tests": [one for one in tests if not one.startswith(DIGESTS)]},
    ]
    answers: list[dict[str, Any]] = []
    for question in questions:
        ask = zygote_of(mutant.module).ask if "printed" in question else functools.partial(_asked_tests, mutant.module)
        answers.append(ask({**asked, **question}))
        if answers[-1]["by"] == "no place":
            return _verdict(
                mutant, [fresh({**asked, "kernels": _kernels(mutant)[:3], "always": False, "tests": _all_tests(tests, without)})]
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
    """Kernels that run the line: the cheapest ones, then some of all others, since the cheap ones are alike."""
    every = sorted((one for one in kernels() if mutant.line in one.lines.get(mutant.module, ())), key=lambda one: one.seconds)
    cheap, others = every[: most // 2], every[most // 2 :]
    step = -(-len(others) // (most // 2)) or 1
    return [one.name for one in (*cheap, *others[::step])]


def _tests(mutant: Mutant, budget: float) -> list[str]:
    """Tests that run the line: of the nearest files first, short ones first; then all of the nearest files."""
    near, files = nearest(mutant.module), set(collected(mutant.module))
    found = sorted(covering().of(mutant.module, mutant.line), key=lambda one: (one[0].partition("::")[0] not in near, one[1]))
    chosen, left = [], budget / 2
    for name, seconds in found:
        if seconds <= left and name.partition("::")[0] in files:
            chosen.append(name)
            left -= seconds
    return [*chosen, *near]  # of a line that many tests run not all are listed


@functools.cache
def covering() -> Covering:
    """Which tests run which lines."""
    return Covering.load()


@functools.cache
def kept() -> keeping.Kept:
    """Which strategies of the corpus run which functions, found out if that is not known for the sources as they are."""
    file = FOLDER / f"kept-{battery.source()}.json"
    if not file.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}")
        keeping.Kept.traced().save(made)
        made.replace(file)
    return keeping.Kept.load(file)


@functools.cache
def collected(module: str) -> tuple[str, ...]:
    """The files of tests that are asked about a module."""
    folder = module.partition("/")[0]
    found = dict.fromkeys(file for one in modules(folder) for file in nearest(one))
    found |= dict.fromkeys(file for one in modules(folder) for file in covering().files(one))
    return tuple(sorted(file for file in {*found, *WIDE, DIGESTS, CORPUS} - FOR_ALL if (ROOT / file).is_file()))


@functools.cache
def kernels() -> list[battery.Item]:
    """The battery."""
    return battery.load(_battery())


@functools.cache
def _battery() -> Path:
    """The file of the battery, made if there is none for the sources as they are."""
    file = BATTERY.with_stem(f"battery-{battery.source()}")
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}")
        battery.save(battery.built(), made)
        made.replace(file)
    return file


# ---------------------------------------------------------------------------------------------- processes


@attrs.define
class Zygote:
    """A process that waits for questions (`zygote`); begun anew if it dies. A bare one prepares no kernels."""

    files: tuple[str, ...]
    prints: bool = False
    bare: bool = False
    process: subprocess.Popen[bytes] | None = None
    lines: Any = None

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Its answer."""
        for _ in range(2):
            if self.process is None or self.process.poll() is not None:
                self._begin()
            try:
                self.lines.write(json.dumps(asked) + "\n")
                self.lines.flush()
                if line := self.lines.readline():
                    return dict(json.loads(line))
            except BrokenPipeError:
                pass
            except BaseException:  # its answer would be taken for that of the next question
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
        ours, theirs = socket.socketpair()
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
        environment = {**_environment(self.bare), zygote.SOCKET: str(theirs.fileno())} | ({zygote.PRINTED: "1"} if self.prints else {})
        with (FOLDER / "zygote.log").open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        theirs.close()
        self.lines = ours.makefile("rw", encoding="utf-8")
        ours.close()
        if not self.lines.readline():
            raise RuntimeError(f"pytest does not collect {self.files}: see {FOLDER / 'zygote.log'}")


MOST_PROCESSES = 3
ZYGOTES: dict[tuple[str, ...], Zygote] = {}


def zygote_of(module: str) -> Zygote:
    """The process that is asked about a module; one for all whose tests are the same."""
    files = collected(module)
    if files not in ZYGOTES:
        if len(ZYGOTES) == MOST_PROCESSES:
            ZYGOTES.pop(next(iter(ZYGOTES))).stop()
        ZYGOTES[files] = Zygote(files, module.startswith(printing.FOLDER))
    return ZYGOTES[files]


def _environment(bare: bool = False) -> dict[str, str]:
    """The variables of a process that is asked; unless it is bare, with the battery, which is made if it is missing."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("FIREIRON_", "PYTEST_", "MUTATION_"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    own |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "FIREIRON_CACHE_DIR": str(FOLDER / "cache")}
    return own if bare else own | {zygote.KERNELS: str(_battery())}


def fresh(asked: dict[str, Any], bare: bool = False) -> dict[str, Any]:
    """The answer of a process that imports the change; its tests have so many seconds together, and what takes much longer hangs."""
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
            said, _ = process.communicate(timeout=10 * hanging)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"by": "time", "seconds": time.monotonic() - before}
    lines = said.strip().splitlines()
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return {"by": "time", "seconds": hanging}
    try:
        return {**json.loads(lines[-1]), "seconds": time.monotonic() - before}
    except (IndexError, ValueError):
        return {"by": "crash: process", "what": f"exit {process.returncode}", "seconds": time.monotonic() - before}


def summary(verdicts: Iterable[Verdict]) -> tuple[int, int, int]:
    """How many were judged, how many of them killed, and how many are equivalent."""
    every = [one for one in verdicts if one.by != "not one"]
    return len(every), sum(one.killed for one in every), sum(one.by == "equivalent" for one in every)
