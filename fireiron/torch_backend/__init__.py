"""A backend of `torch.compile`: subgraphs that a definition states become derived kernels, and Inductor compiles the rest.

    torch.compile(model, backend="fireiron")
    print(fireiron.torch_backend.reports[-1])    # what was taken, and why the rest was not

PyTorch finds the backend by its entry point if Fireiron is installed; `import fireiron.torch_backend` registers it, too. Inductor traces,
decomposes and differentiates as always. It then gives each graph to `regions.py`, which finds operations that one formula each states:

    graph of ATen ──► regions ──► definition (`stating.py`) ──► derived, checked strategy ──► operator `fireiron::derived` in the graph

May import: everything up to `function`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fireiron._version import VERSION
from fireiron.errors import ArgumentError
from fireiron.torch_backend.report import Left, Report, Taken, reports
from fireiron.torch_backend.rewriting import Options, reported


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
    patches: dict[str, Any] = {
        **(list_mode_options(mode) if mode else {}),
        **{name.replace("-", "_"): value for name, value in given.items()},
    }
    patches["post_grad_custom_pre_pass"] = _mark(chosen, patches.get("post_grad_custom_pre_pass"))
    inner = functools.partial(_compiled, options=chosen, inner=compile_fx_inner)
    return compile_fx(module, inputs, inner_compile=inner, config_patches=patches)  # type: ignore[no-any-return]


def _mark(options: Options, other: Any) -> Any:
    """Return a pass that only makes the keys of Inductor's caches differ from those without this backend; it runs another pass, if any."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    other = config.post_grad_custom_pre_pass if other is None else other

    class Mark(CustomGraphPass):  # type: ignore[misc]
        def __call__(self, graph: Any) -> None:
            if other is not None:
                other(graph)

        def uuid(self) -> Any:
            return "fireiron", VERSION, repr(options), None if other is None else other.uuid()

    return Mark()


def _compiled(module: Any, inputs: Sequence[Any], *, options: Options, inner: Callable[..., Any], **more: Any) -> Any:
    """Rewrite a graph of ATen, and compile the rest by Inductor."""
    role = "backward" if more.get("is_backward") else "inference" if more.get("is_inference") else "forward"
    reports.add(reported(module, options, role))
    return inner(module, inputs, **more)


def register() -> None:
    """Register the backend, for PyTorch without the entry point. Raises: `ModuleNotFoundError` without PyTorch."""
    from torch._dynamo import list_backends, register_backend

    if "fireiron" not in list_backends():
        register_backend(backend, "fireiron")


if "torch" in sys.modules:
    register()

__all__ = ["Left", "Options", "Report", "Taken", "backend", "register", "reported", "reports"]
