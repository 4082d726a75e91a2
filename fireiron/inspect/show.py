"""Print a strategy: its decomposition tree with the spec after every step, and figures of its kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs

from fireiron.compiler import Program
from fireiron.decomp.tile import Strided, Tile
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.frozen import frozen
from fireiron.inspect.exchanges import exchanges
from fireiron.inspect.final_tree import final_tree
from fireiron.ir import Barrier, Buffer, ClusterBarrier, Exec, For, Kernel, Stmt, execs, located
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.language.substrategy import default_copy, inner_chains
from fireiron.language.tree import Decomposition, Node
from fireiron.specs.fused import fused
from fireiron.specs.fused_texts import text_of
from fireiron.specs.steps import shown
from fireiron.values.expr import Expr, constant

UNICODE: Final = ("├─ ", "└─ ", "│  ", "   ")
ASCII: Final = ("|- ", "`- ", "|  ", "   ")

# ---------------------------------------------------------------------------------------------- the tree


@frozen
class Row:
    """A line of the tree: `prefix` draws the tree, `text` is a step or the name of a side path, `after` the spec after the step.

    `depth` is the nesting depth of side paths.
    """

    prefix: str
    text: str
    after: str
    depth: int = 0


def rows(node: Node, glyphs: tuple[str, ...] = UNICODE) -> tuple[Row, ...]:
    """Return the rows of the tree, one per step. The main chain goes straight down; `init`, `move` and `store` branch off."""
    return (Row("", str(node.spec), ""), *_chain(node, glyphs, "", 0))


def tree(node: Node, glyphs: tuple[str, ...] = UNICODE, columns: int | None = None) -> str:
    """Return the tree as text, with specs in a separate column.

    With `columns`, the column of steps becomes narrower so that the text fits, but not narrower than `columns // 3`.
    """
    lines = rows(node, glyphs)
    width = min(max((len(row.prefix + row.text) for row in lines if row.after), default=0), _STEPS)
    if columns is not None:
        width = max(min(width, columns - 2 - max(len(row.after) for row in lines)), columns // 3)
    return "\n".join(f"{row.prefix + row.text:<{width}}  {row.after}".rstrip() if row.after else row.prefix + row.text for row in lines)


_STEPS: Final = 72
"""Maximum width of the column of steps, so that one long step does not move all specs to the right."""


def short(step: Decomposition) -> str:
    """Return a step without nested strategies, which the tree shows as branches."""
    plain: dict[str, Any] = dict.fromkeys(inner_chains(step), default_copy())
    return (attrs.evolve(step, **plain) if plain else step).summary()


def main_child(node: Node) -> tuple[str, Node] | None:
    """Return the child that the rest of the chain decomposes, if it is unique."""
    if len(node.children) == 1:
        return node.children[0]
    return next((pair for pair in node.children if pair[0] == "body"), None)


def executed(node: Node) -> str:
    """Return the executable of a leaf, as text."""
    instructions = dict.fromkeys(_instruction(statement) for statement, _ in execs(node.program))
    return ", ".join(instructions) or "nothing"


def _instruction(statement: Exec) -> str:
    inner = statement.instruction
    return f"micro-kernel {inner.name}" if isinstance(inner, MicroKernel) else inner.name


def _chain(node: Node, glyphs: tuple[str, ...], prefix: str, depth: int) -> Iterator[Row]:
    """Yield the steps from a node to the end of its main chain, each with its side paths."""
    here: Node | None = node
    while here is not None:
        if here.step is None:
            yield Row(prefix + glyphs[1], "(open)", f"{here.spec} is not decomposed yet", depth)
            return
        main = main_child(here)
        sides = [pair for pair in here.children if pair is not main]
        last = main is None
        how = "needs no instruction" if here.spec.allocates else f"by {executed(here)}"
        after = (how if not sides else "") if main is None else ("body  " if sides else "") + str(main[1].spec)
        yield Row(prefix + glyphs[1 if last else 0], short(here.step), after + _whole(here), depth)
        inner = prefix + glyphs[3 if last else 2]
        for position, (name, side) in enumerate(sides):
            end = position == len(sides) - 1
            yield Row(inner + glyphs[1 if end else 0], name, str(side.spec), depth + 1)
            yield from _chain(side, glyphs, inner + glyphs[3 if end else 2], depth + 1)
        here = None if main is None else main[1]


def _whole(node: Node) -> str:
    """Return a note about the dimensions for which a tile has no size; empty if it has all, or names its dimensions."""
    step, dims = node.step, node.spec.tile_dims
    if not isinstance(step, Tile) or step.by_dim or len(step.sizes) >= len(dims) or any(isinstance(size, Strided) for size in step.sizes):
        return ""
    return f"  ({', '.join(dims[len(step.sizes) :])}: not divided, no size given)"


# ---------------------------------------------------------------------------------------------- figures


@frozen
class Figures:
    """The figures of a kernel. Run-time sizes are text.

    `buffers` are `(name, memory, element type, bytes, note)`; the bytes of registers are per thread, and the note has the storage order.
    `registers` are the 32-bit registers per thread for arrays, `shared` the bytes per block, and `barriers` the `(scope, where)` of each
    barrier in the program. `refused` are the reasons why alternatives before a `fallback` are illegal, `launches` the preceding launches,
    `exchanges` what GPUs of a node read of each other, `cluster` the blocks per cluster, and `shared_loads` the multicast buffers with the
    number of blocks that load a part.
    """

    threads: int
    blocks: str
    buffers: tuple[tuple[str, str, str, str, str], ...] = ()
    registers: int = 0
    registers_limit: int = 0
    shared: int = 0
    shared_limit: int = 0
    dynamic_shared: int = 0
    barriers: tuple[tuple[str, str], ...] = ()
    chosen: tuple[tuple[str, int], ...] = ()
    facts: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    micro_kernels: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    launches: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    cluster: int = 1
    shared_loads: tuple[tuple[str, int], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return attrs.asdict(self) | {
            "blocks": int(self.blocks) if self.blocks.isdigit() else self.blocks,
            "buffers": [dict(zip(("name", "memory", "dtype", "bytes", "note"), row, strict=True)) for row in self.buffers],
            "barriers": [dict(zip(("scope", "where"), row, strict=True)) for row in self.barriers],
            "chosen": dict(self.chosen),
        }


def figures(program: Program) -> Figures:
    """Return the figures of a program with a complete tree. Raises: the errors of the passes."""
    kernel = program.ir
    private = [buffer for buffer in kernel.buffers if buffer.memory.private]
    return Figures(
        kernel.threads,
        str(kernel.grid),
        tuple(_buffer_row(buffer) for buffer in kernel.buffers if not buffer.memory.is_coordinate),
        sum(-(-buffer.bytes // 4) for buffer in private),
        kernel.architecture.registers_per_thread,
        kernel.shared_bytes,
        kernel.architecture.shared_per_block,
        kernel.dynamic_shared_bytes,
        tuple(barriers(kernel.body)),
        tuple(program.chosen.items()),
        tuple(f"{text}: {condition}" for text, condition in kernel.facts),
        kernel.effects[Unchecked].reasons,
        micro_kernels(kernel),
        program.strategy.refused,
        tuple(map(str, program.preceding)),
        tuple(exchanges(program)),
        1 if kernel.cluster is None else kernel.cluster.blocks,
        tuple((stmt.accesses[-1].buffer, stmt.multicast.count) for stmt, _ in execs(kernel.body) if stmt.multicast is not None),
    )


def micro_kernels(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of a kernel's micro-kernels."""
    return tuple(dict.fromkeys(stmt.instruction.name for stmt, _ in execs(kernel.body) if isinstance(stmt.instruction, MicroKernel)))


