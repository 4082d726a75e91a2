"""The constants of modules do not change unnoticed: numbers, texts, and tables of them, as `docs/limits.md` for documented numbers alone."""

import importlib
import pkgutil
import re
import sys
from pathlib import Path

from goldens.readable import differences

import fireiron
from fireiron.values.machine import DType

TABLE = Path(__file__).parent / "goldens" / "constants.txt"
LEFT_OUT = ("fireiron.strategies", "fireiron.package_paths", "fireiron.draw")
"""The library, paths of the installation, and style sheets."""

PLAIN = (bool, int, float, str, bytes, type(None), range, DType)


def is_plain(value):
    """Whether a value consists of numbers, texts and element types."""
    if isinstance(value, dict):
        return all(map(is_plain, (*value, *value.values())))
    return all(map(is_plain, value)) if isinstance(value, (tuple, list, set, frozenset)) else isinstance(value, PLAIN)


def written(value):
    """The text of a plain value; the elements of sets are in order."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(written, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{written(key)}: {written(each)}' for key, each in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(written, value))})"
    return repr(value)


def names_of(module):
    """The names in capital letters that the body of a module assigns."""
    return re.findall(r"^([A-Z_][A-Z0-9_]*)(?:: [^=]+)? = ", Path(module.__file__).read_text(encoding="utf-8"), re.MULTILINE)


def lines():
    """A line for each constant."""
    for info in sorted(pkgutil.walk_packages(fireiron.__path__, "fireiron."), key=lambda info: info.name):
        if info.name.endswith("__main__") or info.name.startswith(LEFT_OUT):
            continue
        module = sys.modules.get(info.name) or importlib.import_module(info.name)
        values = {name: getattr(module, name) for name in names_of(module)}
        yield from (f"{info.name.removeprefix('fireiron.')}.{name} = {written(value)}" for name, value in values.items() if is_plain(value))


def test_constants_do_not_change_unintentionally():
    assert not (report := differences(TABLE, "".join(f"{line}\n" for line in lines()))), report
