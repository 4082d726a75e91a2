"""`Reduction`: the sum, maximum, minimum or product of elements along one or more dimensions (Graphene, Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Unpack

from fireiron.errors import ArgumentError
from fireiron.generated_verbs import ForReduction
from fireiron.spec import Kind, OfMatrices, Parameter, SpecShape, Starter, short_form
from fireiron.specs.formula import NAMES, REDUCTIONS
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, as_integer, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.generated_verbs import ReductionSpec


class ReductionStarter(ForReduction, Starter):
    """The starter `Reduction`."""

    @short_form
    def __call__(
        self,
        *sizes: Expr | int,
        by: str = "sum",
        axes: int | tuple[int, ...] | None = None,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        accumulate: Expr | bool = False,
        signature: str = "",
        order: StorageOrder = ColMajor,
        src: StorageOrder | None = None,
        dst: StorageOrder | None = None,
        **named: Unpack[OfMatrices],
    ) -> SpecShape[ReductionSpec]:
        """Specify `dst (M x N) = sum over p of src (M x N x P)`, of any rank.

        The calls take the sizes, then the memories of src and dst, then the level. `by` is `sum`, `max`, `min` or `prod`. Sizes are those
        of src. The last dimension is reduced, or, if `axes` is given, the dimensions at these positions. With a signature such as
        `pmn->mn`, sizes are those of dst, then those of the reduced dimensions.

        >>> from fireiron import *
        >>> print(Reduction(64, 32, 4)(GL, GL)(Kernel).tile(32, 32).to(Block).tile(1, 1).to(Thread).result)
        Reduction(1,1,4)(GL,GL)(Thread)
        """
        if axes is not None:
            sizes, signature = _along(sizes, axes, signature)
        options = {"accumulate": accumulate, "by": by, "signature": signature}
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, order, **options)


def _along(sizes: tuple[Any, ...], axes: Any, signature: str) -> tuple[tuple[Any, ...], str]:
    """Return the signature that reduces the dimensions of src at positions `axes`, after the sizes in the order of that signature."""
    given = axes if isinstance(axes, tuple) else (axes,)
    places = {axis + len(sizes) if axis < 0 else axis for given_axis in given if (axis := as_integer(given_axis)) is not None}
    has_signature = not isinstance(signature, str) or signature != ""
    if has_signature or len(places) != len(given) or not 0 < len(places) < len(sizes) <= len(NAMES) or not places <= set(range(len(sizes))):
        raise ArgumentError(
            "Reduction: axes must be positions of some dimensions of src, but not of all", got=axes, legal=f"0 to {len(sizes) - 1}"
        )
    kept = [axis for axis in range(len(sizes)) if axis not in places]
    order = [*kept, *sorted(places)]
    return tuple(sizes[axis] for axis in order), f"{NAMES[: len(sizes)]}->{''.join(NAMES[axis] for axis in kept)}"


Reduction: Final = ReductionStarter(
    Kind("Reduction", "dst[...] {by}= {by}(p, src[...,p])", (Parameter("by", "sum", text=True, legal=tuple(REDUCTIONS)),))
)

__all__ = ["Reduction"]
