"""Compile the text of a program in a thread while the independent checks run: NVRTC does not hold the GIL.

The machine code is used only after all checks have passed: `CompiledKernel.compiled` requires the proved text before it waits for the
result. If a check reports an error, the program has no `ir`, and the compiled code is never loaded.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from fireiron.errors import FireironError
from fireiron.gpu import cache, programs
from fireiron.gpu.launch import newest_loadable

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.cache import DeferredCompilation
    from fireiron.gpu.toolchain import Compiled


class EarlyCompilation:
    """The compilation of a text in a thread.

    The compiler and the headers are found before the thread starts: this code needs the GIL, and would wait for that of the checks.
    """

    def __init__(self, text: str, arch: str, newest: tuple[int, int] | None) -> None:
        self.text, self.newest = text, newest
        self._arch = arch
        self._compiled: Compiled | None = None
        self._error: FireironError | Warning | None = None
        self._prepared = self._prepare()
        self._thread = threading.Thread(target=self._run, args=(self._prepared,))
        self._thread.start()

    def _prepare(self) -> DeferredCompilation | None:
        """Find the compiler; None if there is none."""
        try:
            return cache.deferred(self.text, self._arch, newest=self.newest)
        except (FireironError, Warning) as error:  # a warning, if warnings are errors
            self._error = error
            return None

    def _run(self, prepared: DeferredCompilation | None) -> None:
        try:
            self._compiled = None if prepared is None else prepared.run()
        except (FireironError, Warning) as error:
            self._error = error

    def result(self) -> Compiled:
        """Wait for the machine code. Headers whose digests are not known yet are read meanwhile, or in a thread afterwards.

        Raises: LaunchError if no compiler supports the target, or the compiler refuses the text.
        """
        prepared, self._prepared = self._prepared, None
        waits = prepared is not None and prepared.waits
        if prepared is not None and waits and self._thread.is_alive():
            prepared.find_key()
        self._thread.join()
        if prepared is not None and waits and self._compiled is not None:
            threading.Thread(target=prepared.store, args=(self._compiled,)).start()
        if self._error is not None:
            raise self._error
        if self._compiled is None:  # the thread failed with a system error: the caller gets the same error, or the result
            self._compiled = cache.compile_cached(self.text, self._arch, newest=self.newest)
        return self._compiled

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the thread."""
        return type(None), ()


def prove(program: Program, *others: Program) -> None:
    """Lower programs and run all checks, and compile their texts at the same time.

    The programs of preceding launches are lowered and compiled at the same time. All compilations begin before the first check.

    Raises: the errors of `Program.ir`.
    """
    begun = [launched for given in (program, *others) for launched in _begun(given)]
    for launched in begun:
        _ = launched.ir


def _begun(program: Program) -> list[Program]:
    """Lower a program, and begin to compile its text; return it, after the programs of its preceding launches."""
    if program.early is not None:
        return [program]
    _ = program.is_complete or program.lowered
    begun = False
    try:
        text = program.text if program.is_complete else program.unproved_text
        program.begin_early(EarlyCompilation(text, program.architecture.name, newest_loadable()))
        begun = True
    finally:
        if not begun:  # if a check refuses what the printer cannot print, the caller needs the error of the check
            _ = program.ir
    preceding = [programs.recalled(launch.program) for launch in program.preceding]
    return [*(other for launched in preceding for other in _begun(launched)), program]


__all__ = ["EarlyCompilation", "prove"]
