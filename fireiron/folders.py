"""Folders that are registries: what a file in one of them states is found, so that a new file needs no other edit."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def modules(package: str, path: Iterable[str]) -> tuple[ModuleType, ...]:
    """The modules of a package, imported in the order of their names, whatever the file system lists first."""
    names = sorted(one.name for one in pkgutil.iter_modules(path))
    return tuple(importlib.import_module(f"{package}.{name}") for name in names)


def public(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """What modules say by `__all__` is public, by name; one without it has nothing that is."""
    return {name: getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}
