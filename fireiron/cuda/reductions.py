"""Butterfly reductions over lanes as calls of one function: `quad_reduce_max(top)` for two shuffles and two maxima per element.

other[v] = shfl_xor(x[v], 2); x[v] = max(x[v], other[v]); other[v] = shfl_xor(x[v], 1); ...    -->    quad_reduce_max(x);
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import attrs

from fireiron.ir import Exec, Kernel
from fireiron.ir.text import Braces, Function, Item, Made, Path

_LOOP = re.compile(r"for \(int (\w+) = 0; \1 < (\d+); \+\+\1\)")
_SHUFFLE = re.compile(r"(\w+)\[i\] = __shfl_xor_sync\(0xffffffff, (\w+)\[i\], (\d+)\);")
_COMBINE = re.compile(r"(\w+)\[i\] = (?:\1\[i\] (\+) (\w+)\[i\]|(f?(?:max|min)f?)\(\1\[i\], (\w+)\[i\]\));")
_NAMES = {"+": "sum", "max": "max", "min": "min"}
_LANES = {2: "pair", 4: "quad", 32: "warp"}


@attrs.frozen
class _Step:
    """A shuffle of an array to another, and what combines them: the text of that with `{}` for both values."""

    values: str
    other: str
    mask: int
    count: int
    text: str
    steps: tuple[Path, ...]


def is_shuffle(stmt: Exec) -> bool:
    """Whether a statement exchanges registers between the lanes of butterflies."""
    return stmt.spec.kind.title == "Shfl"


def with_reductions(items: Sequence[Item], kernel: Kernel, function: Callable[[Function], str]) -> list[Item]:
    """Items with a call for each run of shuffles over a power of two of adjacent lanes; `function` gives the name of a helper."""
    result: list[Item] = []
    position = 0
    while position < len(items):
        run = list(_run(items, position, kernel))
        if run and [step.mask for step in run] == [1 << power for power in reversed(range(len(run)))]:
            steps = tuple(dict.fromkeys(path for step in run for path in step.steps))
            call = f"{function(_function(run, kernel))}({run[0].values});"
            result.append(Made(call, steps) if steps else call)
            position += 2 * len(run)
        else:
            result.append(items[position])
            position += 1
    return result


def _run(items: Sequence[Item], position: int, kernel: Kernel) -> Iterator[_Step]:
    """The steps of one reduction that begin at a position."""
    first: _Step | None = None
    while position + 1 < len(items) and (step := _step(items[position], items[position + 1], kernel)) is not None:
        if first is not None and (step.values, step.other, step.text) != (first.values, first.other, first.text):
            return
        first = first or step
        yield step
        position += 2


def _step(first: Item, second: Item, kernel: Kernel) -> _Step | None:
    one, other = _elementwise(first), _elementwise(second)
    shuffle = _SHUFFLE.fullmatch(one[1]) if one else None
    combine = _COMBINE.fullmatch(other[1]) if other else None
    if one is None or other is None or shuffle is None or combine is None or one[0] != other[0]:
        return None
    received = combine[3] or combine[5]
    names = {buffer.name: buffer for buffer in kernel.buffers}
    values = names.get(shuffle[2])
    if (shuffle[1], shuffle[2]) != (received, combine[1]) or values is None or received not in names or values.elements.high != one[0]:
        return None
    text = "{} + {}" if combine[2] else f"{combine[4]}({{}}, {{}})"
    return _Step(shuffle[2], received, int(shuffle[3]), one[0], text, (*one[2], *other[2]))


def _elementwise(item: Item) -> tuple[int, str, tuple[Path, ...]] | None:
    """The number of elements that a line is for, the line with the index `i`, and its steps."""
    item, steps = _bare(item)
    if isinstance(item, Braces):
        loop = _LOOP.fullmatch(str(item.head))
        if loop is None or item.pragma != "#pragma unroll" or len(item.body) != 1:
            return None
        line, inner = _bare(item.body[0])
        return None if isinstance(line, Braces) else (int(loop[2]), str(line).replace(f"[{loop[1]}]", "[i]"), (*steps, *inner))
    return 1, str(item).replace("[0]", "[i]"), steps


def _bare(item: Item) -> tuple[Item, tuple[Path, ...]]:
    steps: tuple[Path, ...] = ()
    while isinstance(item, Made):
        steps = item.steps
        item = item.item
    return item, steps


def _function(run: Sequence[_Step], kernel: Kernel) -> Function:
    """The function that reduces each element of an array over lanes, which all get the result."""
    lanes, kind = 1 << len(run), kernel.buffer(run[0].values).dtype.cuda
    operation = _NAMES["+" if "+" in run[0].text else "max" if "max" in run[0].text else "min"]
    name = f"{_LANES.get(lanes, f'lanes{lanes}')}_reduce_{operation}"
    body = (
        "#pragma unroll",
        f"for (int mask = {lanes // 2}; mask > 0; mask /= 2) {{",
        f"  {kind} other[N];",
        "  #pragma unroll",
        "  for (int i = 0; i < N; ++i)",
        "    other[i] = __shfl_xor_sync(0xffffffff, x[i], mask);",
        "  #pragma unroll",
        "  for (int i = 0; i < N; ++i)",
        f"    x[i] = {run[0].text.format('x[i]', 'other[i]')};",
        "}",
    )
    what = {"sum": "sum", "max": "maximum", "min": "minimum"}[operation]
    return Function(name, (f"{kind} (&x)[N]",), body, f"{what} of each element over {lanes} adjacent lanes, in all of them", "int N")


__all__ = ["is_shuffle", "with_reductions"]
