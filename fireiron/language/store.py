"""Strategies and specs as JSON, without loss: `loads(dumps(strategy)) == strategy`, with an equal hash.

A value of a class is an object with its class name under `"type"` and its fields; fields at their default are left out.
Element types, memories and levels stand by name, expressions by their text, which a parser of its own reads (nothing is
ever evaluated). Loading checks what the verbs check, so a file that was edited by hand cannot hold what no strategy could.

What equality ignores is not stored: the line of the Python file that a step came from, the file of a micro-kernel.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

import attrs
from cattrs import Converter, transform_error
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
    StructureHandlerNotFoundError,
)
from cattrs.gen import make_dict_structure_fn, override

from fireiron import files
from fireiron.decomp.coalesced import Coalesced
from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.mma_tile import MmaTile
from fireiron.decomp.split import Split
from fireiron.decomp.split_k import SplitK
from fireiron.decomp.tile import Strided, Tile
from fireiron.errors import ArgumentError, FireironError, StoreError
from fireiron.executable.atomic_add import LaneAtomicAdd, ThreadAtomicAdd
from fireiron.executable.cp_async import CpAsync
from fireiron.executable.fma import Fma
from fireiron.executable.hfma2 import Hfma2
from fireiron.executable.lane_move import LaneInit, LaneMove
from fireiron.executable.ldmatrix import LdMatrix
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.mma import Mma
from fireiron.executable.movmatrix import MovMatrix
from fireiron.executable.pointwise import ThreadPointwise
from fireiron.executable.reduce import ThreadReduce
from fireiron.executable.stmatrix import StMatrix
from fireiron.executable.thread_move import ThreadInit, ThreadMove
from fireiron.executable.wmma import FillFragment, MatrixSync, MmaSync
from fireiron.ir.lanes import LaneMap
from fireiron.language.strategy import UID, EpilogStrategy, LoadStrategy, SplitKStrategy, SplitStrategy, Strategy, TileStrategy
from fireiron.language.tree import Decomposition
from fireiron.language.tunable import Derived, Tunable
from fireiron.refine.align import Align
from fireiron.refine.bands import Bands
from fireiron.refine.converted import Converted
from fireiron.refine.layout import DealOrder
from fireiron.refine.no_sync import NoSync
from fireiron.refine.pad import Pad
from fireiron.refine.permute import Permute
from fireiron.refine.pipeline import Pipeline
from fireiron.refine.resident import Resident
from fireiron.refine.reuse_buffer import ReuseBuffer
from fireiron.refine.storage_layout import StorageLayout
from fireiron.refine.swizzle import SwizzleStorage
from fireiron.refine.sync import Sync
from fireiron.refine.to import To
from fireiron.refine.unchecked import Unchecked
from fireiron.refine.unroll import Unroll
from fireiron.spec import Init, InitSpec, MatMul, MatMulSpec, Move, MoveSpec, Spec, Starter, check_layout, check_size
from fireiron.specs.atomic_add import AtomicAdd, AtomicAddSpec
from fireiron.specs.pointwise import OPERATIONS, BinaryPointwise, BinaryPointwiseSpec
from fireiron.specs.reduction import Reduction, ReductionSpec
from fireiron.values.expr import Const, Expr, Var, all_of, any_of, as_expr, constant, equal, minimum
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import DTYPES, FRAGMENTS, GL, LEVELS, MEMORIES, SH, DType, Level, Memory
from fireiron.values.tensor import ColMajor, Dealt, Dim, MatrixLayout, Mode, RowMajor, Tensor, View

VERSION: Final = 1
"""The version of the format; another one is refused."""

CLASSES: Final[Mapping[str, type[Any]]] = {
    **{
        one.__name__: one
        for one in (
            Tile, Split, SplitK, Load, Epilog, Done, Coalesced, Strided, Tunable, Derived,
            Align, NoSync, Pad, Permute, ReuseBuffer, StorageLayout, SwizzleStorage, Sync, To, Unchecked, Unroll,
            Bands, Converted, Pipeline, Resident, CpAsync,
            Fma, Hfma2, MicroKernel, ThreadMove, ThreadInit, ThreadPointwise, ThreadReduce, ThreadAtomicAdd, LaneAtomicAdd,
            MmaTile, Mma, LaneMap, LdMatrix, StMatrix, MovMatrix, LaneMove, LaneInit, MmaSync, MatrixSync, FillFragment,
            MatMulSpec, MoveSpec, InitSpec, BinaryPointwiseSpec, ReductionSpec, AtomicAddSpec, View, Dim, Mode, Dealt, Tensor,
            MatrixLayout, Layout, Swizzle, DType, Memory, Level,
        )
    },
    "DealOrder": DealOrder,
}  # fmt: skip
"""The built-in classes by the name under which they are stored."""

_STARTERS: Final[Mapping[str, Starter]] = {repr(one): one for one in (MatMul, Move, Init, BinaryPointwise, Reduction, AtomicAdd)}
_CHAINS: Final[Mapping[type[Decomposition], type[Strategy]]] = {
    Tile: TileStrategy, Split: SplitStrategy, SplitK: SplitKStrategy, Load: LoadStrategy, Epilog: EpilogStrategy,
}  # fmt: skip
_WIDTH: Final = 120

# ---------------------------------------------------------------------------------------------- the public functions


def dumps(value: Strategy | Spec, *, classes: Iterable[type[Any]] = ()) -> str:
    """A strategy or a spec as JSON.

    Args: `classes`, the user's own classes that occur in it (attrs classes with annotated fields).
    Raises: StoreError where something cannot be stored without loss.
    """
    if not isinstance(value, (Strategy, Spec)):
        raise ArgumentError("dumps: neither a strategy nor a spec", got=value)
    store = _Store(classes)
    kind = "strategy" if isinstance(value, Strategy) else "spec"
    try:
        text = _pretty({"fireiron": kind, "version": VERSION, kind: store.plain(value)}) + "\n"
    except RecursionError:
        raise StoreError(f"the {kind} is nested too deeply to be stored") from None
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the {kind} cannot be stored: {error}", hint="fields must hold what JSON can hold, or values of stored classes"
        ) from None
    if store.read(text, kind) != value:
        raise StoreError(f"the {kind} does not survive being stored", got=value, hint="fields of your own classes must compare by value")
    return text


def loads(text: str, *, classes: Iterable[type[Any]] = ()) -> Strategy:
    """The strategy of a text made by `dumps`; a StoreError says where the text is wrong."""
    strategy: Strategy = _Store(classes).read(text, "strategy")
    return strategy


def loads_spec(text: str, *, classes: Iterable[type[Any]] = ()) -> Spec:
    """The spec of a text made by `dumps`; a StoreError says where the text is wrong."""
    spec: Spec = _Store(classes).read(text, "spec")
    return spec


def save(value: Strategy | Spec, path: str | Path, *, overwrite: bool = False, classes: Iterable[type[Any]] = ()) -> None:
    """Write a strategy or a spec to a file, all of it or nothing; an existing file stays unless `overwrite`."""
    write_text(path, dumps(value, classes=classes), overwrite=overwrite)


def load(path: str | Path, *, classes: Iterable[type[Any]] = ()) -> Strategy:
    """The strategy in a file written by `save`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is no text: {error}") from None
    try:
        return loads(text, classes=classes)
    except StoreError as error:
        raise error.located(within=path) from None


