"""Tasks and mappings: a program with the meaning of its sequential text, and where each part of it runs (Cypress, PLDI 2025).

A program is one step of a strategy; its leaves are specs on views, which instructions, passes and checks treat as all others.
May import: language, decomp, refine, and all below them.
"""

from fireiron.tasks.mapping import (
    AMPERE,
    BLOCK,
    GLOBAL,
    HOPPER,
    HOST,
    NONE,
    REGISTER,
    SHARED,
    THREAD,
    WARP,
    WARPGROUP,
    Machine,
    Mapping,
    Place,
    Processor,
    TaskMapping,
)
from fireiron.tasks.partition import Blocks, Partition
from fireiron.tasks.program import (
    Inner,
    Leaf,
    Tasks,
    call_external,
    cdiv,
    launch,
    make_tensor,
    partition,
    partition_by_blocks,
    partition_by_mma,
    prange,
    processor,
    srange,
    task,
    tunable,
)
from fireiron.tasks.sequential import run
from fireiron.tasks.step import TaskProgram, strategy

__all__ = [
    "AMPERE",
    "BLOCK",
    "GLOBAL",
    "HOPPER",
    "HOST",
    "NONE",
    "REGISTER",
    "SHARED",
    "THREAD",
    "WARP",
    "WARPGROUP",
    "Blocks",
    "Inner",
    "Leaf",
    "Machine",
    "Mapping",
    "Partition",
    "Place",
    "Processor",
    "TaskMapping",
    "TaskProgram",
    "Tasks",
    "call_external",
    "cdiv",
    "launch",
    "make_tensor",
    "partition",
    "partition_by_blocks",
    "partition_by_mma",
    "prange",
    "processor",
    "run",
    "srange",
    "strategy",
    "task",
    "tunable",
]
