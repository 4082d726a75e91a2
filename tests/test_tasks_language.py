"""Task programs and mappings as values: semantics in NumPy, other kinds of specs, and refusals with their line."""

import attrs
import numpy
import pytest

from fireiron import *
from fireiron import tasks
from fireiron.errors import FireironError
from fireiron.strategies import dual
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks import mapping as places

FIGURE_5 = gemm.hopper(128, 64, stages=2)


@task("copy", Inner, reads=["src"], writes=["dst"])
def blocks(dst, src, *, R=tunable(int), C=tunable(int)):
    (M, N), sizes = dst.shape, (R, C)
    to, of = partition_by_blocks(dst, sizes), partition_by_blocks(src, sizes)
    for i, j in prange(cdiv(M, R), cdiv(N, C)):
        launch("copy", to[i, j], of[i, j])


@task("copy", Leaf, reads=["src"], writes=["dst"])
def whole(dst, src):
    call_external("copy", dst, src)


COPY = Tasks(blocks, whole)


def copying(*more, leaf=(GLOBAL, GLOBAL), **sizes):
    """Blocks of 16 x 8, each thread 1 x 4 of them."""
    return Mapping(
        [
            TaskMapping("grid", "blocks", HOST, [GLOBAL, GLOBAL], {"R": 16, "C": 8, **sizes}, ["block"], entrypoint=True),
            TaskMapping("block", "blocks", BLOCK, [GLOBAL, GLOBAL], {"R": 1, "C": 4}, ["thread"]),
            TaskMapping("thread", "whole", THREAD, leaf),
            *more,
        ]
    )


def moved(M, N):
    return Move(M, N, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)


def test_a_program_of_another_kind():
    """A copy by threads, with and without their registers; overhanging tiles."""
    a = numpy.random.default_rng(0).random((18, 20), numpy.float32)
    for leaf in ((GLOBAL, GLOBAL), (GLOBAL, REGISTER)):
        assert (tasks.strategy(COPY, copying(leaf=leaf))(moved(18, 20)).compile("sm_80")(a) == a).all()
    out = numpy.zeros_like(a)
    tasks.run(COPY, copying(), out, a, seed=1)
    assert (out == a).all()


def test_two_gemms_with_one_accumulator():
    """The definition of a dual GEMM by the tasks of a GEMM: two launches in one loop."""

    @task("dual", Inner, reads=["A", "B1", "B2"], writes=["D"])
    def dual_host(D, A, B1, B2, *, U=tunable(int), V=tunable(int)):
        (M, N), K = D.shape, A.shape[1]
        Dp, Ap = partition_by_blocks(D, (U, V)), partition_by_blocks(A, (U, K))
        left, right = partition_by_blocks(B1, (K, V)), partition_by_blocks(B2, (K, V))
        for i, j in prange(cdiv(M, U), cdiv(N, V)):
            launch("dual", Dp[i, j], Ap[i, 0], left[0, j], right[0, j])

    @task("dual", Inner, reads=["A", "B1", "B2"], writes=["D"])
    def dual_block(D, A, B1, B2, *, W=tunable(int)):
        (M, N), K = D.shape, A.shape[1]
        acc = make_tensor((M, N), "float32")
        Ap, left, right = partition_by_blocks(A, (M, W)), partition_by_blocks(B1, (W, N)), partition_by_blocks(B2, (W, N))
        launch("clear", acc)
        for k in srange(cdiv(K, W)):
            launch("gemm", acc, Ap[0, k], left[k, 0])
            launch("gemm", acc, Ap[0, k], right[k, 0])
        launch("copy", D, acc)

    program = Tasks(dual_host, dual_block, *gemm.program.variants)
    of_product = gemm.ampere(16, 16, 16, 1, 1, 0)
    calls = ["clear_tile", "gemm_tile", "gemm_tile", "copy_tile"]
    mapping = Mapping(
        [
            TaskMapping("host", "dual_host", HOST, [GLOBAL] * 4, {"U": 16, "V": 16}, ["block"], entrypoint=True),
            TaskMapping("block", "dual_block", BLOCK, [GLOBAL] * 4, {"W": 16}, calls),
            *(one for one in of_product.instances if one.instance not in ("gemm_host", "gemm_block")),
        ],
        AMPERE,
    )
    random = numpy.random.default_rng(2)
    a, left, right = (random.integers(-3, 4, shape).astype("float16") for shape in ((16, 24), (24, 16), (24, 16)))
    wanted = a.astype("f4") @ (left.astype("f4") + right.astype("f4"))
    assert (tasks.strategy(program, mapping)(dual.spec(16, 16, 24)).compile("sm_80")(a, left, right) == wanted).all()


