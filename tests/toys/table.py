"""A memory of one's own, in a region of its own: arrays of a block that do not lie among those of shared memory."""

from fireiron.values.machine import Memory
from fireiron.values.region import Region


class Tables(Region):
    """Static arrays beside the one that is dynamic."""

    def declaration(self, kind: str, name: str, elements: str, align: int, offset: int) -> str:
        return f"__shared__ __align__({align}) {kind} {name}[{elements}];  // byte {offset} of {self.name}:"


TABLES = Tables("tables", 1024)
TABLE = Memory("TABLE", 1, "block", "tables", region=TABLES)
