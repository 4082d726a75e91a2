"""Digests of functions: their text, and what they name, so that another program has another digest wherever it is loaded.

Of what a function names, numbers and texts count by value, functions and classes of the user's own by their text, and what this package
has by its name. Comments, documentation and the layout of the text do not count.
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
"""Packages whose functions and classes stand for themselves by name."""


def digest(function: Callable[..., Any], *more: Any) -> str:
    """16 hex digits that tell functions apart by what they do, and by more that is said of them.

    Equal in every process. Raises: StoreError where the text of a function is not to be found, as of one that was typed in.
    """
    texts: dict[str, Any] = {"": more}
    _collect(function, texts)
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _collect(value: Any, texts: dict[str, Any]) -> str:
    """Write what tells a function or a class from others into `texts`, by its name, with all that it names."""
    key = str(value.__qualname__)
    if key in texts:
        return key
    texts[key] = ""  # one that names itself
    named = {name: _said(other, texts) for name, other in _names(value)} if isinstance(value, FunctionType) else {}
    texts[key] = [_text(value), named]
    return key


def _said(value: Any, texts: dict[str, Any]) -> Any:
    """What a named value counts as."""
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
        parts = [_said(part, texts) for part in (value.items() if isinstance(value, dict) else value)]
        return [type(value).__name__, sorted(parts, key=str) if isinstance(value, (set, frozenset)) else parts]
    return repr(value) if _is_known(type(value).__module__) else type(value).__qualname__


def _is_known(module: str) -> bool:
    """Whether a module is none of a user's: one of `KNOWN`, but for the library of strategies."""
    top = module.partition(".")[0]
    return top in KNOWN and not module.startswith("fireiron.strategies")


def _names(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function names outside itself."""
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
    """The names that code and the functions in it look up: of globals, and of attributes, which do no harm."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _global_names(part)


def _text(value: Any) -> str:
    """The text of a function or a class as Python reads it."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        hint = "functions of a file; what is typed in, or a lambda among other text, has no text of its own"
        raise StoreError(f"the text of {value.__qualname__} is not to be found", hint=hint) from None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _is_text(node.body[0]):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
