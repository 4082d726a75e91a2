"""Where a kernel is to run, which records answer there, and which programs the arrays and the compiler accept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.errors import FireironError, LaunchError
from fireiron.front.arrays import MOST_ALIGNED
from fireiron.values.machine import DEFAULT_ARCHITECTURE, Architecture, as_architecture

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.spec import Spec
    from fireiron.tune.records import Accept, Choice, Records
    from fireiron.tune.records.choosing import Prove

Aligned = Mapping[str, int]
"""Bytes by operand; what is not named is new memory, which is always aligned."""

Chooser = Callable[[], tuple["Choice", int]]
"""What chooses, and for which of several problems."""


@attrs.frozen
class Place:
    """The target, the GPU or None for the simulator, and whether an exact record is required."""

    architecture: Architecture
    device: int | None
    require_record: bool

    @classmethod
    def of(cls, device: int | None, arch: Any, require_record: bool | None) -> Place:
        """That of arrays on a GPU, or the host, for the arguments `arch` and `require_record` of a call."""
        from fireiron.tune.records import requires_record

        return cls(as_architecture(target_of(device) if arch is None else arch), device, requires_record(require_record))

    @property
    def gpu(self) -> str | None:
        """What the GPU calls itself; None for the host."""
        return gpu_name(self.device)

    @property
    def records(self) -> Records:
        """The records that may answer."""
        from fireiron.tune.records import available

        return available(self.require_record)

    def find(
        self, spec: Spec, accept: Accept, near: bool = False, lowered: Spec | None = None, prove: Prove | None = None
    ) -> Choice | None:
        """The record of exactly a spec, or with `near` else that of a neighbour; `prove` proves its program, by default `self.prove`."""
        from fireiron.tune.records import choosing

        question = choosing.Question(spec, self.architecture, self.gpu, {}, accept, lowered, prove or self.prove)
        records = self.records.records
        return choosing.exact(records, question) or (choosing.nearest(records, question) if near else None)

    def by_tiles(self, spec: Spec, accept: Accept, prove: Prove | None = None, below: float = math.inf) -> Choice | None:
        """The tile that is expected to take less time than all others, and than `below` microseconds, by records of other problems."""
        from fireiron.tune.records import choosing, tiles

        question = choosing.Question(spec, self.architecture, self.gpu, {}, accept, None, prove or self.prove)
        return tiles.by_tiles(self.records.records, question, below)

    def prove(self, program: Program) -> None:
        """Make the final IR of a program that is about to be compiled, which all checks passed; on a GPU the compiler runs meanwhile.

        Raises: what `Program.ir` raises.
        """
        if self.device is None:
            _ = program.ir
            return
        from fireiron.gpu import early

        early.prove(program)

    def exact_record(self, spec: Spec, accept: Accept) -> Choice:
        """The record of exactly a spec; a StoreError where there is none."""
        return self.records.best(spec, self.architecture, neighbours=False, gpu=self.gpu, accept=accept)

    def chosen(self, call: str, asked: tuple[Any, ...], choose: Chooser) -> tuple[Choice, int]:
        """What another process chose here for the same, else what is chosen now, and kept."""
        from fireiron.tune.records import kept

        return kept.chosen(call, self.architecture, self.device, asked, choose)

    def refusal(self, kernel: CompiledKernel) -> LaunchError | None:
        """Why the compiler here refuses a kernel; None where it does not, and in the simulator."""
        return None if self.device is None else refused_by_compiler(kernel)

    def first_legal(self, programs: Iterable[tuple[str, Callable[[], Program]]], aligned: Aligned, refusals: list[str]) -> Program | None:
        """The first program that is legal and that the arrays serve; to `refusals` is added why others are not."""
        from fireiron.tune.records.choosing import prove_only

        for name, make in programs:
            try:
                program = make()
                is_served = fits(aligned, program)
                (self.prove if is_served else prove_only)(program)
            except FireironError as error:
                refusals.append(f"{name}: {error.headline}")
                continue
            if is_served:
                return program
            refusals.append(f"{name}: the arrays are aligned to {dict(aligned)} bytes, it needs {needed(program)}")
        return None


def needed(program: Program) -> dict[str, int]:
    """The bytes to which a program needs its arrays aligned."""
    aligned: dict[str, int] = {}
    for launch in program.launches:
        for buffer in launch.program.sequential.buffers:
            array = launch.arrays.get(buffer.name, "")
            if buffer.parameter and array in program.spec.operands and not buffer.memory.by_value:
                aligned[array] = max(aligned.get(array, 1), buffer.tensor.align)
    return aligned


def fits(aligned: Aligned, program: Program) -> bool:
    """Whether arrays are aligned as a program needs them."""
    return all(aligned.get(name, MOST_ALIGNED) >= align for name, align in needed(program).items())


def refused_by_compiler(kernel: CompiledKernel) -> LaunchError | None:
    """Why the compiler refuses a kernel with a producer; None where it does not, where there is none, and for all other kernels."""
    if not kernel.ir.rings or kernel.compiler is None:
        return None
    try:
        _ = kernel.compiled
    except LaunchError as error:
        return error
    return None


def gpu_name(device: int | None) -> str | None:
    """What a GPU calls itself; None for the host."""
    from fireiron.tune.records import kept

    return None if device is None else kept.device_name(device)


def target_of(device: int | None) -> str:
    """The best target of a GPU; the default one for the simulator."""
    if device is None:
        return DEFAULT_ARCHITECTURE
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for

    cupy = launch.require_cupy()
    with cupy.cuda.Device(device):
        return target_for(launch.device_arch())


__all__ = ["Aligned", "Place", "fits", "gpu_name", "needed", "refused_by_compiler", "target_of"]
