"""Random problems and legal strategies for the GPUs of a node, and faults of copies and sums that overlap with computation."""

import random

import attrs
import numpy as np

from fireiron import *
from fireiron.check import AccessTrace, safety
from fireiron.check.exchange import check_exchange
from fireiron.check.overlap import check_overlap
from fireiron.distributed_experts import bound as bound_experts
from fireiron.distributed_experts import routes_of
from fireiron.errors import FireironError, SimulationError
from fireiron.ir import SemaphoreAction, SemaphoreBarrier, rewritten
from fireiron.sim.node import simulate_node

KINDS = {
    "gathered": ({"A": "m", "B": "n", "C": "n"}, "n"),
    "overlapped": ({"A": "m", "B": "n", "C": "n"}, "n"),
    "direct": ({"A": "m", "B": "n", "C": "n"}, "n"),
    "gathered along k": ({"A": "k", "B": "n", "C": "n"}, "n"),
    "gathered B": ({"A": "m", "B": "k", "C": "m"}, "m"),
    "replicated": ({"B": "n", "C": "n"}, "n"),
    "sliced": ({"C": "m"}, "m"),
    "scattered": ({"A": "k", "B": "k", "C": "m"}, "k"),
    "sliced sums": ({"B": "k", "C": "n"}, "k"),
    "reduced": ({"A": "k", "B": "k"}, "k"),
    "exchanged": ({"A": "k", "B": "k", "C": "m"}, "k"),
    "exchanged by all": ({"A": "k", "B": "k"}, "k"),
    "dispatch": ({}, ""),
    "combine": ({}, ""),
}
"""How operands are distributed, and the dimension that GPUs divide."""

EXCHANGED = ("exchanged", "exchanged by all")
TOGETHER = ("overlapped", *EXCHANGED)
"""The kinds whose launch waits for other GPUs."""

LOADED = {"gathered": "A", "overlapped": "A", "gathered along k": "A", "gathered B": "B"}


@attrs.frozen(eq=False)
class DrawnNode:
    """A bound strategy for a node, its inputs, run-time sizes, and the expected result."""

    kind: str
    chain: Strategy
    target: str
    arrays: dict
    sizes: dict
    expected: np.ndarray
    features: frozenset

    @property
    def program(self):
        return self.chain.program(self.target)


def _integers(generator, shape, order="C"):
    return np.array(generator.integers(-2, 3, shape), np.float16, order=order)


def _rest(rng, kind):
    """Random steps of the launch on each GPU."""
    if kind == "overlapped":
        stages, bk = rng.choice((2, 3)), rng.choice((32, 64))
        return (
            MatMul.tile(64, 64).to(Block).cluster(*_cluster(rng)).epilog(RF, float32).split(bk).pipeline(stages).warp_specialize()
            .load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
        )  # fmt: skip
    if kind in EXCHANGED:
        pieces = Move.tile(64, 64).to(Warpgroup).tile(64, rng.choice((32, 64))).unroll().load("src", SH, Move.done()).cast_on_copy().done()
        storing = {"store_stages": rng.choice((1, 2))} if rng.random() < 0.5 else {}
        return (
            MatMul.tile(64, 64).to(Block).cluster(*_cluster(rng)).persistent(rng.choice((1, 2, 4))).epilog(RF, float32, Init.done(), pieces).split(64).pipeline(2)
            .warp_specialize(**storing).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
        )  # fmt: skip
    bm, bn, tm, tn = rng.choice((4, 8, 16)), rng.choice((4, 8, 16)), rng.choice((1, 2)), rng.choice((1, 2, 4))
    return MatMul.tile(bm, bn).to(Block).tile(tm, tn).to(Thread).split(rng.choice((1, 2, 4))).unroll().split(1).done()


def _cluster(rng):
    """The tiles of a cluster along m and n; a draw whose tiles do not fill clusters is refused."""
    return rng.choice(((1, 1), (1, 1), (2, 1), (1, 2)))


