"""Task programs as strategies: JSON, hashes and records, tunables in mappings, all commands; micro-kernels and machines."""

import json
import pickle
from types import SimpleNamespace

import attrs
import numpy
import pytest
from printed_text import HostProgram, Printed

from fireiron import *
from fireiron import tasks
from fireiron.check import check
from fireiron.cli import main
from fireiron.gpu import launch as gpu_launch
from fireiron.gpu.toolchain import compile_cuda
from fireiron.inspect.diff import diff, differences
from fireiron.language import library
from fireiron.language.entries import Entry
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks.mapping import Place, Processor
from fireiron.tune.record import describe, strategy_hash
from fireiron.tune.task import make_task, packed, survey

U, STAGES = Tunable("U", 128, 64), Tunable("stages", 3, 2)
BOUND = MatMul(256, 256, 128, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


def hopper(**changes):
    return tasks.strategy(gemm.program, gemm.hopper(**changes))


def placed(U, swizzled):
    """A mapping that no arithmetic creates."""
    return gemm.ampere(U) if swizzled else gemm.ampere(U).with_("gemm_tile", layouts={})


STRATEGIES = {
    "mma.sync": tasks.strategy(gemm.program, gemm.ampere()),
    "multiply-adds": tasks.strategy(gemm.program, gemm.ffma()),
    "Figure 5": hopper(),
    "with tunables": hopper(U=U, WGS=U // 64, stages=STAGES),
    "of a function": tasks.strategy(gemm.program, gemm.hopper, U=U, stages=STAGES),
    "of a function of tuples": tasks.strategy(gemm.program, gemm.ffma, U=U, warps=(2, 4)),
    "a layout with a tunable": tasks.strategy(gemm.program, gemm.ampere().with_("gemm_tile", layouts={"A": Stored(pad=STAGES * 8)})),
    "bound": hopper()(BOUND),
    "blocks that stay": tasks.strategy(gemm.program, gemm.ampere().with_("gemm_host", persistent=Tunable("blocks", 1, 2), cluster=(1, 2))),
    "a leaf by a strategy": tasks.strategy(
        gemm.program, gemm.ampere().with_("clear_thread", strategy=Init.tile(Tunable("rows", 1, 2), 1).unroll().done())
    ),
}


# ---------------------------------------------------------------------------------------------- storing


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_stored_without_its_program(name):
    strategy = STRATEGIES[name]
    text = dumps(strategy)
    again = loads(text)
    assert again == strategy and hash(again) == hash(strategy)
    assert strategy_hash(again) == strategy_hash(strategy) and again.tunables() == strategy.tunables()
    assert "launch" not in text and "def " not in text, "no text of a program"


PUBLIC = [name for name in library.names() if name.startswith("tasks_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_programs_of_the_library_by_name(name):
    """Each with two mappings with tunables, for two targets, stored by the name of its file."""
    forms = (library.find(name), library.find(f"{name}:warpgroups"))
    assert len(PUBLIC) == 6 and [one.strategy.target == "sm_90a" for one in forms] == [False, True]
    for form in forms:
        assert form.strategy.tunables() and f'"library": "{name}' in (text := dumps(form.strategy)) and loads(text) == form.strategy


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["strategy", "warpgroups"])
@pytest.mark.parametrize("name", PUBLIC)
def test_legal_combinations_do_not_spill(name, form):
    """All values of a mapping's tunables, except `group_m`, which hardly affects the compiled code."""
    target = "sm_80" if form == "strategy" else "sm_90a"
    bound = library.bind(library.find(f"{name}:{form}"), open_values=True)
    some = {tuple(sorted((key, value) for key, value in one.items() if key != "group_m")): one for one in bound.legal_assignments(target)}
    assert len(some) > 1
    for values in some.values():
        program = bound.with_(**values).program(target)
        report = compile_cuda(program.cuda, target).resources[program.name]
        assert report.spill_stores == report.spill_loads == report.stack_frame == 0, values


def test_strategies_differ_by_mapping_and_program():
    others = [hopper(), hopper(V=128), hopper(U=U), STRATEGIES["of a function"], STRATEGIES["mma.sync"]]
    others.append(tasks.strategy(Tasks(*gemm.program.variants[1:], gemm.gemm_host), gemm.hopper()))
    assert len({*map(strategy_hash, others)}) == len(others) == len({*others})


MINE = '''
from fireiron.tasks import *
{before}

def helper(rows):
    return {helper}

@task("copy", Inner, reads=["src"], writes=["dst"])
def tiles(dst, src, *, R=tunable(int), C=tunable(int)):
    """Blocks."""
    (M, N), sizes = dst.shape, (helper(R), C)
    to, of = partition_by_blocks(dst, sizes), partition_by_blocks(src, sizes)
    for i, j in prange(cdiv(M, {R}), cdiv(N, C)):
        launch("copy", to[i, j], of[i, j])  # {remark}

@task("copy", Leaf, reads=["src"], writes=["dst"])
def elements(dst, src):
    call_external("copy", dst, src)

program = Tasks(tiles, elements)
strategy = tasks = None
from fireiron import *
from fireiron import tasks
mapping = Mapping([
    TaskMapping("grid", "tiles", HOST, [GLOBAL, GLOBAL], {{"R": Tunable("R", 16, 32), "C": 32}}, ["block"], entrypoint=True),
    TaskMapping("block", "tiles", BLOCK, [GLOBAL, GLOBAL], {{"R": 2, "C": 4}}, ["thread"]),
    TaskMapping("thread", "elements", THREAD, [GLOBAL, REGISTER]),
])
strategy = tasks.strategy(program, mapping)
spec = lambda M, N: Move(M, N, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
SIZES = (40, 70)
'''


def user_program(folder, name="mine", **changes):
    """A task program in a user's file."""
    path = folder / f"{name}.py"
    path.write_text(MINE.format(**{"before": "", "helper": "rows", "R": "helper(R)", "remark": "", **changes}))
    return library.find(str(path)).strategy


def test_a_user_program_is_passed_to_loads(tmp_path):
    strategy = user_program(tmp_path)
    text, program = dumps(strategy), strategy.steps[0].program
    assert loads(text, programs=[gemm.program, program]) == strategy
    assert eval(repr(strategy), {"Strategy": Strategy, "program": program}) == strategy, "with the variables of the user's file"
    with pytest.raises(StoreError, match=r"the program mine was not passed to loads(.|\n)*programs="):
        loads(text)
    same = user_program(tmp_path, "again", remark="in other words", before="# nothing")
    assert strategy_hash(same) == strategy_hash(strategy), "comments do not count"
    assert loads(text, programs=[same.steps[0].program]) == same


@pytest.mark.parametrize(
    "change", [{"R": "helper(R) + 0"}, {"helper": "rows + 0"}, {"before": "cdiv = abs"}], ids=["text", "helper", "global"]
)
def test_a_changed_program_does_not_replace_the_stored_one(tmp_path, change):
    strategy, other = user_program(tmp_path), user_program(tmp_path, "other", **change)
    assert strategy_hash(strategy) != strategy_hash(other)
    with pytest.raises(StoreError, match=r"has changed since it was stored(.|\n)*tiles has changed"):
        loads(dumps(strategy), programs=[other.steps[0].program])


def test_functions_without_source_are_not_stored():
    scope = {}
    exec("from fireiron.tasks import *\n@task('copy', Leaf, reads=['src'], writes=['dst'])\ndef typed(dst, src):\n    pass", scope)
    mapping = Mapping([TaskMapping("a", "typed", HOST, [GLOBAL, GLOBAL], entrypoint=True)])
    with pytest.raises(StoreError, match="the source code of typed is not available"):
        dumps(tasks.strategy(Tasks(scope["typed"]), mapping))
    with pytest.raises(StoreError, match="cannot be stored before its tunables have values"):
        dumps(tasks.strategy(gemm.program, placed, U=U, swizzled=1))


def step_of(document):
    return document["strategy"]["steps"][0]


DAMAGED = {
    "a variant": (lambda step: step["program"]["variants"].update(gemm_host="0" * 16), "gemm_host has changed"),
    "a place outside the library": (lambda step: step["program"].update(library="../gemm"), "has no file"),
    "no program": (lambda step: step["program"].update(library="naive"), "has no program naive"),
    "a program that is a text": (lambda step: step.update(program="x"), "a program must be a name"),
    "a field": (lambda step: step.update(code="x"), "a step of tasks must have"),
    "an instance": (lambda step: step["mapping"]["instances"][0].update(code=1), "'code' is unknown"),
    "a processor": (lambda step: step["mapping"]["instances"][0].update(proc="GPU"), "no processor GPU"),
    "a place": (lambda step: step["mapping"]["instances"][0].update(mems=["HEAP"] * 3), "no place HEAP"),
    "a call": (lambda step: step["mapping"]["instances"][0].update(calls=["gemm"]), "calls gemm"),
    "a tunable": (lambda step: step["mapping"]["instances"][0]["tunables"].update(U={"type": "Tunable", "name": "U"}), "is missing"),
    "a depth": (lambda step: step["mapping"]["instances"][1].update(pipeline="3"), "pipeline must be a number of stages"),
    "a machine": (lambda step: step["mapping"].update(machine="Volta"), "no machine Volta"),
    "a function that is none": (lambda step: step.update(mapping={"of": "tasks_gemm:Tasks", "arguments": {}}), "no such function"),
    "arguments that are none": (lambda step: step.update(mapping={"of": "tasks_gemm:hopper", "arguments": 3}), "must be an object"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_text_is_refused(name):
    damage, message = DAMAGED[name]
    document = json.loads(dumps(hopper()))
    damage(step_of(document))
    with pytest.raises(StoreError, match=message):
        loads(json.dumps(document))


# ---------------------------------------------------------------------------------------------- tunables


def test_tunables_are_values_of_mappings():
    strategy = hopper(U=U, WGS=U // 64, stages=STAGES)
    assert strategy.tunables() == {"U": U, "stages": STAGES}
    assert strategy.with_(U=64, stages=2) == hopper(U=64, WGS=1, stages=2)
    program = strategy(BOUND).program()
    assert program.chosen == {"U": 128, "stages": 3} and program.architecture.name == "sm_90a"
    assert program.lowered.threads == 2 * 128 + 32
    with pytest.raises(ArgumentError, match="not a value of U"):
        strategy.with_(U=96)
    with_tunables = gemm.hopper().with_("gemm_block", pipeline=Tunable("stages", 0, 2), warpspecialize=Tunable("ahead", 0, 1))
    refused = tasks.strategy(gemm.program, with_tunables).with_(stages=0, ahead=1)  # refused only with values
    with pytest.raises(FireironError, match="warpspecialize requires a pipeline"):
        refused(BOUND).cuda()
    with pytest.raises(FireironError, match=r"U: Tunable.'U', 128, 64. has no value"):
        tasks.run(gemm.program, gemm.hopper(U=U), *(numpy.zeros((8, 8), "f2"),) * 3)


def test_a_function_computes_what_arithmetic_cannot():
    """Also memories of tensors; a combination that the mapping refuses is illegal."""
    strategy = tasks.strategy(gemm.program, placed, U=Tunable("U", 33, 64), swizzled=Tunable("swizzled", 0, 1))
    assert strategy.with_(U=64, swizzled=1) == tasks.strategy(gemm.program, placed(64, True))
    assert [*strategy(BOUND).legal_assignments("sm_80")] == [{"U": 64, "swizzled": 0}, {"U": 64, "swizzled": 1}]
    assert STRATEGIES["of a function"].target == "sm_90a"
    with pytest.raises(ArgumentError, match=r"placed: missing(.|\n)*swizzled"):
        tasks.strategy(gemm.program, placed, U=U)


def test_candidates_are_pickled_and_predicted(tmp_path, monkeypatch):
    """`tune` measures each combination in other processes; records of its results."""
    for strategy in (
        hopper(U=U, WGS=U // 64, stages=STAGES)(BOUND),
        user_program(tmp_path)(Move(40, 70, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)),
    ):
        task = make_task(strategy, None, None, fixed={}, sizes={}, name="tasks")
        ((sent,),) = [pickle.loads(packed(task))]
        assert sent.strategy == strategy and len(sent.space) == len([*strategy.assignments()])
        assert all(survey(sent, sent.space[number]).predicted_us > 0 for number in range(len(sent.space)))
    local = Tasks(*(attrs.evolve(one, function=lambda C, A, B: None) for one in gemm.program.variants[:1]))
    with pytest.raises(ArgumentError, match="cannot be sent"):
        packed(local)
    fields = {"strategy_hash": strategy_hash(STRATEGIES["with tunables"]), "values": {"U": 64, "stages": 2}, "spec": describe(BOUND)}
    facts = {"architecture": "sm_90a", "gpu": "NVIDIA H200", "us": 10.0, "quartiles": (9.5, 10.5), "tflops": 3.3, "regime": "burst"}
    facts |= {"l2": "rotated", "error": 1e-4, "registers": 90, "shared_bytes": 32768, "spills": 0, "library_us": 9.0, "fireiron": "0.1"}
    facts |= {"toolchain": "NVRTC 13.0", "driver": "580.159.04", "clocks": (1980, 1980), "date": "2026-11-21", "source": "synthetic"}
    record = Record(strategy="mine.py:tasks", **fields, **facts)
    lookup = Records((record,)).best(BOUND, "sm_90a", strategies={"mine.py:tasks": STRATEGIES["with tunables"]})
    assert lookup.exact and lookup.program.strategy == hopper(U=64, WGS=1, stages=2)(BOUND)


# ---------------------------------------------------------------------------------------------- commands


FILE = """
from fireiron import *
from fireiron import tasks
from fireiron.strategies import tasks_gemm as gemm
SIZES = (64, 64, 32)
def spec(M, N, K, dtype=float16):
    return MatMul(M, N, K, dtype=dtype, c_dtype=dtype, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
strategy = tasks.strategy(gemm.program, gemm.ampere(U=Tunable("U", 64, 32), V=64, W=16, stages=2))
"""

SYMBOLIC = ["-M", "M", "-N", "N", "-K", "K:8"]
VALUES = ["--size", "M=40", "--size", "N=24", "--size", "K=16"]


def test_every_command_accepts_task_programs(tmp_path, monkeypatch, capsys):
    """With run-time sizes, except for pictures, which need numbers."""
    monkeypatch.setattr(gpu_launch, "gpu_available", lambda: False)
    path, wanted = tmp_path / "mine.py", {}
    path.write_text(FILE)
    wanted["show"] = (SYMBOLIC, ["tasks(gemm_host)", "    gemm_tile: on BLOCK, C NONE, A B SHARED, WM=2, WN=2, A swizzled"])
    wanted["emit"] = (SYMBOLIC, ["//     gemm_block: on BLOCK, C A B GLOBAL, W=16, pipeline=2", "requires: the grid"])
    wanted["check"] = ([*SYMBOLIC], ["tasks_gemm.py:", "0 errors"])
    wanted["explain"] = (SYMBOLIC, ["tasks(gemm_host) a_sh: Move(1,8)(GL,SH)(Thread)   (strategies/tasks_gemm.py:", "CP_ASYNC_16"])
    wanted["run"] = ([*SYMBOLIC, *VALUES], ["PASS"])
    wanted["cost"] = ([*SYMBOLIC, *VALUES], ["bottleneck"])
    wanted["export"] = (["-o", str(tmp_path / "out"), "--no-cubin"], ["mine.h"])
    wanted["draw"] = (["-o", str(tmp_path / "page.html"), "--what", "tree"], ["page.html"])
    for command, (options, words) in wanted.items():
        assert main([command, str(path), *options]) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in words), (command, out)
    assert "TaskProgram" not in (tmp_path / "page.html").read_text()


def test_what_differs_between_mappings():
    small, other = (hopper(U=64, WGS=1, V=V, stages=stages)(BOUND).program() for V, stages in ((64, 2), (128, 3)))
    assert differences(small, other) == ["gemm_host.V: 64 -> 128", "gemm_block.pipeline: 2 -> 3"]
    assert "\n\ngemm_host.V: 64 -> 128\ngemm_block.pipeline: 2 -> 3\n\n" in "\n".join(diff(small, other, ("small", "other")))
    assert differences(small, small) == []
    lines = gemm.hopper().diff(gemm.ampere())
    assert lines[0] == "machine: Hopper -> Ampere" and "gemm_tile.layouts: none -> A swizzled B swizzled" in lines
    assert "gemm_warp: gemm_inner INSTR=wgmma PIECES=32 PROC=THREAD -> gemm_steps W=16" in lines


# ---------------------------------------------------------------------------------------------- micro-kernels


TWICE = "for (int i = 0; i < y_size_m; ++i)\n  for (int j = 0; j < y_size_n; ++j)\n    y_at(i, j) += 2 * x_at(i, j);\n"
AXPY = Kind("Axpy", "y[m,n] += 2 * x[m,n]").starter
axpy = MicroKernel("axpy", TWICE)


def add_twice(y, x):
    y += 2 * x


def of_a_block(y, x):
    """The work of one block, whose threads alternate rows; its text contains the number of threads."""
    text = "for (int i = threadIdx.x; i < y_size_m; i += blockDim.x)\n  for (int j = 0; j < y_size_n; ++j)\n    y_at(i, j) += 2 * x_at(i, j);\n"
    call_external(MicroKernel("rows", text, threads=64), y, x, dims="mn,mn", meaning=add_twice)


@task("axpy", Inner, reads=["x", "y"], writes=["y"])
def pieces(y, x, *, R=tunable(int), C=tunable(int)):
    (M, N), sizes = y.shape, (R, C)
    to, of = partition_by_blocks(y, sizes), partition_by_blocks(x, sizes)
    for i, j in prange(cdiv(M, R), cdiv(N, C)):
        launch("axpy", to[i, j], of[i, j])


def leaf(name, work, reads=("x", "y"), writes=("y",)):
    """A leaf that does some work."""

    def function(y, x):
        work(y, x)

    function.__name__ = name
    return task("axpy", Leaf, reads=reads, writes=writes)(function)


LEAVES = {
    "any text": leaf("any_text", lambda y, x: call_external(axpy, y, x, dims="mn,mn", meaning=add_twice)),
    "the text of a spec": leaf("of_a_spec", lambda y, x: call_external(AXPY, x, y, accumulate=True, done=axpy)),
    "a text without a meaning": leaf("mute", lambda y, x: call_external(axpy, y, x, dims="mn,mn")),
}


def axpys(work, memory=GLOBAL):
    program = Tasks(pieces, work)
    mapping = Mapping(
        [
            TaskMapping("grid", "pieces", HOST, [GLOBAL, GLOBAL], {"R": 4, "C": 16}, ["block"], entrypoint=True),
            TaskMapping("block", "pieces", BLOCK, [GLOBAL, GLOBAL], {"R": 2, "C": 4}, ["thread"]),
            TaskMapping("thread", work.name, THREAD, [memory, memory]),
        ]
    )
    bound = tasks.strategy(program, mapping)(AXPY(9, 22, x=RowMajor, y=RowMajor, accumulate=True)(GL, GL)(Kernel))
    return SimpleNamespace(program=program, mapping=mapping, bound=bound)


def operands():
    random = numpy.random.default_rng(3)
    return [random.integers(-9, 9, (9, 22)).astype("f4") for _ in range(2)]


def simulated(program, y, x):
    return simulate(program.ir, {"x": x, "y": y}).outputs["y"]


@pytest.mark.parametrize("memory", [GLOBAL, REGISTER])
@pytest.mark.parametrize("name", ["any text", "the text of a spec"])
def test_a_leaf_is_a_micro_kernel(name, memory):
    """CUDA C++ for a spec, or arbitrary CUDA C++ with a Python function for its meaning (Cypress, section 3.2)."""
    leaf_task, (y, x) = axpys(LEAVES[name], memory), operands()
    out = y.copy()
    tasks.run(leaf_task.program, leaf_task.mapping, out, x, seed=1)
    assert (out == y + 2 * x).all()
    program = leaf_task.bound.program("sm_80")
    assert [one for one in check(program.ir) if one.severity == "error"] == []
    assert "y_at(i, j) += 2 * x_at(i, j);" in program.cuda
    assert (simulated(program, y, x) == y + 2 * x).all()


def test_the_text_of_a_block_has_its_number_of_threads():
    work, (y, x) = leaf("rows_of_a_block", of_a_block), operands()
    mapping = Mapping(
        [
            TaskMapping("grid", "pieces", HOST, [GLOBAL, GLOBAL], {"R": 4, "C": 16}, ["block"], entrypoint=True),
            TaskMapping("block", work.name, BLOCK, [GLOBAL, GLOBAL]),
        ]
    )
    program = tasks.strategy(Tasks(pieces, work), mapping)(AXPY(9, 22, x=RowMajor, y=RowMajor, accumulate=True)(GL, GL)(Kernel)).program(
        "sm_80"
    )
    assert program.lowered.threads == 64 and (simulated(program, y, x) == y + 2 * x).all()


@pytest.mark.nightly
def test_texts_on_the_cpu(tmp_path):
    """The printed kernels, and one whose text does something else."""
    programs = [axpys(LEAVES["any text"], memory).bound.program("sm_80") for memory in (GLOBAL, REGISTER)]
    y, x = operands()
    printed = [*map(Printed.of, programs), Printed.of(programs[0]).changed("2 \\* x_at", "3 * x_at")]
    host = HostProgram(printed, tmp_path)
    right = [bool((host.run(number, {"x": x, "y": y})["y"] == y + 2 * x).all()) for number in range(3)]
    assert right == [True, True, False]


def test_a_text_without_a_meaning_is_not_executed(tmp_path, capsys, monkeypatch):
    """The oracle refuses it, `check` reports it, and code is generated nevertheless."""
    program, (y, x) = axpys(LEAVES["a text without a meaning"]), operands()
    for run in (lambda: tasks.run(program.program, program.mapping, y, x), lambda: simulated(program.bound.program("sm_80"), y, x)):
        with pytest.raises(FireironError, match="axpy cannot be simulated: its meaning is unknown"):
            run()
    assert "y_at(i, j)" in program.bound.cuda("sm_80")
    source = SimpleNamespace(entry=lambda: Entry("mute", program.bound), module=SimpleNamespace(), name="", path=None)
    monkeypatch.setattr(library, "load", lambda name: source)
    main(["check", "mute.py", "--arch", "sm_80"])
    assert "axpy has no executable meaning" in " ".join(capsys.readouterr().out.split())


REFUSED = {
    "a read that is not said": (
        leaf("a", lambda y, x: call_external(axpy, y, x, meaning=add_twice), reads=["y"]), "axpy reads x, which the variant's privileges do not permit",
    ),
    "nothing written": (leaf("b", lambda y, x: call_external(axpy, y, x), writes=()), "writes no tensor"),
    "one tensor twice": (leaf("c", lambda y, x: call_external(axpy, y, y)), "each tensor of the variant at most once"),
    "an option": (leaf("d", lambda y, x: call_external(axpy, y, x, value=1)), "no option value"),
    "dimensions": (leaf("e", lambda y, x: call_external(axpy, y, x, dims="mn,m")), "dims must name each dimension"),
    "another size": (leaf("f", lambda y, x: call_external(axpy, y, x, dims="mn,nm")), "x has 2 elements along n, but another operand has 4"),
    "a text for done": (leaf("g", lambda y, x: call_external(AXPY, x, y, accumulate=True, done="axpy.cu")), "done must be a MicroKernel"),
    "a meaning that returns": (leaf("h", lambda y, x: call_external(axpy, y, x, dims="mn,mn", meaning=numpy.add)), "return None"),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_micro_kernels_refused(name):
    work, message = REFUSED[name]
    program, (y, x) = axpys(work), operands()
    with pytest.raises(FireironError, match=message):
        simulated(program.bound.program("sm_80"), y, x)


def test_a_micro_kernel_cannot_use_parts_of_an_instruction():
    @task("gemm", Leaf, reads=["A", "B", "C"], writes=["C"])
    def by_text(C, A, B):
        call_external(axpy, C, A, B)

    program = Tasks(*gemm.program.variants, by_text)
    with pytest.raises(FireironError, match="by_text: micro-kernel axpy cannot use threads' parts"):
        tasks.strategy(program, gemm.hopper(64, 64, WGS=1).with_("gemm_thread", variant="by_text"))(BOUND).cuda("sm_90a")


# ---------------------------------------------------------------------------------------------- machines


def test_a_user_defined_machine_is_stored_and_compiled(tmp_path):
    """A processor of two warps, and a memory with another name that threads can access (Cypress, sections 3.1 and 6)."""
    strategy = user_program(tmp_path)
    pair, scratch = Processor("PAIR", Level("Pair", Block, Layout(64))), Place("SCRATCH", SH)
    reaches = ((HOST, (GLOBAL,)), (BLOCK, (GLOBAL, scratch)), (pair, (GLOBAL, scratch)), (THREAD, (GLOBAL, scratch, REGISTER)))
    machine = Machine("mine", (HOST, BLOCK, pair, THREAD), reaches)
    mapping = Mapping(
        [
            TaskMapping("grid", "tiles", HOST, [GLOBAL, GLOBAL], {"R": 16, "C": 32}, ["block"], entrypoint=True),
            TaskMapping("block", "tiles", BLOCK, [GLOBAL, scratch], {"R": 8, "C": 32}, ["pair"]),
            TaskMapping("pair", "tiles", pair, [GLOBAL, scratch], {"R": 1, "C": 4}, ["thread"]),
            TaskMapping("thread", "elements", THREAD, [GLOBAL, REGISTER]),
        ],
        machine,
    )
    again = Mapping.from_json(mapping.to_json())
    assert again == mapping and hash(again) == hash(mapping) and again.machine == machine
    program = strategy.steps[0].program
    own = tasks.strategy(program, mapping)
    assert loads(dumps(own), programs=[program]) == own and strategy_hash(own) != strategy_hash(strategy)
    larger = attrs.evolve(machine, processors=(HOST, BLOCK, Processor("PAIR", Level("Pair", Block, Layout(128))), THREAD))
    assert larger != machine
    bound = own(Move(sym("M"), 70, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel))
    a = numpy.random.default_rng(0).random((40, 70), numpy.float32)
    assert (bound.compile("sm_80")(a) == a).all()
    assert bound.program("sm_80").lowered.threads == 128
    with pytest.raises(FireironError, match="no machine mine"):
        Mapping.from_json(json.dumps({**json.loads(mapping.to_json()), "machine": "mine"}))
