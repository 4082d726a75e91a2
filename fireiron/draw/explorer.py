"""A page with the tree of a strategy next to its CUDA text.

Each line links to the steps that generate it, and each step to its lines, buffers, barriers and findings. The page needs no other file and
no network.
"""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import attrs

from fireiron.check import Finding, check
from fireiron.check.finding import described
from fireiron.compiler import Program
from fireiron.cuda.makers import Makers
from fireiron.draw.svg import escaped
from fireiron.draw.tables import table
from fireiron.inspect.final_tree import final_tree
from fireiron.inspect.show import executed, figures, main_child, report, short
from fireiron.ir import Acquire, Barrier, Buffer, Dependence, Exec, Fence, For, Kernel, Release, StageState, Stmt, Wait, execs, statements
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.text import Path as StepPath
from fireiron.language.tree import Node
from fireiron.values.expr import constant

T = TypeVar("T")

_WORDS: Final = (
    r"asm|auto|bool|break|case|char|class|const|constexpr|continue|do|double|else|extern|float|for|if|inline|int|long|return|short|signed|"
    r"sizeof|static|struct|switch|template|typedef|typename|unsigned|using|void|volatile|while|__global__|__device__|__shared__|"
    r"__forceinline__|__restrict__|__launch_bounds__|__align__|__half|__nv_bfloat16"
)
_TOKENS: Final = re.compile(
    rf"(?P<comment>//.*)|(?P<text>\"(?:[^\"\\]|\\.)*\")|(?P<line>^\s*#.*)|(?P<word>\b(?:{_WORDS})\b)|(?P<call>\b__sync\w*)"
)
"""The colored parts of a line of CUDA."""


