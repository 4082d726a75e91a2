"""CUDA C++ that makes metadata of 2:4 sparse matrices legal, shared by mma.sp and wgmma.sp.

Copies write zeros past the end of an array, but PTX leaves equal places of two kept elements undefined ("Sparse matrix storage"). So four
bits of zeros become the places 0 and 1. Other bits do not change, so the operation may be repeated.
"""

from __future__ import annotations

from fireiron.ir.text import Function


def legal_word(word: str, result: str) -> tuple[str, ...]:
    """Return the lines that declare `result`, the legal metadata of an expression."""
    return (
        f"const unsigned places = {word} | {word} >> 1 | {word} >> 2 | {word} >> 3;",
        f"const unsigned {result} = {word} | (~places & 0x11111111u) << 2;",
    )


LEGAL_METADATA = Function(
    "legal_metadata",
    ("unsigned char (&metadata)[count]",),
    (
        "#pragma unroll",
        "for (int number = 0; number < count / 4; ++number) {",
        "  unsigned& word = reinterpret_cast<unsigned*>(metadata)[number];",
        "  const unsigned places = word | word >> 1 | word >> 2 | word >> 3;",
        "  word |= (~places & 0x11111111u) << 2;",
        '  asm volatile("" : "+r"(word) :: "memory");',
        "}",
    ),
    "keep the first two elements where metadata is zero, and compute it before wgmma reads it",
    "int count",
)
