"""`fireiron.linear_cross_entropy`: the cross-entropy of a linear layer, without an array of all logits.

>>> import fireiron, numpy
>>> x, weight = numpy.zeros((3, 16), "float16"), numpy.zeros((8, 16), "float16")
>>> loss = fireiron.linear_cross_entropy(x, weight, numpy.array([0, 7, -100]))
>>> bool(numpy.allclose(loss, numpy.log(8)))
True

The forward pass keeps tiles of logits in registers. For the gradients it stores an exponential of each logit in 16 bits, if they take at
most 1 GiB. Otherwise the gradients compute the logits again, for a part of the classes at a time. A call that `torch.compile` traces or
that autograd records is the operator `fireiron::linear_cross_entropy`. The first such call registers it.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fireiron import operators
from fireiron.batches import new_like
from fireiron.copies import LIBRARIES, copied, library
from fireiron.errors import ArgumentError
from fireiron.front.arrays import ALIGNMENT, Operand, operand_of, operands_of, refuse_places
from fireiron.front.call import Request
from fireiron.function import Function, function
from fireiron.matmul import matmul
from fireiron.matmul import request as product_request
from fireiron.repeated import Replays
from fireiron.values.machine import as_dtype

if TYPE_CHECKING:
    from types import ModuleType

    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture

ArrayT = TypeVar("ArrayT")

TYPES: Final = ("float16", "bfloat16")
"""Element types of rows and weights."""

REDUCTIONS: Final = ("mean", "sum", "none")
"""What is returned: the mean of the losses of rows that are not ignored, their sum, or the loss of each row."""

CLASSES: Final = 1 << 24
"""Maximum number of classes: float32, in which the kernel of the gradients compares classes, has all smaller integers."""

PART: Final = 1 << 27
"""Maximum number of gradients of logits that are in memory at a time, in 16 bits each: 256 MiB."""

STORED: Final = 1 << 30
"""Maximum number of bytes of exponentials that a forward call stores for the gradients by default."""

COLUMNS_OF_STORE: Final = 64
"""Columns of exponentials that a warpgroup stores at a time."""

COLUMNS: Final = 256
"""The classes of a part are a multiple of this number, so that rows of a part are multiples of 128 bytes."""


class Options(NamedTuple):
    """The label of rows without a loss, and what is returned."""

    ignore_index: int = -100
    reduction: str = "mean"


def options_of(ignore_index: Any, reduction: Any) -> Options:
    """Return the options of a call. Raises: ArgumentError for illegal ones."""
    if reduction not in REDUCTIONS:
        raise ArgumentError("linear_cross_entropy: unknown reduction", got=reduction, legal=REDUCTIONS)
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int) or not -(1 << 31) <= ignore_index < 1 << 31:
        raise ArgumentError("linear_cross_entropy: ignore_index must be an integer of 32 bits", got=ignore_index, legal="such as -100")
    return Options(ignore_index, reduction)


class _LinearCrossEntropy:
    """`fireiron.linear_cross_entropy`: see `__call__`."""

    def __call__(
        self,
        x: Any,
        weight: Any,
        targets: Any,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        lse: bool = False,
        recompute: bool | None = None,
        arch: Architecture | str | None = None,
    ) -> Any:
        """Return the cross-entropy of the logits `x @ weight.T` and targets, in float32.

        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. PyTorch tensors have gradients of `x` and `weight`.
        The results have the same bits in each run.

        Args:
            x: (..., features), float16 or bfloat16.
            weight: (classes, features), of the same type, with any strides: `matrix.T` for a matrix (features, classes).
            targets: (...), int64: the class of each row. The loss of a row with another number than a class is NaN.
            ignore_index: the target of rows that have no loss and no gradient.
            reduction: "mean" over the rows that are not ignored (NaN if there are none), "sum", or "none" for the loss of each row.
            lse: also return the log-sum-exp of the logits of each row. It has no gradient.
            recompute: whether the gradients compute the logits again. Otherwise a call that autograd records stores an exponential of each
                logit in 16 bits, and the gradients take three products of this size instead of four, with the forward pass. The default
                is to store them if they take at most 1 GiB.
            arch: the target; the default is that of the GPU (sm_90 in the simulator).

        Raises: ArgumentError for incompatible arrays and illegal options.
        """
        if arch is None and hasattr(x, "is_cuda") and (result := self._again(x, weight, targets, ignore_index, reduction, lse, recompute)):
            return result[0]
        options = options_of(ignore_index, reduction)
        if recompute not in (None, True, False):
            raise ArgumentError("linear_cross_entropy: recompute must be a bool", got=recompute, legal="True, False or None")
        if hasattr(x, "is_cuda"):
            x, weight = operators.autocast(x, weight)
        is_differentiated = operators.differentiated(x, weight)
        if is_differentiated or operators.traced(x, weight, targets):
            operators.refuse_options("linear_cross_entropy", arch=arch)
            keep = is_differentiated and _keeps(x, weight, targets, recompute)
            is_operator = operators.traced(x, weight, targets) or operators.watched(x, weight, targets)
            results = (_through_torch if is_operator else _replayed())(x, weight, targets, *options, keep)
        else:
            results = forward(x, weight, targets, options, arch)
        return (results[0], results[1]) if lse else results[0]

    def _again(
        self, x: Any, weight: Any, targets: Any, ignore_index: int, reduction: str, lse: bool, recompute: bool | None
    ) -> tuple[Any] | None:
        """Return the result of a call on tensors that was made before, in a tuple; else None."""
        again = REPLAYS.again
        if again is None or recompute not in (None, True, False) or REPLAYS.tracing():
            return None
        if REPLAYS.casting():
            x, weight = operators.autocast(x, weight)
        results = again(_key(ignore_index, reduction), None, x, weight, targets)
        if results is ...:
            results = _replayed()(x, weight, targets, ignore_index, reduction, _keeps(x, weight, targets, recompute))
        if results is None or results is NotImplemented or results is ...:
            return None
        return ((results[0], results[1]) if lse else results[0],)

    def gradients(
        self,
        grad: Any,
        x: ArrayT,
        weight: ArrayT,
        targets: Any,
        lse: Any,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        arch: Architecture | str | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Return the gradients of `x` and `weight` for the gradient `grad` of the result and the log-sum-exp of the forward call.

        Args: as for the call; `grad` is float32: an array of one element, or (...) for reduction="none".
        """
        of_x, of_weight = backward(grad, x, weight, targets, lse, options_of(ignore_index, reduction), arch)
        return of_x, of_weight

    def choice(self, x: Any, weight: Any, targets: Any, *, arch: Architecture | str | None = None) -> Choice:
        """Return the choice of the kernel of the product, and the reason; launch nothing."""
        problem = _Problem.of(x, weight, targets, arch)
        return problem.statistics.choice(problem.x, weight, arch=arch)


