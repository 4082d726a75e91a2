"""Digests of functions: hashes of their code and of the names that they use, which are equal in every process.

The digest covers the values of numbers and texts that a function uses, the code of the user's functions and classes, and the names of
functions and classes of this package. Comments, docstrings and formatting do not change a digest.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from fireiron.errors import StoreError

DIGITS: Final = 16
"""Hex digits of a digest."""

KNOWN: Final = ("fireiron", "builtins", "numpy", "math", "attr", "attrs", "enum")
"""Packages of which a digest covers only the names of functions and classes, and not their code."""


def digest(function: Callable[..., Any], *further: Any) -> str:
    """Return 16 hex digits that identify a function by its code, and by `further` values.

    Equal in every process. Raises: StoreError if the source code of a function is not available, for example typed interactively.
    """
    texts: dict[str, Any] = {"": further}
    _collect(function, texts)
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _collect(value: Any, texts: dict[str, Any]) -> str:
    """Add the code of a function or a class to `texts`, by its name, with everything that it uses."""
    key = str(value.__qualname__)
    if key in texts:
        return key
    texts[key] = ""  # for recursion
    named = {name: _counted_as(other, texts) for name, other in _names(value)} if isinstance(value, FunctionType) else {}
    texts[key] = [_text(value), named]
    return key


def _counted_as(value: Any, texts: dict[str, Any]) -> Any:
    """The contribution of a named value to the digest."""
    module = getattr(value, "__module__", None) or ""
    function = getattr(value, "function", None)  # a variant of a task
    if isinstance(function, FunctionType):
        return f"variant {function.__qualname__}"
    if isinstance(value, ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, (FunctionType, type)):
        return f"{module}.{value.__qualname__}" if _is_known(module) else _collect(value, texts)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list, set, frozenset, dict)):
        parts = [_counted_as(part, texts) for part in (value.items() if isinstance(value, dict) else value)]
        return [type(value).__name__, sorted(parts, key=str) if isinstance(value, (set, frozenset)) else parts]
    return repr(value) if _is_known(type(value).__module__) else type(value).__qualname__


def _is_known(module: str) -> bool:
    """Whether a module is not the user's: it is in `KNOWN`, but not in the library of strategies."""
    top = module.partition(".")[0]
    return top in KNOWN and not module.startswith("fireiron.strategies")


def _names(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names that a function uses but does not define."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for name in sorted(set(_global_names(function.__code__))):
        if name in function.__globals__:
            yield name, function.__globals__[name]
        elif not hasattr(builtins, name):
            yield name, None


def _global_names(code: CodeType) -> Iterator[str]:
    """Return the global and attribute names in code and in the functions inside it; unneeded attribute names do no harm."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _global_names(part)


def _text(value: Any) -> str:
    """The normalized source code of a function or a class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        hint = "define the function in a file: interactive input and lambdas inside an expression have no separate source code"
        raise StoreError(f"the source code of {value.__qualname__} is not available", hint=hint) from None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _is_text(node.body[0]):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
