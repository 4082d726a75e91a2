"""Tune records for general sizes, types and storage orders on Hopper, compare with the better of cuBLAS and Triton, and judge the choice
between records.

    python perf/tune_grid.py FOLDER [--shapes targets|grid|lost|odd|thin|held-out|stacks|across|in-parts|drawn-across|drawn-powers[:SEED]|MxNxK,BxMxNxK,...] [--dtypes float16,bfloat16,tf32,float8_e4m3]
                             [--orders NN,NT,TN,TT] [--candidates 6] [--triton 2] [--rounds 4] [--seconds 300] [--chosen] [--clusters]
    python perf/tune_grid.py FOLDER --judge [TIMES.json ...]

For each problem, one run measures the tiles that are expected to be the fastest (`fireiron.tune.records.tiles`), the choice of
`fireiron.matmul` from the present records, cuBLAS (through PyTorch) and Triton (TMA and `wgmma`, triton_wgmma.py). It measures all of them
once, then the best of each group alternately, in bursts, on operand sets that rotate through L2. Each result is first compared with float64
(some rows) and with cuBLAS (all elements). Other processes compile meanwhile. `--chosen` measures only the choice of `fireiron.matmul`. The
script writes `times.json`, `table.txt` and `records.jsonl` (the best tile of each problem, and the next ones that are nearly as fast) into
the folder. Problems that remain at the time limit are reported.

`--judge` measures nothing. For each problem in files of times, it leaves out all records of the problem's sizes, lets the other records
choose a tile, and reports how much slower that tile is than the best measured one. Without files it reads those of
`perf/results/2026-11-22-h200-hopper`.
"""

import argparse
import concurrent.futures
import datetime
import functools
import importlib
import json
import math
import os
import time
from pathlib import Path
from random import Random

import attrs
from tabulate import tabulate

import fireiron
from fireiron import ColMajor, RowMajor
from fireiron._version import VERSION
from fireiron.errors import FireironError
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir.cluster import concurrent_blocks
from fireiron.language.library import default_strategy, defaults, find, work_of
from fireiron.language.waves import Work, estimated_us
from fireiron.strategies import hopper, hopper_batched
from fireiron.tune.record import Record, describe, strategy_hash
from fireiron.tune.records import Records
from fireiron.tune.records.choosing import Question
from fireiron.tune.records.tiles import Problem, candidates, corrections, expected_us, known, tile_of
from fireiron.values.machine import as_architecture, as_dtype

ARCHITECTURE = "sm_90a"
STRATEGIES = ("hopper", "hopper_small", "hopper_skinny")
RESULTS = {"float16": "float16", "bfloat16": "bfloat16", "tf32": "float32", "float8_e4m3": "bfloat16", "float8_e5m2": "bfloat16"}
"""The type of C for each type of A and B."""

ROTATED = 240e6
"""Bytes of all sets together."""

MOST_SETS = 700
KEPT = 1.05
"""A tile may be slower than the best one by this factor for its time to be recorded, too."""

TARGETS = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (1024, 1024, 1024), (512, 512, 512), (3072, 3072, 3072), (1536, 1536, 1536),
    (5376, 5376, 2048), (6144, 6144, 6144), (768, 768, 768), (256, 256, 256), (128, 128, 128), (1536, 1024, 2048), (4096, 4096, 16384), (16, 4096, 4096),
    (8192, 28672, 4096),
)  # fmt: skip

GRID = (
    (4096, 4096, 1024), (1024, 4096, 2048), (4096, 1024, 2048), (256, 4096, 2048), (64, 4096, 2048), (2048, 4096, 2048), (4096, 2048, 8192),
    (1024, 1024, 8192), (8192, 8192, 512), (256, 1024, 2048), (1024, 256, 2048), (8192, 8192, 2048), (2048, 2048, 512), (64, 8192, 8192), (256, 8192, 8192),
    (1024, 8192, 512), (8192, 1024, 512), (2048, 2048, 8192), (8192, 256, 2048), (8192, 2048, 2048), (4096, 4096, 512), (1024, 1024, 512), (8192, 64, 2048),
    (256, 256, 2048), (64, 1024, 2048), (3840, 3840, 2048), (2816, 2816, 2048), (1280, 1280, 2048), (640, 2048, 1024), (2304, 1536, 1024),
)  # fmt: skip
"""General sizes, the most informative first."""

THIN = ((4096, 4096, 4096), (2048, 2048, 2048), (1024, 1024, 1024), (8192, 8192, 2048), (512, 512, 512), (1024, 4096, 2048), (64, 4096, 4096), (1536, 1536, 1536),
        (3072, 3072, 3072), (4096, 1024, 2048), (8192, 8192, 8192), (256, 4096, 2048))  # fmt: skip

HELD_OUT = (
    (2560, 2560, 2560), (1000, 1000, 1000), (3584, 2304, 1152), (7168, 2048, 2048), (64, 11008, 4096), (2048, 11008, 4096), (4096, 4096, 768), (640, 640, 640),
    (128, 8192, 1024), (12288, 1024, 4096), (5000, 5000, 5000), (896, 896, 3072), (200, 5120, 1280), (1920, 1080, 640), (4608, 4608, 1536), (384, 384, 384),
)  # fmt: skip
"""Shapes for which nothing is tuned."""

