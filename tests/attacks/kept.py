"""Entries in the folder of the compile cache, listed, verified and loaded: all three agree about which are valid."""

import functools
import hashlib
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attacks import stored
from attacks.commands import _run
from attacks.guard import Input
from attacks.letters import damaged_bytes
from fireiron.gpu import cache


@functools.cache
def kept() -> Path:
    """A folder for entries, for this process."""
    import atexit
    import shutil

    folder = Path(tempfile.mkdtemp(prefix="kept-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def draw(choose: random.Random, count: int = 20) -> Iterator[Input]:
    """Entries that are damaged, or have another form with a valid digest."""
    data, key = stored.entry()
    for _ in range(count):
        wrong = damaged_bytes(choose, data) if choose.random() < 0.4 else _headed(choose, data)
        yield Input(f"from attacks.kept import listed\nlisted({wrong!r}, {key!r})", lambda wrong=wrong: listed(wrong, key))


def _headed(choose: random.Random, data: bytes) -> bytes:
    """An entry whose header is another one, of another form, or deeply nested, with a valid digest."""
    signed = stored._signed(choose, data)
    if choose.random() < 0.6:
        return signed
    head = choose.choice((b"[" * 100_000, b"[]", b"null", b"1e999", b'{"key": 0}', b"9" * 6000, b"{" * 9, b"\xff", b"NaN"))
    body = head + b"\n" + signed.split(b"\n", 3)[3]
    return b"".join((cache._FIRST, hashlib.sha256(body).hexdigest().encode(), b"\n", body))


def listed(data: bytes, key: str) -> object:
    before, os.environ["FIREIRON_CACHE_DIR"] = os.environ.get("FIREIRON_CACHE_DIR"), str(kept())
    try:
        place = cache._place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        (entry,) = cache.entries()
        assert _run(["cache", "show"], kept(), kept()) == 0
        status = _run(["cache", "verify"], kept(), kept())
        assert (status == 1) == bool(cache.verify())
        loaded = cache._load(place, key)
        assert (loaded is None) == (status == 1), f"{entry}: verified as {status}, loaded as {loaded is not None}"
        return loaded
    finally:
        os.environ.pop("FIREIRON_CACHE_DIR") if before is None else os.environ.__setitem__("FIREIRON_CACHE_DIR", before)
