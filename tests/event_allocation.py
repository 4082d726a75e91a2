"""The GEMM of Figure 5 in event IR after copy elimination, written by hand: an example for allocation and roles."""

from fireiron.tasks import *
from fireiron.tasks.event_text import parse

PRODUCT = """\
task clear(C: write)
task gemm(C: read write, A: read, B: read)
task store(dst: write, src: read)
C = argument([{M}, {N}], float16, GLOBAL)
Cp = partition_by_blocks(C, ({U}, {V}))
A = argument([{M}, {K}], float16, GLOBAL)
Ap = partition_by_blocks(A, ({U}, {W}))
B = argument([{K}, {N}], float16, GLOBAL)
Bp = partition_by_blocks(B, ({W}, {V}))
e1: [({MB}, BLOCK), ({NB}, BLOCK)] = pfor i, j in [0, {MB}) x [0, {NB}), {{}} do
  Cacc: [(2, WARPGROUP)] = tensor([{G}, {V}], float32, REGISTER)
  e2: [(2, WARPGROUP)] = call(clear, Cacc), {{}}
  e3: [(2, WARPGROUP)] = for k in [0, {KB}), {{p1: [(2, WARPGROUP)] = e2[warpgroup]}} with {stages} stages do
    As = tensor([{U}, {W}], float16, SHARED)
    Asp = partition_by_blocks(As, ({G}, {W}))
    e4: () = copy(Ap[i, k], As), {{}}
    Bs = tensor([{W}, {V}], float16, SHARED)
    e5: () = copy(Bp[k, j], Bs), {{}}
    e6: [(2, WARPGROUP)] = call(gemm, Cacc, Asp[warpgroup, 0], Bs), {{p1[warpgroup], e4, e5}}
    yield e6[warpgroup]
  Cs = tensor([{U}, {V}], float16, SHARED)
  Csp = partition_by_blocks(Cs, ({G}, {V}))
  e7: [(2, WARPGROUP)] = call(store, Csp[warpgroup, 0], Cacc), {{e3[warpgroup]}}
  e8: () = copy(Cs, Cp[i, j]), {{e7[:]}}
  yield e8
yield e1[:, :]
"""


def product(M, N, K, U, V, W, stages=3):
    """The GEMM in tiles of U x V x W for two warpgroups."""
    parts = {"G": U // 2, "MB": M // U, "NB": N // V, "KB": K // W}
    return parse(PRODUCT.format(M=M, N=N, K=K, U=U, V=V, W=W, stages=stages, **parts))


@task("clear", Leaf, writes=["C"])
def clear(C):
    call_external("fill", C)


@task("gemm", Leaf, reads=["A", "B", "C"], writes=["C"])
def gemm(C, A, B):
    call_external("matmul", C, A, B)


@task("store", Leaf, reads=["src"], writes=["dst"])
def store(dst, src):
    call_external("copy", dst, src)


TASKS = Tasks(clear, gemm, store)


def mapping(max_shared_bytes=0):
    """Where the leaves run; the launches around them are in the event IR only."""
    return Mapping(
        [
            TaskMapping("clear", "clear", WARPGROUP, [REGISTER]),
            TaskMapping("gemm", "gemm", WARPGROUP, [REGISTER, SHARED, SHARED], entrypoint=True, pipeline=3, warpspecialize=True),
            TaskMapping("store", "store", WARPGROUP, [SHARED, REGISTER]),
        ],
        max_shared_bytes=max_shared_bytes,
    )
