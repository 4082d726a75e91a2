"""`explain --sync`: what each barrier, wait, fence and ring operation orders; the complete report for a ring, and every library kernel."""

import functools
import importlib
import json
import pkgutil
import re

import attrs
import pytest
from ringed import TARGET, by_threads, by_warps, float16_gemm, product

from fireiron import *
from fireiron import ir, strategies
from fireiron.cli import main
from fireiron.inspect.synchronization import KINDS, synchronization, text

LIBRARY = sorted(point.name for point in pkgutil.iter_modules(strategies.__path__) if not point.name.startswith("_"))
TARGETS = ("sm_80", "sm_90a")


@functools.cache
def library_kernel(name, target):
    """The final kernel of a strategy of the library; None where the target cannot run it."""
    module = importlib.import_module(f"fireiron.strategies.{name}")
    try:
        return module.strategy(module.spec(*module.SIZES)).program(target).lowered
    except MatchError:
        return None


def account_of(strategy, spec=None):
    return synchronization(strategy(float16_gemm(512, 64, 192) if spec is None else spec).program(TARGET).ir)


# ---------------------------------------------------------------------------------------------- a ring, exactly

RING = """\
ring k_ring: a_sh, b_sh; 2 stages of 16384 bytes
  filled     by producer: TMA_LOAD; 1 arrival and 16384 bytes complete a phase of its full barriers
  emptied    by consumers: WGMMA_F16_F32; 4 arrivals, one per warp, complete a phase of its empty barriers
  in flight  1; one warpgroup: it issues the next MMAs while these run, and releases the stage one iteration later

consumers: threads 0 to 127
  in loop iteration, k
    acquire full k_ring   write -> read   a_sh, b_sh: TMA_LOAD -> WGMMA_F16_F32
                          mbarrier of stage (iteration * 3 + k) % 2, phase (iteration * 3 + k) // 2 % 2: complete when TMA has copied its 16384 bytes \
(each thread)
    fence registers       write -> write  c_rf: Init -> WGMMA_F16_F32
                          orders earlier accesses of the threads to these registers before the following wgmma \
(each warpgroup)
    commit MMAs           WGMMA_F16_F32 of c_rf form a group; wgmma completes by groups (each warpgroup)
    wait MMAs 1           read -> write   a_sh, b_sh: WGMMA_F16_F32 -> TMA_LOAD, a later k
                          a_sh, b_sh of the previous iteration have been read; wgmma is asynchronous until its group is waited for: \
the last one may be pending (each warpgroup)
    release empty k_ring  read -> write   a_sh, b_sh: WGMMA_F16_F32 -> TMA_LOAD, a later k
                          one of 4 arrivals at the mbarrier of stage (iteration * 3 + k + 1) % 2; its MMAs, of an earlier iteration, are complete \
(one lane per warp)
  in loop iteration
    wait MMAs 0           read -> write   a_sh, b_sh: WGMMA_F16_F32 -> TMA_LOAD, a later k
                          a_sh, b_sh of the last iteration have been read; wgmma is asynchronous until its group is waited for: none may be pending \
(each warpgroup)
    release empty k_ring  read -> write   a_sh, b_sh: WGMMA_F16_F32 -> TMA_LOAD, a later k
                          one of 4 arrivals at the mbarrier of stage iteration * 3 % 2 (one lane per warp)
    wait stores 0         read -> write   store_c_sh: TMA_STORE -> STMATRIX_WARPGROUP, a later iteration
                          store_c_sh has been stored; TMA is asynchronous until its group is waited for: none may be pending (the issuer)
    barrier warpgroup     read -> write   store_c_sh: TMA_STORE -> STMATRIX_WARPGROUP, a later iteration
                          store_c_sh free again; the conflicting threads are of one warpgroup, so the rest of the block does not wait (128 threads)
    fence proxy           write -> read   store_c_sh: STMATRIX_WARPGROUP -> TMA_STORE
                          ordinary stores write it, the async proxy reads it: each writer orders the two proxies before the barrier (each thread)
    barrier warpgroup     write -> read   store_c_sh: STMATRIX_WARPGROUP -> TMA_STORE
                          write -> read   store_c_sh: STMATRIX_WARPGROUP -> TMA_STORE, a later iteration
                          store_c_sh complete; the conflicting threads are of one warpgroup, so the rest of the block does not wait (128 threads)
    commit stores         TMA_STORE of store_c_sh form a group; TMA completes by groups (the issuer)
  once
    wait stores 0         read -> end     store_c_sh: TMA_STORE -> the end of the block
                          all stores have read shared memory; TMA is asynchronous until its group is waited for: none may be pending (the issuer)

producer: one of threads 128 to 159
  in loop iteration, k
    acquire empty k_ring  read -> write   a_sh, b_sh: WGMMA_F16_F32 -> TMA_LOAD, a later k
                          mbarrier of stage (iteration * 3 + k) % 2, phase ((iteration * 3 + k) // 2 + 1) % 2: complete with 4 arrivals that release \
the fill 2 fills before; the first 2 fills pass (one thread)
    release full k_ring   write -> read   a_sh, b_sh: TMA_LOAD -> WGMMA_F16_F32
                          the one arrival at the mbarrier of stage (iteration * 3 + k) % 2, with expect-tx of 16384 bytes, which TMA counts \
(one thread)"""


