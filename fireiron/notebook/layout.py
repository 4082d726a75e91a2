"""Break an expression into lines without a change of its value.

Each method call of a chain and each long argument starts a line. Multi-line strings become several literals, and a chain is put in
parentheses.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from typing import Final

from fireiron.values.trees import expression_tree

WIDTH: Final = 100
"""Maximum number of columns of a line. A part that cannot be broken may exceed it."""


def laid_out(expression: str, width: int = WIDTH, opens: Collection[str] | None = None) -> str:
    """Return the lines of an expression. A text that fits or is not Python is returned unchanged.

    `opens` are the methods that begin a line of a chain. Other methods continue the line if they fit. With None, all methods begin a line.
    """
    if len(expression) <= width or "\n" in expression:
        return expression
    try:
        node = expression_tree(expression)
    except SyntaxError:
        return expression
    return _Layout(expression, width, opens).text(node, 0, 0, in_brackets=False)


class _Layout:
    def __init__(self, source: str, width: int, opens: Collection[str] | None) -> None:
        self.source, self.width, self.opens = source.encode(), width, opens

    def text(self, node: ast.expr, indent: int, column: int, in_brackets: bool = True) -> str:
        """Return the lines of a node that starts `column` columns after `indent`. Later lines are indented by at least `indent`."""
        plain = self._plain(node)
        if "\n" not in plain and indent + column + len(plain) <= self.width:
            return plain
        match node:
            case ast.Call() if len(links := self._chain(node)) > 2:
                return self._in_lines(node, links, indent, in_brackets)
            case ast.Call():
                function = self.text(node.func, indent, column)
                given = plain.removeprefix(self._plain(node.func))
                if "\n" in function and indent + len(given) < self.width:
                    return f"{function}{given}"
                return self._called(f"{function}(", node, indent)
            case ast.Tuple() | ast.List() | ast.Set():
                first, last = ("(", ")") if isinstance(node, ast.Tuple) else ("[", "]") if isinstance(node, ast.List) else ("{", "}")
                return self._listed(first, [""] * len(node.elts), node.elts, last, indent)
            case ast.Dict() if all(isinstance(key, ast.Constant) for key in node.keys):
                names = [f"{self._plain(key)}: " for key in node.keys if key is not None]
                return self._listed("{", names, node.values, "}", indent)
            case ast.BinOp() if in_brackets:
                return self._at_operator(node, indent)
            case ast.Constant(value=str() as value) if value.count("\n") > 1 and in_brackets:
                return f"\n{' ' * indent}".join(map(repr, value.splitlines(keepends=True)))
        return plain

    def _plain(self, node: ast.expr) -> str:
        """Return the text of a node."""
        assert node.end_col_offset is not None
        return self.source[node.col_offset : node.end_col_offset].decode()

    def _chain(self, node: ast.expr) -> list[ast.Call]:
        """Return the method calls of the chain that ends in a node, in text order."""
        links: list[ast.Call] = []
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            links.append(node)
            node = node.func.value
        return links[::-1]

    def _in_lines(self, node: ast.Call, links: Sequence[ast.Call], indent: int, in_brackets: bool) -> str:
        """Return the lines of a chain, one call per line."""
        function = links[0].func
        assert isinstance(function, ast.Attribute)
        inner = indent if in_brackets else indent + 4
        margin = 4 * in_brackets
        lines = [self.text(function.value, inner, 0)]
        for link in links:
            assert isinstance(link.func, ast.Attribute)
            call = self._plain(link).removeprefix(self._plain(link.func.value))
            last = lines[-1].rpartition("\n")[2]
            joins = self.opens is not None and link.func.attr not in self.opens and len(lines) > 1
            if joins and inner + len(last) + len(call) <= self.width:
                lines[-1] += call
                continue
            if inner + margin + len(call) > self.width and (link.args or link.keywords):
                call = self._called(f".{link.func.attr}(", link, inner + margin)
            lines.append(" " * margin + call)
        joined = f"\n{' ' * inner}".join(lines)
        return joined if in_brackets else f"(\n{' ' * inner}{joined}\n{' ' * indent})"

    def _at_operator(self, node: ast.BinOp, indent: int) -> str:
        """Return two lines. The second line starts with the operator. Parentheses around the operands do not change."""
        assert node.left.end_col_offset is not None and node.end_col_offset is not None
        between = self.source[node.left.end_col_offset : node.right.col_offset]
        operator = node.left.end_col_offset + next(at for at, byte in enumerate(between) if chr(byte) not in " ()")
        first, second = self.source[node.col_offset : operator], self.source[operator : node.end_col_offset]
        return f"{first.decode().rstrip()}\n{' ' * indent}{second.decode()}"

    def _called(self, first: str, node: ast.Call, indent: int) -> str:
        """Return the lines of a call, one argument per line after the bracket."""
        names = [*("" for _ in node.args), *(f"{keyword.arg}=" if keyword.arg else "**" for keyword in node.keywords)]
        return self._listed(first, names, [*node.args, *(keyword.value for keyword in node.keywords)], ")", indent)

    def _listed(self, first: str, names: Sequence[str], parts: Sequence[ast.expr], last: str, indent: int) -> str:
        """Return the parts between brackets, one part per line."""
        inner = indent + 4
        lines = [f"{' ' * inner}{name}{self.text(part, inner, len(name) + 1)}," for name, part in zip(names, parts, strict=True)]
        return "\n".join([first, *lines, f"{' ' * indent}{last}"])


__all__ = ["laid_out"]
