"""Random programs of tasks with mappings: sequences, sequential and parallel loops, temporaries, nested tasks; all of integers."""

import random

import attrs
import numpy
from event_programs import after_each_pass, edges, without_edge

import fireiron
from fireiron import tasks
from fireiron.tasks import BLOCK, GLOBAL, HOST, NONE, REGISTER, SHARED, THREAD, WARP, WARPGROUP, Mapping, TaskMapping, Tasks
from fireiron.tasks.dependences import analyzed
from fireiron.tasks.events import verify
from fireiron.tasks.execute import Unrolled, hazards, ordered, run_events

MIX = fireiron.Kind("Mix", "D[m,n] = X[m,n] - 3 * Y[m,n]").starter
PROCESSORS = (HOST, BLOCK, WARPGROUP, WARP, THREAD)
PLACES = {0: [GLOBAL], 1: [GLOBAL, SHARED, NONE], 2: [GLOBAL, SHARED, REGISTER, NONE]}
LEAVES = {"mix": "call_external(MIX, X, Y, D)", "acc": 'call_external("matmul", D, X, Y)', "clear": 'call_external("fill", D)'}
TENSORS = {"mix": "DXY", "acc": "DXY", "clear": "D"}
READS = {"mix": ["X", "Y"], "acc": ["D", "X", "Y"], "clear": []}

BODIES = {
    "mix": (
        "t = make_tensor(D.shape, 'int32')\nmix(t, X, Y)\nmix(D, Y, t)",
        "t = make_tensor(D.shape, 'int32')\nu = make_tensor(D.shape, 'int32')\nmix(t, X, Y)\nfor k in srange(3):\n  mix(u, t, Y)\n  mix(t, X, u)\nmix(D, t, u)",
        "Dp, Xp, Yp = tiles(D), tiles(X), tiles(Y)\nfor i, j in prange(*counts(D)):\n  mix(Dp[i, j], Xp[i, j], Yp[i, j])",
        "Dp, Xp, Yp = tiles(D), tiles(X), tiles(Y)\nn, m = counts(D)\nfor i, j in prange(n, m):\n  mix(Dp[i, j], Xp[n - 1 - i, j], Yp[i, m - 1 - j])",
        "Dp, Xp, Yp = tiles(D), tiles(X), tiles(Y)\nfor i, j in srange(*counts(D)):\n  t = make_tensor(Dp[i, j].shape, 'int32')\n  mix(t, Xp[i, j], Yp[i, j])\n  mix(Dp[i, j], t, Yp[i, j])",
        "u = make_tensor(D.shape, 'int32')\nup, Dp, Xp = rows(u), rows(D), rows(X)\nn = counts(D)[0]\nfor k in srange(n):\n  mix(up[k, 0], Xp[n - 1 - k, 0], Xp[k, 0])\nfor i in prange(n):\n  mix(Dp[i, 0], up[n - 1 - i, 0], Xp[i, 0])",
        "t = make_tensor(D.shape, 'int32')\nu = make_tensor(D.shape, 'int32')\nclear(t)\nfor k in srange(2):\n  mix(u, t, X)\n  mix(t, u, Y)\nmix(D, t, Y)",
        "t = make_tensor(D.shape, 'int32')\nu = make_tensor(D.shape, 'int32')\ntp, up, Xp = rows(t), rows(u), rows(X)\nn = counts(D)[0]\nmix(t, X, Y)\n"
        "for k in srange(n):\n  mix(up[k, 0], tp[k, 0], Xp[0, 0])\n  mix(tp[n - 1 - k, 0], up[k, 0], Xp[k, 0])\nmix(D, t, u)",
    ),
    "acc": (
        "Dp, Xp, Yp = tiles(D), rows(X), columns(Y)\nfor i, j in prange(*counts(D)):\n  acc(Dp[i, j], Xp[i, 0], Yp[0, j])",
        "Xp, Yp = columns(X), rows(Y)\nfor k in srange(counts(Y)[0]):\n  acc(D, Xp[0, k], Yp[k, 0])",
        "t = make_tensor(X.shape, 'int32')\nmix(t, X, X0)\nacc(D, t, Y)\nmix(t, X0, X)\nacc(D, t, Y)",
        "t = make_tensor(D.shape, 'int32')\nclear(t)\nacc(t, X, Y)\nu = make_tensor(D.shape, 'int32')\nmix(u, t, D)\nmix(D, u, t)",
    ),
    "clear": ("Dp = tiles(D)\nfor i, j in prange(*counts(D)):\n  clear(Dp[i, j])",),
}
"""The statements of an Inner variant; `mix`, `acc` and `clear` there are launches."""


