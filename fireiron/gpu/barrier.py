"""A barrier of all GPUs of a process group on their current streams, with a time limit.

A thread per peer stores the number of the barrier on the peer, and waits until the peer has stored the same number or a larger one here.
The number is one word in local memory, so launches in a CUDA graph count as others do. If a peer does not arrive within the time limit, the
kernel reports the place and the peer in host memory, and traps: no later launch of this process runs, so no wrong result is used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu.symmetric import Shared

MOST_GPUS: Final = 32
"""Maximum number of GPUs: a warp has a thread per peer."""

CHANNELS: Final = 1024
"""Barriers of one allocation that count independently."""

SECONDS: Final = 600.0
"""Default time limit in seconds, that of collectives of `torch.distributed`."""

TEXT: Final = """
__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// words: [gpu][peer], at `distance` words between GPUs. report: place + 1, then a flag per peer, in host memory
extern "C" __global__ void __launch_bounds__(32)
peer_barrier(unsigned* words, long long distance, unsigned* counted, int rank, int gpus, long long limit, int place, volatile int* report)
{
  const int peer = threadIdx.x;
  const unsigned number = *counted + 1;
  __syncwarp();
  if (peer < gpus && peer != rank) {
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(words + peer * distance + rank), "r"(number) : "memory");
    const unsigned long long start = nanoseconds();
    unsigned seen;
    do {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(words + rank * distance + peer) : "memory");
      if ((int)(seen - number) < 0 && (long long)(nanoseconds() - start) > limit) {
        report[1 + peer] = 1;
        report[0] = place + 1;
        __threadfence_system();
        asm volatile("trap;");
      }
    } while ((int)(seen - number) < 0);
  }
  __syncwarp();
  if (threadIdx.x == 0) *counted = number;
}
"""


@attrs.frozen(eq=False)
class _Board:
    """The words of all barriers of a group: those that peers write, and the numbers of the last barriers."""

    words: Shared
    counted: Any
    taken: list[int] = attrs.field(factory=list)

    @staticmethod
    def of(group: Any, gpus: int, device: Any) -> _Board:
        import torch
        import torch.distributed as distributed

        words = Shared.of((CHANNELS, gpus), (gpus, 1), torch.int32, group, device)
        words.part.zero_()
        counted = torch.zeros(CHANNELS, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)
        distributed.barrier(group)  # no GPU writes words that are not zero yet
        return _Board(words, counted)


@functools.cache
def _boards(group: Any) -> list[_Board]:
    """Return the boards of a process group, which `_board` extends."""
    return []


def _board(group: Any, gpus: int, device: Any) -> _Board:
    """Return a board with a free channel."""
    boards = _boards(group)
    if not boards or len(boards[-1].taken) == CHANNELS:
        boards.append(_Board.of(group, gpus, device))
    return boards[-1]


@functools.cache
def _launcher(device: int, arch: str) -> Any:
    from fireiron.gpu import launch
    from fireiron.gpu.toolchain import compile_cuda

    return launch.load(compile_cuda(TEXT, arch).cubin, "peer_barrier")


def seconds_of(seconds: float | None) -> float:
    """Return a time limit in seconds; None is the default. Raises: ArgumentError for an illegal one."""
    limit = SECONDS if seconds is None else seconds
    if not isinstance(limit, int | float) or isinstance(limit, bool) or not 0 < limit < 1e9:
        raise ArgumentError("the time limit of a barrier must be a number of seconds", got=seconds, legal=f"such as {SECONDS:g}")
    return limit


class PeerBarrier:
    """A barrier of the GPUs of a process group. All processes create it together, and call it in the same order.

    Args:
        places: what is waited for at each place of a program, for messages.
        seconds: the time limit; a peer may be late by less.

    Raises: ArgumentError for an illegal time limit, or too many GPUs.
    """

    def __init__(self, group: Any, rank: int, gpus: int, device: Any, places: Sequence[str], seconds: float | None = None) -> None:
        import torch

        from fireiron.gpu import launch

        self.seconds = seconds_of(seconds)
        if gpus > MOST_GPUS:
            raise ArgumentError("a barrier has too many GPUs", got=gpus, legal=f"at most {MOST_GPUS}")
        self.rank, self.gpus, self.places = rank, gpus, tuple(places)
        self._board = _board(group, gpus, device)
        self._channel = len(self._board.taken)
        self._board.taken.append(self._channel)
        self._report = torch.zeros(1 + gpus, dtype=torch.int32).pin_memory()
        self._seen = self._report.numpy()
        self._launch = _launcher(device.index, launch.device_arch())
        self._arguments = [self._arguments_at(place) for place in range(len(self.places))]

    def _arguments_at(self, place: int) -> tuple[Any, ...]:
        """Return the arguments of the kernel at a place."""
        import numpy

        words, counted = self._board.words.memory, self._board.counted.data_ptr() + 4 * self._channel
        pointers = words.address + 4 * self._channel * self.gpus, words.stride // 4, counted
        numbers = numpy.int32(self.rank), numpy.int32(self.gpus), numpy.int64(self.seconds * 1e9), numpy.int32(place)
        return (*map(numpy.int64, pointers), *numbers, numpy.int64(self._report.data_ptr()))

    def __call__(self, place: int) -> None:
        """Let all GPUs reach this place of their current streams. Returns before they do."""
        import torch

        self._launch(1, MOST_GPUS, self._arguments[place], torch.cuda.current_stream().cuda_stream)

    def check(self) -> None:
        """Raise a LaunchError with the place if a peer did not arrive in time. Without synchronization: earlier launches may still run."""
        if not self._seen[0]:
            return
        place = self.places[self._seen[0] - 1]
        absent = ", ".join(f"GPU {peer}" for peer in range(self.gpus) if self._seen[1 + peer])
        raise LaunchError(
            f"GPU {self.rank} waited {place}, and {absent} did not arrive within {self.seconds:g} s",
            got="a peer that ended, is late, or calls other functions", legal="the same calls in the same order on all GPUs",
            hint="end all processes and start them again; over(group, seconds=...) sets the time limit",
        )  # fmt: skip


__all__ = ["MOST_GPUS", "SECONDS", "PeerBarrier", "seconds_of"]
