"""A process that imports a changed module: `python -m mutation.fresh`, with its request in the environment; it answers with a line of JSON."""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from mutation import zygote


class Until(zygote.Watch):
    """Records the first failure within the given seconds of processor time."""

    def __init__(self, enough: float) -> None:
        self.enough, self.stopped = enough, False

    def pytest_runtest_logfinish(self) -> None:
        if time.process_time() > self.enough:
            self.stopped = True

    def pytest_runtest_protocol(self) -> bool | None:
        return True if self.stopped else None


def main() -> dict[str, object]:
    """Import the package with the change, then try the kernels, then the tests."""
    request = json.loads(Path(os.environ[zygote.FRESH]).read_text(encoding="utf-8"))
    try:
        # Before pytest starts, which would import other modules from their files, since the package has a plugin.
        importlib.import_module(zygote.dotted(request["module"]))
        kernels = _kernels(request["kernels"])
    except BaseException as error:
        return {"by": f"import: {type(error).__name__}", "what": traceback.format_exc()[-300:]}
    result = zygote.of_kernels(kernels, request["always"])
    if result["by"] or not request["tests"]:
        return result
    import pytest

    watch = Until(request["enough"])
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *zygote.ASKED, *request["tests"]], plugins=[watch])
    if watch.failed or (code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not watch.stopped):
        result |= {"by": "tests", "what": watch.failed or f"pytest: {code.name if isinstance(code, pytest.ExitCode) else code}"}
    return result


def _kernels(names: list[str]) -> list[Any]:
    if not names:
        return []
    from mutation import battery

    kernels = [one for one in battery.load(Path(os.environ[zygote.KERNELS])) if one.name in names]
    for kernel in kernels:
        kernel.prepare()
    return kernels


if __name__ == "__main__":
    answer = main()
    sys.stdout.flush()
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)
