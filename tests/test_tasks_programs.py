"""Programs of tasks beyond GEMM, each mapped to Ampere and Hopper: correct, race-free, and equal to their fluent kernels."""

import random
import re
from collections import Counter

import attrs
import numpy
import pytest
from printed_text import COMPILER, HostProgram, Printed
from problems import simulated

from fireiron import *
from fireiron import tasks
from fireiron.check import check
from fireiron.errors import FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.strategies import dual as fluent_dual
from fireiron.strategies import gated as fluent_gated
from fireiron.strategies import gemm_row_sum, hmma_ampere, hopper, hopper_batched
from fireiron.strategies import tasks_batched as batched
from fireiron.strategies import tasks_dual as dual
from fireiron.strategies import tasks_gated as gated
from fireiron.strategies import tasks_gemm as gemm
from fireiron.strategies import tasks_row_sum as row_sum
from fireiron.tasks import *

TARGETS = {"ampere": "sm_80", "hopper": "sm_90a", "hopper, sums shared": "sm_90a"}


def float16_array(*shape, seed=7):
    return numpy.random.default_rng(seed).integers(-2, 3, shape).astype("float16")


def single(*arrays):
    return [one.astype("float32") for one in arrays]


def product(a, b):
    left, right = single(a, b)
    return left @ right


def activated(a, left, right):
    gate, up = product(a, left), product(a, right)
    return gate / (1 + numpy.exp(-gate)) * up


@attrs.frozen
class Case:
    """A program with its small mappings by name; for given sizes its problem, inputs and results."""

    program: Tasks
    mappings: dict
    spec: object
    inputs: object
    wanted: object
    most: float = 0.0


def factors(M, N, K):
    return float16_array(M, K), float16_array(K, N, seed=8)


SMALL = {"U": 16, "V": 16, "W": 32, "rows": 1, "columns": 2, "stages": 2}
GROUP = {"U": 64, "V": 16, "W": 16, "WGS": 1, "stages": 2, "epi_n": 16}
CASES = {
    "gemm": Case(
        gemm.program,
        {
            "ampere": gemm.ampere(**SMALL, lookahead=2, staged=True, group_m=2),
            "hopper": gemm.hopper(**GROUP, group_m=2, persistent=2),
        },
        hopper.spec,
        factors,
        lambda a, b: [product(a, b)],
    ),
    "batched": Case(
        batched.program,
        {
            "ampere": batched.ampere(**SMALL, lookahead=2, staged=True, group_m=2),
            "hopper": batched.hopper(**GROUP, group_m=2, persistent=3),
        },
        lambda M, N, K: hopper_batched.spec(M, N, K, 2),
        lambda M, N, K: (float16_array(2, M, K), float16_array(2, K, N, seed=8)),
        lambda a, b: [product(a, b)],
    ),
    "dual": Case(
        dual.program,
        {"ampere": dual.ampere(**SMALL, group_m=2), "hopper": dual.hopper(**GROUP, group_m=2, num_blocks=2)},
        fluent_dual.spec,
        lambda M, N, K: (*factors(M, N, K), float16_array(K, N, seed=9)),
        lambda a, left, right: [product(a, left) + product(a, right)],
    ),
    "gated": Case(
        gated.program,
        {"ampere": gated.ampere(**SMALL, group_m=2), "hopper": gated.hopper(**GROUP, group_m=2, num_blocks=2)},
        fluent_gated.spec,
        lambda M, N, K: (*factors(M, N, K), float16_array(K, N, seed=9)),
        lambda *inputs: [activated(*inputs)],
        1e-2,
    ),
    "row_sum": Case(
        row_sum.program,
        {
            "ampere": row_sum.ampere(**SMALL, group_m=2),
            "hopper": row_sum.hopper(**GROUP, group_m=2, num_blocks=2),
            "hopper, sums shared": row_sum.hopper(**GROUP, group_m=2, num_blocks=2, parts=0),
        },
        gemm_row_sum.spec,
        factors,
        lambda a, b: [product(a, b), single(a)[0].sum(1)],
    ),
}
SIZES = {"ampere": (20, 24, 40), "hopper": (72, 24, 40), "hopper, sums shared": (72, 24, 40)}
ALL = [(name, mapped) for name, case in CASES.items() for mapped in case.mappings]


