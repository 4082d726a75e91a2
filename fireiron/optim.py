"""`fireiron.optim.AdamW`: the optimizer of PyTorch's name, which updates all parameters of a type in one launch.

    optimizer = fireiron.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

The class is made when it is first used, because `import fireiron` does not load PyTorch. A kernel reads tensors as rows of 128 elements,
whose numbers are in tables (`strategies/_adamw.py`). This module makes the tables: it finds the rows of each tensor by its address.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fireiron.errors import ArgumentError
from fireiron.values.machine import as_dtype

if TYPE_CHECKING:
    from types import ModuleType

    from fireiron.gpu.kernel import CompiledKernel

    AdamW: Any

TYPES: Final = ("float32", "bfloat16", "float16")
"""Element types of parameters and gradients."""

MOMENT_TYPES: Final = ("float32", "bfloat16")
"""Element types of moments: a variance has too large a range for float16."""

ARRAYS: Final = "PGMV"
"""Parameters, gradients, means and variances, in the order of the kernel."""

MOST_ROWS: Final = (1 << 31) - 1
"""The largest number of a row in a table of int32."""

MOMENTS: Final = ("exp_avg", "exp_avg_sq")
"""The state of a parameter, with the names of PyTorch."""


class Part(NamedTuple):
    """Rows of one width: the number of elements of a row, for each array its lowest address, and for each tensor first rows and a count."""

    width: int
    bases: tuple[int, ...]
    firsts: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]


def parts_of(tensors: Sequence[tuple[Sequence[int], int]], sizes: Sequence[int], widths: Sequence[int]) -> tuple[Part, ...]:
    """Return the rows of tensors, in as few launches as the numbers of rows permit.

    Args:
        tensors: for each tensor the addresses in the four arrays, and the number of elements.
        sizes: bytes of an element of each array.
        widths: the legal numbers of elements of a row, the largest first; the last is 1.

    Each array of a part starts at an address that is a multiple of its rows, so every row of a tensor is one of the array's.

    >>> parts_of([((512, 4096), 20)], (2, 4), (8, 1))
    (Part(width=8, bases=(512, 4096), firsts=((0,), (0,)), counts=(2,)), Part(width=1, bases=(544, 4160), firsts=((0,), (0,)), counts=(4,)))
    """
    parts: list[Part] = []
    rest = [(tuple(addresses), count) for addresses, count in tensors if count]
    for width in widths:
        rows = [size * width for size in sizes]
        here = [(addresses, count // width) for addresses, count in rest if _are_aligned(addresses, rows) and count >= width]
        parts += (_part(width, rows, group) for group in _groups(here, rows))
        rest = list(_remaining(rest, width, rows, sizes))
    return tuple(parts)


def _are_aligned(addresses: Sequence[int], rows: Sequence[int]) -> bool:
    return all(address % row == 0 for address, row in zip(addresses, rows, strict=True))


def _remaining(
    tensors: Iterable[tuple[tuple[int, ...], int]], width: int, rows: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield what remains of tensors after their rows of a width."""
    for addresses, count in tensors:
        done = count // width * width if _are_aligned(addresses, rows) else 0
        if done < count:
            yield tuple(address + done * size for address, size in zip(addresses, sizes, strict=True)), count - done


