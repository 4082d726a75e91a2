"""Matmuls of PyTorch tensors that are distributed over the GPUs of a process group.

    import fireiron.distributed as fd
    c = fd.all_gather_matmul(x, w)        x: rows of this GPU, w: columns of this GPU; c: all rows, columns of this GPU
    y = fd.matmul_reduce_scatter(c, v)    c: columns of this GPU, v: rows of this GPU; y: the sum of all GPUs, rows of this GPU
    y = fd.matmul_all_reduce(c, v)        the same, all rows on each GPU

All processes of the group call the same functions in the same order, on one stream. The first call for shapes and types chooses the
kernels by their expected time, compiles them, and allocates symmetric memory. A later call launches them, also while a CUDA graph is
captured. Each function has gradients, which are again functions of this module.

If other GPUs read an input (candidates with separate launches), it is copied to symmetric memory, unless `empty` allocated it. On other
devices, for other types, or without symmetric memory, a call is `fireiron.matmul` (on a CPU: `torch.matmul`) and a collective of
`torch.distributed`, after one warning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Final

from fireiron import operators
from fireiron.distributed_plan import EXCHANGES, TYPES, Candidate, NodeProduct, candidates
from fireiron.errors import ArgumentError, FireironError, FireironWarning
from fireiron.frozen import frozen
from fireiron.gpu.barrier import MOST_GPUS
from fireiron.values.machine import as_dtype
from fireiron.values.tensor import ColMajor, RowMajor

FALLBACKS: Final = ("warn", "silent", "refuse")
"""What happens if no kernel of this package computes a call: collectives after one warning, without a warning, or an error."""


@frozen
class Options:
    """Options of a call: what happens without a kernel, the name of the candidate (None: the fastest), and the time limit of peers."""

    fallback: str = "warn"
    use: str | None = None
    seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            raise ArgumentError("fallback: unknown value", got=self.fallback, legal=FALLBACKS)


class _Configuration:
    """The options of later calls."""

    options: Options = Options()


_CONFIGURED: Final = _Configuration()


def configure(fallback: str | None = None, use: str | None = None, seconds: float | None = None) -> None:
    """Set the options of later calls for new shapes; all processes set the same ones.

    Args:
        fallback: `"warn"`, `"silent"` or `"refuse"`: what happens if no kernel of this package computes a call.
        use: the name of the candidate to use, such as `"gathered"`, `"overlapped"`, `"direct"`, `"sums"`, `"rounded sums"`, `"exchanged"`
            or `"library"`; None for the fastest.
        seconds: how long a GPU waits for another one before the processes end with an error (None: 600).

    Raises: ArgumentError for unknown values.
    """
    _CONFIGURED.options = Options(_CONFIGURED.options.fallback if fallback is None else fallback, use, seconds)


def all_gather_matmul(a: Any, b: Any, group: Any = None) -> Any:
    """Return `gather(a) @ b`: the rows of all GPUs, and the columns of this GPU.

    Args:
        a: (M / G, K), the rows of this GPU; those of GPU 0 come first. The same shape on each GPU.
        b: (K, N of this GPU), row-major or column-major; other tensors are copied.
        group: a process group (None: the default group) of G GPUs of one host.

    Raises: ArgumentError for shapes that do not fit or differ between processes; LaunchError if another GPU did not arrive in time.
    """
    return _called("all_gather", a, b, group)


def matmul_reduce_scatter(a: Any, b: Any, group: Any = None) -> Any:
    """Return this GPU's rows of the sum of `a @ b` over all GPUs.

    Args:
        a: (M, K of this GPU), where G divides M.
        b: (K of this GPU, N), row-major or column-major; other tensors are copied.
        group: a process group (None: the default group) of G GPUs of one host.

    The products of GPUs are added in the order of ranks, so results are the same in each run. Products of 16-bit floats may be rounded
    before they are added, as by collectives; `configure(use="sums")` adds them in float32.

    Raises: ArgumentError for shapes that do not fit or differ between processes; LaunchError if another GPU did not arrive in time.
    """
    return _called("reduce_scatter", a, b, group)


def matmul_all_reduce(a: Any, b: Any, group: Any = None) -> Any:
    """Return the sum of `a @ b` over all GPUs, the same on each GPU.

    Args and errors: as for `matmul_reduce_scatter`, for any number of rows.
    """
    return _called("all_reduce", a, b, group)


def empty(shape: tuple[int, ...], dtype: Any = None, group: Any = None) -> Any:
    """Allocate a row-major tensor that the other GPUs can read, so that calls with it need no copy.

    All processes of the group call this together with the same arguments. The memory is kept until `release`. `dtype` is a type of PyTorch
    (None: its default type).

    Raises: LaunchError if PyTorch or the driver has no symmetric memory on these GPUs.
    """
    import torch

    from fireiron.gpu.symmetric import Shared, allocations

    group = group_of(group)
    shape = tuple(shape)
    strides = tuple(torch.empty(shape, device="meta").stride())
    dtype = torch.get_default_dtype() if dtype is None else dtype
    device = torch.device("cuda", torch.cuda.current_device())
    return allocations(group).add(Shared.of(shape, strides, dtype, group, device))


def release(tensor: Any, group: Any = None) -> None:
    """Free a tensor that `empty` allocated, after all GPUs finished to use it. Raises: ArgumentError for another tensor."""
    from fireiron.gpu.symmetric import allocations

    allocations(group_of(group)).remove(tensor)


def synchronize(group: Any = None) -> None:
    """Wait for the calls on the current stream. Raises: LaunchError with the place if another GPU did not arrive in time."""
    import torch

    try:
        torch.cuda.current_stream().synchronize()
    finally:
        for plan in _plans(group_of(group)).values():
            if isinstance(plan, _Launches):
                plan.run.check()


def explain(kind: str, a: Any, b: Any, group: Any = None, arch: Any = None) -> str:
    """Return the candidates of a call with their expected times as text, the fastest first. Nothing is launched.

    Args:
        kind: `"all_gather"`, `"reduce_scatter"` or `"all_reduce"`.
        a, b: tensors, or anything with a shape, a dtype and strides.
        group: a process group, or the number of GPUs.
        arch: the target (None: that of the GPU).
    """
    gpus = group if isinstance(group, int) else group_of(group).size()
    problem = _problem(kind, a, b, gpus)
    device = getattr(a.device, "index", None) if getattr(a, "is_cuda", False) else None
    return "\n".join(map(str, candidates(problem, arch, device)))


# ---------------------------------------------------------------------------------------------- calls


def _called(kind: str, a: Any, b: Any, group: Any) -> Any:
    """Run a call directly, or as an operator if PyTorch traces or differentiates it."""
    a, b = operators.autocast(a, b)
    if operators.traced(a, b) or operators.differentiated(a, b):
        from fireiron.distributed_operator import through_torch

        return through_torch(kind, a, b, group)
    return run(kind, a, b, group_of(group))


def run(kind: str, a: Any, b: Any, group: Any) -> Any:
    """Run a call on plain tensors."""
    key = kind, a.shape, a.stride(), b.shape, b.stride(), a.dtype, b.dtype, a.device, b.device, _CONFIGURED.options
    plans = _plans(group)
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = _planned(kind, a, b, group)
    return plan(a, b)


@functools.cache
def _plans(group: Any) -> dict[Any, Callable[[Any, Any], Any]]:
    """Return what computes the calls of a process group, by shapes, types and options."""
    return {}


def group_of(group: Any) -> Any:
    """Return a process group. Raises: ArgumentError if there is none."""
    import torch.distributed as distributed

    if group is None and distributed.is_initialized():
        group = distributed.group.WORLD
    if group is None:
        raise ArgumentError("no process group", hint="torch.distributed.init_process_group(...), under torchrun")
    return group


def _order(tensor: Any) -> Any:
    """Return the storage order of a dense matrix; row-major for others, which are copied."""
    return ColMajor if tensor.dim() == 2 and not tensor.is_contiguous() and tensor.t().is_contiguous() else RowMajor


def _problem(kind: str, a: Any, b: Any, gpus: int) -> NodeProduct:
    if a.dtype != b.dtype:
        raise ArgumentError(f"{kind}: a has the type {a.dtype}, but b has the type {b.dtype}", hint="convert one of them")
    dtype = as_dtype(str(a.dtype).removeprefix("torch."))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ArgumentError(
            f"{kind}: a and b must be matrices", got=f"shapes {tuple(a.shape)} and {tuple(b.shape)}", hint="a.flatten(0, -2)"
        )
    return NodeProduct.of(kind, tuple(a.shape), tuple(b.shape), dtype, (_order(a), _order(b)), gpus)


def _planned(kind: str, a: Any, b: Any, group: Any) -> Callable[[Any, Any], Any]:
    """Return what computes a call. All processes decide together, so that none waits for another one."""
    collectives = functools.partial(by_collectives, kind, group=group)
    signature = kind, tuple(a.shape), tuple(b.shape), str(a.dtype), str((_order(a), _order(b)))
    _require_equal(kind, _from_all(signature, group))
    problem = _problem(kind, a, b, group.size())
    if problem.gpus == 1:
        return collectives
    known, reason = _attempt(lambda: _supported(problem, a, b), group)
    if known is None:
        return _fallback(kind, reason, collectives)
    plan, reason = (
        _for_any_rows(problem, known, group) if _is_one_of_many(problem, group) else _for_sizes(problem, problem.spec, known, group)
    )
    if plan is None:
        return _fallback(kind, reason, collectives) if reason else collectives
    launches: _Launches = plan
    return launches


MOST_SIZES: Final = 8
"""Numbers of rows for which matmuls with equal matrices b have separate kernels. Further ones share kernels for any number of rows."""


def _is_one_of_many(problem: NodeProduct, group: Any) -> bool:
    """Whether a matmul shares the kernels of others. Counts the numbers of rows of matmuls that differ only in them."""
    if not problem.has_run_time_rows or _CONFIGURED.options.use is not None:
        return False
    rows = _rows_of(group).setdefault(problem.with_rows(problem.gpus), [])
    if problem.sizes[0] not in rows and len(rows) == MOST_SIZES:
        return True
    rows.append(problem.sizes[0])
    return False


@functools.cache
def _rows_of(group: Any) -> dict[NodeProduct, list[int]]:
    """Return the numbers of rows with separate kernels, by matmul."""
    return {}


@functools.cache
def _shared_plans(group: Any) -> dict[Any, _Launches]:
    """Return the plans for any number of rows, by matmul with the largest number of rows, and options."""
    return {}


def _for_any_rows(problem: NodeProduct, known: list[Candidate], group: Any) -> tuple[Any, str]:
    """Return the plan for any number of rows up to a power of two, which other calls share, and the reason if there is none.

    Its strategy is chosen for the largest number of rows.
    """
    most = problem.with_rows(problem.gpus * (1 << (problem.sizes[0] // problem.gpus - 1).bit_length()))
    key = most, _CONFIGURED.options
    plans = _shared_plans(group)
    if key in plans:
        return plans[key], ""
    known, reason = _attempt(lambda: candidates(most, None, _device()), group)
    if known is None:
        return None, reason
    plan, reason = _for_sizes(most, most.for_rows(most.sizes[0]), known, group)
    if isinstance(plan, _Launches):
        plans[key] = plan
    return plan, reason


def _device() -> int:
    """Return the number of the current GPU."""
    import torch

    return int(torch.cuda.current_device())


def _for_sizes(problem: NodeProduct, spec: Any, known: list[Candidate], group: Any) -> tuple[Any, str]:
    """Return the plan of the first candidate that all processes can launch for a spec, and the reason if collectives are used instead."""
    strategies, reason = {candidate.name: candidate.strategy for candidate in known}, ""
    for name in _from_all(_names(problem, known), group)[0]:
        strategy = strategies[name]
        if strategy is None:
            return None, reason
        kernel, reason = _attempt(functools.partial(_compiled, strategy, spec), group)
        if kernel is not None:
            launches, reason = _attempt(functools.partial(kernel.over, group, _CONFIGURED.options.seconds), group)
            return (None, reason) if launches is None else (_Launches(launches), "")
    return None, reason


def _compiled(strategy: Any, spec: Any) -> Any:
    """Return the compiled kernel of a strategy."""
    return strategy(spec).compile()


def _require_equal(kind: str, signatures: list[Any]) -> None:
    """Refuse different arguments of processes."""
    if any(signature != signatures[0] for signature in signatures):
        got = "; ".join(f"GPU {rank}: {each[0]} {each[1]} @ {each[2]} of {each[3]}, {each[4]}" for rank, each in enumerate(signatures))
        raise ArgumentError(f"{kind}: the arguments of the GPUs differ", got=got, legal="equal shapes, types and storage orders")


def _attempt(make: Callable[[], Any], group: Any) -> tuple[Any, str]:
    """Return a value, or None and the reason if it raises an error in any process."""
    value, reason = None, ""
    try:
        value = make()
    except FireironError as error:
        reason = error.headline
    reason = next(filter(None, _from_all(reason, group)), "")
    return (None, reason) if reason else (value, "")


def _from_all(value: Any, group: Any) -> list[Any]:
    """Return a value of each process."""
    import torch.distributed as distributed

    values = [None] * group.size()
    distributed.all_gather_object(values, value, group=group)
    return values


def _supported(problem: NodeProduct, a: Any, b: Any) -> list[Candidate]:
    """Return the candidates. Raises: an error if no kernel of this package can compute the call."""
    if a.device.type != "cuda" or b.device != a.device:
        raise ArgumentError(f"the tensors are on {a.device} and {b.device}", legal="one GPU")
    if problem.dtype not in TYPES or problem.gpus > MOST_GPUS:
        raise ArgumentError(f"no kernel supports {problem.dtype} on {problem.gpus} GPUs", legal=f"{TYPES}, at most {MOST_GPUS} GPUs")
    return candidates(problem, None, a.device.index)


def _names(problem: NodeProduct, known: list[Candidate]) -> list[str]:
    """Return the names of the candidates to try, in order: a later one if the steps of an earlier one are illegal for the node."""
    names = [candidate.name for candidate in known]
    if _CONFIGURED.options.use is not None and _CONFIGURED.options.use not in names:
        raise ArgumentError(f"{problem.kind}: no candidate has the name of configure(use=...)", got=_CONFIGURED.options.use, legal=names)
    return names if _CONFIGURED.options.use is None else [_CONFIGURED.options.use]


class _Launches:
    """A call by kernels of this package."""

    def __init__(self, run: Any) -> None:
        self.run, self.shared = run, run.shared

    def __call__(self, a: Any, b: Any) -> Any:
        self.run.check()
        return self.run(self._given("A", a), self._given("B", b))

    def _given(self, name: str, tensor: Any) -> Any:
        """Return an input as the kernels read it: in symmetric memory if others read it, dense, and aligned to 16 bytes."""
        if name in self.shared:
            from fireiron.gpu.symmetric import allocations

            known = allocations(self.run.group).of(tensor) is not None
            return tensor if known else self.run.part_like(name, tensor).copy_(tensor)
        dense = tensor.is_contiguous() or tensor.t().is_contiguous()
        return tensor if dense and tensor.data_ptr() % 16 == 0 else tensor.clone(memory_format=_contiguous())


@functools.cache
def _contiguous() -> Any:
    import torch

    return torch.contiguous_format


# ---------------------------------------------------------------------------------------------- collectives


def _fallback(kind: str, reason: str, collectives: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the call by collectives. Raises: ArgumentError if `configure(fallback="refuse")` is set."""
    if _CONFIGURED.options.fallback == "refuse":
        raise ArgumentError(f"{kind}: no kernel computes this call, and configure(fallback='refuse') is set", got=reason)
    if _CONFIGURED.options.fallback == "warn":
        _warn_once(f"fireiron.distributed: {kind} is computed by collectives of torch.distributed: {reason}")
    return collectives


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, FireironWarning, stacklevel=6)


