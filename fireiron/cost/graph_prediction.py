"""`GraphPrediction`: the predicted time of several kernels that run in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from fireiron.cost.prediction import LAUNCH_PART, Prediction, number_text
from fireiron.display import Displayed
from fireiron.frozen import frozen


@frozen
class GraphPrediction(Displayed):
    """The model's prediction for a kernel graph on a GPU: the sum of its kernels and their launches. `str` returns an explanation.

    No overlap is predicted: a kernel with `programmatic_launch` counts as if it started after the previous one.

    Attributes:
        name: the graph.
        kernels: the prediction of each kernel, in order.
    """

    name: str
    kernels: Mapping[str, Prediction] = attrs.field(hash=False)

    @property
    def us(self) -> float:
        """The predicted time of a call in microseconds."""
        return sum(prediction.us for prediction in self.kernels.values())

    @property
    def launch_us(self) -> float:
        """The part of the time that launches take, in microseconds."""
        return sum(prediction.parts.get(LAUNCH_PART, 0.0) for prediction in self.kernels.values())

    @property
    def bottleneck(self) -> str:
        """The kernel that takes the most time."""
        return max(self.kernels, key=lambda name: self.kernels[name].us)

    @property
    def useful(self) -> float:
        """The operations of all specs."""
        return sum(prediction.useful for prediction in self.kernels.values())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        kernels = {name: prediction.as_dict() for name, prediction in self.kernels.items()}
        return {"us": self.us, "launch_us": self.launch_us, "bottleneck": self.bottleneck, "kernels": kernels}

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return for each kernel its name, its time, its share of the time, its bottleneck and a hint."""
        return [
            (name, number_text(prediction.us), f"{prediction.us / self.us:.0%}", prediction.bottleneck, prediction.hint)
            for name, prediction in self.kernels.items()
        ]

    def __str__(self) -> str:
        from tabulate import tabulate

        gpu = next(iter(self.kernels.values())).gpu
        heads = ["kernel", "us", "of the time", "bottleneck", "may help"]
        table = tabulate(self.rows(), headers=heads, disable_numparse=True, colalign=("left", "right", "right", "left", "left"))
        launches = f"launches      {len(self.kernels)}, {number_text(self.launch_us)} us of the time"
        return f"{number_text(self.us)} us on one {gpu} (predicted), the sum of {len(self.kernels)} kernels\n\n{table}\n\n{launches}"


__all__ = ["GraphPrediction"]
