"""Calls of a function that are made again: replayed where they were recorded (`fireiron.gpu.replays`), recorded where they were not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fireiron.recorder import recorded

Make = Callable[..., Any]
"""What makes a call: of its output, or None, and its inputs."""


class Replays:
    """The calls of one function that are made again.

    `again` looks a call up and replays it, `again(options, out, *inputs)`: the result; None where it has to be made as before;
    NotImplemented where no such call was recorded; Ellipsis where autograd records it. It is None itself as long as nothing is replayed
    here; `tracing` says whether PyTorch traces, which must not come to it; `casting` whether `torch.autocast` may ask for other types.
    """

    def __init__(self) -> None:
        self.again: Any = None
        self.tracing: Callable[[], bool] = _never
        self.casting: Callable[[], bool] = _never

    def call(self, options: Any, out: Any, inputs: tuple[Any, ...], make: Make) -> Any:
        """The result of a call, by `make(out, *inputs)` where it is not replayed; recorded then. `options` tell calls of the same tensors
        apart."""
        again = self.again
        if again is None:
            again = self._prepared()
            if again is None:
                return make(out, *inputs)
        done = again(options, out, *inputs)
        if done is NotImplemented:
            return self._recorded(options, out, inputs, make)
        return make(out, *inputs) if done is None or done is ... else done

    def clear(self) -> None:
        """Forget all calls."""
        if self.again is not None:
            self.again.clear()

    def _prepared(self) -> Any:
        from fireiron.gpu.replays import module_here

        module = module_here()
        if module is None:
            return None
        torch = sys.modules["torch"]
        self.tracing = getattr(torch.compiler, "is_dynamo_compiling", None) or torch.compiler.is_compiling
        self.casting = getattr(torch._C, "_is_any_autocast_enabled", None) or torch.is_autocast_enabled
        self.again = module.Replays()
        return self.again

    def _recorded(self, options: Any, out: Any, inputs: tuple[Any, ...], make: Make) -> Any:
        from fireiron.gpu.replays import AmbiguousError, recipe, stand_ins

        with recorded() as recording:
            made = make(out, *inputs)
        try:
            found = recipe(inputs, out, made, recording)
        except AmbiguousError:  # the same call of tensors apart tells; not while a graph is captured, to which it would belong
            if sys.modules["torch"].cuda.is_current_stream_capturing():
                return made
            others, other_out = stand_ins(inputs, out)
            with recorded() as recording:
                other = make(other_out, *others)
            found = recipe(others, other_out, other, recording)
        self.again.add(options, out, inputs, found)
        return made


def _never() -> bool:
    return False


__all__ = ["Make", "Replays"]
