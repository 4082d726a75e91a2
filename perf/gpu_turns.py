"""Take turns on a GPU: processes prepare kernels concurrently, and measure one at a time.

Contexts of idle processes do not slow down the one that measures. The lock is a file, so programs that run at the same time share it.
"""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

LOCK = Path(os.environ.get("FIREIRON_GPU_LOCK", Path(tempfile.gettempdir()) / "fireiron_gpu.lock"))


@contextlib.contextmanager
def alone():
    """Wait until no other process measures, and keep others waiting."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
