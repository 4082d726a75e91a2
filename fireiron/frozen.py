"""Immutable classes with fields: `attrs.frozen`, but what `attrs` generates is generated at its first use.

`attrs` compiles a source text for each class, although a process creates objects of half of the classes of this package, compares few and
prints fewer. `frozen` creates the class, and `attrs` makes its fields and `__init__` when a program first asks for them (`attrs.fields`, a
call of the class). `__repr__`, `__eq__` and `__hash__` are functions that read a list of fields, so a class takes less time to create
(docs/decisions/0108-class-creation.md, 0155-classes-at-first-use.md). Classes that are compared for each node of a kernel use
`attrs.frozen(cache_hash=True)`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

C = TypeVar("C", bound=type)

_PRINTING: Final = threading.local()
"""The ids of the objects that this thread is printing."""

_FIELD: Final = type(attrs.field())
"""The class of `attrs.field(...)` in the body of a class."""

_FACTORY: Final[Any] = type(attrs.Factory(list))
"""The class of a default that is created for each object."""

_FIELDS: Final = "__attrs_attrs__"
"""The attribute of a class that stores its fields."""

_PLAIN: Final = "__plain_fields__"
"""The attribute of a class that stores annotations and defaults of its fields, if they have no options."""

_AT_FIRST_USE: Final = (_FIELDS, "__init__", "__match_args__")
"""Attributes that `attrs` makes at the first use of a class."""

_HOOKS: Final = ("__attrs_pre_init__", "__attrs_post_init__")
"""Methods that `__init__` calls."""

_AT_ONCE: Final = ("__init__", "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__slots__", "__attrs_init_subclass__")
"""Names in the body of a class because of which `attrs` creates the class."""

_CLASS_VARIABLES: Final = ("ClassVar", "typing.ClassVar", "t.ClassVar", "typing_extensions.ClassVar")
"""How annotations of class variables begin."""


def _frozen(cls: C | None = None, *, eq: bool = True) -> Any:
    """Return `attrs.frozen(cls, eq=eq)`: the same fields, arguments, text, equality and immutability.

    Errors: TypeError for an exception, and for a field with a function for comparison. Use `attrs.frozen` for these and for other options,
    such as `kw_only=True`. Illegal fields, such as a mandatory one after one with a default, are reported at the first use of the class.
    """
    if cls is None:
        return functools.partial(_frozen, eq=eq)
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__}: exceptions are equal only to themselves; use attrs.frozen")
    annotations = _field_annotations(cls)
    names = list(annotations)
    if eq and any(getattr(vars(cls).get(name), "eq_key", None) is not None for name in names):
        raise TypeError(f"{cls.__qualname__}: a field has a function for comparison; use attrs.frozen")
    deferred = _AtFirstUse(cls, annotations)
    methods = _methods(deferred, eq)
    deferred.cls = _with_slots(deferred, names, methods) if _is_usual(vars(cls), names) else _by_attrs(cls, methods)
    return deferred.cls


def _field_annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of the fields that the body of a class declares: all that are not class variables."""
    annotations = inspect.get_annotations(cls)
    return {name: value for name, value in annotations.items() if not str(value).strip("'\"").startswith(_CLASS_VARIABLES)}


def _is_usual(body: Mapping[str, Any], names: list[str]) -> bool:
    """Whether no part of the body requires that `attrs` creates the class."""
    kinds = {value.__class__ for name, value in body.items() if name not in names}
    return (
        body.keys().isdisjoint(_AT_ONCE) and _FIELD not in kinds and not any(issubclass(kind, functools.cached_property) for kind in kinds)
    )


def _methods(deferred: _AtFirstUse, eq: bool) -> dict[str, Any]:
    """Return the methods for text, equality and hash that the body of a class does not define."""
    body = vars(deferred.cls)
    methods: dict[str, Any] = {}
    if "__repr__" not in body:
        methods["__repr__"] = _printer(deferred)
    if eq and "__eq__" not in body and "__ne__" not in body:
        methods["__eq__"] = _comparison(deferred)
        if "__hash__" not in body:
            methods["__hash__"] = _hash(deferred)
    return methods


