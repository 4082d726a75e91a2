"""The cost model: predict the time of a kernel on a GPU from its final IR, without a compiler and without a GPU.

    kernel IR ──► Work (counts, for one block, by phase) ──► model (a GPU, a few constants) ──► Prediction

`work.py` counts (`accesses.py` for one access; `amounts.py` defines the values), `timeline.py` follows one warp, `registers.py` estimates
registers, `model.py` combines them, `prediction.py` is the result. See docs/cost-model.md for what is counted and how accurate the result
is.

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
    """The predicted time of one launch, with its parts and the bottleneck; includes the time of preceding launches.

    Args: `program`: a `Program`, a compiled kernel, a bound strategy, or a final kernel IR. It is lowered if necessary, but not checked for
    races, which would take longer. `gpu`: a `Gpu` or its name; if None, the default one of the program's architecture. A strategy without
    an architecture is lowered for the GPU's. `sizes`: the run-time sizes, by name. Raises: `ArgumentError` if a size is missing, or if the
    GPU does not run the architecture.
    """
    from fireiron.cost.model import model
    from fireiron.cost.work import Work

    requested = None if gpu is None else as_gpu(gpu)
    source_ = _program_of(program, None if requested is None else requested.architecture)
    kernel = _kernel_of(source_)
    target = of_architecture(kernel.architecture) if requested is None else requested
    able = as_architecture(target.architecture).capability
    if able < kernel.architecture.capability:
        raise ArgumentError(f"{target} does not run {kernel.architecture}", legal=f"{target.architecture} or older")
    prediction = model(Work(kernel, sizes), target, constants)
    copies = sum(predict(one.program, target, sizes, constants=constants).us for one in getattr(source_, "preceding", ()))
    return attrs.evolve(prediction, us=prediction.us + copies, parts={**prediction.parts, COPIES: copies}) if copies else prediction


def _program_of(program: Any, architecture: str | None) -> Any:
    """A kernel IR, or a program; that of a strategy is for the architecture, the default one if None."""
    if hasattr(program, "assignments") and hasattr(program, "program"):
        return program.program(architecture)
    return getattr(program, "program", program)


def _kernel_of(program: Any) -> Kernel:
    """The final IR of a program."""
    prediction = program if isinstance(program, Kernel) else getattr(program, "lowered", None)
    if not isinstance(prediction, Kernel):
        raise ArgumentError("a program, a compiled kernel, a bound strategy or a kernel IR is needed", got=type(program).__name__)
    return prediction


__all__ = ["CONSTANTS", "Constants", "PhaseTime", "Prediction", "predict"]
