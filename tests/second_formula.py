"""The formulas of definitions, evaluated step by step in float64: written from the documentation of fused kernels, independent of the
package.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping

import numpy as np

ALONG = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce, "prod": np.multiply.reduce}


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[float])(x)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


CALLS = {
    "abs": np.abs, "erf": _erf, "exp": np.exp, "exp2": np.exp2, "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), "log": np.log,
    "log1p": np.log1p, "log2": np.log2, "max": np.maximum, "min": np.minimum, "relu": lambda x: np.maximum(x, 0), "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x), "sqrt": np.sqrt, "tanh": np.tanh, "where": np.where, "floor": np.floor, "round": np.rint, "sin": np.sin, "cos": np.cos,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
}  # fmt: skip
INTEGRAL = {"abs", "clamp", "max", "min", "relu", "where", "floor", "round"}
"""Functions of integers whose results are integers."""
WORD = 2**32


def _wrapped(x: float) -> float:
    """The low 32 bits of an integer, with a sign."""
    return float((int(x) + WORD // 2) % WORD - WORD // 2)


def _truncated(x: float) -> float:
    """A float as an int32: toward zero, at most the limits, and 0 for NaN."""
    return 0.0 if math.isnan(x) else float(min(max(int(min(max(x, -1e300), 1e300)), -WORD // 2), WORD // 2 - 1))


def _bits(x: float) -> float:
    return float(np.float32(x).view(np.uint32))


def _from_bits(x: float) -> float:
    return float(np.uint32(int(x) % WORD).view(np.float32))


def _e2m1(x: float) -> float:
    """An FP4 number: a sign, two bits of exponent and one of significand; subnormal if the exponent is 0."""
    sign, exponent, last = int(x) // 8 % 2, int(x) // 2 % 4, int(x) % 2
    return (-1.0) ** sign * (last / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + last / 2))


def _e8m0(x: float) -> float:
    return math.nan if int(x) % 256 == 255 else 2.0 ** (int(x) % 256 - 127)


def _philox(seed: float, *more: float) -> float:
    """Philox4x32-10 of Salmon and others (2011): ten rounds of two 32-bit products on four words, with a key that grows each round."""
    words = [int(one) % WORD for one in more[:4]] + [0] * (4 - len(more[:4]))
    keys = [int(seed) % WORD, int(seed) // WORD % WORD]
    for _ in range(10):
        first, second = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [second // WORD ^ words[1] ^ keys[0], second % WORD, first // WORD ^ words[3] ^ keys[1], first % WORD]
        keys = [(keys[0] + 0x9E3779B9) % WORD, (keys[1] + 0xBB67AE85) % WORD]
    return float(words[int(more[4]) % 4 if len(more) > 4 else 0])


def _uniform(*counter: float) -> float:
    return _philox(*counter) // 256 / 2**24


EXACT = {
    "bits": _bits, "from_bits": _from_bits, "e2m1": _e2m1, "e8m0": _e8m0, "mulhi": lambda a, b: float(int(a) * int(b) // WORD), "philox": _philox, "uniform": _uniform,
}  # fmt: skip
"""Functions of numbers, element by element. All their results are exact in float64."""
SIGNS = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide}
OF_INTEGERS = {
    ast.FloorDiv: int.__floordiv__, ast.Mod: int.__mod__, ast.LShift: int.__lshift__, ast.RShift: int.__rshift__,
    ast.BitAnd: int.__and__, ast.BitOr: int.__or__, ast.BitXor: int.__xor__,
}  # fmt: skip
COMPARED = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


def _each(function, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A function of Python integers, element by element."""
    return np.vectorize(lambda a, b: float(function(int(a), int(b))), otypes=[float])(left, right)


