"""Scripts of the project outside of packages, as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def loaded(path: str) -> ModuleType:
    """A script by its path from the project's root, such as `docs/make_limits.py`, executed again."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
