"""The step that makes launches of a GEMM at the level `Sequence`: of parts of its rows, or of parts of k.

Parts of k are accumulated into C by the steps of the chain, one launch after the other; with separate steps, `product`, they go to
temporaries, which the chain sums.
"""

from typing import ClassVar

import attrs

from fireiron import GL, BinaryPointwise, Decomposition
from fireiron.errors import DecompositionError
from fireiron.language.launching import Launches, LaunchRequest
from fireiron.values.expr import TRUE, as_expr, constant
from fireiron.values.machine import Kernel
from fireiron.values.tensor import Dim, Fixed, Mode, RowMajor, Tensor, whole_view
from toys.sequence import SEQUENCE


@attrs.frozen
class InLaunches(Decomposition):
    """`MatMul(..)(Sequence) --> MatMul(..)(Kernel); MatMul(..)(Kernel); ...`"""

    verb: ClassVar[str] = "in_launches"
    makes_launches: ClassVar[bool] = True
    dim: str = "k"
    parts: int = 2
    product: tuple[Decomposition, ...] = ()

    def launches(self, spec, given):
        size = constant(spec.size(self.dim))
        if spec.level != SEQUENCE or size is None or size % self.parts:
            raise DecompositionError(f"in_launches({self.dim}): {self.parts} parts of {size} at {spec.level}", within=spec)
        parts = [self._part(spec, number, size // self.parts) for number in range(self.parts)]
        if self.product:
            return self._summed(spec, parts)
        parts = [part.with_options(accumulate=TRUE) if self.dim == "k" and number else part for number, part in enumerate(parts)]
        return Launches(tuple(LaunchRequest(f"part{number}", part) for number, part in enumerate(parts[:-1])), parts[-1])

    def _part(self, spec, number, size):
        """The GEMM of one part of the dimension, on parts of the same arrays."""
        part = Dim((Mode(as_expr(size), as_expr(1)),), None, (Fixed(as_expr(self.parts), as_expr(size), False, as_expr(number)),))
        views = {name: spec.operands[name] for name, dims in spec.uses.items() if self.dim in dims}
        return spec.at_level(Kernel, **{name: view.with_dims({spec.uses[name].index(self.dim): part}) for name, view in views.items()})

    def _summed(self, spec, parts):
        """The GEMMs of parts of k, each into a temporary, and their sum."""
        M, N = spec.C.tensor.shape
        sums = [whole_view(Tensor(f"sum{number}", (M, N), spec.C.dtype, GL, RowMajor)) for number in range(2)]
        before = [
            LaunchRequest(f"part{number}", part.with_operands(C=view), "its terms are added apart", self.product)
            for number, (part, view) in enumerate(zip(parts, sums, strict=True))
        ]
        total = BinaryPointwise("+", M, N, dtype=spec.C.dtype)(GL, GL, GL)(Kernel)
        return Launches(tuple(before), total.with_operands(**dict(zip(total.uses, (*sums, spec.C), strict=True))))