# ---------------------------------------------------------------------------------------------- values


def test_a_mapping_is_a_value():
    padded = FIGURE_5.with_("gemm_tile", layouts={"A": Stored(pad=8)})
    assert Mapping.from_json(padded.to_json()) == padded != FIGURE_5
    again = Mapping.from_json(FIGURE_5.to_json())
    assert again == FIGURE_5 and hash(again) == hash(FIGURE_5) and again.diff(FIGURE_5) == ()
    assert eval(repr(FIGURE_5), {**vars(places), **vars(tasks)}) == FIGURE_5
    other = FIGURE_5.with_("gemm_block", W=32, pipeline=4)
    assert other != FIGURE_5
    assert FIGURE_5.diff(other) == ("gemm_block.pipeline: 2 -> 4", "gemm_block.W: 64 -> 32")


def test_a_machine_is_data():
    """A level of two warpgroups with a separate memory."""
    pair = places.Processor("PAIR", Block)
    tensor = places.Place("TENSOR", SH)
    machine = Machine("mine", (HOST, pair, THREAD), ((HOST, (GLOBAL,)), (pair, (GLOBAL, tensor)), (THREAD, (GLOBAL, REGISTER))))
    instance = TaskMapping("copy", "whole", pair, [GLOBAL, tensor], entrypoint=True)
    mapping = Mapping([instance], machine)
    assert Mapping.from_json(mapping.to_json(), [machine]) == mapping
    with pytest.raises(FireironError, match="THREAD cannot access TENSOR"):
        Mapping([TaskMapping("copy", "whole", THREAD, [GLOBAL, tensor], entrypoint=True)], machine)


