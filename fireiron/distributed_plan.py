"""Matmuls of a process group: the spec for the node, the strategies, and the choice between them by expected time.

>>> problem = NodeProduct.of("all_gather", (512, 8192), (8192, 3584), float16, gpus=2)
>>> print(problem.spec)
MatMul(1024,7168,8192)(GL,GL,GL)(Node(2)) with A float16 RowMajor.over(GPU, 'm'); B, C float16 RowMajor.over(GPU, 'n')
>>> chosen, *_ = candidates(problem, "sm_90a")
>>> chosen.name
'overlapped'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.cost.gpus import Gpu, as_gpu, of_architecture
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.place import Place
from fireiron.frozen import frozen
from fireiron.language.strategy import Strategy
from fireiron.matmul_choice import chosen
from fireiron.matmul_problem import CacheKey, Problem
from fireiron.spec import Spec
from fireiron.specs.matmul import MatMul
from fireiron.strategies import all_gather_gemm, gemm_all_reduce, gemm_reduce_scatter, hopper, hopper_skinny
from fireiron.tune.records import in_parts, tiles
from fireiron.tune.records.choosing import Question, any_program, prove_only
from fireiron.values.expr import sym
from fireiron.values.machine import GL, GPU, Architecture, DType, Kernel, Node, bfloat16, float16, float32
from fireiron.values.tensor import MatrixLayout, RowMajor

TYPES: Final = (float16, bfloat16, float32)
"""Element types of operands and results."""


@frozen
class Exchange:
    """How a kind of matmul distributes operands.

    Attributes:
        over: the dimension over which each operand is distributed; an operand without one is complete on each GPU.
        divides: the dimension that the GPUs divide.
        gathers: the input of which each GPU needs the parts of all GPUs.
    """

    over: Mapping[str, str]
    divides: str
    gathers: str = ""


EXCHANGES: Final[Mapping[str, Exchange]] = {
    "all_gather": Exchange({"A": "m", "B": "n", "C": "n"}, "n", "A"),
    "all_gather_k": Exchange({"A": "k", "B": "n", "C": "n"}, "n", "A"),
    "all_gather_b": Exchange({"A": "m", "B": "k", "C": "m"}, "m", "B"),
    "reduce_scatter": Exchange({"A": "k", "B": "k", "C": "m"}, "k"),
    "all_reduce": Exchange({"A": "k", "B": "k"}, "k"),
}
"""The kinds of matmuls. `all_gather_k` and `all_gather_b` are gradients of matrices whose other operand was gathered or scattered."""

DIMS: Final = {"A": "mk", "B": "kn", "C": "mn"}


@frozen
class NodeProduct:
    """A matmul of all GPUs of a node.

    Attributes:
        kind: a name of `EXCHANGES`.
        sizes: M, N and K of all GPUs together.
        dtype: the element type of operands and result.
        orders: the storage orders of A and B.
        gpus: the number of GPUs.
    """

    kind: str
    sizes: tuple[int, int, int]
    dtype: DType
    orders: tuple[MatrixLayout, MatrixLayout]
    gpus: int

    @staticmethod
    def of(
        kind: str,
        a: tuple[int, ...],
        b: tuple[int, ...],
        dtype: DType,
        orders: tuple[MatrixLayout, MatrixLayout] = (RowMajor, RowMajor),
        gpus: int = 2,
    ) -> NodeProduct:
        """Return the matmul whose parts on a GPU have the shapes `a` and `b`.

        Raises: ArgumentError for shapes that do not fit each other, or cannot be distributed.
        """
        exchange = EXCHANGES[kind]
        if len(a) != 2 or len(b) != 2 or 0 in (*a, *b):
            raise ArgumentError(f"{kind}: a and b must be matrices with elements", got=f"shapes {a} and {b}")
        sizes: dict[str, int] = {}
        for name, shape in (("A", a), ("B", b)):
            for dim, size in zip(DIMS[name], shape, strict=True):
                whole = size * gpus if exchange.over.get(name) == dim else size
                if sizes.setdefault(dim, whole) != whole:
                    names = f"columns of a ({a[1]}) and rows of b ({b[0]})"
                    raise ArgumentError(
                        f"{kind}: the {names} on a GPU do not fit", got=f"shapes {a} and {b} on {gpus} GPUs",
                        legal=f"K={sizes[dim]} of all GPUs for both",
                    )  # fmt: skip
        if exchange.over.get("C") == "m" and sizes["m"] % gpus:
            low = sizes["m"] // gpus * gpus
            raise ArgumentError(
                f"{kind}: {gpus} GPUs cannot store equal parts of the rows of the result", got=f"{sizes['m']} rows",
                legal=" or ".join(str(rows) for rows in (low, low + gpus) if rows), hint="pad a with zero rows",
            )  # fmt: skip
        return NodeProduct(kind, (sizes["m"], sizes["n"], sizes["k"]), dtype, orders, gpus)

    @property
    def exchange(self) -> Exchange:
        """How operands are distributed."""
        return EXCHANGES[self.kind]

    @property
    def divides_sums(self) -> bool:
        """Whether each GPU computes sums of a part of a reduction dimension."""
        return not self.exchange.gathers

    @property
    def spec(self) -> Spec:
        """The spec of all GPUs."""
        return self._spec(self.sizes)

    @property
    def has_run_time_rows(self) -> bool:
        """Whether one kernel computes the matmul for any number of rows: those that only one operand and the result have."""
        return self.kind in ("all_gather", "reduce_scatter", "all_reduce")

    def for_rows(self, most: int) -> Spec:
        """Return the spec of all GPUs for any number of rows up to `most`. Legal with `has_run_time_rows`."""
        divided = "m" in self.exchange.over.values()
        return self._spec((sym("M", multiple_of=self.gpus if divided else 1, high=most), *self.sizes[1:]))

    def with_rows(self, rows: int) -> NodeProduct:
        """Return the same matmul with another number of rows of all GPUs."""
        return attrs.evolve(self, sizes=(rows, *self.sizes[1:]))

    def _spec(self, sizes: tuple[Any, ...]) -> Spec:
        over = self.exchange.over
        orders = dict(zip("ABC", (*self.orders, RowMajor), strict=True))
        layouts: dict[str, Any] = {name: order.over(GPU, over[name]) if name in over else order for name, order in orders.items()}
        spec: Spec = MatMul(*sizes, dtype=self.dtype, c_dtype=self.dtype, **layouts)(GL, GL, GL)(Node(self.gpus))
        return spec

    def own(self, c_dtype: DType) -> Spec:
        """Return the product of one GPU as a spec of one launch, with a result of some type."""
        sizes = dict(zip("mnk", self.sizes, strict=True))
        sizes[self.exchange.divides] //= self.gpus
        orders: dict[str, Any] = dict(zip("ABC", (*self.orders, RowMajor), strict=True))
        spec: Spec = MatMul(*sizes.values(), dtype=self.dtype, c_dtype=c_dtype, **orders)(GL, GL, GL)(Kernel)
        return spec

    def bytes_of(self, name: str) -> float:
        """Return the bytes of an operand of all GPUs."""
        sizes = dict(zip("mnk", self.sizes, strict=True))
        return float(sizes[DIMS[name][0]] * sizes[DIMS[name][1]] * self.dtype.bytes)


@frozen
class Candidate:
    """A way to compute a matmul of a node.

    Attributes:
        name: `gathered`, `overlapped`, `direct`, `sums`, `rounded sums`, `exchanged`, `recorded` for the strategy of a record of this
            problem, or `library` for `fireiron.matmul` and collectives of NCCL.
        us: the expected microseconds: the sum of `parts`.
        parts: the expected microseconds of the product, of the rest of the link, and of barriers; or those of a measurement.
        link_bytes: the bytes that a GPU reads of others.
        why: the choice of the product of one GPU.
        strategy: the strategy for the node; None for `library`.
    """

    name: str
    us: float
    parts: Mapping[str, float]
    link_bytes: float
    why: str
    strategy: Strategy | None = attrs.field(default=None, repr=False)

    @property
    def measured(self) -> bool:
        """Whether the time was measured for exactly this problem."""
        return MEASURED in self.parts

    def __str__(self) -> str:
        parts = "" if self.measured else f" ({', '.join(f'{name} {us:.1f}' for name, us in self.parts.items() if us)})"
        times = f"{self.us:.1f} us {'measured' if self.measured else 'expected'}{parts}"
        return f"{self.name}: {times}, {self.link_bytes / 1e6:.1f} MB over the link; {self.why}"


MEASURED: Final = "measured"
"""The only part of a measured time."""

LAUNCH_US: Final = 1.5
"""Microseconds of a further launch."""

NCCL_US: Final = {"all_gather": 10.0, "reduce_scatter": 10.0, "all_reduce": 13.0}
NCCL_GB_S: Final = {"all_gather": 230.0, "reduce_scatter": 210.0, "all_reduce": 280.0}
"""Time and bandwidth of collectives of two H200: fitted to NCCL 2.28.9 with buffers of 1 to 256 MB, multicast off."""

WIDTH: Final = 256
"""Columns of a large tile: a launch that reads parts of other GPUs directly reads each once per tile."""

TERAFLOPS: Final = 600.0
"""Speed of a product without a record in 10^12 operations per second."""


def candidates(problem: NodeProduct, arch: Architecture | str | None = None, device: int | None = None) -> list[Candidate]:
    """Return the ways to compute a matmul, the one with the least time first: by a record of exactly this problem, or else as expected.

    `device` is the GPU (None: the simulator).
    """
    place = Place.of(device, arch, False)
    gpu = of_architecture(place.architecture) if place.gpu is None else as_gpu(place.gpu)
    together = (*_overlapped(problem, place, gpu), *_exchanged(problem, place, gpu))
    known = [*_recorded(problem, place), *_candidates(problem, place, gpu), *together]
    measured = next((one for one in known if one.name == LIBRARY_NAME), None)
    known += [] if measured is not None else [_by_library(problem, place)]
    return sorted(known, key=lambda candidate: (not candidate.measured, candidate.us))


LIBRARY_NAME: Final = "library"
"""The name of the candidate of `fireiron.matmul` and collectives."""


def _recorded(problem: NodeProduct, place: Place) -> Iterator[Candidate]:
    """Yield the strategy of the record of exactly this problem, and the library if it was measured in the same run."""
    choice = place.find(problem.spec, any_program, prove=prove_only)
    if choice is None or choice.record is None:
        return
    record, (moved, _) = choice.record, _moved(problem, "recorded", problem.dtype)
    own = attrs.evolve(choice.program.strategy, spec=None)
    yield Candidate("recorded", record.us, {MEASURED: record.us}, moved, choice.why, own)
    if record.library_us is not None:
        measured = {MEASURED: record.library_us}
        yield attrs.evolve(_by_library(problem, place), us=record.library_us, parts=measured, why="cuBLAS and NCCL, in the same run")


def overlapping(problem: NodeProduct, place: Place, gpu: Gpu) -> Iterator[tuple[Mapping[str, int], float]]:
    """Yield the values of the strategy whose launch gathers A, and the expected microseconds of its product, the fastest first."""
    if problem.kind != "all_gather" or problem.orders[0] != RowMajor:
        return
    m, _, k = problem.sizes
    own = problem.own(problem.dtype)
    n = own.size("n").factor
    question = Question(own, place.architecture, place.gpu)
    known = [
        (values, tile.us * _slowed(values, m, n, gpu))
        for tile in tiles.candidates(place.records.records, question)
        if tile.name == TILED and (values := all_gather_gemm.overlapped_values_of(tile.values, m, n, k, gpu.multiprocessors)) is not None
    ]
    yield from sorted(known, key=lambda pair: pair[1])


def _slowed(values: Mapping[str, int], m: int, n: int, gpu: Gpu) -> float:
    """Return how much longer a product takes while warps copy, by its tile."""
    if -(-m // values["bm"]) * -(-n // values["bn"]) <= gpu.multiprocessors:
        return 1.0
    small = values["bm"] * values["bn"] < LARGE
    return CLUSTERED if values.get("cluster_m", 1) > 1 else SLOWED if small else 1.0


CLUSTERED: Final = 1.02
"""The time of a product in clusters while warps copy: 336 us for 4096x3584x8192, and 324 to 330 us with the best tile without (H200)."""

LARGE: Final = 128 * 192
"""Elements of a tile from which on copies to other GPUs hardly slow down a product."""

SLOWED: Final = 1.2
"""The time of a product with smaller tiles, which load more bytes, while warps copy: 375 instead of 302 us for 4096x3584x8192 (H200)."""

TILED: Final = "hopper"
"""The strategy of the launch of a product."""


def _overlapped(problem: NodeProduct, place: Place, gpu: Gpu) -> Iterator[Candidate]:
    """Yield the strategy whose launch gathers A: it overlaps, except for the rows of the first tiles of all SMs."""
    fastest = next(overlapping(problem, place, gpu), None)
    if fastest is None:
        return
    (values, us), (moved, _) = fastest, _moved(problem, "overlapped", problem.dtype)
    link = moved / (gpu.link_gb_s or 1e-3) * 1e-3
    m, n = problem.sizes[0], problem.own(problem.dtype).size("n").factor
    first = min(1.0, -(-gpu.multiprocessors // -(-n // values["bn"])) * values["bm"] / m)
    waits = first * link if first == 1.0 else 0.0  # in the first tiles, blocks read the own part
    parts = {"product": us, "link": max(0.0, link - us) + waits, "barriers": gpu.barrier_us}
    why = " ".join(f"{name}={value}" for name, value in values.items())
    yield Candidate("overlapped", sum(parts.values()), parts, moved, why, all_gather_gemm.overlapped.with_(**values))


def exchanging(problem: NodeProduct, place: Place, gpu: Gpu) -> Iterator[tuple[str, Mapping[str, int], float]]:
    """Yield strategies whose launch exchanges sums: the name of that of the product, values, and the expected microseconds of the product.

    The fastest product comes first.
    """
    if problem.divides_sums and problem.dtype in (float16, bfloat16):
        library = gemm_reduce_scatter if "C" in problem.exchange.over else gemm_all_reduce
        m, n, _ = problem.sizes
        rows = m // problem.gpus if "C" in problem.exchange.over else m
        for tile in tiles.candidates(place.records.records, Question(problem.own(problem.dtype), place.architecture, place.gpu)):
            few = tile.name == SKINNY and library is gemm_all_reduce
            if tile.name == TILED or few:
                values = library.exchanged_values_of(tile.values, rows, n, gpu.multiprocessors)
                if values is not None:
                    yield tile.name, values, tile.us


SKINNY: Final = "hopper_skinny"
"""The strategy of the launch of a product of few rows."""

ADDED_US: Final = 2.0
"""Microseconds in which warps add the sums of the last tiles, after they were counted."""


def _exchanged(problem: NodeProduct, place: Place, gpu: Gpu) -> Iterator[Candidate]:
    """Yield the strategy whose launch exchanges sums: stores overlap, except for those of the last tiles of all SMs."""
    fastest = next(exchanging(problem, place, gpu), None)
    if fastest is None:
        return
    (name, values, us), (moved, _) = fastest, _moved(problem, "exchanged", problem.dtype)
    link = moved / (gpu.link_gb_s or 1e-3) * 1e-3
    waves = -(-problem.sizes[0] * problem.sizes[1] // (values["bm"] * values["bn"] * gpu.multiprocessors))
    own = "C" in problem.exchange.over and waves > 1  # the last tiles are those of the own part
    parts = {"product": us, "link": max(0.0, link - us) + ADDED_US + (0.0 if own else link / waves), "barriers": gpu.barrier_us}
    product = hopper_skinny.strategy if name == SKINNY else hopper.strategy
    stored = gemm_reduce_scatter.storing_values_of(values, problem.sizes[0] // problem.gpus, problem.sizes[1]) if own else None
    if stored is not None:
        name, values, product = "hopper:storing", stored, hopper.storing
    why = " ".join((name, *(f"{key}={value}" for key, value in values.items())))
    regions = (values["region_rows"], values["region_columns"], values["adding_warps"])
    tile = {key: value for key, value in values.items() if key not in ("region_rows", "region_columns", "adding_warps")}
    steps = MatMul.to_gpus(problem.exchange.divides, sums=problem.dtype).overlap(*regions)
    yield Candidate("exchanged", sum(parts.values()), parts, moved, why, steps.then(product.with_(**tile)))


def _candidates(problem: NodeProduct, place: Place, gpu: Gpu) -> Iterator[Candidate]:
    """Yield the strategies with separate launches."""
    link = gpu.link_gb_s or 1e-3
    for name, steps, c_dtype in _steps(problem):
        spec = problem.own(c_dtype)
        try:
            choice, _ = chosen(CacheKey((Problem(spec, False, {}),), (), place))
        except FireironError:
            continue
        us = _expected(spec, place)
        moved, memory = _moved(problem, name, c_dtype)
        exchanged = moved / link * 1e-3 + memory / gpu.memory_gb_s * 1e-3
        parts = {"product": us, "link": exchanged + LAUNCH_US, "barriers": 2 * gpu.barrier_us}
        if name == "direct":
            parts["link"] = max(0.0, exchanged - us)
        own = attrs.evolve(choice.program.strategy, spec=None)
        yield Candidate(name, sum(parts.values()), parts, moved, choice.why, steps.then(own))


def _by_library(problem: NodeProduct, place: Place) -> Candidate:
    """Return `fireiron.matmul` and collectives of NCCL."""
    collective = problem.kind if problem.kind in NCCL_US else "all_gather"
    whole = problem.bytes_of(problem.exchange.gathers or "C")
    share = (problem.gpus - 1) / problem.gpus
    moved = whole * share * (2 if collective == "all_reduce" else 1)
    us = NCCL_US[collective] + moved / NCCL_GB_S[collective] * 1e-3
    product = _expected(problem.own(problem.dtype), place)
    why = f"fireiron.matmul, and {collective} of torch.distributed"
    return Candidate(LIBRARY_NAME, product + us, {"product": product, "link": us}, moved, why)


def _steps(problem: NodeProduct) -> Iterator[tuple[str, Any, DType]]:
    """Yield the steps of a node, and the type of the result of the product of one GPU."""
    exchange = problem.exchange
    if exchange.gathers:
        yield "gathered", MatMul.to_gpus(exchange.divides).load(exchange.gathers, GL), problem.dtype
        yield "direct", MatMul.to_gpus(exchange.divides), problem.dtype
        return
    yield "sums", MatMul.to_gpus(exchange.divides), float32
    if problem.dtype != float32:
        yield "rounded sums", MatMul.to_gpus(exchange.divides, sums=problem.dtype), problem.dtype


def _moved(problem: NodeProduct, name: str, c_dtype: DType) -> tuple[float, float]:
    """Return the bytes that a GPU reads of other GPUs, and the bytes of local memory that the exchange accesses."""
    gpus, exchange = problem.gpus, problem.exchange
    if exchange.gathers:
        whole = problem.bytes_of(exchange.gathers)
        other = problem.own(problem.dtype).size("n" if exchange.gathers == "A" else "m").factor
        reads = -(-other // WIDTH) if name == "direct" else 1
        return whole * (gpus - 1) / gpus * reads, 0.0 if name == "direct" else whole
    sums = problem.bytes_of("C") / problem.dtype.bytes * c_dtype.bytes
    part = sums / gpus if "C" in exchange.over else sums
    return part * (gpus - 1), part


def _expected(spec: Spec, place: Place) -> float:
    """Return the expected microseconds of a product of one GPU."""
    us = in_parts.expected(place.records.records, Question(spec, place.architecture, place.gpu))
    if us is not None:
        return us
    m, n, k = (size.factor for size in spec.sizes)
    return 2.0 * m * n * k / TERAFLOPS * 1e-6


__all__ = ["EXCHANGES", "TYPES", "Candidate", "Exchange", "NodeProduct", "candidates", "exchanging", "overlapping"]
