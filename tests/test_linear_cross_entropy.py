"""`fireiron.linear_cross_entropy` in the simulator, compared with float64, and its refusals."""

import numpy as np
import pytest

from fireiron import ArgumentError, linear_cross_entropy
from fireiron.strategies import _linear_cross_entropy as parts

entropy = __import__("sys").modules["fireiron.linear_cross_entropy"]
IGNORED = -100
GRADIENT = 0.7


def problem(rows, classes, features, transposed=False, dtype="float16"):
    """Random rows, weights and targets, of which one is ignored."""
    random = np.random.default_rng((rows, classes, features))
    x, weight = (random.standard_normal(shape).astype(dtype) * np.float16(0.5) for shape in ((rows, features), (classes, features)))
    targets = random.integers(0, classes, rows)
    targets[rows // 2] = IGNORED
    return x, np.ascontiguousarray(weight.T).T if transposed else weight, targets


def expected(x, weight, targets, reduction, grad):
    """Loss, log-sum-exp and both gradients in float64."""
    x, weight = x.astype(float), weight.astype(float)
    logits, live, rows = x @ weight.T, targets != IGNORED, np.arange(len(x))
    lse = np.log(np.exp(logits).sum(1))
    losses = np.where(live, lse - logits[rows, np.where(live, targets, 0)], 0)
    of_logits = np.exp(logits - lse[:, None])
    of_logits[rows[live], targets[live]] -= 1
    of_logits *= (np.broadcast_to(grad / live.sum() if reduction == "mean" else grad, len(x)) * live)[:, None]
    loss = {"mean": losses.sum() / live.sum(), "sum": losses.sum(), "none": losses}[reduction]
    return loss, lse, of_logits @ weight, of_logits.T @ x


def near(got, want, limit):
    return np.linalg.norm(got.astype(float) - want) <= limit * np.linalg.norm(want)


CASES = {
    "hopper": (70, 300, 64, "sm_90a", "mean", True),
    "features of any number": (19, 200, 50, "sm_80", "none", False),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_loss_and_gradients(case, monkeypatch):
    """Also with the classes in several parts."""
    rows, classes, features, arch, reduction, transposed = case
    x, weight, targets = problem(rows, classes, features, transposed)
    grad = np.linspace(-2, 3, rows, dtype=np.float32) if reduction == "none" else np.full((), GRADIENT, np.float32)
    loss, lse, dx, dw = expected(x, weight, targets, reduction, grad)
    got, logs = linear_cross_entropy(x, weight, targets, reduction=reduction, lse=True, arch=arch)
    assert got.dtype == np.float32 and near(got, loss, 1e-5) and near(logs, lse, 1e-5)
    monkeypatch.setattr(entropy, "PART", rows * 256)
    results = linear_cross_entropy.gradients(grad, x, weight, targets, logs, reduction=reduction, arch=arch)
    assert [one.shape for one in results] == [x.shape, weight.shape] and near(results[0], dx, 1e-3) and near(results[1], dw, 1e-3)
    assert results[1].strides == weight.strides
    kept = entropy.forward(x, weight, targets, entropy.options_of(IGNORED, reduction), arch, keep=True)[2]
    assert kept.exponentials.dtype == x.dtype and kept.exponentials.max() <= 1
    results = entropy.backward(grad, x, weight, targets, logs, entropy.options_of(IGNORED, reduction), arch, kept=kept)
    assert near(results[0], dx, 1e-3) and near(results[1], dw, 1e-3), "from exponentials that the forward call stored"
    if reduction == "mean":  # gradients that float16 cannot store before they are added up
        small = linear_cross_entropy.gradients(grad * np.float32(1e-3), x, weight, targets, logs, arch=arch)
        assert near(small[1], dw * 1e-3, 0.03)
    else:
        total = linear_cross_entropy(x, weight, targets, reduction="sum", arch=arch)
        assert near(total, loss.sum(), 1e-5)


def test_stored_by_tma():
    """Tiles of 256 classes, the last of which passes the end."""
    x, weight, targets = problem(9, 264, 64)
    loss, _, dx, dw = expected(x, weight, targets, "mean", GRADIENT)
    options = entropy.options_of(IGNORED, "mean")
    got, logs, kept, _ = entropy.forward(x, weight, targets, options, "sm_90a", keep=True)
    assert kept.exponentials.shape == (9, 2, 256) and near(got, loss, 1e-5)
    results = entropy.backward(np.full((), GRADIENT, np.float32), x, weight, targets, logs, options, "sm_90a", kept=kept)
    assert near(results[0], dx, 1e-3) and near(results[1], dw, 1e-3)


def test_targets_that_are_no_class():
    x, weight, targets = problem(9, 200, 50)
    targets[0], targets[1] = 200, -1
    losses, lse = linear_cross_entropy(x, weight, targets, reduction="none", lse=True, arch="sm_80")
    assert np.isnan(losses[:2]).all() and np.isfinite(losses[2:]).all() and losses[4] == 0
    dx, _ = linear_cross_entropy.gradients(np.ones(9, np.float32), x, weight, targets, lse, reduction="none", arch="sm_80")
    assert np.isnan(dx[:2]).all() and np.isfinite(dx[2:]).all() and not dx[4].any()
    other = linear_cross_entropy(x.reshape(3, 3, 50), weight, targets.reshape(3, 3), ignore_index=-1, reduction="none", arch="sm_80")
    assert other.shape == (3, 3) and other[0, 1] == 0 and np.isnan(other[1, 1])


REFUSED = {
    "reduction": (lambda x, w, t: linear_cross_entropy(x, w, t, reduction="max"), "unknown reduction"),
    "recompute": (lambda x, w, t: linear_cross_entropy(x, w, t, recompute="no"), "recompute must be a bool"),
    "ignore_index": (lambda x, w, t: linear_cross_entropy(x, w, t, ignore_index=0.5), "ignore_index must be an integer"),
    "types": (lambda x, w, t: linear_cross_entropy(x.astype(np.float32), w, t), "no kernel supports these element types"),
    "targets": (lambda x, w, t: linear_cross_entropy(x, w, t.astype(np.int32)), "targets must be classes in int64"),
    "features": (lambda x, w, t: linear_cross_entropy(x, w.T, t), "x and weight have no common features"),
    "rows": (lambda x, w, t: linear_cross_entropy(x, w, t[1:]), "targets do not have the rows of x"),
    "empty": (lambda x, w, t: linear_cross_entropy(x[:0], w, t[:0]), "an array has no elements"),
    "list": (lambda x, w, t: linear_cross_entropy(x, w, [1]), "targets is not an array of the same library"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refusals(case):
    call, words = case
    with pytest.raises(ArgumentError, match=words):
        call(*problem(8, 100, 64))


def test_choice():
    assert "strategy 0" in linear_cross_entropy.choice(*problem(8, 100, 64), arch="sm_90a").why


@pytest.mark.parametrize(("classes", "has_mask"), [(512, False), (600, True)])
def test_the_mask_is_only_printed_where_a_tile_passes_the_end(classes, has_mask):
    definition = parts.statistics(classes)
    tiles = -(-classes // parts.WIDE)
    text = parts.by_rings(definition)(definition(m=128, t=tiles, j=parts.WIDE, k=128, v=classes)).cuda("sm_90a")
    assert "wgmma_m64n256k16" in text and "quad_reduce_max" in text and ("-1e+30f" in text or "-1e30" in text) == has_mask
