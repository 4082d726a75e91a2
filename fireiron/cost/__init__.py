"""Predict the time of a kernel on a GPU from its final IR, without a compiler and without a GPU.

    kernel IR ──► Work (counts, for one block, by phase) ──► model (a GPU, a few constants) ──► Prediction

`work.py` counts the work of a block, and `accesses.py` that of an access. `amounts.py` defines the counted values. `timeline.py` estimates
the time of a single warp, and `check/registers.py` the registers. `model.py` combines these results, and `prediction.py` defines the
prediction.
docs/cost-model.md describes the counted values and the accuracy.

May import: values, specs, ir, check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, overload

import attrs

from fireiron.cost.constants import CONSTANTS, Constants
from fireiron.cost.gpus import Gpu, as_gpu, of_architecture
from fireiron.cost.prediction import BARRIERS, COPIES, LINK, PhaseTime, Prediction
from fireiron.errors import ArgumentError
from fireiron.ir import Kernel
from fireiron.values.machine import as_architecture

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.cost.graph_prediction import GraphPrediction
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.kernel_graph.compiled import CompiledGraph
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.language.strategy import Strategy


@overload
def predict(
    program: Program | CompiledKernel | Strategy | Kernel,
    gpu: Gpu | str | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    constants: Constants = CONSTANTS,
) -> Prediction: ...


@overload
def predict(
    program: KernelGraph | GraphProgram | CompiledGraph,
    gpu: Gpu | str | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    constants: Constants = CONSTANTS,
) -> GraphPrediction: ...


def predict(
    program: Any,
    gpu: Gpu | str | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    constants: Constants = CONSTANTS,
) -> Prediction | GraphPrediction:
    """Predict the time of a launch, with its parts and the bottleneck. The time includes preceding launches.

    The time of a kernel graph is the sum of its kernels and their launches.

    Args:
        program: a `Program`, a compiled kernel, a bound strategy, a final kernel IR, or a kernel graph. It is lowered if necessary, but not
            checked for races, because the check takes longer. A strategy without an architecture is lowered for the architecture of the
            GPU.
        gpu: a `Gpu` or its name. Default: the default GPU of the program's architecture.
        sizes: the run-time sizes, by name.
        constants: the constants of the model.

    Raises: `ArgumentError` if a size is missing, or if the GPU does not run the architecture.
    """
    from fireiron.cost.model import model
    from fireiron.cost.work import Work

    requested = None if gpu is None else as_gpu(gpu)
    lowered_program = _program_of(program, None if requested is None else requested.architecture)
    if hasattr(lowered_program, "graph"):
        return _of_graph(lowered_program, requested, sizes or {}, constants)
    kernel = _kernel_of(lowered_program)
    target = of_architecture(kernel.architecture) if requested is None else requested
    if as_architecture(target.architecture).capability < kernel.architecture.capability:
        raise ArgumentError(f"{target} does not run {kernel.architecture}", legal=f"{target.architecture} or older")
    if kernel.exchanges:
        return _with_exchange(model(Work(kernel.joined[0], sizes), target, constants), kernel, target)
    prediction = model(Work(kernel, sizes), target, constants)
    return _with_preceding(prediction, lowered_program, target, sizes, constants)


def _with_preceding(prediction: Prediction, program: Any, gpu: Gpu, sizes: Mapping[str, int] | None, constants: Constants) -> Prediction:
    """Add the time of the launches before the last one, and of barriers of all GPUs of a node."""
    before = [predict(launch.program, gpu, sizes, constants=constants) for launch in getattr(program, "preceding", ())]
    parts = dict(prediction.parts)
    us = prediction.us
    if before:
        parts[COPIES] = sum(launch.us for launch in before)
        us += parts[COPIES]
    waits = sum(map(bool, getattr(program, "barriers", ())))
    if not waits:
        return attrs.evolve(prediction, us=us, parts=parts)
    parts[BARRIERS] = waits * gpu.barrier_us
    link = sum(launch.bytes.get(LINK, 0.0) for launch in (*before, prediction))
    exchanged = sum(launch.parts.get(LINK, 0.0) for launch in (*before, prediction))
    parts |= {LINK: exchanged} if exchanged else {}
    return attrs.evolve(prediction, us=us + parts[BARRIERS], parts=parts, bytes={**prediction.bytes, LINK: link})


def _with_exchange(prediction: Prediction, kernel: Kernel, gpu: Gpu) -> Prediction:
    """Add the time of the link to that of a product whose sums GPUs exchange while they compute: the longer one counts.

    A GPU stores the rows of all other GPUs once.
    """
    assert kernel.workspace is not None and kernel.workspace.exchange is not None
    exchange = kernel.workspace.exchange
    moved = float((exchange.gpus - 1) * exchange.part * exchange.row)
    link = moved / gpu.link_gb_s * 1e-3
    parts, bytes_ = {**prediction.parts, LINK: link}, {**prediction.bytes, LINK: moved}
    return attrs.evolve(prediction, us=max(prediction.us, link), parts=parts, bytes=bytes_)


def _program_of(program: Any, architecture: str | None) -> Any:
    """Return the kernel IR or the program of an argument of `predict`. A strategy is lowered for the architecture (None: the default)."""
    lowered_program = getattr(program, "program", None)
    if lowered_program is None:
        return program
    return lowered_program(architecture) if callable(lowered_program) else lowered_program


def _of_graph(program: GraphProgram, gpu: Gpu | None, sizes: Mapping[str, int], constants: Constants) -> GraphPrediction:
    """Predict the kernels of a graph, each with its own run-time sizes."""
    from fireiron.cost.graph_prediction import GraphPrediction

    known = {symbol.name for symbol in program.symbols}
    for name in sizes:
        if name not in known:
            raise ArgumentError(f"sizes: {program.name} has no run-time size {name}", legal=sorted(known) or "none")
    kernels = {}
    for name, part in program.kernels.items():
        own = {symbol.name for launch in part.launches for symbol in launch.program.lowered.symbols}
        kernels[name] = predict(part, gpu, {size: value for size, value in sizes.items() if size in own}, constants=constants)
    return GraphPrediction(program.name, kernels)


def _kernel_of(program: Any) -> Kernel:
    """Return the final IR of a program."""
    kernel = program if isinstance(program, Kernel) else getattr(program, "lowered", None)
    if not isinstance(kernel, Kernel):
        legal = "a program, a compiled kernel, a bound strategy, a kernel IR"
        raise ArgumentError("predict: the argument is not a kernel", got=type(program).__name__, legal=legal)
    return kernel


__all__ = ["CONSTANTS", "Constants", "PhaseTime", "Prediction", "predict"]
