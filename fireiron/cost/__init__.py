"""The cost model: what a kernel takes on a GPU, predicted from its final IR, without a compiler and without a GPU.

    kernel IR ──► Work (counts, for one block, by phase) ──► model (a GPU, a few constants) ──► Prediction

`work.py` counts (`accesses.py` for one access; `amounts.py` are the values), `timeline.py` follows one warp, `registers.py` estimates
registers, `model.py` puts them together, `prediction.py` is the answer. What is counted, and what the answer is worth, is in
docs/cost-model.md.

May import: values, specs, ir, check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.cost.constants import CONSTANTS, Constants
from fireiron.cost.gpus import Gpu, as_gpu, of_architecture
from fireiron.cost.prediction import COPIES, PhaseTime, Prediction
from fireiron.errors import ArgumentError
from fireiron.ir import Kernel
from fireiron.values.machine import as_architecture

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.language.strategy import Strategy


def predict(
    program: Program | CompiledKernel | Strategy | Kernel,
    gpu: Gpu | str | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    constants: Constants = CONSTANTS,
) -> Prediction:
    """The predicted time of one launch, with its parts and the bottleneck; that of launches before it is a part of the whole.

    Args: `program`: a `Program`, a compiled kernel, a bound strategy, or a final kernel IR; it is lowered if it is not yet, and
        not checked for races (which takes longer than all of this). `gpu`: a `Gpu` or its name; the default one of the program's
        architecture if None. A strategy has no architecture yet: it is lowered for the GPU's. `sizes`: those known only at run time,
        by name.
    Raises: an `ArgumentError` where a size is missing, or where the GPU does not run the architecture.
    """
    from fireiron.cost.model import model
    from fireiron.cost.work import Work

    asked = None if gpu is None else as_gpu(gpu)
    made = _program_of(program, None if asked is None else asked.architecture)
    kernel = _kernel_of(made)
    chosen = of_architecture(kernel.architecture) if asked is None else asked
    able = as_architecture(chosen.architecture).capability
    if able < kernel.architecture.capability:
        raise ArgumentError(f"{chosen} does not run {kernel.architecture}", legal=f"{chosen.architecture} or older")
    found = model(Work(kernel, sizes), chosen, constants)
    copies = sum(predict(one.program, chosen, sizes, constants=constants).us for one in getattr(made, "preceding", ()))
    return attrs.evolve(found, us=found.us + copies, parts={**found.parts, COPIES: copies}) if copies else found


def _program_of(program: Any, architecture: str | None) -> Any:
    """A kernel IR, or a program; that of a strategy is for the architecture, the usual one if None."""
    if hasattr(program, "assignments") and hasattr(program, "program"):
        return program.program(architecture)
    return getattr(program, "program", program)


def _kernel_of(program: Any) -> Kernel:
    """The final IR of a program."""
    found = program if isinstance(program, Kernel) else getattr(program, "lowered", None)
    if not isinstance(found, Kernel):
        raise ArgumentError("a program, a compiled kernel, a bound strategy or a kernel IR is needed", got=type(program).__name__)
    return found


__all__ = ["CONSTANTS", "Constants", "PhaseTime", "Prediction", "predict"]
