"""Environment variables: all that the package reads, with values that are wrong, and what reads them."""

import os
import random
from collections.abc import Callable, Iterator

import fireiron
from attacks.guard import Input
from fireiron import *
from fireiron import settings
from fireiron.cli import output
from fireiron.gpu import cache, toolchain
from fireiron.tune import records

VALUES = (
    "", " ", "0", "1", "2", "-1", "yes", "YES ", "Yes", "nope", "true", "truth", "é", "\udcff", "a\nb", "x" * 5000, "/dev/null", "/dev/full", "/proc/self/mem", "~", "~/x",
    "~nobody-has-this-name/x", "relative/path", "/", ".", "..", "$HOME", "%s", "{0}", "/no/such/folder", "a:b:c", "file:///x", "//", "/etc/passwd", "/root/x",
)  # fmt: skip

READERS: dict[str, Callable[[], object]] = {
    "settings.cache_folder": settings.cache_folder,
    "settings.cache_enabled": settings.cache_enabled,
    "settings.records_path": settings.records_path,
    "settings.require_record": settings.require_record,
    "settings.toolkit_folders": settings.toolkit_folders,
    "settings.given": settings.given,
    "cache.entries": cache.entries,
    "cache.verify": cache.verify,
    "records.available": records.available,
    "fireiron.best_strategy": lambda: fireiron.best_strategy(MatMul(8, 8, 8)(GL, GL, GL)(Kernel), "H200"),
    "toolchain.toolchains": toolchain.toolchains,
    "output.paint": lambda: output.paint("text", 31),
}

NAMES = (*settings.VARIABLES, "TERM", "HOME", "FIREIRON_NO_SUCH", "TMPDIR", "COLUMNS")


def draw(choose: random.Random, count: int = 20) -> Iterator[Input]:
    """What reads the environment, in one that is wrong."""
    for _ in range(count):
        given = {choose.choice(NAMES): choose.choice(VALUES) for _ in range(choose.randint(1, 3))}
        reader = choose.choice(list(READERS))
        yield Input(
            f"import os\nfrom attacks.environment import *\nos.environ.update({given!r})\nREADERS[{reader!r}]()",
            lambda given=given, reader=reader: _with(given, READERS[reader]),
        )


def _with(given: dict[str, str], reader: Callable[[], object]) -> object:
    before = dict(os.environ)
    os.environ.update(given)
    try:
        return reader()
    finally:
        os.environ.clear()
        os.environ.update(before)
