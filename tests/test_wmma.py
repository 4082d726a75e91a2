"""Fragments and the WMMA functions: every type and layout compared with NumPy and NVRTC, Listings 3 and 5, refusals, `fallback`."""

import itertools
import re

import attrs
import numpy as np
import pytest
from problems import SIZES, integers, library

import fireiron
from fireiron import *
from fireiron.check import safety
from fireiron.cuda import emit
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.show import show
from fireiron.ir import Barrier, Exec, For, execs
from fireiron.ir.fragments import FORMS, maps_of
from fireiron.sim import simulate
from fireiron.values.expr import FALSE
from fireiron.values.machine import FRAGMENTS

FR16 = FR(16, 16, 16)
PRODUCTS = [(FR(*shape), form.operand, result) for form in FORMS for shape in form.shapes for result in form.results]
LAYOUTS = list(itertools.product((ColMajor, RowMajor), repeat=3))
K = sym("K")


def ids(value):
    return "".join(str(one)[0] for one in value) if isinstance(value, tuple) else str(value)


def direct(fragment, result, through=None):
    """Fragments loaded from and stored to global memory, four warps per block."""
    m, n, k = fragment.fragment
    warp_tiles = MatMul.tile(m, n).to(Warp).done().steps
    init, store = Init.then(Strategy(warp_tiles)), Move.then(Strategy(warp_tiles))
    chain = MatMul.tile(2 * m, 2 * n).to(Block).epilog(fragment, result, init, store).split(k)
    chain = chain if through is None else through(chain)
    return chain.tile(m, n).to(Warp).load(A, fragment, Move.done()).load(B, fragment, Move.done()).done()


def arrays_of(spec, generator):
    shapes = {name: tuple(int(str(size)) for size in spec.operands[name].shape) for name in spec.operands}
    return {name: integers(shapes[name], spec.operands[name].dtype, generator) for name in spec.inputs}


def check(kernel, spec):
    """A kernel in the simulator, exactly."""
    arrays = arrays_of(spec, np.random.default_rng(5))
    (output,) = spec.outputs
    got = simulate(kernel, arrays).outputs[output]
    np.testing.assert_array_equal(got, spec.reference(*arrays.values()))


def compiles(text, target):
    if not any(chain.serves(target) for chain in toolchains()):
        pytest.skip(f"no installed NVRTC serves {target}")
    (report,) = compile_cuda(text, target).resources.values()
    return report


def calls(text, function):
    """The arguments of each call of a function in a kernel's text."""
    return re.findall(rf"{function}\((.*?)\);", " ".join(text.split()))


def aligned(fragment, factor, result, layouts):
    """Whether tiles start at multiples of 32 bytes (16 for 8-bit elements), for any number of tiles."""
    m, n, k = fragment.fragment
    steps = {"A": (m, k), "B": (k, n), "C": (m, n)}
    sizes = {"A": factor, "B": factor, "C": result}
    along = {name: steps[name][0 if layout == ColMajor else 1] * sizes[name].bytes for name, layout in zip("ABC", layouts)}
    return all(along[name] % (16 if sizes[name].bits == 8 else 32) == 0 for name in "ABC")


# ---------------------------------------------------------------------------------------------- the memory


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", FRAGMENTS, ids=str)
def test_fragments_are_values(memory):
    assert eval(repr(memory)) == memory and hash(eval(repr(memory))) == hash(memory)
    assert memory.private and SH.depth < memory.depth < RF.depth
    assert memory.name == "FR<{},{},{}>".format(*memory.fragment)
    chain = MatMul.tile(64, 64).to(Block).epilog(memory).load(A, memory)
    assert eval(repr(chain)) == chain == Strategy.from_json(chain.to_json())
    spec = MatMul(*memory.fragment, dtype=float16)(memory, memory, memory)(Warp)
    assert eval(repr(spec)) == spec and memory.name in str(spec)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(16, 16, 4), (8, 8, 8), (0, 0, 0), (True, 16, 16), ("16", 16, 16)])