@attrs.define
class Generator:
    """Makes variants and instances."""

    random: random.Random
    variants: list[str] = attrs.field(factory=list)
    instances: list[TaskMapping] = attrs.field(factory=list)

    def instance(self, name: str, depth: int, processor: int, root: bool = False) -> str:
        """A new instance of a task, with those that it calls."""
        number = len(self.variants)
        self.variants.append("")
        inner = depth > 0 and (root or self.random.random() < 0.75)
        body = self.random.choice(BODIES[name]) if inner else LEAVES[name]
        if "X0" in body:  # another tensor of X's shape
            body = "X0 = make_tensor(X.shape, 'int32')\nclear(X0)\n" + body
        calls, lines = [], []
        for line in body.splitlines():
            lines.append(line)
            launched = line.strip().partition("(")[0]
            if inner and launched in BODIES:
                calls.append((launched, number))
                lines[-1] = line.replace(f"{launched}(", f'launch("{launched}", ', 1)
        below = [self.instance(one, depth - 1, self.random.randint(processor, len(PROCESSORS) - 1)) for one, _ in calls]
        tensors = TENSORS[name]
        header = f'@task("{name}", {"Inner" if inner else "Leaf"}, reads={READS[name]}, writes=["D"])'
        text = "\n".join(f"    {line}" for line in lines)
        self.variants[number] = f"{header}\ndef v{number}({', '.join(tensors)}):\n{text}\n"
        place = PLACES[min(processor, 2)]
        mems = [self.random.choice(place) for _ in tensors] if not root else [GLOBAL] * len(tensors)
        self.instances.append(TaskMapping(f"a{number}", f"v{number}", PROCESSORS[processor], mems, {}, below, entrypoint=root))
        return f"a{number}"


def drawn(seed, depth=3):
    """A program and a mapping, of the tensors D, X and Y."""
    generator = Generator(random.Random(seed))
    name = generator.random.choice(("mix", "acc"))
    generator.instance(name, depth, 0, root=True)

    def blocks(rows, columns):
        def of(tensor):
            sizes = [max(size // parts, 1) for size, parts in zip(tensor.shape, (rows, columns), strict=True)]
            return tasks.partition_by_blocks(tensor, sizes)

        return of

    names = {**vars(tasks), "MIX": MIX, "tiles": blocks(2, 2), "rows": blocks(2, 1), "columns": blocks(1, 2)}
    names["counts"] = lambda tensor: tuple(min(size, 2) for size in tensor.shape)
    source = "\n".join(generator.variants)
    exec(compile(source, "drawn.py", "exec"), names)
    return Tasks(*(names[f"v{number}"] for number in range(len(generator.variants)))), Mapping(generator.instances), source


def check_drawn(seed, depth):
    """A random program: each pass keeps the result deterministic, and equal to the program's meaning in any order; a removed event is
    detected, unless the others order all steps as before.
    """
    program, mapping, source = drawn(seed, depth)
    generator = numpy.random.default_rng(seed)
    arrays = [generator.integers(-9, 9, (4, 4)).astype("int32") for _ in range(3)]
    wanted = arrays[0].copy()
    tasks.run(program, mapping, wanted, *arrays[1:])
    for passed, events in after_each_pass(analyzed(program, mapping, *[((4, 4), "int32")] * 3), mapping):
        verify(events)
        assert hazards(events, most=1) == (), f"{passed}\n{source}"
        result = arrays[0].copy()
        run_events(events, program, mapping, result, *arrays[1:], seed=seed)
        assert (result == wanted).all(), f"{passed}\n{source}"
        dropped = generator.integers(len(edges(events)))
        less = without_edge(events, dropped)
        assert hazards(less, most=1) or order_of_steps(less) == order_of_steps(events), f"{passed}: {edges(events)[dropped]}\n{source}"


def order_of_steps(program):
    """For each step that does something, and for the end, the steps done before it; without joins of events."""
    unrolled = Unrolled(program, {})
    before, works = ordered(unrolled), [number for number, step in enumerate(unrolled.steps) if step.leaf is not None]
    places = {number: place for place, number in enumerate(works)}
    return [frozenset(places[one] for one in works if before[number] >> one & 1) for number in (*works, unrolled.end)]
