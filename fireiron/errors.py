"""The errors of the package. Each states the request, the given value, the legal values, the place, and what to do."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fireiron.package_paths import is_own


def call_site() -> str | None:
    """Return `file.py:12` of the nearest caller outside this package."""
    frame = _caller()
    return None if frame is None else f"{_file(frame.f_code.co_filename)}:{frame.f_lineno}"


@functools.lru_cache(maxsize=1024)  # called for each step of a strategy and each access of a task
def _file(name: str) -> str:
    """Return a file name with its folder."""
    path = Path(name)
    return "/".join(path.parts[-2:] if path.parent.name else path.parts[-1:])


MOST_SHOWN: Final = 2000
"""Maximum characters of a value in a message."""


def repr_of(value: object) -> str:
    """Return the `repr` of a user's value, or a description if `repr` raises an error."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def shown(value: object) -> str:
    """Return a `repr` of limited length, for a message."""
    text = repr_of(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... ({len(text)} characters)"


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar known name; None if none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(names), 1)), None)


def similar_names(name: str, names: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """Return the known names that begin with a name and `_`, and the most similar ones."""
    import difflib

    known = list(dict.fromkeys(names))
    longer = [other for other in known if other.startswith(f"{name}_")]
    return tuple(dict.fromkeys([*longer, *difflib.get_close_matches(name, known, most)]))[:most]


def call_folder() -> Path | None:
    """Return the folder of the file of the nearest caller outside this package; None if it has no file."""
    frame = _caller()
    path = None if frame is None else Path(frame.f_code.co_filename)
    return None if path is None or not path.is_file() else path.resolve().parent


def _caller() -> FrameType | None:
    """Return the innermost frame outside this package and attrs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_own(frame.f_code.co_filename) or _of_attrs(frame)):
        frame = frame.f_back
    return frame


def _of_attrs(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<attrs") or frame.f_globals.get("__name__") == "attr._make"


class FireironError(Exception):
    """A user's mistake, or a request that cannot be fulfilled correctly.

    Args:
        asked: one line that states the request and why it cannot be met.
        got: the offending value, if it is not already in `asked`.
        legal: the legal values nearest to the request.
        within: the spec or the path in the decomposition tree where it happened.
        at: the line of the user's strategy, `file.py:12`.
        hint: what to do.

    >>> from fireiron import *
    >>> try:
    ...     MatMul(1024, 1024, 8)(GL, GL, GL)(Kernel).tile(128, 128).to(Block).tile(96, 128).result
    ... except FireironError as error:
    ...     print(error.headline)
    tile(96, 128): 96 does not divide the 128 elements of the tile
    """

    def __init__(
        self,
        asked: str,
        *,
        got: object = None,
        legal: Iterable[object] | str | None = None,
        within: object = None,
        at: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.asked = asked
        self.got = got
        self.legal = legal if legal is None or isinstance(legal, str) else tuple(legal)
        self.within = within
        self.at = at
        self.hint = hint
        super().__init__(asked)

    @property
    def headline(self) -> str:
        """The first line of `asked`."""
        return next(iter(self.asked.splitlines()), "")

    def __str__(self) -> str:
        rows = [
            ("got", None if self.got is None else shown(self.got)),
            ("in", self.within),
            ("legal", self.legal if self.legal is None or isinstance(self.legal, str) else " ".join(map(str, self.legal))),
            ("at", self.at),
            ("do", self.hint),
        ]
        return "\n".join([self.asked, *(f"  {name:<7} {value}" for name, value in rows if value is not None and value != "")])

    of_file: bool = False
    """Whether a user's file raised it when it was executed, rather than a kernel that is built from it."""

    def located(self, *, within: object = None, at: str | None = None) -> FireironError:
        """Return the error with its place filled in if it was unknown."""
        self.within = self.within if self.within is not None else within
        self.at = self.at if self.at is not None else at
        return self


class ArgumentError(FireironError):
    """An argument has a wrong type or value. The error does not depend on the strategy; `legal` lists legal values."""


class LayoutError(FireironError):
    """An operation of the layout algebra is not defined for its arguments. Use sizes and strides that divide those of the layout."""


class DecompositionError(FireironError):
    """A decomposition or a refinement cannot be applied to a spec.

    The message names the step, its line, and the nearest arguments that are legal.
    """


class MatchError(FireironError):
    """No executable performs the residual spec.

    The message compares it with the nearest instructions, field by field; `fireiron explain` searches for missing steps.

    Args:
        headline: the first line of `asked`.
        rows: returns the further lines, which compare the spec with the nearest executables; called when `asked` is read, because a search
            over values of tunables reads only headlines.
        others: the arguments of every error.
    """

    def __init__(self, headline: str, *, rows: Callable[[], str] | None = None, **others: Any) -> None:
        self._headline = headline
        self._rows = rows
        super().__init__(headline, **others)

    @property
    def headline(self) -> str:
        """The first line of `asked`."""
        return next(iter(self._headline.splitlines()), "")

    @property
    def asked(self) -> str:
        """The request, and why it cannot be met."""
        if self._rows is not None:
            self._headline, self._rows = f"{self._headline}\n{self._rows()}", None
        return self._headline

    @asked.setter
    def asked(self, text: str) -> None:
        self._headline = text

    def __reduce__(self) -> str | tuple[Any, ...]:
        _ = self.asked  # the function that makes the rows is not pickled
        return super().__reduce__()


class IncompleteError(FireironError):
    """The decomposition tree has open leaves. `done()` closes a chain; `fireiron explain` lists the missing steps."""


class SynchronizationError(FireironError):
    """`no_sync` removed a barrier that prevents a race. The message contains a counterexample."""


class ResourceError(FireironError):
    """A kernel needs more threads, registers or shared memory than the target has.

    Use smaller tiles, fewer stages, or another `architecture`.
    """


class VerificationError(FireironError):
    """The kernel IR is malformed: a defect of a pass or of an extension.

    No strategy should cause it; please report it.
    """


class SimulationError(FireironError):
    """The simulator found a race, an access out of bounds or uninitialized data.

    In generated code, this is a defect of the package; in a micro-kernel, it is a defect of its text.
    """


class LaunchError(FireironError):
    """A kernel cannot be compiled or launched on this GPU or with these arrays.

    The spec specifies types, shapes, storage and devices of the arrays.
    """


class StoreError(FireironError):
    """A stored strategy or record cannot be read. The message contains the file and the position. No part of it is used."""


class WrongResultError(FireironError):
    """The result of a kernel differs from the meaning of its spec. The message contains the first wrong elements and their errors."""


KERNEL_ERRORS: Final = (
    DecompositionError, IncompleteError, LayoutError, MatchError, ResourceError, SimulationError, SynchronizationError, VerificationError,
    WrongResultError,
)  # fmt: skip
"""The errors of a kernel: it is illegal, or its result is wrong. The others are of a call, of files, or of the environment."""


class FireironWarning(UserWarning):
    """The base class of warnings: the call works, but is slower or less convenient than it could be. Filter it by `warnings`."""


class CacheWarning(FireironWarning):
    """The compile cache cannot be written, or had a damaged entry. The kernel is compiled again; see `fireiron cache`."""
