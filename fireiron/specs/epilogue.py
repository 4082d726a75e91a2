"""Epilogues: a product of matrices and what becomes of its elements, as one definition that any strategy for the product takes.

    MatMul.fuse_epilogue("relu(acc + bias[n])")                        C[m,n], of A, B and bias
    MatMul.fuse_epilogue("acc = acc * alpha + R[m,n]; Z = acc; C = gelu(acc)", outputs="Z")

`acc` are the elements of the product, other names without indices numbers passed by value, names with indices operands of these dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.specs.formula import FUNCTIONS, REDUCTIONS, formula_of
from fireiron.specs.fused import INDICES, Fused, with_extents
from fireiron.values.expr import FALSE
from fireiron.values.machine import DType, float32

if TYPE_CHECKING:
    from fireiron.spec import Spec

ACC: Final = "acc"
"""What the elements of the product are called."""

RESULT: Final = "C"
PRODUCT: Final = "product"
"""The name of the step that is the product."""

_WORDS: Final = {*FUNCTIONS, *REDUCTIONS, "inf", "and", "or", "size"}
_MATRICES: Final = "mk,kn->mn"


def epilogue(text: str, name: str = "gemm", types: Mapping[str, Any] | None = None, signature: str = "") -> Fused:
    """The definition of a product with an epilogue: a value for C, or assignments apart by `;` of which one is to C.

    A name that is assigned is a temporary if it has no indices and is not C, Z or another name in capitals; those in capitals, and what has
    indices, are operands.

    `types` are those of temporaries where they are not float32, such as `acc`; `signature` is the product where it is another one than
    that of two matrices, as for a spec: `bmk,bkn->bmn`.

    >>> print(epilogue("relu(acc + bias[n])")(m=64, n=32, k=16).notation)
    gemm(64,32,16)(GL,GL,GL,GL)(Kernel)
    >>> print(epilogue("acc * r[b,m]", signature="bmk,kn->bmn")(b=4, m=64, n=32, k=16).notation)
    gemm(4,64,32,16)(GL,GL,GL,GL)(Kernel)

    Raises: ArgumentError where the text is none.
    """
    if not isinstance(text, str) or not text.strip():
        hint = "the step that keeps sums in registers is epilog(RF)"
        raise ArgumentError("epilogue: a text such as relu(acc + bias[n])", got=text, hint=hint, at=call_site())
    statements = [_parted(part) for part in text.split(";") if part.strip()]
    if not any(target.partition("[")[0].strip() == RESULT for target, _, _ in statements):
        raise ArgumentError(f"epilogue: nothing is assigned to {RESULT}", got=text, hint=f"{RESULT} = relu(acc)")
    made = _Made(*_sides(signature))
    for number, (target, sign, value) in enumerate(statements):
        made.statement(target, sign, value, any(re.search(rf"\b{ACC}\b", other) for _, _, other in statements[number + 1 :]))
    return Fused(name=name, dims=" ".join(made.dims), operands={**made.operands, **made.results}, body=made.steps, types=types)


def _sides(signature: str) -> tuple[str, str, str]:
    """The dimensions of A, B and C, a letter each."""
    found = re.fullmatch(r"([a-z]+),([a-z]+)->([a-z]+)", signature or _MATRICES)
    if found is None or not (set(found[1]) & set(found[2])) - set(found[3]):
        raise ArgumentError("epilogue: the signature is that of no product", got=signature, legal="mk,kn->mn bmk,bkn->bmn ...")
    return found[1], found[2], found[3]


def _parted(part: str) -> tuple[str, str, str]:
    """A statement as target, sign and value; a value alone is one for C."""
    found = re.fullmatch(r"\s*(\w+(?:\s*\[[^\]]*\])?)\s*(\+=|max=|min=|\*=|=)(?!=)(.*)", part, re.DOTALL)
    return (found[1].strip(), found[2], found[3].strip()) if found else (RESULT, "=", part.strip())


@attrs.define
class _Made:
    """The steps and operands of a definition, as statements make them; `left`, `right` and `result` are the dimensions of A, B and C."""

    left: str
    right: str
    result: str
    operands: dict[str, str] = attrs.field(factory=dict, init=False)
    results: dict[str, str] = attrs.field(factory=dict, init=False)
    steps: dict[str, str] = attrs.field(factory=dict, init=False)
    known: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.operands |= {"A": " ".join(self.left), "B": " ".join(self.right)}
        summed = ", ".join(self.dims[len(self.result) :])
        factors = f"A[{','.join(self.left)}] * B[{','.join(self.right)}]"
        self.steps[PRODUCT] = f"{ACC}{self.place} = sum({summed}, {factors})"
        self.known.add(ACC)

    @property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the result, then those that are reduced."""
        return tuple(dict.fromkeys((*self.result, *self.left, *self.right)))

    @property
    def place(self) -> str:
        """The indices of an element of the result."""
        return f"[{','.join(self.result)}]"

    def statement(self, target: str, sign: str, value: str, later: bool) -> None:
        """The steps of one statement, with the operands that it names; `later` says whether elements of the product are read behind it."""
        whole = self._indexed(value)
        name, _, index = target.partition("[")
        name = name.strip()
        place = f"{name}[{index}" if index else f"{name}{self.place}"
        every = f"x[{','.join(self.dims)}]" if not _reduces(whole) else place
        for element in formula_of(with_extents(f"{every} = {whole}")).elements:
            if element.tensor not in self.known and element.tensor not in self.dims and not element.tensor.startswith("size_"):
                self.operands.setdefault(element.tensor, " ".join(element.dims))
        if not index and not name[:1].isupper():
            self.known.add(name)
            self.steps[f"set_{name}{len(self.steps)}"] = f"{place} {sign} {whole}"
            return
        self.results[name] = " ".join(formula_of(f"{place} = 0").target.dims)
        whole = self._of_terms(name, whole)
        plain = re.fullmatch(rf"(\w+){re.escape(self.place)}", whole)
        sign = "=" if _reduces(whole) and sign == REDUCTIONS[whole.partition("(")[0].strip()] else sign  # onto what changes nothing
        if (plain and plain[1] in self.known) or _reduces(whole) or sign != "=" or self.results[name] != " ".join(self.result):
            self.steps[f"store_{name}"] = f"{place} {sign} {whole}"
            return
        made = ACC if not later else f"value_{name}"
        self.known.add(made)
        self.steps["epilogue" if name == RESULT else f"epilogue_{name}"] = f"{made}{self.place} = {whole}"
        self.steps[f"store_{name}"] = f"{place} = {made}{self.place}"

    def _of_terms(self, name: str, whole: str) -> str:
        """The sum for an output; terms that are an expression become a temporary of their own."""
        found = re.fullmatch(r"\s*(sum|max|min|prod)\(((?:\s*\w+\s*,)+)(.*)\)\s*", whole)
        plain = found is None or re.fullmatch(r"\s*\w+\s*\[[^\]]*\]\s*", found[3])
        if found is None or plain or not set(re.findall(r"\w+", found[2])) <= set(self.result):
            return whole
        terms = f"terms_{name}{self.place}"
        self.steps[f"terms_{name}"] = f"{terms} = {found[3].strip()}"
        return f"{found[1]}({found[2].strip()} {terms})"

    def _indexed(self, value: str) -> str:
        """The value with the indices of temporaries."""

        def indexed(match: re.Match[str]) -> str:
            return f"{match[0]}{self.place}" if match[0] in self.known else match[0]

        return re.sub(r"\b[A-Za-z_]\w*\b(?!\s*[\[(])", indexed, re.sub(r"\s+", " ", value))


