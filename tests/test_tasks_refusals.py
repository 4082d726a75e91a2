"""What a task program, a mapping or a run refuses: with the task, the argument, the user's line, and what would be legal.

Some programs are legal for the run in NumPy and refused by the compiler, which cannot evaluate them.
"""

import json
import pickle

import attrs
import numpy
import pytest

from fireiron import *
from fireiron import tasks
from fireiron.check import check
from fireiron.errors import FireironError, StoreError
from fireiron.language.store.converter import Store
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks.digest import digest
from fireiron.tasks.mapping import Place, Processor
from fireiron.tasks.step import TaskProgram


@task("copy", Inner, reads=["src"], writes=["dst"])
def blocks(dst, src, *, R=tunable(int), C=tunable(int)):
    to, of = partition_by_blocks(dst, (R, C)), partition_by_blocks(src, (R, C))
    for i, j in prange(cdiv(dst.shape[0], R), cdiv(dst.shape[1], C)):
        launch("copy", to[i, j], of[i, j])


@task("copy", Leaf, reads=["src"], writes=["dst"])
def whole(dst, src):
    call_external("copy", dst, src)


SIZES = {"R": 1, "C": 4}
INSTANCES = (
    TaskMapping("grid", "blocks", HOST, [GLOBAL] * 2, {"R": 16, "C": 8}, ["block"], entrypoint=True),
    TaskMapping("keep", "blocks", BLOCK, [SHARED, NONE], SIZES, ["thread"]),
    TaskMapping("move", "blocks", BLOCK, [NONE, NONE], SIZES, ["thread"]),
    TaskMapping("thread", "whole", THREAD, [NONE, NONE]),
)


def moved(M=16, N=8):
    return Move(M, N, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)


def of_block(variant, *calls):
    """A copy whose blocks are a variant: as a program and a mapping."""
    block = TaskMapping("block", variant.name, BLOCK, [GLOBAL] * 2, calls=calls)
    return Tasks(variant, blocks, whole), Mapping([*INSTANCES, block])


def meaning(program, mapping, M=16, N=8):
    a = numpy.arange(M * N, dtype="f4").reshape(M, N) + 1
    out = numpy.zeros_like(a)
    tasks.run(program, mapping, out, a)
    return out


def compiled(program, mapping, M=16, N=8):
    a = numpy.arange(M * N, dtype="f4").reshape(M, N) + 1
    return tasks.strategy(program, mapping)(moved(M, N)).compile("sm_80")(a)


def refused(call, message, line="test_tasks_refusals.py:", legal=True):
    with pytest.raises(FireironError, match=message) as caught:
        call()
    text = str(caught.value)
    assert line in text, text
    assert not legal or "legal" in text, text


# ---------------------------------------------------------------------------------------------- variants

WRONG = {}


def wrong(message, *calls, form=Inner, meant=True):
    """A variant that the compiler refuses; the run in NumPy too if it is `meant`, or with a different message."""

    def variant(function):
        WRONG[function.__name__] = task("copy", form, reads=["src"], writes=["dst"])(function), calls, message, meant
        return function

    return variant


EARLY = "a loop of a task must run to its end"


