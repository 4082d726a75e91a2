"""The process from which each mutant forks a child: pytest with the package imported and the tests collected, before any has run.

It is a pytest plugin (`-p mutation.zygote`): instead of running the tests it answers requests on a socket. A child replaces the code of the
functions that the mutant changes, in place, so every importer sees the change under any name. A mutant of code that runs at import (a
default, a constant of a module) gets a separate process, which imports the changed text (`FRESH`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

SOCKET, FRESH, KERNELS, PRINTED = "MUTATION_SOCKET", "MUTATION_FRESH", "MUTATION_KERNELS", "MUTATION_PRINTED"
PACKAGE = Path(__file__).resolve().parents[2] / "fireiron"
MOST_BYTES = 8 << 30
ASKED = ("-m", "not gpu and not nightly")
"""The tests that `make test` runs and that need no GPU."""


def dotted(module: str) -> str:
    """The name by which a module of the package is imported, by its path in it."""
    return ".".join(["fireiron", *(part for part in Path(module).with_suffix("").parts if part != "__init__")])


class _Changed(importlib.machinery.PathFinder):
    """Finds one module of the package with another text."""

    @staticmethod
    def install(module: str, text: str) -> None:
        file, name = PACKAGE / module, dotted(module)

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> types.CodeType:
                return compile(text, str(file), "exec")

        class Finder:
            @staticmethod
            def find_spec(fullname: str, path: object = None, target: object = None) -> object:
                if fullname != name:
                    return None
                places = [str(file.parent)] if file.name == "__init__.py" else None
                return importlib.util.spec_from_file_location(
                    fullname, file, loader=Loader(fullname, str(file)), submodule_search_locations=places
                )

        sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


if FRESH in os.environ:
    _request = json.loads(Path(os.environ[FRESH]).read_text(encoding="utf-8"))
    _Changed.install(_request["module"], _request["text"])


class NoPlace(Exception):
    """The change cannot be made in place."""


def swap(module: str, text: str) -> None:
    """Replace the code of a module's functions with that of another text of the module."""
    file = str(PACKAGE / module)
    new, old = (_codes(compile(one, file, "exec")) for one in (text, (PACKAGE / module).read_text(encoding="utf-8")))
    changed = {key: code for key, code in new.items() if old.get(key) != code}
    if any("<locals>" not in name for name, _ in new.keys() ^ old.keys()):  # nested functions are replaced with their enclosing one
        raise NoPlace
    swapped = False
    for function in _functions(file):
        if code := changed.get(_key(function.__code__)):
            if len(code) != 1 or code[0].co_freevars != function.__code__.co_freevars:
                raise NoPlace
            function.__code__ = code[0]
            swapped = True
    if not swapped:
        raise NoPlace


def _codes(code: types.CodeType) -> dict[tuple[str, int], list[types.CodeType]]:
    codes: dict[tuple[str, int], list[types.CodeType]] = {}
    for code_object in code.co_consts:
        if isinstance(code_object, types.CodeType):
            codes.setdefault(_key(code_object), []).append(code_object)
            for key, inner in _codes(code_object).items():
                codes.setdefault(key, []).extend(inner)
    return codes


