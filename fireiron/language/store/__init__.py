"""Strategies and specs as JSON, without loss: `loads(dumps(strategy)) == strategy`, with an equal hash.

A value of a class is stored as an object with its class name under `"type"` and its fields; fields with their default are omitted.
Element types, memories and levels are stored by name, and expressions as text for a separate parser (no text is evaluated as Python).
Loading repeats the checks of the verbs, so a file that was edited by hand cannot contain an impossible strategy.

Properties that equality ignores are not stored: the line of the Python file that contains a step, the file of a micro-kernel.
"""

from fireiron.language.store.classes import CLASSES
from fireiron.language.store.documents import VERSION
from fireiron.language.store.expressions import expression, expression_text
from fireiron.language.store.texts import dumps, load, loads, loads_spec, save, write_text

__all__ = ["CLASSES", "VERSION", "dumps", "expression", "expression_text", "load", "loads", "loads_spec", "save", "write_text"]
