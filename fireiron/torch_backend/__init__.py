"""A backend of `torch.compile`: subgraphs that a definition states become derived kernels, and Inductor compiles the rest.

    torch.compile(model, backend="fireiron")
    print(fireiron.torch_backend.reports[-1])    # what was taken, and why the rest was not

PyTorch finds the backend by its entry point if Fireiron is installed; `import fireiron.torch_backend` registers it, too. Inductor traces,
decomposes and differentiates as always. It then gives each graph to `regions.py`, which finds operations that one formula each states:

    graph of ATen ──► regions ──► definition (`stating.py`) ──► derived, checked strategy ──► operator `fireiron::derived` in the graph

May import: everything up to `function`.
"""

from __future__ import annotations

import collections
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.torch_backend.report import Left, Report, Taken
from fireiron.torch_backend.rewriting import Options, reported

reports: Final[collections.deque[Report]] = collections.deque(maxlen=256)
"""The reports of the last graphs of this process, for people; nothing reads them."""


def backend(module: Any, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Callable[..., Any]:
    """Compile a graph of `torch.compile`: the backend `"fireiron"`.

    Args:
        module, inputs: the graph, and its inputs.
        options: the fields of `Options`; all others are options of Inductor.
        mode: a mode of Inductor, such as `"max-autotune"` or `"reduce-overhead"`.

    Raises: `ArgumentError` for an illegal value of an option.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    given = dict(options or {})
    own = {field.name: given.pop(field.name) for field in attrs.fields(Options) if field.name in given}
    chosen = Options(**own)
    if not isinstance(chosen.candidates, int) or chosen.candidates < 1:
        raise ArgumentError("backend fireiron: the number of candidates is not positive", got=chosen.candidates, legal="candidates=16")
    patches = {**(list_mode_options(mode) if mode else {}), **{name.replace("-", "_"): value for name, value in given.items()}}
    inner = functools.partial(_compiled, options=chosen, inner=compile_fx_inner)
    return compile_fx(module, inputs, inner_compile=inner, config_patches=patches)  # type: ignore[no-any-return]


def _compiled(module: Any, inputs: Sequence[Any], *, options: Options, inner: Callable[..., Any], **more: Any) -> Any:
    """Rewrite a graph of ATen, and compile the rest by Inductor."""
    role = "backward" if more.get("is_backward") else "inference" if more.get("is_inference") else "forward"
    reports.append(reported(module, options, role))
    return inner(module, inputs, **more)


def register() -> None:
    """Register the backend, for PyTorch without the entry point. Raises: `ModuleNotFoundError` without PyTorch."""
    from torch._dynamo import list_backends, register_backend

    if "fireiron" not in list_backends():
        register_backend(backend, "fireiron")


if "torch" in sys.modules:
    register()

__all__ = ["Left", "Options", "Report", "Taken", "backend", "register", "reported", "reports"]