def require_right(case, inputs, outputs):
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    with numpy.errstate(over="ignore"):
        wanted = case.wanted(*inputs)
    for output, right in zip(outputs, wanted, strict=True):
        assert numpy.allclose(numpy.asarray(output, "float32"), right, rtol=case.most, atol=case.most)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "mapped"), ALL)
def test_mappings_do_not_change_results(name, mapped):
    """Overhanging tiles, persistent blocks, no races."""
    case, sizes = CASES[name], SIZES[mapped]
    bound, inputs = tasks.strategy(case.program, case.mappings[mapped])(case.spec(*sizes)), case.inputs(*sizes)
    assert [one for one in check(bound.program(TARGETS[mapped]).ir) if one.severity == "error"] == []
    require_right(case, inputs, simulated(bound, TARGETS[mapped])(*inputs))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "mapped", "sizes", "multiple"),
    [
        ("gemm", "hopper", (136, 104, 72), 8),
        ("batched", "hopper", (72, 104, 40), 8),
        ("dual", "hopper", (72, 40, 40), 8),
        ("gemm", "ampere", (37, 35, 41), 1),
        ("row_sum", "hopper", (136, 40, 72), 8),
        ("row_sum", "ampere", (37, 35, 41), 1),
    ],
)
def test_sizes_known_at_run_time(name, mapped, sizes, multiple):
    case, inputs = CASES[name], CASES[name].inputs(*sizes)
    problem = case.spec(*(sym(dim, high=8192, multiple_of=multiple) for dim in "MNK"))
    bound = tasks.strategy(case.program, case.mappings[mapped])(problem)
    assert [one for one in check(bound.program(TARGETS[mapped]).ir) if one.severity == "error"] == []
    require_right(case, inputs, simulated(bound, TARGETS[mapped])(*inputs))


def results_of(case, sizes):
    spec = case.spec(*sizes)
    views = [spec.operands[name] for name in spec.outputs]
    return [numpy.zeros([int(size.low) for size in view.shape], view.dtype.to_numpy()) for view in views]


OFTEN = (("row_sum", "ampere"),)
"""Cases that each run executes task by task; the others take longer."""


@pytest.mark.parametrize(("name", "mapped"), [one if one in OFTEN else pytest.param(*one, marks=pytest.mark.nightly) for one in ALL])
def test_the_sequential_semantics(name, mapped):
    """Launches of each prange in any order."""
    case, sizes = CASES[name], SIZES[mapped]
    results, inputs = results_of(case, sizes), case.inputs(*sizes)
    tasks.run(case.program, case.mappings[mapped], *results, *inputs, seed=3)
    require_right(case, inputs, results)


# ---------------------------------------------------------------------------------------------- twins


WIDE = {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 64, "stages": 4, "group_m": 8}
PERSISTENT = {"epi_n": 64, "group_m": 8, "persistent": 132}
TWINS = {
    "gemm, Hopper": (gemm, gemm.hopper(128, 256, 64, 2, 4, **PERSISTENT), hopper.product.with_(**WIDE), hopper.spec, "sm_90a"),
    "gemm, Hopper, clusters": (
        gemm, gemm.hopper(128, 256, 64, 2, 4, **PERSISTENT, cluster=(2, 1)), hopper.product.with_(**WIDE, cluster_m=2), hopper.spec, "sm_90a",
    ),
    "gemm, Ampere": (
        gemm, gemm.ampere(128, 256, 32, 2, 4, 4, lookahead=2, staged=True, group_m=8), hmma_ampere.strategy.with_(bm=128, bn=256, bk=32, stages=4),
        hmma_ampere.spec, "sm_80",
    ),
    "gemm, Hopper, 128 rows a warpgroup": (
        gemm, gemm.hopper(256, 128, 64, 2, 4, **PERSISTENT, pieces=False), hopper.product.with_(**WIDE | {"bm": 256, "bn": 128, "wm": 128, "wn": 128}), hopper.spec,
        "sm_90a",
    ),
    "batched, Hopper": (
        batched, batched.hopper(128, 256, 64, 2, 4, **PERSISTENT), hopper_batched.strategy.with_(**WIDE), hopper_batched.spec, "sm_90a",
    ),
    "dual, Hopper": (dual, dual.hopper(), fluent_dual.hopper, fluent_dual.spec, "sm_90a"),
    "dual, Ampere": (dual, dual.ampere(), fluent_dual.strategy, fluent_dual.spec, "sm_80"),
    "gated, Hopper": (gated, gated.hopper(), fluent_gated.hopper, fluent_gated.spec, "sm_90a"),
    "gated, Ampere": (gated, gated.ampere(), fluent_gated.strategy, fluent_gated.spec, "sm_80"),
    "row sum, Hopper": (row_sum, row_sum.hopper(), gemm_row_sum.hopper, gemm_row_sum.spec, "sm_90a"),
    "row sum, Ampere": (row_sum, row_sum.ampere(), gemm_row_sum.strategy, gemm_row_sum.spec, "sm_80"),
}  # fmt: skip
"""Programs with their mappings, and the fluent strategies with the same tiles."""