linear_cross_entropy: Final = _LinearCrossEntropy()
"""Cross-entropy of a linear layer; see its `__call__`."""


# ---------------------------------------------------------------------------------------------- problems


@functools.cache
def _parts() -> ModuleType:
    """Return the file of definitions and strategies."""
    return importlib.import_module("fireiron.strategies._linear_cross_entropy")


class _Problem(NamedTuple):
    """Arrays of a call: `x` has two dimensions, `targets` one. `shape` is that of the given targets."""

    x: Any
    weight: Any
    targets: Any
    shape: tuple[int, ...]
    wide: int
    picks: bool
    """Whether the kernel of the product stores the logits of the targets, because the weights of a class are not contiguous."""

    @classmethod
    def of(cls, x: Any, weight: Any, targets: Any, arch: Any) -> _Problem:
        """Return the problem of the arrays of a call. Raises: `ArgumentError` for incompatible arrays."""
        given = _checked(x, weight, targets)
        rows = (math.prod(given["x"].shape[:-1]), given["x"].shape[-1])
        matrix, labels = (_reshaped(*pair) for pair in ((x, rows), (targets, rows[:1])))
        wide = _width_of(given["x"].device, arch, rows[1], given["x"].steps[-1], given["weight"].steps)
        if wide == _parts().WIDE and given["weight"].align < ALIGNMENT:
            weight = copied(weight)
        picks = given["weight"].steps[-1] != 1 and rows[1] > 1
        return cls(matrix, weight, labels, given["targets"].shape, wide, picks)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.weight.shape[0])

    @property
    def statistics(self) -> Function:
        """The function that computes two numbers per row and tile of classes."""
        return _statistics(self.classes, self.wide, False, False)