def by_collectives(kind: str, a: Any, b: Any, group: Any = None) -> Any:
    """Return the result of a call by a product and a collective of `torch.distributed`."""
    import torch
    import torch.distributed as distributed

    group = group_of(group)
    gathers = EXCHANGES[kind].gathers
    if gathers:
        part = (a if gathers == "A" else b).contiguous() if kind != "all_gather_k" else a.t().contiguous()
        whole = torch.empty((part.shape[0] * group.size(), part.shape[1]), dtype=part.dtype, device=part.device)
        distributed.all_gather_into_tensor(whole, part, group=group)
        whole = whole.t() if kind == "all_gather_k" else whole
        return _product(whole, b) if gathers == "A" else _product(a, whole)
    sums = _product(a, b)
    if kind == "all_reduce":
        distributed.all_reduce(sums, group=group)
        return sums
    result = torch.empty((sums.shape[0] // group.size(), sums.shape[1]), dtype=sums.dtype, device=sums.device)
    distributed.reduce_scatter_tensor(result, sums, group=group)
    return result


def _product(a: Any, b: Any) -> Any:
    """Return the product of matrices of one GPU, as a row-major matrix."""
    if a.device.type != "cuda":
        return a @ b
    from fireiron.matmul import matmul

    return matmul(a, b).contiguous()


__all__ = [
    "all_gather_matmul",
    "by_collectives",
    "configure",
    "empty",
    "explain",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "release",
    "synchronize",
]