STACKS = ((8, 512, 512, 512), (16, 1024, 1024, 1024), (12, 1000, 1000, 1000), (64, 256, 256, 256), (32, 384, 640, 512), (24, 2048, 2048, 128), (16, 2048, 2048, 2048),
          (96, 128, 128, 512))  # fmt: skip

LOST = ((64, 1024, 2048), (256, 256, 2048), (1024, 1024, 8192), (3840, 3840, 2048), (640, 2048, 1024), (1280, 1280, 2048), (256, 1024, 2048), (1024, 256, 2048),
        (64, 4096, 2048), (64, 4096, 4096), (1536, 1024, 2048))  # fmt: skip
"""Shapes of the grid where the candidates are slower than cuBLAS, or the choice slower than the candidates."""

ODD = ((1000, 1000, 1000), (1024, 1024, 1024), (992, 992, 992), (1008, 1008, 1008), (960, 960, 960), (1000, 1024, 1024), (1024, 1000, 1024), (1024, 1024, 1000),
       (1000, 1024, 1000))  # fmt: skip
"""Sizes that show the cost of rows that are not multiples of 128 bytes, and of tiles that extend past the edge."""

ACROSS = (
    (1000, 4000, 10000), (6000, 2000, 3000), (4000, 4000, 4000), (3000, 3000, 3000), (2000, 2000, 2000), (1000, 1000, 1000), (1500, 1504,
    1496), (5000, 5000, 5000), (100, 3000, 1000), (4096, 4104, 4096), (4096, 4096, 4104), (2048, 8200, 1032), (2000, 6000, 1000), (10000,
    1000, 1000), (300, 4000, 4000), (500, 500, 5000), (700, 2504, 1304), (1000, 10000, 1000), (64, 5000, 5000), (128, 10000, 2000), (4096,
    4104, 4104), (8192, 2056, 2048), (2048, 2056, 8200), (12000, 3000, 1000), (3000, 12000, 2000), (1024, 1032, 4104), (768, 776, 1544),
    (512, 520, 520), (256, 264, 2056), (2400, 2408, 2424), (3600, 1816, 3608), (7000, 3000, 5000), (1800, 5400, 1800), (16, 5000, 3000),
    (32, 2000, 6000), (6000, 300, 6000), (400, 400, 400), (9000, 1000, 3000), (4400, 4408, 2200), (6000, 6000, 6000),
)  # fmt: skip
"""Sizes whose rows are not multiples of an L2 line, to which the estimate is fitted; `IN_PARTS` are the slowest of them."""

IN_PARTS = (
    (1024, 1032, 4104), (700, 2504, 1304), (300, 4000, 4000), (1000, 1000, 1000), (768, 776, 1544), (1800, 5400, 1800), (10000, 1000, 1000),
    (64, 5000, 5000), (100, 3000, 1000), (5000, 5000, 5000), (3600, 1816, 3608), (7000, 3000, 5000), (9000, 1000, 3000), (128, 10000, 2000),
    (1500, 1504, 1496), (512, 520, 520), (2400, 2408, 2424), (2048, 2056, 8200), (1000, 4000, 10000), (4096, 4104, 4104),
)  # fmt: skip


