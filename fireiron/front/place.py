"""Determine the target and GPU of a call, choose a record for them, and select a program that fits the arrays and the compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fireiron.errors import FireironError, LaunchError
from fireiron.front.arrays import MOST_ALIGNED
from fireiron.frozen import frozen
from fireiron.values.machine import DEFAULT_ARCHITECTURE, Architecture, as_architecture

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.spec import Spec
    from fireiron.tune.record import Record
    from fireiron.tune.records import Accept, Choice, Records
    from fireiron.tune.records.choosing import Bind, Prove

Aligned = Mapping[str, int]
"""Alignment in bytes by operand. Operands without an entry are new memory, which is always aligned."""

Chooser = Callable[[], tuple["Choice", int]]
"""A function that returns a choice, and the index of its problem."""


@frozen
class Place:
    """The target, the GPU (None for the simulator), and whether an exact record is required."""

    architecture: Architecture
    device: int | None
    require_record: bool

    @classmethod
    def of(cls, device: int | None, arch: Any, require_record: bool | None) -> Place:
        """Return the place of arrays on a GPU or the host (None), for the arguments `arch` and `require_record` of a call."""
        from fireiron.tune.records import requires_record

        return cls(as_architecture(target_of(device) if arch is None else arch), device, requires_record(require_record))

    @property
    def gpu(self) -> str | None:
        """The name of the GPU; None for the host."""
        return gpu_name(self.device)

    @property
    def records(self) -> Records:
        """The records in use."""
        from fireiron.tune.records import available

        return available(self.require_record)

    def find(
        self,
        spec: Spec,
        accept: Accept,
        near: bool = False,
        lowered: Spec | None = None,
        prove: Prove | None = None,
        bind: Bind | None = None,
    ) -> Choice | None:
        """Return the choice by the record of exactly this spec, or with `near` by the record of the nearest problem.

        `prove` checks the program of the record (default: `self.prove`). `bind` binds its strategy to a spec with further work.
        """
        from fireiron.tune.records import choosing

        question = choosing.Question(spec, self.architecture, self.gpu, {}, accept, lowered, prove or self.prove, bind)
        records = self.records.records
        return choosing.exact(records, question) or (choosing.nearest(records, question) if near else None)

    def exact_records(self, spec: Spec) -> list[Record]:
        """Return the records of exactly this spec, legal or not, the fastest first."""
        from fireiron.tune.records import choosing

        return choosing.for_spec(self.records.records, spec, self.architecture)

    def by_tiles(
        self,
        spec: Spec,
        accept: Accept,
        prove: Prove | None = None,
        below: float = math.inf,
        lowered: Spec | None = None,
        bind: Bind | None = None,
    ) -> Choice | None:
        """Return the tile with the least expected time, according to records of other problems.

        Return None if that time is not below `below` microseconds. `lowered` is the spec of the program (default: `spec`). `bind` binds
        the strategy to a spec with further work.
        """
        from fireiron.tune.records import choosing, tiles

        question = choosing.Question(spec, self.architecture, self.gpu, {}, accept, lowered, prove or self.prove, bind)
        return tiles.by_tiles(self.records.records, question, below)

    def prove(self, program: Program, *others: Program) -> None:
        """Lower and check programs before they are compiled; for a GPU the compiler runs concurrently.

        Raises: the errors of `Program.ir`.
        """
        if self.device is None:
            for checked in (program, *others):
                _ = checked.ir
            return
        from fireiron.gpu import early

        early.prove(program, *others)

    def exact_record(self, spec: Spec, accept: Accept) -> Choice:
        """Return the choice by the record of exactly this spec. Raises: `StoreError` if there is none."""
        return self.records.best(spec, self.architecture, neighbors=False, gpu=self.gpu, accept=accept)

    def chosen(self, call: str, key: tuple[Any, ...], choose: Chooser) -> tuple[Choice, int]:
        """Return the choice that another process cached for the same problem. Without it, make and cache a new choice."""
        from fireiron.tune.records import choice_cache

        return choice_cache.chosen(call, self.architecture, self.device, key, choose)

    def refusal(self, kernel: CompiledKernel) -> LaunchError | None:
        """Return the compiler's error for a kernel; None if there is no error, or in the simulator."""
        return None if self.device is None else refused_by_compiler(kernel)

    def first_legal(self, programs: Iterable[tuple[str, Callable[[], Program]]], aligned: Aligned, refusals: list[str]) -> Program | None:
        """Return the first legal program whose required alignment the arrays have.

        The reasons against the other programs are appended to `refusals`.
        """
        from fireiron.tune.records.choosing import prove_only

        for name, make in programs:
            try:
                program = make()
                is_aligned = fits(aligned, program)
                (self.prove if is_aligned else prove_only)(program)
            except FireironError as error:
                refusals.append(f"{name}: {error.headline}")
                continue
            if is_aligned:
                return program
            refusals.append(f"{name}: the arrays are aligned to {dict(aligned)} bytes, but it requires {needed(program)}")
        return None


def needed(program: Program) -> dict[str, int]:
    """Return the alignment in bytes that a program requires, by array."""
    aligned: dict[str, int] = {}
    for launch in program.launches:
        for buffer in launch.program.sequential.buffers:
            array = launch.arrays.get(buffer.name, "")
            if buffer.parameter and array in program.spec.operands and not buffer.memory.by_value:
                aligned[array] = max(aligned.get(array, 1), buffer.tensor.align)
    return aligned


def fits(aligned: Aligned, program: Program) -> bool:
    """Return whether arrays have the alignment that a program requires."""
    return all(aligned.get(name, MOST_ALIGNED) >= align for name, align in needed(program).items())


def refused_by_compiler(kernel: CompiledKernel) -> LaunchError | None:
    """Return the compiler's error for a warp-specialized kernel.

    Return None if there is no error, without a compiler, and for other kernels.
    """
    if not kernel.ir.rings or kernel.compiler is None:
        return None
    try:
        _ = kernel.compiled
    except LaunchError as error:
        return error
    return None


def gpu_name(device: int | None) -> str | None:
    """Return the name of a GPU; None for the host."""
    from fireiron.tune.records import choice_cache

    return None if device is None else choice_cache.device_name(device)


def target_of(device: int | None) -> str:
    """Return the best target of a GPU; the default target for the simulator."""
    if device is None:
        return DEFAULT_ARCHITECTURE
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for

    cupy = launch.require_cupy()
    with cupy.cuda.Device(device):
        return target_for(launch.device_arch())


__all__ = ["Aligned", "Place", "fits", "gpu_name", "needed", "refused_by_compiler", "target_of"]