def barriers(body: Iterable[Stmt]) -> Iterator[tuple[str, str]]:
    """Yield `(scope, where)` of each barrier in program order."""
    for statement, around in located(body):
        if isinstance(statement, Barrier):
            loops = [enclosing.var.name for enclosing in around if isinstance(enclosing, For)]
            yield str(statement.scope), f"in the loop over {', '.join(loops)}" if loops else "once"
        elif isinstance(statement, ClusterBarrier):
            yield "cluster", "once"


def _buffer_row(buffer: Buffer) -> tuple[str, str, str, str, str]:
    layout = f"{buffer.tensor.layout}{f', {buffer.storage.swizzle}' if buffer.storage.swizzle else ''}"
    note = "a thread" if buffer.memory.private else f"{layout}, at byte {buffer.offset}" if buffer.memory.of_block else str(layout)
    return buffer.name, buffer.memory.name, buffer.dtype.name, _bytes(buffer.total, buffer.dtype.bytes), note


def _bytes(elements: Expr, size: int) -> str:
    number = constant(elements)
    return str(elements * size) if number is None else str(number * size)


def report(figures: Figures) -> list[tuple[str, str]]:
    """Return the figures as `(name, value)` lines."""
    shared = f"{figures.shared} of {figures.shared_limit} bytes" + (" (dynamic)" if figures.dynamic_shared else "")
    too_many = f", more than the available {figures.registers_limit}" if figures.registers > figures.registers_limit else ""
    lines = [
        ("threads a block", str(figures.threads)),
        ("blocks", figures.blocks),
        ("shared memory", shared),
        ("registers", f"{figures.registers} a thread for arrays{too_many}"),
        ("barriers", _barrier_text(figures.barriers)),
    ]
    lines += [("clusters", f"of {figures.cluster} blocks; {_shared_text(figures.shared_loads)}")] if figures.cluster > 1 else []
    lines += [("tunables", " ".join(f"{name}={value}" for name, value in figures.chosen))] if figures.chosen else []
    lines += [("micro-kernel", name) for name in figures.micro_kernels]
    lines += [("requires", text) for text in figures.facts]
    lines += [("unchecked", reason) for reason in figures.unchecked]
    lines += [("refused first", reason) for reason in figures.refused]
    lines += [("launched first", launch) for launch in figures.launches]
    lines += [("between GPUs", line) for line in figures.exchanges]
    return lines