def _checked(x: Any, weight: Any, targets: Any) -> dict[str, Operand]:
    """Return the properties of the arrays. Raises: `ArgumentError` for incompatible ones."""
    arrays = {"x": x, "weight": weight, "targets": targets}
    kinds = {name: library(array) for name, array in arrays.items()}
    wrong = next((name for name, kind in kinds.items() if kind not in LIBRARIES or kind != kinds["x"]), None)
    if wrong is not None:
        legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
        raise ArgumentError(f"linear_cross_entropy: {wrong} is not an array of the same library as x", got=kinds, legal=legal)
    given = operands_of(arrays)
    refuse_places(given, "linear_cross_entropy: ", "all on one GPU, or all NumPy")
    _check_types(given)
    _check_shapes(given)
    return given


def _check_types(given: dict[str, Operand]) -> None:
    x, weight, targets = (given[name].dtype for name in ("x", "weight", "targets"))
    if x not in TYPES or weight != x:
        raise ArgumentError("linear_cross_entropy: no kernel supports these element types", got=(x, weight), legal=TYPES, hint="x.half()")
    if targets != "int64":
        raise ArgumentError("linear_cross_entropy: targets must be classes in int64", got=targets, hint="targets.long()")


def _check_shapes(given: dict[str, Operand]) -> None:
    shapes = {name: operand.shape for name, operand in given.items()}
    if len(shapes["x"]) < 2 or len(shapes["weight"]) != 2 or shapes["x"][-1] != shapes["weight"][1]:
        legal = "x (..., features) and weight (classes, features)"
        raise ArgumentError("linear_cross_entropy: x and weight have no common features", got=shapes, legal=legal)
    if shapes["targets"] != shapes["x"][:-1]:
        got, rows = shapes["targets"], shapes["x"][:-1]
        raise ArgumentError("linear_cross_entropy: targets do not have the rows of x", got=got, legal=f"{rows}")
    if 0 in (*shapes["x"], *shapes["weight"]):
        raise ArgumentError("linear_cross_entropy: an array has no elements", got=shapes, legal="sizes of at least 1")
    if shapes["weight"][0] > CLASSES:
        raise ArgumentError("linear_cross_entropy: too many classes", got=shapes["weight"][0], legal=f"at most {CLASSES}")


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return a view or a copy of an array with another shape."""
    return array if tuple(array.shape) == shape else array.reshape(shape)


def _width_of(device: int | None, arch: Any, features: int, step: Any, steps: Any) -> int:
    """Return the classes of a tile, by the step between features of x and the strides of the weights. Tracing has no addresses.

    The wide tiles need wgmma, and matrices that TMA can read.
    """
    from fireiron.front.place import Place
    from fireiron.values.machine import WARPGROUP_ARCHITECTURE

    is_hopper = Place.of(device, arch, None).architecture.name == WARPGROUP_ARCHITECTURE
    is_read = is_hopper and features % 8 == 0 and step == 1 and 1 in steps and max(steps) % 8 == 0
    return int(_parts().WIDE if is_read else _parts().NARROW)


@functools.cache
def _statistics(classes: int, wide: int, keep: bool, pick: bool) -> Function:
    """Return the function of the first kernel."""
    parts = _parts()
    definition = parts.statistics(classes, wide, keep, pick)
    strategies = (parts.by_rings(definition, keep=COLUMNS_OF_STORE * keep),) if wide == parts.WIDE else (parts.by_warps(definition),)
    return function(definition, strategies, sizes={"t": -(-classes // wide), "j": wide})


@functools.cache
def _gradient_of_kept(wide: int) -> Function:
    """Return the function of the gradients of logits from stored exponentials."""
    parts = _parts()
    definition = parts.gradient_of_kept(wide)
    return function(definition, (parts.by_vectors(definition, wide=wide),))


@functools.cache
def _loss(classes: int, features: int, wide: int, pick: bool) -> Function:
    parts = _parts()
    definition = parts.loss(classes, pick)
    return function(definition, (parts.by_rows(definition, 0 if pick else features, -(-classes // wide)),))


@functools.cache
def _targets(classes: int) -> Function:
    parts = _parts()
    definition = parts.targets(classes)
    return function(definition, (parts.by_elements(definition),))


@functools.cache
def _factors(classes: int, uniform: bool) -> Function:
    parts = _parts()
    definition = parts.factors(classes, uniform)
    return function(definition, (parts.by_elements(definition),), sizes={"z": 1})


@functools.cache
def _spread(features: int) -> Function:
    parts = _parts()
    return function(parts.spread, (parts.by_elements(parts.spread, "n"),), sizes={"n": features, "z": 1})


@functools.cache
def _of_all_rows(name: str, operand: str) -> Function:
    """Return the function of a definition of `by_one_block`."""
    parts = _parts()
    definition = getattr(parts, name)
    return function(definition, (parts.by_one_block(definition, operand),), sizes={"z": 1})


def _call(of: Function, arch: Any, *arrays: Any) -> Any:
    """Return the results of a function, ignoring autograd."""
    return of.launched(Request(arrays, None, None, arch, None))


# ---------------------------------------------------------------------------------------------- forward and backward


class Kept(NamedTuple):
    """What the forward call stores for the gradients: exponentials (rows, tiles, classes of a tile), and the largest logit of each tile."""

    exponentials: Any
    top: Any


def _key(ignore_index: int, reduction: str, keep: bool = False, arch: Any = None) -> tuple[Any, ...]:
    """Return the key of a replayed forward call. It includes the type of `ignore_index`, because True equals 1 but is refused."""
    return "forward", ignore_index, type(ignore_index), reduction, keep, arch


def _keeps(x: Any, weight: Any, targets: Any, recompute: bool | None) -> bool:
    """Return whether the forward call stores an exponential for each logit."""
    return 2 * math.prod(targets.shape) * weight.shape[0] <= STORED if recompute is None else not recompute


class Results(NamedTuple):
    """The results of a forward call: the loss, the log-sum-exp of each row, what is stored, and for the mean one over the number of rows
    that are not ignored.
    """

    loss: Any
    lse: Any
    kept: Kept | None
    share: Any


def forward(x: Any, weight: Any, targets: Any, options: Options, arch: Any = None, keep: bool = False) -> Results:
    """Return the results, and what is stored for the gradients if `keep`."""

    def make(_: None, x: Any, weight: Any, targets: Any) -> tuple[Any, ...]:
        return _forward(x, weight, targets, options, arch, keep)

    return _results(options.reduction, *_called(_key(*options, keep, arch), (x, weight, targets), make))


def _results(reduction: str, loss: Any, lse: Any, *others: Any) -> Results:
    share, stored = (others[0], others[1:]) if reduction == "mean" else (None, others)
    return Results(loss, lse, Kept(*stored) if stored else None, share)


def _called(options: tuple[Any, ...], inputs: tuple[Any, ...], make: Callable[..., tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the results of several launches, by a replay if possible."""
    if not hasattr(inputs[0], "is_cuda"):
        return make(None, *inputs)
    results: tuple[Any, ...] = REPLAYS.call(options, None, inputs, make)
    return results