def _by_attrs(cls: type, methods: dict[str, Any]) -> Any:
    """Return the class that `attrs` creates, with methods."""
    result: Any = attrs.frozen(repr=False, eq=False)(cls)
    for name, method in methods.items():
        setattr(result, name, method)
    return result


def _with_slots(deferred: _AtFirstUse, names: list[str], methods: dict[str, Any]) -> Any:
    """Return the class with a slot for each field, and with methods."""
    cls = deferred.cls
    bases = cls.__mro__[-2:0:-1]
    inherited = {name: getattr(base, name) for base in bases for name in getattr(base, "__slots__", ()) if name in names}
    slots = [name for name in names if name not in inherited]
    if not any("__weakref__" in vars(base) for base in bases):
        slots.append("__weakref__")
    kept = {name: value for name, value in vars(cls).items() if name not in names and name not in ("__dict__", "__weakref__")}
    later = {name: _Later(deferred, name) for name in _AT_FIRST_USE if name not in kept}
    own = {_PLAIN: deferred.plain, "__slots__": tuple(slots), "__qualname__": cls.__qualname__}
    body = {**_SHARED, **kept, **methods, **later, **inherited, **own}
    result = type(cls)(cls.__name__, cls.__bases__, body)
    for cell in _cells(kept.values()):
        if cell.cell_contents is cls:
            cell.cell_contents = result
    return result