def test_complete_report_of_a_ring():
    report = text(account_of(product((64, 64, 64), blocks=2)))
    head, _, rest = report.partition("\n\n")
    assert re.fullmatch(r"lines of .*ringed\.py", head)
    assert re.sub(r" :\d+", "", rest) == RING


LOOP = [
    ("acquire full k_sh_ring", "complete when TMA has copied its 32768 bytes"),
    ("fence registers", "orders earlier accesses of the threads to these registers"),
    ("commit MMAs", "WGMMA_F16_F32 of s form a group"),
    ("acquire full v_sh_ring", "complete when TMA has copied its 32768 bytes"),
    ("fence registers", "orders earlier accesses of the threads to these registers"),
    ("commit MMAs", "WGMMA_F16_F32_HELD of acc form a group"),
    ("wait MMAs 1", "s is complete; wgmma is asynchronous until its group is waited for: the last one may be pending, MMAs into acc"),
    ("release empty k_sh_ring", "stage (n + 1) % 2; the preceding wait (s is complete) leaves no pending group that reads it"),
    ("wait MMAs 0", "p has been read; wgmma is asynchronous until its group is waited for: none may be pending"),
    ("release empty v_sh_ring", "stage n % 2; the preceding wait (p has been read) leaves no pending group that reads it"),
]
"""The synchronization of the consumers of software-pipelined attention in an iteration, each with its reason."""


def test_points_of_the_attention_loop_in_order():
    module, attention = (importlib.import_module(f"fireiron.strategies.{name}") for name in ("hopper_attention", "attention"))
    account = synchronization(module.by_rows(attention.definition())(attention.spec(*module.SIZES)).program(TARGET).ir)
    loop_points = [point for point in account.points if point.role == "consumers" and point.loops == ("n",)]
    assert [point.kind for point in loop_points] == [kind for kind, _ in LOOP]
    assert all(why in point.why for point, (_, why) in zip(loop_points, LOOP)), [point.why for point in loop_points]
    assert [ring.in_flight for ring in account.rings] == [1, 0, 0]
    assert "ring q_sh_ring: q_sh; 1 stage of 32768 bytes" in text(account)


def test_waits_name_the_statements_that_they_order():
    """Ordinary reads of a stage complete at the warp barrier, MMAs that read it at the wait for their group."""
    module = importlib.import_module("fireiron.strategies.gemm_row_sum")
    account = synchronization(module.hopper(module.spec(*module.SIZES)).program(TARGET).ir)
    orders = {point.kind: {order.before for order in point.orders} for point in account.points if point.loops == ("iteration", "k")}
    assert orders["wait MMAs 0"] == {"WGMMA_F16_F32"} and orders["barrier warp"] == {"LDMATRIX_WARPGROUP"}


def test_statements_have_their_lines():
    (ring,) = account_of(product((64, 64, 64))).rings
    ((name, places),) = ring.fillers
    assert name == "TMA_LOAD" and all(re.fullmatch(r".*ringed\.py:\d+", place) for place in places) and places


@pytest.mark.parametrize(
    ("strategy", "depth", "why"),
    [
        (product(), 0, "2 warpgroups: while one waits for its MMAs, those of the others run"),
        (product(stages=3, mma_in_flight=2), 2, "requested by mma_in_flight(2)"),
        (product((64, 64, 64), stages=1), 0, "with one stage no MMA can stay in flight"),
        (by_threads(), 0, "no statement reads a stage after the one that uses it"),
    ],
)
def test_reason_for_the_number_of_pending_groups(strategy, depth, why):
    (ring,) = account_of(strategy, float16_gemm(128, 64, 320)).rings
    assert (ring.in_flight, ring.why) == (depth, why)


