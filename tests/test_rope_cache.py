"""`rope_cache`: the rotation of new tokens into caches, compared with float64."""

import numpy as np
import pytest

import fireiron
from fireiron import *


@pytest.mark.parametrize(("sequences", "groups", "shared", "half", "positions"), [(3, 2, 4, 12, 7), (1, 1, 1, 5, 3)])
def test_rotated_keys_are_in_the_caches(sequences, groups, shared, half, positions):
    """Queries, keys and values are parts of one array; a slot of -1 writes nothing."""
    random = np.random.default_rng(half)
    heads = groups * (shared + 2)
    rows = random.standard_normal((sequences, heads, 2, half)).astype(np.float16)
    q, k, v = rows[:, : groups * shared].reshape(sequences, groups, shared, 2, half), *np.split(rows[:, groups * shared :], 2, 1)
    angles = random.standard_normal((sequences, half))
    c, s = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    at = random.integers(0, positions, (sequences, 1))
    slot = ((np.arange(sequences)[:, None] * groups + np.arange(groups)) * positions + at).astype(np.int32)
    slot[-1, 0] = -1
    y, *caches = np.zeros(q.shape, np.float16), *(np.zeros((sequences * groups * positions, 2, half), np.float16) for _ in range(2))
    fireiron.function("rope_cache")(q, k, v, c, s, slot, out=(y, *caches))

    def rotated(x):
        cos, sin = (one.reshape(sequences, *[1] * (x.ndim - 3), half).astype(float) for one in (c, s))
        return np.stack((x[..., 0, :] * cos - x[..., 1, :] * sin, x[..., 1, :] * cos + x[..., 0, :] * sin), -2)

    assert np.abs(y - rotated(q)).max() < 3e-3
    for cache, new in zip(caches, (rotated(k), v), strict=True):
        want = np.zeros(cache.shape)
        for sequence, group in np.ndindex(sequences, groups):
            if slot[sequence, group] >= 0:
                want[slot[sequence, group]] = new[sequence, group]
        assert np.abs(cache - want).max() < 3e-3


def test_scattered_outputs_must_be_given():
    x = np.zeros((1, 1, 1, 2, 4), np.float16)
    angles, slot = np.zeros((1, 4), np.float32), np.zeros((1, 1), np.int32)
    with pytest.raises(ArgumentError, match="no input has the dimension n of keys"):
        fireiron.function("rope_cache")(x, x[:, :, 0], x[:, :, 0], angles, angles, slot)


def test_functions_of_padded_and_tabled_arrays():
    """The operands of a function have the shapes of their arrays."""
    pool = Fused(
        name="pool", dims="c p r h", operands={"X": "c h", "Y": "c p"},
        body={"sum": "total[c,p] = sum(r, X[c,p*2 + r - 1])", "mean": "Y[c,p] = total[c,p] / 3"},
    )  # fmt: skip
    of = fireiron.function(pool, (pool.tile(c=4, p=32).to(Block).tile(c=1, p=1).to(Thread).done(),), sizes={"p": 9, "r": 3})
    x = np.random.default_rng(0).standard_normal((5, 17)).astype(np.float16)
    padded = np.pad(x.astype(float), ((0, 0), (1, 2)))
    assert np.allclose(of(x), sum(padded[:, r : r + 18 : 2] for r in range(3)) / 3, rtol=1e-2, atol=1e-2)
    with pytest.raises(ArgumentError, match="X has 1 dimensions"):
        of(x[0])