def _key(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def objects() -> list[Any]:
    """All objects that the garbage collector knows, also those that `gc.freeze` hides, as `conftest.py` does after collection."""
    gc.unfreeze()
    return gc.get_objects()


@functools.cache
def _all_functions() -> dict[str, list[types.FunctionType]]:
    functions: dict[str, list[types.FunctionType]] = {}
    for candidate in objects():
        if isinstance(candidate, types.FunctionType):
            functions.setdefault(candidate.__code__.co_filename, []).append(candidate)
    return functions


def _functions(file: str) -> list[types.FunctionType]:
    return _all_functions().get(file, [])


def _forget() -> None:
    """Empty the caches of the package's functions."""
    for candidate in objects():
        if isinstance(candidate, functools._lru_cache_wrapper) and (getattr(candidate, "__module__", None) or "").startswith("fireiron"):
            candidate.cache_clear()


# ---------------------------------------------------------------------------------------------- pytest


class Watch:
    """Records the first failure."""

    failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Answer requests instead, if a socket is given."""
    if SOCKET not in os.environ:
        return None
    from mutation import battery

    items = {one.name: one for one in battery.load(Path(os.environ[KERNELS]))} if KERNELS in os.environ else {}
    for kernel in items.values():
        kernel.prepare()
    if PRINTED in os.environ:
        items |= _lowered(items)
    _forget()
    _all_functions()
    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=int(os.environ[SOCKET]))
    tests = {one.nodeid: one for one in session.items}
    with channel, channel.makefile("rw", encoding="utf-8") as lines:
        lines.write(json.dumps({"tests": len(tests)}) + "\n")
        lines.flush()
        for line in lines:
            answer = in_a_child(functools.partial(_answer, session, items, tests), json.loads(line))
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
    return True


def _lowered(items: dict[str, Any]) -> dict[str, Any]:
    """Lower the kernels, including those of the digests: mutants of the printer change none of that."""
    import test_texts

    from mutation.printing import Lowered

    test_texts.kernels()
    return {name: Lowered.of(one) for name, one in items.items()}


def _answer(session: pytest.Session, kernels: dict[str, Any], tests: dict[str, pytest.Item], request: dict[str, Any]) -> dict[str, Any]:
    try:
        if request["text"] is not None:
            swap(request["module"], request["text"])
    except NoPlace:
        return {"by": "no place"}
    if "printed" in request:
        from mutation import printing

        return printing.judged([kernels[name] for name in request["printed"]])
    if "kept" in request:
        from mutation import keeping

        return keeping.judged(request["kept"], request["enough"])
    if "kernels" in request:
        return of_kernels([kernels[name] for name in request["kernels"]], request["always"])
    return _of_tests(session, [one for one in _chosen(tests, request["tests"]) if one.nodeid not in request["without"]], request["enough"])


def _chosen(tests: dict[str, pytest.Item], names: list[str]) -> list[pytest.Item]:
    """Tests by their names, or those of whole files."""
    chosen: list[pytest.Item] = []
    for name in names:
        if "::" in name:
            chosen += [tests[name]] if name in tests else []
        else:
            chosen += [one for nodeid, one in tests.items() if nodeid.startswith(f"{name}::")]
    return chosen


def of_kernels(kernels: Iterable[Any], always: bool) -> dict[str, Any]:
    """The first detection of an error in a kernel, and whether any text has changed."""
    changed = ""
    for number, kernel in enumerate(kernels):
        who, what = kernel.judged(always)
        if who:
            return {"by": who, "what": f"{kernel.name}: {what}", "ran": number + 1, "changed": True}
        changed = changed or (kernel.name if what != "same" else "")
    return {"by": "", "changed": bool(changed), "what": changed}


def _of_tests(session: pytest.Session, items: list[pytest.Item], enough: float) -> dict[str, Any]:
    watch = Watch()
    session.config.pluginmanager.register(watch)
    for number, item in enumerate(items):
        following = items[number + 1] if number + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if watch.failed:
            return {"by": "tests", "what": watch.failed, "ran": number + 1}
        if time.process_time() > enough:
            return {"by": "", "what": "only some of the tests", "ran": number + 1}
    return {"by": "", "ran": len(items)}


# ---------------------------------------------------------------------------------------------- children


def in_a_child(function: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    """The result of a function in a forked process, which is limited to the given seconds of processor time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        limit(request["seconds"])
        os.setpgid(0, 0)
        try:
            answer = function(request)
        except BaseException as error:
            answer = {"by": f"crash: {type(error).__name__}", "what": str(error)[:200]}
        with contextlib.suppress(BaseException):
            os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    answer = _read(reading, time.monotonic() + 20 * request["seconds"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    if not answer:
        timed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        result: dict[str, Any] = {"by": "time" if timed else "crash: process"}
    else:
        result = json.loads(answer)
    return {**result, "seconds": used.ru_utime + used.ru_stime}


def limit(seconds: float) -> None:
    """Limit the processor time and memory of this process; the soft memory limit may be raised (sanitizers map all there is)."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(pipe: int, until: float) -> bytes:
    """The content of a pipe until its end, or until a deadline."""
    content = b""
    with open(pipe, "rb", buffering=0) as file:
        while (left := until - time.monotonic()) > 0 and select.select([file], [], [], left)[0]:
            if not (part := file.read(65536)):
                break
            content += part
    return content