class Formulas:
    """Steps of one definition over tensors by name, with sizes by dimension."""

    def __init__(self, dims: str, sizes: Mapping[str, int], tensors: Mapping[str, np.ndarray], axes: Mapping[str, str]):
        self.dims, self.sizes = dims.split(), dict(sizes)
        self.tensors = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
        self.axes = {name: dims.split() for name, dims in axes.items()}
        self.whole = {name for name, value in tensors.items() if np.asarray(value).dtype.kind in "iu"}
        """The tensors of integers."""

    def do(self, text: str) -> None:
        """One formula: `C[m,n] = f`, `t[m] += sum(k, f)`, `t[m] max= f`."""
        name, indices, joined, value = re.fullmatch(r"(\w+)\[([\w,]*)\]\s*(\+|max|min|\*)?=\s*(.*)", text).groups()  # type: ignore[union-attr]
        dims = indices.split(",") if indices else []
        self.axes[name] = dims
        shape = tuple(self.sizes[dim] for dim in dims)
        with np.errstate(all="ignore"):
            whole = self._value(ast.parse(value.strip(), mode="eval").body)
            result = self._down(whole, dims, shape)
            if joined:
                before = self.tensors[name]
                result = {"+": np.add, "max": np.maximum, "min": np.minimum, "*": np.multiply}[joined](before, result)
        self.tensors[name] = result

    def _down(self, value: np.ndarray, dims: list[str], shape: tuple[int, ...]) -> np.ndarray:
        """Reduce from all dimensions of the definition to those of a result; the others have one element by then."""
        value = np.asarray(value, np.float64)
        if value.ndim == 0:
            return np.full(shape, float(value))
        for axis, dim in enumerate(self.dims):
            assert dim in dims or value.shape[axis] == 1, f"{dim} is neither in the result nor reduced"
        kept = value.reshape([value.shape[axis] for axis, dim in enumerate(self.dims) if dim in dims])
        order = [dim for dim in self.dims if dim in dims]
        return np.array(np.broadcast_to(kept.transpose([order.index(dim) for dim in dims]), shape))

    def _value(self, node: ast.expr) -> np.ndarray:
        match node:
            case ast.Constant(value=value):
                return np.float64(value)
            case ast.Name(id="inf"):
                return np.float64(np.inf)
            case ast.Name(id=name) if name in self.tensors and not self.axes.get(name):
                return self.tensors[name].reshape(())
            case ast.Name(id=name):
                return self._up(np.arange(self.sizes[name], dtype=float), [name])
            case ast.UnaryOp(op=ast.USub(), operand=one):
                return -self._value(one)
            case ast.UnaryOp(op=ast.Invert(), operand=one):
                return -self._value(one) - 1
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OF_INTEGERS:
                return _each(OF_INTEGERS[type(sign)], self._value(left), self._value(right))
            case ast.BinOp(left=left, op=sign, right=right):
                return SIGNS[type(sign)](self._value(left), self._value(right))
            case ast.BoolOp(op=sign, values=values):
                conditions = [self._value(one) != 0 for one in values]
                joined = conditions[0]
                for condition in conditions[1:]:
                    joined = joined & condition if isinstance(sign, ast.And) else joined | condition
                return joined
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                return COMPARED[type(sign)](self._value(left), self._value(right))
            case ast.Call(func=ast.Name(id="size"), args=[ast.Name(id=dim)]):
                return np.float64(self.sizes[dim])
            case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=dim), inside]) if name in ALONG and dim in self.dims:
                axis, value = self.dims.index(dim), np.asarray(self._value(inside))
                value = np.broadcast_to(
                    value, np.broadcast_shapes(value.shape, [self.sizes[one] if one == dim else 1 for one in self.dims])
                )
                return ALONG[name](value, axis=axis, keepdims=True)
            case ast.Call(func=ast.Name(id="int32"), args=[argument]):
                function = _wrapped if self._is_whole(argument) else _truncated
                return np.vectorize(function, otypes=[float])(self._value(argument))
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in EXACT:
                return np.vectorize(EXACT[name], otypes=[float])(*(self._value(argument) for argument in arguments))
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return CALLS[name](*(self._value(one) for one in arguments))
            case ast.Subscript(value=ast.Name(id=name), slice=places):
                dims = [one.id for one in (places.elts if isinstance(places, ast.Tuple) else [places])]  # type: ignore[attr-defined]
                return self._up(self.tensors[name], dims)
        raise AssertionError(f"not a formula: {ast.dump(node)}")

    def _is_whole(self, node: ast.expr) -> bool:
        """Whether a value is an integer by the rules of the documentation: a float may have the same value and is none."""
        match node:
            case ast.Constant(value=value):
                return isinstance(value, int)
            case ast.Name(id=name):
                return name in self.whole or name in self.dims
            case ast.Subscript(value=ast.Name(id=name)):
                return name in self.whole
            case ast.UnaryOp(operand=operand):
                return self._is_whole(operand)
            case ast.BinOp(left=left, op=sign, right=right):
                return type(sign) in OF_INTEGERS or (not isinstance(sign, ast.Div) and self._is_whole(left) and self._is_whole(right))
            case ast.Call(func=ast.Name(id="size" | "bits" | "int32" | "mulhi" | "philox")):
                return True
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in INTEGRAL:
                return all(self._is_whole(argument) for argument in arguments[name == "where" :])
        return False

    def _up(self, value: np.ndarray, dims: list[str]) -> np.ndarray:
        """An array of some dimensions with an axis for each of the definition."""
        order = [dim for dim in self.dims if dim in dims]
        value = value.transpose([dims.index(dim) for dim in order])
        return value.reshape([self.sizes[dim] if dim in dims else 1 for dim in self.dims])


