"""Report a run, and place its arrays on the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fireiron.cli.output import FAILED, paint, print_json

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.kernel_graph.program import GraphProgram

EXACT: Final = "small integers with exact sums: all elements must be equal"
NORMAL: Final = "normally distributed numbers: each element must be within its derived error bound"
INTEGERS: Final = "normally distributed numbers, and -1, 0 or 1 in {}: each element must be within its derived error bound"


class Report:
    """A report that prints each line when it is known, or a JSON object at the end."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.values: dict[str, Any] = {}

    def __call__(self, name: str, value: Any, plain: Any = None, **more: Any) -> None:
        self.values |= {name: value if plain is None else plain} | more
        if not self.as_json:
            extra = "".join(
                f"  {' '.join(f'{key}={number}' for key, number in value.items())}" for value in more.values() if isinstance(value, dict)
            )
            print(f"{name:<12}  {value}{extra}", flush=True)

    def verdict(self, wrong: Mapping[str, Any] | None, untested: str = "") -> int:
        """Print whether the result is correct, and what was not tested. Return the exit status."""
        if self.as_json:
            more = ({} if wrong is None else {"wrong": dict(wrong)}) | ({"untested": untested} if untested else {})
            print_json(self.values | {"passed": wrong is None} | more)
        elif wrong is None:
            print(paint("PASS", 32) + (f", but {untested}" if untested else ""))
        else:
            print(paint("FAIL", 31) + f"  {wrong['message']}")
        return 0 if wrong is None else FAILED


def placed(cupy: Any, program: Program | GraphProgram, symbols: Mapping[str, int], name: str, array: Any) -> Any:
    """Return an array on the GPU with the strides that the kernel expects."""
    from fireiron.gpu.arguments import buffer_shape, byte_strides, evaluated

    buffer = program.stored(name)
    if buffer.memory.by_value:
        return array
    flat = cupy.zeros(evaluated(buffer.elements, symbols), dtype=buffer.dtype.to_numpy())
    placed = cupy.ndarray(buffer_shape(buffer, symbols), flat.dtype, flat.data, byte_strides(buffer, symbols))
    if array is not None:
        placed[...] = cupy.asarray(array)
    return placed


__all__ = ["EXACT", "INTEGERS", "NORMAL", "Report", "placed"]