def _groups(tensors: Sequence[tuple[tuple[int, ...], int]], rows: Sequence[int]) -> Iterator[list[tuple[tuple[int, ...], int]]]:
    """Yield tensors in groups in which all numbers of rows are integers of 32 bits."""
    group: list[tuple[tuple[int, ...], int]] = []
    lows: list[int] = []
    ends: list[int] = []
    for addresses, count in tensors:
        stops = [address + count * row for address, row in zip(addresses, rows, strict=True)]
        wide = [min(pair) for pair in zip(lows, addresses, strict=True)] if group else list(addresses)
        far = [max(pair) for pair in zip(ends, stops, strict=True)] if group else stops
        if group and any((end - low) // row > MOST_ROWS for low, end, row in zip(wide, far, rows, strict=True)):
            yield group
            group, wide, far = [], list(addresses), stops
        group.append((addresses, count))
        lows, ends = wide, far
    if group:
        yield group


def _part(width: int, rows: Sequence[int], group: Sequence[tuple[tuple[int, ...], int]]) -> Part:
    bases = tuple(min(addresses[place] for addresses, _ in group) for place in range(len(rows)))
    firsts = tuple(
        tuple((addresses[place] - base) // row for addresses, _ in group) for place, (base, row) in enumerate(zip(bases, rows, strict=True))
    )
    return Part(width, bases, firsts, tuple(count for _, count in group))


@functools.cache
def _parts() -> ModuleType:
    """Return the file of the definition and its strategies."""
    return importlib.import_module("fireiron.strategies._adamw")


@functools.cache
def kernel_for(width: int, parameter: str, gradient: str, moment: str = "float32", arch: Any = None) -> CompiledKernel:
    """Return the kernel for rows of a number of elements, and types of parameters, gradients and moments."""
    parts = _parts()
    problem = parts.spec(width, *map(as_dtype, (parameter, gradient, moment)))
    return parts.by_rows(width)(problem).compile(arch)  # type: ignore[no-any-return]


class _Numbers(NamedTuple):
    """The options of a step that are the same for all parameters of a launch; `step` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    decay: float
    step: int

    @property
    def scalars(self) -> tuple[float, ...]:
        """The numbers of the kernel, in the order of `SCALARS`."""
        rate = self.lr / (1 - self.beta1**self.step)
        root = 1 / math.sqrt(1 - self.beta2**self.step)
        return rate, 1 - self.lr * self.decay, self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, self.eps, root


# ---------------------------------------------------------------------------------------------- PyTorch


def __getattr__(name: str) -> Any:
    if name == "AdamW":
        return _optimizer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _optimizer() -> type[Any]:
    """Return the class."""
    import torch

    class AdamW(torch.optim.Optimizer):  # type: ignore[misc]
        """AdamW with decoupled weight decay, like `torch.optim.AdamW`, with moments in float32 for all types of parameters by default.

        Parameters are float32, bfloat16 or float16 tensors on a GPU, with dense strides. Gradients have the type of the parameter or
        float32. All parameters of a group with the same types are updated in one launch; elements after the last multiple of 128 of a
        tensor take a second one. The state of a parameter is `step`, `exp_avg` and `exp_avg_sq`, as PyTorch names them.

        Args:
            params: tensors, or groups as for any optimizer of PyTorch.
            lr: the step size.
            betas: the decay rates of the mean of the gradients, and of the mean of their squares.
            eps: the number that is added to the denominator.
            weight_decay: a step multiplies parameters by `1 - lr * weight_decay`.
            moment_dtype: the type of both moments. Moments in bfloat16, as PyTorch stores them for parameters in bfloat16, move a third
                fewer bytes; but with `beta2` 0.999 such a variance does not decay any more, because a step changes it by less than
                its precision.

        Raises: ArgumentError for numbers outside of their ranges; at a step for tensors that are not supported.
        """

        def __init__(
            self,
            params: Any,
            lr: float = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            moment_dtype: Any = torch.float32,
        ) -> None:
            _check_numbers(lr, betas, eps, weight_decay)
            self._moment = _checked_moment(moment_dtype)
            super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})
            self._tables: dict[Any, tuple[Any, list[_Launch]]] = {}

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def step(self, closure: Any = None) -> Any:
            """Update all parameters that have a gradient. `closure` computes the loss again, which is returned."""
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for number, group in enumerate(self.param_groups):
                for kinds, tensors in _by_kinds(torch, self.state, group, self._moment).items():
                    self._update((number, *kinds[:-1]), kinds, tensors, group)
            return loss

        def _update(self, key: Any, kinds: Any, tensors: list[tuple[Any, ...]], group: Mapping[str, Any]) -> None:
            """Update parameters of the same types and number of steps."""
            parameter, gradient, device, step = kinds
            places = [(tuple(one.data_ptr() for one in four), four[0].numel()) for four in tensors]
            known = self._tables.get(key)
            if known is None or known[0] != places:
                known = places, _launches(torch, places, (parameter, gradient, self._moment), tensors[0][0].device)
                self._tables[key] = known
            numbers = _Numbers(float(group["lr"]), group["betas"][0], group["betas"][1], group["eps"], group["weight_decay"], step)
            with torch.cuda.device(device):
                stream = torch.cuda.current_stream().cuda_stream
                for launch in known[1]:
                    launch(numbers.scalars, stream)

        def load_state_dict(self, state_dict: Any) -> None:
            """Load a state, also of `torch.optim.AdamW`; moments get their own type without being rounded to that of the parameter."""
            super().load_state_dict(state_dict)
            numbers = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
            params = itertools.chain.from_iterable(group["params"] for group in self.param_groups)
            for number, param in zip(numbers, params, strict=True):
                if number in state_dict["state"]:
                    self.state[param] = _state_of(torch, param, state_dict["state"][number], self._moment)
            self._tables.clear()

    return AdamW


class _Launch(NamedTuple):
    """A launch of the kernel on rows of one width: bases, tables, the number of rows, and numbers of rows of the arrays."""

    kernel: CompiledKernel
    bases: tuple[int, ...]
    tables: tuple[Any, ...]
    rows: int
    ends: tuple[int, ...]
    grid: int

    def __call__(self, scalars: Sequence[float], stream: int) -> None:
        import numpy

        p, _, m, v = self.bases
        addresses = *self.bases, *(table.data_ptr() for table in self.tables)
        values = *map(numpy.uintp, addresses), *map(numpy.float32, scalars), *map(numpy.uintp, (p, m, v))
        self.kernel.launcher(self.grid, self.kernel.block, (*values, *map(numpy.int32, (self.rows, *self.ends))), stream)


def _launches(torch: Any, places: Any, kinds: tuple[str, str, str], device: Any) -> list[_Launch]:
    """Return the launches for tensors at addresses; the tables are computed on the GPU."""
    parts = _parts()
    sizes = [as_dtype(kind).bytes for kind in (*kinds, kinds[-1])]
    result = []
    for part in parts_of(places, sizes, parts.WIDTHS):
        total = sum(part.counts)
        counts = torch.tensor(part.counts, device=device)
        owner = torch.repeat_interleave(torch.arange(len(part.counts), device=device), counts, output_size=total)
        offset = torch.arange(total, device=device) - (torch.cumsum(counts, 0) - counts)[owner]
        tables = tuple((torch.tensor(first, device=device)[owner] + offset).int() for first in part.firsts)
        ends = tuple(max(first + count for first, count in zip(firsts, part.counts, strict=True)) for firsts in part.firsts)
        kernel = kernel_for(part.width, *kinds)
        result.append(_Launch(kernel, part.bases, tables, total, ends, -(-total // parts.BLOCK[part.width])))
    return result


def _by_kinds(torch: Any, states: Any, group: Mapping[str, Any], moment: str) -> dict[Any, list[tuple[Any, ...]]]:
    """Return parameters, gradients and moments by types, device and number of steps, after counting this step."""
    kinds_of: dict[Any, list[tuple[Any, ...]]] = {}
    for param in group["params"]:
        if param.grad is None:
            continue
        grad = _checked(torch, param, param.grad)
        state = states[param]
        if not state:
            state |= {"step": 0, **{name: torch.zeros_like(param, dtype=getattr(torch, moment)) for name in MOMENTS}}
        state["step"] += 1
        kinds = _kind(param), _kind(grad), param.device.index, state["step"]
        kinds_of.setdefault(kinds, []).append((param, grad, *(state[name] for name in MOMENTS)))
    return kinds_of


def _state_of(torch: Any, param: Any, given: Mapping[str, Any], moment: str) -> dict[str, Any]:
    """Return the state of a parameter from a stored one, with moments of a type in the order of the parameter's elements."""
    moments = {name: torch.zeros_like(param, dtype=getattr(torch, moment)).copy_(given[name]) for name in MOMENTS}
    return {"step": int(given["step"]), **moments}


def _checked_moment(dtype: Any) -> str:
    """Return the name of the type of moments. Raises: `ArgumentError` for one that is not supported."""
    name = str(dtype).removeprefix("torch.")
    if name not in MOMENT_TYPES:
        raise ArgumentError("AdamW: no kernel supports moments of this type", got=name, legal=MOMENT_TYPES)
    return name


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _checked(torch: Any, param: Any, grad: Any) -> Any:
    """Return the gradient, with the strides of the parameter. Raises: `ArgumentError` for tensors that are not supported."""
    asked = "AdamW: "
    if param.device.type != "cuda":
        raise ArgumentError(f"{asked}a parameter is not on a GPU", got=param.device, legal="cuda", hint="torch.optim.AdamW")
    if grad.is_sparse or grad.layout != torch.strided:
        raise ArgumentError(f"{asked}a gradient is sparse", got=grad.layout, legal="dense tensors", hint="grad.to_dense()")
    if _kind(param) not in TYPES or _kind(grad) not in (_kind(param), "float32"):
        got = f"a parameter of {_kind(param)}, a gradient of {_kind(grad)}"
        raise ArgumentError(f"{asked}no kernel supports these types", got=got, legal=f"{TYPES}; gradients may be float32")
    if not _is_dense(param.shape, param.stride()):
        hint = "make it contiguous before the optimizer is made"
        raise ArgumentError(
            f"{asked}a parameter has gaps or repeated elements", got=f"shape {tuple(param.shape)}, strides {param.stride()}", hint=hint
        )
    return grad if grad.stride() == param.stride() else torch.empty_like(param, dtype=grad.dtype).copy_(grad)


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements fill a range of memory without gaps, in any order of the dimensions.

    >>> _is_dense((2, 3), (1, 2)), _is_dense((2, 3), (4, 1)), _is_dense((2, 3), (0, 1))
    (True, False, False)
    """
    end = 1
    for step, size in sorted((step, size) for size, step in zip(shape, strides, strict=True) if size > 1):
        if step != end:
            return False
        end *= size
    return True


def _check_numbers(lr: float, betas: Sequence[float], eps: float, weight_decay: float) -> None:
    given = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
    wrong = next((name for name, number in given.items() if not number >= 0), None)
    if wrong is not None:
        raise ArgumentError(f"AdamW: {wrong} is out of range", got=given[wrong], legal="at least 0")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ArgumentError("AdamW: betas are out of range", got=betas, legal="two numbers, each at least 0 and below 1")


__all__ = ["AdamW", "Part", "parts_of"]
