"""Random definitions with scans and random strategies: rows of threads, warps and blocks, iterations, chunks of a loop, exclusive scans,
tiles of several blocks, and linear recurrences.

`expected` is a loop over the elements of a row, in Python's floats and integers.
"""

import random

import attrs
import numpy as np

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError, MatchError, ResourceError, SynchronizationError
from fireiron.measure.data import all_sizes, random_inputs, references_of
from fireiron.measure.rounding import differing
from fireiron.sim import simulate

REFUSALS = (ArgumentError, DecompositionError, MatchError, ResourceError, SynchronizationError)
OPERATIONS = {"cumsum": lambda a, b: a + b, "cummax": max, "cummin": min, "cumprod": lambda a, b: a * b}
FORMS = ("thread", "warp", "several rows", "block", "iterations", "threads", "chunks", "columns", "tiles")
RECURRENCE = "linear_recurrence"


@attrs.define
class Drawn:
    """A definition with a scan, a strategy, its spec, and the values of symbols."""

    definition: object
    strategy: object
    bound: object
    symbols: dict
    features: set
    by: str
    seed: int
    program: object = None

    def inputs(self):
        """Random inputs; factors of products are near 1, or 1, -1 and 2 for integers, most of them 1."""
        random_ = np.random.default_rng(self.seed)
        arrays = random_inputs(self.bound, all_sizes(self.bound, self.symbols), random_)
        x = arrays["X"]
        if self.by == "cumprod":
            integer = np.issubdtype(x.dtype, np.integer)
            arrays["X"] = (random_.choice([1, 1, 1, -1, 2], x.shape) if integer else 1 + 0.05 * random_.standard_normal(x.shape)).astype(
                x.dtype
            )
        if self.by == RECURRENCE:
            arrays["A"] = random_.uniform(-0.9, 1.05, x.shape).astype(x.dtype)
        return arrays


def expected(case, arrays):
    """The scan of X along n, element by element; None for forms that compute more."""
    x = arrays["X"] if "columns" not in case.features else arrays["X"].T
    if case.by == RECURRENCE:
        return _recurred(arrays["A"].astype(np.float64), x.astype(np.float64))
    rows = []
    for row in x:
        total, values = None, []
        for value in row.tolist() if np.issubdtype(row.dtype, np.integer) else row.astype(np.float64):
            total = value if total is None else OPERATIONS[case.by](total, value)
            values.append(total)
        rows.append(values)
    wide = (
        np.array([[value & 0xFFFFFFFF for value in row] for row in rows], np.uint32).astype(np.int32)
        if _is_integer(x)
        else np.array(rows, np.float64)
    )
    return wide if "columns" not in case.features else wide.T


def _recurred(a, x):
    """h[n] = a[n] * h[n - 1] + x[n], element by element."""
    rows = []
    for factors, values in zip(a.tolist(), x.tolist(), strict=True):
        state, results = 0.0, []
        for factor, value in zip(factors, values, strict=True):
            state = factor * state + value
            results.append(state)
        rows.append(results)
    return np.array(rows)


def _is_integer(array):
    return np.issubdtype(array.dtype, np.integer)