def write_text(path: str | Path, text: str, *, overwrite: bool = False) -> None:
    """Write a text file, all of it or nothing; an existing file stays unless `overwrite`."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"{path} cannot be written: {error}") from None
    files.write(path, data, overwrite=overwrite)


# ---------------------------------------------------------------------------------------------- values to and from plain values


class _Store:
    """The converter for the built-in classes and a user's own."""

    def __init__(self, classes: Iterable[type[Any]]) -> None:
        self.table = _table(classes)
        self.tags = {one: name for name, one in self.table.items()}
        self.converter = Converter(forbid_extra_keys=True, detailed_validation=True)
        self.readers: dict[type[Any], Callable[[Any, Any], Any]] = {}
        self._register()

    def plain(self, value: Any) -> Any:
        """What JSON can hold."""
        if isinstance(value, Strategy):
            spec = None if value.spec is None else self.plain(value.spec)
            plain = {"start": self._starter(value.start), "spec": spec, "steps": [self.plain(step) for step in value.steps]}
            return plain | ({"otherwise": [self.plain(one) for one in value.others]} if value.others else {})
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Expr):
            return expression_text(value)
        for named in (DTYPES, MEMORIES, FRAGMENTS, LEVELS):
            if value in named:
                return value.name
        if value in (ColMajor, RowMajor):
            return repr(value)
        if isinstance(value, (tuple, list)):
            return [self.plain(part) for part in value]
        if isinstance(value, Mapping):
            return {key: self.plain(part) for key, part in value.items()}
        if not attrs.has(type(value)):
            raise StoreError(f"a value of type {type(value).__name__} cannot be stored", got=value)
        return self._tagged(value)

    def _tagged(self, value: Any) -> dict[str, Any]:
        cls = type(value)
        if cls not in self.tags:
            known = self.table.get(cls.__name__)
            why = "another class of this name is" if known is not None else "it is not among the stored classes"
            raise StoreError(f"{cls.__name__} cannot be stored: {why}", hint=f"dumps(strategy, classes=[{cls.__name__}])")
        result: dict[str, Any] = {"type": self.tags[cls]}
        for field in attrs.fields(cls):
            if _stored(field) and not _is_default(field, value):
                result[field.alias] = self.plain(getattr(value, field.name))
        return result

    def _starter(self, start: Starter) -> str:
        if _STARTERS.get(repr(start)) != start:
            raise StoreError(f"a chain that starts from {start!r} cannot be stored", legal=_STARTERS)
        return repr(start)

    # ------------------------------------------------------------------------------------------ reading

    def read(self, text: str, kind: str) -> Any:
        """The strategy or the spec of a document."""
        if not isinstance(text, str):
            raise ArgumentError("loads: not a text", got=type(text).__name__, legal="the text that dumps made")
        document = _parsed(text)
        _check_head(document, kind)
        wanted: Any = Strategy if kind == "strategy" else Spec
        try:
            return self.converter.structure(document[kind], wanted)
        except RecursionError:
            raise StoreError("the document is nested too deeply") from None
        except Exception as error:  # cattrs wraps whatever a hook raises; transform_error says where
            raise _located(error, kind) from None

    def _register(self) -> None:
        register = self.converter.register_structure_hook_func
        register(lambda wanted: attrs.has(_class_of(wanted)), self._object)
        register(_is_union, self._union)
        register(lambda wanted: _class_of(wanted) is tuple, self._tuple)
        register(lambda wanted: wanted is Any, lambda value, _: self._any(value))
        for plain in _WORDS:
            self.converter.register_structure_hook(plain, _exact)
        register(lambda wanted: isinstance(wanted, type) and issubclass(wanted, Expr), lambda value, _: expression(value))
        register(lambda wanted: wanted is Strategy, self._strategy)

    def _strategy(self, value: Any, _: Any) -> Strategy:
        kinds: dict[str, Any] = {"start": str, "spec": Spec | None, "steps": tuple[Decomposition, ...]}
        if isinstance(value, dict) and "otherwise" in value:
            kinds["otherwise"] = tuple[Strategy, ...]
        fields = self._fields(value, kinds)
        steps, start = fields["steps"], _STARTERS.get(fields["start"])
        if start is None:
            raise StoreError(f"a chain cannot start from {fields['start']!r}", legal=_STARTERS)
        chain = _CHAINS.get(type(steps[-1]), Strategy) if steps else Strategy
        made = chain(steps, fields["spec"], start)
        for other in fields.get("otherwise", ()):
            made = made.otherwise(other)
        return made

    def _fields(self, value: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """An object with exactly these fields."""
        if not isinstance(value, dict):
            raise StoreError("an object is needed", got=value)
        unknown = [name for name in value if name not in kinds]
        if unknown:
            raise StoreError(f"unknown field {unknown[0]!r}", legal=kinds)
        read: dict[str, Any] = {}
        for name, kind in kinds.items():
            try:
                read[name] = self.converter.structure(value[name], kind)
            except Exception as error:
                raise ClassValidationError("field", [_noted(error, AttributeValidationNote("field", name, kind))], dict) from None
        return read

    def _any(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._tuple(value, tuple[Any, ...])
        return self._object(value, None) if isinstance(value, dict) else value

    def _tuple(self, value: Any, wanted: Any) -> Any:
        if not isinstance(value, list):
            raise StoreError("a list is needed", got=value)
        inner = get_args(wanted) or (Any, Ellipsis)
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise StoreError(f"a list of {len(kinds)} values is needed", got=value)
        read = []
        for position, (part, kind) in enumerate(zip(value, kinds, strict=True)):
            try:
                read.append(self.converter.structure(part, kind))
            except Exception as error:
                raise IterableValidationError("list", [_noted(error, IterableValidationNote("list", position, kind))], tuple) from None
        return tuple(read)

    def _union(self, value: Any, wanted: Any) -> Any:
        kinds = [kind for kind in get_args(wanted) if kind is not type(None)]
        if value is None:
            if len(kinds) == len(get_args(wanted)):
                raise StoreError("null is not allowed here")
            return None
        if isinstance(value, dict):
            kinds = [kind for kind in kinds if attrs.has(_class_of(kind)) and issubclass(self._class(value), _class_of(kind))] or kinds
        elif len(kinds) > 1:
            kinds = [kind for kind in kinds if kind is type(value) or (isinstance(value, str) and kind in _NAMED)] or kinds
        return self.converter.structure(value, kinds[0])

    def _class(self, value: Mapping[str, Any]) -> type[Any]:
        name = value.get("type")
        if not isinstance(name, str):
            raise StoreError('an object needs its class under "type"', got=name)
        if name not in self.table:
            raise StoreError(f"unknown class {name!r}", hint=f"classes=[{name}] if it is yours" if name.isidentifier() else None)
        return self.table[name]

    def _object(self, value: Any, wanted: Any) -> Any:
        """A value of a class: by name where it has one, else an object that names its class."""
        base: Any = object if wanted is None else _class_of(wanted)
        if isinstance(value, str) and base in _NAMED:
            if value not in _NAMED[base]:
                raise StoreError(f"unknown {base.__name__} {value!r}", legal=_NAMED[base])
            return _NAMED[base][value]
        if not isinstance(value, dict):
            raise StoreError(f"a value of {base.__name__} is needed", got=value)
        cls = self._class(value)
        if not issubclass(cls, base):
            raise StoreError(f"{value['type']} is no {base.__name__}")
        fields = {key: part for key, part in value.items() if key != "type"}
        made = _MAKERS[cls][1](self._fields(fields, _MAKERS[cls][0])) if cls in _MAKERS else self._reader(cls)(fields, cls)
        _check(made)
        return made

    def _reader(self, cls: type[Any]) -> Callable[[Any, Any], Any]:
        if cls not in self.readers:
            try:
                attrs.resolve_types(cls)
            except NameError as error:
                raise StoreError(
                    f"the fields of {cls.__name__} cannot be read: {error}", hint="define the class at the top of a module"
                ) from None
            left_out: Any = {field.name: override(omit=True) for field in attrs.fields(cls) if not _stored(field)}
            self.readers[cls] = make_dict_structure_fn(
                cls, self.converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, _cattrs_use_alias=True, **left_out
            )
        return self.readers[cls]


def _table(classes: Iterable[type[Any]]) -> dict[str, type[Any]]:
    table = dict(CLASSES)
    for cls in classes:
        if not isinstance(cls, type) or not attrs.has(cls):
            raise ArgumentError("classes: not an attrs class", got=cls, hint="decorate it with @attrs.frozen")
        if table.get(cls.__name__, cls) is not cls:
            raise ArgumentError(f"classes: another stored class is called {cls.__name__}", hint="rename yours")
        table[cls.__name__] = cls
    return table


def _stored(field: Any) -> bool:
    """Fields that equality ignores, such as the line of the strategy, are not stored."""
    return bool(field.init) and (bool(field.eq) or field.default is attrs.NOTHING)


def _is_default(field: Any, value: Any) -> bool:
    default, current = field.default, getattr(value, field.name)
    if default is attrs.NOTHING or isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return False
    return type(current) is type(default) and bool(current == default)


def _class_of(wanted: Any) -> Any:
    return get_origin(wanted) or wanted


def _is_union(wanted: Any) -> bool:
    return get_origin(wanted) in (Union, types.UnionType)


def _exact(value: Any, wanted: type[Any]) -> Any:
    """A number, text or truth value of exactly the wanted type: 1 is not true, and "1" is not 1."""
    if type(value) is wanted or (wanted is float and type(value) is int):
        return value
    raise StoreError(f"{_WORDS[wanted]} is needed", got=value)


_WORDS: Final = {int: "an integer", str: "a text", bool: "true or false", float: "a number"}

# ---------------------------------------------------------------------------------------------- documents and errors


def _pretty(value: Any, indent: int = 0) -> str:
    """JSON with short objects and lists on one line."""
    flat = json.dumps(value, allow_nan=False)
    if len(flat) + indent <= _WIDTH or not isinstance(value, (dict, list)) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(key)}: {_pretty(part, indent + 2)}" for key, part in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _pretty(part, indent + 2) for part in value) + "\n" + " " * indent + "]"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise StoreError(f"no JSON: {error.msg}", at=f"line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise StoreError("the document is nested too deeply") from None
    except ValueError as error:  # integers of thousands of digits
        raise StoreError(f"no JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        raise StoreError(f"the field {next(name for name in names if names.count(name) > 1)!r} is given twice")
    return value


def _no_constant(name: str) -> Any:
    raise StoreError(f"{name} is no value here")


def _check_head(document: Any, kind: str) -> None:
    if not isinstance(document, dict) or "fireiron" not in document:
        raise StoreError(f"not a stored {kind}", hint='{"fireiron": "strategy", "version": 1, ...}')
    if document["fireiron"] != kind:
        other = {"strategy": "loads", "spec": "loads_spec"}.get(str(document["fireiron"]))
        raise StoreError(f"a {kind} is needed", got=document["fireiron"], at="$.fireiron", hint=None if other is None else f"{other}(text)")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise StoreError("another version of the format", got=version, legal=[VERSION], at="$.version")
    names = {"fireiron", "version", kind}
    if set(document) != names:
        odd = sorted(set(document) ^ names)[0]
        raise StoreError(f"the field {odd!r} is {'missing' if odd in names else 'unknown'}", at="$")


def _noted(error: Exception, note: Any) -> Exception:
    error.add_note(note)
    return error


def _located(error: Exception, kind: str) -> StoreError:
    """The first of cattrs' errors, with its path in the document; an error that nobody foresaw is raised as it is."""
    found: list[BaseException] = []

    def remember(one: BaseException, wanted: Any) -> str:
        found.append(one)
        return ""

    try:
        paths = transform_error(error, f"$.{kind}", remember)
    except RecursionError:
        return StoreError("the document is nested too deeply")
    first = found[0]
    at = paths[0].rpartition(" @ ")[2]
    if isinstance(first, FireironError):
        return StoreError(first.asked, got=first.got, legal=first.legal, at=at, hint=first.hint)
    if isinstance(first, RecursionError):
        return StoreError("the document is nested too deeply")
    if isinstance(first, KeyError):
        return StoreError("a field is missing", at=at)
    if isinstance(first, ForbiddenExtraKeysError):
        return StoreError(f"unknown field {sorted(first.extra_fields)[0]!r}", at=at)
    if isinstance(first, (TypeError, ValueError, LookupError, StructureHandlerNotFoundError)):  # a user's class refuses its fields
        return StoreError(f"{type(first).__name__}: {first}", at=at)
    raise first


# ---------------------------------------------------------------------------------------------- expressions


def expression_text(value: Expr) -> int | str:
    """An expression as text, or as an integer if it is one; `uid` stands for the symbol of a `swizzle`."""
    return value.value if isinstance(value, Const) else repr(value).replace(repr(UID), "uid")


def expression(value: Any) -> Expr:
    """The expression of a text made by `expression_text`, read by a parser that evaluates nothing else."""
    if type(value) is int:
        return Const(value)
    if not isinstance(value, str):
        raise StoreError("an expression is needed: an integer or a text", got=value)
    if not re.fullmatch(r"[\w\s'(),+*/%&|^<-]+", value) or re.search(r"(?<!\w)\d+[^\W\d]", value):
        raise StoreError("no expression", got=value)
    try:
        return as_expr(_built(ast.parse(value.strip(), mode="eval").body))
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        raise StoreError("no expression", got=value) from None


_OPERATORS: Final[Mapping[type[ast.AST], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip


def _built(node: ast.AST) -> Expr:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return Const(value)
        case ast.Name(id="uid"):
            return UID
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_built(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            made: Expr = _OPERATORS[type(operation)](_built(left), _built(right))
            return made
        case ast.Compare(left=left, ops=[ast.Lt()], comparators=[right]):
            return _built(left) < _built(right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _called(name, arguments)
    raise StoreError("no expression", got=ast.unparse(node))


def _called(name: str, arguments: list[ast.expr]) -> Expr:
    match name, arguments:
        case "Var", _:
            return _variable([ast.literal_eval(argument) for argument in arguments])
        case "Const", [argument]:
            return _built(argument)
        case "minimum", [left, right]:
            return minimum(_built(left), _built(right))
        case "equal", [left, right]:
            return equal(_built(left), _built(right))
        case "all_of", [ast.Tuple(elts=parts)]:
            return all_of([_built(part) for part in parts])
        case "any_of", [ast.Tuple(elts=parts)]:
            return any_of([_built(part) for part in parts])
    raise StoreError(f"no function {name!r} of {len(arguments)} arguments in expressions", legal="Var Const minimum equal all_of any_of")


def _variable(arguments: list[Any]) -> Var:
    match arguments:
        case [str() as name, int() as low, int() as high, int() as multiple_of, bool() as parameter]:
            whole = not any(isinstance(value, bool) for value in (low, high, multiple_of))
            if whole and name.isidentifier() and multiple_of >= 1 and low <= high:
                return Var(name, low, high, multiple_of, parameter)
    raise StoreError("no variable", got=arguments, legal="Var(name, low, high, multiple_of, parameter)")


# ---------------------------------------------------------------------------------------------- checks, as the verbs make them

_NAMED: Final[Mapping[Any, Mapping[str, Any]]] = {
    DType: {one.name: one for one in DTYPES},
    Memory: {one.name: one for one in (*MEMORIES, *FRAGMENTS)},
    Level: {one.name: one for one in LEVELS},
    MatrixLayout: {repr(one): one for one in (ColMajor, RowMajor)},
}

_MAKERS: Final[Mapping[type[Any], tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any]]]] = {
    Strided: ({"dims": tuple[tuple[Any, Any], ...]}, lambda fields: Strided(*fields["dims"])),
    Tunable: ({"name": str, "values": tuple[int, ...]}, lambda fields: Tunable(fields["name"], *fields["values"])),
    Layout: ({"shape": Any, "stride": Any}, lambda fields: Layout(fields["shape"], fields["stride"])),
}
"""Classes that are not made from their annotated fields by name: the fields, and how to make one."""


def _check(value: Any) -> None:
    """Refuse what no verb would have made."""
    if isinstance(value, Decomposition):
        _check_refinements(value)
    check = _CHECKS.get(type(value))
    if check is not None:
        check(value)


def _check_refinements(step: Decomposition) -> None:
    bare: Decomposition = attrs.evolve(step, refinements=())
    for refinement in step.refinements:
        bare = bare.refined(refinement)
    if bare.refinements != step.refinements:
        raise StoreError(f"the refinements of {step.verb} are not in their order, or one is there twice", legal=bare.refinements)


def _check_tile(step: Tile) -> None:
    made = Tile.of(step.sizes, dict(step.by_dim))
    if (made.sizes, made.by_dim) != (step.sizes, step.by_dim):
        raise StoreError("no sizes of a tile", got=(step.sizes, step.by_dim))


def _check_split(step: Split) -> None:
    made = Split.of(step.sizes, dict(step.by_dim))
    if (made.sizes, made.by_dim) != (step.sizes, step.by_dim):
        raise StoreError("no sizes of a split", got=(step.sizes, step.by_dim))


def _check_matrix_layout(value: MatrixLayout) -> None:
    _need(value.order in ("row", "col"), "an order is row or col", value.order)
    _need(value.leading is None or value.leading.low >= 1, "a leading dimension is at least 1", value.leading)


def _check_tensor(value: Tensor) -> None:
    _need(value.name.isidentifier(), "the name of a tensor is an identifier", value.name)
    for size in value.shape:
        check_size(size, value.name)
    _need(value.pad >= 0 and value.copies >= 1, "no pad, or no copy", (value.pad, value.copies))
    _need(value.align >= 1 and value.align & (value.align - 1) == 0, "an alignment is a power of two", value.align)
    _need(value.owner in ("reads", "accumulates"), "owner is reads or accumulates", value.owner)
    if isinstance(value.layout, MatrixLayout) and value.memory == GL:
        check_layout(value.layout, value.name, value.shape)


def _check_mode(value: Mode) -> None:
    number = constant(value.size)
    _need(value.size.low >= 0 and number != 0, "a mode has at least one element", value.size)


def _check_view(value: View) -> None:
    _need(len(value.dims) + len(value.at) == len(value.tensor.shape), "a view has the rank of its tensor", len(value.dims))


def _need(holds: bool, message: str, got: object) -> None:
    if not holds:
        raise StoreError(message, got=got)


_CHECKS: Final[Mapping[type[Any], Callable[[Any], Any]]] = {
    Tile: _check_tile,
    Split: _check_split,
    Load: lambda value: _need(value.operand.isidentifier(), "the operand must be a name", value.operand),
    Pad: lambda value: LoadStrategy((Load("A", SH),)).pad(value.elements),
    BinaryPointwiseSpec: lambda value: _need(value.operation in OPERATIONS, "no operation on elements", value.operation),
    MatrixLayout: _check_matrix_layout,
    Tensor: _check_tensor,
    Mode: _check_mode,
    View: _check_view,
}
"""What the classes themselves do not check."""