def _reduces(value: str) -> bool:
    return re.match(r"\s*(sum|max|min|prod)\(\s*\w+\s*,", value) is not None


def with_epilogue(spec: Spec, text: str, types: Mapping[str, Any], orders: Mapping[str, Any], acc: DType | None = None) -> Spec:
    """A product's spec with an epilogue: the same sizes, types and storage; `acc` is the type in which it is added up.

    `types` and `orders` are those of further operands; without, a type is that of C (of numbers, and of outputs with fewer dimensions,
    float32), and storage is row-major.

    Raises: ArgumentError for a spec that is no product of arrays in global memory, and for what the definition refuses.
    """
    if not spec.contracts or not spec.level.is_launch or spec.accumulate != FALSE:
        hint = "acc + C0[m,n] adds to an array" if spec.contracts and spec.accumulate != FALSE else None
        raise ArgumentError(f"epilogue: {spec} is no product for the whole kernel", legal="MatMul(M,N,K)(GL,GL,GL)(Kernel)", hint=hint)
    definition = epilogue(text, types={} if acc is None else {ACC: acc}, signature=signature_of(spec))
    made = definition.made
    further = [one for one in made.uses if one not in spec.operands and not one.startswith(INDICES)]
    unknown = [one for one in (*types, *orders) if one not in further]
    if unknown:
        raise ArgumentError(f"epilogue: {unknown[0]} is no further operand of it", got=text, legal=further or "none")
    rank = len(spec.uses[RESULT])
    kinds = {one: float32 if one in made.outputs and len(made.uses[one]) < rank else spec.C.dtype for one in further if made.uses[one]}
    sizes = {dim: spec.size(dim) for dim in made.order}
    whole = definition(dtype=spec.A.dtype, types={**kinds, **types}, **sizes, **orders)
    return whole.with_operands(**spec.operands)


def signature_of(spec: Spec) -> str:
    """The dimensions of A, B and C of a product, as a signature says them."""
    left, right, result = ("".join(spec.uses[name]) for name in ("A", "B", RESULT))
    return f"{left},{right}->{result}"


# ---------------------------------------------------------------------------------------------- texts


def outputs_of(text: str, stacked: bool = False) -> tuple[str, ...]:
    """The outputs of an epilogue in the order in which it assigns them; of one for stacks of matrices, along `b`, if it is `stacked`."""
    return epilogue(text, signature="bmk,bkn->bmn" if stacked else "").made.outputs


def transposed(text: str) -> str:
    """The epilogue of the transposed product C.T = B.T A.T, on the same further operands: m and n change places.

    >>> transposed("relu(acc + bias[n]) * R[m,n]")
    'relu(acc + bias[m]) * R[n,m]'
    """
    return re.sub(r"\b[mn]\b", lambda match: "n" if match[0] == "m" else "m", text)


def without_stacks(text: str) -> str:
    """The epilogue of one matrix, whose rows are those of all matrices of a stack.

    >>> without_stacks("acc * r[b,m] + R[b, m, n]")
    'acc * r[m] + R[m, n]'
    """
    return re.sub(r"\[\s*b\s*,\s*", "[", text)


def folds_rows(text: str) -> bool:
    """Whether it does not matter to an epilogue which rows are of which matrix of a stack: it names rows only as `b,m`, and copies none.

    >>> folds_rows("relu(acc + bias[n])"), folds_rows("acc * r[m]"), folds_rows("acc * r[b,m]")
    (True, False, True)
    """
    return re.search(r"\b[bm]\b", re.sub(r"\[\s*b\s*,\s*m\b", "[", text)) is None
