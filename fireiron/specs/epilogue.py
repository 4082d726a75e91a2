"""Epilogues: a matmul and elementwise work on its result, as one definition that any strategy for the matmul accepts.

    MatMul.fuse_epilogue("relu(acc + bias[n])")                        C[m,n], of A, B and bias
    MatMul.fuse_epilogue("acc = acc * alpha + R[m,n]; Z = acc; C = gelu(acc)", outputs="Z")
    SparseMatMul.fuse_epilogue("relu(acc + bias[m])")                  C[m,n], of the kept values A, the metadata E, B and bias

`acc` is an element of the matmul's result. Other names without indices are numbers passed by value. Names with indices are operands with
these dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.spec import Starter, as_spec, located
from fireiron.specs.formula import DECOMPRESSED, FUNCTIONS, REDUCTIONS, SPARSE_DIGITS, Formula, formula_of
from fireiron.specs.fused import Fused
from fireiron.specs.steps import INDICES, with_extents
from fireiron.values.expr import FALSE
from fireiron.values.machine import DType, float32

if TYPE_CHECKING:
    from fireiron.generated_verbs import FusedSpec
    from fireiron.spec import Spec

ACC: Final = "acc"
"""The name of an element of the matmul's result."""

RESULT: Final = "C"
PRODUCT: Final = "product"
"""The name of the step that is the matmul."""

COMPRESSED_DIMS: Final = ("k_kept", "k_bytes")
"""The dimensions of the arrays of a 2:4 sparse A: the kept elements along k, and the bytes of metadata."""

_WORDS: Final = {*FUNCTIONS, *REDUCTIONS, "inf", "and", "or", "size"}
_MATRICES: Final = "mk,kn->mn"


def epilogue(text: str, name: str = "gemm", types: Mapping[str, Any] | None = None, signature: str = "", compressed: bool = False) -> Fused:
    """Return the definition of a matmul with an epilogue.

    Args:
        text: a value for C, or assignments separated by `;`, one of them to C. A name that is assigned is a temporary if it has no indices
        and does not begin with a capital letter; all other assigned names are operands. types: types of temporaries that are not float32,
        such as `acc`. signature: the dimensions of A, B and C if they are not matrices, as for a spec: `bmk,bkn->bmn`. compressed: A is 2:4
        sparse, and given by its kept values A and its metadata E.

    >>> print(epilogue("relu(acc + bias[n])")(m=64, n=32, k=16).notation)
    gemm(64,32,16)(GL,GL,GL,GL)(Kernel)
    >>> print(epilogue("acc * r[b,m]", signature="bmk,kn->bmn")(b=4, m=64, n=32, k=16).notation)
    gemm(4,64,32,16)(GL,GL,GL,GL)(Kernel)

    Raises: ArgumentError if the text is not an epilogue.
    """
    builder = _DefinitionBuilder(*_dims_of_operands(signature), compressed)
    builder.statements(text)
    dims = (*builder.dims, *(COMPRESSED_DIMS if compressed else ()))
    return Fused(name=name, dims=" ".join(dims), operands={**builder.operands, **builder.results}, body=builder.steps, types=types)


@attrs.frozen(repr=False, eq=False)
class FusedEpilogue(Fused):
    """The definition of a matmul with an epilogue, `MatMul.fuse_epilogue(text)`. With positional sizes, it is called as its matmul is."""

    _product: Starter
    _epilogue: str
    _types: Mapping[str, Any]
    _indices: str
    _compressed: bool
    """The arguments of `epilogue`; `_indices` is its signature."""

    @staticmethod
    def of_product(
        product: Starter, text: str, name: str, types: Mapping[str, Any] | None = None, signature: str = "", compressed: bool = False
    ) -> FusedEpilogue:
        """Return the definition for the starter of a matmul; the other arguments are those of `epilogue`."""
        kind = epilogue(text, name, types, signature, compressed).kind
        return FusedEpilogue(kind, product, text, dict(types or {}), signature, compressed)

    @located
    def __call__(self, *sizes: Any, types: Mapping[str, Any] | None = None, **options: Any) -> FusedSpec:  # type: ignore[override]
        """Return the spec of the kernel.

        With positional sizes, the arguments are those of the matmul (`MatMul(M, N, K, dtype=..., c_dtype=..., order=...)`), with its
        defaults. `types` and storage orders by name are those of further operands; their default type is that of C, or float32 for numbers,
        and they are row-major. With sizes by name, the arguments are those of every definition (`Fused`).

        >>> from fireiron import *
        >>> biased = MatMul.fuse_epilogue("relu(acc + bias[n])")
        >>> spec = biased(64, 32, 16, dtype=float16, c_dtype=float32, order=RowMajor)
        >>> print(spec.C.dtype, spec.bias.dtype, spec.A.tensor.layout)
        float32 float32 RowMajor
        """
        if not sizes:
            return Fused.__call__(self, types=types, **options)
        own = [name for name in self.fused_definition.uses if name not in self._product.kind.definition(()).uses]
        orders = {name: options.pop(name) for name in own if name in options}
        options |= {"signature": self._indices} if self._indices and "signature" not in options else {}
        product = as_spec(self._product(*sizes, **options))
        _require_product(product)
        types_of_steps = self._types if product.accumulator is None else {**self._types, ACC: product.accumulator}
        signature = "" if self._compressed else signature_of(product)
        definition = epilogue(self._epilogue, self.kind.title, types_of_steps, signature, self._compressed)
        return cast("FusedSpec", _on_product(definition, product, self._epilogue, types or {}, orders))