def _product(rng, kind):
    over, dim = KINDS[kind]
    gpus = rng.choice((2, 2, 4)) if kind in TOGETHER else rng.choice((2, 3, 4, 8))
    orders = {name: RowMajor if kind in TOGETHER else rng.choice((RowMajor, ColMajor)) for name in "ABC"}
    if kind in EXCHANGED:
        rows = rng.choice((1, 2)) * (gpus if "C" in over else 1)
        sizes = {"m": 64 * rows, "n": 64 * rng.choice((1, 2)), "k": 64 * gpus}
    elif kind == "overlapped":
        sizes = {"m": 64 * rng.choice((1, 2)) * gpus if gpus == 2 else 64 * gpus, "n": 64 * gpus, "k": rng.choice((128, 256))}
    else:
        sizes = {name: rng.randint(1, 6) for name in "mnk"}
        sizes = {name: size * gpus if name == dim or name in over.values() else size * 2 for name, size in sizes.items()}
    runtime = rng.random() < 0.4 and kind in ("gathered", "replicated", "scattered", "reduced")
    multiple = gpus if "m" in over.values() or dim == "m" else 1
    given = {**sizes, **({"m": sym("M", multiple_of=multiple, high=4096)} if runtime else {})}
    layouts = {name: order.over(GPU, over[name]) if name in over else order for name, order in orders.items()}
    problem = MatMul(*given.values(), dtype=float16, c_dtype=float16, **layouts)(GL, GL, GL)(Node(gpus))
    sums = {"sums": float16} if dim == "k" and rng.random() < 0.5 else {}
    steps = MatMul.to_gpus(dim, **sums)
    if kind in LOADED:
        steps = steps.load(LOADED[kind], GL)
    if kind == "overlapped":
        steps = steps.overlap(64, rng.choice((64, 128)), warps=rng.choice((1, 2)))
    if kind in EXCHANGED:
        sums = {"sums": float16}
        steps = MatMul.to_gpus(dim, **sums).overlap(64, 64, warps=rng.choice((1, 2)))
    generator = np.random.default_rng(rng.randrange(1 << 30))
    a = _integers(generator, (sizes["m"], sizes["k"]), "C" if orders["A"] == RowMajor else "F")
    b = _integers(generator, (sizes["k"], sizes["n"]), "C" if orders["B"] == RowMajor else "F")
    features = {kind, f"{gpus} GPUs", *(f"{name} {order}" for name, order in orders.items())}
    features |= {"run-time rows"} if runtime else set()
    features |= {"sums in 16 bits"} if sums else set()
    target = "sm_90a" if kind in TOGETHER else rng.choice(("sm_80", "sm_90a"))
    right = (a.astype(float) @ b.astype(float)).astype(np.float16)
    chain = steps.then(_rest(rng, kind))(problem)
    return DrawnNode(kind, chain, target, {"A": a, "B": b}, {"M": sizes["m"]} if runtime else {}, right, frozenset(features))


def _experts(rng, kind):
    gpus, tokens, choices, rows = rng.choice((2, 4)), rng.randint(1, 6), rng.randint(1, 3), rng.choice((1, 2, 4))
    own, width = rng.randint(1, 3), 8 * rng.randint(1, 3)
    generator = np.random.default_rng(rng.randrange(1 << 30))
    index = generator.integers(0, own * gpus, (gpus, tokens, choices))
    routes = [routes_of(index, rank, own * gpus, rows) for rank in range(gpus)]
    tables = {name: np.concatenate([getattr(one, name) for one in routes]) for name in routes[0]._fields}
    tiles = len(routes[0].expert)
    features = frozenset({kind, f"{gpus} GPUs", f"{choices} choices"})
    if kind == "dispatch":
        x = _integers(generator, (gpus, tokens, width))
        used = np.arange(rows)[None] < tables["filled"][:, None]
        right = np.where(used[..., None], x[tables["gpu"], tables["row"]], np.float16(0))
        arrays = {"X": x, "gpu": tables["gpu"], "row": tables["row"], "filled": tables["filled"]}
        chain = bound_experts(kind, "float16", gpus, (tokens, width, tiles, rows))
    else:
        z = _integers(generator, (gpus, tiles * rows, width))
        weights = generator.integers(1, 3, (gpus * tokens, choices)).astype(np.float32)
        terms = z[tables["to_gpu"], tables["to_place"]].astype(np.float32) * weights[..., None]
        right = terms.sum(1).astype(np.float16)
        arrays = {"D": z, "gpu": tables["to_gpu"], "place": tables["to_place"], "V": weights}
        chain = bound_experts(kind, "float16", gpus, (tokens, width, choices, tiles * rows))
    return DrawnNode(kind, chain, rng.choice(("sm_80", "sm_90a")), arrays, {}, right, features)


def draw(seed, kinds=tuple(KINDS)):
    """A legal strategy with its inputs, and the number of draws that were refused before it."""
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    for refusals in range(50):
        drawn = (_experts if kind in ("dispatch", "combine") else _product)(rng, kind)
        try:
            _ = drawn.program.lowered, [launch.program.lowered for launch in drawn.program.launches]
        except FireironError:
            continue
        return drawn, refusals
    raise AssertionError(f"seed {seed}: 50 draws are refused")