@attrs.frozen(eq=False)
class Explorer:
    """The page of a program; notebooks display it in a frame."""

    program: Program

    @property
    def html(self) -> str:
        """The page; it needs no other file."""
        return _page(self.program)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page to an `.html` file; an existing file is kept unless `overwrite`."""
        from fireiron.errors import ArgumentError
        from fireiron.files import write

        if Path(path).suffix.lower() != ".html":
            raise ArgumentError(f"{Path(path).name}: the page is HTML", legal="a name that ends in .html")
        write(Path(path), self.html.encode(), overwrite=overwrite)

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="{escaped(str(self.program.spec))}" style="width:100%;height:720px;border:0" srcdoc="{escaped(self.html)}">'
            + ("</iframe>")
        )


# ---------------------------------------------------------------------------------------------- the steps of a program


@attrs.frozen(eq=False)
class Step:
    """A node of a tree: its `number` on the page, its path, its kernel, and its indentation.

    `branch` is the name of the side path that it begins, empty inside a chain; `parts` are the numbers of the steps of its side paths.
    """

    number: int
    path: StepPath
    node: Node
    kernel: Kernel
    depth: int
    branch: str
    parts: tuple[int, ...] = ()


def _steps(program: Program) -> list[Step]:
    """Return all steps in the order of the page: a chain keeps its indentation, and side paths follow their step."""
    steps: list[Step] = []
    kernels = [launch.program for launch in program.launches]
    for kernel in kernels:
        front = (kernel.name,) if len(kernels) > 1 else ()
        _grow(final_tree(kernel), front, kernel.ir, 0, kernel.name if front else "", steps)
    return steps


def _grow(node: Node, path: StepPath, kernel: Kernel, depth: int, branch: str, steps: list[Step]) -> None:
    place = len(steps)
    steps.append(Step(place, path, node, kernel, depth, branch))
    main = main_child(node)
    for name, child in node.children:
        if main is None or child is not main[1]:
            _grow(child, (*path, name), kernel, depth + 1, name, steps)
    steps[place] = attrs.evolve(steps[place], parts=tuple(range(place + 1, len(steps))))
    if main is not None:
        _grow(main[1], (*path, main[0]), kernel, depth, "", steps)


# ---------------------------------------------------------------------------------------------- the facts of a step


@attrs.frozen(eq=False)
class _Facts:
    """The facts of the steps of one kernel, by their paths in the kernel."""

    buffers: dict[StepPath, list[Buffer]]
    execs: dict[StepPath, list[Exec]]
    loops: dict[StepPath, list[For]]
    orders: dict[StepPath, list[str]]
    findings: dict[StepPath, list[Finding]]


def _facts(kernel: Kernel) -> _Facts:
    makers = Makers(kernel)
    facts = _Facts({}, {}, {}, {}, {})
    for buffer in kernel.buffers:
        for path in makers.of_buffer(buffer.name):
            facts.buffers.setdefault(path, []).append(buffer)
    for statement in statements(kernel.body):
        for path in makers.of(statement):
            if isinstance(statement, Exec):
                facts.execs.setdefault(path, []).append(statement)
            elif isinstance(statement, For):
                facts.loops.setdefault(path, []).append(statement)
            elif text := _ordering(kernel, statement):
                facts.orders.setdefault(path, []).append(text)
    for finding in check(kernel):
        for path in _concerned(kernel, makers, finding):
            facts.findings.setdefault(path, []).append(finding)
    return facts


def _concerned(kernel: Kernel, makers: Makers, finding: Finding) -> Sequence[StepPath]:
    """Return the steps of a finding: those with this access, else the step that allocates the buffer, else the whole kernel."""
    accessing = {
        stmt.path
        for stmt, _ in execs(kernel.body)
        for access in stmt.accesses
        if stmt.path is not None and finding.access == described(stmt, access)
    }
    return sorted(accessing) or (makers.of_buffer(finding.buffer) if finding.buffer else ()) or ((),)


def _ordering(kernel: Kernel, statement: Stmt) -> str:
    """Return the text of a statement that synchronizes, with its reason; empty for other statements."""
    match statement:
        case Barrier(scope=scope, reason=reason, orders=orders):
            return f"barrier of the {scope}{_why(reason, orders)}"
        case Wait(reason=reason, orders=orders):
            return f"wait for asynchronous operations{_why(reason, orders)}"
        case Fence(kind=reach, reason=reason, orders=orders):
            return f"fence for the {reach.value}{_why(reason, orders)}"
        case Acquire(ring=name, state=side):
            buffers = ", ".join(kernel.ring(name).buffers) or "tile numbers"
            return f"wait of the ring {name} until {buffers} of this fill are {'full' if side is StageState.FULL else 'empty'}"
        case Release(ring=name, state=side):
            return f"arrival at the ring {name}: the stage {'will be full' if side is StageState.FULL else 'is empty again'}"
    return ""


def _why(reason: str, orders: Iterable[Dependence]) -> str:
    kinds = dict.fromkeys(
        f"{dependence.kind} of {dependence.buffer}{f', a later {dependence.carried}' if dependence.carried else ''}"
        for dependence in orders
    )
    return f": {reason}" * bool(reason) + (f" ({'; '.join(kinds)})" if kinds else "")


# ---------------------------------------------------------------------------------------------- the page


def _page(program: Program) -> str:
    steps = _steps(program)
    numbers = {step.path: step.number for step in steps}
    kernels = {id(step.kernel): step.kernel for step in steps}
    facts = {number: _facts(kernel) for number, kernel in kernels.items()}
    is_multi = bool(program.preceding)
    title = escaped(str(program.spec))
    parts = [
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>',
        '<meta name="viewport" content="width=device-width"/>',
        f"<style>\n{_resource('explorer.css')}</style>\n</head>\n<body>",
        f"<header><h1>{title}</h1><p>{_summary(program)}</p></header>",
        f'<main><div id="left"><nav id="tree" aria-label="decomposition tree">\n{_tree(steps)}\n</nav>',
        '<div id="details" aria-live="polite">',
        '<section id="none"><p>Click a step to see its lines, or a line to see its steps. Arrow keys move in the tree and in the text, '
        "<kbd>n</kbd> and <kbd>p</kbd> go to the next and the previous lines of the step, <kbd>Esc</kbd> clears.</p></section>",
        *(_details(step, facts[id(step.kernel)], _own_paths(step, steps, is_multi)) for step in steps),
        "</div></div>",
        f'<ol id="code" tabindex="0" aria-label="CUDA text">\n{_code(program, steps, numbers)}\n</ol></main>',
        f"<script>\n{_resource('explorer.js')}</script>\n</body>\n</html>\n",
    ]
    return "\n".join(parts)


def _resource(name: str) -> str:
    return importlib.resources.files("fireiron.draw").joinpath(name).read_text(encoding="utf-8")


def _summary(program: Program) -> str:
    rows = [("target", str(program.architecture)), *report(figures(program))]
    return " · ".join(f"<b>{escaped(name)}</b> {escaped(value)}" for name, value in rows)


def _tree(steps: Sequence[Step]) -> str:
    return "\n".join(_entry(step) for step in steps)


def _entry(step: Step) -> str:
    main = main_child(step.node)
    after = str(main[1].spec) if main is not None else f"by {executed(step.node)}" if not step.node.children else ""
    before = f"<i>{escaped(step.branch)}: {escaped(str(step.node.spec))}</i>" if step.branch else ""
    root = f"<i>{escaped(str(step.node.spec))}</i>" if not step.branch and step.depth == 0 and step.number == 0 else ""
    parts = " ".join(map(str, step.parts))
    return (
        f'<button type="button" data-step="{step.number}" data-parts="{parts}" style="margin-left:{step.depth * 18}px">'
        f"{root}{before}<code>.{escaped(_step_text(step))}</code><span>{escaped(after)}</span></button>"
    )


def _step_text(step: Step) -> str:
    return "(open)" if step.node.step is None else short(step.node.step)


def _own_paths(step: Step, steps: Sequence[Step], is_multi: bool) -> list[StepPath]:
    """Return the paths of a step and of the steps of its side paths in the kernel."""
    paths = [step.path, *(steps[number].path for number in step.parts)]
    return [path[1:] for path in paths] if is_multi else paths


def _details(step: Step, facts: _Facts, paths: Sequence[StepPath]) -> str:
    """Return the facts of a step and of its side paths as HTML."""
    written = None if step.node.step is None else step.node.step.origin
    parts = [f'<section id="step-{step.number}" hidden><h2><code>.{escaped(_step_text(step))}</code></h2>']
    children = " ".join(f"<li>{escaped(name)}: {escaped(str(child.spec))}</li>" for name, child in step.node.children)
    by = f"<ul>{children}</ul>" if children else f"<p>performed by {escaped(executed(step.node))}</p>"
    parts.append(f"<p>decomposes <b>{escaped(str(step.node.spec))}</b>{f', written at {escaped(written)}' if written else ''}</p>{by}")
    parts.append(_table("Allocated buffers", _BUFFER, map(_buffer_row, _all(facts.buffers, paths))))
    parts.append(_table("Accessed buffers", _ACCESS, _access_rows(step.kernel, _all(facts.execs, paths))))
    parts.append(_table("Loops", ("variable", "iterations", ""), map(_loop_row, _all(facts.loops, paths))))
    parts.append(_table("Barriers and waits", ("why",), ((text,) for text in _counted(_all(facts.orders, paths)))))
    findings = ((finding.severity, finding.kind, finding.message) for finding in _all(facts.findings, paths))
    parts.append(_table("Findings", ("severity", "kind", "message"), findings))
    return "".join([*parts, "</section>"])


def _all(by_path: Mapping[StepPath, Sequence[T]], paths: Iterable[StepPath]) -> list[T]:
    """Return the facts of all given paths, each once."""
    return list({id(fact): fact for path in paths for fact in by_path.get(path, ())}.values())


_BUFFER: Final = ("name", "memory", "shape", "type", "bytes", "storage")
_ACCESS: Final = ("name", "memory", "", "together", "by")


def _table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of the distinct rows; empty without rows."""
    return table(heads, dict.fromkeys(map(tuple, rows)), caption)


