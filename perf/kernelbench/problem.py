"""A problem: its arrays, its kernels as formulas, and its reference in NumPy. `run` executes the kernels in the simulator.

A kernel is a text with one formula per line. A line may name the dimension of a loop (`scan n`), or the value outside of an array
(`outside X -inf`), and a formula may start with `init:` or `final:`. All kernels of a problem share names: a kernel reads the array that an earlier one writes. The definition, its strategy, and the
connections of a `KernelGraph` follow from the texts, so a problem states no more than its formulas.
"""

import functools
import math
import re
import time
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from fireiron import *
from fireiron.gpu.toolchain import compile_cuda
from fireiron.sim import simulate

TARGET = "sm_80"

PARTS = {"init": "init", "final": "final"}


def dims_of(arrays):
    """Return the dimensions by array, in order, of a text such as `"X: b c h; W: (g o) c"`. Braces merge dimensions: see `merged`."""
    pairs = (item.split(":") for item in arrays.split(";") if item.strip())
    return {name.strip(): dims.strip() for name, dims in pairs}


def merged_shape(dims, sizes):
    """Return the shape in which the problem states an array: dimensions in parentheses are one dimension, as groups of channels are."""
    groups = re.findall(r"\(([^)]*)\)|(\w+)", dims)
    return tuple(math.prod(sizes[dim] for dim in (group or single).split()) for group, single in groups)


@attrs.frozen
class Problem:
    """A problem of KernelBench.

    - `arrays`: all arrays with their dimensions. Arrays that no kernel writes are the inputs; the last kernel's outputs are the results.
    - `sizes`: the extents that are simulated. `kernels`: the formulas of each kernel, in order.
    - `reference`: the results in NumPy, from the inputs in the problem's shapes, in float64.
    - `draw`: functions `(random, shape) -> array` for inputs that are not normally distributed. `types`: element types other than float32.
    - `missing`: the reason, if the problem cannot be stated.
    """

    level: int
    number: int
    title: str
    arrays: str = ""
    sizes: Mapping[str, int] = attrs.field(factory=dict)
    kernels: tuple[str, ...] = ()
    reference: Callable | None = None
    draw: Mapping[str, Callable] = attrs.field(factory=dict)
    types: Mapping[str, object] = attrs.field(factory=dict)
    note: str = ""
    missing: str = ""
    tolerance: float = 4e-6

    @property
    def name(self):
        """The level and the number: `1/23`."""
        return f"{self.level}/{self.number}"

    @functools.cached_property
    def dims(self):
        """The dimensions of each array, as the definitions state them."""
        return {name: dims.replace("(", "").replace(")", "") for name, dims in dims_of(self.arrays).items()}

    @functools.cached_property
    def definitions(self):
        """The definition of each kernel."""
        return tuple(
            definition(f"kb{self.level}_{self.number}_{i}", text, self.dims, self.sizes, self.types) for i, text in enumerate(self.kernels)
        )

    @functools.cached_property
    def bound(self):
        """The bound strategy of each kernel."""
        return tuple(naive(start, self.sizes)(spec_of(start, self.sizes)) for start in self.definitions)

    @property
    def inputs(self):
        """The arrays that no kernel writes, in the order in which kernels read them."""
        written = {name for bound in self.bound for name in bound.spec.outputs}
        return tuple(dict.fromkeys(name for bound in self.bound for name in bound.spec.inputs if name not in written))

    @property
    def outputs(self):
        """The outputs of the kernels that no kernel reads."""
        read = {name for bound in self.bound for name in bound.spec.inputs}
        return tuple(name for bound in self.bound for name in bound.spec.outputs if name not in read)

    def drawn(self, seed=0):
        """Return the inputs by name, in the shapes of the definitions.

        Inputs of normalizations are small, so that the number added to the variance matters.
        """
        random, values = np.random.default_rng(seed), {}
        small = () if "1e-05" not in "".join(self.kernels) else ("W", "bias") if "W" in self.inputs else ("X",)
        for name in self.inputs:
            shape = tuple(self.sizes[dim] for dim in self.dims[name].split())
            normal = random.standard_normal(shape) * (0.05 if name in small else 1)
            values[name] = self.draw[name](random, shape) if name in self.draw else normal.astype(np.float32)
        return values

    def expected(self, values):
        """Return the results in NumPy, a tuple."""
        declared = dims_of(self.arrays)
        wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in values.items()}
        results = self.reference(*(wide[name].reshape(merged_shape(declared[name], self.sizes)) for name in self.inputs))
        return results if isinstance(results, tuple) else (results,)

    def simulated(self, values):
        """Return the results of the lowered and checked kernels in the simulator, in the order of `outputs`.

        Raises: the errors of lowering, of the checks and of the simulator; those of `KernelGraph` if kernels cannot share an array.
        """
        if len(self.bound) > 1:
            graph(self.name, self.bound, self.outputs)
        values = dict(values)
        for bound in self.bound:
            values |= simulate(bound.program(TARGET).ir, {name: values[name] for name in bound.spec.inputs}).outputs
        return tuple(values[name] for name in self.outputs)

    def compiled(self):
        """Compile the texts of the kernels with NVRTC, and return the number of texts. Raises: LaunchError if NVRTC refuses one."""
        texts = [(bound.program(target).cuda, target) for bound in self.bound for target in (TARGET, "sm_90a")]
        for text, target in texts:
            compile_cuda(text, target)
        return len(texts)

    def run(self, seed=0):
        """Simulate the kernels, and return the largest error relative to the largest magnitude of the result, by result.

        Raises: AssertionError if a result has another shape than the reference (except for dimensions of extent 1), or is not finite.
        """
        values = self.drawn(seed)
        results, expected = self.simulated(values), self.expected(values)
        assert len(results) == len(expected), f"{self.name}: {len(results)} results, the reference has {len(expected)}"
        return max(self._error(name, result, right) for name, result, right in zip(self.outputs, results, expected, strict=True))

    def _error(self, name, result, right):
        shape = merged_shape(dims_of(self.arrays)[name], self.sizes)
        wanted = np.shape(right)
        assert [n for n in shape if n > 1] == [n for n in wanted if n > 1], (
            f"{self.name}: {name} has the shape {shape}, the reference {wanted}"
        )
        if np.asarray(right).dtype.kind in "iub":
            return float(np.max(np.abs(result.reshape(wanted).astype(np.int64) - right)))
        assert np.isfinite(result).all(), f"{self.name}: {name} is not finite"
        return float(np.max(np.abs(result.reshape(wanted).astype(np.float64) - right)) / max(np.max(np.abs(right)), 1e-30))