def drawn(seed, form=None):
    """One definition with one strategy."""
    r = random.Random(f"{seed} scans")
    form = form or r.choice(FORMS)
    by, features = r.choice(tuple(OPERATIONS)), {form}
    dtype = r.choice((float32, float32, float16, int32, bfloat16))
    kind = float32 if dtype.kind == "float" else int32
    stored = r.choice((dtype, kind))
    features |= {by, str(dtype)}
    body = {}
    source = "X[m,n]" if form != "columns" else "X[n,m]"
    if r.random() < 0.3 and dtype.kind == "float":
        body["before"] = f"x[m,n] = {source} * 1"
        source = "x[m,n]"
        features.add("after a step")
    target = "t[m,n]" if form != "columns" else "t[n,m]"
    source = source.replace("[m,n]", target[1:]) if form == "columns" and source.startswith("x") else source
    if form == "columns" and "before" in body:
        body["before"], source = "x[n,m] = X[n,m] * 1", "x[n,m]"
    if form not in ("chunks", "columns") and dtype.kind == "float" and r.random() < 0.3:
        features -= {by}
        by = RECURRENCE
        features.add(by)
    body["scan"] = f"{target} = {by}(n, A[m,n], {source})" if by == RECURRENCE else f"{target} = {by}(n, {source})"
    types = {"t": kind}
    result = target
    init = {}
    if form == "chunks":
        sign, first = {"cumsum": (" + ", "0"), "cumprod": (" * ", "1"), "cummax": (None, "-inf"), "cummin": (None, "inf")}[by]
        if kind == int32 and sign is None:
            first = str(-(2**31) if by == "cummax" else 2**31 - 1)
        join = (lambda a, b: f"{a}{sign}{b}") if sign else (lambda a, b: f"{by[3:]}({a}, {b})")
        init = {"c0": f"c[m] = {first}"}
        body["joined"] = f"u[m,n] = {join('t[m,n]', 'c[m]')}"
        body["part"] = f"p[m] = {by.replace('cum', '')}(n, {source})"
        body["carry"] = f"c[m] = {join('c[m]', 'p[m]')}"
        types |= {"u": kind, "c": kind, "p": kind}
        result = "u[m,n]"
    body["out"] = f"Y{result[1:]} = {result}"
    dims = "n m" if form == "columns" else "m n"
    words = {"init": init, "loop": "n"} if form == "chunks" else {}
    operands = {"A": dims, "X": dims, "Y": dims} if by == RECURRENCE else {"X": dims, "Y": dims}
    definition = Fused(name="scan", dims="m n", operands=operands, body=body, types=types, **words)
    vector = r.choice((1, 2, 4))
    placed = r.random() < 0.2 and form not in ("chunks", "thread", "tiles")
    features |= {"placed"} if placed else set()
    chain, width = definition, 0

    def load(chain, pieces):
        chain = chain.load("X", RF, pieces)
        return chain.load("A", RF, pieces) if by == RECURRENCE else chain

    match form:
        case "thread":
            width = r.choice((4, 16))
            chain = load(chain.tile(m=32).to(Block), Move.tile(1, width).to(Thread).tile(1, 1).unroll().done())
        case "warp":
            width = 32 * vector
            chain = load(chain.tile(m=4).to(Block).tile(m=1).to(Warp), Move.tile(1, vector).to(Lane).done())
        case "several rows":
            width = 8 * vector
            chain = load(chain.tile(m=8).to(Block), Move.tile(4, width).to(Warp).tile(1, vector).to(Lane).done())
        case "block" | "chunks":
            across = r.choice((2, 3, 4, 8))
            width, rows = 32 * vector * across, r.choice((1, 2))
            chain = chain.tile(m=rows).to(Block)
            chain = chain.split(n=width) if form == "chunks" else chain
            chain = load(chain, Move.tile(1, 32 * vector).to(Warp).tile(1, vector).to(Lane).done())
        case "tiles":
            again, across, rows = r.choice((1, 2)), r.choice((1, 2, 3)), r.choice((1, 1, 2))
            width = 32 * vector * again * across
            chain = chain.tile(m=rows, n=width).to(Block).look_back()
            chain = load(chain, Move.tile(1, 32 * vector * again).to(Warp).tile(1, vector).to(Lane).done())
        case "iterations":
            width = 32 * vector * r.choice((2, 3))
            chain = load(chain.tile(m=2).to(Block).tile(m=1).to(Warp), Move.tile(1, vector).to(Lane).done())
        case "threads":
            count = r.choice((5, 12, 40))
            width = count * vector
            chain = load(chain.tile(m=1).to(Block), Move.tile(1, vector).to(Thread).tile(1, 1).unroll().done())
        case _:
            width = 32 * vector
            chain = chain.tile(m=2).to(Block).load("X", RF, Move.tile(32 * vector, 1).to(Warp).tile(vector, 1).to(Lane).done())
    chain = chain.set_memory("t", SH) if placed else chain
    n = width if r.random() < 0.5 else max(width - r.randrange(width), 1)
    n = n + width * r.randrange(3) if form in ("chunks", "tiles") else n
    features |= {"ragged"} if n % width else set()
    m, symbols = r.randint(1, 9), {}
    given = {"m": m, "n": n}
    if r.random() < 0.3:
        given["m"], symbols["M"] = sym("M", high=1 << 12), m
        features.add("symbolic")
    if form in ("chunks", "tiles") and r.random() < 0.5:
        given["n"], symbols["N"] = sym("N", high=1 << 12), n
        features.add("symbolic length")
    bound = definition(**given, dtype=dtype, types={"Y": stored})
    return Drawn(definition, chain.done(), bound, symbols, features, by, seed)


def draw(seed, form=None):
    """A case that lowers, and the number of refused ones before it."""
    for refused in range(20):
        try:
            case = drawn(f"{seed}/{refused}" if refused else seed, form)
            case.seed = refused + (seed if isinstance(seed, int) else 0)
            case.program = case.strategy(case.bound).program("sm_80")
            _ = case.program.lowered
        except REFUSALS:
            continue
        return case, refused
    raise AssertionError(f"seed {seed}: 20 draws refused")


def objection(case, seed, run=None):
    """An oracle's objection to a program; empty if all is well. `run` executes it; the default is the simulator."""
    alarms = [str(finding) for finding in safety(case.program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    sizes, arrays = all_sizes(case.bound, case.symbols), case.inputs()
    got = simulate(case.program.lowered, arrays, sizes, order=random.Random(seed)).outputs if run is None else run(arrays, sizes)
    return differences(case, got, arrays)


def differences(case, got, arrays):
    """What is wrong with outputs; empty if nothing is."""
    sizes = all_sizes(case.bound, case.symbols)
    wrong = differing(case.bound, sizes, got, arrays, references_of(case.bound, *arrays.values()))
    right, result = expected(case, arrays), got["Y"]
    if _is_integer(right):
        wrong += [] if np.array_equal(result.astype(np.int32), right) else ["Y is not exact"]
    else:
        near = np.allclose(result.astype(np.float64), right, rtol=3e-2, atol=3e-2 * max(np.abs(right).max(initial=0), 1))
        wrong += [] if near else ["Y differs from the loop over its elements"]
    return "; ".join(wrong)


def program_to_paste(case):
    return f"\nfrom fireiron import *\nstrategy = {case.strategy!r}\nspec = {case.bound!r}\nsizes = {case.symbols}, seed = {case.seed}\n{case.definition}"
