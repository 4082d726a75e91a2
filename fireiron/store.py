"""Strategies and specs as JSON, without loss: `loads(dumps(strategy)) == strategy`, with an equal hash.

A value of a class is an object with its class name under `"type"` and its fields; fields at their default are left out.
Element types, memories and levels stand by name, expressions by their text, which a parser of its own reads (nothing is
ever evaluated). Loading checks what the verbs check, so a file that was edited by hand cannot hold what no strategy could.

The line of the Python file that a step came from (`origin`) is not stored.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import secrets
import string
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

import attrs
from cattrs import Converter, transform_error
from cattrs.errors import StructureHandlerNotFoundError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Strided, Tile
from fireiron.errors import ArgumentError, FireironError, StoreError
from fireiron.executable.fma import Fma
from fireiron.executable.hfma2 import Hfma2
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.thread_move import ThreadInit, ThreadMove, vector
from fireiron.expr import Const, Expr, Var, all_of, any_of, as_expr, constant, equal, minimum
from fireiron.layout import Layout, Swizzle
from fireiron.machine import DTYPES, GL, LEVELS, MEMORIES, DType, Kernel, Level, Memory
from fireiron.refine.align import Align
from fireiron.refine.layout import Layout as DealOrder
from fireiron.refine.no_sync import NoSync
from fireiron.refine.pad import Pad
from fireiron.refine.permute import Permute
from fireiron.refine.reuse_buffer import ReuseBuffer
from fireiron.refine.storage_layout import StorageLayout
from fireiron.refine.swizzle import SwizzleStorage
from fireiron.refine.sync import Sync
from fireiron.refine.to import To
from fireiron.refine.unchecked import Unchecked
from fireiron.refine.unroll import Unroll
from fireiron.spec import Init, InitSpec, MatMul, MatMulSpec, Move, MoveSpec, Spec, Starter, check_layout, check_size
from fireiron.strategy import UID, Epiloged, Loaded, Splitted, Strategy, Tiled
from fireiron.tensor import ColMajor, Dealt, Dim, MatrixLayout, Mode, RowMajor, Tensor, View
from fireiron.tree import Decomposition, Refinement
from fireiron.tunable import Derived, Tunable

VERSION: Final = 1
"""The version of the format; another one is refused."""

CLASSES: Final[Mapping[str, type[Any]]] = {
    **{
        one.__name__: one
        for one in (
            Tile, Split, Load, Epilog, Done, Strided, Tunable, Derived,
            Align, NoSync, Pad, Permute, ReuseBuffer, StorageLayout, SwizzleStorage, Sync, To, Unchecked, Unroll,
            Fma, Hfma2, MicroKernel, ThreadMove, ThreadInit,
            MatMulSpec, MoveSpec, InitSpec, View, Dim, Mode, Dealt, Tensor,
            MatrixLayout, Layout, Swizzle, DType, Memory, Level,
        )
    },
    "DealOrder": DealOrder,
}  # fmt: skip
"""The built-in classes by the name under which they are stored."""

_STARTERS: Final[Mapping[str, Starter]] = {repr(one): one for one in (MatMul, Move, Init)}
_CHAINS: Final[Mapping[type[Decomposition], type[Strategy]]] = {Tile: Tiled, Split: Splitted, Load: Loaded, Epilog: Epiloged}
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
    except (TypeError, ValueError, StructureHandlerNotFoundError) as error:
        raise StoreError(f"the {kind} cannot be stored: {error}", hint="fields must hold what JSON can hold, or values of stored classes") from None
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
    target = Path(path)
    target = target.resolve() if target.is_symlink() else target
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        if target.exists() and not target.is_file():
            raise StoreError(f"{path} is no regular file")
        if target.exists() and not overwrite:
            raise StoreError(f"{path} exists", hint="another name, or ask to overwrite it (--force, overwrite=True)")
        try:
            with part.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if overwrite:
                part.replace(target)
            else:
                target.hardlink_to(part)  # fails where the file has appeared meanwhile
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        raise StoreError(f"{path} exists", hint="another name, or ask to overwrite it (--force, overwrite=True)") from None
    except (OSError, UnicodeEncodeError) as error:
        raise StoreError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


# ---------------------------------------------------------------------------------------------- values to and from plain values


class _Store:
    """The converter for the built-in classes and a user's own."""

    def __init__(self, classes: Iterable[type[Any]]) -> None:
        self.table = _table(classes)
        self.tags = {one: name for name, one in self.table.items()}
        self.converter = Converter(forbid_extra_keys=True, detailed_validation=True)
        self.readers: dict[type[Any], Callable[[Any, Any], Any]] = {}
        self.writers: dict[type[Any], Callable[[Any], Any]] = {}
        self._register()

    def plain(self, value: Any) -> Any:
        """What JSON can hold."""
        if isinstance(value, Strategy):
            spec = None if value.spec is None else self.plain(value.spec)
            return {"start": self._starter(value.start), "spec": spec, "steps": [self.plain(step) for step in value.steps]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Expr):
            return expression_text(value)
        for named in (DTYPES, MEMORIES, LEVELS):
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
            if field.init and field.name != "origin" and not _is_default(field, value):
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
        except StructureHandlerNotFoundError as error:
            raise StoreError(f"a class has a field that cannot be read: {error}") from None
        except Exception as error:  # cattrs wraps whatever a hook raises, and transform_error says where
            raise _located(error, kind) from None

    def _register(self) -> None:
        register = self.converter.register_structure_hook_func
        register(lambda wanted: attrs.has(_class_of(wanted)), self._object)
        register(_is_union, self._union)
        register(lambda wanted: get_origin(wanted) is tuple, self._tuple)
        register(lambda wanted: wanted is Any, lambda value, _: self._any(value))
        register(lambda wanted: wanted in (int, str, bool, float), _exact)
        register(lambda wanted: isinstance(wanted, type) and issubclass(wanted, Expr), lambda value, _: expression(value))
        register(lambda wanted: wanted is Strategy, self._strategy)

    def _strategy(self, value: Any, _: Any) -> Strategy:
        fields = _object(value, {"start", "spec", "steps"})
        steps: tuple[Decomposition, ...] = self._field(fields, "steps", tuple[Decomposition, ...])
        spec: Spec | None = self._field(fields, "spec", Spec | None)
        start = self._field(fields, "start", str)
        if start not in _STARTERS:
            raise StoreError(f"start: a chain cannot start from {start!r}", legal=_STARTERS)
        return _CHAINS.get(type(steps[-1]), Strategy)(steps, spec, _STARTERS[start]) if steps else Strategy((), spec, _STARTERS[start])

    def _field(self, fields: Mapping[str, Any], name: str, wanted: Any) -> Any:
        """A field, its name noted on the error in the way of cattrs."""
        try:
            return self.converter.structure(fields[name], wanted)
        except Exception as error:
            raise _Inside(name, error) from error

    def _any(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self._any(part) for part in value)
        return self._object(value, None) if isinstance(value, dict) else value

    def _tuple(self, value: Any, wanted: Any) -> Any:
        if not isinstance(value, list):
            raise StoreError("a list is needed", got=value)
        inner = get_args(wanted)
        if len(inner) == 2 and inner[1] is Ellipsis:
            kinds: Sequence[Any] = [inner[0]] * len(value)
        elif len(inner) == len(value):
            kinds = inner
        else:
            raise StoreError(f"a list of {len(inner)} values is needed", got=value)
        return tuple(self._element(part, kind, position) for position, (part, kind) in enumerate(zip(value, kinds, strict=True)))

    def _element(self, value: Any, wanted: Any, position: int) -> Any:
        try:
            return self.converter.structure(value, wanted)
        except Exception as error:
            raise _Inside(position, error) from error

    def _union(self, value: Any, wanted: Any) -> Any:
        kinds = [kind for kind in get_args(wanted) if kind is not type(None)]
        if value is None:
            if len(kinds) == len(get_args(wanted)):
                raise StoreError("null is not allowed here")
            return None
        if isinstance(value, dict):
            kinds = [kind for kind in kinds if attrs.has(_class_of(kind)) and issubclass(self._class(value), _class_of(kind))] or kinds
        elif len(kinds) > 1:
            kinds = [kind for kind in kinds if isinstance(kind, type) and isinstance(value, kind)] or kinds
        return self.converter.structure(value, kinds[0])

    def _class(self, value: Mapping[str, Any]) -> type[Any]:
        name = value.get("type")
        if not isinstance(name, str):
            raise StoreError('an object needs its class under "type"', got=name)
        if name not in self.table:
            raise StoreError(f"unknown class {name!r}", hint=f"loads(text, classes=[{name}]) if it is yours" if name.isidentifier() else None)
        return self.table[name]

    def _object(self, value: Any, wanted: Any) -> Any:
        """A value of a class: by name where it has one, else an object with its class."""
        base = None if wanted is None else _class_of(wanted)
        if isinstance(value, str) and base in _NAMED:
            return _by_name(value, base)
        if not isinstance(value, dict):
            raise StoreError(f"a value of {base.__name__} is needed" if base else "an object is needed", got=value)
        cls = self._class(value)
        if base is not None and not issubclass(cls, base):
            raise StoreError(f"{value['type']} is no {base.__name__}")
        fields = {key: part for key, part in value.items() if key != "type"}
        made = self._reader(cls)(fields, cls)
        _check(made)
        return made

    def _reader(self, cls: type[Any]) -> Callable[[Any, Any], Any]:
        if cls in _MAKERS:
            return lambda fields, _: self._made(fields, cls)
        if cls not in self.readers:
            try:
                attrs.resolve_types(cls)
            except NameError as error:
                raise StoreError(f"the fields of {cls.__name__} cannot be read: {error}", hint="define the class at the top of a module") from None
            skipped: Any = {field.name: override(omit=True) for field in attrs.fields(cls) if field.name == "origin"}
            self.readers[cls] = make_dict_structure_fn(
                cls, self.converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, _cattrs_use_alias=True, **skipped
            )
        return self.readers[cls]

    def _made(self, fields: Mapping[str, Any], cls: type[Any]) -> Any:
        """Classes that are not made from their fields by name."""
        kinds, make = _MAKERS[cls]
        read = {name: self._field(_object(fields, set(kinds)), name, kind) for name, kind in kinds.items() if name in fields or name in _NEEDED}
        return make(**read)