def both(name):
    """The programs of a pair: tasks and fluent strategy."""
    module, mapping, fluent, spec, target = TWINS[name]
    problem = spec(4096, 4096, 4096) if name != "batched, Hopper" else spec(1024, 1024, 1024)
    return [one(problem).program(target) for one in (tasks.strategy(module.program, mapping), fluent)], target


def calls_of(text):
    """The numbers of calls by name, and of loops and branches, in a kernel's text."""
    body = re.sub(r"//[^\n]*", "", text[text.index("__global__") :])
    return Counter(re.findall(r"\b([a-z]\w*)(?:<\w+>)?\(", body))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["gemm, Hopper, clusters", "row sum, Ampere"])
def test_the_statements_are_those_of_the_fluent_twin(name):
    (tasks_program, fluent), _ = both(name)
    assert calls_of(tasks_program.cuda) == calls_of(fluent.cuda)
    assert tasks_program.ir.shared_bytes == fluent.ir.shared_bytes and tasks_program.ir.threads == fluent.ir.threads


def compiled(program, target):
    """Opcode counts of a program's PTX, and its resources."""
    compiled = compile_cuda(program.cuda, target)
    assert "C75" not in compiled.log
    opcodes = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][a-z0-9_.:]*)\b[^\n]*;", compiled.ptx, re.MULTILINE)
    return Counter(opcodes), compiled.resources[program.name]


@pytest.mark.nightly
@pytest.mark.skipif(not any(one.serves("sm_90a") for one in toolchains()), reason="no NVRTC for sm_90a")
@pytest.mark.parametrize("name", TWINS)
def test_the_opcodes_are_those_of_the_fluent_twin(name):
    """Equal opcode counts and registers, no spills, and no serialized MMAs without a message."""
    programs, target = both(name)
    (opcodes, uses), (fluent, others) = (compiled(one, target) for one in programs)
    assert opcodes == fluent and uses.registers == others.registers
    assert not uses.spill_stores and not uses.spill_loads


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("mapped", ["ampere", "hopper"])
def test_printed_text(mapped, tmp_path):
    """The printed text on the CPU, threads in random order."""
    target, sizes = TARGETS[mapped], SIZES[mapped]
    chosen = [case for case in CASES.values() if mapped in case.mappings]
    bound = [tasks.strategy(one.program, one.mappings[mapped])(one.spec(*sizes)) for one in chosen]
    host = HostProgram([Printed.of(one.program(target)) for one in bound], tmp_path)
    for number, case in enumerate(chosen):
        inputs, spec = case.inputs(*sizes), bound[number].spec
        arrays = dict(zip(spec.inputs, inputs, strict=True))
        outputs = host.run(number, arrays, seed=5)
        require_right(case, inputs, [outputs[name] for name in spec.outputs])


# ---------------------------------------------------------------------------------------------- what a mapping and a program state


def test_sums_in_shared_memory_are_a_change_of_the_mapping():
    """Cypress, section 5.2: the same program, without a separate tile for the sums in registers."""
    problem = gemm_row_sum.spec(256, 256, 128)
    texts = {parts: tasks.strategy(row_sum.program, row_sum.hopper(parts=parts))(problem).program("sm_90a") for parts in (4, 0)}
    names = {parts: {one.tensor.name for one in program.lowered.buffers if one.tensor.memory == SH} for parts, program in texts.items()}
    assert names[0] - names[4] and "in_parts" not in str(row_sum.hopper(parts=0))
    assert row_sum.hopper().diff(row_sum.hopper(parts=0))