def test_parts_of_an_accumulator_are_those_of_the_instruction():
    """Figure 4: groups of 16 rows per warp; row 0 by threads 0 0 1 1 2 2 3 3, repeated every 8 columns, and row 8 equally."""
    from fireiron.tasks.partition import mma_pieces

    warps, threads = (mma_pieces("wgmma", one, "C") for one in (WARP, THREAD))
    owner = numpy.full((64, 24), -1)
    for warp in range(4):
        rows, columns = warps.coordinates((64, 24), (warp,))
        for lane in range(32):
            inner = threads.coordinates((16, 24), (lane,))
            owner[numpy.ix_(*[numpy.array(outer)[one] for outer, one in zip((rows, columns), inner, strict=True)])] = 32 * warp + lane
    assert owner[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 3
    assert (owner[8] == owner[0]).all() and owner[16, 0] == 32 and (numpy.bincount(owner.ravel()) == 12).all()


def test_declared_disjoint_parts_of_an_operand_are_disjoint():
    """No two processors own the same element of the result or of an accumulator; operands are shared."""
    from fireiron.tasks.partition import mma_pieces

    shapes = {"A": (16, 16), "B": (16, 8), "C": (16, 8), "rows": (16,), "parts": (16, 4)}
    for operand, shape in shapes.items():
        by, owners = mma_pieces("mma.m16n8k16", THREAD, operand), numpy.zeros(shape, int)
        for lane in range(32):
            owners[numpy.ix_(*by.coordinates(shape, (lane,)))] += 1
        assert owners.min() >= 1 and by.disjoint == (owners.max() == 1), operand
    warps = mma_pieces("wgmma", WARP, "B")
    assert not warps.disjoint and warps.coordinates((16, 8), (0,)) == warps.coordinates((16, 8), (3,))


@pytest.mark.parametrize(("name", "operand"), [("B", "A"), ("A", "B"), ("C", "A")])
def test_parts_of_factors_belong_to_those_of_the_result(name, operand):
    """The MMA of a thread uses its rows and columns; another part of an operand is refused."""
    from fireiron.tasks.partition import mma_pieces
    from fireiron.tasks.step import _group_spec

    spec = MatMul(16, 16, 16)(RF, RF, RF)(Thread)
    chains = {one: ((mma_pieces("mma.m16n8k16", THREAD, one), (16, 16)),) for one in "ABC"}
    assert _group_spec(spec, chains) is spec
    with pytest.raises(
        DecompositionError, match="do not match those of the other operands along|has only a part of the reduced dimension k"
    ):
        _group_spec(spec, {**chains, name: ((mma_pieces("mma.m16n8k16", THREAD, operand), (16, 16)),)})


# ---------------------------------------------------------------------------------------------- refusals


def gemm_of(**mems):
    instances = [one if one.instance not in mems else TaskMapping(*mems[one.instance]) for one in FIGURE_5.instances]
    return lambda: tasks.strategy(gemm.program, Mapping(instances))(product()).cuda("sm_90a")


def product():
    return MatMul(128, 64, 64, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


def program_of(function):
    """A reader of a copy whose blocks are another variant."""
    return lambda: tasks.strategy(Tasks(function, blocks, whole), copying(R=4, C=4).with_("grid", variant=function.name, calls=["thread"]))(
        moved(16, 8)
    ).cuda("sm_80")


@task("copy", Inner, writes=["dst"])
def unread(dst, src, *, R=tunable(int), C=tunable(int)):
    launch("copy", dst, src)


@task("copy", Inner, reads=["src"], writes=["dst"])
def twice(dst, src, *, R=tunable(int), C=tunable(int)):
    to, of = partition_by_blocks(dst, (R, C)), partition_by_blocks(src, (R, C))
    for i, _j in prange(4, 2):
        launch("copy", to[i, 0], of[i, 0])


@task("copy", Inner, reads=["src"], writes=["dst"])
def shifted(dst, src, *, R=tunable(int), C=tunable(int)):
    own = make_tensor(dst.shape, "float32")
    rows = partition_by_blocks(own, (R, C))
    launch("copy", own, src)
    for i in prange(2):
        launch("copy", rows[i, 0], rows[i + 1, 0])


@task("copy", Inner, reads=["src"], writes=["dst"])
def through(dst, src, *, R=tunable(int), C=tunable(int)):
    own = make_tensor(dst.shape, "float32")
    launch("copy", own, src)
    launch("copy", dst, own)


SHIFTED = Tasks(blocks, shifted, whole)


@task("copy", Inner, reads=["src"], writes=["dst"])
def touching(dst, src, *, R=tunable(int), C=tunable(int)):
    dst[0, 0]


@task("copy", Inner, reads=["src"], writes=["dst"])
def working(dst, src, *, R=tunable(int), C=tunable(int)):
    call_external("copy", dst, src)


@task("copy", Leaf, reads=["src"], writes=["dst"])
def launching(dst, src, *, R=tunable(int), C=tunable(int)):
    launch("copy", dst, src)


@task("copy", Inner, reads=["src"], writes=["dst"])
def idle(dst, src, *, R=tunable(int), C=tunable(int)):
    pass


REFUSED = {
    "a privilege exceeded": (program_of(unread), "whole reads src, but unread, which passes src for it, has no such privilege"),
    "two writers": (program_of(twice), "may access the same elements"),
    "a writer of what others read": (
        lambda: tasks.strategy(SHIFTED, copying(leaf=[NONE, NONE]).with_("block", variant="shifted", R=1, C=8, calls=["thread", "thread"]))(moved(16, 8)).cuda(
            "sm_80"
        ),
        "may access the same elements: whole.dst. writes them, and whole.src. reads them",
    ),
    "a tensor of the host": (
        lambda: tasks.strategy(Tasks(through, blocks, whole), copying(R=4, C=4).with_("grid", variant="through", calls=["thread"] * 2))(
            moved(16, 8)
        ).cuda("sm_80"),
        "HOST cannot allocate a tensor",
    ),
    "elements in an Inner": (program_of(touching), "must not access elements"),
    "work in an Inner": (program_of(working), "an Inner variant must not access data"),
    "a call that is no launch": (program_of(idle), "idle has 0 launches"),
    "a Leaf with calls": (program_of(launching), "a Leaf must not launch tasks"),
    "no entry point": (lambda: Mapping([TaskMapping("a", "whole", HOST, [GLOBAL] * 2)]), "one instance must be the entry point"),
    "two": (lambda: Mapping([TaskMapping(name, "whole", HOST, [GLOBAL] * 2, entrypoint=True) for name in "ab"]), r"\['a', 'b'\]"),
    "shared memory of the host": (lambda: copying(TaskMapping("x", "whole", HOST, [SHARED, GLOBAL])), "HOST cannot access SHARED"),
    "registers of a block": (lambda: copying(TaskMapping("x", "whole", BLOCK, [GLOBAL, REGISTER])), "BLOCK cannot access REGISTER"),
    "an unknown instance": (lambda: copying(TaskMapping("x", "blocks", HOST, [GLOBAL] * 2, calls=["blok"])), "block\\?"),
    "a call outwards": (lambda: copying(TaskMapping("x", "blocks", THREAD, [GLOBAL] * 2, calls=["grid"])), "an outer processor"),
    "a tunable without a value": (
        lambda: COPY.check(copying().with_("grid", tunables={"R": 4})), "the tunable C has no value",
    ),
    "a layout of what is not there": (
        lambda: COPY.check(copying().with_("grid", layouts={"src": Stored(pad=8)})), "src has a layout, but is not in SHARED",
    ),
    "an unknown tunable": (lambda: COPY.check(copying(Q=3)), "no tunable Q"),
    "a tunable of another kind": (lambda: COPY.check(copying(R="16")), "got *'16'"),
    "no tunable of that name": (lambda: copying().with_("grid", Z=1), "no tunable Z"),
    "NONE for all": (
        gemm_of(
            clear_thread=("clear_thread", "clear_thread", THREAD, [NONE]),
            gemm_thread=("gemm_thread", "gemm_thread", THREAD, [NONE, SHARED, SHARED]),
            copy_thread=("copy_thread", "copy_thread", THREAD, [GLOBAL, NONE]),
        ),
        "no launched instance specifies a memory for the tensor",
    ),
    "a part of the pieces": (
        gemm_of(gemm_warp=("gemm_warp", "gemm_inner", WARP, [NONE, SHARED, SHARED], {"INSTR": "wgmma", "PIECES": 16, "PROC": THREAD},
                           ["gemm_thread"])),
        "all pieces must be launched together",
    ),
    "an the instruction is unknown": (
        gemm_of(gemm_warp=("gemm_warp", "gemm_inner", WARP, [NONE, SHARED, SHARED], {"INSTR": "mma", "PIECES": 32, "PROC": THREAD},
                           ["gemm_thread"])),
        "the instruction is unknown",
    ),
    "a task outside a program": (lambda: whole(1, 2), "a task must be launched, not called"),
    "a launch outside a task": (lambda: launch("copy"), "no task is running"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    refused, message = REFUSED[name]
    with pytest.raises(FireironError, match=message) as caught:
        refused()
    assert "test_tasks_language.py:" in str(caught.value) or "tasks_gemm.py:" in str(caught.value), "the line"


def test_numpy_semantics_refuse_conflicting_launches_and_name_the_element():
    out, a = numpy.zeros((16, 8), "f4"), numpy.ones((16, 8), "f4")
    mapping = copying(R=4, C=4).with_("grid", variant="twice", calls=["thread"])
    with pytest.raises(FireironError, match=r"access element \(0, 0\), and one writes it"):
        tasks.run(Tasks(twice, blocks, whole), mapping, out, a)


@attrs.frozen
class EveryOther(Partition):
    """A user-defined partition: `parts` pieces, each with every parts-th row."""

    parts: int

    @property
    def disjoint(self):
        return True

    def counts(self, shape):
        return (self.parts,)

    def shape(self, shape):
        return (shape[0] // self.parts, shape[1])

    def coordinates(self, shape, place):
        return list(range(place[0], shape[0], self.parts)), list(range(shape[1]))

    def view(self, whole, place, units):
        tiled = whole.tile(Layout(int(whole.shape[0].low) // self.parts, self.parts), None)
        return tiled.at((place[0], 0), unit=bool(units & place[0].variables()))


def test_a_user_defined_partition():
    """Non-contiguous pieces, with coordinates from zero."""

    @task("copy", Inner, reads=["src"], writes=["dst"])
    def by_rows(dst, src):
        to, of = (partition(one, EveryOther(4)) for one in (dst, src))
        for i in prange(4):
            launch("copy", to[i], of[i])

    program = Tasks(blocks, by_rows, whole)
    grid, _, thread = copying(R=16, C=8).instances
    mapping = Mapping([grid, TaskMapping("block", "by_rows", BLOCK, [GLOBAL, GLOBAL], calls=["thread"]), thread])
    a = numpy.random.default_rng(0).random((16, 16), numpy.float32)
    out = numpy.zeros_like(a)
    tasks.run(program, mapping, out, a, seed=1)
    assert (out == a).all()
    assert (tasks.strategy(program, mapping)(moved(16, 16)).compile("sm_80")(a) == a).all()
