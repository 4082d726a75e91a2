"""Names of operands in a strategy: `A`, or, as in the paper, `MatMul.a`."""

from __future__ import annotations

import attrs

from fireiron.errors import ArgumentError, call_site


@attrs.frozen(repr=False)
class Operand:
    """The name of an operand: `A` (the paper's `MatMul.a`), `B`, `C`, or `Move.src`."""

    name: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ArgumentError("an operand's name must be an identifier", got=self.name, at=call_site())

    def __repr__(self) -> str:
        return self.name if self.name in ("A", "B", "C") else repr(self.name)


A = Operand("A")
"""The left operand of a matmul, M x K; `MatMul.a`."""

B = Operand("B")
"""The right operand of a matmul, K x N; `MatMul.b`."""

C = Operand("C")
"""The result of a matmul, M x N; `MatMul.c`."""

SRC = Operand("src")
"""The source of a copy; `Move.src`."""

DST = Operand("dst")
"""The destination of a copy, an initialization, or elementwise work; `Move.dst`."""


def operand_name(value: object) -> str:
    """The name of an operand from an `Operand` or a string; `MatMul.a` of the paper is `A`. Raises: ArgumentError for other values."""
    if isinstance(value, Operand):
        return value.name
    if isinstance(value, str) and value.isidentifier():
        return value
    raise ArgumentError(
        "not an operand", got=value, legal='A B C MatMul.a Move.src, or the name of an operand as a text: "A"',
        at=call_site(), hint="if a variable of your file hides the name, use the text",
    )  # fmt: skip


__all__ = ["DST", "SRC", "A", "B", "C", "Operand"]