@frozen
class AddedParts:
    """The operand with the partial results of a split-K matmul, and its first dimension."""

    operand: str
    dim: str


def epilogue_of_sum(text: str, name: str = "add_parts") -> tuple[Fused, AddedParts]:
    """Return the definition of the sum of partial results with an epilogue, and the operand with the partial results.

    It is the second kernel of a split-K matmul. The partial results are `P[p,m,n]`. The names get underscores if the epilogue uses them.
    `acc` is an element of the sum, and the other operands are those of `epilogue(text)`.

    >>> definition, parts = epilogue_of_sum("relu(acc + bias[n])")
    >>> print(definition(m=64, n=32, p=4).notation, parts)
    add_parts(64,32,4)(GL,GL,GL)(Kernel) AddedParts(operand='P', dim='p')

    Raises: ArgumentError as `epilogue` does, and if the epilogue reads A or B.
    """
    builder = _DefinitionBuilder(*_dims_of_operands(""))
    builder.statements(text)
    words = set(re.findall(r"\w+", text))
    if words & {"A", "B"}:
        raise ArgumentError("epilogue: the epilogue of a sum of partial results cannot read A or B", got=text, legal="other operands")
    parts, dim = _unused("P", words), _unused("p", words)
    operands = {parts: f"{dim} m n", **{name: dims for name, dims in builder.operands.items() if name not in ("A", "B")}, **builder.results}
    final = {step: value for step, value in builder.steps.items() if step != PRODUCT}
    definition = Fused(
        name=name,
        dims=f"m n {dim}",
        loop=dim,
        operands=operands,
        init={ACC: f"{ACC}[m,n] = 0"},
        body={"add": f"{ACC}[m,n] += sum({dim}, {parts}[{dim},m,n])"},
        final=final,
    )
    return definition, AddedParts(parts, dim)


def _unused(name: str, words: set[str]) -> str:
    """Return a name that is not one of `words`."""
    return name if name not in words else _unused(f"{name}_", words)


def _dims_of_operands(signature: str) -> tuple[str, str, str]:
    """Return the dimensions of A, B and C, one letter per dimension."""
    match = re.fullmatch(r"([a-z]+),([a-z]+)->([a-z]+)", signature or _MATRICES)
    if match is None or not (set(match[1]) & set(match[2])) - set(match[3]):
        raise ArgumentError("epilogue: the signature is not that of a matmul", got=signature, legal="mk,kn->mn bmk,bkn->bmn ...")
    return match[1], match[2], match[3]


def _statement_of(part: str) -> tuple[str, str, str]:
    """Split a statement into target, sign and value. A value alone is assigned to C."""
    match = re.fullmatch(r"\s*(\w+(?:\s*\[[^\]]*\])?)\s*(\+=|max=|min=|\*=|=)(?!=)(.*)", part, re.DOTALL)
    return (match[1].strip(), match[2], match[3].strip()) if match else (RESULT, "=", part.strip())


