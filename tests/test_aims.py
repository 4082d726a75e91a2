"""The instruction family that a strategy aims at, and the steps that lead to it, which `explain` tries for incomplete chains."""

import pytest

from fireiron import *
from fireiron.decomp.mma_tile import SIDE
from fireiron.inspect.aims import accumulators, aims_at_matrices, matrix_chains

FLOAT16 = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": RowMajor}
OF_BLOCK = MatMul(64, 64, 64, **FLOAT16)(SH, SH, RF)(Block)
WARPS = Move.tile(64, 32).to(Warp).done()


@pytest.mark.parametrize(
    ("strategy", "aimed"),
    [
        (MatMul.tile(64, 64).to(Block).mma_tile(), True),
        (MatMul.tile(64, 64).to(Block).epilog(RF, store=WARPS), True),
        (MatMul.tile(64, 64).to(Block).epilog(RF), False),
        (MatMul.tile(64, 64).to(Block).epilog(RF, store=Move.tile(4, 4).to(Thread).done()), False),
        (MatMul.tile(128, 128).to(Block).tile(64, 64).to(Warpgroup), True),
        (MatMul.tile(128, 128).to(Block).tile(64, 64).to(Warpgroup).tile(8, 8).to(Thread), False),
        (MatMul.tile(64, 64), False),
    ],
    ids=range(7),
)
def test_aim_of_a_strategy(strategy, aimed):
    assert aims_at_matrices(strategy.steps) == aimed


def test_chains_to_matrix_instructions():
    """For a block first a tile for warps, that of the accumulator if given; then loads of operands that are not in registers, and a split of a long k."""
    assert list(matrix_chains(OF_BLOCK, MatMul.tile(64, 64).mma_tile().steps)) == [], "there is one already"
    assert list(matrix_chains(Move(64, 64)(SH, RF)(Block), ())) == [] and list(matrix_chains(MatMul(8, 8, 8)(GL, GL, GL)(Kernel), ())) == []
    two = list(matrix_chains(OF_BLOCK, ()))
    assert [chain[0] for chain in two] == [Tile((size, size), refinements=(To(Warp),)) for size in (64, 32)]
    (chain,) = matrix_chains(OF_BLOCK, MatMul.epilog(RF, store=WARPS).steps)
    assert chain[0] == WARPS.steps[0] and [type(step).__name__ for step in chain] == ["Tile", "Split", "Load", "Load", "Tile", "MmaTile"]
    (short,) = matrix_chains(MatMul(64, 64, SIDE, **FLOAT16)(RF, SH, RF)(Warp), ())
    assert [type(step).__name__ for step in short] == ["Load", "Tile", "MmaTile"]


def test_missing_accumulators():
    assert list(accumulators(Move(8, 8)(GL, GL)(Block))) == list(accumulators(OF_BLOCK)) == []
    assert list(accumulators(MatMul(8, 8, 8)(GL, GL, GL)(Block))) == [Epilog(RF)]
    assert list(accumulators(MatMul(8, 8, 8, dtype=float16)(GL, GL, GL)(Block))) == [Epilog(RF), Epilog(RF, dtype=float32)]