REPLAYS: Final = Replays()
"""The recorded calls, and their gradients."""


def _forward(x: Any, weight: Any, targets: Any, options: Options, arch: Any, keep: bool) -> tuple[Any, ...]:
    """Return the loss, the log-sum-exp, for the mean its factor, and, if `keep`, the fields of `Kept`."""
    problem = _Problem.of(x, weight, targets, arch)
    row = _call(_targets(problem.classes), arch, problem.targets)
    pick = problem.picks
    product = _statistics(problem.classes, problem.wide, keep, pick)
    top, total, *stored = _call(product, arch, problem.x, problem.weight, *((row,) if pick else ()))
    kept = (stored[-1], top) if keep else ()
    combined = _loss(problem.classes, problem.x.shape[1], problem.wide, pick)
    given = (top, total, problem.targets, stored[0]) if pick else (problem.x, weight, top, total, problem.targets, row)
    losses, lse = _call(combined, arch, *given, options.ignore_index)
    lse = lse.reshape(problem.shape)
    if options.reduction == "none":
        return losses.reshape(problem.shape), lse, *kept
    total, share, mean = _call(_of_all_rows("reduced", "loss"), arch, losses, problem.targets, options.ignore_index)
    return (mean.reshape(()), lse, share, *kept) if options.reduction == "mean" else (total.reshape(()), lse, *kept)