@attrs.define
class _DefinitionBuilder:
    """Builds the steps and operands of a definition from statements; `left`, `right` and `result` are the dimensions of A, B and C.

    `compressed`: A is 2:4 sparse.
    """

    left: str
    right: str
    result: str
    compressed: bool = False
    operands: dict[str, str] = attrs.field(factory=dict, init=False)
    results: dict[str, str] = attrs.field(factory=dict, init=False)
    steps: dict[str, str] = attrs.field(factory=dict, init=False)
    known: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        summed = ", ".join(self.dims[len(self.result) :])
        left = f"A[{','.join(self.left)}]"
        if self.compressed:
            m, k = tuple(self.left)
            self.operands |= {name: f"{m} {dim}" for name, dim in zip("AE", COMPRESSED_DIMS, strict=True)}
            values, metadata = (f"{name}[{m},{k} // {count}]" for name, count in zip("AE", SPARSE_DIGITS, strict=True))
            left = f"{DECOMPRESSED}({values}, {metadata})"
        else:
            self.operands["A"] = " ".join(self.left)
        self.operands["B"] = " ".join(self.right)
        factors = f"{left} * B[{','.join(self.right)}]"
        self.steps[PRODUCT] = f"{ACC}{self.place} = sum({summed}, {factors})"
        self.known.add(ACC)

    @property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the result, then the reduction dimensions."""
        return tuple(dict.fromkeys((*self.result, *self.left, *self.right)))

    @property
    def place(self) -> str:
        """The indices of an element of the result."""
        return f"[{','.join(self.result)}]"

    def statements(self, text: str) -> None:
        """Add the steps and operands of an epilogue."""
        if not isinstance(text, str) or not text.strip():
            hint = "use epilog(RF) for the step that keeps the accumulator in registers"
            raise ArgumentError("epilogue: the epilogue must be a text such as relu(acc + bias[n])", got=text, hint=hint, at=call_site())
        parsed = [_statement_of(part) for part in text.split(";") if part.strip()]
        if not any(target.partition("[")[0].strip() == RESULT for target, _, _ in parsed):
            raise ArgumentError(f"epilogue: no statement assigns to {RESULT}", got=text, hint=f"{RESULT} = relu(acc)")
        for number, (target, sign, value) in enumerate(parsed):
            self.statement(target, sign, value, any(re.search(rf"\b{ACC}\b", other) for _, _, other in parsed[number + 1 :]))

    def statement(self, target: str, sign: str, value: str, later: bool) -> None:
        """Add the steps and operands of one statement. `later`: whether a later statement reads elements of the matmul's result."""
        whole = self._indexed(value)
        name, _, index = target.partition("[")
        name = name.strip()
        place = f"{name}[{index}" if index else f"{name}{self.place}"
        every = f"x[{','.join(self.dims)}]" if not _reduces(whole) else place
        for element in _parsed(f"{every} = {whole}", value).elements:
            if element.tensor not in self.known and element.tensor not in self.dims and not element.tensor.startswith("size_"):
                self.operands.setdefault(element.tensor, " ".join(element.dims))
        if not index and not name[:1].isupper():
            self.known.add(name)
            self.steps[f"set_{name}{len(self.steps)}"] = f"{place} {sign} {whole}"
            return
        self.results[name] = " ".join(formula_of(f"{place} = 0").target.dims)
        whole = self._sum_of_terms(name, whole)
        plain = re.fullmatch(rf"(\w+){re.escape(self.place)}", whole)
        sign = "=" if _reduces(whole) and sign == REDUCTIONS[whole.partition("(")[0].strip()] else sign  # nothing to accumulate to
        if (plain and plain[1] in self.known) or _reduces(whole) or sign != "=" or self.results[name] != " ".join(self.result):
            self.steps[f"store_{name}"] = f"{place} {sign} {whole}"
            return
        value_name = ACC if not later else f"value_{name}"
        self.known.add(value_name)
        self.steps["epilogue" if name == RESULT else f"epilogue_{name}"] = f"{value_name}{self.place} = {whole}"
        self.steps[f"store_{name}"] = f"{place} = {value_name}{self.place}"

    def _sum_of_terms(self, name: str, whole: str) -> str:
        """Return the sum for an output. If its terms are an expression, add a step that assigns them to a temporary."""
        match = re.fullmatch(r"\s*(sum|max|min|prod)\(((?:\s*\w+\s*,)+)(.*)\)\s*", whole)
        plain = match is None or re.fullmatch(r"\s*\w+\s*\[[^\]]*\]\s*", match[3])
        if match is None or plain or not set(re.findall(r"\w+", match[2])) <= set(self.result):
            return whole
        terms = f"terms_{name}{self.place}"
        self.steps[f"terms_{name}"] = f"{terms} = {match[3].strip()}"
        return f"{match[1]}({match[2].strip()} {terms})"

    def _indexed(self, value: str) -> str:
        """Return the value with indices added to temporaries."""

        def indexed(match: re.Match[str]) -> str:
            return f"{match[0]}{self.place}" if match[0] in self.known else match[0]

        return re.sub(r"\b[A-Za-z_]\w*\b(?!\s*[\[(])", indexed, re.sub(r"\s+", " ", value))


def _parsed(text: str, given: str) -> Formula:
    """Return the formula of a statement; an error shows the value as it was given."""
    try:
        return formula_of(with_extents(text))
    except ArgumentError as error:
        raise ArgumentError(error.asked, got=given.strip(), legal=error.legal, hint=error.hint, at=call_site()) from None


def _reduces(value: str) -> bool:
    return re.match(r"\s*(sum|max|min|prod)\(\s*\w+\s*,", value) is not None


