"""The memory that the GPUs of a process group access in a launch: semaphores, and sums or copies, in the symmetric memory of each GPU."""

from __future__ import annotations

from typing import Any

from fireiron.errors import LaunchError
from fireiron.gpu.barrier import seconds_of
from fireiron.gpu.symmetric import Shared
from fireiron.ir import Kernel
from fireiron.ir.semaphore import HEADER_WORDS, MOST_SEMAPHORES, SEMAPHORE_BYTES


class ExchangeMemory:
    """The workspaces of all GPUs for one kernel. All processes of the group create it together.

    Semaphores are zero at first and grow with each launch, also of replayed CUDA graphs. So all launches of a kernel use the same
    memory, in one order on all GPUs.

    Args:
        kernel: the kernel IR, which waits for other GPUs.
        seconds: the time limit of a wait; None for the default. After that, no launch of the process runs any more.

    Raises: ArgumentError for an illegal time limit; LaunchError if PyTorch or the driver has no symmetric memory on these GPUs.
    """

    def __init__(self, kernel: Kernel, group: Any, rank: int, device: Any, seconds: float | None = None) -> None:
        import torch
        import torch.distributed as distributed

        assert kernel.workspace is not None and kernel.workspace.exchange is not None
        exchange, self.rank, self.name, self.seconds = kernel.workspace.exchange, rank, kernel.name, seconds_of(seconds)
        others = ", ".join(f"GPU {other}" for other in range(exchange.gpus) if other != rank)
        self._awaited = others if exchange.gpus == 2 else f"one of {others}"
        needed = MOST_SEMAPHORES * SEMAPHORE_BYTES + exchange.used * exchange.row
        self._memory = Shared.of((needed // 4,), (1,), torch.int32, group, device, exchange.distance)
        self._report = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._seen = self._report.numpy()
        words = self._memory.part
        words.zero_()
        header = torch.tensor([int(self.seconds * 1e9), self._report.data_ptr()], dtype=torch.int64, device=device).view(torch.int32)
        words[MOST_SEMAPHORES - HEADER_WORDS :][: len(header)] = header
        torch.cuda.synchronize(device)
        distributed.barrier(group)  # no GPU counts in semaphores that are not zero yet
        self.symbols = {exchange.rank.name: rank}

    @property
    def address(self) -> int:
        """The address of the workspace of the first GPU."""
        return self._memory.memory.address

    def check(self) -> None:
        """Raise a LaunchError if another GPU was not counted in time. Does not wait for launches."""
        if self._seen[0]:
            raise LaunchError(
                f"GPU {self.rank} waited in {self.name}, and {self._awaited} did not arrive within {self.seconds:g} s",
                got="a peer that ended, is late, or calls other functions", legal="the same calls in the same order on all GPUs",
                hint="end all processes and start them again; over(group, seconds=...) sets the time limit",
            )  # fmt: skip

    def close(self) -> None:
        """Unmap the memory; no launch may use it any more."""
        self._memory.memory.close()


__all__ = ["ExchangeMemory"]