def results(definition: Mapping[str, object], sizes: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a definition given as the arguments of `Fused`: a loop over elements at once, a scan step by step."""
    axes = dict(definition["operands"])  # type: ignore[call-overload]
    scans = str(definition.get("scan", "")).split()
    parts = {part: _formulas(definition, part) for part in ("init", "body", "final")}
    inner = {dim for formulas in parts.values() for dim in _nested(formulas)}
    state = Formulas(str(definition["dims"]), sizes, arrays, axes)
    _do(state, parts["init"], {}, scans, arrays)
    _repeat(state, [dim for dim in scans if dim not in inner], parts["body"], {}, scans, arrays)
    _do(state, parts["final"], {}, scans, arrays)
    return {name: state.tensors[name] for name in axes if name not in arrays}


def _do(state: Formulas, formulas: Mapping[str, object], place: Mapping[str, int], scans: list[str], arrays: Mapping[str, object]) -> None:
    """The steps of a part at a place of the scans, in order; a mapping is a nested loop."""
    for name, formula in formulas.items():
        if isinstance(formula, Mapping):
            _repeat(state, [dim for dim in name.split() if dim in scans], formula, place, scans, arrays)
        else:
            state.do(_fixed(str(formula), place))


def _repeat(
    state: Formulas, dims: list[str], formulas: Mapping[str, object], place: Mapping[str, int], scans: list[str],
    arrays: Mapping[str, object],
) -> None:  # fmt: skip
    """The steps of a loop, for each index of the scans among its dimensions."""
    for here in _places(dims, state.sizes):
        inside = _at(state, here)
        _do(inside, formulas, {**place, **here}, scans, arrays)
        for name, value in inside.tensors.items():
            if name not in arrays:
                state.tensors[name], state.axes[name] = value, inside.axes[name]


def _formulas(definition: Mapping[str, object], part: str) -> dict[str, object]:
    """The formulas of a part, with the conditions for the names of masks."""
    masks = [*dict(definition.get("mask") or {}).items()]  # type: ignore[call-overload]

    def unnamed(formula: object) -> object:
        if isinstance(formula, Mapping):
            return {name: unnamed(inner) for name, inner in formula.items()}
        for name, condition in reversed(masks):
            formula = re.sub(rf"\b{name}\b", f"({condition})", str(formula))
        return formula

    return {name: unnamed(formula) for name, formula in dict(definition.get(part) or {}).items()}  # type: ignore[call-overload]


def _nested(formulas: Mapping[str, object]) -> list[str]:
    """The dimensions of nested loops."""
    inner = [(name, formula) for name, formula in formulas.items() if isinstance(formula, Mapping)]
    return [dim for name, formula in inner for dim in (*name.split(), *_nested(formula))]


def _places(scans: list[str], sizes: Mapping[str, int]) -> list[dict[str, int]]:
    places: list[dict[str, int]] = [{}]
    for dim in scans:
        places = [{**place, dim: number} for place in places for number in range(sizes[dim])]
    return places


def _at(state: Formulas, place: Mapping[str, int]) -> Formulas:
    """The state at one index of the scan: arrays without those dimensions."""
    if not place:
        return state
    tensors, axes = {}, {}
    for name, value in state.tensors.items():
        dims = state.axes[name]
        tensors[name] = value[tuple(place.get(dim, slice(None)) for dim in dims)] if dims else value
        axes[name] = " ".join(dim for dim in dims if dim not in place)
    return Formulas(" ".join(dim for dim in state.dims if dim not in place), state.sizes, tensors, axes)


def _fixed(text: str, place: Mapping[str, int]) -> str:
    """A formula with the scan's dimensions replaced by their indices; its tensors lack them."""
    for dim, number in place.items():

        def kept(match: re.Match[str], dim: str = dim) -> str:
            rest = [one for one in match[1].split(",") if one.strip() != dim]
            return f"[{','.join(rest)}]" if rest else ""

        head, sign, value = re.fullmatch(r"(\w+\[[\w,]*\])(\s*(?:\+|max|min|\*)?=\s*)(.*)", text).groups()  # type: ignore[union-attr]
        head = re.sub(r"\[([^\]]*)\]", lambda found, kept=kept: kept(found) or "[]", head)
        value = re.sub(rf"\b{dim}\b", str(number), re.sub(r"\[([^\]]*)\]", kept, value))
        text = f"{head}{sign}{value}"
    return text