def backward(
    grad: Any,
    x: Any,
    weight: Any,
    targets: Any,
    lse: Any,
    options: Options,
    arch: Any = None,
    wanted: tuple[bool, bool] = (True, True),
    kept: Kept | None = None,
    share: Any = None,
) -> tuple[Any, Any]:
    """Return the gradients of `x` and `weight`; None for those that are not wanted. Without `kept` the logits are computed again, without
    `share` the factor of the mean.
    """
    by_rows = options.reduction == "none"
    grad = grad.reshape((-1,))
    if by_rows:
        grad = copied(grad) if operand_of(grad, "grad").steps != (1,) else grad
    elif options.reduction == "mean":
        grad = grad * (_share(lse, targets, options, arch) if share is None else share)

    def make(_: None, grad: Any, x: Any, weight: Any, targets: Any, lse: Any, *stored: Any) -> tuple[Any, ...]:
        return _backward(grad, x, weight, targets, lse, Kept(*stored) if stored else None, options, arch, wanted)

    inputs = (grad, x, weight, targets, lse, *(kept or ()))
    results = iter(_called(("backward", by_rows, options.ignore_index, wanted, arch), inputs, make))
    return next(results) if wanted[0] else None, next(results) if wanted[1] else None


def _share(lse: Any, targets: Any, options: Options, arch: Any) -> Any:
    """Return one over the number of rows that are not ignored, an array of one element."""
    rows = math.prod(targets.shape)
    given = _reshaped(lse, (rows,)), _reshaped(targets, (rows,))
    return _call(_of_all_rows("reduced", "loss"), arch, *given, options.ignore_index)[1]


