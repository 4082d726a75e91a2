"""Micro-kernels: a user's CUDA C++ for any spec (Fireiron, sections 2.1 and 3.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError
from fireiron.expr import as_expr, constant
from fireiron.ir import Exec, Stmt
from fireiron.machine import SH, Architecture, int8
from fireiron.spec import Spec
from fireiron.tensor import ColMajor, Tensor
from fireiron.tree import Context, Executable, Mismatch, execution


@attrs.frozen
class MicroKernel(Executable):
    """CUDA C++ text that performs a spec; its meaning is the spec's, so the simulator executes that, not the text.

    The text sees each operand by its name in lower case (`a`, `b`, `c`, `src`, `dst`), as a pointer to the first element of
    its view, or for a distributed operand as the thread's register array. For an operand `x` with dimensions `m`, `n`:
    `x_stride_m` is the step in elements, `x_size_m` the elements of the view that lie inside the tensor; and for a
    distributed operand `x_registers` and the functions `x_m(r)`, `x_n(r)`, the coordinates of register `r` in the view.
    `accumulate` is a bool for a MatMul. `scratch` points to `scratch_bytes` of shared memory of its own.

    `performs_spec`, if given, is the spec in its short form that it is meant for, compared with the residual spec's text.
    `threads` fixes the block's threads where nothing else does. `collective` says that all threads of the level take part
    and may touch any element of the operands (then the text contains the barriers it needs among its own accesses).
    """

    handles_edges: ClassVar[bool] = True

    text: str = ""
    performs_spec: str | None = None
    scratch_bytes: int = 0
    threads: int | None = None
    source: str | None = attrs.field(default=None, eq=False, repr=False)

    @staticmethod
    def of(text: str, **options: Any) -> MicroKernel:
        """A micro-kernel from CUDA C++ text, or from the name of a `.cu` file that is read now."""
        if "\n" not in text and text.endswith((".cu", ".cuh")):
            path = Path(text)
            if not path.is_file():
                raise ArgumentError(f"micro-kernel file {text} does not exist", hint="a path, or the CUDA C++ text itself")
            return MicroKernel(path.stem, path.read_text(), source=text, **options)
        if not text.strip():
            raise ArgumentError("the micro-kernel is empty", hint="CUDA C++ text, or the name of a .cu file")
        return MicroKernel("micro_kernel", text, **options)

    def performs(self) -> str:
        return self.performs_spec or "the residual spec"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if self.performs_spec is not None and self.performs_spec.replace(" ", "") != str(spec).replace(" ", ""):
            return (Mismatch("spec", self.performs_spec, str(spec)),)
        return tuple(
            Mismatch(f"{dim} size", "a size known before the kernel runs", str(size))
            for dim, size in zip(spec.dims, spec.sizes, strict=True)
            if constant(size) is None
        )

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        statement = execution(self, spec, context)
        if not self.scratch_bytes:
            return (statement,)
        size = as_expr(self.scratch_bytes)
        scratch = Tensor(context.fresh("scratch"), (size,), int8, SH, ColMajor, reuse=True, must_reuse=False, origin=context.origin)
        return (attrs.evolve(statement, scratch=scratch),)

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        return list(printer.micro_kernel(statement, self))

    def __str__(self) -> str:
        return f"micro-kernel {self.name}"
