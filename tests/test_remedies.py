"""Errors that name the remedy: the words of each message that a first reader met, next to the code that causes it."""

import pytest

from fireiron import *

HALF = {"dtype": float16, "c_dtype": float16, "order": RowMajor}
COPY = Move.coalesced_copy(8).done()
EPILOGUE = "C = acc; y[m] += sum(n, abs(acc))"
ROWS = Fused(
    name="rows",
    dims="m n",
    operands={"X": "m n", "Y": "m n"},
    body={"sum": "s[m] = sum(n, X[m,n])", "out": "Y[m,n] = X[m,n] / s[m]"},
)


def tensor_cores(load_b=True, **sizes):
    """A GEMM of mma.sync, with or without the load of B to registers."""
    warps = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32).load(A, SH, COPY).load(B, SH, COPY)
    warps = warps.tile(32, 32).to(Warp).split(16).load(A, RF, Move.done())
    return (warps.load(B, RF, Move.done()) if load_b else warps).tile(16, 16).mma_tile().done()


def hopper(rows, load_b=True, block=192):
    """A GEMM whose warpgroups compute tiles of `rows` rows."""
    split = MatMul.tile(block, 128).to(Block).epilog(RF, float32).split(64).pipeline(3).warp_specialize().load(A, SH, Move.done())
    return (split.load(B, SH, Move.done()) if load_b else split).tile(rows, 128).to(Warpgroup).done()


def in_lanes(width, extent=1024):
    return ROWS.tile(m=4).to(Block).load("X", RF, Move.tile(1, extent).to(Warp).tile(1, width).to(Lane).done()).done()


def swapped():
    return Fused(name="f", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"out": "Y[m,n] = X[n,m]"})


CASES = {
    "a row of run-time length in registers": (
        lambda: in_lanes(8)(ROWS(m=8, n=sym("N", high=1024, multiple_of=8), dtype=float32)).cuda("sm_80"),
        "a kernel per size, with an integer for n; or a definition with loop='n', and .split(n=8) before this load",
    ),
    "a row that does not fit the tiles of lanes": (
        lambda: in_lanes(8, 1000)(ROWS(m=40, n=77, dtype=float32)).cuda("sm_80"),
        ".load(..., RF, Move.coalesced_copy(8).done()) distributes rows of any size; or a number of tiles",
    ),
    "a problem without the epilogue": (
        lambda: tensor_cores().fuse_epilogue("acc + bias[n]")(MatMul(128, 128, 64, **HALF)).cuda("sm_80"),
        "the problem with the epilogue: MatMul.fuse_epilogue(TEXT)(M, N, K, ...), with the TEXT of the strategy",
    ),
    "a sum that float16 additions would round": (
        lambda: (
            tensor_cores().fuse_epilogue(EPILOGUE)(MatMul.fuse_epilogue(EPILOGUE)(128, 128, 64, **HALF, types={"y": float16})).cuda("sm_80")
        ),
        'types={"y": float32}',
    ),
    "a warpgroup tile of 96 rows": (
        lambda: hopper(96, block=128)(MatMul(300, 256, 128, **HALF)).cuda("sm_90a"),
        ".tile(64, 64).to(Warpgroup), because wgmma computes 64 rows",
    ),
    "a forgotten load to shared memory": (
        lambda: hopper(64, load_b=False)(MatMul(384, 256, 128, **HALF)).cuda("sm_90a"),
        ".load(B, SH, Move.done()) before the tile of the Warpgroup",
    ),
    "a forgotten load to registers": (
        lambda: (
            MatMul.tile(64, 64)
            .to(Block)
            .epilog(RF, float32)
            .split(16)
            .tile(32, 32)
            .to(Warp)
            .done()(MatMul(64, 64, 64, **HALF))
            .cuda("sm_80")
        ),
        ".load(A, RF, Move.done()) and .load(B, RF, Move.done()) before the tile of the Warp",
    ),
    "Hopper without the suffix": (
        lambda: hopper(64)(MatMul(384, 256, 128, **HALF)).cuda("sm_90"),
        'compile("sm_90a") or --arch sm_90a, which has wgmma',
    ),
    "swapped indices": (lambda: swapped()(m=64, n=32), "write X[m,n] if the indices are swapped"),
    "swapped indices in tiles": (
        lambda: swapped().tile(m=8, n=8).to(Block).done()(swapped()(m=64, n=64)).cuda("sm_80"),
        "write X[m,n] if the indices are swapped",
    ),
    "a formula that ends early": (
        lambda: Fused(name="f", dims="m", operands={"X": "m", "Y": "m"}, body={"out": "Y[m] = X[m] *"}),
        "got the end after 'Y[m] = X[m] *'",
    ),
    "an unknown function in an epilogue": (lambda: MatMul.fuse_epilogue("leaky_relu(acc)"), "where(x > 0, x, 0.01 * x)"),
    "the epilogue as it was given": (lambda: MatMul.fuse_epilogue("leaky_relu(acc)"), "got     'leaky_relu(acc)'"),
    "an unknown instruction": (lambda: instruction("WGMMA_F16_F23"), "WGMMA_F16_F32"),
}
"""Code, and words of the error that it causes."""


@pytest.mark.parametrize("name", CASES)
def test_the_error_names_the_remedy(name):
    code, words = CASES[name]
    with pytest.raises(FireironError) as caught:
        code()
    assert words in str(caught.value)


def test_messages_name_instructions_that_can_be_requested():
    assert {instruction(built_in.name) for built_in in INSTRUCTIONS} == {*INSTRUCTIONS}