def test_no_such_fragment(shape):
    with pytest.raises(ArgumentError, match="no such shape"):
        FR(*shape)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", FRAGMENTS, ids=str)
def test_maps_assign_every_element_once(memory):
    for lane_map in maps_of(memory).values():
        assert lane_map.threads == 32
        assert len({point for row in lane_map.table for point in row}) == 32 * lane_map.count == np.prod(lane_map.tile)


# ---------------------------------------------------------------------------------------------- every type and layout


@pytest.mark.sampled(9)
@pytest.mark.parametrize("layouts", LAYOUTS, ids=ids)
@pytest.mark.parametrize(("fragment", "factor", "result"), PRODUCTS, ids=ids)
def test_products(fragment, factor, result, layouts):
    m, n, k = fragment.fragment
    options = dict(zip("ABC", layouts), dtype=factor, c_dtype=result)
    spec = MatMul(4 * m, 2 * n, 3 * max(k, 16), **options)(GL, GL, GL)(Kernel)
    strategy = direct(fragment, result)
    if not aligned(fragment, factor, result, layouts):
        with pytest.raises(DecompositionError, match="requires its matrix at a multiple of"):
            strategy(spec).cuda("sm_80")
        return
    program = strategy(spec).program("sm_80")
    check(program.ir, spec)
    assert safety(program.ir) == ()
    report = compiles(program.cuda, "sm_80")
    assert report.spill_stores == report.stack_frame == 0


@pytest.mark.parametrize(("fragment", "factor", "result"), PRODUCTS, ids=ids)
def test_products_through_shared_memory(fragment, factor, result):
    """Sizes that are not multiples, each operand in the storage order in which its tiles are aligned."""
    layouts = next(one for one in LAYOUTS if aligned(fragment, factor, result, one))
    m, n, k = fragment.fragment
    options = dict(zip("ABC", layouts), dtype=factor, c_dtype=result)
    spec = MatMul(4 * m - 3, 2 * n + 1, 2 * k + 1, **options)(GL, GL, GL)(Kernel)
    pad = 16 // factor.bytes
    through = direct(fragment, result, lambda chain: chain.load(A, SH).pad(pad).load(B, SH).pad(pad))
    store = Move.load(SRC, SH, Move.tile(m, n).to(Warp).done()).tile(1, 1).to(Thread).done()
    epilog = through.at(Epilog).step
    strategy = through.at(Epilog).replace(attrs.evolve(epilog, store=store.steps))
    program = strategy(spec).program("sm_80")
    check(program.ir, spec)
    assert safety(program.ir) == ()
    compiles(program.cuda, "sm_80")


@pytest.mark.parametrize("dtype", [float16, float32, float64, int32], ids=str)
@pytest.mark.parametrize(("source", "target"), list(itertools.product((ColMajor, RowMajor), repeat=2)), ids=ids)
def test_copies_through_accumulators(dtype, source, target):
    """A fragment that no MMA uses is an accumulator; the copy transposes."""
    fragment = FR(8, 8, 4) if dtype == float64 else FR16
    m, n, _ = fragment.fragment
    warp_tiles = Move.tile(m, n).to(Warp).done()
    strategy = Move.tile(2 * m, 2 * n).to(Block).load(SRC, fragment, warp_tiles).then(warp_tiles)
    spec = Move(4 * m, 2 * n, dtype=dtype, src=source, dst=target)(GL, GL)(Kernel)
    program = strategy(spec).program("sm_80")
    check(program.ir, spec)
    assert "nvcuda::wmma::accumulator" in program.cuda
    compiles(program.cuda, "sm_80")


def test_several_fragments_of_an_operand():
    """Fragments are indexed by the values of a lane; a rolled loop over them is unrolled to keep them out of local memory."""
    module = library("wmma_optimized")
    text = module.strategy.unrefined()(module.spec(256, 128, 128)).cuda("sm_80")
    assert "> c_fr[8];" in text and "> a_fr[4];" in text and "> b_fr[2];" in text
    assert compiles(text, "sm_80").stack_frame == 0