def test_clusters():
    """Barriers of the cluster, loads for several blocks, and arrivals in them."""
    account = account_of(product((64, 64, 64), cluster=(2, 1)), float16_gemm(256, 128, 192))
    assert [(point.role, point.kind) for point in account.points[:2]] == [("", "barrier cluster")] * 2
    assert "mbarriers of all blocks of the cluster are initialized" in account.points[0].why and "no block exits" in account.points[1].why
    assert account.rings[0].shared == (("b_sh", 2, "0 + {0, 1}"),) and account.rings[0].arrivals == 8
    releases = [point for point in account.points if point.kind == "release empty k_ring"]
    assert releases and all("in each of the blocks 0 + {0, 1}, which multicast to this one" in point.why for point in releases)
    report = text(account)
    assert "shared     b_sh: each of 2 blocks loads a part, multicast to blocks 0 + {0, 1}" in report
    two_dimensional = account_of(product((64, 64, 64), cluster=(2, 2)), float16_gemm(256, 128, 192))
    assert [point[:2] for point in two_dimensional.rings[0].shared] == [("a_sh", 2), ("b_sh", 2)]
    assert account_of(product((64, 64, 64))).rings[0].shared == ()
    assert json.loads(json.dumps(account.as_dict()))["rings"][0]["shared"] == [["b_sh", 2, "0 + {0, 1}"]]


def test_pingpong_consumer_groups():
    account = account_of(product((64, 64, 64), stages=3, blocks=2, pingpong=2))
    ring, order = account.rings
    assert ring.emptied_by == order.emptied_by == "consumers, group 0 and consumers, group 1"
    assert order.buffers == () and order.arrivals == 4
    kinds = {(point.role, point.kind) for point in account.points}
    for group in (0, 1):
        assert {(f"consumers, group {group}", f"{verb} empty {order.name}") for verb in ("acquire", "release")} <= kinds
    assert f"order {order.name}: 2 consumer groups claim tiles alternately" in text(account)


def test_a_ring_released_by_warps():
    """Ordinary reads of a stage: a proxy fence and a warp barrier before the arrival, and no register fence."""
    account = account_of(by_warps(), float16_gemm(128, 64, 320))
    kinds = [point.kind for point in account.points if point.role == "consumers" and point.loops]
    assert kinds == ["acquire full k_ring", "fence proxy", "barrier warp", "release empty k_ring"]
    (barrier,) = [point for point in account.points if point.kind == "barrier warp"]
    assert [(order.kind, order.buffers, order.after, order.carried) for order in barrier.orders] == [
        ("read -> write", ("a_sh",), "TMA_LOAD", "k"),
        ("read -> write", ("b_sh",), "TMA_LOAD", "k"),
    ]
    assert "the conflicting threads are of one warp" in barrier.why


def test_orders_of_statements_are_not_part_of_equality():
    kernel = product((64, 64, 64), blocks=2)(float16_gemm(512, 64, 192)).program(TARGET).ir
    (fence,) = [stmt for stmt in ir.statements(kernel.body) if isinstance(stmt, ir.Fence) and stmt.kind is ir.FenceKind.ASYNC_PROXY]
    assert fence.orders and fence == attrs.evolve(fence, orders=()) and "orders" not in repr(fence)


# ---------------------------------------------------------------------------------------------- copies and barriers


def test_one_barrier_in_a_pipeline_orders_both_directions():
    account = synchronization(library_kernel("hmma_ampere", "sm_80"))
    assert account.rings == () and [name for name, _ in account.roles] == [""]
    (barrier,) = [point for point in account.points if point.kind == "barrier block" and point.loops == ("k",)]
    assert {(order.kind, order.buffers, order.before, order.after, order.carried) for order in barrier.orders} == {
        ("write -> write", ("b_sh", "a_sh"), "CP_ASYNC_16", "CP_ASYNC_16", "k"),
        ("read -> write", ("b_sh",), "LDMATRIX_16x16_ROW_T", "CP_ASYNC_16", "k"),
        ("read -> write", ("a_sh",), "LDMATRIX_16x16_ROW", "CP_ASYNC_16", "k"),
        ("write -> read", ("b_sh",), "CP_ASYNC_16", "LDMATRIX_16x16_ROW_T", "k"),
        ("write -> read", ("a_sh",), "CP_ASYNC_16", "LDMATRIX_16x16_ROW", "k"),
    }
    (wait,) = [point for point in account.points if point.kind == "wait copies 2" and point.loops == ("k",)]
    assert set(wait.orders) == {order for order in barrier.orders if order.kind.startswith("write")}
    assert "the last 2 may be pending" in wait.why


