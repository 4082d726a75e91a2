"""Folders that are registries: all their files are imported, so that a new file needs no other edit."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def modules(package: str, path: Iterable[str]) -> tuple[ModuleType, ...]:
    """Return the modules of a package, imported in the order of their names on every file system."""
    names = sorted(module.name for module in pkgutil.iter_modules(path))
    return tuple(importlib.import_module(f"{package}.{name}") for name in names)


def public(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """Return the names in `__all__` of modules with their values; a module without `__all__` has no public names."""
    return {name: getattr(module, name) for module in modules for name in getattr(module, "__all__", ())}