def test_tf32_drops_the_bits_that_the_mma_ignores():
    spec = MatMul(32, 32, 16, dtype=tf32, c_dtype=float32)(GL, GL, GL)(Kernel)
    kernel = direct(FR(16, 16, 8), float32)(spec).program("sm_80")
    a, b = (np.random.default_rng(2).standard_normal(shape).astype(np.float32) for shape in ((32, 16), (16, 32)))
    exact = [(one.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for one in (a, b)]
    got = simulate(kernel.ir, {"A": a, "B": b}).outputs["C"]
    np.testing.assert_array_equal(got, simulate(kernel.ir, dict(zip("AB", exact))).outputs["C"])
    assert kernel.cuda.count("& 0xffffe000u") == 2


def rewritten(body, change):
    """The statements with each `Exec` changed."""
    return tuple(attrs.evolve(one, body=rewritten(one.body, change)) if isinstance(one, For) else change(one) for one in body)


@pytest.mark.parametrize("steps", [1, 3])
def test_old_values_count_only_where_they_should(steps):
    """An MMA that does not accumulate, or only from the second step on, discards the previous accumulators."""
    spec = MatMul(32, 32, 16 * steps, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel)
    kernel = direct(FR16, float32)(spec).program("sm_80").ir
    (loops,) = {loops for statement, loops in execs(kernel.body) if statement.spec.title == "MatMul"}
    accumulate = loops[0].var > 0 if steps > 1 else FALSE

    def change(stmt):
        if not isinstance(stmt, Exec) or stmt.spec.title == "Move":
            return stmt
        if stmt.spec.title == "Init":
            return attrs.evolve(stmt, spec=attrs.evolve(stmt.spec, parameters=(("value", 7),)))
        return attrs.evolve(stmt, accumulate=accumulate)

    changed = attrs.evolve(kernel, body=rewritten(kernel.body, change))
    check(changed, spec)
    text = emit(changed)
    assert "fill_fragment(c_fr[0], 7.0f);" in text and ("if (!(k > 0))" in text) == (steps > 1)
    compiles(text, "sm_80")


def test_accumulate_loads_the_accumulators():
    spec = MatMul(64, 32, 48, dtype=float16, c_dtype=float32, C=RowMajor, accumulate=True)(GL, GL, GL)(Kernel)
    program = direct(FR16, float32)(spec).program("sm_70")
    generator = np.random.default_rng(1)
    a, b, c = (integers(shape, dtype, generator) for shape, dtype in (((64, 48), float16), ((48, 32), float16), ((64, 32), float32)))
    got = simulate(program.ir, {"A": a, "B": b, "C": c}).outputs["C"]
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32) + c)
    assert calls(program.cuda, "load_matrix_sync")[0].endswith("32, nvcuda::wmma::mem_row_major")
    compiles(program.cuda, "sm_70")


# ---------------------------------------------------------------------------------------------- Listings 3 and 5


def steps_and_specs(module, *sizes):
    return [(step, str(spec).replace("FR<16,16,16>", "FR")) for step, spec in module.strategy(module.spec(*sizes)).trace()]


def test_listing_3():
    trace = steps_and_specs(library("wmma_simple"), 1024, 1024, 1024)
    assert [spec for _, spec in trace][-1] == "MatMul(16,16,16)(FR,FR,FR)(Warp)"
    assert [spec for _, spec in trace] == [
        "MatMul(64,64,1024)(GL,GL,GL)(Kernel)",
        "MatMul(64,64,1024)(GL,GL,GL)(Block)",
        "MatMul(64,64,1024)(GL,GL,FR)(Block)",
        "MatMul(64,64,16)(GL,GL,FR)(Block)",
        "MatMul(16,16,16)(GL,GL,FR)(Block)",
        "MatMul(16,16,16)(GL,GL,FR)(Warp)",
        "MatMul(16,16,16)(FR,GL,FR)(Warp)",
        "MatMul(16,16,16)(FR,FR,FR)(Warp)",
    ]
    module = library("wmma_simple")
    program = module.strategy(module.spec(1024, 1024, 1024)).program("sm_70")
    assert program.ir.threads == 16 * 32 and program.ir.shared_bytes == 0 and program.strategy.refused == ()
    assert program.cuda.count("load_matrix_sync(") == 2 and "__syncthreads" not in program.cuda


