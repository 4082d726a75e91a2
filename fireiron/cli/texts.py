"""Micro-kernels on the command line: their text is compiled and executed where that can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from fireiron.errors import LaunchError

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.inspect.trial import Trial


@attrs.frozen
class Text:
    """What is known of the texts of a kernel's micro-kernels.

    `names` are the micro-kernels, `said` what the compiler does with their text; `error` is its refusal. `compiled` is false where no
    compiler was there. `trials` are what came of the texts on the host.
    """

    names: tuple[str, ...]
    said: str
    compiled: bool
    error: LaunchError | None = None
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        parts = {one.said: [other.name for other in self.trials if other.said == one.said] for one in self.trials}
        several = len(parts) > 1
        tried = [f"{', '.join(names)} {said}" if several else said for said, names in parts.items()]
        only = "" if self.error is not None or self.executed else "what it computes is only checked on a GPU"
        return f"{', '.join(self.names)}: " + "; ".join(filter(None, (self.said, *tried, only)))

    @property
    def executed(self) -> bool:
        """Whether all of the texts were executed on the host."""
        return bool(self.trials) and all(one.executed for one in self.trials)

    @property
    def meant(self) -> bool:
        """Whether somebody says what each of their specs means."""
        return all(one.meant for one in self.trials)

    @property
    def wrong(self) -> str | None:
        """What is wrong with a text: the compiler refuses it, or it computes something else than its spec means."""
        if self.error is not None:
            return str(self.error)
        return next((f"{one.name}: {one.wrong}" for one in self.trials if one.wrong is not None), None)

    @property
    def simulated(self) -> str:
        """What is known, and what the simulator does in the place of the text."""
        stands_in = self.wrong is None and self.meant
        return f"{self}; the simulator uses the meaning of its spec" if stands_in else str(self)


def examined(program: Program) -> Text | None:
    """The kernel with its micro-kernels, compiled and tried as far as that is possible here; None where it has none."""
    from fireiron.inspect.show import micro_kernels
    from fireiron.inspect.trial import trials

    names = micro_kernels(program.ir)
    if not names:
        return None
    said, compiled, error = _compiled(program)
    return Text(names, said, compiled, error, () if error is not None else trials(program.ir))


def _compiled(program: Program) -> tuple[str, bool, LaunchError | None]:
    """What the compiler says to a kernel, whether there is one, and its refusal."""
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
