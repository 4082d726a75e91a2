"""Pages by TMA: a box per page, whose number from a table is a coordinate; zeros where the number is not a page."""

import random

import attrs
import numpy as np
import pytest
from test_indirect import inputs_of, require_right

from fireiron import *
from fireiron.check import safety
from fireiron.errors import SimulationError
from fireiron.export import export
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import execs, rewritten
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.sim import simulate
from fireiron.values.expr import as_expr
from fireiron.values.tensor import Tensor, whole_view

TMA = Move.done()
LOOP = MatMul.split(64).pipeline(2).warp_specialize().load(A, SH, TMA).load(B, SH, TMA).tile(64, 64).to(Warpgroup).done()


def scores(page):
    """Scores of queries and paged keys."""
    return Fused(
        name="paged_scores", dims="b m n d page slot t", operands={"Q": "b m d", "K": "page slot d", "table": "b t", "S": "b m n"},
        body={"mm": f"acc[m,n] = sum(d, Q[b,m,d] * K[table[b,n // {page}],n % {page},d])", "o": "S[b,m,n] = acc[m,n]"}, batch="b",
    )  # fmt: skip


def program_of(page, keys=256, pages=20):
    definition = scores(page)
    strategy = definition.tile(b=1, m=64, n=64).to(Block).step("mm", LOOP).done()
    return strategy(definition(b=2, m=64, n=keys, d=128, page=pages)).program("sm_90a")


def by_numpy(arrays, keys):
    paged = arrays["K"][np.clip(arrays["table"], 0, None)].astype(float) * (arrays["table"] >= 0)[..., None, None]
    return np.einsum("bmd,bnd->bmn", arrays["Q"].astype(float), paged.reshape(len(arrays["Q"]), -1, 128)[:, :keys])


def loads_of(kernel):
    return [stmt for stmt, _ in execs(kernel.body) if stmt.tensor_map is not None and stmt.tensor_map.buffer == "K"]


@pytest.mark.parametrize("page", [16, 32, 64, 128])
def test_right(page):
    program = program_of(page)
    assert safety(program.lowered) == ()
    loads = loads_of(program.ir)
    assert loads and all(stmt.mechanism is TMA_LOADS for stmt in loads)
    assert {stmt.tensor_map.box for stmt in loads} == {(64, min(page, 64), 1)} and {stmt.tensor_map.order for stmt in loads} == {(2, 1, 0)}
    assert "min(max(table" not in program.cuda
    arrays = inputs_of(program.spec)
    for order in (None, random.Random(5)):
        require_right(simulate(program.ir, arrays, order=order).outputs["S"], by_numpy(arrays, 256))
    require_right(program.spec.reference(*arrays.values()), by_numpy(arrays, 256))


def test_numbers_outside_are_zeros():
    program = program_of(16)
    arrays = inputs_of(program.spec)
    arrays["table"][1, 3] = arrays["table"][0, 0] = -1
    require_right(simulate(program.ir, arrays).outputs["S"], by_numpy(arrays, 256))


def test_run_time_sizes():
    program = program_of(16, sym("N", multiple_of=64), sym("P"))
    assert safety(program.lowered) == () and loads_of(program.ir)
    sizes = {"N": 128, "P": 7}
    arrays = inputs_of(program.spec, sizes)
    require_right(simulate(program.ir, arrays, sizes).outputs["S"], by_numpy(arrays, 128))


def test_texts(tmp_path):
    program = program_of(16)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    export(program, tmp_path)
    (driver,) = tmp_path.glob("*_driver.c")
    assert "cuuint64_t" in driver.read_text()


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
def test_compiled():
    program = program_of(16)
    report = compile_cuda(program.cuda, "sm_90a").resources[program.name]
    assert report.spill_stores == report.stack_frame == 0


@pytest.mark.parametrize(
    ("page", "keys", "reason"),
    [(1, 256, "pages of adjacent rows"), (16, 250, "whole tiles of 250 rows"), (16, sym("N"), "whole tiles of N rows")],
)
def test_other_tiles_are_copied_by_threads(page, keys, reason):
    """A box is inside of one page, and a tile inside of the keys: past the end, the last page has other elements than zeros."""
    definition = scores(page)
    copy = Move.coalesced_copy(8).done()
    loop = (
        MatMul.split(64).pipeline(2).warp_specialize(128, copies=True).load(A, SH, TMA).load(B, SH, copy).tile(64, 64).to(Warpgroup).done()
    )
    spec = definition(b=2, m=64, n=keys, d=128, page=20)
    assert not loads_of(definition.tile(b=1, m=64, n=64).to(Block).step("mm", loop).done()(spec).program("sm_90a").ir)
    tile = Move.on(Block, *tile_of(spec, 64, 64), names=("n", "d"))
    assert reason in " ".join(str(one) for one in TMA_LOAD.mismatches(tile, ARCHITECTURES[-1]))


def tile_of(spec, rows, columns):
    """A tile of keys of one batch, and a buffer for it."""
    view = spec.operands["K"].at(0, as_expr(0), unit=True)
    tile = view.tile(rows, columns)[0, 0]
    buffer = Tensor("k_sh", (as_expr(rows), as_expr(columns)), float16, SH, RowMajor)
    return tile, whole_view(buffer)


# ---------------------------------------------------------------------------------------------- injected faults


def with_map(kernel, **changes):
    def changed(stmt):
        if stmt not in loads_of(kernel):
            return (stmt,)
        return (attrs.evolve(stmt, tensor_map=attrs.evolve(stmt.tensor_map, **changes)),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, changed))


def test_faulty_maps_are_found():
    """Boxes that span two pages, or follow the dimensions in another order."""
    program = program_of(16)
    kernel = program.lowered
    assert safety(with_map(kernel)) == ()
    for changes in ({"box": (64, 8, 1)}, {"box": (64, 16, 2)}, {"order": (1, 2, 0)}, {"span": 64}, {"order": (2, 0, 1)}):
        faulty, arrays = with_map(kernel, **changes), inputs_of(program.spec)
        detected = bool(safety(faulty))
        try:
            detected |= not np.allclose(simulate(faulty, arrays).outputs["S"], by_numpy(arrays, 256), atol=0.1)
        except SimulationError:
            detected = True
        # smaller boxes copy the same elements, box by box: only the launcher's map and the text would change, together
        assert detected or changes == {"box": (64, 8, 1)}, changes