def program_to_paste(drawn):
    return f"chain = {drawn.chain!r}\nkernel = chain.compile({drawn.target!r})"


def alarms(program):
    """The errors that the checks report for all launches."""
    errors = [str(finding) for launch in program.launches for finding in safety(launch.program.lowered) if finding.severity == "error"]
    return errors + list(map(str, order_of_gpus(program.ir)))


def order_of_gpus(kernel):
    """The errors of the order of GPUs in a launch that waits for others."""
    return [finding for check in (check_overlap, check_exchange) for finding in check(AccessTrace(kernel))]


def objection(drawn, seed):
    """An oracle's objection to a drawn strategy; empty if all is well."""
    errors = alarms(drawn.program)
    if errors:
        return f"an alarm: {'; '.join(errors)}"
    if eval(repr(drawn.chain)) != drawn.chain or type(drawn.chain).from_json(drawn.chain.to_json()) != drawn.chain:
        return "repr or JSON differs"
    spec = drawn.program.spec
    result = simulate_node(spec, drawn.program.launches, drawn.arrays, drawn.sizes, order=random.Random(seed))
    (name,) = spec.outputs
    return "" if np.array_equal(result[name], drawn.expected) else f"{name} is wrong"


# ---------------------------------------------------------------------------------------------- faults

FAULTS = {
    "no count": (SemaphoreAction.SIGNAL, {}),
    "a count of the next region": (SemaphoreAction.SIGNAL, {"index": lambda index, count: (index + 1) % count}),
    "a count of the first region": (SemaphoreAction.SIGNAL, {"index": lambda index, count: index * 0}),
    "a count without fence": (SemaphoreAction.SIGNAL, {"fenced": lambda fenced, count: False}),
    "no wait": (SemaphoreAction.AWAIT, {}),
    "a wait for the first region": (SemaphoreAction.AWAIT, {"index": lambda index, count: index * 0}),
    "a wait for the next region": (SemaphoreAction.AWAIT, {"index": lambda index, count: (index + 1) % count}),
    "a wait for fewer copies": (SemaphoreAction.AWAIT, {"position": lambda position, count: position - 1}),
    "a wait for more copies": (SemaphoreAction.AWAIT, {"position": lambda position, count: position + 1}),
    "a wait without fence": (SemaphoreAction.AWAIT, {"fenced": lambda fenced, count: False}),
    "a wait without proxy fence": (SemaphoreAction.AWAIT, {"proxied": lambda proxied, count: False}),
    "a late wait": (SemaphoreAction.AWAIT, {"active": lambda active, count: 1 - active}),
    "a wait for the launch before": (SemaphoreAction.AWAIT, {"launch": lambda launch, count: launch - 1}),
    "no next number": (SemaphoreAction.END, {}),
    "the same number again": (SemaphoreAction.END, {"launch": lambda launch, count: launch - 1}),
}
"""The action whose statements change, and the changes of their fields; none: the statements are removed."""


def with_fault(kernel, name):
    """A kernel with a fault; None if the fault changes nothing."""
    action, fields = FAULTS[name]
    count = kernel.workspace.regions.count

    def change(stmt):
        if not isinstance(stmt, SemaphoreBarrier) or stmt.action is not action:
            return (stmt,)
        new = {field: function(getattr(stmt, field), count) for field, function in fields.items()}
        return (attrs.evolve(stmt, **new),) if fields else ()

    changed = attrs.evolve(kernel, body=rewritten(kernel.body, change))
    return None if changed.body == kernel.body else changed


class Faulty:
    """A launch with another kernel."""

    def __init__(self, kernel, arrays):
        self.kernel, self.arrays = kernel, arrays


def undetected(drawn, name, seeds):
    """The detectors that do not find a fault; None if the fault changes nothing here."""
    program = drawn.program
    (launch,) = program.launches
    kernel = with_fault(program.ir, name)
    if kernel is None or (program.ir.workspace.regions.count == 1 and "region" in name):
        return None
    missing = [] if order_of_gpus(kernel) else ["check"]
    if not any(_is_wrong(drawn, Faulty(kernel, launch.arrays), seed) for seed in seeds):
        missing.append("simulator")
    return missing


def _is_wrong(drawn, launch, seed):
    try:
        result = simulate_node(drawn.program.spec, [launch], drawn.arrays, {}, order=None if seed is None else random.Random(seed))
    except SimulationError:
        return True
    return not np.array_equal(result["C"], drawn.expected)
