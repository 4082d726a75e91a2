"""What is said to somebody who calls a strategy with anything but one spec: sizes, arrays, a shape that nobody has placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fireiron.errors import ArgumentError, call_site, shown
from fireiron.spec import AnyStarter, PlacedShape, Spec, SpecShape, Starter
from fireiron.values.expr import Expr

LEGAL: Final = "one spec, such as MatMul(M, N, K)(GL, GL, GL)(Kernel)"


def not_a_spec(given: tuple[Any, ...], named: Mapping[str, Any]) -> ArgumentError:
    """The error of a strategy that is called with these arguments, and keywords."""
    first = given[0] if given else None
    if isinstance(first, (SpecShape, PlacedShape)):
        return _unfinished(first)
    values = (*given, *named.values())
    hint = "kernel = strategy(spec).compile(), and kernel(a, b) for arrays"
    if values and all(isinstance(one, (int, Expr)) for one in values):
        sizes = ", ".join(str(one) if isinstance(one, Expr) else shown(one) for one in values)
        hint = f"sizes belong to the spec: strategy(MatMul({sizes})(GL, GL, GL)(Kernel))"
    got = ", ".join([*(_called(one) for one in given), *(f"{name}={_called(one)}" for name, one in named.items())])
    return ArgumentError(f"a strategy is bound to a spec, not to ({got})", legal=LEGAL, at=call_site(), hint=hint)


def _unfinished(shape: SpecShape[Any] | PlacedShape[Any]) -> ArgumentError:
    """A short form that does not say yet where operands lie, or who computes."""
    of = shape if isinstance(shape, SpecShape) else shape.shape
    said = f"{of.kind.title}({', '.join(map(str, of.sizes))})"
    places = f"({', '.join('GL' for _ in of.dtypes)})"
    if isinstance(shape, PlacedShape):
        said, lacks = f"{said}({', '.join(map(str, shape.memories))})", "(Kernel)"
    else:
        lacks = f"{places}(Kernel)"
    return ArgumentError(
        f"a strategy is bound to a spec, and {said} is none yet", legal=LEGAL, at=call_site(), hint=f"strategy({said}{lacks})"
    )


def _called(value: object) -> str:
    """What messages call an argument: numbers and specs as they are, arrays by their shapes, and the type of anything else."""
    if isinstance(value, (int, Starter, AnyStarter)):
        return shown(value)
    if isinstance(value, (Expr, Spec)):
        return str(value)
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {'x'.join(map(str, shape))}" if isinstance(shape, tuple) and shape else type(value).__name__
