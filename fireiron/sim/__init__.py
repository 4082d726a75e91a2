"""Simulate kernel IR in NumPy, for all threads of all blocks, with shadow memory that finds every race.

The simulator derives everything from the IR alone: the accessed elements from a statement's accesses and the storage of its buffers (for
TMA copies, from their tensor maps), and the computation from its spec (`Spec.perform`). Threads, blocks and the loops around a single
statement are array axes (elements, loops, threads, blocks). All other loops run in Python. Three properties are checked:

- *Bounds*: coordinates outside of a tensor, addresses outside of a buffer, and guard rows around every array in global memory.
- *Initialization*: registers, shared memory and outputs are poisoned, and a read before any write is reported.
- *Races*: per address of shared and written global memory, shadow memory holds the last writer and the readers since, with the barriers
  passed at that time. Two threads at one address, one of them writing, need a barrier between them.

A float32 multiply-add is a multiplication, then an addition: it rounds twice, where FFMA rounds once. On integers of moderate size both are
exact, so tests compare exactly.

May import: values, specs, ir.
"""

from fireiron.sim.launch import Simulation, simulate
from fireiron.sim.sequence import simulate_launches

__all__ = ["Simulation", "simulate", "simulate_launches"]
