"""The text of an indirect tensor: its array, and in braces its shape and the index along each dimension of the array.

    %K:[32,16,64].fp16.GL{shape=(2;128;64), at=(table[0:2:8,1//16:8:1]; 1%16; 2)}

An index is the number of a dimension of the tensor, a quotient or a remainder of one, or an element of a table. `index:size:stride` is
the index along a dimension of a table; `table!` promises that its elements are indices; by `table?`, elements with other
numbers are not written. `sum(2:2, 3:1, -1)` is an affine index: 2 times dimension 2, plus dimension 3, minus 1;
`sum(0//56%56:2, 1//64:1, -1)` has digits of dimensions; `sum(...)/2` is its exact quotient. `outside=-inf` is the value of elements outside
of the array, `outside=reflect` a padding mode.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from fireiron.errors import LayoutError
from fireiron.values.affine import PADDING_MODES, AffineIndex, DigitTerm
from fireiron.values.expr import Expr, as_expr
from fireiron.values.indirect import ArrayIndex, DimIndex, TableIndex
from fireiron.values.notation.words import Symbols, expression_text, pieces, read_expression
from fireiron.values.tensor import Tensor, indirect

_DIM: Final = re.compile(r"(\d+)(?:(//|%)(\d+))?")
_TERM: Final = re.compile(r"(\d+)(?://(\d+))?(?:%(\d+))?:(-?\d+)")
_TABLE: Final = re.compile(r"([A-Za-z_]\w*)([!?]*)\[(.*)\]", re.DOTALL)


def indirect_options(tensor: Tensor) -> list[str]:
    """The options in braces that make an indirect tensor of its array; none for other tensors."""
    if tensor.through is None:
        return []
    shape = "; ".join(map(expression_text, tensor.shape))
    outside = [f"outside={tensor.through.outside}"] if tensor.through.outside != "0" else []
    return [f"shape=({shape})", f"at=({'; '.join(map(_index_text, tensor.through.index))})", *outside]


def _index_text(index: ArrayIndex) -> str:
    if isinstance(index, DimIndex):
        return f"{index.dim}%{index.modulus}" if index.modulus else f"{index.dim}//{index.divisor}" if index.divisor > 1 else f"{index.dim}"
    if isinstance(index, AffineIndex):
        divided = f"/{index.divisor}" if index.divisor > 1 else ""
        terms = (*(f"{dim}:{factor}" for dim, factor in index.terms), *(f"{_digit_text(term)}:{term.factor}" for term in index.digits))
        return f"sum({', '.join((*terms, expression_text(index.offset)))}){divided}"
    parts = (
        f"{_index_text(part)}:{expression_text(size)}:{expression_text(stride)}"
        for part, size, stride in zip(index.index, index.sizes, index.strides, strict=True)
    )
    return f"{index.array}{'!' if index.promised else ''}{'?' if index.drops else ''}[{', '.join(parts)}]"


def _digit_text(term: DigitTerm) -> str:
    quotient = f"{term.dim}//{term.divisor}" if term.divisor > 1 else f"{term.dim}"
    return f"{quotient}%{term.modulus}" if term.modulus else quotient


def read_indirect(array: Tensor, shape: str, at: str, symbols: Symbols, outside: str = "0") -> Tensor:
    """The indirect tensor of a shape, whose elements are those of an array at the given indices; `outside` is the value outside of it.

    Raises: LayoutError if a text denotes no shape, no index for each dimension of the array, or no value.
    """
    sizes = tuple(read_expression(one, symbols) for one in _listed(shape))
    index = tuple(_read_index(one.strip(), len(sizes), symbols) for one in _listed(at))
    if len(index) != len(array.shape):
        raise LayoutError(f"{len(index)} indices in at={at}, the array has {len(array.shape)} dimensions")
    return indirect(array, sizes, index, _outside(outside))


def _outside(text: str) -> str:
    try:
        _ = 0 if text in PADDING_MODES else float(text)
        return text
    except ValueError:
        raise LayoutError(f"outside={text} is neither a number nor a padding mode", legal=("0", "-inf", *PADDING_MODES)) from None


def _listed(text: str) -> list[str]:
    if not (text.startswith("(") and text.endswith(")")):
        raise LayoutError(f"{text!r} is not a list", legal="(2; 1 % 16)")
    return text[1:-1].split(";")


def _read_index(text: str, rank: int, symbols: Symbols) -> ArrayIndex:
    affine = re.fullmatch(r"(sum\(.*\))(?:\s*/\s*(\d+))?", text, re.DOTALL)
    if affine is not None:
        return attrs.evolve(_read_affine(affine[1], rank, symbols), divisor=int(affine[2] or 1))
    match = _TABLE.fullmatch(text)
    if match is None:
        return _read_dim(text, rank)
    parts = [_read_part(part, rank, symbols) for part in pieces(match[3], ",")]
    index, table_sizes, strides = zip(*parts, strict=True)
    return TableIndex(match[1], index, table_sizes, strides, "!" in match[2], "?" in match[2])


def _read_affine(text: str, rank: int, symbols: Symbols) -> AffineIndex:
    *terms, offset = pieces(text[len("sum(") : -1], ",")
    parts = [_TERM.fullmatch(one.replace(" ", "")) for one in terms]
    if not all(part is not None and int(part[1]) < rank and int(part[4]) and part[2] != "0" and part[3] != "0" for part in parts):
        raise LayoutError(f"{text!r} is no affine index", legal="sum(0:2, 1:1, -1), sum(0//56%56:2, -1)")
    given = [part for part in parts if part is not None]
    known = tuple((int(part[1]), int(part[4])) for part in given if part[2] is None and part[3] is None)
    digits = tuple(DigitTerm(int(part[1]), int(part[4]), int(part[2] or 1), int(part[3] or 0)) for part in given if part[2] or part[3])
    return AffineIndex(known, as_expr(read_expression(offset.strip(), symbols)), digits=digits)


def _read_part(text: str, rank: int, symbols: Symbols) -> tuple[DimIndex, Expr, Expr]:
    parts = text.split(":")
    if len(parts) != 3:
        raise LayoutError(f"{text.strip()!r} is not an index of a table", legal="index:size:stride")
    return _read_dim(parts[0].strip(), rank), *(as_expr(read_expression(one, symbols)) for one in parts[1:])  # type: ignore[return-value]


def _read_dim(text: str, rank: int) -> DimIndex:
    match = _DIM.fullmatch(text.replace(" ", ""))
    if match is None or int(match[1]) >= rank or (match[2] and not int(match[3])):
        raise LayoutError(f"{text!r} is not an index", legal=f"0 to {rank - 1}, 0//16, 0%16, table[0:8:1]")
    number = int(match[3] or 1)
    return DimIndex(int(match[1]), number if match[2] == "//" else 1, number if match[2] == "%" else 0)
