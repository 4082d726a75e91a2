"""Compile the text of a program in a thread while the independent checks run: NVRTC lets other threads of Python run meanwhile.

The machine code is used only after all checks have passed (`CompiledKernel.compiled` requires the proved text before it asks for the
result). If a check reports an error, the program has no `ir`, and nothing loads what the thread compiled.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from fireiron.errors import FireironError
from fireiron.gpu import cache, programs
from fireiron.gpu.launch import newest_loadable

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.toolchain import Compiled


class EarlyCompilation:
    """The compilation of a text, which a thread began."""

    def __init__(self, text: str, arch: str, newest: tuple[int, int] | None) -> None:
        self.text, self.newest = text, newest
        self._arch = arch
        self._compiled: Compiled | None = None
        self._error: FireironError | Warning | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._compiled = cache.compile_cached(self.text, self._arch, newest=self.newest)
        except (FireironError, Warning) as error:  # a warning where the user makes errors of warnings
            self._error = error

    def result(self) -> Compiled:
        """Wait for the machine code.

        Raises: LaunchError where no compiler serves the target, or it refuses the text.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._compiled is None:  # the thread met an error of the system: the caller meets it too, or has the result
            self._compiled = cache.compile_cached(self.text, self._arch, newest=self.newest)
        return self._compiled

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of a program in another process has no thread."""
        return type(None), ()


def prove(program: Program) -> None:
    """Make the final IR of a program, which all checks passed, and begin to compile its text meanwhile.

    The programs of its preceding launches are made and compiled at the same time.

    Raises: what `Program.ir` raises.
    """
    if program.early is None:
        _ = program.is_made or program.lowered
        begun = False
        try:
            text = program.text if program.is_made else program.unproved_text
            program.begin_early(EarlyCompilation(text, program.architecture.name, newest_loadable()))
            begun = True
        finally:
            if not begun:  # if a check refuses what the printer cannot print, the caller needs the error of the check
                _ = program.ir
        for launch in program.preceding:
            prove(programs.recalled(launch.program))
    _ = program.ir


__all__ = ["EarlyCompilation", "prove"]
