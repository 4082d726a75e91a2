"""Kernels for fault injection, drawn from seeds by form: GEMM, definitions, rings, clusters, attention, programs of tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import placed
import scans
from fused_generator import draw as drawn_definition
from generator import Drawn as DrawnProduct
from ringed import by_threads, by_warps, float16_gemm, inputs_of, product
from test_random import problem

from fireiron import *
from fireiron import ir, tasks
from fireiron.errors import FireironError
from fireiron.measure.data import random_inputs as data
from fireiron.strategies import attention, hopper_attention

TARGET = "sm_90a"
MOST_REFUSED = 400


@attrs.frozen(eq=False)
class Case:
    """A final kernel, its inputs and sizes, the drawn features, and the program to paste."""

    form: str
    kernel: ir.Kernel
    arrays: Mapping[str, Any]
    symbols: Mapping[str, int]
    features: frozenset[str]
    paste: str


def case(form: str, seed: int) -> Case:
    """A kernel of a form; refused draws are repeated."""
    for attempt in range(MOST_REFUSED):
        chance = random.Random(f"{form}/{seed}/{attempt}")
        try:
            new_case = FORMS[form](chance)
        except FireironError:
            continue
        if new_case is not None:
            return new_case
    raise AssertionError(f"{MOST_REFUSED} draws of {form} refused, seed {seed}")


def _of_product(form: str, pipelined: bool) -> Callable[[random.Random], Case | None]:
    def draw(chance: random.Random) -> Case | None:
        product = DrawnProduct(chance.randrange(1 << 40))
        if pipelined and product.depth < 2:
            return None
        arrays, _ = problem(product, product.seed)
        paste = f"strategy = {product.strategy!r}\nkernel = strategy.program({product.target!r}).ir\nsymbols = {product.symbols}, sizes = {product.sizes}"
        return Case(form, product.strategy.program(product.target).ir, arrays, product.symbols, frozenset(product.features), paste)

    return draw


def _of_definition(chance: random.Random) -> Case:
    seed = chance.randrange(1 << 40)
    definition, _ = drawn_definition(seed)
    arrays = data(definition.bound, definition.symbols, np.random.default_rng(seed))
    paste = f"strategy = {definition.strategy!r}\nspec = {definition.bound!r}\nkernel = strategy(spec).program('sm_80').ir\nsymbols = {definition.symbols}"
    return Case("fused", definition.program.ir, arrays, definition.symbols, frozenset(definition.features), paste)


def _of_float16(form: str, strategy: Any, sizes: tuple[int, ...], features: Mapping[str, Any], orders: str = "NN") -> Case:
    """A GEMM of float16 matrices with given storage orders."""
    program = strategy(float16_gemm(*sizes, orders=orders)).program(TARGET)
    arrays, _ = inputs_of(program.spec)
    paste = f"strategy = {strategy!r}\nspec = {program.spec!r}\nkernel = strategy(spec).program({TARGET!r}).ir"
    return Case(form, program.ir, arrays, {}, frozenset(f"{name} {value}" for name, value in features.items()), paste)


def _options(chance: random.Random, stages: int) -> dict[str, Any]:
    return {
        "producer": chance.choice((32, 32, 128)),
        "mma_in_flight": chance.choice((None, *range(min(stages, 2)))),
        "tma": chance.random() < 0.7,
    }


def _sizes(chance: random.Random, tiles: tuple[int, ...], iterations: int) -> tuple[int, ...]:
    """Sizes with enough steps of k that the ring wraps around; tiles may extend past the edge."""
    bm, bn, bk = tiles
    return bm * chance.randint(1, 3) - chance.choice((0, 8)), bn * chance.randint(1, 2), bk * iterations - chance.choice((0, 8))


def _of_ring(chance: random.Random) -> Case:
    wm, wn = chance.choice(((64, 64), (64, 32), (64, 16), (16, 64)))
    warpgroups = chance.choice(((1, 1), (2, 1), (1, 2)))
    tiles = wm * warpgroups[0], wn * warpgroups[1], chance.choice((32, 64))
    stages = chance.randint(1, 3)
    options = {**_options(chance, stages), "chunk": min(wn, 32), "group_m": chance.choice((0, 2)), "blocks": chance.choice((0, 0, 2, 3))}
    sizes = _sizes(chance, tiles, 2 * stages + chance.randint(0, 2))
    features = {**options, "stages": stages, "warpgroups": warpgroups}
    return _of_float16("ring", product(tiles, (wm, wn), stages, **options), sizes, features, chance.choice(("NN", "NT", "TN", "TT")))


def _of_cluster(chance: random.Random) -> Case:
    cluster = chance.choice(((2, 1), (1, 2), (2, 2)))
    stages, tiles = chance.choice((2, 3)), (64, 64, 64)
    options = {"cluster": cluster, "blocks": chance.choice((0, 4)), "group_m": chance.choice((0, 2)), "tma": chance.random() < 0.7}
    sizes = 64 * 2 * chance.randint(1, 2), 64 * 2, 64 * (2 * stages + 1)
    return _of_float16("cluster", product(tiles, (64, 64), stages, **options), sizes, {**options, "stages": stages})


def _of_pingpong(chance: random.Random) -> Case:
    stages = chance.choice((2, 3))
    wm = chance.choice((64, 64, 16))
    options = {**_options(chance, stages), "blocks": chance.choice((1, 2))}
    sizes = wm * chance.choice((6, 8, 9)), 64, 64 * chance.randint(2, 4)
    strategy = product((wm, 64, 64), (wm, 64), stages, pingpong=2, **options)
    return _of_float16("turns", strategy, sizes, {**options, "stages": stages})


def _of_tiles_as_blocks_become_free(chance: random.Random) -> Case:
    stages = chance.choice((2, 3))
    options = {**_options(chance, stages), "blocks": chance.choice((2, 3))}
    sizes = 64 * chance.randint(4, 5) - chance.choice((0, 8)), 128, 64 * chance.randint(1, 3)
    return _of_float16("dynamic", product((64, 64, 64), (64, 64), stages, dynamic=True, **options), sizes, {**options, "stages": stages})


COPY, STORED = Move.done(), Move.tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
TWO = {"u": "u[m,n] += sum(k, A[m,k] * B[k,n])", "v": "v[m,n] += sum(k, C[m,k] * E[k,n])", "low": "u[m,n] = max(u[m,n], -9999)", "high": "v[m,n] = min(v[m,n], 9999)"}  # fmt: skip


def _of_two_products(chance: random.Random) -> Case:
    """Two MMAs per step, whose loads have separate rings or share the stages of one."""
    order, shared = chance.choice(("u v", "u low v", "u v low", "u v low high")), chance.random() < 0.5
    stages, blocks = chance.choice((2, 3, 4) if shared else (2, 3)), chance.choice((0, 2))
    definition = Fused(
        name="two_products",
        dims="m n k",
        loop="k",
        operands={"A": "m k", "B": "k n", "C": "m k", "E": "k n", "D": "m n"},
        init={"zu": "u[m,n] = 0", "zv": "v[m,n] = 0"},
        body={name: TWO[name] for name in order.split()},
        final={"add": "u[m,n] = u[m,n] + v[m,n]", "store": "D[m,n] = u[m,n]"},
    )
    chain = definition.tile(m=64, n=64).to(Block)
    chain = (chain.persistent(blocks) if blocks else chain).split(k=32).pipeline(stages).warp_specialize()
    for name in "ABCE":
        chain = chain.load(name, SH, COPY)
        chain = chain.share_stages({"C": "A", "E": "B"}[name]) if shared and name in "CE" else chain
    chain = chain.tile(m=64).to(Warpgroup).step("u", MatMul.split(16).unroll().done())
    bound = chain.step("v", MatMul.split(16).unroll().done()).step("store", STORED).done()(
        definition(m=64 * chance.choice((1, 3)), n=64, k=32 * chance.randint(4, 6), A=RowMajor, B=RowMajor, C=RowMajor, E=RowMajor, D=RowMajor, dtype=float16)
    )  # fmt: skip
    return _of_bound("share", bound, TARGET, {"order": order, "shared": shared, "stages": stages, "blocks": blocks}, chance)


def _of_bound(
    form: str, bound: Any, target: str, features: Mapping[str, Any], chance: random.Random, arrays: Mapping[str, Any] | None = None
) -> Case:
    program = bound.program(target)
    inputs = data(program.spec, {}, np.random.default_rng(chance.randrange(1 << 40))) if arrays is None else arrays
    words = frozenset(f"{name} {value}" for name, value in features.items())
    return Case(form, program.ir, inputs, {}, words, f"bound = {bound!r}\nkernel = bound.program({target!r}).ir")


def _of_attention(chance: random.Random) -> Case:
    """Attention on Hopper, in blocks of keys, with its values deferred by one iteration or not."""
    delayed = chance.random() < 0.5
    options = {"causal": chance.random() < 0.3, "lse": chance.random() < 0.3, **({"rescale_threshold": 8} if chance.random() < 0.3 else {})}
    values = {"bm": 64, "bn": chance.choice((16, 32)), "epi_n": 16, "stages": chance.choice((1, 2, 3))}
    definition = attention.definition(**options)
    persistent = chance.random() < 0.4
    forms = {"persistent": True, "dynamic": chance.random() < 0.5} if persistent else {"overlap": delayed}
    strategy = hopper_attention.by_rows(definition, num_blocks=chance.choice((2, 3)), **forms).with_(**values)
    m = 64 * chance.randint(1, 2) - chance.choice((0, 8))
    n = m if options["causal"] else values["bn"] * (2 * values["stages"] + chance.randint(0, 2)) - chance.choice((0, 4))
    spec = attention.spec(m, n, 16, fused=definition, heads=chance.choice((2, 4)))
    return _of_bound("attention", strategy(spec), TARGET, {**options, **values, **forms}, chance)


def _of_ordered_mma(chance: random.Random) -> Case:
    """Attention whose warpgroups issue their MMAs in order."""
    options = {"rescale_threshold": 8, "causal": chance.random() < 0.3}
    definition = attention.definition(**options)
    delayed = chance.random() < 0.6
    values = {"bm": 128, "bn": chance.choice((16, 32)), "epi_n": 16, "stages": chance.choice((1, 2)) if not delayed else 2}
    strategy = hopper_attention.by_rows(definition, num_blocks=chance.choice((1, 3)), order_mma=True, overlap=delayed).with_(**values)
    n = values["bn"] * chance.randint(3, 5)
    spec = attention.spec(128 if not options["causal"] else n, n, 16, fused=definition, heads=chance.choice((2, 4)))
    return _of_bound("warpgroups", strategy(spec), TARGET, {**options, **values, "overlap": delayed}, chance)


def _of_tasks(form: str, hopper: bool) -> Callable[[random.Random], Case]:
    def draw(chance: random.Random) -> Case:
        from test_tasks_programs import CASES  # imported here since it takes half a second
        from test_tasks_random import MODULES

        name = chance.choice(list(MODULES))
        module, bands = MODULES[name], chance.choice((1, 2))
        features: dict[str, Any] = {"program": name, "bands": bands}
        if hopper:
            groups, persistent = chance.choice((1, 1, 2)), chance.choice((1, 2, 132))
            tile = 64 * groups, chance.choice((8, 16, 32)), chance.choice((16, 32))
            blocks_option = {"persistent": persistent} if name in ("gemm", "batched") else {"num_blocks": persistent}
            stages = chance.choice((2, 3))
            mapping = module.hopper(*tile, groups, stages, epi_n=chance.choice((8, 16)), group_m=bands, **blocks_option)
            features |= {"stages": stages, "groups": groups}
        else:
            rows, columns = chance.choice(((1, 1), (2, 1), (1, 2)))
            tile = rows * chance.choice((16, 32)), columns * chance.choice((8, 16)), chance.choice((16, 32))
            stages, ahead = chance.choice((0, 2, 3)), chance.choice((0, 2))
            mapping = module.ampere(*tile, rows, columns, stages, lookahead=ahead, group_m=bands)
            features |= {"stages": stages, "lookahead": ahead}
        m, n, k = tile
        sizes = (
            m * chance.choice((1, 2)) - chance.choice((0, 8)),
            n * chance.choice((1, 2)),
            k * chance.randint(4, 6) - chance.choice((0, 8)),
        )
        inputs = CASES[name].inputs(*(max(size, 8) for size in sizes))
        bound = tasks.strategy(module.program, mapping)(CASES[name].spec(*(max(size, 8) for size in sizes)))
        arrays = dict(zip(bound.spec.inputs, inputs, strict=True))
        return _of_bound(form, bound, TARGET if hopper else "sm_80", features, chance, arrays)

    return draw


def _of_placed(chance: random.Random) -> Case:
    """Temporaries in shared memory that MMAs of warpgroups read, in stages or not."""
    drawn_kernel = placed.drawn(chance, hopper=True)
    return _of_bound("placed", drawn_kernel.bound, drawn_kernel.target, drawn_kernel.features, chance)


def _of_readers(chance: random.Random) -> Case:
    """Warps or threads that read stages which TMA fills: they release a stage after a fence."""
    stages, threads = chance.choice((1, 2, 3)), chance.random() < 0.3
    options = {"stages": stages, "threads": threads, "producer": chance.choice((32, 128))}
    strategy = by_threads(stages) if threads else by_warps(stages, tma=True, producer=options["producer"])
    sizes = 64 * chance.randint(1, 2), 64, 64 * (stages + chance.randint(1, 2))
    return _of_float16("readers", strategy, sizes, options)


def _of_storing_warp(chance: random.Random) -> Case:
    """A warp that stores tiles from a circular buffer; persistent blocks or not."""
    stages, stored = chance.choice((2, 3)), chance.choice((1, 2, 3))
    options = {"blocks": chance.choice((0, 2)), "producer": 32}
    strategy = product((64, 64, 64), (64, 64), stages, **options).at(Split).refine(WarpSpecialize(32, store_stages=stored))
    sizes = 64 * chance.randint(2, 3) - chance.choice((0, 8)), 128, 64 * chance.randint(1, 3)
    return _of_float16("storing", strategy, sizes, {**options, "stages": stages, "store stages": stored})


def _of_bulk_additions(chance: random.Random) -> Case:
    """Tiles of partial sums that warps or warpgroups add to global memory in bulk."""
    from test_bulk_add import SIZES, by_bulk  # imported here since it takes a second
    from test_bulk_add import by_warps as bulk_by_warps

    form = chance.choice(("fragments", "pieces", "warps"))
    bound = bulk_by_warps() if form == "warps" else by_bulk(64 if form == "fragments" else 32)
    generator = np.random.default_rng(chance.randrange(1 << 40))
    shapes = {"S": (SIZES["m"], SIZES["n"]), "K": (SIZES["n"], SIZES["d"])}
    arrays = {name: generator.integers(-2, 3, shape).astype(np.float16) for name, shape in shapes.items()}
    return _of_bound("bulk", bound, TARGET, {"form": form}, chance, arrays)


def _of_scan(chance: random.Random) -> Case | None:
    """Scans of rows by threads, warps and blocks, and by several blocks."""
    case, _ = scans.draw(chance.randrange(1 << 30))
    if not case.program.preceding:
        return (
            _of_bound("scan", case.program.strategy, str(case.program.architecture), {"by": case.by}, chance, case.inputs())
            if not case.symbols
            else None
        )
    return None


FORMS: Mapping[str, Callable[[random.Random], Case | None]] = {
    "threads": _of_product("threads", False),
    "pipeline": _of_product("pipeline", True),
    "fused": _of_definition,
    "ring": _of_ring,
    "cluster": _of_cluster,
    "turns": _of_pingpong,
    "dynamic": _of_tiles_as_blocks_become_free,
    "share": _of_two_products,
    "attention": _of_attention,
    "warpgroups": _of_ordered_mma,
    "placed": _of_placed,
    "readers": _of_readers,
    "storing": _of_storing_warp,
    "bulk": _of_bulk_additions,
    "scan": _of_scan,
    "ampere-tasks": _of_tasks("ampere-tasks", False),
    "hopper-tasks": _of_tasks("hopper-tasks", True),
}
"""The drawing functions of each form."""
