"""One input, and the definition of a fair answer."""

import contextlib
import gc
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import attrs

from fireiron.errors import FireironError, FireironWarning

HERE = Path(__file__).parent

SECONDS = 2.0
"""The limit of processor time for one input."""

MEMORY = 1 << 30
"""Bytes that a process may allocate in addition while it is attacked."""

LONGEST = 20_000
"""The limit of characters of an error's text: longer ones are useless."""


@attrs.frozen
class Input:
    """An attack: a program to paste, the function that executes it, and a condition on the returned value.

    `right` maps an accepted value to its error, or to None.
    """

    text: str
    action: Callable[[], object]
    right: Callable[[object], str | None] = lambda value: None


class TookTooLong(BaseException):
    """An input took too long; no `except Exception` catches it."""


@attrs.define
class Answers:
    """The answers to several inputs: counts, and the wrong ones with the program to paste."""

    counts: Counter[str] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)

    def take(self, inputs: Iterable[Input], kind: str) -> None:
        """Execute all of them."""
        with guarded() as caught:
            for attack in inputs:
                verdict, fault = answer(attack, caught)
                self.counts[verdict] += 1
                self.counts[f"{verdict} {kind}"] += 1
                if fault is not None:
                    self.wrong.append(f"{fault}\n\n{attack.text}")


def answer(attack: Input, caught: list[warnings.WarningMessage]) -> tuple[str, str | None]:
    """`inputs` if the project's own error answered, `python` if Python answered before the project was entered, such as for a call with too
    few arguments, else `accepted`; and the error of the answer. An input that takes too long is repeated once: the first execution may have
    imported something.
    """
    verdict, fault = _answer(attack, caught)
    return _answer(attack, caught) if fault == _too_long() else (verdict, fault)


def _answer(attack: Input, caught: list[warnings.WarningMessage]) -> tuple[str, str | None]:
    caught.clear()
    verdict, fault = "accepted", None
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        fault = attack.right(attack.action())
    except FireironError as error:
        verdict, fault = "inputs", _text_fault(error)
    except TookTooLong:
        fault = _too_long()
    except MemoryError:
        fault = f"more than {MEMORY} bytes"
    except (Exception, SystemExit) as error:
        if _of_python(error):
            verdict = "python"
        else:
            fault = f"{type(error).__name__}: {str(error)[:300]}\n{_where(error)}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    foreign = [each for each in caught if not issubclass(each.category, FireironWarning)]
    if foreign and fault is None:
        fault = f"a warning: {foreign[0].category.__name__}: {foreign[0].message} ({foreign[0].filename}:{foreign[0].lineno})"
    return verdict, fault


def _too_long() -> str:
    return f"still not done after {SECONDS:g} seconds"


def _of_python(error: BaseException) -> bool:
    """Whether Python refused the call itself: no function of the project was entered."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return isinstance(error, TypeError) and trace is not None and str(HERE) in trace.tb_frame.f_code.co_filename


def _text_fault(error: FireironError) -> str | None:
    try:
        text = str(error)
    except Exception as other:
        return f"an error whose text raises {type(other).__name__}: {str(other)[:200]}"
    if not text.strip() or not error.asked.strip():
        return f"{type(error).__name__} without a text"
    return f"{type(error).__name__} of {len(text)} characters: {text[:200]} ..." if len(text) > LONGEST else None


def _where(error: BaseException) -> str:
    """The innermost lines of the package in the traceback of an error."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return "\n".join(f"  {line}" for line in lines[-6:])


@contextlib.contextmanager
def guarded() -> Iterator[list[warnings.WarningMessage]]:
    """Record warnings and limit memory and time; everything is restored afterwards. Existing objects are excluded from garbage collection
    meanwhile: in a process of many tests that alone takes seconds.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    previous = signal.signal(signal.SIGVTALRM, _interrupted)
    depth = sys.getrecursionlimit()
    gc.freeze()
    resource.setrlimit(resource.RLIMIT_AS, (_limit(soft), hard))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield caught
    finally:
        sys.setrecursionlimit(depth)
        gc.unfreeze()
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)


def _limit(soft: int) -> int:
    with open("/proc/self/statm") as file:
        wanted = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
    return wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)


def _interrupted(number: int, frame: object) -> None:
    raise TookTooLong
