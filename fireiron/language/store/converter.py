"""Convert values to JSON values and back, for built-in and users' classes."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import attrs
from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

from fireiron.errors import ArgumentError, StoreError, shown
from fireiron.language import former
from fireiron.language.store.checks import check_value
from fireiron.language.store.classes import (
    CHAINS,
    FORMER,
    FORMER_EXECUTABLES,
    MAKERS,
    NAMED,
    OMITTED,
    STARTERS,
    WRITERS,
    class_of_higher_layer,
    class_table,
)
from fireiron.language.store.documents import check_head, located, noted, parsed
from fireiron.language.store.expressions import expression, expression_text
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Decomposition
from fireiron.language.tunable import Integer
from fireiron.spec import OPTIONS, AnySpec, AnyStarter, Kind, Spec, Starter
from fireiron.values.expr import Expr
from fireiron.values.machine import DTYPES, LEVELS, NAMED_MEMORIES, DType, Level
from fireiron.values.sharer import SHARERS
from fireiron.values.tensor import ColMajor, RowMajor, View

T = TypeVar("T")


class Store:
    """The converter for built-in and users' classes: one per document, so that hooks of a user's classes do not affect other documents."""

    def __init__(self, classes: Iterable[type[Any]], programs: Iterable[Any] = ()) -> None:
        self.programs = tuple(programs)
        self.table = class_table(classes)
        self.tags = {one: name for name, one in self.table.items()}
        self.converter = Converter(forbid_extra_keys=True, detailed_validation=True)
        self.readers: dict[type[Any], Callable[[Any, Any], Any]] = {}
        self._register()

    def plain(self, value: Any) -> Any:
        """Return a value as JSON. Raises: `StoreError` for a value of a class that is not stored."""
        if isinstance(value, Strategy):
            spec = None if value.spec is None else self.plain(value.spec)
            start = repr(value.start)
            if isinstance(value.start, Starter) and STARTERS.get(start) != value.start:
                start = self.plain(value.start.kind)
            plain = {"start": start, "spec": spec, "steps": [self.plain(step) for step in value.steps]}
            return plain | ({"fallback": [self.plain(one) for one in value.others]} if value.others else {})
        if isinstance(value, Spec):
            return self._plain_spec(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Expr):
            return expression_text(value)
        for named in (DTYPES, NAMED_MEMORIES, LEVELS, SHARERS):
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
        if cls is class_of_higher_layer(cls.__name__):
            return {"type": cls.__name__, **value.stored(self)}
        if cls not in self.tags:
            known = self.table.get(cls.__name__)
            why = "another class of this name can be stored" if known is not None else "it is not among the stored classes"
            raise StoreError(f"{cls.__name__} cannot be stored: {why}", hint=f"strategy.to_json(classes=[{cls.__name__}])")
        result: dict[str, Any] = {"type": self.tags[cls]}
        if cls in WRITERS:
            return result | {name: self.plain(part) for name, part in WRITERS[cls](value).items()}
        for field in attrs.fields(cls):
            if _stored(field) and not _is_default(field, value):
                result[field.alias] = self.plain(getattr(value, field.name))
        return result

    def _plain_spec(self, spec: Spec) -> dict[str, Any]:
        """Return a spec as JSON.

        A built-in kind is stored by name, another kind with its declaration. Operands are stored by name, and options unless they have
        their default.
        """
        built_in = STARTERS.get(spec.title) == spec.starter
        plain: dict[str, Any] = {"type": f"{spec.title}Spec"} if built_in else {"type": "Spec", "kind": self.plain(spec.kind)}
        plain["level"] = self.plain(spec.level)
        plain |= {name: self.plain(view) for name, view in spec.operands.items()}
        plain |= {name: self.plain(_finite(value)) for name, value in spec.parameters if value != spec.kind.defaults.get(name)}
        fields = attrs.fields_dict(Spec)
        return plain | {name: self.plain(getattr(spec, name)) for name in OPTIONS if not _is_default(fields[name], spec)}

    # ------------------------------------------------------------------------------------------ reading

    def read(self, text: str, kind: str) -> Any:
        """Return the strategy or the spec of a document. Raises: `StoreError` with the position of an error."""
        if not isinstance(text, str):
            raise ArgumentError("loads: the argument is not a text", got=type(text).__name__, legal="the text that dumps made")
        document = parsed(text)
        check_head(document, kind)
        wanted: Any = Strategy if kind == "strategy" else Spec
        return self.reporting_errors(lambda: self.value(document[kind], wanted), kind)

    def reporting_errors(self, read: Callable[[], T], kind: str) -> T:
        """Return the result of reading a document. Raises: `StoreError` with the position of an error."""
        try:
            return read()
        except RecursionError:
            raise StoreError("the document is nested too deeply") from None
        except Exception as error:  # cattrs wraps whatever a hook raises; transform_error has the position
            raise located(error, kind) from None

    def value(self, plain: Any, wanted: Any) -> Any:
        """Return the value of the expected type that `plain` converted to JSON."""
        return self.converter.structure(plain, wanted)

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
        register(lambda wanted: wanted == Integer, lambda value, _: self._any(value))  # the class refuses other values

    def _strategy(self, value: Any, _: Any) -> Strategy:
        kinds: dict[str, Any] = {"start": Any, "spec": Spec | None, "steps": tuple[Decomposition, ...]}
        value = former.present_fields("Strategy", value) if isinstance(value, dict) else value
        if isinstance(value, dict) and "fallback" in value:
            kinds["fallback"] = tuple[Strategy, ...]
        fields = self._fields(value, kinds)
        steps, spec = fields["steps"], fields["spec"]
        start = _start(fields["start"], spec)
        chain = CHAINS.get(type(steps[-1]), Strategy) if steps else Strategy
        strategy = chain(steps, spec, start)
        for other in fields.get("fallback", ()):
            strategy = strategy.fallback(other)
        return strategy

    def _fields(self, value: Any, kinds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an object, which must be exactly those in `kinds`."""
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
                raise ClassValidationError("field", [noted(error, AttributeValidationNote("field", name, kind))], dict) from None
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
                raise IterableValidationError("list", [noted(error, IterableValidationNote("list", position, kind))], tuple) from None
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
            kinds = (
                [kind for kind in kinds if kind is type(value) or (isinstance(value, str) and kind in NAMED)]
                or [kind for kind in kinds if isinstance(value, list) and _class_of(kind) is tuple]
                or kinds
            )
        return self.converter.structure(value, kinds[0])

    def _class(self, value: Mapping[str, Any]) -> type[Any]:
        name = value.get("type")
        if not isinstance(name, str):
            raise StoreError('an object needs its class under "type"', got=name)
        if name in FORMER_EXECUTABLES:
            return type(FORMER_EXECUTABLES[name])
        above = class_of_higher_layer(name)
        if above is not None:
            return above
        name = name if name in self.table else former.CLASSES.get(name, name)
        if name not in self.table:
            known = len(name) < 100 and name.isidentifier()
            raise StoreError(f"unknown class {shown(name)}", hint=f"classes=[{name}] if it is yours" if known else None)
        return self.table[name]

    def _object(self, value: Any, wanted: Any) -> Any:
        """Return a value of a class, from its name or from an object that contains the name of its class."""
        base: Any = object if wanted is None else _class_of(wanted)
        if isinstance(value, str) and base in NAMED:
            if value not in NAMED[base]:
                raise StoreError(f"unknown {base.__name__} {value!r}", legal=NAMED[base])
            return NAMED[base][value]
        if not isinstance(value, dict):
            raise StoreError(f"a value of {base.__name__} is needed", got=value)
        cls = self._class(value)
        if not issubclass(cls, base):
            raise StoreError(f"{value['type']} is not a {base.__name__}")
        if value["type"] in FORMER_EXECUTABLES:
            return FORMER_EXECUTABLES[value["type"]]
        fields = {key: part for key, part in value.items() if key != "type"}
        fields = former.present_fields(cls.__name__, fields) if cls.__module__.startswith("fireiron.") else fields
        if cls is Spec:
            return self._spec(value["type"], fields)
        if cls is class_of_higher_layer(value["type"]):
            return cls.of_stored(fields, self)
        fields = {**FORMER[cls](fields)} if cls in FORMER else fields
        result = MAKERS[cls][1](self._fields(fields, MAKERS[cls][0])) if cls in MAKERS else self._reader(cls)(fields, cls)
        check_value(result)
        return result

    def _spec(self, tag: str, fields: dict[str, Any]) -> Spec:
        """Return a spec of a kind. The tag names a built-in kind; another kind is declared in the field `kind`."""
        if tag == "Spec":
            starter = self._fields({"kind": fields.pop("kind", None)}, {"kind": Kind})["kind"].starter
        else:
            starter = STARTERS[tag.removesuffix("Spec")]
        kind = starter.kind
        values = {
            parameter.name: _number(fields.pop(parameter.name)) if parameter.real else fields.pop(parameter.name)
            for parameter in kind.parameters
            if parameter.name in fields
        }
        values = {**OMITTED.get(kind.title, {}), **values}
        types: dict[str, Any] = {
            "accumulate": Expr,
            "accumulator": DType | None,
            "in_parts": bool,
            "names": tuple[str, ...],
            "signature": str,
        }
        operands = dict.fromkeys(kind.definition(kind.filled(dict(values))).uses, View)
        read = self._fields(fields, {"level": Level, **operands, **{name: types[name] for name in OPTIONS if name in fields}})
        spec: Spec = starter.on(**read, **values)
        return spec

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


