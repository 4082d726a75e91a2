"""Epilogues: a product of matrices and what becomes of its elements, as one definition that any strategy for the product takes.

    MatMul.epilogue("relu(acc + bias[n])")                        C[m,n], of A, B and bias
    MatMul.epilogue("acc = acc * alpha + R[m,n]; Z = acc; C = gelu(acc)", outputs="Z")

`acc` are the elements of the product, other names without indices numbers passed by value, names with indices operands of these dimensions.
"""

from __future__ import annotations

import re
from typing import Final

from fireiron.errors import ArgumentError
from fireiron.specs.formula import FUNCTIONS, REDUCTIONS, formula_of
from fireiron.specs.fused import Fused

ACC: Final = "acc"
"""What the elements of the product are called."""

RESULT: Final = "C"
PRODUCT: Final = "product"
"""The name of the step that is the product."""

_WORDS: Final = {*FUNCTIONS, *REDUCTIONS, "inf", "and", "or", "size"}
_DIMS: Final = ("m", "n", "k")


def epilogue(text: str, name: str = "gemm") -> Fused:
    """The definition of a product with an epilogue: a value for C, or assignments apart by `;` of which one is to C.

    A name that is assigned is a temporary if it has no indices and is not C, Z or another name in capitals; those in capitals, and what has
    indices, are operands.

    >>> print(epilogue("relu(acc + bias[n])")(m=64, n=32, k=16))
    gemm(64,32,16)(GL,GL,GL,GL)(Kernel)

    Raises: ArgumentError where the text is none.
    """
    if not isinstance(text, str) or not text.strip():
        raise ArgumentError("epilogue: a text such as relu(acc + bias[n])", got=text)
    statements = [_parted(part) for part in text.split(";") if part.strip()]
    if not any(target.partition("[")[0].strip() == RESULT for target, _, _ in statements):
        raise ArgumentError(f"epilogue: nothing is assigned to {RESULT}", got=text, hint=f"{RESULT} = relu(acc)")
    operands: dict[str, str] = {"A": "m k", "B": "k n"}
    steps = {PRODUCT: f"{ACC}[m,n] = sum(k, A[m,k] * B[k,n])"}
    results: dict[str, str] = {}
    known = {ACC}
    for number, (target, sign, value) in enumerate(statements):
        later = any(re.search(rf"\b{ACC}\b", other) for _, _, other in statements[number + 1 :])
        _statement(target, sign, value, later, steps, operands, results, known)
    return Fused(name=name, dims="m n k", operands={**operands, **results}, each=steps)


def _parted(part: str) -> tuple[str, str, str]:
    """A statement as target, sign and value; a value alone is one for C."""
    found = re.fullmatch(r"\s*(\w+(?:\s*\[[^\]]*\])?)\s*(\+=|=)(?!=)(.*)", part, re.DOTALL)
    return (found[1].strip(), found[2], found[3].strip()) if found else (RESULT, "=", part.strip())


def _statement(
    target: str,
    sign: str,
    value: str,
    later: bool,
    steps: dict[str, str],
    operands: dict[str, str],
    results: dict[str, str],
    known: set[str],
) -> None:
    """The steps of one statement, with the operands that it names."""
    whole = _indexed(value, known)
    name, _, index = target.partition("[")
    name = name.strip()
    place = f"{name}[{index}" if index else f"{name}[m,n]"
    for element in formula_of(f"x[m,n,k] = {whole}" if not _reduces(whole) else f"x[m,n] = {whole}").elements:
        if element.tensor not in known and element.tensor not in (*_DIMS,) and not element.tensor.startswith("size_"):
            operands.setdefault(element.tensor, " ".join(element.dims))
    if not index and not name[:1].isupper():
        known.add(name)
        steps[f"set_{name}{len(steps)}"] = f"{place} {sign} {whole}"
        return
    results[name] = " ".join(formula_of(f"{place} = 0").target.dims)
    plain = re.fullmatch(r"(\w+)\[m,n\]", whole)
    if (plain and plain[1] in known) or _reduces(whole) or sign != "=" or results[name] != "m n":
        steps[f"store_{name}"] = f"{place} {sign} {whole}"
        return
    made = ACC if not later else f"value_{name}"
    known.add(made)
    steps["epilogue" if name == RESULT else f"epilogue_{name}"] = f"{made}[m,n] = {whole}"
    steps[f"store_{name}"] = f"{place} = {made}[m,n]"


def _reduces(value: str) -> bool:
    return re.match(r"\s*(sum|max|min)\(\s*\w+\s*,", value) is not None


def _indexed(value: str, known: set[str]) -> str:
    """The value with the indices of temporaries."""

    def indexed(match: re.Match[str]) -> str:
        return f"{match[0]}[m,n]" if match[0] in known else match[0]

    return re.sub(r"\b[A-Za-z_]\w*\b(?!\s*[\[(])", indexed, re.sub(r"\s+", " ", value))