def drawn_across(count=40, seed=4711):
    """Return random sizes whose rows are multiples of 16 bytes, and whose rows of A or B are not multiples of an L2 line.

    One size in five has few rows of C.
    """
    random, shapes = Random(seed), []
    while len(shapes) < count:
        least = 4 if random.random() < 0.2 else 8.5
        M, N, K = int(2 ** random.uniform(least, 13.3)), *(int(2 ** random.uniform(8, 13.3)) // 8 * 8 for _ in range(2))
        if N % 64 or K % 64:
            shapes.append((M, N, K))
    return tuple(shapes)


def drawn_powers(count=60, seed=20261128):
    """Triples drawn from the sizes of the public list of CUDA-L2, with up to 2^40 multiplications and 1 GiB of float16."""
    random, sizes, shapes = Random(seed), (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384), []
    while len(shapes) < count:
        M, N, K = shape = tuple(random.choice(sizes) for _ in range(3))
        if shape not in shapes and M * N * K <= 2**40 and M * K + K * N + M * N <= 2**29:
            shapes.append(shape)
    return tuple(shapes)


SETS = {"lost": LOST, "odd": ODD, "targets": TARGETS, "grid": GRID, "thin": THIN, "held-out": HELD_OUT, "stacks": STACKS, "across": ACROSS, "in-parts": IN_PARTS,
        "drawn-across": drawn_across(), "drawn-powers": drawn_powers()}  # fmt: skip

DRAWN = {"drawn-across": drawn_across, "drawn-powers": drawn_powers}
"""Sets for which a seed may be given: `drawn-across:7`."""

MEASURED = ("grid", "targets", "types", "orders")
"""Files of times there."""

BEFORE = Path(__file__).parent / "results" / "2026-11-22-h200-hopper"


# ---------------------------------------------------------------------------------------------- problems and tiles


@attrs.frozen(slots=False)
class Case:
    """A GEMM: its sizes (after the batch size, if any), element type, and how A and B are stored, row-major (N) or column-major (T)."""

    shape: tuple
    dtype: str
    order: str

    @functools.cached_property
    def spec(self):
        """The spec."""
        stored = {name: RowMajor if letter == "N" else ColMajor for name, letter in zip("AB", self.order, strict=True)}
        options = {"dtype": as_dtype(self.dtype), "c_dtype": as_dtype(RESULTS[self.dtype]), **stored}
        *stack, M, N, K = self.shape
        return hopper_batched.spec(M, N, K, stack[0], **options) if stack else hopper.spec(M, N, K, **options)

    @property
    def legal(self):
        """Whether tensor cores read the operands as they are stored, and TMA accepts them: rows of 16 bytes."""
        M, N, K = self.shape[-3:]
        bytes = as_dtype(self.dtype).bytes
        rows = (M if self.order[0] == "T" else K, K if self.order[1] == "T" else N)
        return (bytes == 2 or self.order == "NT") and all(row * bytes % 16 == 0 for row in rows)

    def __str__(self):
        return f"{'x'.join(map(str, self.shape))} {self.dtype} {self.order}"


TILES = (
    (128, 256, 64, 256), (256, 128, 128, 128), (192, 192, 64, 192), (256, 192, 128, 192), (128, 192, 64, 192), (192, 128, 64, 128), (128, 128, 64, 128),
    (192, 96, 64, 96), (96, 192, 96, 64), (96, 128, 96, 64), (128, 96, 64, 96), (64, 256, 64, 128), (64, 128, 64, 64), (128, 64, 64, 64), (64, 192, 64, 96),
    (128, 160, 64, 160), (128, 224, 64, 224), (64, 96, 64, 96), (96, 64, 96, 64), (64, 64, 64, 64), (32, 64, 32, 64), (64, 32, 64, 32), (16, 64, 16, 64),
    (64, 16, 64, 16), (32, 128, 32, 64), (32, 256, 32, 64), (16, 128, 16, 64),
)  # fmt: skip
"""Tiles of hopper: of a block, and of a warpgroup."""

ROOM = 227 * 1024 - 2048
"""Bytes of shared memory for stages and chunks of C."""


def values_of(tile, case, group_m=4, blocks=None):
    """Return the values of hopper for a tile, which may include a cluster at its end: as many stages as shared memory has room for."""
    bm, bn, wm, wn, *cluster = tile
    chunk = next(size for size in (64, 32, 16) if wn % size == 0)
    rows = next(size for size in (64, 32, 16) if wm % size == 0)
    bytes = case.spec.C.dtype.bytes
    chunk = min(chunk, 128 // bytes) if wm % 64 == 0 else chunk
    staged = bm // wm * (bn // wn) * rows * chunk * bytes
    step = 256 if (bm + bn) <= 96 else 128
    stages = max(one for one in (2, 3, 4, 5, 6, 7, 8) if one == 2 or one * (bm + bn) * step + staged <= ROOM)
    tiles, resident = work_of(case.spec).tiles(bm, bn, tuple(cluster) or (1, 1)), concurrent_blocks(math.prod(cluster))
    first = {name: tunable.values[0] for name, tunable in hopper.strategy.tunables().items()}
    own = {
        "bm": bm,
        "bn": bn,
        "wm": wm,
        "wn": wn,
        "bk": step // case.spec.A.dtype.bytes,
        "stages": stages,
        "epi_m": rows,
        "epi_n": chunk,
        "group_m": group_m,
    }
    own |= dict(zip(("cluster_m", "cluster_n"), cluster, strict=False))
    producer = {"producer_threads": 128} if wm * wn >= 160 * 128 else {}  # tiles with many accumulators need the producer's registers
    return {**first, **own, **producer, "num_blocks": blocks or (132 if tiles > resident == 132 else 65536)}


def staged_at_once(values, case):
    """Return values that stage a warpgroup's whole tile of C at once, with as many stages as fit.

    Return None for less than three stages, or if the values already do this.
    """
    bytes, result = case.spec.A.dtype.bytes, case.spec.C.dtype.bytes
    bm, bn, wm, wn, bk = (values.get(name, 0) for name in ("bm", "bn", "wm", "wn", "bk"))
    if result > 2 or wm % 64 or (values.get("epi_n", wn) == wn and values.get("epi_m") == wm):
        return None
    stages = (ROOM - bm * bn * result) // ((bm + bn) * bk * bytes)
    fits = [one for one in (3, 4, 5, 6, 7, 8) if one <= stages]
    return {**values, "epi_m": 64, "epi_n": wn, "stages": fits[-1]} if fits and wn in CHUNKS and wm == 64 else None


CHUNKS = hopper.strategy.tunables()["epi_n"].values

DEEP = ((16, 64, 128, 8), (16, 64, 128, 10), (64, 16, 128, 10), (32, 64, 128, 8), (64, 32, 128, 8), (16, 64, 256, 4), (32, 64, 256, 4))
"""Tiles of hopper_small whose stages hold a long part of k, so that a block waits for memory less often."""

IN_CLUSTERS = (
    (128, 64, 64, 64, 1, 2),
    (64, 128, 64, 64, 2, 1),
    (128, 64, 64, 64, 2, 1),
    (64, 128, 64, 64, 1, 2),
    (128, 64, 64, 64, 1, 4),
    (128, 128, 64, 128, 1, 2),
)
"""The same in clusters, along M and N."""

CANDIDATES = {
    (64, 1024, 2048): DEEP, (256, 256, 2048): DEEP, (256, 1024, 2048): DEEP[3:], (1024, 256, 2048): DEEP[3:], (64, 4096, 2048): DEEP[3:], (64, 4096, 4096): DEEP[3:],
    (1024, 1024, 8192): ((64, 128, 64, 128), (64, 160, 64, 160)), (640, 2048, 1024): ((64, 160, 64, 160), (192, 64, 64, 64), (64, 192, 64, 192)),
    (1280, 1280, 2048): ((64, 224, 64, 224), (64, 256, 64, 256)), (1536, 1024, 2048): ((192, 64, 64, 64), (64, 224, 64, 224)),
    (3840, 3840, 2048): ((256, 160, 128, 160), (192, 160, 64, 160)),
    **dict.fromkeys(ODD, ((64, 128, 64, 64), (128, 64, 64, 64), *IN_CLUSTERS)),
}  # fmt: skip
"""Candidates chosen by hand, in addition to those that are expected to be fast: tiles of hopper as in `TILES`, or some of `DEEP`."""


def by_hand(case):
    """Return the candidates by hand of a problem."""
    candidates_by_hand = []
    for tile in CANDIDATES.get(case.shape, ()):
        if tile in DEEP:
            bm, bn, step, stages = tile
            bytes, result = case.spec.A.dtype.bytes, case.spec.C.dtype.bytes
            own = {
                "bm": bm,
                "bn": bn,
                "wm": bm,
                "wn": bn,
                "bk": 2 * step // bytes,
                "stages": stages,
                "epi_m": bm,
                "epi_n": bn if bm < 64 else min(bn, 128 // result),
            }
            candidates_by_hand.append(("hopper_small", own))
        else:
            candidates_by_hand.append(("hopper", values_of(tile, case)))
    return candidates_by_hand


def pool(case, records, most):
    """The candidates, strategies with values: those that are expected to be the fastest, and other raster orders of the best of them."""
    spec = case.spec
    name = "hopper_batched" if len(case.shape) == 4 else "hopper"
    problem = Problem.of(describe(spec))
    corrected = corrections((problem.apart(one.problem), one) for one in known(records, [name, *STRATEGIES], 90))
    choices = [(one.name, dict(one.values)) for one in candidates(records, Question(spec, as_architecture(ARCHITECTURE)))]
    choices += [(name, values_of(tile, case)) for tile in TILES]
    best = {}
    for choice in sorted(choices, key=lambda one: expected_us(problem, one[1], corrected)):
        best.setdefault(tile_of(choice[1]), choice)
    chosen = list(best.values())[:most]
    others = [(name, dict(one, **walk)) for name, one in chosen[:1] for walk in ({"group_m": 8}, {"group_m": 16}) if "group_m" in one]
    if name == "hopper" and work_of(spec).tiles(chosen[0][1]["bm"], chosen[0][1]["bn"]) <= 132:
        others = [(name, dict(one, group_m=2)) for name, one in chosen[:1] if "group_m" in one]
    others += [(name, dict(one, stagger=1)) for name, one in chosen if name == "hopper_skinny"]
    others += [(name, staged_at_once(one, case)) for name, one in chosen[:2] if staged_at_once(one, case)]
    return [full(*one) for one in unique([*chosen, *others, *by_hand(case)])]


EVERY_CLUSTER = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4))


def in_every_cluster(case, most):
    """Return the tiles of hopper that are expected to be the fastest without clusters, each with all clusters that the tiles of C fill."""
    M, N, K = case.shape
    tiles = sorted(TILES, key=lambda one: estimated_us(Work(M, N, K), values_of(one, case)))[:most]
    tiles_in_clusters = [
        (tile, cluster) for tile in tiles for cluster in EVERY_CLUSTER if cluster[0] <= -(-M // tile[0]) and cluster[1] <= -(-N // tile[1])
    ]
    return unique([full("hopper", values_of((*one, *cluster), case)) for one, cluster in tiles_in_clusters])


def unique(candidates):
    """Return each candidate once."""
    return [one for number, one in enumerate(candidates) if one not in candidates[:number]]


def full(name, values):
    """Return a candidate with values for all tunables; those that have only legal ones."""
    tunables = find(name).strategy.tunables()
    return name, {tunable: values.get(tunable, one.values[0]) for tunable, one in tunables.items()}


def title_of(name, values):
    """Return the title of a candidate."""
    walk = {0: "", 1: "c", 2: "h"}[values.get("raster", 0)]
    stays = "" if values.get("num_blocks", 65536) == 65536 else " stay"
    is_whole = (values["bm"], values["bn"]) == (values.get("wm"), values.get("wn"))
    groups = " of one" if name == "hopper" and is_whole else ""  # warpgroup
    cluster = values.get("cluster_m", 1), values.get("cluster_n", 1)
    groups += " in {}x{}".format(*cluster) if cluster != (1, 1) else ""
    whole_c = " C at once" if values.get("epi_n", 0) > 64 else ""
    tile = f"{values['bm']}x{values['bn']}x{values['bk']}{groups}"
    staggered = " staggered" if values.get("stagger", 0) else ""
    walked = f"b{values.get('group_m', 0)}{walk}{stays}{whole_c}{staggered}"
    return f"{name.removeprefix('hopper').strip('_') or 'hopper'} {tile} s{values['stages']} {walked}"


def program_of(records, spec):
    """Return the program that `fireiron.matmul` takes for aligned arrays."""
    choice = records.find(spec, ARCHITECTURE, neighbors=False)
    if choice is None or choice.record.architecture != ARCHITECTURE:
        choice = records.by_tiles(spec, ARCHITECTURE, below=choice.record.us if choice else math.inf) or choice
    if choice is not None:
        return choice.program
    name, own = defaults(spec, ARCHITECTURE)[0]
    return default_strategy(name, own, spec)(spec).program(ARCHITECTURE)


# ---------------------------------------------------------------------------------------------- kernels


def kernel_of(case, name, values):
    """Return the kernel of a candidate."""
    return default_strategy(name, values, case.spec)(case.spec).compile(ARCHITECTURE)


def compiled(case, candidate):
    """Compile in a separate process: the kernel, whose machine code is then in the cache on disk, or why it is not legal."""
    try:
        return kernel_of(case, *candidate)
    except FireironError as error:
        return str(error).splitlines()[0]


def jobs_of(case, options, records):
    """Return the candidates of a problem."""
    if options.chosen:
        return []
    return in_every_cluster(case, options.candidates) if options.clusters else pool(case, records, options.candidates)


# ---------------------------------------------------------------------------------------------- measuring


def sets_of(torch, case):
    """Operands, as many sets as fill the L2 cache several times over: views of few large arrays."""
    *stack, M, N, K = case.shape
    number = stack[0] if stack else 1
    kind = getattr(torch, {"tf32": "float32", "float8_e4m3": "float8_e4m3fn"}.get(case.dtype, case.dtype))
    result = getattr(torch, RESULTS[case.dtype])
    sizes = (number * M * K, number * K * N, number * M * N)
    each = (sizes[0] + sizes[1]) * kind.itemsize + sizes[2] * result.itemsize
    count = min(MOST_SETS, max(2, math.ceil(ROTATED / each)))
    steps = [math.ceil(size / 128) * 128 for size in sizes]
    a, b = (filled(torch, count * step, kind) for step in steps[:2])
    c = torch.empty(count * steps[2], device="cuda", dtype=result)

    def view(flat, at, step, rows, columns, letter):
        part = flat[at * step : at * step + number * rows * columns]
        part = part.view(number, rows, columns) if letter == "N" else part.view(number, columns, rows).transpose(1, 2)
        return part if stack else part[0]

    return [
        (view(a, at, steps[0], M, K, case.order[0]), view(b, at, steps[1], K, N, case.order[1]), view(c, at, steps[2], M, N, "N"))
        for at in range(count)
    ]  # fmt: skip


def filled(torch, count, kind, piece=1 << 27):
    """Return standard normal elements, converted some at a time."""
    elements = torch.empty(count, device="cuda", dtype=kind)
    for start in range(0, count, piece):
        size = min(piece, count - start)
        elements[start : start + size] = torch.randn(size, device="cuda", dtype=torch.float32 if kind.itemsize != 2 else kind).to(kind)
    return elements


def library(torch, case, operands):
    """Return PyTorch's matrix product of one operand set."""
    a, b, c = operands
    if not case.dtype.startswith("float8"):
        return functools.partial(torch.matmul, a, b, out=c)
    scale = torch.ones((), device="cuda")
    return functools.partial(torch._scaled_mm, a, b, scale_a=scale, scale_b=scale, out_dtype=c.dtype, use_fast_accum=True, out=c)


class Checked:
    """Results on a problem's first operand set: some rows are compared with float64, all elements with cuBLAS."""

    def __init__(self, torch, case, operands, call):
        self.torch, self.case, self.one = torch, case, operands
        a, b = (part if part.dim() == 2 else part[-1] for part in operands[:2])
        self.rows = 128
        self.right = a[: self.rows].float().double() @ b.float().double()
        call()
        torch.cuda.synchronize()
        self.whole = operands[2].clone()

    def error(self, call):
        """Return the relative error of a launch, infinite if the result differs from that of cuBLAS."""
        c = self.one[2]
        c.fill_(float("nan"))
        call()
        self.torch.cuda.synchronize()
        some = (c if c.dim() == 2 else c[-1])[: self.rows].double()
        apart = float((c.float() - self.whole.float()).norm() / self.whole.float().norm())
        error = float((some - self.right).norm() / self.right.norm())
        bound = 0.02 if self.case.dtype.startswith(("float8", "bf")) else 0.004
        return error if error < bound and apart < 2 * bound else math.inf


def measured(torch, case, ready, options):
    """Return times by name, candidates with kernels and errors by name, and the choice of `fireiron.matmul` with its reason."""
    from fireiron.measure.timing import measure

    sets = sets_of(torch, case)
    calls = {"cuBLAS": [library(torch, case, one) for one in sets]}
    checked = Checked(torch, case, sets[0], calls["cuBLAS"][0])
    ours, why = {}, why_of(case, sets[0])
    for name, candidate, kernel in [("matmul", None, None), *((title_of(*one), one, kernel) for one, kernel in ready)]:
        try:
            launches = [kernel.prepare(a, b, out=c) if kernel else multiplied(case, a, b, c) for a, b, c in sets]
            error = checked.error(launches[0])
        except FireironError as problem:
            print(f"left out: {case} {name}: {str(problem).splitlines()[0]}", flush=True)
            continue
        if math.isinf(error):
            print(f"WRONG: {case} {name}", flush=True)
            continue
        calls[name], ours[name] = launches, (candidate, kernel, error)
    for config in triton_configs(case, options.triton):
        try:
            launches = triton_calls(sets, config)
            if not math.isinf(checked.error(launches[0])):
                calls[f"Triton {config}"] = launches
        except Exception as problem:  # Triton's compiler raises many kinds
            print(f"left out: {case} Triton {config}: {type(problem).__name__} {str(problem)[:100]}", flush=True)
    calls |= lt_calls(sets, checked, options.lt)
    first = {name: one.us for name, one in measure(calls, rounds=1, pause=0.02).items()}
    best = sorted((name for name in ours if name != "matmul"), key=first.get)[:3]
    peers = [one for kind in ("Triton", LT) for one in sorted((name for name in calls if name.startswith(kind)), key=first.get)[:1]]
    finals = {name: calls[name] for name in ("cuBLAS", "matmul", *best, *peers) if name in calls}
    times = measure(finals, rounds=options.rounds, pause=options.pause)
    for name in [name for name in times if name.startswith(LT)]:
        times["cuBLAS"] = min(times["cuBLAS"], times.pop(name), key=lambda one: one.us)
    return times, first, ours, why


LT = "cuBLASLt"


def lt_calls(sets, checked, ranks):
    """By name the first algorithms of cuBLASLt's heuristic for row-major float16 operands."""
    from cublas_lt import cublas_lt

    algorithms = {}
    for rank in range(ranks):
        try:
            launches = [cublas_lt().plan(*one, rank=rank) for one in sets]
            if not math.isinf(checked.error(launches[0])):
                algorithms[f"{LT} {rank}"] = launches
        except RuntimeError:
            break
    return algorithms


def multiplied(case, a, b, c):
    """`fireiron.matmul` on an operand set."""
    return functools.partial(fireiron.matmul, a, b, out=c, ab_dtype="tf32" if case.dtype == "tf32" else None)


def why_of(case, operands):
    """Return the reason for the choice of `fireiron.matmul` for a set of arrays."""
    try:
        return fireiron.matmul.choice(*operands[:2], out=operands[2], ab_dtype="tf32" if case.dtype == "tf32" else None).why
    except FireironError as error:
        return str(error).splitlines()[0]


def triton_configs(case, most):
    if not most or len(case.shape) == 4:
        return []
    from triton_wgmma import configurations

    return configurations(work_of(case.spec), most)


def triton_calls(sets, config):
    from triton_wgmma import launcher

    return [launcher(a, b, c, config) for a, b, c in sets]


def record_of(case, name, values, timing, kernel, error, library_us, where, count):
    """Return the record of a candidate."""
    resources, flops = kernel.resources, 2.0 * math.prod(case.shape)
    return Record(
        strategy=name, strategy_hash=strategy_hash(find(name).strategy), values=values, spec=describe(case.spec), architecture=ARCHITECTURE,
        gpu=where["gpu"], us=timing.us, quartiles=timing.quartiles, tflops=flops / timing.us / 1e6, regime=timing.regime, l2=timing.l2, error=error,
        registers=resources.registers, shared_bytes=resources.shared_bytes, spills=resources.spill_stores, library_us=library_us,
        toolchain=where["toolchain"], driver=where["driver"], clocks=timing.clocks, fireiron=VERSION, date=datetime.date.today().isoformat(),
        source=f"{count} candidates of perf/tune_grid.py",
    )  # fmt: skip


HEADS = ("problem", "cuBLAS", "Triton", "ours", "TFLOP/s", "of cuBLAS", "of better", "matmul", "best tile")


def row_of(case, times):
    """Return a row of the table: times in microseconds, and ratios.

    The ratios are those of our best time to cuBLAS and to the better of both peers, and of the choice of matmul to the better.
    """
    us = {name: one.us for name, one in times.items()}
    triton = min((us[name] for name in us if name.startswith("Triton")), default=None)
    ours = {name: one for name, one in us.items() if name != "cuBLAS" and not name.startswith("Triton")}
    best = min(ours, key=ours.get)
    better = min(us["cuBLAS"], triton or math.inf)
    return [
        str(case), us["cuBLAS"], triton, ours[best], 2.0 * math.prod(case.shape) / ours[best] / 1e6, us["cuBLAS"] / ours[best], better / ours[best],
        better / ours["matmul"] if "matmul" in ours else None, best,
    ]  # fmt: skip


def means(rows):
    """Return geometric means of the ratios, by type and order."""
    lines = []
    for group in dict.fromkeys(row[0].partition(" ")[2] for row in rows):
        group_rows = [row for row in rows if row[0].partition(" ")[2] == group]
        parts = [f"{name} {geometric_mean([row[at] for row in group_rows if row[at]]):.3f}" for at, name in ((5, "of cuBLAS"), (6, "of the better"), (7, "matmul's choice"))
                 if any(row[at] for row in group_rows)]  # fmt: skip
        lines.append(f"{group}: {len(group_rows)} problems, geometric means: {', '.join(parts)}")
    return lines


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def run(options):
    """Measure, and write the results after each problem."""
    start = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    records = Records.shipped()
    cases = [Case(shape, dtype, order) for shape in options.shapes for dtype in options.dtypes for order in options.orders]
    cases = [case for case in cases if case.legal]
    pool_of_workers = concurrent.futures.ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
    wanted = {case: jobs_of(case, options, records) for case in cases}
    tasks = {case: [(one, pool_of_workers.submit(compiled, case, one)) for one in wanted[case]] for case in cases}
    if options.chosen:
        tasks = {case: [(None, pool_of_workers.submit(warmed, case))] for case in cases}
    torch, where = prepared()
    print(f"{len(cases)} problems, {sum(map(len, tasks.values()))} kernels; ready after {time.monotonic() - start:.0f} s", flush=True)
    rows, kept = [], []
    for number, case in enumerate(cases):
        ready = []
        for candidate, job in tasks[case]:
            kernel = job.result()
            if isinstance(kernel, str):
                print(f"left out: {case} {title_of(*candidate) if candidate else ''}: {kernel}", flush=True)
            elif candidate is not None:
                ready.append((candidate, kernel))
        if time.monotonic() - start > options.seconds:
            print(f"the time is over: {len(cases) - number} of {len(cases)} problems are left out, from {case} on", flush=True)
            break
        try:
            times, first, ours, why = measured(torch, case, ready, options)
        except (FireironError, RuntimeError) as error:
            print(f"left out: {case}: {type(error).__name__} {str(error).splitlines()[0][:200]}", flush=True)
            continue
        if len(times) < 2:
            continue
        rows.append(row_of(case, times))
        print(tabulate([rows[-1]], floatfmt=".3f", tablefmt="plain"), flush=True)
        kept.append({
            "shape": case.shape, "dtype": case.dtype, "order": case.order, "why": why, "times": {name: [one.us, *one.quartiles] for name, one in times.items()},
            "first": first, "candidates": {name: one[0] for name, one in ours.items() if one[0]},
        })  # fmt: skip
        keep(options.folder, case, times, ours, where, len(ours))
        write(options.folder, rows, kept, where, options)
        torch.cuda.empty_cache()
    pool_of_workers.shutdown(wait=False, cancel_futures=True)
    print(write(options.folder, rows, kept, where, options))
    print(f"{time.monotonic() - start:.0f} s")


def warmed(case):
    """Compile the choice of `fireiron.matmul` for the cache on disk."""
    try:
        return CompiledKernel(program_of(Records.shipped(), case.spec)).compiled.seconds
    except FireironError as error:
        return str(error).splitlines()[0]


def prepared():
    """PyTorch with a context, and the description of the environment for the records."""
    import torch

    from fireiron.gpu import launch, toolchain
    from fireiron.measure.timing import environment

    torch.zeros(1, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    chain = toolchain.compilation("", ARCHITECTURE, newest=launch.driver_version()).chain
    return torch, environment() | {"toolchain": str(chain)}


def keep(folder, case, times, ours, where, count):
    """Append the records: the best one, and others that are nearly as fast and have another tile."""
    fastest = sorted((one for one in ours if one in times and ours[one][0]), key=lambda one: times[one].us)
    tiles = set()
    for name in fastest:
        (strategy, values), kernel, error = ours[name]
        if tile_of(values) not in tiles and times[name].us <= KEPT * times[fastest[0]].us:
            tiles.add(tile_of(values))
            record = record_of(case, strategy, values, times[name], kernel, error, times["cuBLAS"].us, where, count)
            Records.append_to(folder / "records.jsonl", record)


def write(folder, rows, kept, where, options):
    """Return the table and the times so far; the table's text."""
    text = "\n".join([tabulate(rows, HEADS, floatfmt=".3f"), "", *means(rows), ""]) if rows else "Nothing was measured.\n"
    (folder / "table.txt").write_text(text)
    (folder / "times.json").write_text(json.dumps({"environment": where, "rounds": options.rounds, "measured": kept}, indent=1) + "\n")
    return text


# ---------------------------------------------------------------------------------------------- judge the choice by measured times


@attrs.frozen
class Measured:
    """A candidate of a problem with its time."""

    group: tuple
    problem: Problem
    values: dict
    us: float
    words: str

    @property
    def known(self):
        """The same as a record."""
        return _Known(self.problem, math.log(self.us / estimated_us(self.problem.work, self.values)), tile_of(self.values))


@attrs.frozen
class _Known:
    problem: Problem
    off: float
    tile: tuple


def rows_of(paths):
    """Return all candidates in files of times, by default those of the results and of an earlier sweep by tune_hopper.py.

    The times of one run form a group.
    """
    rows = [] if paths else earlier()
    for path in paths or [BEFORE / f"{name}.json" for name in MEASURED]:
        for entry in json.loads(Path(path).read_text())["measured"]:
            case = Case(tuple(entry["shape"]), entry["dtype"], entry["order"])
            for name, (_, values) in entry["candidates"].items():
                us = entry["times"][name][0] if name in entry["times"] else entry["first"][name]
                rows.append(
                    Measured((case.shape, case.dtype, case.order, Path(path).stem), Problem.of(describe(case.spec)), values, us, name)
                )
    return rows


def earlier():
    """Return the candidates of tune_hopper.py's sweep."""
    script = importlib.import_module("tune_hopper")
    rows = []
    for entry in json.loads((BEFORE / "hopper.json").read_text())["measured"]:
        case = Case(tuple(entry["shape"]), "float16", entry["order"])
        for name, (_, values) in script.candidates_of(case.shape, case.order).items():
            if name in entry["times"] and name != "default":  # the library's choice at that time
                rows.append(
                    Measured(
                        (case.shape, case.dtype, case.order, "hopper"),
                        Problem.of(describe(case.spec)),
                        values,
                        entry["times"][name][0],
                        name,
                    )
                )
    return rows


def judge(options):
    """How much slower the tile is that records of other sizes choose than the best measured tile."""
    rows = rows_of(options.files)
    groups = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    bests = [min(group, key=lambda row: row.us) for group in groups.values()]
    table, losses = [], []
    for name, group in groups.items():
        if len(group) < 2:
            continue
        others = [one for one in (bests if not options.all else rows) if one.group[0] != name[0]]
        corrected = corrections((group[0].problem.apart(one.problem), one.known) for one in others)
        best = min(group, key=lambda row: row.us)
        chosen_us, words = least(group, functools.partial(expected_of, corrected))
        bare, _ = least(group, functools.partial(expected_of, {}))
        losses.append((chosen_us / best.us, bare / best.us, max(row.us for row in group) / best.us))
        table.append((" ".join(map(str, name)), len(group), best.us, chosen_us / best.us, bare / best.us, best.words, words))
    table.sort(key=lambda row: -row[3])
    print(tabulate(table, ("problem", "tiles", "best us", "chosen / best", "by waves alone", "best", "chosen"), floatfmt=".3f"))
    for at, words in enumerate(("chosen by other sizes' records", "by waves alone", "the worst candidate")):
        print(
            f"{words}: geometric mean {geometric_mean([one[at] for one in losses]):.4f}, worst {max(one[at] for one in losses):.3f}, of {len(losses)} problems"
        )


def expected_of(corrected, row):
    """Return the expected time of a candidate by records of other sizes."""
    return expected_us(row.problem, row.values, corrected)


def least(group, expected):
    """Return the time of the candidate with the least expected time, the mean over equal expectations, and its title."""
    us = {number: expected(row) for number, row in enumerate(group)}
    first = [group[number] for number in us if us[number] <= min(us.values()) * (1 + 1e-9)]
    return geometric_mean([row.us for row in first]), " or ".join(row.words for row in first)


def shapes(text):
    """Return the name of a list of shapes, or shapes."""
    shapes_of_name = []
    for part in text.split(","):
        name, _, seed = part.partition(":")
        shapes_of_name += DRAWN[name](seed=int(seed)) if seed else SETS.get(part) or [tuple(int(size) for size in part.split("x"))]
    return unique(shapes_of_name)


def words(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="*", help="files of times, for --judge")
    parser.add_argument("--shapes", type=shapes, default=GRID)
    parser.add_argument("--dtypes", type=words, default=["float16"])
    parser.add_argument("--orders", type=words, default=["NN", "NT"])
    parser.add_argument("--candidates", type=int, default=6, help="tiles of each problem")
    parser.add_argument("--triton", type=int, default=2, help="configurations of Triton; 0 for none")
    parser.add_argument(
        "--lt", type=int, default=0, help="algorithms of cuBLASLt's heuristic, the fastest of which counts as cuBLAS if it is faster"
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.12, help="seconds before a burst")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clusters", action="store_true", help="candidates are tiles of hopper, each in all clusters")
    parser.add_argument("--chosen", action="store_true", help="only what fireiron.matmul takes")
    parser.add_argument("--judge", action="store_true", help="judge the choice by times that are there; nothing is measured")
    parser.add_argument("--all", action="store_true", help="with --judge: by all times of other sizes, not only by their best")
    options = parser.parse_intermixed_args()
    judge(options) if options.judge else run(options)


if __name__ == "__main__":
    main()
