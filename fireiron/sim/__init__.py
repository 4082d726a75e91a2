"""Kernel IR executed in NumPy, for all threads of all blocks, with shadow memory that finds every race.

The simulator derives what happens from the IR alone: which elements a statement touches from its accesses and the buffers'
storage (of copies by TMA from their tensor maps), what it does with them from its spec (`Spec.perform`). Threads, blocks and loops
around a single statement are array axes (elements, loops, threads, blocks); all other loops run in Python. Three things are watched:

- *bounds*: coordinates outside a tensor, addresses outside a buffer, and guard rows around every array in global memory;
- *fresh memory*: registers, shared memory and outputs are poisoned, and a read of what was never written is named;
- *races*: shadow memory keeps, per address of shared and written global memory, the last writer and the readers since, with
  the barriers passed at that time. Two threads at one address, one of them writing, need a barrier between them.

A multiply-add of float32 is a multiplication, then an addition: rounded twice, where FFMA rounds once. On integers of
moderate size both are exact, so tests compare exactly.

May import: values, specs, ir.
"""

from fireiron.sim.launch import Simulation, simulate
from fireiron.sim.sequence import simulate_launches

__all__ = ["Simulation", "simulate", "simulate_launches"]
