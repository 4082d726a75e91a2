"""One input, and what is a fair answer to it."""

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
"""Of processor time that one input may take."""

MEMORY = 1 << 30
"""Bytes that a process may have beyond what it has, while it is attacked."""

LONGEST = 20_000
"""Characters of an error's text: more than anybody reads is no good text."""


@attrs.frozen
class Input:
    """Something from attacks: a program to paste that hands it in, the function that does so, and what holds of what comes back.

    `right` maps what was accepted to what is wrong with it, or to nothing.
    """

    text: str
    action: Callable[[], object]
    right: Callable[[object], str | None] = lambda value: None


class TookTooLong(BaseException):
    """An input took longer than it may; no `except Exception` on the way catches it."""


@attrs.define
class Answers:
    """What came of several inputs: counted, and the wrong ones with what to paste."""

    counts: Counter[str] = attrs.field(factory=Counter)
    wrong: list[str] = attrs.field(factory=list)

    def take(self, inputs: Iterable[Input], kind: str) -> None:
        """Hand in all of them."""
        with guarded() as caught:
            for one in inputs:
                verdict, fault = answer(one, caught)
                self.counts[verdict] += 1
                self.counts[f"{verdict} {kind}"] += 1
                if fault is not None:
                    self.wrong.append(f"{fault}\n\n{one.text}")


def answer(one: Input, caught: list[warnings.WarningMessage]) -> tuple[str, str | None]:
    """`inputs` for one that the project's own error answered, `python` for one that Python answered before the project saw it, such as a call
    with too few arguments, else `accepted`; and what is wrong with the answer. One that takes too long is asked once more: the first
    may have imported something."""
    verdict, fault = _answer(one, caught)
    return _answer(one, caught) if fault == _too_long() else (verdict, fault)


def _answer(one: Input, caught: list[warnings.WarningMessage]) -> tuple[str, str | None]:
    caught.clear()
    verdict, fault = "accepted", None
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        fault = one.right(one.action())
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
    """The innermost lines of the package on the way of an error."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return "\n".join(f"  {line}" for line in lines[-6:])


@contextlib.contextmanager
def guarded() -> Iterator[list[warnings.WarningMessage]]:
    """Warnings kept, memory and seconds limited; all as it was afterwards. What lives already is not collected meanwhile: in a process of
    many tests that alone takes seconds."""
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
