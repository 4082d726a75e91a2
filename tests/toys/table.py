"""A user-defined memory in a separate region: arrays of a block outside of the dynamic shared-memory array."""

from fireiron.values.machine import Memory
from fireiron.values.region import Region


class Tables(Region):
    """Static arrays next to the dynamic one."""

    def declaration(self, kind: str, name: str, elements: str, align: int, offset: int) -> str:
        return f"__shared__ __align__({align}) {kind} {name}[{elements}];  // byte {offset} of {self.name}:"


TABLES = Tables("tables", 1024)
TABLE = Memory("TABLE", 1, "block", "tables", region=TABLES)
