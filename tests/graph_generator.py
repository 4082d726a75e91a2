"""Random kernel graphs: two to four kernels on matrices and rows, with random connections, types, sizes, results, and dependent launches."""

import random

import attrs
import making
import numpy as np
from making import loop

from fireiron import *
from fireiron.check.launch_sequence import check_sequence
from fireiron.ir import GridDepAction
from fireiron.measure import graph_runs
from fireiron.values.expr import as_expr

UNARY = ("{a} * {a}", "relu({a})", "{a} * 0.5 + 1", "abs({a})", "exp2(min({a}, 3))")
BINARY = ("{a} + {b}", "{a} * {b}", "max({a}, {b})", "where({a} < {b}, {a}, {b})")
OF_ROWS = ("sum", "max", "min")
SIZES = (1, 3, 32, 50)


@attrs.frozen
class DrawnGraph:
    """A graph, its run-time sizes, and the features of its kernels."""

    graph: KernelGraph
    sizes: dict
    features: frozenset


def draw(seed):
    """One graph."""
    choose = random.Random(seed)
    symbolic = choose.random() < 0.3
    m, n = choose.choice(SIZES), choose.choice(SIZES)
    shape = {"m": sym("M") if symbolic else m, "n": n}
    arrays, kernels, connect, features = {"mn": [], "m": []}, {}, {}, {"symbols" if symbolic else "sizes"}
    for number in range(choose.randint(2, 4)):
        name = f"k{number}"
        kind = choose.choice(("unary", "binary", "rows", "spread") if number else ("unary", "rows", "binary"))
        strategy, operands, result = _kernel(choose, kind, shape, number)
        for operand, dims in operands.items():
            known = [array for array, dtype in arrays[dims] if dtype == strategy.spec.operands[operand].dtype]
            if known and choose.random() < 0.8:
                connect[f"{name}.{operand}"] = choose.choice(known)
        arrays[result[1]].append((f"{name}.{result[0]}", strategy.spec.operands[result[0]].dtype))
        kernels[name] = strategy
        features.add(kind)
    read = set(connect.values())
    results = tuple(f"{name}.Y" for name in kernels if f"{name}.Y" not in read or choose.random() < 0.2)
    graph = KernelGraph(f"drawn{seed % 1000}", kernels, connect, results)
    features |= {"workspace"} if graph.workspaces else set()
    features |= {"dependent"} if any("programmatic_launch" in repr(kernel) for kernel in kernels.values()) else set()
    return DrawnGraph(graph, {"M": m} if symbolic else {}, frozenset(features))


def _kernel(choose, kind, shape, number):
    """A kernel of a kind, its inputs with their dimensions, and its output."""
    types = {name: choose.choice((float32, float32, float16)) for name in ("A", "B", "Y")}
    if kind == "rows":
        start = Fused(
            name=f"rows{number}", dims="m n", operands={"A": "m n", "Y": "m"}, body={"r": f"Y[m] = {choose.choice(OF_ROWS)}(n, A[m,n])"}
        )
        strategy = start.tile(m=choose.choice((1, 4))).to(Block).tile(m=1).to(Warp).load("A", RF, Move.tile(1, 1).to(Lane).done()).done()
        return strategy(start(**shape, dtype=float32, types={"A": types["A"], "Y": float32})), {"A": "mn"}, ("Y", "m")
    second = {"unary": {}, "binary": {"B": "m n"}, "spread": {"B": "m"}}[kind]
    texts = UNARY if kind == "unary" else BINARY
    text = choose.choice(texts).format(a="A[m,n]", b=f"B[{','.join(second.get('B', '').split())}]")
    start = Fused(name=f"{kind}{number}", dims="m n", operands={"A": "m n", **second, "Y": "m n"}, body={"y": f"Y[m,n] = {text}"})
    blocks = start.tile(m=choose.choice((1, 4)), n=32).to(Block)
    blocks = blocks.programmatic_launch() if choose.random() < 0.5 else blocks
    types = {name: dtype for name, dtype in types.items() if name in ("A", "Y", *second)}
    if kind == "spread":
        types["B"] = float32
    strategy = blocks.tile(m=1, n=1).to(Thread).done()
    operands = {"A": "mn", **({"B": second["B"].replace(" ", "")} if second else {})}
    return strategy(start(**shape, dtype=float32, types=types)), operands, ("Y", "mn")


