"""Micro-kernels: a user's CUDA C++ for any spec (Fireiron, sections 2.1 and 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs

from fireiron import files
from fireiron.errors import ArgumentError, DecompositionError, call_folder, call_site
from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch, execution
from fireiron.spec import Spec
from fireiron.values.expr import as_expr, constant
from fireiron.values.machine import SH, Architecture, Block, as_integer, int8
from fireiron.values.tensor import ColMajor, Tensor

MOST_THREADS = 1024
MOST_SCRATCH = 2**20
"""Maximum number of scratch bytes: more than the shared memory of any block."""


@frozen
class MicroKernel(Executable):
    """CUDA C++ text that performs a spec. The simulator executes the meaning of the spec, not the text.

    In the text, the name of each operand in lower case (`a`, `b`, `c`, `src`, `dst`) is a pointer to the first element of
    its view, or, for a distributed operand of a whole block, the thread's register array. For an operand `x` with
    dimensions `m`, `n`: `x_at(i, j)` is an element, in any storage; `x_stride_m` is the stride in elements, if there is one;
    `x_size_m` is the number of elements of the view that are inside the tensor; and for a distributed operand `x_registers` and the
    functions `x_m(r)`, `x_n(r)`, the coordinates of register `r` in the view. `x_type` is the element type.
    `accumulate` is a bool for a MatMul. `scratch` points to `scratch_size` bytes of separate shared memory
    (the field `scratch_bytes`); the text should assert that they suffice.

    `performs_spec`, if given, is the short form of the spec that it performs; it must equal the text of the residual spec.
    `threads` is the number of threads of a block if no step determines it. At a level of several threads, all of them execute the text
    and may access any element of the operands; the text must contain the barriers between its own accesses.

    >>> from fireiron import *
    >>> dot = MicroKernel("dot", "for (int k = 0; k < a_size_k; ++k) c[0] += a_at(0, k) * b_at(k, 0);")
    >>> tiles = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread)
    >>> print(tiles.done(dot).result)
    MatMul(1,1,8)(GL,GL,GL)(Thread)
    """

    handles_edges: ClassVar[bool] = True
    tests_edges: ClassVar[bool] = True

    text: str = ""
    performs_spec: str | None = None
    scratch_bytes: int = 0
    threads: int | None = None
    source: str | None = attrs.field(default=None, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        for name, value in (("name", self.name), ("text", self.text)):
            if not isinstance(value, str) or not value.strip() or "\0" in value:
                raise ArgumentError(
                    f"micro-kernel: the {name} must be a text that is not empty",
                    got=value,
                    legal="CUDA C++, or the name of a .cu file",
                    at=call_site(),
                )
        if not self.name.isprintable() or self.name.endswith("\\"):
            raise ArgumentError(
                "micro-kernel: the name is printed in a comment, so it must be one line of text", got=self.name, at=call_site()
            )
        if self.performs_spec is not None and not isinstance(self.performs_spec, str):
            raise ArgumentError(
                "micro-kernel: performs_spec must be a text",
                got=self.performs_spec,
                legal='"MatMul(1,1,8)(RF,RF,GL)(Thread)"',
                at=call_site(),
            )
        for name, least, most in (("scratch_bytes", 0, MOST_SCRATCH), ("threads", 1, MOST_THREADS)):
            value = getattr(self, name)
            number = as_integer(value)
            if (number is None and not (name == "threads" and value is None)) or (number is not None and not least <= number <= most):
                raise ArgumentError(f"micro-kernel: {name} must be an integer", got=value, legal=f"{least} ... {most}", at=call_site())
            object.__setattr__(self, name, number)

    def __repr__(self) -> str:
        fields = (field for field in attrs.fields(MicroKernel) if field.repr and getattr(self, field.name) != field.default)
        return f"MicroKernel({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in fields)})"

    @staticmethod
    def of(text: str, **options: Any) -> MicroKernel:
        """Return a micro-kernel from CUDA C++ text, or from a `.cu` file, which this call reads.

        A relative name is searched next to the Python file of the caller, then in the working directory. Legal for a text that is not
        empty, or a readable file. The options are the other fields of the class.
        """
        if isinstance(text, str) and "\n" not in text and text.endswith((".cu", ".cuh")):
            return MicroKernel(Path(text).stem, _read(text), source=text, **options)
        return MicroKernel("micro_kernel", text, **options)

    def performs(self) -> str:
        return self.performs_spec or "the residual spec"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if self.performs_spec is not None and self.performs_spec.replace(" ", "") != spec.notation.replace(" ", ""):
            return (Mismatch("spec", self.performs_spec, spec.notation),)
        return tuple(
            Mismatch(f"{dim} size", "a size known before the kernel runs", str(size))
            for dim, size in zip(spec.dims, spec.sizes, strict=True)
            if constant(size) is None
        )

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        statement = execution(self, spec, draft)
        if not self.scratch_bytes:
            return (statement,)
        if spec.level != Block:
            raise DecompositionError(
                f"{self} requests scratch memory at the level {spec.level}", legal="Block", hint="use it for a spec of a whole block"
            )
        size = as_expr(self.scratch_bytes)
        scratch = Tensor(draft.fresh("scratch"), (size,), int8, SH, ColMajor, reuse=True, must_reuse=False, origin=draft.origin)
        return (attrs.evolve(statement, scratch=scratch),)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        return printer.micro_kernel(statement, self.text)

    def __str__(self) -> str:
        return f"micro-kernel {self.name}"


def _read(name: str) -> str:
    """Return the text of a file, which is searched next to the file of the strategy, then in the working directory."""
    folder_of_caller = call_folder()
    folders = dict.fromkeys(folder for folder in (folder_of_caller, Path.cwd()) if folder is not None)
    candidates = [folder / name for folder in folders]  # an absolute name is returned unchanged
    try:
        path = next((place for place in candidates if place.exists()), candidates[0])
        return files.bounded(path).decode("utf-8")
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        why = "it does not exist" if missing else getattr(error, "strerror", None) or "it is not text"
        tried = list(dict.fromkeys(map(str, candidates))) if missing else None
        hint = "pass a path, or the CUDA C++ text" + ("; the file is searched as " + " and ".join(tried) if tried else "")
        raise ArgumentError(f"the micro-kernel file {name!r} cannot be read: {why}", hint=hint, at=call_site()) from None


__all__ = ["MicroKernel"]