def with_epilogue(spec: Spec, text: str, types: Mapping[str, Any], orders: Mapping[str, Any], acc: DType | None = None) -> Spec:
    """Return the spec of a matmul with an epilogue, with the same sizes, types and storage; `acc` is the accumulator type.

    `types` and `orders` are those of further operands. Their default type is that of C, or float32 for numbers and for outputs with fewer
    dimensions than C. Their default storage is row-major.

    Raises: ArgumentError for a spec that is not a matmul of arrays in global memory, and for an invalid epilogue.
    """
    compressed = _require_product(spec)
    types_of_steps = {} if acc is None else {ACC: acc}
    definition = epilogue(text, types=types_of_steps, signature="" if compressed else signature_of(spec), compressed=compressed)
    return _on_product(definition, spec, text, types, orders)


def _require_product(spec: Spec) -> bool:
    """Refuse a spec that is not a matmul of arrays in global memory; return whether it is 2:4 sparse."""
    compressed = spec.definition.only is not None and spec.definition.only.sparse is not None
    is_product = spec.contracts or compressed
    if not is_product or not spec.level.is_launch or spec.accumulate != FALSE:
        hint = "use acc + C0[m,n] to add an array" if is_product and spec.accumulate != FALSE else None
        raise ArgumentError(
            f"epilogue: {spec} is not a matmul at level Kernel without accumulation", legal="MatMul(M,N,K)(GL,GL,GL)(Kernel)", hint=hint
        )
    return compressed


def _on_product(definition: Fused, spec: Spec, text: str, types: Mapping[str, Any], orders: Mapping[str, Any]) -> Spec:
    """Return the spec of a definition with the operands of a matmul, and further operands with these types and orders."""
    fused = definition.fused_definition
    further = [name for name in fused.uses if name not in spec.operands and not name.startswith(INDICES)]
    unknown = [name for name in (*types, *orders) if name not in further]
    if unknown:
        raise ArgumentError(f"epilogue: {unknown[0]} is not an operand of the epilogue", got=text, legal=further or "none")
    rank = len(spec.uses[RESULT])
    kinds = {
        name: float32 if name in fused.outputs and len(fused.uses[name]) < rank else spec.C.dtype for name in further if fused.uses[name]
    }
    sizes: dict[str, Any] = {dim: spec.size(dim) for dim in fused.order}
    whole = definition(dtype=spec.A.dtype, types={**kinds, **types}, **sizes, **orders)
    return whole.with_operands(**spec.operands)


def sum_of_parts(definition: Fused, added: AddedParts, product: Spec, parts: int) -> Spec:
    """Return the spec of `epilogue_of_sum` that adds `parts` float32 parts of a matmul.

    `product` is the spec of the matmul with the epilogue. The further operands and the outputs have the same types and storage.
    """
    views = {name: view for name, view in product.operands.items() if name not in ("A", "B") and not name.startswith(INDICES)}
    types: dict[str, Any] = {added.operand: float32, **{name: view.dtype for name, view in views.items()}}
    sizes: dict[str, Any] = {"m": product.size("m"), "n": product.size("n"), added.dim: parts}
    spec: Spec = definition(types=types, **sizes).with_operands(**views)
    return spec


def signature_of(spec: Spec) -> str:
    """Return the signature of a matmul: the dimensions of A, B and C."""
    left, right, result = ("".join(spec.uses[name]) for name in ("A", "B", RESULT))
    return f"{left},{right}->{result}"


# ---------------------------------------------------------------------------------------------- texts


def outputs_of(text: str, batched: bool = False) -> tuple[str, ...]:
    """Return the outputs of an epilogue in the order of assignment; with `batched`, of a batch of matrices along `b`."""
    return epilogue(text, signature="bmk,bkn->bmn" if batched else "").fused_definition.outputs


def transposed(text: str) -> str:
    """Return the epilogue of the transposed matmul C.T = B.T A.T, with the same operands: m and n are exchanged.

    >>> transposed("relu(acc + bias[n]) * R[m,n]")
    'relu(acc + bias[m]) * R[n,m]'
    """
    return re.sub(r"\b[mn]\b", lambda match: "n" if match[0] == "m" else "m", text)


def without_batch(text: str) -> str:
    """Return the epilogue of one matrix whose rows are the rows of all matrices of a batch.

    >>> without_batch("acc * r[b,m] + R[b, m, n]")
    'acc * r[m] + R[m, n]'
    """
    return re.sub(r"\[\s*b\s*,\s*", "[", text)


def folds_rows(text: str) -> bool:
    """Whether an epilogue can treat the rows of a batch as rows of one matrix: all its row indices are `b,m`.

    >>> folds_rows("relu(acc + bias[n])"), folds_rows("acc * r[m]"), folds_rows("acc * r[b,m]")
    (True, False, True)
    """
    return re.search(r"\b[bm]\b", re.sub(r"\[\s*b\s*,\s*m\b", "[", text)) is None
