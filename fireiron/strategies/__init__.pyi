"""The strategy library. In a checkout its files lie elsewhere (`__init__.py`), where type checkers do not look for them."""

from typing import Any

def __getattr__(name: str) -> Any: ...
