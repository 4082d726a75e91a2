"""Micro-kernels on the command line: their text is compiled where a compiler is, as the simulator never looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from fireiron.errors import LaunchError

if TYPE_CHECKING:
    from fireiron.compiler import Program


@attrs.frozen
class Text:
    """What is known of the texts of a kernel's micro-kernels.

    `names` are the micro-kernels, `said` what was done with their text; `error` is the compiler's refusal. `compiled` is false where no
    compiler was there.
    """

    names: tuple[str, ...]
    said: str
    compiled: bool
    error: LaunchError | None = None

    def __str__(self) -> str:
        return f"{', '.join(self.names)}: {self.said}"


def examined(program: Program) -> Text | None:
    """The kernel with its micro-kernels, compiled if that is possible here; None where it has none."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.inspect.show import micro_kernels

    names = micro_kernels(program.ir)
    if not names:
        return None
    kernel = CompiledKernel(program)
    chain = kernel.compiler
    if chain is None:
        missing = f"no CUDA compiler for {program.architecture} is installed (pip install fireiron[check])"
        return Text(names, f"the text was NOT compiled: {missing}; what it computes is only checked on a GPU", False)
    try:
        _ = kernel.compiled
    except LaunchError as error:
        return Text(names, "the text does not compile", True, error)
    return Text(names, f"the text compiles ({chain}); what it computes is only checked on a GPU", True)