def test_listing_5():
    trace = steps_and_specs(library("wmma_optimized"), 1024, 1024, 1024)
    assert [spec for _, spec in trace][-1] == "MatMul(16,16,16)(FR,FR,FR)(Warp)"
    assert [step.split("(")[0] for step, _ in trace] == [
        "tile",
        "to",
        "epilog",
        "split",
        "load",
        "load",
        "tile",
        "to",
        "split",
        "load",
        "load",
        "tile",
    ]
    module = library("wmma_optimized")
    program = module.strategy(module.spec(1024, 1024, 1024)).program("sm_70")
    assert program.chosen == {"bk": 128} and program.ir.threads == 8 * 32 and program.ir.shared_bytes == 69632
    staged = program.ir.buffer("store_c_sh")
    assert staged.offset == 0 and staged.bytes == 65536, "in the place of A and B"
    wide = {s.operands["src"].buffer: s.vectors for s, _ in execs(program.ir.body) if s.spec.title == "Move" and s.spec.level == Lane}
    assert wide == {"A": (8, 8), "B": (8, 8), "store_c_sh": (4, 4)}, "16 bytes a lane"


def barriers(body, inside=()):
    positions = []
    for statement in body:
        if isinstance(statement, Barrier):
            positions.append(inside)
        elif isinstance(statement, For):
            positions += barriers(statement.body, (*inside, statement.var.name))
    return positions


@pytest.mark.parametrize("sizes", [(256, 128, 256), (130, 70, 333), (sym("M"), sym("N"), K)], ids=str)
def test_barriers_of_listing_5(sizes):
    """One after the loads, one at the end of each step, which also precedes the reuse, one after the staged C (T016)."""
    module = library("wmma_optimized")
    for strategy in (module.strategy, module.strategy.at(Split).unrefine(Sync), module.strategy.at(Load, A).unrefine(NoSync)):
        kernel = strategy(module.spec(*sizes)).program("sm_80").ir
        assert barriers(kernel.body) == [("k",), ("k",), ()]
        assert safety(kernel) == ()


@pytest.mark.parametrize("number", range(3))
def test_every_barrier_of_listing_5_is_needed(number):
    """Without one of them both detectors report the race; in the last case between the staged C and its copy (T016)."""
    module = library("wmma_optimized")
    spec = module.spec(128, 128, 128 if number == 1 else 256)
    kernel = module.strategy(spec).program("sm_80").ir
    left = iter(range(3))

    def change(body):
        kept = (one for one in body if not (isinstance(one, Barrier) and next(left) == number))
        return tuple(attrs.evolve(one, body=change(one.body)) if isinstance(one, For) else one for one in kept)

    broken = attrs.evolve(kernel, body=change(kernel.body))
    assert len(barriers(broken.body)) == 2
    assert any(finding.kind == "race" and finding.severity == "error" for finding in safety(broken))
    with pytest.raises(SimulationError):
        simulate(broken, arrays_of(spec, np.random.default_rng(0)))


@pytest.mark.parametrize("sizes", [*SIZES, (129, 65, 33), (64, 64, 16), (63, 64, 17)], ids=str)
@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_awkward_sizes(name, sizes):
    module = library(name)
    spec = module.spec(*sizes)
    check(module.strategy(spec).program("sm_75").ir, spec)