def _shared_text(loads: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name} multicast, each of {count} blocks loads a part" for name, count in loads)


def _barrier_text(pairs: tuple[tuple[str, str], ...]) -> str:
    if not pairs:
        return "none"
    counted = {pair: pairs.count(pair) for pair in pairs}
    return ", ".join(f"{count} {scope} {where}" for (scope, where), count in counted.items())


# ---------------------------------------------------------------------------------------------- the command


def show(program: Program, glyphs: tuple[str, ...] = UNICODE, columns: int | None = None) -> Iterator[str]:
    """Yield the text of `fireiron show` in parts, so that the tree is printed even if a later stage fails.

    `columns` has the same meaning as for `tree`.
    """
    from tabulate import tabulate

    for launch in program.preceding:
        yield tree(final_tree(launch.program), glyphs, columns) + "\n"
    if (definition := fused(program.spec)) is not None and definition.steps:
        yield text_of(definition, program.spec.title) + "\n"
    yield tree(final_tree(program), glyphs, columns)
    for step in program.strategy.steps:
        if step.ends and step.title():
            yield "\n" + "\n".join(step.title())
    open_leaves = program.tree.open_leaves()
    if open_leaves:
        lines = [("threads a block", str(program.grown.threads)), ("blocks", str(program.grown.grid))]
        lines += [("tunables", " ".join(f"{name}={value}" for name, value in program.chosen.items()))] if program.chosen else []
        lines += [("open", str(leaf)) for leaf in open_leaves]
        yield "\n" + _aligned(lines)
        buffers = list(partial_buffers(program))
    else:
        kernel_figures = figures(program)
        yield "\n" + _aligned(report(kernel_figures))
        buffers = [list(row) for row in kernel_figures.buffers]
    yield "\n" + tabulate(
        buffers, headers=["buffer", "memory", "type", "bytes", ""], disable_numparse=True, colalign=("left",) * 3 + ("right",)
    )


def partial_buffers(program: Program) -> Iterator[list[str]]:
    """Yield the buffers of an incomplete tree. The sizes of registers are those of all threads together."""
    seen = set()
    for node in program.tree.nodes():
        for view in node.spec.operands.values():
            tensor = view.tensor
            if tensor.name not in seen and not tensor.memory.is_coordinate:
                seen.add(tensor.name)
                size = _product(tensor.shape) if tensor.memory.private else tensor.storage().extent * tensor.copies
                note = (
                    "in all threads"
                    if tensor.memory.private
                    else f"{tensor.layout}, a block"
                    if tensor.memory.of_block
                    else str(tensor.layout)
                )
                yield [tensor.name, tensor.memory.name, tensor.dtype.name, _bytes(size, tensor.dtype.bytes), note]


def _product(sizes: tuple[Expr, ...]) -> Expr:
    total = sizes[0]
    for size in sizes[1:]:
        total = total * size
    return total


def _aligned(lines: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def as_dict(program: Program) -> dict[str, Any]:
    """Return the tree and the figures as plain values, for JSON."""
    value: dict[str, Any] = {"spec": str(program.spec), "architecture": program.architecture.name, "tree": node_dict(final_tree(program))}
    if (definition := fused(program.spec)) is not None:
        value["steps"] = [{"part": one.part, "name": one.name, "formula": shown(one.formula)} for one in definition.steps]
    leaves = program.tree.open_leaves()
    if leaves:
        tree = program.grown
        return value | {
            "open": [str(leaf) for leaf in leaves],
            "threads": tree.threads,
            "blocks": str(tree.grid),
            "chosen": dict(program.chosen),
        }
    return value | figures(program).as_dict()


def node_dict(node: Node) -> dict[str, Any]:
    """Return a node as plain values: its spec, step, executable, and children by name."""
    value: dict[str, Any] = {"spec": str(node.spec), "step": None if node.step is None else short(node.step)}
    if node.step is not None and not node.children:
        value["by"] = executed(node)
    if node.children:
        value["children"] = {name: node_dict(child) for name, child in node.children}
    return value