def test_requested_barriers_have_that_reason():
    strategy = MatMul.tile(32, 32).to(Block).split(32).sync().tile(4, 4).to(Thread).tile(1, 1).split(1).done()
    (barrier,) = synchronization(strategy(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80").ir).points
    assert (barrier.kind, barrier.orders, barrier.why) == ("barrier block", (), "requested by sync")


def shared(kernel, *names):
    """Whether two buffers share memory: a wait for reads of one precedes writes of the other."""
    first, second = (next((buffer for buffer in kernel.buffers if buffer.name == name), None) for name in names)
    return first is not None and second is not None and first.shares(second)


def verb_of(stmt):
    """The first word of the report of a statement: its class, with two exceptions."""
    return {ir.SemaphoreBarrier: "semaphore", ir.ClusterBarrier: "barrier"}.get(type(stmt), type(stmt).__name__.lower())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LIBRARY)
@pytest.mark.parametrize("target", TARGETS)
def test_reports_of_library_kernels_are_complete(name, target):
    """The report has each synchronizing statement in program order, with a reason and the accesses that it orders."""
    kernel = library_kernel(name, target)
    if kernel is None:
        pytest.skip(f"{name} does not run on {target}")
    account = synchronization(kernel)
    once = {ring.name for ring in kernel.rings if not ring.refilled}
    written = [stmt for stmt in ir.statements(kernel.body) if isinstance(stmt, KINDS)]
    written = [stmt for stmt in written if not (isinstance(stmt, ir.Acquire) and stmt.state is ir.StageState.EMPTY and stmt.ring in once)]
    assert [point.kind.split()[0] for point in account.points] == [verb_of(stmt) for stmt in written]
    for point, stmt in zip(account.points, written, strict=True):
        assert point.why.strip() and point.scope and "  " not in point.why
        of_blocks = isinstance(stmt, ir.SemaphoreBarrier)  # it orders accesses of other blocks, and states these in `why`
        first = point.kind == "fence registers" and "the first wgmma of a warpgroup needs a fence" in point.why
        assert bool(point.orders) != (isinstance(stmt, ir.Commit) or of_blocks or first), (name, point)
        if isinstance(stmt, (ir.Barrier, ir.Wait)) and not of_blocks:
            assert stmt.reason and stmt.reason in point.why
            named = {buffer for order in point.orders for buffer in order.buffers}
            stated = re.findall(r"\b\w+_sh\b", stmt.reason)
            if isinstance(stmt, ir.Wait) and stmt.groups == 0:  # it also states buffers of older groups, which complete before
                words = set(re.findall(r"\w+", stmt.reason))
                assert not stated or named & words or any(shared(kernel, one, other) for one in stated for other in named), (name, point)
            else:
                assert all(buffer in named for buffer in stated), (name, point)
    report = text(account)
    assert all(point.kind in report and point.why in report for point in account.points)
    assert all(ring.name in report for ring in kernel.rings)


def test_report_without_synchronization():
    assert text(synchronization(library_kernel("naive", "sm_80"))).endswith("\n  no synchronization")


# ---------------------------------------------------------------------------------------------- the command


def test_the_command(capsys):
    assert main(["explain", "hopper", "--sync"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("MatMul(4096,4096,4096)(GL,GL,GL)(Kernel) with A, B, C float16 RowMajor on sm_90a, group_m=8")
    assert "ring k_ring: a_sh, b_sh; 4 stages of 49152 bytes" in out and max(map(len, out.splitlines()[1:])) < 180
    assert main(["explain", "hopper", "--sync", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert {"spec", "architecture", "chosen", "roles", "rings", "points"} == fields.keys()
    (ring,) = fields["rings"]
    assert (ring["stages"], ring["bytes"], ring["arrivals"], ring["in_flight"]) == (4, 49152, 8, 0)
    (first, *_) = fields["points"]
    assert (first["role"], first["loops"], first["kind"]) == ("consumers", ["iteration", "k"], "acquire full k_ring")
    assert first["orders"][0]["buffers"] == ["a_sh", "b_sh"]