@pytest.mark.parametrize("options", [{"dtype": bfloat16}, {"A": ColMajor, "B": RowMajor, "C": ColMajor}, {"c_dtype": float16}], ids=str)
@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_options(name, options):
    module = library(name)
    for sizes in ((128, 128, 128), (70, 130, 20)):
        spec = module.spec(*sizes, **options)
        program = module.strategy(spec).program("sm_80")
        check(program.ir, spec)
        compiles(program.cuda, "sm_80")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_sizes_known_at_run_time(name):
    module = library(name)
    for multiple in (1, 8, 128):
        spec = module.spec(*(sym(dim, multiple_of=multiple) for dim in "MNK"))
        program = module.strategy(spec).program("sm_80")
        sizes = {"M": 128, "N": 256, "K": 128}
        generator = np.random.default_rng(8)
        a, b = integers((128, 128), float16, generator), integers((128, 256), float16, generator)
        got = simulate(program.ir, {"A": a, "B": b}, sizes).outputs["C"]
        np.testing.assert_array_equal(got, spec.reference(a, b))
        assert compiles(program.cuda, "sm_80").spill_stores == 0
        assert bool(program.strategy.refused) == (name == "wmma_simple" and multiple < 128)


def test_shared_memory_of_turing():
    """T015: two padded tiles of 128 x 128 float16 do not fit a block of sm_75; a split of 64 does."""
    module = library("wmma_optimized")
    spec = module.spec(1024, 1024, 1024)
    with pytest.raises(
        ResourceError, match=r"69632 bytes of shared memory in a block, but sm_75 has 65536: a_sh 34816, b_sh 34816"
    ) as caught:
        module.strategy.with_(bk=128)(spec).cuda("sm_75")
    assert "a smaller split" in str(caught.value)
    program = module.strategy(spec).program("sm_75")
    assert program.chosen == {"bk": 64}
    sizes = {buffer.name: buffer.bytes for buffer in program.ir.buffers if buffer.memory == SH}
    assert sizes["a_sh"] + sizes["b_sh"] == 36864 and program.ir.shared_bytes == 65536


# ---------------------------------------------------------------------------------------------- refusals


def problem(M=64, N=64, K=64, **options):
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float32} | options)(GL, GL, GL)(Kernel)


