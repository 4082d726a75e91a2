"""Small programs of tasks for tests of event IR."""

import attrs

from fireiron.tasks import *
from fireiron.tasks.events import with_events
from fireiron.tasks.passes import PASS_NAMES, PASSES


@task("clear", Inner, writes=["C"])
def clear_inner(C, *, PIECES=tunable(int), PROC=tunable(processor)):
    Cp = partition_by_mma(C, "wgmma", PROC, "C")
    for i in prange(PIECES):
        launch("clear", Cp[i])


@task("clear", Leaf, writes=["C"])
def clear_thread(C):
    call_external("fill", C)


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_block(C, A, B, *, W=tunable(int)):
    (M, N), K = C.shape, A.shape[1]
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    launch("clear", C)
    for k in srange(cdiv(K, W)):
        launch("gemm", C, Ap[0, k], Bp[k, 0])


@task("gemm", Leaf, reads=["A", "B", "C"], writes=["C"])
def gemm(C, A, B):
    call_external("matmul", C, A, B)


FIGURE_8 = Tasks(clear_inner, clear_thread, gemm_block, gemm)
"""Figure 8's part of a GEMM; C may be read here, as the paper's `gemm_block` does without a declaration."""

FIGURE_8_MAPPING = Mapping(
    [
        TaskMapping("gemm_block", "gemm_block", BLOCK, [GLOBAL] * 3, {"W": 16}, ["clear_block", "gemm"], entrypoint=True),
        TaskMapping("clear_block", "clear_inner", BLOCK, [NONE], {"PIECES": 4, "PROC": WARP}, ["clear_warp"]),
        TaskMapping("clear_warp", "clear_inner", WARP, [NONE], {"PIECES": 32, "PROC": THREAD}, ["clear_thread"]),
        TaskMapping("clear_thread", "clear_thread", THREAD, [REGISTER]),
        TaskMapping("gemm", "gemm", BLOCK, [SHARED] * 3),
    ]
)
FIGURE_8_TENSORS = (((64, 64), "float32"), ((64, 64), "float32"), ((64, 64), "float32"))


def after_each_pass(program, mapping):
    """The program after the analysis, and after each later pass that changes it."""
    yield PASS_NAMES[0], program
    for task_pass in PASSES:
        before, program = program, task_pass.run(program, mapping)
        if program != before:
            yield task_pass.name, program


def edges(program):
    """All awaited events, in the order of the text."""
    all_events = []

    def counted(events):
        all_events.extend(events)
        return events

    with_events(program.body, counted)
    return all_events


def without_edge(program, dropped):
    """The program with one awaited event removed, by its index in the order of the text."""
    before = 0

    def less(events):
        nonlocal before
        numbered = list(enumerate(events, before))
        before += len(events)
        return tuple(one for number, one in numbered if number != dropped)

    return attrs.evolve(program, body=with_events(program.body, less))