def definition(name, text, dims, sizes, types=()):
    """Return the definition of a kernel."""
    parts, loop, outside = {"init": {}, "body": {}, "final": {}}, "", {}
    for line in (line.strip() for line in text.strip().splitlines()):
        if line.startswith("scan "):
            loop = line.removeprefix("scan ")
            continue
        if line.startswith("outside "):
            _, array, value = line.split()
            outside[array] = value
            continue
        part = next((part for part in PARTS if line.startswith(part + ":")), "body")
        parts[part][f"s{sum(map(len, parts.values()))}"] = line.removeprefix(part + ":").strip()
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    operands = {array: of for array, of in dims.items() if array in words}
    used = words | {dim for of in operands.values() for dim in of.split()}
    given = {key: value for key, value in dict(types).items() if key in words}
    return Fused(
        name=name, dims=" ".join(dim for dim in sizes if dim in used), operands=operands, types=given, scan=loop, outside=outside, **parts
    )


def spec_of(start, sizes):
    """Return the spec of a definition in float32."""
    known = start.fused_definition
    return start(dtype=float32, **{dim: sizes[dim] for dim in (*known.order, *known.free_dims)})


def naive(start, sizes, threads=64):
    """Return the simplest strategy: a thread computes an element of each dimension that no step reduces, and everything that this requires.

    If a kernel adds to an output, the dimensions of the sum are distributed over threads, too. Loops implement sums of products, and
    elementwise steps that access no registers. All other steps have no separate strategy.
    """
    known = start.fused_definition
    tile, count = {}, 1
    for dim in reversed(parallel(known)):
        tile[dim] = max(min(sizes[dim], threads // count, 8), 1)
        count *= tile[dim]
    blocks = start.tile(**tile).to(Block)
    for dim in known.loops:
        blocks = blocks.split(**{dim: 1})
    threads_of = blocks.tile(**dict.fromkeys(tile, 1)).to(Thread)
    for step in known.steps:
        if (by_elements := elements_of(step, known, tile)) is not None:
            threads_of = threads_of.step(step.name, by_elements)
    return threads_of.done()


def parallel(known):
    """Return the dimensions that threads divide: those that no step reduces, except to add to an output."""
    reduced = {dim for step in known.steps if step.formula.output not in known.added for dim in step.formula.over}
    used = {dim for step in known.steps for element in (step.formula.target, *step.formula.elements) for dim in element.dims}
    return [dim for dim in known.order if dim in used and dim not in reduced and dim not in known.loops]


def elements_of(step, known, tile):
    """Return the strategy of a step for a thread, an element after the other; None if the other steps determine it."""
    formula, others = (
        step.formula,
        {dim: 1 for dim in step.formula.dims if dim not in tile and dim not in (*step.formula.over, *known.loops)},
    )
    if formula.contracts:
        start = MatMul.tile(**others) if others else MatMul
        over = {dim: 1 for dim in formula.over if dim not in tile}
        return (start.split(**over) if over else start).done()
    if (
        others
        and formula.elementwise
        and all(element.tensor in known.arrays for element in formula.elements if set(element.dims) & set(others))
    ):
        return Pointwise.tile(**others).done() if formula.output in known.arrays else None
    return None


def graph(name, bound, outputs):
    """Return the kernels as a graph in which equal names are one array."""
    first, connect = {}, {}
    for i, strategy in enumerate(bound):
        for array in strategy.spec.inputs:
            if array in first:
                connect[f"k{i}.{array}"] = first[array]
        first |= {array: f"k{i}.{array}" for array in (*strategy.spec.inputs, *strategy.spec.outputs) if array not in first}
    kernels = {f"k{i}": strategy for i, strategy in enumerate(bound)}
    return KernelGraph("kb" + name.replace("/", "_"), kernels, connect, outputs=tuple(first[array] for array in outputs))


def timed(problem, seed=0):
    """Return the error of a problem and the seconds that it took."""
    start = time.perf_counter()
    error = problem.run(seed)
    return error, time.perf_counter() - start