@wrong(EARLY, "move")
def left_by_break(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    for i in prange(4):
        launch("copy", to[i, 0], of[i, 0])
        break


@wrong(EARLY, "move")
def left_by_return(dst, src):
    to, of = partition_by_blocks(dst, (4, 4)), partition_by_blocks(src, (4, 4))
    for i in srange(4):
        for j in srange(2):
            launch("copy", to[i, j], of[i, j])
            return


@wrong(EARLY, "move")
def stepped_by_hand(dst, src):
    next(prange(4))
    launch("copy", dst, src)


@wrong(EARLY, "move")
def two_loops_at_once(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    for i, j in zip(prange(4), prange(4), strict=True):
        launch("copy", to[i, 0], of[j, 0])


@wrong("the variable of a loop that has ended", "move", meant=False)
def indices_of_an_ended_loop(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    for i in list(prange(4)):
        launch("copy", to[i, 0], of[i, 0])


@wrong("is known only at run time", "move", "move", meant=False)
def branch_on_an_index(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    for i in srange(4):
        if i == 0:
            launch("copy", to[i, 0], of[i, 0])
        else:
            launch("copy", to[i, 0], of[i, 0])


@wrong("where Python needs an integer", "move", meant=False)
def index_of_a_list(dst, src):
    to, of = partition_by_blocks(dst, (8, 8)), partition_by_blocks(src, (8, 8))
    for i in srange(2):
        launch("copy", to[[1, 0][i], 0], of[i, 0])


@wrong("is out of range in some iteration", "move", meant="no piece")
def piece_past_the_end(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    for i in srange(4):
        launch("copy", to[i, 0], of[i + 1, 0])


@wrong("is out of range in some iteration", "move", meant="no piece")
def piece_before_the_first(dst, src):
    launch("copy", dst, partition_by_blocks(src, (4, 8))[-1, 0])


@wrong("iterations of a loop differ by more than their index", "keep", "keep", "move", "move", meant=False)
def buffers_that_change_places(dst, src):
    x, y = make_tensor(dst.shape, "float32"), make_tensor(dst.shape, "float32")
    launch("copy", x, src)
    launch("copy", y, src)
    for _ in srange(3):
        launch("copy", y, x)
        x, y = y, x
    launch("copy", dst, x)


@wrong("iterations of a loop differ by more than their index", "move", meant=False)
def a_count_of_ones_own(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    numbers = iter(range(8))
    for _ in srange(4):
        n = next(numbers)
        launch("copy", to[n, 0], of[n, 0])


@wrong("iterations of a loop differ by more than their index", "keep", "move", meant=False)
def the_first_iteration_only(dst, src):
    own, done = make_tensor(dst.shape, "float32"), []
    for _ in srange(3):
        if not done:
            launch("copy", own, src)
            done.append(True)
    launch("copy", dst, own)


@wrong("is launch 2, but the mapping has 1 calls", "move")
def one_launch_too_many(dst, src):
    to, of = partition_by_blocks(dst, (8, 8)), partition_by_blocks(src, (8, 8))
    launch("copy", to[0, 0], of[0, 0])
    launch("copy", to[1, 0], of[1, 0])


@wrong("one_launch_too_few has 1 launches", "move", "move")
def one_launch_too_few(dst, src):
    launch("copy", dst, src)


@wrong("an Inner variant must not access data", "move")
def an_inner_that_touches_data(dst, src):
    call_external("copy", dst, src)


@wrong("prange requires at least one extent", "move")
def a_loop_without_an_extent(dst, src):
    for _ in prange():
        launch("copy", dst, src)


@wrong("srange: an extent is negative", "move")
def a_loop_of_negative_length(dst, src):
    for _ in srange(-1):
        launch("copy", dst, src)


@wrong("a Leaf must not launch tasks", form=Leaf)
def a_leaf_that_launches(dst, src):
    launch("copy", dst, src)


@wrong("whole writes dst, which may overlap with src", "thread")
def one_tensor_twice(dst, src):
    own = make_tensor(dst.shape, "float32")
    launch("copy", own, own)


@wrong("blocks writes dst, which may overlap with src", "keep", "move", "move", meant=False)
def cut_in_two_ways(dst, src):
    own = make_tensor(dst.shape, "float32")
    rows, columns = partition_by_blocks(own, (8, 8)), partition_by_blocks(own, (16, 4))
    launch("copy", own, src)
    launch("copy", partition_by_blocks(columns[0, 0], (8, 4))[0, 0], partition_by_blocks(rows[1, 0], (8, 4))[0, 0])
    launch("copy", dst, own)


@wrong(
    "two launches of a prange may access the same elements: blocks.dst. writes them, and blocks.dst. writes them",
    "move",
    meant="access element",
)
def all_write_the_first(dst, src):
    to, of = partition_by_blocks(dst, (4, 8)), partition_by_blocks(src, (4, 8))
    for i in prange(4):
        launch("copy", to[0, 0], of[i, 0])


@wrong("whole writes dst, but reversed_copy, which passes src for it, has no such privilege", "thread")
def reversed_copy(dst, src):
    launch("copy", src, dst)


@wrong('launch."copi".*, but the program has no such task', "move")
def misspelt(dst, src):
    launch("copi", dst, src)


@wrong("launch requires the name of a task", "move")
def launched_by_function(dst, src):
    launch(whole, dst, src)


@wrong("tensors must be positional arguments", "move")
def launched_by_keywords(dst, src):
    launch("copy", dst, src=src)


@wrong("argument 0 is not a tensor", "move")
def all_pieces_at_once(dst, src):
    launch("copy", partition_by_blocks(dst, (4, 4)), src)


@wrong("passes 1 tensors", "move")
def a_tensor_missing(dst, src):
    launch("copy", dst)


@wrong("a task must not access elements of a tensor, here of dst", "move")
def elements(dst, src):
    dst[0, 0] = 1


@wrong("a task must not access elements of a tensor, here of src", "move")
def arithmetic(dst, src):
    launch("copy", dst, src + src)


@wrong("a task must not access elements of a tensor, here of dst", form=Leaf)
def by_numpy(dst, src):
    numpy.copyto(dst, src)


@wrong("declares that it writes dst, but does nothing", form=Leaf)
def nothing(dst, src):
    pass


@wrong("a task must not return a value", "move")
def a_result(dst, src):
    launch("copy", dst, src)
    return dst


@wrong("call_external: the function is unknown", form=Leaf)
def unknown_work(dst, src):
    call_external(["copy"], dst, src)


@wrong('call_external."matmul"', form=Leaf)
def too_few_operands(dst, src):
    call_external("matmul", dst, src)


@wrong("Move writes src, which the variant's privileges do not permit", form=Leaf)
def the_other_way_round(dst, src):
    call_external("copy", src, dst)


@wrong("one size per dimension", "move")
def one_number_for_a_shape(dst, src):
    make_tensor(4, "float32")


@wrong("unknown element type", "move")
def unknown_elements(dst, src):
    make_tensor((4, 4), "floaty")


@wrong("the blocks have no elements", "move")
def empty_blocks(dst, src):
    partition_by_blocks(dst, (4, 0))


@wrong("the tensor has 2 dimensions, 16 x 8", "move")
def blocks_of_rows(dst, src):
    partition_by_blocks(dst, (4,))


@wrong("is not an integer expression", "move")
def half_an_iteration(dst, src):
    for _ in prange(2.5):
        launch("copy", dst, src)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant(name):
    variant, calls, message, meant = WRONG[name]
    program, mapping = of_block(variant, *calls)
    refused(lambda: compiled(program, mapping), message)
    if meant:
        refused(lambda: meaning(program, mapping), message if meant is True else meant)
    else:
        meaning(program, mapping)


# ---------------------------------------------------------------------------------------------- faults that only a run finds


@task("copy", Inner, reads=["src"], writes=["dst"])
def half(dst, src):
    launch("copy", partition_by_blocks(dst, (8, 8))[0, 0], partition_by_blocks(src, (8, 8))[0, 0])


@task("copy", Inner, reads=["src"], writes=["dst"])
def before_it_is_written(dst, src):
    own = make_tensor(dst.shape, "int32")
    launch("copy", own, src)
    launch("copy", dst, make_tensor(dst.shape, "int32"))


def test_a_partly_written_result_would_depend_on_the_mapping():
    refused(lambda: meaning(*of_block(half, "move")), r"half writes dst only in part(.|\n)*element \(8, 0\)")


def test_elements_that_nothing_has_written():
    refused(lambda: meaning(*of_block(before_it_is_written, "keep", "keep")), "were not written")
    refused(lambda: compiled(*of_block(before_it_is_written, "keep", "keep")), "which no earlier launch writes")
    program, mapping = of_block(before_it_is_written, "keep", "move")
    mapping = mapping.with_("move", mems=[NONE, SHARED]).with_("thread", mems=[NONE, REGISTER])  # its copy stays the same
    refused(lambda: compiled(program, mapping), "which no earlier launch writes")


def test_arrays_of_a_run():
    program, mapping = of_block(half, "move")
    a, locked = numpy.zeros((16, 8), "f4"), numpy.zeros((16, 8), "f4")
    locked.flags.writeable = False
    for arrays, message in (
        ((a,), "1 arrays"), ((a, a.tolist()), "src is not an array"), ((locked, a), "read-only"), ((a, a[:]), "the arrays dst and src overlap"),
        ((a, a.astype("c8")), "unknown element type"),
    ):  # fmt: skip
        refused(lambda arrays=arrays: tasks.run(program, mapping, *arrays), message)


# ---------------------------------------------------------------------------------------------- legal programs close to these


@task("copy", Inner, reads=["src"], writes=["dst"])
def provable(dst, src):
    own = make_tensor(dst.shape, "float32")
    rows = partition_by_blocks(own, (4, 8))
    launch("copy", own, src)
    for k in srange(3):
        if k >= 0:  # the same in all iterations
            launch("copy", rows[k + 1, 0], rows[k, 0])
    for _ in srange(0):
        launch("copy", own, src)
    launch("copy", dst, own)


def test_disjoint_pieces_and_loops_without_iterations():
    """A copy to the next rows in a loop; the launch of a loop without iterations is listed among the calls."""
    program, mapping = of_block(provable, "keep", "move", "keep", "move")
    result = meaning(program, mapping)
    assert (result == compiled(program, mapping)).all() and (result[12:] == result[:4]).all()


@task("copy", Inner, reads=["src"], writes=["dst"])
def empty_iterations(dst, src):
    rows = partition_by_blocks(src, (16, 8))
    for k in srange(0):
        other = make_tensor(src.shape, "float32")
        for _ in srange(2):
            launch("copy", other, rows[k + 1, 0])
    launch("copy", dst, src)


def test_a_loop_without_iterations_is_only_analyzed():
    """Its pieces need not exist, and its result is unused."""
    program, mapping = of_block(empty_iterations, "move", "move")
    mapping = mapping.with_("block", pipeline=2)
    assert (meaning(program, mapping) == compiled(program, mapping)).all()
    assert "int k" not in tasks.strategy(program, mapping)(moved()).cuda("sm_80")


@task("copy", Inner, reads=["src"], writes=["dst"])
def twice_blocks(dst, src):
    for part in (0, 1):
        to, of = (partition_by_blocks(partition_by_blocks(one, (8, 8))[part, 0], (4, 8)) for one in (dst, src))
        for i in prange(2):
            launch("copy", to[i, 0], of[i, 0])
        for i in prange(2):
            launch("copy", to[i, 0], of[i, 0])


def test_blocks_from_two_places():
    grid = TaskMapping("grid", "twice_blocks", HOST, [GLOBAL] * 2, calls=["move", "move"], entrypoint=True)
    mapping = Mapping([grid, *INSTANCES[2:]])
    refused(lambda: compiled(Tasks(twice_blocks, blocks, whole), mapping), "launches on BLOCK at two positions")


@pytest.mark.parametrize("walked", [dict(group_m=2), dict(group_m=2, raster=1, persistent=4), dict(group_m=1, raster=2)])
def test_every_block_runs(walked):
    """3 x 5 of them."""
    grid = attrs.evolve(INSTANCES[0], calls=("move",), **walked)
    assert (compiled(Tasks(blocks, whole), Mapping([grid, *INSTANCES[2:]]), 48, 40) != 0).all()


@task("copy", Inner, reads=["src"], writes=["dst"])
def doubled_by_one(dst, src):
    own = make_tensor(src.shape, "float32")
    launch("copy", own, src)
    launch("double", own)
    launch("copy", dst, own)


@task("double", Leaf, reads=["x"], writes=["x"])
def doubled(x):
    call_external(Pointwise, z=x, z_before=x, formula="z[m,n] = z_before[m,n] + z_before[m,n]")


def test_groups_of_several_sizes():
    """More threads than the last launch has, and a launch of a single thread: each works once."""
    block = TaskMapping("block", "doubled_by_one", BLOCK, [GLOBAL] * 2, calls=["keep", "double", "move"])
    mapping = Mapping([*INSTANCES, block, TaskMapping("double", "doubled", THREAD, [NONE])]).with_("keep", C=2)
    program = Tasks(doubled_by_one, blocks, whole, doubled)
    result = compiled(program, mapping)
    assert (result == meaning(program, mapping)).all() and result[0, 1] == 4


@task("copy", Inner, reads=["src"], writes=["dst"])
def by_the_first(dst, src):
    to, of = partition_by_first(dst, (16, 8), 2), partition_by_blocks(src, (16, 8))
    for i in prange(2):
        launch("copy", to[0, 0, i], of[0, 0])


def test_the_first_of_several_tasks_stores_its_result_alone():
    grid = TaskMapping("grid", "by_the_first", HOST, [GLOBAL] * 2, calls=["keep"], entrypoint=True)
    program, mapping = Tasks(by_the_first, blocks, whole), Mapping([grid, *INSTANCES[1:]])
    assert (compiled(program, mapping) == meaning(program, mapping)).all()
    assert not [one for one in check(tasks.strategy(program, mapping)(moved()).program("sm_80").ir) if one.severity == "error"]


# ---------------------------------------------------------------------------------------------- user-defined partitions


@attrs.frozen
class Rows(Partition):
    """Pieces of `size` rows with a distance of `step`; `fault` names what is wrong."""

    size: int
    step: int
    fault: str = ""

    @property
    def disjoint(self):
        return True

    def counts(self, shape):
        return ((shape[0] - self.size) // self.step + 1,)

    def shape(self, shape):
        return (self.size + (self.fault == "shape"), shape[1])

    def coordinates(self, shape, place):
        first = self.step * place[0] + (self.fault == "view")
        return list(range(first, first + self.size)), list(range(shape[1]))

    def view(self, whole, place, units):
        return whole.tile(self.size, None).at((place[0], 0), unit=False)


def by(rows):
    @task("copy", Inner, reads=["src"], writes=["dst"])
    def user_pieces(dst, src):
        to, of = partition(dst, rows), partition(src, rows)
        for i in prange((16 - rows.size) // rows.step + 1):
            launch("copy", to[i], of[i])

    return of_block(user_pieces, "move")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (Rows(4, 2), "has the coordinates .*, but its view has|overlap, although the partition is disjoint"),
        (Rows(4, 4, "shape"), "must have 5 x 8 elements"),
        (Rows(4, 4, "view"), "but its view has"),
    ],
)
def test_a_partition_that_contradicts_its_declaration(rows, message):
    refused(lambda: compiled(*by(rows)), message)


def test_a_partition_that_obeys_its_declaration():
    assert (compiled(*by(Rows(4, 4))) == meaning(*by(Rows(4, 4)))).all()


def test_disjointness_is_unknown_for_run_time_sizes():
    @task("copy", Inner, reads=["src"], writes=["dst"])
    def rows_of_all(dst, src):
        to, of = partition(dst, Rows(4, 4)), partition(src, Rows(4, 4))
        for i in prange((dst.shape[0] - 4) // 4 + 1):
            launch("copy", to[i], of[i])

    program = Tasks(rows_of_all, blocks, whole)
    grid = TaskMapping("grid", "rows_of_all", HOST, [GLOBAL] * 2, calls=["move"], entrypoint=True)
    bound = tasks.strategy(program, Mapping([grid, *INSTANCES[2:]]))(moved(sym("M", high=4096), 8))
    refused(lambda: bound.cuda("sm_80"), "it is unknown whether its pieces are disjoint, for M x 8 elements")


# ---------------------------------------------------------------------------------------------- declarations, mappings

SOME = Mapping([*INSTANCES, TaskMapping("block", "whole", BLOCK, [GLOBAL] * 2)])


def entry(**fields):
    given = {"instance": "a", "variant": "whole", "proc": BLOCK, "mems": [GLOBAL] * 2, "entrypoint": True}
    return TaskMapping(**{**given, **fields})


def generator(dst, src):
    yield launch("copy", dst, src)


def tried(form, **more):
    return lambda function: lambda: task("copy", form, **more)(function)


def stored(change):
    """Load a mapping whose JSON was changed."""
    data = json.loads(SOME.to_json())
    change(data)
    return lambda: Mapping.from_json(json.dumps(data))


VALUES = {
    "an empty name of a task": (lambda: task("", Inner), "task: the first argument must be the name"),
    "a keyword that is no tunable": (tried(Inner)(lambda dst, *, U=3: None), r"U is not a tunable(.|\n)*legal +U=tunable.int."),
    "a number for a mapping": (lambda: Tasks(whole).check(3), "a program requires a mapping(.|\n)*got +3"),
    "a partition of a number": (lambda: partition(3, Rows(4, 4)), "partition requires a tensor of a task and a Partition"),
    "a tensor without dimensions": (lambda: make_tensor((), "float32"), "make_tensor: the tensor has no elements"),
    "a tensor without elements": (lambda: make_tensor((4, 0), "float32"), "make_tensor: the tensor has no elements"),
    "a size for all dimensions": (lambda: partition_by_blocks(3, 4), "partition_by_blocks requires one size per dimension"),
    "sizes in a text": (lambda: partition_by_first(3, "4", 2), "partition_by_first requires one size per dimension"),
    "too many stages": (lambda: Stored(stages=1000), "Stored: stages is out of range(.|\n)*legal +0 to "),
    "stages below zero": (lambda: Stored(stages=-1), "Stored: stages is out of range"),
    "a swizzle of two": (lambda: Stored(swizzle=2), "Stored: swizzle must be true or false(.|\n)*got +2"),
    "a memory too few": (lambda: Tasks(whole).check(Mapping([entry(mems=[GLOBAL])])), "the number of memories differs from the number of tensors(.|\n)*legal +.*dst.*src"),
    "a tunable too many": (lambda: Tasks(whole).check(Mapping([entry(tunables={"Z": 1})])), "no tunable Z(.|\n)*legal +none"),
    "two instances of one name": (lambda: Mapping([entry(), entry(entrypoint=False)]), "two instances are called a"),
    "a launch outside": (lambda: launch("copy", 1, 2), "no task is running"),
    "values beside a mapping": (lambda: tasks.strategy(Tasks(blocks, whole), SOME, R=3), "values require a function(.|\n)*got .*R"),
    "an entry point of one": (lambda: entry(entrypoint=1), "a: entrypoint(.|\n)*got +1"),
    "a layout in words": (lambda: entry(layouts={"dst": "padded"}), "layouts must be Stored"),
    "an instance that there is not": (lambda: SOME["nothing"], "no instance nothing(.|\n)*legal +grid keep"),
    "JSON with one instance": (stored(lambda found: found.update(instances={})), "its instances must be a list"),
    "JSON with a memory for all": (stored(lambda found: found["instances"][0].update(mems="GLOBAL")), "mems: not a list of names"),
    "JSON with calls of numbers": (stored(lambda found: found["instances"][0].update(calls=[1])), "calls: not a list of names"),
    "JSON with a number for a variant": (stored(lambda found: found["instances"][0].update(variant=1)), "its variant must be a text"),
    "JSON with another entry point": (stored(lambda found: found["instances"][0].update(entrypoint=1)), "entrypoint"),
    "JSON with a layout unknown": (
        stored(lambda found: found["instances"][1].update(layouts={"dst": {"padded": 1}})), "the field 'padded' is unknown",
    ),
    "no name of a task": (lambda: task(lambda dst: None), "task: missing a required argument|task: the first argument must be the name"),
    "a form in words": (tried("Inner")(lambda dst: None), "the form must be Inner or Leaf"),
    "reads in one text": (tried(Inner, reads="dst")(lambda dst: None), "reads must be a list of names"),
    "an unknown tensor": (tried(Inner, reads=["C"])(lambda dst: None), "no tensor C to read or write"),
    "tensors without names": (tried(Inner)(lambda *tensors: None), "each tensor of a task needs a name"),
    "a tunable among the tensors": (tried(Inner)(lambda dst, U=tunable(int): None), "is among the tensors"),
    "a class": (tried(Inner)(int), "must decorate a function"),
    "a generator": (tried(Inner)(generator), "must not be a generator or a coroutine"),
    "two variants of one name": (lambda: Tasks(whole, task("copy", Leaf, writes=["dst"])(whole.function)), "two variants are named whole"),
    "variants of other tensors": (lambda: Tasks(whole, task("copy", Leaf)(lambda C: None)), "variants of copy must have the same tensors"),
    "a list of variants": (lambda: Tasks([whole]), "not a variant of a task"),
    "an instance that launches itself": (lambda: Mapping([entry(variant="blocks", calls=["a"])]), "a launches itself"),
    "two that launch each other": (
        lambda: Mapping([entry(calls=["b"]), entry(instance="b", calls=["a"], entrypoint=False)]), "a launches itself(.|\n)*a -> b -> a",
    ),
    "calls in one text": (lambda: entry(calls="abc"), "must be a list"),
    "one memory": (lambda: entry(mems=GLOBAL), "must be a list"),
    "a memory in words": (lambda: entry(mems=["GLOBAL"]), "mems must be places"),
    "a processor in words": (lambda: entry(proc="BLOCK"), "proc is not a processor"),
    "tunables without names": (lambda: entry(tunables=[1, 2]), "the values must be a dictionary by name"),
    "a list for a tunable": (lambda: entry(tunables={"U": [1]}), "the tunable U"),
    "a variant itself": (lambda: entry(variant=whole), "variant"),
    "no instances": (lambda: Mapping(entry()), "must be a list"),
    "instances in words": (lambda: Mapping(["a"]), "not an instance"),
    "a target for a machine": (lambda: Mapping([entry()], "sm_80"), "not a machine"),
    "a bound in words": (lambda: Mapping([entry()], max_shared_bytes="48 KB"), "max_shared_bytes must be a number of bytes"),
    "a machine with a hole": (lambda: Machine("mine", (BLOCK, THREAD), ((BLOCK, (GLOBAL,)),)), "reaches must list the places of each processor"),
    "no text": (lambda: Mapping.from_json(None), "not a text"),
    "not JSON": (lambda: Mapping.from_json("{"), "not JSON"),
    "other JSON": (lambda: Mapping.from_json("[1]"), "not an object"),
    "JSON without instances": (lambda: Mapping.from_json('{"machine": "Hopper"}'), "the field 'instances' is missing"),
    "an unknown field in JSON": (lambda: Mapping.from_json(SOME.to_json().replace('"variant"', '"varied"')), "the field 'variant' is missing"),
    "an unknown memory in JSON": (lambda: Mapping.from_json(SOME.to_json().replace("SHARED", "SHARD")), "no place SHARD"),
    "a broken tunable in JSON": (lambda: Mapping.from_json(SOME.to_json().replace('"R": 16', '"R": 1.5')), "the tunable R"),
    "no other mapping": (lambda: SOME.diff(3), "not a mapping"),
    "no mapping": (lambda: tasks.strategy(Tasks(whole), 3), "a program requires a mapping"),
    "no program": (lambda: tasks.strategy(3, SOME), "not a program of tasks"),
    "another variant": (lambda: tasks.strategy(Tasks(whole), SOME), "no variant blocks"),
    "another spec": (lambda: tasks.strategy(Tasks(blocks, whole), SOME)(gemm_of(16, 8)).cuda("sm_80"), "has no tensor for A of MatMul"),
    "a memory that is not reached": (
        lambda: Mapping([entry(proc=THREAD, mems=[Place("TENSOR", SH)] * 2)]), "a of whole: THREAD cannot access TENSOR",
    ),
    "a processor of another machine": (lambda: Mapping([entry(proc=WARPGROUP)], AMPERE), "Ampere has no WARPGROUP"),
    "a processor of one's own": (lambda: Mapping([entry(proc=Processor("PAIR", Block))]), "Hopper has no PAIR"),
}  # fmt: skip


def gemm_of(M, N, K=16):
    return MatMul(M, N, K, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value(name):
    call, message = VALUES[name]
    refused(call, message, "at  " if "JSON" in name else "test_tasks_refusals.py:", legal=False)


@pytest.mark.parametrize(
    "touch",
    [
        lambda tensor: tensor[0, 0], lambda tensor: tensor.__setitem__((0, 0), 1), lambda tensor: tensor + 1, lambda tensor: 2 * tensor,
        lambda tensor: tensor @ tensor, list, numpy.asarray, numpy.exp, numpy.concatenate,
    ],
)  # fmt: skip
def test_elements_are_not_touched(touch):
    """By an index, by arithmetic, in a loop, by NumPy."""

    @task("copy", Inner, reads=["src"], writes=["dst"])
    def touching(dst, src):
        touch(src)

    program, mapping = of_block(touching, "move")
    refused(lambda: meaning(program, mapping), "a task must not access elements of a tensor, here of src")


def test_pieces_are_not_a_list():
    @task("copy", Inner, reads=["src"], writes=["dst"])
    def listed(dst, src):
        list(partition_by_blocks(src, (4, 8)))

    @task("copy", Inner, reads=["src"], writes=["dst"])
    def numbered(dst, src):
        partition_by_blocks(src, (4, 8))[0]

    refused(lambda: meaning(*of_block(listed, "move")), "its pieces cannot be iterated over")
    refused(lambda: meaning(*of_block(numbered, "move")), "1 indices(.|\n)*2 indices, of 4 x 1 pieces")


def test_a_task_is_launched_and_not_called():
    refused(lambda: whole(1, 2), 'whole: a task must be launched, not called(.|\n)*launch."copy"', legal=False)


def test_a_variant_goes_to_another_process_by_its_name():
    assert pickle.loads(pickle.dumps(whole)) is whole
    below = task("copy", Leaf, writes=["dst"])(lambda dst: None)
    refused(lambda: pickle.loads(pickle.dumps(below)), "test_tasks_refusals has no variant .*lambda")


kept = []


def test_a_tensor_that_another_task_kept():
    """It would be read with the privileges of an argument with the same name."""

    @task("copy", Inner, reads=["src"], writes=["dst"])
    def keeper(dst, src):
        kept.append(src)
        launch("copy", dst, src)

    @task("copy", Inner, reads=["src"], writes=["dst"])
    def thief(dst, src):
        launch("copy", dst, kept[-1])

    program = Tasks(keeper, thief, blocks, whole)
    block = TaskMapping("block", "keeper", BLOCK, [GLOBAL] * 2, calls=["thief"])
    mapping = Mapping([*INSTANCES, block, TaskMapping("thief", "thief", BLOCK, [GLOBAL] * 2, calls=["move"])])
    for call in (meaning, compiled):
        refused(lambda call=call: call(program, mapping), "uses src of keeper, which is not an argument of thief")


# ---------------------------------------------------------------------------------------------- resources


def taller(mapping):
    """The mapping with two rows of instructions for each warpgroup."""
    changed = []
    for each in mapping.instances:
        name = each.instance.removesuffix("_tile")
        if name == each.instance:
            changed.append(each)
        else:
            changed.append(attrs.evolve(each, calls=[f"{name}_part"]))
            changed.append(TaskMapping(f"{name}_part", f"{name}_tile", WARPGROUP, each.mems, {"WM": 2, "WN": 1}, each.calls))
    return attrs.evolve(mapping, instances=changed)


def staged(mapping):
    """The mapping that copies the whole result through shared memory."""
    store = TaskMapping("copy_tile", "copy_thread", BLOCK, [GLOBAL, SHARED])
    return attrs.evolve(mapping, instances=[store if each.instance == "copy_tile" else each for each in mapping.instances])


def test_registers_exceeded():
    """256 x 256 sums of two warpgroups: the tile of the figure, with float32."""
    bound = tasks.strategy(gemm.program, taller(gemm.hopper(256, 256, stages=2)))(gemm_of(256, 256, 64))
    refused(lambda: bound.program("sm_90a").tree, "c_rf: float32 256 x 256 .* takes 262144 bytes: 256 registers in each of 256 threads",
            "tasks_gemm.py:")  # fmt: skip


def test_shared_memory_exceeded():
    """The figure's three stages and staged result need 272 KB for this tile. With a bound they share bytes; below the minimum they do not."""
    mapping = staged(gemm.hopper(128, 256, stages=3))
    interior_condition = lambda within: tasks.strategy(gemm.program, attrs.evolve(mapping, max_shared_bytes=within))(
        gemm_of(128, 256, 256)
    ).program("sm_90a")
    refused(
        lambda: interior_condition(0).lowered, r"a_sh +49152 bytes (.|\n)*b_sh +98304 bytes (.|\n)*src_sh +131072 bytes ", "tasks_gemm.py:"
    )
    refused(lambda: interior_condition(0).lowered, r"or for a program of tasks Mapping\(..., max_shared_bytes=232448\)", "tasks_gemm.py:")
    refused(
        lambda: interior_condition(100_000).lowered,
        r"max_shared_bytes\(100000\) allows 100000: a_sh 49152, b_sh 98304, src_sh 131072",
        "tasks_gemm.py:",
    )
    kernel = interior_condition(200_000).lowered
    places = {each.name: (each.offset, each.offset + each.bytes) for each in kernel.buffers if each.memory.of_block}
    assert kernel.shared_bytes <= 200_000 and places["src_sh"][0] < max(places["a_sh"][1], places["b_sh"][1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TaskMapping("a"), r"TaskMapping: missing a required argument: 'variant'(.|\n)*legal +instance variant proc mems"),
        (lambda: Mapping(), r"Mapping: missing a required argument: 'instances'(.|\n)*legal +instances machine max_shared_bytes"),
        (lambda: Stored(swizle=True), r"Stored: got an unexpected keyword argument 'swizle'(.|\n)*legal +swizzle pad order"),
    ],
)
def test_other_arguments_than_fields(call, message):
    refused(call, message)


# ---------------------------------------------------------------------------------------------- digests


def naming(value):
    """A function that uses a global value."""

    def function(C):
        return value

    return function


def test_digests_depend_on_values_that_a_function_names():
    for value, other in (((1, 2), (1, 3)), ({"a": 1}, {"a": 2}), ([1], (1,)), (json, pickle), ({1, 2}, {1, 3}), (1, 2), (None, False)):
        assert digest(naming(value)) == digest(naming(value)) != digest(naming(other))
    assert digest(naming({"a", "b", "c"})) == digest(naming({"c", "b", "a"}))
    assert digest(naming(whole)) != digest(naming(blocks))


def test_digests_of_functions_that_name_themselves_or_later_definitions():
    def early():
        return early, later

    before = digest(early)
    later = 1
    assert digest(early) != before and later == 1


# ---------------------------------------------------------------------------------------------- operands


@pytest.mark.parametrize(
    ("reads", "writes", "message"),
    [
        (["src", "dst"], ["dst"], "alone reads dst, which Move.* only writes(.|\n)*accumulate=True"),
        (["src"], ["dst", "src"], "alone writes src, an input of Move"),
        (["src"], [], "does not write dst of Move"),
        (["src", "extra"], ["dst"], "alone: Move has no operand extra(.|\n)*legal"),
    ],
)
def test_privileges_that_the_spec_does_not_have(reads, writes, message):
    def alone(dst, src):
        call_external("copy", dst, src)

    def more(dst, src, extra):
        call_external("copy", dst, src)

    more.__name__ = "alone"
    variant = task("copy", Leaf, reads=reads, writes=writes)(more if "extra" in reads else alone)
    mapping = Mapping([TaskMapping("block", "alone", BLOCK, [GLOBAL] * len(variant.tensors), entrypoint=True)])
    refused(lambda: tasks.strategy(Tasks(variant), mapping)(moved()).cuda("sm_80"), message, legal=False)


def test_a_program_is_a_whole_kernel():
    bound = tasks.strategy(Tasks(blocks, whole), SOME)
    refused(lambda: bound(Move(16, 8)(GL, GL)(Block)).cuda("sm_80"), "implements a whole kernel(.|\n)*legal +Kernel", "")


def test_a_stored_step_contains_the_program():
    for fields, message in (
        ({"program": {}}, "a program and a mapping"),
        ({"program": {}, "mapping": {}, "more": 1}, "a program and a mapping"),
    ):
        with pytest.raises(StoreError, match=message):
            TaskProgram.of_stored(fields, Store(()))


@task("copy", Inner, reads=["src"], writes=["dst"])
def through_a_temporary(dst, src):
    own = make_tensor(dst.shape, "float32")
    launch("copy", own, src)
    launch("copy", dst, own)


@pytest.mark.parametrize("blocks_of", [16, 4], ids=["one block", "several blocks"])
def test_a_temporary_in_global_memory_is_refused(blocks_of):
    """A kernel cannot allocate global memory: the text would name an undeclared array."""
    grid = attrs.evolve(INSTANCES[0], tunables={"R": blocks_of, "C": 8})
    block = TaskMapping("block", "through_a_temporary", BLOCK, [GLOBAL] * 2, calls=["stay", "move"])
    stay = TaskMapping("stay", "blocks", BLOCK, [GLOBAL, NONE], SIZES, ["thread"])
    program = Tasks(through_a_temporary, blocks, whole)
    strategy = tasks.strategy(program, Mapping([grid, *INSTANCES[1:], block, stay]))
    with pytest.raises(DecompositionError, match="is mapped to GLOBAL, but a kernel cannot allocate global memory") as refused_here:
        strategy(moved()).cuda("sm_80")
    assert refused_here.value.legal == "SHARED REGISTER" and "map it to SHARED or REGISTER" in refused_here.value.hint
    kept = tasks.strategy(program, Mapping([grid, *INSTANCES[1:], attrs.evolve(block, calls=("keep", "move"))]))
    a = numpy.arange(16 * 8, dtype="f4").reshape(16, 8)
    assert (kept(moved()).compile("sm_80")(a) == a).all()
