"""A level above a launch: a unit of it is launched kernel by kernel, in order."""

from fireiron.values.machine import Kernel, Level

SEQUENCE = Level("Sequence", consists_of=Kernel)