def test_all_launches_that_read_a_copy_share_it():
    """A is one buffer for both GEMMs, and for the GEMM and the sums."""
    for module, spec, names in ((dual, fluent_dual.spec, {"a_sh", "b_sh", "b_sh2"}), (row_sum, gemm_row_sum.spec, {"a_sh", "b_sh"})):
        lowered = tasks.strategy(module.program, module.hopper(num_blocks=8))(spec(256, 256, 128)).program("sm_90a").lowered
        assert {one.tensor.name for one in lowered.buffers if one.tensor.memory == SH} == {*names, "dst_sh"}


@task("twice", Inner, reads=["src"], writes=["dst"])
def rows(dst, src):
    to, of = partition_by_blocks(dst, (1, dst.shape[1])), partition_by_blocks(src, (1, src.shape[1]))
    for i in prange(dst.shape[0]):
        launch("twice", to[i, 0], of[i, 0])


@task("twice", Inner, reads=["src"], writes=["dst"])
def between(dst, src):
    kept = make_tensor(src.shape, "float32")
    launch("move", kept, src)
    launch("move", dst, kept)
    launch("add", kept, src)
    launch("move", dst, kept)


@task("move", Leaf, reads=["src"], writes=["dst"])
def move(dst, src):
    call_external("copy", dst, src)


@task("add", Leaf, reads=["src"], writes=["dst"])
def add(dst, src):
    call_external(Pointwise, src, dst, formula="z[m,n] = x[m,n] + x[m,n]")


