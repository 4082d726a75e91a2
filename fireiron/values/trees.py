"""The syntax tree of a text that is one Python expression; parsed, never executed."""

from __future__ import annotations

import ast
import warnings


def expression_tree(text: str) -> ast.expr:
    """The syntax tree of a text; Python's warnings about it, such as for `1or 2`, are suppressed.

    Raises: SyntaxError if it is not an expression, contains a NUL, or is nested too deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(text.strip(), mode="eval").body
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from None


__all__ = ["expression_tree"]
