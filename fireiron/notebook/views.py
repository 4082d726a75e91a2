"""Show values as HTML. The view of an illegal strategy shows the error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron.draw.tables import Markup, bar, block, code, facts, folded, table, text
from fireiron.errors import FireironError

if TYPE_CHECKING:
    from fireiron.check import Finding
    from fireiron.compiler import Program
    from fireiron.cost import Prediction
    from fireiron.cost.graph_prediction import GraphPrediction
    from fireiron.function import Function
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.ir import Buffer, Kernel
    from fireiron.kernel_graph.compiled import CompiledGraph
    from fireiron.kernel_graph.graph import KernelGraph
    from fireiron.kernel_graph.program import GraphProgram
    from fireiron.language.strategy import Strategy
    from fireiron.spec import Spec
    from fireiron.specs.fused import Fused
    from fireiron.specs.fused_definition import FusedDefinition
    from fireiron.tasks.mapping import Mapping as TaskMappings
    from fireiron.tasks.mapping import TaskMapping
    from fireiron.tasks.program import Tasks
    from fireiron.tune.record import Record
    from fireiron.tune.records import Choice, Records
    from fireiron.tune.result import Result, Tuning

MOST_ROWS: Final = 200
"""Maximum number of rows of a table; the number of omitted rows is shown."""

# ---------------------------------------------------------------------------------------------- the language


def spec_view(spec: Spec) -> Markup:
    """Show the operands with shapes, memories, types and storage, and the definition."""
    parts = [table(("operand", "shape", "dimensions", "memory", "type", "storage"), _operand_rows(spec))]
    definition = spec.definition
    parts.append(
        facts(("formula", code(formula)) for formula in definition.formulas[:1])
        if len(definition.formulas) == 1
        else _definition(spec.kind)
    )
    given: list[tuple[str, Any]] = [(name, code(repr(value))) for name, value in spec.parameters if not callable(value)]
    given += [("adds to its output", code(spec.accumulate))] if str(spec.accumulate) != "0" else []
    given += [("accumulator", spec.accumulator)] if spec.accumulator is not None else []
    return block(spec, *parts, facts(given))


def _operand_rows(spec: Spec) -> Iterator[tuple[Any, ...]]:
    for name, view in spec.operands.items():
        if not view.memory.is_coordinate:
            shape, tensor = " × ".join(map(str, view.shape)), view.tensor
            storage = "" if tensor.memory.private or not view.shape else str(tensor.layout)
            yield code(name), shape, " ".join(spec.uses[name]), view.memory.name, view.dtype.name, storage


def _definition(kind: Any) -> Markup:
    """Return the steps of a fused definition. For another kind, return empty markup."""
    definition: FusedDefinition | None = getattr(kind, "fused_definition", None)
    if definition is None:
        return Markup("")
    from fireiron.specs.steps import shown

    return table(("part", "step", "formula"), ((step.part, step.name, code(shown(step.formula))) for step in definition.steps))


def starter_view(start: Any) -> Markup:
    """Show a fused definition with its steps. For other kinds, show the name and the formula."""
    from fireiron.specs.fused import FusedKind

    kind = getattr(start, "kind", None)
    if isinstance(kind, FusedKind):
        return fused_view(start)
    return block(start.title, text((type(start).__doc__ or "").strip().split("\n\n")[0]))


def fused_view(start: Fused) -> Markup:
    """Show dimensions with their roles, operands, and one step per line."""
    lines = str(start).splitlines()
    return block(lines[0], text("\n".join(line.strip() for line in lines[1:2])), _definition(start.kind))


def function_view(function: Function) -> Markup:
    """Show the arguments and results of a function, and the definition."""
    rows = [
        (code(name), ", ".join(function.dims[name]) or "a number", "in" if name in function.inputs else "out") for name in function.dims
    ]
    return block(function, table(("operand", "dimensions", ""), rows), _definition(function.start.kind))


def strategy_view(strategy: Strategy) -> Markup:
    """Show the tree of a bound strategy with the spec after each step. For an unbound or illegal strategy, show the steps."""
    from fireiron.inspect.show import short

    tunables = ", ".join(f"{tunable.name} of {' '.join(map(str, tunable.values))}" for tunable in strategy.tunables().values())
    more = [("choices", tunables)] if tunables else []
    more += [("fallback", f"{len(strategy.others)} more, where it is not legal")] if strategy.others else []
    if strategy.spec is not None:
        try:
            program = strategy.program()
            return block(strategy.spec, _tree(program), _figures(program, lowered=False), facts(more))
        except FireironError as error:
            more += [("not legal", _refused(error))]
    steps = table(("step", ""), ((number, code(f".{short(step)}")) for number, step in enumerate(strategy.steps, 1)), numbers=(0,))
    return block(f"a strategy for {strategy.spec or strategy.start.title}", steps, facts(more))


def _refused(error: FireironError) -> Markup:
    return Markup(f'<span class="error">{code(error)}</span>')


def _tree(program: Program) -> Markup:
    from fireiron.inspect.final_tree import final_tree
    from fireiron.inspect.show import rows

    return table(("step", ""), ((code(row.prefix + row.text), code(row.after)) for row in rows(final_tree(program))))


# ---------------------------------------------------------------------------------------------- kernels


def program_view(program: Program) -> Markup:
    """Show the tree and the figures. The picture and the CUDA text are collapsed."""
    preceding = facts(("launched first", str(launch)) for launch in program.preceding)
    return block(program.spec, preceding, _tree(program), *_kernel_parts(program))


def _kernel_parts(program: Program) -> list[Markup]:
    if not program.tree.complete:
        leaves = ((("open", code(leaf))) for leaf in program.tree.open_leaves())
        return [_figures(program, lowered=False), facts(leaves)]
    try:
        return [_figures(program, lowered=True), _picture(program), folded("CUDA", text(program.cuda))]
    except FireironError as error:
        return [facts([("refused", _refused(error))])]


def _figures(program: Program, lowered: bool) -> Markup:
    from fireiron.inspect.show import figures, report

    rows: list[tuple[str, Any]] = [("target", program.architecture)]
    rows += report(figures(program)) if lowered else [("threads a block", program.grown.threads), ("blocks", program.grown.grid)]
    rows += [("tunables", _values(program.chosen))] if program.chosen and not lowered else []
    return facts(rows)


def _values(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _picture(program: Program) -> Markup:
    from fireiron.draw import draw
    from fireiron.draw.svg import svg

    picture = draw(program)
    return folded("tree as a picture", Markup(svg(picture, inline=True)))


def compiled_view(kernel: CompiledKernel) -> Markup:
    """Show the call of a kernel, and its program."""
    spec = kernel.program.spec
    called = f"kernel({', '.join(spec.inputs)})  ->  {', '.join(spec.outputs)}"
    operands = table(("operand", "shape", "dimensions", "memory", "type", "storage"), _operand_rows(spec))
    return block(kernel, code(called), operands, _tree(kernel.program), *_kernel_parts(kernel.program))


def kernel_view(kernel: Kernel) -> Markup:
    """Show the kernel IR: the launch, its buffers, and the number of statements by kind."""
    from fireiron.ir import execs, statements

    rows = [("target", kernel.architecture), ("blocks", kernel.grid), ("threads a block", kernel.threads)]
    rows += [("shared memory", f"{kernel.shared_bytes} bytes a block")]
    kinds = Counter(type(stmt).__name__ for stmt in statements(kernel.body))
    rows += [("statements", ", ".join(f"{count} {name}" for name, count in kinds.most_common()))]
    performed = Counter(stmt.instruction.name for stmt, _ in execs(kernel.body))
    rows += [("instructions", ", ".join(f"{count} × {name}" for name, count in performed.items()))]
    rows += [("requires", f"{name}: {condition}") for name, condition in kernel.facts]
    buffers = table(("buffer", "memory", "shape", "type", "storage"), map(_buffer_row, kernel.buffers))
    return block(f"kernel IR of {kernel.name}: {kernel.spec}", facts(rows), buffers)


def _buffer_row(buffer: Buffer) -> tuple[Any, ...]:
    tensor = buffer.tensor
    shape = " × ".join(map(str, tensor.shape)) + (f", {tensor.copies} copies" if tensor.copies > 1 else "")
    storage = f"{buffer.elements} registers a thread" if buffer.memory.private else str(tensor.layout)
    return code(buffer.name), buffer.memory.name, shape, buffer.dtype.name, storage


def finding_view(finding: Finding) -> Markup:
    """Show one finding."""
    return findings_view((finding,))


def findings_view(findings: Sequence[Finding]) -> Markup:
    """Show the findings of checks, errors first."""
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in ("error", "warning", "note")}
    title = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items() if count) or "nothing found"
    counted = Counter((finding.severity, finding.kind, finding.buffer or "", finding.message, finding.at or "") for finding in findings)
    rows = (
        (Markup(f'<span class="{severity}">{severity}</span>'), kind, code(buffer), message + f" ({count} times)" * (count > 1), code(at))
        for (severity, kind, buffer, message, at), count in counted.items()
    )
    return block(title, table(("severity", "kind", "buffer", "message", "line"), rows))


def prediction_view(prediction: Prediction) -> Markup:
    """Show the predicted time, its parts, and suggestions."""
    head, *_ = str(prediction).split("\n\n")
    parts = sorted(prediction.parts.items(), key=lambda pair: -pair[1])
    rows = (
        (name, f"{us:.4g}", bar(us / prediction.us), "bottleneck" if name == prediction.bottleneck else "")
        for name, us in parts
        if us > 0.005 * prediction.us
    )
    phases = ((phase.name, f"{phase.us:.4g}", phase.limit) for phase in prediction.phases)
    foot = (re.split("  +", line, maxsplit=1) for line in str(prediction).split("\n\n")[-1].splitlines())
    return block(
        head.splitlines()[0],
        table(("if it were alone", "us", "of the time", ""), rows, numbers=(1,)),
        table(("phase", "us", "limited by"), phases, numbers=(1,)),
        facts((name, value) for name, value in foot),
    )


# ---------------------------------------------------------------------------------------------- kernel graphs


def graph_view(graph: KernelGraph) -> Markup:
    """Show the arrays and the kernels of a graph."""
    return block(_head(graph), *_graph_tables(graph))


def graph_program_view(program: GraphProgram) -> Markup:
    """Show the arrays, the kernels, how they wait for each other, and the picture. The trees and the CUDA text are collapsed."""
    graph = program.graph
    trees = [folded(name, Markup("").join((_tree(part), *_kernel_parts(part)))) for name, part in program.kernels.items()]
    return block(_head(graph), facts([("target", program.architecture)]), *_graph_tables(graph), *_between(program), *trees)


def compiled_graph_view(compiled: CompiledGraph) -> Markup:
    """Show the call of a graph, and its program."""
    return graph_program_view(compiled.program)


def graph_prediction_view(prediction: GraphPrediction) -> Markup:
    """Show the predicted time of each kernel."""
    rows = ((name, us, bar(prediction.kernels[name].us / prediction.us), *rest) for name, us, _, *rest in prediction.rows())
    head, *_ = str(prediction).split("\n\n")
    return block(head, table(("kernel", "us", "of the time", "bottleneck", "may help"), rows, numbers=(1,)))


def _head(graph: KernelGraph) -> str:
    return str(graph).splitlines()[0]


def _graph_tables(graph: KernelGraph) -> list[Markup]:
    from fireiron.inspect.graphs import HEADS, array_rows

    kernels = ((code(name), code(spec), code(graph.flow(name))) for name, spec in graph.specs.items())
    return [table(("kernel", "spec", "arrays"), kernels), table(HEADS, (row.cells for row in array_rows(graph)), numbers=(5,))]


def _between(program: GraphProgram) -> list[Markup]:
    """Return how kernels wait for each other, and the picture; the error if a kernel is illegal or incomplete."""
    from fireiron.draw import draw
    from fireiron.draw.svg import svg
    from fireiron.inspect.graphs import dependences

    if not all(part.tree.complete for part in program.kernels.values()):
        return []
    try:
        rows = facts(("order", str(one)) for one in dependences(program))
        refused = facts(("refused", code(finding.message)) for finding in program.between())
        return [rows, refused, folded("kernels as a picture", Markup(svg(draw(program, "flow"), inline=True)))]
    except FireironError as error:
        return [facts([("refused", _refused(error))])]


# ---------------------------------------------------------------------------------------------- tuning


def tuning_view(tuning: Tuning) -> Markup:
    """Show the best results, and the failures with reasons."""
    counts = ", ".join(f"{count} {status}" for status, count in tuning.counts.items())
    ended = [] if tuning.complete else [("stopped", tuning.stopped)]
    more = [("library", f"{tuning.library_us:.4g} us")] if tuning.library_us is not None else []
    notes = [("note", note) for note in tuning.notes]
    failed = [result for result in tuning.results if result.status not in ("ok", "predicted")]
    reasons = folded(f"{len(failed)} others", _results(failed)) if failed else Markup("")
    return block(f"tuning: {counts or 'no candidate'}", _results(tuning.ranking[:10]), facts([*more, *ended, *notes]), reasons)


def result_view(result: Result) -> Markup:
    """Show one candidate."""
    return block(f"candidate: {result.status}", _results((result,)))


def _results(results: Sequence[Result]) -> Markup:
    columns = ("us", "final us", "predicted us", "registers", "shared bytes", "spills")
    values = [[result.us, result.final_us, result.predicted_us, result.registers, result.shared_bytes, result.spills] for result in results]
    kept = [column for column in range(len(columns)) if any(row[column] is not None for row in values)]
    rows = [
        (code(_values(result.values)), result.status, *(_number(row[column]) for column in kept), result.reason)
        for result, row in zip(results, values, strict=True)
    ]
    return _cut(("values", "", *(columns[column] for column in kept), ""), rows, tuple(range(2, 2 + len(kept))))


def _cut(heads: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int]) -> Markup:
    """Return a table of at most `MOST_ROWS` rows, followed by a row with the number of omitted rows."""
    more = [(f"and {len(rows) - MOST_ROWS} more", *("" for _ in heads[1:]))] if len(rows) > MOST_ROWS else []
    return table(heads, [*rows[:MOST_ROWS], *more], numbers=numbers)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def record_view(record: Record) -> Markup:
    """Show all fields of a measurement."""
    import attrs

    rows = ((field.name.replace("_", " "), getattr(record, field.name)) for field in attrs.fields(type(record)))
    fields = ((name, code(_values(value)) if isinstance(value, Mapping) else value) for name, value in rows if value not in (None, {}))
    return block(f"{record.strategy}: {record.us:.4g} us on {record.gpu}", facts(fields))


def records_view(records: Records) -> Markup:
    """Show one measurement per line."""
    all_records = list(records)
    rows: list[tuple[Any, ...]] = [
        (
            code(record.strategy),
            " × ".join(map(str, record.shape)),
            code(_values(record.values)),
            record.gpu,
            *_speeds(record),
            record.date[:10],
        )
        for record in all_records[:MOST_ROWS]
    ]
    rows += [(f"and {len(all_records) - MOST_ROWS} more", *[""] * 7)] if len(all_records) > MOST_ROWS else []
    heads = ("strategy", "sizes", "values", "GPU", "us", "TFLOP/s", "of the library", "date")
    return block(f"{len(all_records)} records", table(heads, rows, numbers=(4, 5, 6)))


def _speeds(record: Record) -> tuple[str, str, str]:
    return f"{record.us:.4g}", f"{record.tflops:.4g}", "" if record.ratio is None else f"{record.ratio:.2f}"


def choice_view(choice: Choice) -> Markup:
    """Show a choice and its reason."""
    rows = [("why", choice.why), ("exact", "measured for just this spec" if choice.exact else "no")]
    rows += [] if choice.record is None else [("record", code(f"{choice.record.strategy} {_values(choice.record.values)}"))]
    return block(choice.program.spec, facts(rows), _tree(choice.program))


# ---------------------------------------------------------------------------------------------- tasks


def mapping_view(mapping: TaskMappings) -> Markup:
    """Show the instances. Indented below an instance are the instances that it launches."""
    heads = ("instance", "variant", "on", "places", "values", "")
    extra = [("machine", mapping.machine.name)] + (
        [("max_shared_bytes", f"{mapping.max_shared_bytes} bytes of shared memory")] if mapping.max_shared_bytes else []
    )
    return block(f"a mapping of {len(mapping.instances)} instances", table(heads, _instances(mapping)), facts(extra))


def _instances(mapping: TaskMappings) -> Iterator[tuple[Any, ...]]:
    def rows_of(instance: TaskMapping, depth: int, above: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        yield (code("  " * depth + instance.instance), *_instance_row(instance))
        for name in dict.fromkeys(instance.calls):
            if name not in above:
                yield from rows_of(mapping[name], depth + 1, (*above, name))

    yield from rows_of(mapping.root, 0, (mapping.root.instance,))


def _instance_row(mapping: TaskMapping) -> tuple[Any, ...]:
    import attrs

    usual = ("instance", "variant", "proc", "mems", "tunables", "calls", "entrypoint", "layouts")
    more = {
        field.name: getattr(mapping, field.name)
        for field in attrs.fields(type(mapping))
        if field.name not in usual and getattr(mapping, field.name) != field.default
    }
    layouts = "".join(f" {name} {layout}" for name, layout in mapping.layouts)
    return mapping.variant, mapping.proc, " ".join(map(str, mapping.mems)), code(_values(dict(mapping.tunables))), _values(more) + layouts


def task_mapping_view(mapping: TaskMapping) -> Markup:
    """Show one instance."""
    return block(f"instance {mapping.instance}", table(("variant", "on", "places", "values", ""), [_instance_row(mapping)]))


def tasks_view(program: Tasks) -> Markup:
    """Show the variants of a task program."""
    rows = (
        (
            variant.task,
            code(variant.name),
            variant.form.value,
            " ".join(variant.tensors),
            _sorted_names(variant.reads),
            _sorted_names(variant.writes),
            _tunables(variant.tunables),
        )
        for variant in program.variants
    )
    return block("a program of tasks", table(("task", "variant", "", "tensors", "reads", "writes", "tunables"), rows))


def _sorted_names(names: Iterable[str]) -> str:
    return " ".join(sorted(names))


def _tunables(tunables: Iterable[tuple[str, type]]) -> str:
    return ", ".join(f"{name}: {kind.__name__}" for name, kind in tunables)


VIEWS: Final[Mapping[str, Callable[[Any], Markup]]] = {
    "Choice": choice_view,
    "CompiledGraph": compiled_graph_view,
    "CompiledKernel": compiled_view,
    "Finding": finding_view,
    "Findings": findings_view,
    "Function": function_view,
    "GraphPrediction": graph_prediction_view,
    "GraphProgram": graph_program_view,
    "Kernel": kernel_view,
    "KernelGraph": graph_view,
    "Mapping": mapping_view,
    "Prediction": prediction_view,
    "Program": program_view,
    "Record": record_view,
    "Records": records_view,
    "Result": result_view,
    "Spec": spec_view,
    "Starter": starter_view,
    "AnyStarter": starter_view,
    "Strategy": strategy_view,
    "TaskMapping": task_mapping_view,
    "Tasks": tasks_view,
    "Tuning": tuning_view,
}
"""The view of each class, by its name. Subclasses use it too."""

TEXTS: Final[Mapping[str, Callable[[Any], str]]] = {
    "Findings": lambda findings: "\n".join(map(str, findings)) or "nothing found",
    "GraphPrediction": str,
    "Prediction": str,
    "Records": lambda records: f"{len(records)} records",
    "Tuning": lambda tuning: str(tuning.table()),
}
"""The text of each class whose `repr` is not a readable expression, by name of the class."""

__all__ = ["TEXTS", "VIEWS"]
