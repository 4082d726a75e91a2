"""State why a thread accesses fewer than 16 adjacent bytes at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fireiron.ir import Access, Buffer, Exec, For, Kernel, execs
from fireiron.lower.vectorize import obstacle
from fireiron.spec import Spec
from fireiron.values.expr import Const

WIDEST: Final = 16
"""Bytes of the widest load or store of a thread."""


def narrow_accesses(kernel: Kernel, operands: tuple[str, ...], origin: str | None) -> tuple[str, ...]:
    """Return a line for each array of a leaf that threads access in fewer bytes than possible, with the reason.

    The leaf is identified by the buffers of its operands, and by the line of the strategy. Of several statements for a buffer, as at the
    border of an array, the one with the widest access counts.
    """
    widest: dict[str, tuple[int, str]] = {}
    for stmt, loops in execs(kernel.body):
        if origin not in (None, stmt.origin) or tuple(access.buffer for access in stmt.accesses) != operands or stmt.collective:
            continue
        for position, access in enumerate(stmt.accesses):
            buffer, width = kernel.buffer(access.buffer), stmt.width(position)
            known = widest.get(access.buffer)
            if not buffer.memory.private and (known is None or width > known[0]):
                widest[access.buffer] = width, _reason(buffer, access, stmt, position, loops)
    return tuple(text for _, text in widest.values() if text)


def _reason(buffer: Buffer, access: Access, stmt: Exec, position: int, loops: Iterable[For]) -> str:
    """Return the line for an access; empty if the access is as wide as its elements allow."""
    size, width, count = buffer.dtype.bytes, stmt.width(position), len(access.elements())
    problems = (obstacle(buffer, access, wider) for wider in _wider(width, count, WIDEST // size) if not access.spread)
    problem = next((text for text in problems if text is not None), None)
    if problem is None and count == 1 and buffer.memory.of_grid and any(_is_adjacent(buffer, access, loop) for loop in loops):
        problem = _element_by_element(stmt.spec, position)
    return "" if problem is None else f"{buffer.name}: {width * size} bytes at once, because {problem}"


def _wider(width: int, count: int, most: int) -> Iterator[int]:
    """Yield the numbers of elements above `width` that an access of `count` elements could have, at most `most`."""
    while width * 2 <= most and count % (width * 2) == 0:
        width *= 2
        yield width


def _is_adjacent(buffer: Buffer, access: Access, loop: For) -> bool:
    """Whether successive iterations of a loop access adjacent elements."""
    element = access.elements()[0]
    following = access.substitute({loop.var: loop.var + 1})
    return buffer.address(following, element) - buffer.address(access, element) == Const(1)


def _element_by_element(spec: Spec, position: int) -> str:
    name = tuple(spec.operands)[position] if position < len(spec.operands) else ""
    text = "the instruction computes one element at a time"
    return f"{text}; .load({name!r}, RF, Move.done()) before done() copies adjacent elements" if name in spec.inputs else text


__all__ = ["narrow_accesses"]
