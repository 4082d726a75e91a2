"""The syntax tree of a text that is one expression of Python: what readers of texts walk through. Nothing in it is ever run."""

from __future__ import annotations

import ast
import warnings


def expression_tree(text: str) -> ast.expr:
    """The tree of a text; whatever Python warns of in it, such as `1or 2`, it does not say to a reader of texts.

    Raises: SyntaxError where it is no expression, holds a NUL, or is nested deeper than Python reads.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text.strip(), mode="eval").body
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from None


__all__ = ["expression_tree"]