def _buffer_row(buffer: Buffer) -> tuple[str, ...]:
    tensor = buffer.tensor
    shape = "×".join(map(str, tensor.shape)) + (f", {tensor.copies} copies" if tensor.copies > 1 else "")
    total = constant(buffer.total)
    size = f"{buffer.total} elements" if total is None else f"{buffer.bytes}{' per thread' if buffer.memory.private else ''}"
    storage = (
        "registers" if buffer.memory.private else f"{tensor.layout}" + (f", at byte {buffer.offset}" if buffer.memory.of_block else "")
    )
    storage += f", padded by {tensor.pad}" if tensor.pad else ""
    storage += f", {buffer.storage.swizzle}" if buffer.storage.swizzle else ""
    return buffer.name, tensor.memory.name, shape, tensor.dtype.name, size, storage


def _access_rows(kernel: Kernel, statements: Iterable[Exec]) -> Iterator[tuple[str, ...]]:
    for stmt in statements:
        for position, access in enumerate(stmt.accesses):
            buffer = kernel.buffer(access.buffer)
            if not buffer.memory.is_coordinate:
                width = stmt.width(position)
                together = f"{width} element{'' if width == 1 else 's'}, {width * buffer.dtype.bytes} bytes"
                yield buffer.name, buffer.memory.name, "written" if access.write else "read", together, stmt.instruction.name


def _loop_row(loop: For) -> tuple[str, ...]:
    remarks = [f"{loop.asks[Pipelined].stages} stages in flight"] if loop.asks[Pipelined].stages > 1 else []
    remarks += ["unrolled"] if loop.unroll else []
    return str(loop.var), str(loop.extent), ", ".join(remarks)


def _counted(texts: Iterable[str]) -> Iterator[str]:
    for text, count in Counter(texts).items():
        yield text if count == 1 else f"{count} × {text}"


def _code(program: Program, steps: Sequence[Step], numbers: dict[StepPath, int]) -> str:
    by_line = [tuple(numbers[path] for path in line.steps) for line in program.lines]
    lines = []
    for line, own in zip(program.lines, by_line, strict=True):
        title = "; ".join(f".{_step_text(steps[number])}" for number in own)
        linked = f' data-steps="{" ".join(map(str, own))}" title="{escaped(title)}"' if own else ""
        lines.append(f"<li{linked}>{_colored(line.text)}</li>")
    return "\n".join(lines)


def _colored(line: str) -> str:
    """Return a line of CUDA with its comments, keywords and strings marked."""
    parts, place = [], 0
    for match in _TOKENS.finditer(line):
        parts += [escaped(line[place : match.start()]), f'<span class="{match.lastgroup}">{escaped(match.group())}</span>']
        place = match.end()
    return "".join([*parts, escaped(line[place:])])


__all__ = ["Explorer"]
