"""Repeated calls of a function: recorded once, then replayed (`fireiron.gpu.replays`)."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from fireiron.recorder import current, recorded

Make = Callable[..., Any]
"""A function that executes a call. Its arguments are the output, or None, and the inputs."""


class Replays:
    """The recorded calls of one function.

    `again(options, out, *inputs)` looks a call up and replays it. It returns the result; None if the call must be executed normally;
    NotImplemented if no such call is recorded; Ellipsis if autograd records it. `again` is None until a call is recorded. `tracing` returns
    whether PyTorch traces, in which case `again` must not be called. `casting` returns whether `torch.autocast` may convert types.
    """

    def __init__(self) -> None:
        self.again: Any = None
        self.tracing: Callable[[], bool] = _never
        self.casting: Callable[[], bool] = _never

    def call(self, options: Any, out: Any, inputs: tuple[Any, ...], make: Make) -> Any:
        """Return the result of a call, by a replay if possible, or by `make(out, *inputs)`, which is then recorded.

        While another call is recorded, its launches are executed by `make`, because that recording does not contain replays.
        """
        if current.recording is not None:
            return make(out, *inputs)
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
        """Discard all recordings."""
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

        replay = None
        with recorded() as recording:
            result = make(out, *inputs)
        try:
            replay = recipe(inputs, out, result, recording)
        except AmbiguousError:  # record other tensors; not while a graph is captured, because it would include the call
            if sys.modules["torch"].cuda.is_current_stream_capturing():
                return result
            others, other_out = stand_ins(inputs, out)
            with recorded() as recording:
                other = make(other_out, *others)
            with contextlib.suppress(AmbiguousError):  # a result is a part of another tensor: the call is never replayed
                replay = recipe(others, other_out, other, recording)
        self.again.add(options, out, inputs, replay)
        return result


def _never() -> bool:
    return False


__all__ = ["Make", "Replays"]