def objection(drawn, seed, target="sm_90"):
    """An objection to a graph; empty if there is none: checks, storage, each kernel on the arrays that it read, and the call itself."""
    graph = drawn.graph
    program = graph.program(target)
    if program.between():
        return f"an alarm: {program.between()}"
    if KernelGraph.from_json(graph.to_json()) != graph or eval(repr(graph)) != graph:
        return "stored and read back, it differs"
    whole = graph_runs.with_all_results(graph)
    sizes = graph_runs.graph_sizes(whole, drawn.sizes)
    arrays = graph_runs.graph_inputs(whole, sizes, seed)
    call = whole.compile(target)
    wrong, _ = graph_runs.graph_wrong(call.program, sizes, arrays, call)
    if wrong is not None:
        return f"the simulator: {wrong['message']}"
    results = graph.compile(target)(*arrays.values())
    all_results = call(*arrays.values())
    results = results if isinstance(results, tuple) else (results,)
    all_results = all_results if isinstance(all_results, tuple) else (all_results,)
    by_name = dict(zip(whole.outputs, all_results, strict=True))
    if any(not np.array_equal(by_name[name], result, equal_nan=True) for name, result in zip(graph.outputs, results, strict=True)):
        return "results differ if workspaces are results"
    return ""


# ---------------------------------------------------------------------------------------------- planted faults


@attrs.frozen(eq=False)
class Planted:
    """A launch with parts that a test may change."""

    name: str
    spec: object
    arrays: dict
    kernel: object


def launches_of(graph, target="sm_90"):
    """The launches of a graph, as values that may be changed."""
    return [Planted(launch.name, launch.spec, dict(launch.arrays), launch.kernel) for launch in graph.program(target).launches]


WAIT = making.grid_dep_control(GridDepAction.WAIT)


def without_wait(kernel):
    return attrs.evolve(kernel, body=tuple(stmt for stmt in kernel.body if stmt != WAIT))


def wait_in_loop(kernel):
    """The wait moves into a loop, where it orders nothing after it."""
    return attrs.evolve(kernel, body=tuple(loop(Var("i", 0, 3), as_expr(4), (stmt,)) if stmt == WAIT else stmt for stmt in kernel.body))


def plant(choose, graph):
    """One random fault in the launches of a graph, as its name and the faulty launches; None if no fault applies."""
    launches = launches_of(graph)
    workspaces = [array for array in graph.workspaces if any(array in launch.arrays.values() for launch in launches[1:])]
    readers = [(place, name, array) for place, launch in enumerate(launches) for name, array in launch.arrays.items()
               if array in workspaces and name in launch.spec.inputs]  # fmt: skip
    dependent = [place for place, launch in enumerate(launches) if WAIT in launch.kernel.body]
    faults = [("no result", None)]
    faults += [(kind, reader) for reader in readers for kind in ("another array", "late writer", "another type", "written argument")]
    faults += [(kind, (place, "", "")) for place in dependent for kind in ("no wait", "wait in a loop")]
    kind, at = choose.choice(faults)
    if kind == "no result":
        last = next(
            place
            for place, launch in enumerate(launches)
            if graph.outputs[-1] in launch.arrays.values() and graph.outputs[-1].startswith(launch.name)
        )
        del launches[last]
        return kind, launches
    place, name, array = at
    launch = launches[place]
    if kind == "another array":
        launch.arrays[name] = "nowhere.Q"
    elif kind == "late writer":
        writer = next(launch for launch in launches if launch.name == array.partition(".")[0])
        launches.remove(writer)
        launches.append(writer)
    elif kind == "another type":
        other = float16 if launch.kernel.buffer(name).dtype != float16 else float32
        buffers = [
            attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, dtype=other)) if buffer.name == name else buffer
            for buffer in launch.kernel.buffers
        ]
        launches[place] = attrs.evolve(launch, kernel=attrs.evolve(launch.kernel, buffers=tuple(buffers)))
    elif kind == "written argument":
        writer = next(launch for launch in launches if launch.name == array.partition(".")[0])
        writer.arrays["Y"] = graph.inputs[0]
    else:
        launches[place] = attrs.evolve(launch, kernel=(without_wait if kind == "no wait" else wait_in_loop)(launch.kernel))
    return kind, launches


def is_found(launches, graph):
    """Whether the check reports an error."""
    return any(True for _ in check_sequence(launches, graph.inputs, graph.outputs))