_INFINITE: Final = {"inf": math.inf, "-inf": -math.inf}
"""Infinities by their stored text, because JSON has no infinity."""


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _number(value: Any) -> Any:
    return _INFINITE.get(value, value) if isinstance(value, str) else value


def _start(name: Any, spec: Spec | None) -> Starter | AnyStarter:
    """Return the start of a chain. In older files, the start of a bound chain is MatMul for all kinds of specs."""
    if isinstance(name, Kind):
        return name.starter
    legal: Mapping[str, Starter | AnyStarter]
    legal = {**STARTERS, repr(AnySpec): AnySpec} if spec is None else {"MatMul": spec.starter, repr(spec.starter): spec.starter}
    if not isinstance(name, str) or name not in legal:
        raise StoreError(f"a chain {'' if spec is None else f'of a {spec.title} '}cannot start from {name!r}", legal=legal)
    return legal[name]


def _stored(field: Any) -> bool:
    """Return whether a field is stored. Fields that equality ignores, such as the line of the strategy, are not stored."""
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
    """Return a number, text or truth value of exactly the expected type: 1 is not true, and "1" is not 1."""
    if type(value) is wanted or (wanted is float and type(value) is int):
        return value
    raise StoreError(f"{_WORDS[wanted]} is needed", got=value)


_WORDS: Final = {int: "an integer", str: "a text", bool: "true or false", float: "a number"}
