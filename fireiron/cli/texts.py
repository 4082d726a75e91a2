"""Compile and execute the texts of micro-kernels, as far as the installation permits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fireiron.errors import LaunchError
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.inspect.trial import Trial


@frozen
class Text:
    """The results of compiling and executing the texts of a kernel's micro-kernels.

    Attributes:
        names: the micro-kernels.
        summary: the result of the compiler, as text.
        compiled: False if no compiler is installed.
        error: the compiler's error.
        trials: the results of executing the texts on the host.
    """

    names: tuple[str, ...]
    summary: str
    compiled: bool
    error: LaunchError | None = None
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        parts = {trial.summary: [other.name for other in self.trials if other.summary == trial.summary] for trial in self.trials}
        tried = [f"{', '.join(names)} {summary}" if len(parts) > 1 else summary for summary, names in parts.items()]
        only = "" if self.error is not None or self.executed else "only a GPU can check what it computes"
        return f"{', '.join(self.names)}: " + "; ".join(filter(None, (self.summary, *tried, only)))

    @property
    def executed(self) -> bool:
        """Whether all texts were executed on the host."""
        return bool(self.trials) and all(trial.executed for trial in self.trials)

    @property
    def has_meaning(self) -> bool:
        """Whether the simulator can execute the meaning of each spec."""
        return all(trial.has_meaning for trial in self.trials)

    @property
    def wrong(self) -> str | None:
        """The error of a text: the compiler refuses it, or its result differs from the meaning of its spec. None if there is none."""
        if self.error is not None:
            return str(self.error)
        return next((f"{trial.name}: {trial.wrong}" for trial in self.trials if trial.wrong is not None), None)

    @property
    def simulated(self) -> str:
        """The results as text. The text states whether the simulator uses the meaning of the spec instead of the text."""
        uses_meaning = self.wrong is None and self.has_meaning
        return f"{self}; the simulator uses the meaning of its spec" if uses_meaning else str(self)


def examined(program: Program) -> Text | None:
    """Compile and execute the texts of a kernel's micro-kernels, as far as possible. Return None if it has no micro-kernels."""
    from fireiron.inspect.show import micro_kernels
    from fireiron.inspect.trial import trials

    names = micro_kernels(program.ir)
    if not names:
        return None
    summary, compiled, error = _compiled(program)
    return Text(names, summary, compiled, error, () if error is not None else trials(program.ir))


def print_own_instructions(program: Program) -> None:
    """Print a kernel with instructions of users, whose text the simulator does not use, so that errors of their text are reported."""
    from fireiron.ir import execs

    if any(not type(stmt.instruction).__module__.startswith("fireiron.") for stmt, _ in execs(program.ir.body)):
        _ = program.cuda


def _compiled(program: Program) -> tuple[str, bool, LaunchError | None]:
    """Return the compiler's result as text, whether a compiler is installed, and its error."""
    from fireiron.gpu.kernel import CompiledKernel

    kernel = CompiledKernel(program)
    chain = kernel.compiler
    if chain is None:
        missing = f"no CUDA compiler for {program.architecture} is installed (pip install 'fireiron[check]')"
        return f"the text was NOT compiled: {missing}", False, None
    try:
        _ = kernel.compiled
    except LaunchError as error:
        return "the text does not compile", True, error
    return f"the text compiles ({chain})", True, None