def _backward(
    grad: Any, x: Any, weight: Any, targets: Any, lse: Any, kept: Kept | None, options: Options, arch: Any, wanted: tuple[bool, bool]
) -> tuple[Any, ...]:
    """Return the gradients that are wanted. `grad` is the gradient of each row's loss, or of the sum of the losses."""
    problem = _Problem.of(x, weight, targets, arch)
    lse = _reshaped(lse, problem.targets.shape)
    row = _call(_targets(problem.classes), arch, problem.targets)
    factor, top = _factors_of(problem, grad, options, arch)
    scale = _call(_spread(problem.x.shape[1]), arch, top).reshape((-1,))
    dx, dw = None, _new_matrix(weight) if wanted[1] else None
    parts = tuple(_ranges(problem))
    buffer = new_like(problem.x, (problem.x.shape[0], -(-parts[0][1] // COLUMNS) * COLUMNS), as_dtype(operand_of(x, "x").dtype))
    for begin, end in parts:
        if kept is None:
            of_logits = _gradient_of_logits(problem, begin, end, buffer, arch, lse=lse, row=row, factor=factor)
        else:
            of_logits = _from_kept(problem.wide, kept, begin, end, buffer, arch, lse, row, factor)
        if dw is not None:
            matmul.launched(product_request(of_logits.T, problem.x, dw[begin:end], epilogue="acc * scale[n]", scale=scale, arch=arch))
        if wanted[0]:
            dx = _added(of_logits, weight[begin:end], dx, scale if end == problem.classes else None, arch)
    return (*(() if dx is None else (_reshaped(dx, tuple(x.shape)),)), *(() if dw is None else (dw,)))


def _factors_of(problem: _Problem, grad: Any, options: Options, arch: Any) -> tuple[Any, Any]:
    """Return the factor of each row of the gradients of the logits, and the factor of both products, an array of one element."""
    ignored, classes = options.ignore_index, problem.classes
    if options.reduction != "none":
        return _call(_factors(classes, True), arch, problem.targets, ignored).reshape((-1,)), grad
    top = _call(_of_all_rows("largest", "dloss"), arch, grad, problem.targets, ignored)
    return _call(_factors(classes, False), arch, problem.targets, grad, top, ignored).reshape((-1,)), top


def _ranges(problem: _Problem) -> Iterator[tuple[int, int]]:
    """Yield the first class and the end of each part."""
    count = -(-problem.classes * problem.x.shape[0] // PART)
    step = -(-problem.classes // (count * COLUMNS)) * COLUMNS
    for begin in range(0, problem.classes, step):
        yield begin, min(begin + step, problem.classes)


GRADIENT: Final = "(exp2(acc * {log} - lse[m] * {log}) - where(n + first == row[m], 1, 0)) * factor[m]"
"""The gradient of a logit; `first` is the first class of the part."""


def _gradient_of_logits(problem: _Problem, begin: int, end: int, buffer: Any, arch: Any, **operands: Any) -> Any:
    """Return the gradients of the logits of the classes from `begin` to `end`, times a factor, in 16 bits."""
    text = GRADIENT.format(log=_parts().LOG2_E)
    out = buffer[:, : end - begin]
    return matmul.launched(product_request(problem.x, problem.weight[begin:end].T, out, epilogue=text, arch=arch, first=begin, **operands))


def _from_kept(wide: int, kept: Kept, begin: int, end: int, buffer: Any, arch: Any, lse: Any, row: Any, factor: Any) -> Any:
    """Return the same from exponentials that the forward call stored."""
    first, last = begin // wide, -(-end // wide)
    given = kept.exponentials[:, first:last], kept.top[:, first:last], lse, row, factor, first
    out = buffer.reshape((buffer.shape[0], -1, wide))[:, : last - first]
    _gradient_of_kept(wide).launched(Request(given, out, None, arch, None))
    return buffer[:, : end - begin]


def _added(gradients: Any, weight: Any, total: Any, scale: Any, arch: Any) -> Any:
    """Return the sum of the products of previous parts and this one: in float32, or scaled in 16 bits if `scale` is given."""
    text = "acc" if total is None else "acc + P[m,n]"
    operands = {} if total is None else {"P": total}
    if scale is not None:
        return matmul.launched(product_request(gradients, weight, epilogue=f"({text}) * scale[n]", arch=arch, **operands, scale=scale))
    if total is None:
        return matmul.launched(product_request(gradients, weight, c_dtype="float32", arch=arch))
    return matmul.launched(product_request(gradients, weight, epilogue=text, c_dtype="float32", arch=arch, **operands))


def _new_matrix(weight: Any) -> Any:
    """Return a new matrix of the shape of the weights, column-major if they are."""
    rows, columns = weight.shape
    dtype = as_dtype(operand_of(weight, "weight").dtype)
    is_transposed = operand_of(weight, "weight").steps[0] == 1 and columns > 1
    return new_like(weight, (columns, rows), dtype).T if is_transposed else new_like(weight, (rows, columns), dtype)


# ---------------------------------------------------------------------------------------------- PyTorch's operators


# torch.compile traces this function, so it uses no attrs classes, caches or locks.


def _through_torch(x: Any, weight: Any, targets: Any, ignore_index: int, reduction: str, keep: bool) -> Any:
    """Call the operator."""
    import torch

    _operators()
    return torch.ops.fireiron.linear_cross_entropy(x, weight, targets, ignore_index, reduction, keep)


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


def _run(x: Any, weight: Any, targets: Any, ignore_index: int, reduction: str, keep: bool) -> tuple[Any, ...]:
    loss, lse, kept, _ = forward(x, weight, targets, options_of(ignore_index, reduction), keep=keep)
    return loss, lse, *(kept or (x.new_empty(0), lse.new_empty(0)))


def _run_gradients(
    grad: Any, x: Any, weight: Any, targets: Any, saved: list[Any], ignore_index: int, reduction: str, of_x: bool, of_weight: bool
) -> tuple[Any, Any]:
    options = options_of(ignore_index, reduction)
    lse, exponentials, top = saved
    kept = Kept(exponentials, top) if len(exponentials.shape) == 3 else None
    results = backward(grad, x, weight, targets, lse, options, wanted=(of_x, of_weight), kept=kept)
    return tuple(x.new_empty(0) if one is None else one for one in results)


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    """Save what the gradients need."""
    x, weight, targets, ctx.ignore_index, ctx.reduction, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, targets, *output[1:])


def _gradients(ctx: Any, grad: Any, *_: Any) -> tuple[Any, ...]:
    unused = (None, None, None, None)
    if grad is None:
        return (None, None, *unused)
    of_x, of_weight = ctx.needs_input_grad[:2]
    x, weight, targets, *saved = ctx.saved_tensors
    given = (grad, x, weight, targets, saved, ctx.ignore_index, ctx.reduction, of_x, of_weight)
    dx, dw = (_gradient_operator() if operators.is_operator(grad, x, weight) else _run_gradients)(*given)
    return (dx if of_x else None, dw if of_weight else None, *unused)


def _gradient_operator() -> Callable[..., Any]:
    import torch

    _operators()
    run: Callable[..., Any] = torch.ops.fireiron.linear_cross_entropy_gradients
    return run


@functools.cache
def _replayed() -> Callable[..., Any]:
    """Return the loss and the log-sum-exp of plain tensors for autograd, by replayed calls; None if PyTorch needs an operator.

    The function takes the tensors, both options, and whether the forward call stores exponentials. The look-ups are done once.
    """
    import torch

    watched, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
    is_recording = torch.is_grad_enabled

    def run(ctx: Any, x: Any, weight: Any, targets: Any, ignore_index: int, reduction: str, keep: bool) -> tuple[Any, Any]:
        again = REPLAYS.again
        done = None if again is None else again(_key(ignore_index, reduction, keep), None, x, weight, targets)
        if done is None or done is NotImplemented:
            loss, lse, kept, share = forward(x, weight, targets, options_of(ignore_index, reduction), keep=keep)
        else:
            loss, lse, kept, share = _results(reduction, *done)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, targets, lse, share, *(kept or ()))
        ctx.ignore_index, ctx.reduction = ignore_index, reduction
        return loss, lse

    def differentiate(ctx: Any, grad: Any, _: Any) -> tuple[Any, ...]:
        unused = (None, None, None, None)
        if grad is None:
            return (None, None, *unused)
        wanted = ctx.needs_input_grad[:2]
        x, weight, targets, lse, share, *stored = ctx.saved_tensors
        if is_recording() or watched() or transformed() or operators.watched(grad):
            saved = lse, *(stored or (x.new_empty(0), lse.new_empty(0)))
            given = (grad, x, weight, targets, saved, ctx.ignore_index, ctx.reduction, *wanted)
            dx, dw = (_gradient_operator() if operators.is_operator(grad, x, weight) else _run_gradients)(*given)
            return (dx if wanted[0] else None, dw if wanted[1] else None, *unused)
        kept = Kept(*stored) if stored else None
        own = Options(ctx.ignore_index, ctx.reduction)
        return (*backward(grad, x, weight, targets, lse, own, wanted=wanted, kept=kept, share=share), *unused)

    apply = operators.differentiable(run, differentiate)
    return lambda *given: None if watched() or transformed() else apply(*given)


@functools.cache
def register_operators() -> tuple[Any, Any]:
    """Register and return the operators of the call and of its gradients."""
    import torch

    def shaped(x: Any, weight: Any, targets: Any, ignore_index: int, reduction: str, keep: bool) -> tuple[Any, ...]:
        options_of(ignore_index, reduction)
        lse = x.new_empty(targets.shape, dtype=torch.float32)
        loss = lse.new_empty(targets.shape if reduction == "none" else ())
        if not keep:
            return loss, lse, x.new_empty(0), lse.new_empty(0)
        wide = _width_of(x.device.index, None, x.shape[-1], x.stride()[-1], weight.stride())
        rows, tiles = math.prod(targets.shape), -(-weight.shape[0] // wide)
        return loss, lse, x.new_empty((rows, tiles, wide)), lse.new_empty((rows, tiles))

    def shapes(
        grad: Any, x: Any, weight: Any, targets: Any, saved: list[Any], ignore_index: int, reduction: str, of_x: bool, of_weight: bool
    ) -> tuple[Any, Any]:
        dw = weight.new_empty(weight.shape[::-1]).T if weight.stride()[0] == 1 and weight.shape[1] > 1 else weight.new_empty(weight.shape)
        return (x.new_empty(x.shape) if of_x else x.new_empty(0)), (dw if of_weight else x.new_empty(0))

    options = "int ignore_index, str reduction"
    arrays, results = "Tensor x, Tensor weight, Tensor targets", "Tensor, Tensor, Tensor, Tensor"
    forward_operator = operators.define("linear_cross_entropy", f"({arrays}, {options}, bool keep) -> ({results})", _run, shaped)
    schema = f"(Tensor grad, {arrays}, Tensor[] saved, {options}, bool of_x, bool of_weight) -> (Tensor, Tensor)"
    gradients = operators.define("linear_cross_entropy_gradients", schema, _run_gradients, shapes)
    operators.refuse_gradients(gradients, lambda inputs: _without_gradient("its gradients have no gradient", "first derivatives"))
    forward_operator.register_autograd(_gradients, setup_context=_remember)
    return forward_operator, gradients


def _without_gradient(asked: str, legal: str) -> ArgumentError:
    return ArgumentError(f"linear_cross_entropy: {asked}", got="a second derivative", legal=legal, hint="remove create_graph=True")


__all__ = ["linear_cross_entropy", "register_operators"]