def test_a_tensor_that_is_written_between_is_copied_again():
    """A task that reads registers sees the latest write to shared memory."""
    calls = ["in", "out", "added", "out"]
    mapping = Mapping(
        [
            TaskMapping("host", "rows", HOST, [GLOBAL, GLOBAL], {}, ["row"], entrypoint=True),
            TaskMapping("row", "between", THREAD, [GLOBAL, GLOBAL], {}, calls),
            TaskMapping("in", "move", THREAD, [SHARED, NONE]),
            TaskMapping("out", "move", THREAD, [GLOBAL, REGISTER]),
            TaskMapping("added", "add", THREAD, [SHARED, NONE]),
        ],
        AMPERE,
    )
    grid = attrs.evolve(mapping["host"], instance="grid", calls=("host",))
    block = attrs.evolve(mapping["host"], proc=BLOCK, entrypoint=False)
    mapping = attrs.evolve(mapping, instances=(grid, block, *mapping.instances[1:]))
    bound = tasks.strategy(Tasks(whole, rows, between, move, add), mapping.with_("grid", variant="whole"))(
        Move(32, 8, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    )
    a = numpy.random.default_rng(0).random((32, 8), numpy.float32)
    assert (simulated(bound, "sm_80")(a) == a + a).all()


@task("twice", Inner, reads=["src"], writes=["dst"])
def whole(dst, src):
    launch("twice", dst, src)


@task("dual", Inner, reads=["A", "B1", "B2"], writes=["D"])
def dual_at_once(D, A, B1, B2, *, W=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    total = make_tensor((M, N), "float32")
    Ap, B1p, B2p = partition_by_blocks(A, (M, W)), partition_by_blocks(B1, (W, N)), partition_by_blocks(B2, (W, N))
    launch("clear", total)
    for k in srange(cdiv(K, W)):
        launch("gemm", total, Ap[0, k], B1p[k, 0])
        launch("gemm", total, Ap[0, k], B2p[k, 0])
    launch("copy", D, total)


def test_adjacent_launches_have_separate_copies():
    """Both operands of one instance are loaded by the producer in one iteration: one ring per operand."""
    mapping = dual.hopper(**GROUP, num_blocks=2)
    mapping = mapping.with_("dual_block", variant="dual_at_once", calls=["clear_tile", "gemm_tile", "gemm_tile", "copy_tile"])
    kept = tuple(one for one in mapping.instances if one.instance != "dual_both")
    bound = tasks.strategy(Tasks(dual_at_once, *dual.program.variants), attrs.evolve(mapping, instances=kept))(fluent_dual.spec(64, 16, 64))
    assert {"a_sh", "b_sh", "b_sh2"} <= {one.tensor.name for one in bound.program("sm_90a").walked.buffers}


@task("twice", Inner, reads=["src"], writes=["dst"])
def in_and_after_a_loop(dst, src):
    to, of = partition_by_blocks(dst, (1, dst.shape[1])), partition_by_blocks(src, (1, src.shape[1]))
    for i in srange(dst.shape[0]):
        launch("add", to[i, 0], of[0, 0])
    launch("add", to[0, 0], of[0, 0])


def test_a_copy_of_an_iteration_is_not_reused_after_the_loop():
    """The loop may have no iterations, so the launch after it copies again."""
    instances = [
        TaskMapping("grid", "whole", HOST, [GLOBAL, GLOBAL], {}, ["block"], entrypoint=True),
        TaskMapping("block", "in_and_after_a_loop", THREAD, [GLOBAL, GLOBAL], {}, ["added", "added"]),
        TaskMapping("added", "add", THREAD, [GLOBAL, SHARED]),
    ]
    block = TaskMapping("one", "whole", BLOCK, [GLOBAL, GLOBAL], {}, ["block"])
    mapping = Mapping([attrs.evolve(instances[0], calls=("one",)), block, *instances[1:]], AMPERE)
    bound = tasks.strategy(Tasks(whole, in_and_after_a_loop, add), mapping)(Move(4, 8, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel))
    assert [name for name, _ in bound.program("sm_80").tree.children] == ["src_sh", "z", "src_sh2", "z2"]


@task("batch_program", Inner, reads=["src"], writes=["dst"])
def batch_program(dst, src):
    to, of = partition_by_slices(dst), partition_by_slices(src)
    for b in prange(dst.shape[0]):
        launch("twice", to[b], of[b])


def test_the_matrices_of_a_batch():
    """Each is a piece without the batch dimension, in NumPy and in the kernel."""
    mapping = Mapping(
        [
            TaskMapping("batch_program", "batch_program", HOST, [GLOBAL, GLOBAL], {}, ["block"], entrypoint=True),
            TaskMapping("block", "rows", BLOCK, [GLOBAL, GLOBAL], {}, ["row"]),
            TaskMapping("row", "between", THREAD, [GLOBAL, GLOBAL], {}, ["move", "move", "add", "move"]),
            TaskMapping("move", "move", THREAD, [NONE, NONE]),
            TaskMapping("add", "add", THREAD, [REGISTER, REGISTER]),
        ],
        AMPERE,
    )
    program, a = Tasks(batch_program, rows, between, move, add), numpy.random.default_rng(1).random((3, 8, 5), numpy.float32)
    out = numpy.zeros_like(a)
    tasks.run(program, mapping, out, a, seed=2)
    assert (out == a + a).all()
    problem = Move(3, 8, 5, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    assert (simulated(tasks.strategy(program, mapping)(problem), "sm_80")(a) == a + a).all()


def test_fields_of_a_mapping_are_stored_as_json():
    for module in (gemm, batched, dual, gated, row_sum):
        for mapping in (module.ampere(), module.hopper()):
            assert Mapping.from_json(mapping.to_json()) == mapping
    clusters = gemm.hopper(cluster=(2, 1), persistent=132)
    assert Mapping.from_json(clusters.to_json()) == clusters


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gemm_host": {"cluster": (3, 1)}}, "not a multiple of the cluster"),
        ({"gemm_host": {"cluster": (2, 1), "persistent": 3}}, "3 blocks are not a multiple of 2"),
        ({"gemm_block": {"group_m": 4}}, "applies only to an instance that launches blocks"),
        ({"gemm_host": {"raster": 2, "group_m": 4}}, "raster=2"),
        ({"gemm_host": {"cluster": (8, 4)}}, "at most 16 blocks"),
        ({"gemm_block": {"producer_threads": 64}}, "a warp or a warpgroup"),
        ({"gemm_block": {"mma_in_flight": 3}}, "mma_in_flight=3"),
        ({"gemm_block": {"pipeline": 0, "warpspecialize": False, "interleave": True}}, "interleave requires a pipeline"),
        ({"gemm_block": {"pipeline": 1, "warpspecialize": False, "interleave": True}}, "a pipeline of at least two stages"),
        ({"gemm_tile": {"WN": 0}}, "gemm_tile divides by zero"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(FireironError, match=re.escape(message)):
        mapping = gemm.hopper(64, 64, WGS=1)
        for name, fields in changes.items():
            mapping = mapping.with_(name, **fields)
        tasks.strategy(gemm.program, mapping)(hopper.spec(256, 256, 128)).cuda("sm_90a")


def test_processors_of_other_machines_are_refused():
    with pytest.raises(FireironError, match="Ampere has no WARPGROUP"):
        gemm.ampere().with_("gemm_tile", proc=WARPGROUP)


def test_a_pipeline_of_one_iteration():
    """All of k in one iteration: no asynchronous loads, but fragments."""
    mapping, inputs = gemm.ampere(16, 8, 32, 1, 1, stages=3, lookahead=2), factors(16, 8, 30)
    bound = tasks.strategy(gemm.program, mapping)(gemm.spec(16, 8, 30))
    require_right(CASES["gemm"], inputs, simulated(bound, "sm_80")(*inputs))


def test_a_load_waits_for_the_order_of_its_reader():
    """For 8 columns, wgmma reads B by columns, and TMA loads a box by rows: the load transposes it."""
    bound = tasks.strategy(gemm.program, gemm.hopper(64, 8, 16, 1, 1, pieces=False))(gemm.spec(64, 8, 16))
    text = bound.cuda("sm_90a")
    assert "wgmma_m64n8k16_row_col" in text and "&B_map" not in text
    inputs = factors(64, 8, 16)
    require_right(CASES["gemm"], inputs, simulated(bound, "sm_90a")(*inputs))


def test_slices_and_first_takers_are_refused_where_they_do_not_fit():
    with pytest.raises(FireironError, match="a dimension from 0 to 1, of a tensor of 2 or more"):
        Slices(2).check((4, 4))
    with pytest.raises(FireironError, match="one size per dimension"):
        First((2, 2), 4).check((4,))
    assert First((2,), 3).coordinates((4,), (1, 0)) == ([2, 3],) and min(First((2,), 3).coordinates((4,), (1, 2))[0]) > 1 << 40


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(16))
def test_grids_at_random(seed):
    """Raster order, persistent blocks, clusters, rings: a GEMM."""
    chosen = random.Random(seed)
    groups = chosen.choice([1, 2])
    cluster = chosen.choice([(), (), (2, 1), (1, 2)])
    raster = chosen.choice([0, 0, 1, 2])
    fields = {
        "group_m": 1 if raster == 2 else chosen.choice([1, 2, 3]),
        "raster": raster,
        "persistent": chosen.choice([0, 4, 6]),
        "cluster": cluster,
    }
    mapping = gemm.hopper(
        64 * groups, 32, chosen.choice([32, 64]), groups, chosen.choice([2, 3]), epi_n=chosen.choice([0, 16, 32]), **fields
    )
    mapping = mapping.with_("gemm_block", producer_threads=chosen.choice([32, 128]), mma_in_flight=chosen.choice([None, 0, 1]))
    grid = [chosen.choice([2, 4]), chosen.choice([2, 4])]
    ragged = 0 if cluster else 8
    sizes = (64 * groups * grid[0] - ragged, 32 * grid[1] - ragged, chosen.choice([32, 72, 200]))
    bound, inputs = tasks.strategy(gemm.program, mapping)(hopper.spec(*sizes)), factors(*sizes)
    require_right(CASES["gemm"], inputs, simulated(bound, "sm_90a")(*inputs))


def test_persistent_blocks_at_sizes_without_a_bound():
    """The launcher checks that the number of tiles fits into 32 bits, for any number of blocks; a number that may not fit is refused."""
    problem = hopper.spec(*(sym(dim, multiple_of=8) for dim in "MNK"))
    facts = tasks.strategy(gemm.program, gemm.hopper(**GROUP, group_m=2, persistent=2))(problem).program("sm_90a").ir.facts
    assert [str(fact) for _, fact in facts] == ["(M + 63) // 64 * ((N + 15) // 16) < 2147483646"], "the index after the last tile fits, too"
    with pytest.raises(FireironError, match=r"tiles: a grid has at most 2\*\*31 - 3"):
        tasks.strategy(gemm.program, gemm.hopper(**GROUP, persistent=2))(hopper.spec(2**24, 2**24, 64)).program("sm_90a").ir  # noqa: B018