REFUSED = {
    "overhang of A": (direct(FR16, float32), problem(K=60), "load_matrix_sync accesses whole fragments", "load the operand into SH first"),
    "overhang of C": (
        direct(FR16, float32, lambda chain: chain.load(A, SH).load(B, SH)),
        problem(M=60, accumulate=False),
        "store_matrix_sync accesses whole fragments, but the last tile of C may be partly out of bounds",
        "store through SH",
    ),
    "pad": (
        direct(FR16, float32, lambda chain: chain.load(A, SH).pad(4).load(B, SH)),
        problem(),
        "the leading dimension 36 of a_sh is not always a multiple of 8 elements",
        "pad in multiples of 8",
    ),
    "leading dimension": (direct(FR16, float32), problem(A=RowMajor(ld=sym("lda", low=64))), "leading dimension lda of A", "multiple_of=16"),
    "swizzle": (
        direct(FR16, float32, lambda chain: chain.load(A, SH).swizzle_storage(Swizzle(1, 3, 3)).load(B, SH)),
        problem(),
        "src layout requires a leading dimension, without a swizzle",
        "fireiron explain",
    ),
    "hierarchical": (
        direct(FR16, float32, lambda chain: chain.load(A, SH).storage_layout(Layout(((8, 4), 16), ((1, 128), 8))).load(B, SH)),
        problem(),
        "src layout requires RowMajor or ColMajor",
        "fireiron explain",
    ),
    "another shape": (direct(FR(16, 16, 8), float32), problem(), "A type requires tf32, got float16", "fireiron explain"),
    "float32": (direct(FR16, float32), problem(dtype=float32), "got float32", "fireiron explain"),
    "strided": (
        MatMul.tile(64, 64).to(Block).epilog(FR16, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
        .split(16).tile(Strided((8, 32), (8, 32))).to(Warp).load(A, FR16, Move.done()).load(B, FR16, Move.done()).done(),
        problem(),
        "adjacent rows and columns",
        "",
    ),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    strategy, spec, message, hint = REFUSED[name]
    with pytest.raises(FireironError) as caught:
        strategy(spec).cuda("sm_80")
    text = " ".join(str(caught.value).split())
    assert " ".join(message.split()) in text and hint in text, text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memories", [(RF, FR16), (FR16, RF), (FR16, FR16), (FR16, FR(16, 16, 8))], ids=ids)
def test_fragments_go_to_gl_and_sh_only(memories):
    spec = Move(16, 16, dtype=float16)(*memories)(Warp)
    sm_90 = next(one for one in fireiron.ARCHITECTURES if one.name == "sm_90")
    assert all(one.mismatches(spec, sm_90) for one in fireiron.INSTRUCTIONS)
    one_lane = Move(1, 1, dtype=float16)(*memories)(Lane)
    assert all(one.mismatches(one_lane, sm_90) for one in fireiron.INSTRUCTIONS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("target", "fragment", "factor", "result", "first"),
    [
        ("sm_61", FR16, float16, float32, 70),
        ("sm_70", FR16, int8, int32, 72),
        ("sm_75", FR16, bfloat16, float32, 80),
        ("sm_75", FR(8, 8, 4), float64, float64, 80),
        ("sm_75", FR(16, 16, 8), tf32, float32, 80),
    ],
    ids=ids,
)
def test_refused_on_older_targets(target, fragment, factor, result, first):
    spec = problem(dtype=factor, c_dtype=result)
    with pytest.raises(MatchError, match=f"target   requires sm_{first} or newer, got {target}"):
        direct(fragment, result)(spec).cuda(target)


def test_leading_dimensions_that_are_multiples():
    spec = problem(A=RowMajor(ld=sym("lda", low=64, multiple_of=16)), C=ColMajor(ld=72))
    program = direct(FR16, float32)(spec).program("sm_80")
    assert calls(program.cuda, "load_matrix_sync")[0].endswith(", lda")
    assert calls(program.cuda, "store_matrix_sync")[0].endswith(", 72, nvcuda::wmma::mem_col_major")
    assert program.ir.buffer("A").tensor.align == 32, "checked before a launch"
    compiles(program.cuda, "sm_80")


def test_headers_of_fragments_are_named_when_they_are_missing(monkeypatch):
    from fireiron.gpu import toolchain

    if not toolchains():
        pytest.skip("no NVRTC installed")
    text = direct(FR16, float32)(problem()).cuda("sm_80")
    monkeypatch.setattr(toolchain, "_include_folders", lambda chain: ())
    with pytest.raises(LaunchError) as caught:
        compile_cuda(text, "sm_80")
    assert "pip install 'fireiron[check]'" in str(caught.value)


# ---------------------------------------------------------------------------------------------- fallback


def test_otherwise_is_a_value():
    module = library("wmma_simple")
    strategy = module.strategy
    assert strategy == module.listing_3.fallback(module.guarded) != module.listing_3
    assert eval(repr(strategy)) == strategy and hash(eval(repr(strategy))) == hash(strategy)
    assert Strategy.from_json(strategy.to_json()) == strategy
    bound = strategy(module.spec(100, 100, 100))
    assert Strategy.from_json(bound.to_json()) == bound and eval(repr(bound)) == bound
    assert [one.steps for one in strategy.alternatives] == [module.listing_3.steps, module.guarded.steps]
    assert strategy.fallback(strategy).others == (module.guarded, module.listing_3, module.guarded)
    assert MatMul.tile(64, 64).to(Block).then(MatMul.tile(1, 1).done().fallback(MatMul.done())).alternatives[1].steps[-1] == Done()


def test_otherwise_chooses_the_first_legal_one():
    module = library("wmma_simple")
    tiles = {"bm": 64, "bn": 64}
    assert module.strategy(module.spec(64, 64, 16)).program("sm_70").strategy.steps == module.listing_3.with_(**tiles).steps
    program = module.strategy(module.spec(64, 64, 17)).program("sm_70")
    assert program.strategy.steps == module.guarded.with_(**tiles).steps
    assert program.strategy.refused == ("load_matrix_sync accesses whole fragments, but the last tile of B may be partly out of bounds",)
    assert "refused first" in "\n".join(show(program))
    with pytest.raises(MatchError, match="requires sm_70 or newer") as caught:
        module.strategy(module.spec(64, 64, 17)).cuda("sm_61")
    assert "the alternatives are not legal either" in str(caught.value)


def test_otherwise_and_tunables():
    bm, rows = Tunable("bm", 48, 32), Tunable("rows", 5, 4)
    small_tiles = MatMul.tile(bm, 32).to(Block).tile(16, 32).to(Thread).tile(7, 1).split(1).tile(1, 1).done()
    other = MatMul.tile(bm, 32).to(Block).tile(rows, 4).to(Thread).split(1).tile(1, 1).done()
    strategy = small_tiles.fallback(other)
    assert set(strategy.tunables()) == {"bm", "rows"}
    spec = MatMul(64, 64, 8)(GL, GL, GL)(Kernel)
    program = strategy(spec).program()
    assert program.chosen == {"bm": 48, "rows": 4} and len(program.strategy.refused) == 1
    assert strategy.with_(bm=32, rows=4).tunables() == {}
    assert strategy.with_(bm=32)(spec).program().chosen == {"rows": 4}
    assert strategy.unrefined().others[0] == other.unrefined()


def test_otherwise_refuses():
    done = MatMul.tile(1, 1).done()
    for wrong in (None, 3, "text"):
        with pytest.raises(ArgumentError, match="not a strategy"):
            done.fallback(wrong)
    with pytest.raises(DecompositionError, match="must end with done"):
        MatMul.tile(1, 1).fallback(done)
    with pytest.raises(DecompositionError, match="must end with done"):
        done.fallback(MatMul.tile(1, 1))
    with pytest.raises(DecompositionError, match="bound"):
        done.fallback(done(MatMul(4, 4, 4)(GL, GL, GL)(Kernel)))
    with pytest.raises(DecompositionError, match="complete strategies"):
        MatMul.tile(8, 8).to(Block).load(A, SH, Move.tile(1, 1).done().fallback(Move.done()))


def test_commands_on_otherwise(capsys):
    from fireiron.cli import main

    for command in ("show", "emit", "check", "explain"):
        assert main([command, "wmma_simple", "-M", "100", "-N", "60", "-K", "20"]) == 0
    assert "alternative refused: load_matrix_sync" in capsys.readouterr().out
    assert main(["run", "wmma_simple", "-M", "100", "-N", "60", "-K", "20", "--simulate"]) == 0


@pytest.mark.parametrize(("K", "stages"), [(32, 2), (64, 2), (48, 3)])
def test_fragments_of_a_pipeline_have_a_copy_for_each_stage(K, stages):
    """The array has as many fragments as the text indexes: memory past its end belongs to another variable."""
    warps = lambda start: start.tile(16, 16).to(Warp).done()
    chain = MatMul.tile(48, 16).to(Block).epilog(FR(16, 16, 16), float32, warps(Init), warps(Move)).split(16).pipeline(stages)
    chain = chain.tile(16, 16).to(Warp).load(A, FR(16, 16, 16), Move.done()).load(B, FR(16, 16, 16), Move.done()).done()
    text = chain(MatMul(48, 16, K, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel)).cuda("sm_75")
    assert f"> a_fr[{stages}];" in text and f"> b_fr[{stages}];" in text and "> c_fr[1];" in text