def _cells(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the variables of methods that the compiler binds to their class: those of `super()` and `__class__`."""
    for value in values:
        for function in (value,) if value.__class__ is FunctionType else _functions_of(value):
            if function.__class__ is FunctionType and "__class__" in (names := function.__code__.co_freevars):
                yield (function.__closure__ or ())[names.index("__class__")]


def _functions_of(value: Any) -> tuple[Any, ...]:
    """Return the functions of a property, a class method or a static method."""
    if isinstance(value, property):
        return value.fget, value.fset
    return (value.__func__,) if isinstance(value, (classmethod, staticmethod)) else ()


class _AtFirstUse:
    """What is made for a class when it is first used: the fields, `__init__` and `__match_args__`."""

    def __init__(self, cls: type, annotations: dict[str, Any]) -> None:
        body = vars(cls)
        self.cls = cls
        """The body, and later the complete class."""
        self.body = {name: body[name] for name in annotations if name in body}
        """The part of the body that declares fields."""
        self.annotations = annotations
        self.plain = self._plain()

    def _plain(self) -> dict[str, tuple[Any, Any]] | None:
        """Return annotation and default of all fields by name, `attrs.NOTHING` without a default; None if a field or a base has options."""
        if hasattr(self.cls, "__attrs_pre_init__") or any(isinstance(value, (_FIELD, _FACTORY)) for value in self.body.values()):
            return None
        bases = [base for base in self.cls.__mro__[1:-1] if _FIELDS in vars(base)]
        inherited = vars(bases[0]).get(_PLAIN) if bases else {}
        chain = all(issubclass(bases[0], base) for base in bases)
        if inherited is None or not chain or not inherited.keys().isdisjoint(self.annotations):
            return None
        return {**inherited, **{name: (annotation, self.body.get(name, attrs.NOTHING)) for name, annotation in self.annotations.items()}}

    def names(self, option: Callable[[Any], Any]) -> list[str]:
        """Return the names of the fields with an option, which fields without options have."""
        return list(self.plain) if self.plain is not None else [field.name for field in attrs.fields(self.cls) if option(field)]

    def shown(self) -> list[tuple[str, Callable[[Any], str]]]:
        """Return the names of the fields that `repr` shows, and the functions for their texts."""
        if self.plain is not None:
            return [(name, repr) for name in self.plain]
        return [(field.name, repr if field.repr is True else field.repr) for field in attrs.fields(self.cls) if field.repr]

    def make(self, name: str) -> None:
        """Add an attribute to the class, or all of them."""
        init = _plain_init(self.cls, self.plain) if name == "__init__" and self.plain is not None else None
        if init is not None:
            setattr(self.cls, name, init)
        else:
            self._make_by_attrs()

    def _make_by_attrs(self) -> None:
        """Add the attributes of an `attrs` class with the same fields and hooks.

        Its bases have only fields, so nothing registers that class.
        """
        cls = self.cls
        bases = tuple(type(base.__name__, (), {_FIELDS: fields}) for base in cls.__mro__[1:-1] if (fields := getattr(base, _FIELDS, None)))
        names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", *_HOOKS) if hasattr(cls, name)}
        body = {**self.body, **names, "__annotations__": self.annotations}
        complete: Any = attrs.frozen(repr=False, eq=False)(type(cls.__name__, bases, body))
        for name in _AT_FIRST_USE:
            if isinstance(vars(cls).get(name), _Later):
                setattr(cls, name, vars(complete)[name])


def _plain_init(cls: type, fields: dict[str, tuple[Any, Any]]) -> Callable[..., None] | None:
    """Return `__init__` for fields without options, as `attrs` would generate it; None if it would report an error."""
    arguments = [_alias(name) for name in fields]
    values = [default for _, default in fields.values()]
    defaults = tuple(value for value in values if value is not attrs.NOTHING)
    has_order = all(value is attrs.NOTHING for value in values[: len(fields) - len(defaults)])
    if not has_order or len({*arguments, "self", ""}) != len(arguments) + 2:
        return None
    renamed = {f"_{i}": name for i, name in enumerate(arguments)} | {f"_{i}_": name for i, name in enumerate(fields)}
    code = _template(len(fields), hasattr(cls, "__attrs_post_init__"))
    names, constants = (tuple(renamed.get(value, value) for value in values) for values in (code.co_varnames, code.co_consts))
    code = code.replace(co_varnames=names, co_consts=constants, co_qualname=f"{cls.__qualname__}.__init__")
    init = FunctionType(code, _NAMES_IN_INIT, "__init__", defaults)
    init.__annotations__ = {**dict(zip(arguments, (annotation for annotation, _ in fields.values()), strict=True)), "return": None}
    return init


@functools.cache
def _template(count: int, calls_hook: bool) -> CodeType:
    """Return the code of an `__init__` that stores the arguments `_0`, `_1`, ... in the fields `_0_`, `_1_`, ...."""
    lines = [f"def __init__({', '.join(['self', *(f'_{i}' for i in range(count))])}):"]
    lines += [" store = setter(self)", *(f" store('_{i}_', _{i})" for i in range(count))]
    lines += [" self.__attrs_post_init__()"] * calls_hook
    names: dict[str, Any] = {}
    exec(compile("\n".join(lines), _GENERATED, "exec"), names)
    return names["__init__"].__code__  # type: ignore[no-any-return]


_GENERATED: Final = "<attrs generated __init__>"
"""The file name of generated code: errors do not report its lines as the caller's (`fireiron.errors`)."""

_NAMES_IN_INIT: Final = {"setter": object.__setattr__.__get__}
"""The global names of `__init__`."""


class _Later:
    """An attribute of a class that is made when it is first read."""

    __slots__ = ("deferred", "name")

    def __init__(self, deferred: _AtFirstUse, name: str) -> None:
        self.deferred = deferred
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        self.deferred.make(self.name)
        value = vars(self.deferred.cls)[self.name]
        return value.__get__(instance, owner) if hasattr(value, "__get__") else value


@attrs.frozen(repr=False, eq=False)
class _Immutable:
    """A class without fields. Its methods that refuse assignments are those of all classes."""


def _state(self: Any) -> dict[str, Any]:
    """Return the fields by name, for pickle and copies."""
    return {name: getattr(self, name) for name in _names(self.__class__)}


def _set_state(self: Any, state: Mapping[str, Any]) -> None:
    """Set the fields of a new object."""
    for name, value in state.items():
        object.__setattr__(self, name, value)


def _plain_fields(cls: type) -> dict[str, tuple[Any, Any]] | None:
    """Return annotation and default of the fields of a class by name; None if they have options."""
    return vars(next(base for base in cls.__mro__ if _FIELDS in vars(base))).get(_PLAIN)


def compared_fields(cls: type) -> list[tuple[str, Any]]:
    """Return the names and the annotations of the fields of an `attrs` class that its equality compares."""
    plain = _plain_fields(cls)
    if plain is not None:
        return [(name, annotation) for name, (annotation, _) in plain.items()]
    return [(field.name, field.type) for field in attrs.fields(cls) if field.eq]


@functools.cache
def _names(cls: type) -> tuple[str, ...]:
    plain = _plain_fields(cls)
    return tuple(plain) if plain is not None else tuple(field.name for field in attrs.fields(cls))


def _values(names: list[str]) -> Callable[[Any], Any]:
    """Return the function that returns the values of fields: one value, or a tuple."""
    return operator.attrgetter(*names) if names else lambda value: ()


def _comparison(deferred: _AtFirstUse) -> Callable[[Any, Any], Any]:
    values: Callable[[Any], Any] | None = None

    def __eq__(self: Any, other: Any) -> Any:
        nonlocal values
        if other.__class__ is not self.__class__:
            return NotImplemented
        if values is None:
            values = _values(deferred.names(lambda field: field.eq))
        return values(self) == values(other)

    return __eq__


def _hash(deferred: _AtFirstUse) -> Callable[[Any], int]:
    values: Callable[[Any], Any] | None = None
    start = hash(f"{deferred.cls.__module__}.{deferred.cls.__qualname__}")

    def __hash__(self: Any) -> int:
        nonlocal values
        if values is None:
            values = _values(deferred.names(lambda field: field.eq if field.hash is None else field.hash))
        return hash((start, values(self)))

    return __hash__


def _printer(deferred: _AtFirstUse) -> Callable[[Any], str]:
    shown: list[tuple[str, Callable[[Any], str]]] | None = None

    def __repr__(self: Any) -> str:
        nonlocal shown
        if shown is None:
            shown = deferred.shown()
        printing = _PRINTING.__dict__.setdefault("ids", set())
        if id(self) in printing:
            return "..."
        printing.add(id(self))
        try:
            name = self.__class__.__qualname__.rsplit(">.", 1)[-1]
            return f"{name}({', '.join([f'{field}={text(getattr(self, field))}' for field, text in shown])})"
        finally:
            printing.discard(id(self))

    return __repr__


def _evolve(instance: Any, **changes: Any) -> Any:
    """Return `attrs.evolve(instance, **changes)`: a copy with other values of some fields. It looks up the fields once per class."""
    cls = instance.__class__
    places, values, names, named_values = _arguments(cls)
    arguments = [*values(instance)]
    named = dict(zip(names, named_values(instance))) if names else {}
    for name, value in changes.items():
        if name in places:
            arguments[places[name]] = value
        else:
            named[name] = value
    return cls(*arguments, **named)


@functools.cache
def _arguments(cls: type) -> tuple[dict[str, int], Callable[[Any], Any], tuple[str, ...], Callable[[Any], Any]]:
    """Return the places of the positional arguments of `__init__`, the names of the others, and functions that return their values.

    Positional arguments take half the time of named ones.
    """
    plain = _plain_fields(cls)
    fields = (
        [(field.alias, field.name) for field in attrs.fields(cls) if field.init]
        if plain is None
        else [(_alias(name), name) for name in plain]
    )
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]
    order = () if code is None else code.co_varnames[1 : code.co_argcount]
    names = dict(fields)
    positional = order if set(order) <= names.keys() else ()
    others = tuple(alias for alias in names if alias not in positional)
    places = {alias: place for place, alias in enumerate(positional)}
    return places, _tuple([names[alias] for alias in positional]), others, _tuple([names[alias] for alias in others])


def _alias(name: str) -> str:
    """Return the argument that sets a field without options."""
    return name.lstrip("_")


def _tuple(names: list[str]) -> Callable[[Any], Any]:
    """Return the function that returns the values of fields as a tuple."""
    values = _values(names)
    return (lambda value: (values(value),)) if len(names) == 1 else values


_SHARED: Final = {
    "__setattr__": _Immutable.__setattr__,
    "__delattr__": _Immutable.__delattr__,
    "__getstate__": _state,
    "__setstate__": _set_state,
    "__replace__": _evolve,
}
"""Methods of all classes."""

if TYPE_CHECKING:
    from attrs import evolve as evolve
    from attrs import frozen as frozen
else:
    evolve = _evolve
    frozen = _frozen
