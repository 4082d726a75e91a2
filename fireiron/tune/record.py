"""Tuned records: measured values of a strategy's tunables for a spec on a GPU, and the conditions of the measurement.

A record is one JSON object on one line, with sorted keys. It has the hash of the strategy, the spec, the GPU, the toolchain, the driver and
the date, which are checked when it is read. `records/` stores files of records and chooses among them.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError, StoreError
from fireiron.ir.lanes import LaneMap
from fireiron.language import former
from fireiron.language.strategy import Strategy
from fireiron.refine.layout import TileOrder
from fireiron.spec import AnyStarter, Kind, Parameter, Spec, Starter, as_spec
from fireiron.specs.formula import Definition
from fireiron.specs.fused import Fused, FusedKind, definition, definition_fields, fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_texts import NAMES, PAIRED, arguments_of
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.specs.sparse_matmul import SparseMatMul
from fireiron.values.expr import FALSE, TRUE, Expr, Var, as_expr, constant, sym
from fireiron.values.layout import Layout, running_products
from fireiron.values.machine import DTYPES, GL, GPU, LEVELS, NAMED_MEMORIES, Kernel, Level, Node, as_dtype
from fireiron.values.orders import Distributed
from fireiron.values.strides import ANY, AnyStride, Strides, strides_of
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor

FORMAT: Final = 1
"""Version of the format. Other versions are refused."""


# ---------------------------------------------------------------------------------------------- strategies


def strategy_hash(strategy: Strategy) -> str:
    """Return 16 hex digits that identify a strategy: steps, refinements, tunables with their values, sub-strategies, micro-kernels.

    The hash is the same in every process and version of Python. It ignores the spec, line numbers and fields with their default value, so
    that a strategy keeps its hash when the language gains a field. It includes the names and fields of a user's classes.
    """
    import hashlib  # takes milliseconds, and most programs that import this package need none

    others = [_plain(other.steps) for other in strategy.others]
    plain = {"start": _first_start(strategy.start), "steps": _plain(strategy.steps), "others": others}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, allow_nan=False).encode()).hexdigest()[:16]


def _first_start(start: Starter | AnyStarter) -> str:
    """Return the start of a strategy as text, with the original argument names of a definition."""
    if not isinstance(start, Fused) or not isinstance(start.kind, FusedKind):
        return repr(start)
    first = former.first_fields("FusedKind")
    return f"Fused({', '.join(f'{first.get(word, word)}={value!r}' for word, value in arguments_of(start.kind).items())})"


def _plain(value: Any) -> Any:
    """Return a field of a step as JSON. The results of two values are equal if and only if the values are."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Expr):
        return {"expr": repr(value)}
    if isinstance(value, Starter) or any(value in known for known in (DTYPES, NAMED_MEMORIES, LEVELS)):
        return {"name": repr(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {"mapping": sorted(([_plain(key), _plain(part)] for key, part in value.items()), key=json.dumps)}
    if attrs.has(type(value)):
        name, fields = _first_names(type(value))
        return {
            "type": name,
            **{
                f".{fields.get(field, field)}": _plain(former.first_value(type(value).__name__, field, part))
                for field, part in _recorded(value).items()
            },
        }
    raise StoreError(f"a strategy with a value of {type(value).__qualname__} has no hash", got=value, hint="make it a frozen attrs class")


def _first_names(cls: type) -> tuple[str, Mapping[str, str]]:
    """Return the original name of a class and of its fields, so that hashes do not change."""
    name = cls.__qualname__
    if not cls.__module__.startswith("fireiron."):
        return name, {}
    return _RECORDED_AS.get(cls, former.first_class(name)), former.first_fields(name)


_RECORDED_AS: Final[Mapping[type, str]] = {TileOrder: "Layout"}
"""Classes that share their original name with another one."""


def _recorded(value: Any) -> dict[str, Any]:
    """Return the fields that the hash includes, with the names and values that they had in the first records.

    A value that consists of functions has an attribute `recorded` with these fields.
    """
    own_fields = getattr(value, "recorded", None)
    if own_fields is not None:
        return dict(own_fields)
    counted = [field for field in attrs.fields(type(value)) if field.eq and not _is_default(field, value)]
    fields: dict[str, Any] = {field.name: getattr(value, field.name) for field in counted}
    if isinstance(value, Level) and "layout" in fields:
        del fields["layout"]
        fields |= {"sizes": value.sizes, "strides": value.strides}
    if isinstance(value, LaneMap):
        fields |= {"lanes": _recorded_parts(value.lanes, value.tile), "values": _recorded_parts(value.values, value.tile)}
    return fields


def _recorded_parts(layout: Layout, tile: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Return the leaves as (size, dimension, stride). A leaf with stride 0 has the dimension of the next leaf."""
    leaves: list[tuple[int, int, int]] = []
    dim = 0
    for size, stride in reversed(layout.modes):
        dim = max((position for position, weight in enumerate(running_products(tile)) if weight <= stride), default=dim)
        leaves.append((size, dim, stride // math.prod(tile[:dim])))
    return leaves[::-1]


def _is_default(field: Any, value: Any) -> bool:
    current = getattr(value, field.name)
    return type(current) is type(field.default) and bool(current == field.default)


# ---------------------------------------------------------------------------------------------- specs

KINDS: Final[Mapping[str, Starter]] = {"MatMul": MatMul, "Move": Move, "Init": Init, "SparseMatMul": SparseMatMul}
"""The kinds that a record identifies by name; a record declares all other kinds."""


def definition_of(plain: Mapping[str, Any]) -> Definition:
    """Return the definition of a described spec."""
    kind = kind_of(plain)
    sizes = plain.get("sizes")
    if isinstance(kind, FusedKind):
        return kind.fused_definition
    return kind.of_sizes(_parameters(kind, plain), len(sizes) if isinstance(sizes, Mapping) else 2, plain.get("signature", ""))


def kind_of(plain: Mapping[str, Any]) -> Kind:
    """Return the kind of a described spec: a kind of `KINDS`, or the kind that the description declares."""
    name, declared = plain.get("kind"), plain.get("declared")
    if declared is None:
        if not isinstance(name, str) or name not in KINDS:
            raise StoreError(
                "spec: the kind is unknown",
                got=name,
                legal=KINDS,
                hint="a user-defined kind requires its declaration, as describe returns it",
            )
        return KINDS[name].kind
    _need(isinstance(name, str), "spec: kind", "a text", name)
    if isinstance(declared, Mapping) and "steps" in declared:
        return _defined(name, declared["steps"])
    try:
        parameters = tuple(_parameter(parameter) for parameter in declared.get("parameters", []))
        return Kind(str(name), declared["formula"], parameters, declared.get("atomic", False))
    except (ArgumentError, TypeError, KeyError, AttributeError, ValueError) as error:
        why = error.asked if isinstance(error, ArgumentError) else str(error)
        raise StoreError(f"spec: the declaration of the kind is invalid: {why}", got=declared) from None


def _defined(name: object, fields: Any) -> Kind:
    """Return the kind of a definition with more than one step, from its declaration."""
    fields = former.present_fields("FusedKind", fields) if isinstance(fields, Mapping) else fields
    if not isinstance(fields, Mapping) or set(fields) - {*PAIRED, *NAMES, "dims"}:
        raise StoreError("spec: the declaration of the definition is invalid", got=fields)
    pairs = {field: fields.get(field, []) for field in PAIRED}
    texts = {field: fields.get(field, "") for field in (*NAMES, "dims")}
    for field, listed in pairs.items():
        right = isinstance(listed, (list, tuple)) and all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in listed)
        _need(
            right and all(isinstance(part, str) for pair in listed for part in pair), f"spec: {field}", "a list of pairs of texts", listed
        )
    for field, text in texts.items():
        _need(isinstance(text, str), f"spec: {field}", "a text", text)
    return _of_texts(str(name), tuple(texts.items()), tuple((field, tuple(map(tuple, listed))) for field, listed in pairs.items()))


@functools.lru_cache(maxsize=256)
def _of_texts(name: str, texts: tuple[tuple[str, str], ...], pairs: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]) -> Kind:
    """Return the kind of a definition from its texts. The result is cached, because many records have the same definition."""
    listed: dict[str, Any] = {field: [list(pair) for pair in field_pairs] for field, field_pairs in pairs}
    listed["types"] = [(temporary, as_dtype(dtype)) for temporary, dtype in listed["types"]]
    return definition({"name": name, **dict(texts), **listed})


def _declared(kind: Kind) -> dict[str, Any]:
    """Return the declaration of a kind as JSON: the formula and the parameters without a default; the steps of a definition."""
    if isinstance(kind, FusedKind):
        fields = {name: value for name, value in definition_fields(kind).items() if name != "name" and value}
        paired = {name: [[first, str(second)] for first, second in value] for name, value in fields.items() if name in PAIRED}
        return {"steps": fields | paired}
    plain: dict[str, Any] = {"formula": kind.text}
    if kind.parameters:
        plain["parameters"] = [_plain_parameter(parameter) for parameter in kind.parameters]
    return plain | ({"atomic": True} if kind.atomic else {})


def _plain_parameter(parameter: Parameter) -> dict[str, Any]:
    fields = {field.name: getattr(parameter, field.name) for field in attrs.fields(Parameter) if not _is_default(field, parameter)}
    return {name: _finite(value) for name, value in fields.items()}


def _parameter(plain: Mapping[str, Any]) -> Parameter:
    fields = {name: _read_finite(value) if name == "default" else value for name, value in plain.items()}
    return Parameter(**{**fields, "legal": tuple(fields.get("legal", ()))})


def _parameters(kind: Kind, plain: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the values of a kind's parameters in a described spec."""
    given = plain if plain.get("declared") is None else plain.get("parameters", {})
    if not isinstance(given, Mapping):
        raise StoreError("spec: parameters must be an object of values by name", got=given)
    present = [parameter for parameter in kind.parameters if parameter.name in given]
    values = {parameter.name: _read_finite(given[parameter.name]) if parameter.real else given[parameter.name] for parameter in present}
    missing = [name for name in kind.required if name not in values]
    if missing:
        raise StoreError(f"spec: {kind.title} has no {missing[0]}", got=given)
    return kind.filled(values)


_ORDERS: Final[Mapping[str, MatrixLayout]] = {"row": RowMajor, "col": ColMajor}
_SYMBOL: Final = ("multiple_of", "low", "high")


def describe(spec: Spec) -> dict[str, Any]:
    """Return a spec as a record stores it: plain JSON, by operand.

    A kind that is not in `KINDS` is stored with its declaration. `sizes` are integers or names of run-time sizes. `symbols` has the
    multiples and bounds of run-time sizes. `leading` has the specified leading dimensions. `layouts` are `row`, `col` or `Strides(...)`.
    `align` has the alignment in bytes of each operand that is not aligned to 16 bytes. For a spec of a node, `gpus` is the number of GPUs,
    and `over` has the dimension over which each distributed operand is distributed.

    >>> from fireiron import *
    >>> describe(MatMul(64, 32, 8, dtype=float16, A=RowMajor)(GL, GL, GL)(Kernel))["layouts"]
    {'A': 'row', 'B': 'col', 'C': 'col'}

    Raises: StoreError for a spec that is not a kernel's, or whose storage a record cannot describe.
    """
    spec = as_spec(spec)
    if not isinstance(spec, Spec):
        raise ArgumentError("describe requires a spec", got=spec, legal="MatMul(M, N, K)(GL, GL, GL)(Kernel)")
    if not spec.level.is_launch and spec.level.gpus is None:
        raise StoreError("only specs of kernels and of nodes can have records", got=str(spec), hint="a spec at the level Kernel or Node(2)")
    symbols: dict[str, Any] = {}
    operands = {name: view for name, view in spec.operands.items() if not view.memory.is_coordinate}
    stored = {name: view.tensor.array.layout for name, view in operands.items()}
    layouts = {name: layout.layout if isinstance(layout, Distributed) else layout for name, layout in stored.items()}
    definition = fused(spec)
    more = {} if definition is None else definition.extents_of_arrays(spec)
    matrices = {name: layout for name, layout in layouts.items() if isinstance(layout, MatrixLayout)}
    leading = {name: _size(layout.leading, symbols) for name, layout in matrices.items() if layout.leading is not None}
    plain: dict[str, Any] = {
        "kind": spec.title,
        "sizes": {_size_name(spec, dim): _size(size, symbols) for dim, size in zip(spec.dims, spec.sizes, strict=True)}
        | {dim.upper(): _size(size, symbols) for dim, size in more.items()},
        "dtypes": {name: view.dtype.name for name, view in operands.items()},
        "layouts": {name: matrices[name].order if name in matrices else _strides(spec, name, symbols) for name in operands},
        "leading": leading,
        "symbols": {name: facts for name, facts in symbols.items() if facts},
        "align": {name: view.tensor.align for name, view in operands.items() if view.tensor.align != 16},
        "gpus": spec.level.gpus or {},
        "over": {name: layout.dim for name, layout in stored.items() if isinstance(layout, Distributed)},
        **_options(spec),
    }
    plain = {name: part for name, part in plain.items() if part != {}}
    if spec_of(plain) != spec:
        raise StoreError("a record cannot describe this spec", got=str(spec), legal="whole tensors in global memory, RowMajor or ColMajor")
    return plain


def _size_name(spec: Spec, dim: str) -> str:
    """Return the name of a dimension's size in a record: in capitals, as in the short form."""
    if sum(other.upper() == dim.upper() for other in spec.dims) > 1:
        raise StoreError(f"a record cannot describe {spec.title}: two dimensions are named {dim.upper()}", got=spec.dims)
    return dim.upper()


def _options(spec: Spec) -> dict[str, Any]:
    """Return the further properties of a spec that differ from the defaults."""
    plain: dict[str, Any] = {}
    if spec.accumulator is not None:
        plain["accumulator"] = spec.accumulator.name
    if spec.accumulate not in (FALSE, TRUE):
        raise StoreError("a record cannot describe a condition for accumulation", got=str(spec.accumulate), legal="True False")
    if spec.accumulate == TRUE:
        plain["accumulate"] = True
    if spec.signature:
        plain["signature"] = spec.signature
    if KINDS.get(spec.title) == spec.starter:
        return plain | {name: _finite(value) for name, value in spec.parameters if value != spec.kind.defaults[name]}
    plain["declared"] = _declared(spec.kind)
    return plain | ({"parameters": {name: _finite(value) for name, value in spec.parameters}} if spec.parameters else {})


_INFINITE: Final[Mapping[Any, float]] = {"inf": math.inf, "-inf": -math.inf}
"""JSON has no infinity, so it is stored as a text."""


def _finite(value: Any) -> Any:
    return str(value) if value in _INFINITE.values() else list(value) if isinstance(value, tuple) else value


def _read_finite(value: Any) -> Any:
    return _INFINITE.get(value, value) if isinstance(value, str) else value


def _strides(spec: Spec, name: str, symbols: dict[str, Any]) -> str:
    """Return `Strides(m=ANY(8), k=1)`, with the names of symbols. Raises: `StoreError` if a dimension has more than one stride."""
    array = spec.operands[name].tensor.array
    strides = strides_of(name, spec.kind.array_dims(spec.definition, name), array.layout)
    if strides is None:
        layout = str(array.layout)
        raise StoreError(f"a record cannot describe the storage of {name}", got=layout, legal="RowMajor ColMajor Strides(...)")
    words = {dim: str(stride) if isinstance(stride, AnyStride) else _size(as_expr(stride), symbols) for dim, stride in strides.by_dim}
    return f"Strides({', '.join(f'{dim}={stride}' for dim, stride in words.items())})"


def _size(size: Expr, symbols: dict[str, Any]) -> int | str:
    number = constant(size)
    if number is not None:
        return number
    if not isinstance(size, Var) or not size.parameter:
        raise StoreError("a size in a record must be an integer or a symbol", got=str(size), hint='sym("M", multiple_of=8)')
    bare = sym(size.name, multiple_of=size.multiple_of)
    facts = {"multiple_of": size.multiple_of} if size.multiple_of != 1 else {}
    facts |= {name: getattr(size, name) for name in ("low", "high") if getattr(size, name) != getattr(bare, name)}
    symbols[size.name] = facts
    return size.name


def spec_of(plain: Mapping[str, Any]) -> Spec:
    """Return the spec of a mapping made by `describe`. Raises: `StoreError` if the mapping is invalid."""
    try:
        return _spec_of(plain)
    except StoreError:
        raise
    except FireironError as error:
        raise StoreError(f"spec: {error.asked}", got=error.got, legal=error.legal) from None


def _spec_of(plain: Mapping[str, Any]) -> Spec:
    kind, declared = kind_of(plain), definition_of(plain)
    names = declared.arrays if isinstance(declared, FusedDefinition) else tuple(declared.uses)
    dims = (*declared.dims, *declared.free_dims) if isinstance(declared, FusedDefinition) else declared.dims
    sizes = _exactly(plain, "sizes", tuple(dim.upper() for dim in dims))
    dtypes, layouts = _exactly(plain, "dtypes", names), _exactly(plain, "layouts", names)
    leading, align = _some(plain, "leading", names), _some(plain, "align", names)
    strided = {name: _read_strides(layouts[name]) for name in names if str(layouts[name]).startswith("Strides")}
    steps = [stride for pairs in strided.values() for stride in pairs.values()]
    symbols = _symbols(plain.get("symbols", {}), [*sizes.values(), *leading.values(), *steps])
    own = ("declared", "parameters") if "declared" in plain else tuple(parameter.name for parameter in kind.parameters)
    known = ("kind", "sizes", "dtypes", "layouts", "leading", "symbols", "align", "gpus", "over", *_OPTIONS, *own)
    unknown = [name for name in plain if name not in known]
    if unknown:
        raise StoreError(f"spec: the field {unknown[0]!r} is unknown", legal=known)
    if not isinstance(plain.get("accumulate", False), bool):
        raise StoreError("spec: accumulate must be true or false", got=plain["accumulate"])
    orders: dict[str, Any] = {name: _order(layouts[name]) for name in names if name not in strided}
    orders |= {name: orders[name](ld=_extent(size, symbols)) for name, size in leading.items() if name in orders}
    orders |= {name: Strides(**{dim: _stride(stride, symbols) for dim, stride in pairs.items()}) for name, pairs in strided.items()}
    gpus, over = plain.get("gpus"), _some(plain, "over", tuple(orders))
    if gpus is None and over:
        raise StoreError("spec: operands are distributed over GPUs, and gpus is missing", got=over, legal="such as 2")
    _need(gpus is None or (_is_integer(gpus) and gpus > 0), "spec: gpus", "a number of GPUs", gpus)
    orders |= {name: _over(orders[name], dim) for name, dim in over.items()}
    level = Kernel if gpus is None else Node(gpus)
    elements = {name: as_dtype(dtype) for name, dtype in dtypes.items()}
    options = {**dict(_parameters(kind, plain)), **{name: plain[name] for name in _OPTIONS if name in plain}}
    extents = [_extent(size, symbols) for size in sizes.values()]
    spec: Spec
    if isinstance(kind, FusedKind):
        spec = kind.starter(**dict(zip(dims, extents, strict=True)), types=elements, level=level, **orders)
    else:
        spec = _in_short_form(kind, declared, extents, elements, orders, options, level)
    views = {name: attrs.evolve(view, tensor=_aligned(view.tensor, align[name])) for name, view in spec.operands.items() if name in align}
    return spec.with_operands(**views) if views else spec


_OPTIONS: Final = ("accumulator", "accumulate", "signature")


def _over(order: object, dim: object) -> Distributed:
    """Return a storage order distributed over the GPUs along a dimension."""
    if not isinstance(order, MatrixLayout) or not isinstance(dim, str):
        raise StoreError("spec: this storage cannot be distributed over GPUs", got=f"{order} over {dim}", legal="row col")
    return order.over(GPU, dim)


def _in_short_form(
    kind: Kind, declared: Definition, sizes: list[Any], dtypes: Mapping[str, Any], layouts: Mapping[str, Any],
    options: Mapping[str, Any], level: Level,
) -> Spec:  # fmt: skip
    """Return the spec of a kind at a level, by its short form."""
    inputs = tuple(dtypes[name] for name in declared.uses if name not in declared.outputs)
    results = {name: dtypes[name] for name in declared.outputs}
    spec: Spec = kind.starter.shape(sizes, inputs or next(iter(results.values())), results, layouts, **options)(*[GL] * len(dtypes))(level)
    return spec


def _exactly(plain: Mapping[str, Any], field: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a mapping with exactly these names, in this order."""
    value = plain.get(field)
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise StoreError(f"spec: {field} must have values for {', '.join(names)}", got=value)
    return {name: value[name] for name in names}


def _some(plain: Mapping[str, Any], field: str, names: tuple[str, ...]) -> Mapping[str, Any]:
    value = plain.get(field, {})
    if not isinstance(value, Mapping) or not set(value) <= set(names):
        raise StoreError(f"spec: {field} may only have values for {', '.join(names)}", got=value)
    return value


def _read_strides(text: object) -> dict[str, Any]:
    """Return the strides of a text by dimension: integers, `AnyStride`, or names of symbols."""
    match = re.fullmatch(r"Strides\(((?:\w+=[\w()]+(?:, (?=\w))?)*)\)", text) if isinstance(text, str) else None
    if match is None:
        raise StoreError("spec: the strides are invalid", got=text, legal="Strides(m=ANY(8), k=1)")
    pairs = dict(part.split("=") for part in match[1].split(", ")) if match[1] else {}
    return {dim: _read_stride(stride, text) for dim, stride in pairs.items()}


def _read_stride(stride: str, text: object) -> Any:
    match = re.fullmatch(r"ANY(?:\(([1-9]\d{0,8})\))?", stride)
    if match is not None:
        return ANY if match[1] is None else ANY(int(match[1]))
    if not re.fullmatch(r"\d{1,18}|[A-Za-z_]\w*", stride):
        raise StoreError("spec: a stride is invalid", got=text, legal="an integer, the name of a symbol, ANY or ANY(8)")
    return int(stride) if stride.isdecimal() else stride


def _stride(value: Any, symbols: Mapping[str, Var]) -> Any:
    return symbols[value] if isinstance(value, str) else value


def _order(value: object) -> MatrixLayout:
    if not isinstance(value, str) or value not in _ORDERS:
        raise StoreError("spec: the layout is unknown", got=value, legal=_ORDERS)
    return _ORDERS[value]


def _symbols(facts: Any, sizes: Sequence[Any]) -> dict[str, Var]:
    used = {size for size in sizes if isinstance(size, str)}
    valid = isinstance(facts, Mapping) and all(isinstance(fact, Mapping) and set(fact) <= set(_SYMBOL) for fact in facts.values())
    if not valid or not set(facts) <= used:
        raise StoreError("spec: symbols must have only facts (multiple_of, low, high) of run-time sizes", got=facts)
    try:
        return {name: sym(name, **facts.get(name, {})) for name in used}
    except FireironError as error:
        raise StoreError(f"spec: {error.asked}", got=error.got, legal=error.legal) from None


def _extent(size: Any, symbols: Mapping[str, Var]) -> Any:
    if isinstance(size, str):
        return symbols[size]
    if not _is_integer(size):
        raise StoreError("spec: a size must be an integer, or the name of a run-time size", got=size)
    return size


def _aligned(tensor: Tensor, align: Any) -> Tensor:
    if not _is_integer(align) or not 1 <= align <= 1024 or align & (align - 1):
        raise StoreError("spec: an alignment must be a power of two", got=align, legal="1 2 4 ... 1024")
    return attrs.evolve(tensor, align=align)


# ---------------------------------------------------------------------------------------------- one record


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _need(holds: bool, field: str, wanted: str, got: object) -> None:
    if not holds:
        raise StoreError(f"{field} must be {wanted}", got=got)


def _text(record: Any, field: Any, value: Any) -> None:
    _need(isinstance(value, str) and bool(value.strip()) and value.isprintable(), field.name, "a text of one line", value)


def _matching(pattern: str, wanted: str) -> Any:
    def check(record: Any, field: Any, value: Any) -> None:
        _need(isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None, field.name, wanted, value)

    return check


def _number(least: float, above: bool = False) -> Any:
    def check(record: Any, field: Any, value: Any) -> None:
        wanted = f"a finite number {'above' if above else 'of at least'} {least:g}"
        _need(_is_number(value) and (value > least or (value == least and not above)), field.name, wanted, value)

    return check


def _natural(record: Any, field: Any, value: Any) -> None:
    _need(_is_integer(value) and value >= 0, field.name, "an integer of at least 0", value)


def _pair(check: Any, wanted: str) -> Any:
    def both(record: Any, field: Any, value: Any) -> None:
        _need(isinstance(value, tuple) and len(value) == 2 and all(map(check, value)), field.name, wanted, value)

    return both


def _values(record: Any, field: Any, value: Any) -> None:
    valid = isinstance(value, Mapping) and all(isinstance(name, str) and name.isidentifier() for name in value)
    _need(valid and all(_is_integer(number) and number >= 0 for number in value.values()), field.name, "integers by tunable", value)


def _spec(record: Any, field: Any, value: Any) -> None:
    _need(isinstance(value, Mapping), field.name, "a mapping made by describe", value)
    spec_of(value)


def _date(record: Any, field: Any, value: Any) -> None:
    from datetime import datetime

    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        _need(False, field.name, "a date such as 2026-11-21", value)


def _extra(record: Any, field: Any, value: Any) -> None:
    _need(isinstance(value, Mapping) and all(isinstance(name, str) for name in value), field.name, "a mapping", value)
    reserved = [name for name in value if name in (*_FIELDS, "format")]
    _need(not reserved, field.name, f"another name than {reserved[:1]}", value)


def _as_pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _as_dict(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, Mapping) and _is_json(value) else value


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_positive: Final = _number(0, above=True)


@attrs.frozen(kw_only=True)
class Record(Displayed):
    """A measurement of a verified strategy, with values of its tunables, for a spec, and the conditions of the measurement.

    Attributes:
        strategy: a name of the library, or `path.py:name` of a user's strategy.
        strategy_hash: the `strategy_hash` of the strategy, whose tunables have no values.
        values: the values of its tunables, by name.
        spec: the spec, as `describe` returns it.
        architecture: the target of the compiler, `"sm_90"`.
        gpu: the name of the GPU as the driver reports it, `"NVIDIA H200"`.
        us: the median time of one launch, in microseconds.
        quartiles: the quartiles of that time.
        tflops: 10**12 operations per second at that time.
        regime: `"burst"` (after a pause) or `"busy"`.
        l2: the state of the buffers: `"rotated"`, `"flushed"` or `"hot"`.
        error: the relative error compared with float64, when the kernel was verified.
        registers: registers per thread.
        shared_bytes: bytes of shared memory per block.
        spills: spilled bytes per thread.
        library_us: the time of the vendor's library in the same run, in microseconds; None if it was not run.
        toolchain: the compiler, `"NVRTC 13.0"`.
        driver: the version of the driver.
        clocks: the SM clock before and after, in MHz, if known.
        fireiron: the version of Fireiron that generated the kernel.
        date: the date in ISO 8601.
        source: the search, `"exhaustive search of 314"`.
        extra: further fields of the file, which are preserved.
    """

    strategy: str = attrs.field(validator=_text)
    strategy_hash: str = attrs.field(validator=_matching("[0-9a-f]{16}", "16 hex digits"))
    values: Mapping[str, int] = attrs.field(converter=_as_dict, validator=_values)
    spec: Mapping[str, Any] = attrs.field(converter=_as_dict, validator=_spec)
    architecture: str = attrs.field(validator=_matching("sm_[0-9]{2,3}[a-z]?", "an architecture such as sm_90"))
    gpu: str = attrs.field(validator=_text)
    us: float = attrs.field(validator=_positive)
    quartiles: tuple[float, float] = attrs.field(
        converter=_as_pair, validator=_pair(lambda time: _is_number(time) and time > 0, "a pair of times")
    )
    tflops: float = attrs.field(validator=_number(0))
    regime: str = attrs.field(validator=_text)
    l2: str = attrs.field(validator=_text)
    error: float = attrs.field(validator=_number(0))
    registers: int = attrs.field(validator=_natural)
    shared_bytes: int = attrs.field(validator=_natural)
    spills: int = attrs.field(validator=_natural)
    library_us: float | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    toolchain: str = attrs.field(validator=_text)
    driver: str = attrs.field(validator=_text)
    clocks: tuple[int, int] | None = attrs.field(
        default=None,
        converter=_as_pair,
        validator=attrs.validators.optional(_pair(lambda clock: _is_integer(clock) and clock >= 0, "a pair of clocks in MHz")),
    )
    fireiron: str = attrs.field(validator=_text)
    date: str = attrs.field(validator=_date)
    source: str = attrs.field(validator=_text)
    extra: Mapping[str, Any] = attrs.field(factory=dict, converter=_as_dict, validator=_extra)

    def __hash__(self) -> int:
        return hash(self.line())

    @property
    def ratio(self) -> float | None:
        """The speedup over the vendor's library; None if that was not measured."""
        return None if self.library_us is None else self.library_us / self.us

    @property
    def shape(self) -> tuple[int | str, ...]:
        """The sizes, in order: `(4096, 4096, 4096)`."""
        return tuple(self.spec["sizes"][dim.upper()] for dim in definition_of(self.spec).dims)

    def line(self) -> str:
        """Return the record as one line of JSON with sorted keys, without the newline."""
        plain = {name: getattr(self, name) for name in _FIELDS}
        return json.dumps({"format": FORMAT, **self.extra, **plain}, sort_keys=True, allow_nan=False)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Record:
        """Return the record of a JSON mapping. Unknown fields are kept in `extra`. Raises: `StoreError` if a field is missing."""
        version = plain.get("format")
        if not _is_integer(version) or version != FORMAT:
            raise StoreError("the record has another version of the format", got=version, legal=[FORMAT], hint="update fireiron")
        missing = [name for name in _FIELDS if name not in plain and name not in ("library_us", "clocks")]
        if missing:
            raise StoreError(f"the field {missing[0]!r} is missing")
        plain = former.present_record(plain)
        extra = {name: part for name, part in plain.items() if name not in _FIELDS and name != "format"}
        return Record(**{name: plain[name] for name in _FIELDS if name in plain}, extra=extra)

    @staticmethod
    def checked(lines: Iterable[str]) -> tuple[Record, ...]:
        """Return the records of lines that were checked before, such as the shipped records, without checking them again.

        Records with equal specs share one mapping. Raises: ValueError, KeyError, TypeError or AttributeError for illegal lines.
        """
        specs: dict[str, Any] = {}
        rests, known = list[str](), list[Any]()
        for line in lines:
            begin = line.index(_BEFORE_SPEC)  # quotes inside texts are escaped, so this is a name of the record
            end = line.index(_AFTER_SPEC, begin)
            text = line[begin + len(_BEFORE_SPEC) : end]
            if text not in specs:
                specs[text] = json.loads(text)
            known.append(specs[text])
            rests.append(line[:begin] + line[end:])
        plain = json.loads(f"[{','.join(rests)}]")  # in one call, so that each name is stored once
        return tuple(map(_unchecked, plain, known))

    @staticmethod
    def parse(line: str) -> Record:
        """Return the record of one line of JSON. Raises: `StoreError` if it is invalid."""
        try:
            plain = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            raise StoreError(f"the line is not JSON: {error.msg}") from None
        except RecursionError:
            raise StoreError("the record is nested too deeply") from None
        except ValueError as error:  # integers of thousands of digits
            raise StoreError(f"the line is not JSON: {error}") from None
        if not isinstance(plain, dict):
            raise StoreError("a record must be a JSON object", got=plain)
        return Record.of(plain)


_FIELDS: Final[tuple[str, ...]] = tuple(field.name for field in attrs.fields(Record) if field.name != "extra")


_BEFORE_SPEC, _AFTER_SPEC = ', "spec": ', ', "spills": '
"""The text of a record's line before and after its spec, with sorted names."""

_SETTERS: Final = tuple(getattr(Record, name).__set__ for name in _FIELDS)
_set_extra: Final = vars(Record)["extra"].__set__
_values_of: Final = operator.itemgetter(*_FIELDS)


def _unchecked(plain: dict[str, Any], spec: Mapping[str, Any]) -> Record:
    """Return the record of a mapping that was checked before, with its spec given separately."""
    del plain["format"]
    record = object.__new__(Record)  # without __init__, whose checks take a second for all shipped records
    plain["spec"] = spec
    for name in ("quartiles", "clocks"):
        plain[name] = _as_pair(plain.get(name))
    plain.setdefault("library_us", None)
    for setter, value in zip(_SETTERS, _values_of(plain), strict=True):
        setter(record, value)
    is_plain = len(plain) == len(_FIELDS)
    _set_extra(record, {} if is_plain else {name: value for name, value in plain.items() if name not in _FIELDS})
    return record


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise StoreError(f"the field {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise StoreError(f"{name} is not a legal value in a record")
