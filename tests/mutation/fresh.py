"""A process in which a changed module is what is imported: `python -m mutation.fresh`, asked by the environment; it answers with a line of JSON."""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> dict[str, object]:
    """Import the package with the change, then ask the kernels, then the tests."""
    from mutation import zygote

    asked = json.loads(Path(os.environ[zygote.FRESH]).read_text(encoding="utf-8"))
    try:
        importlib.import_module(zygote.dotted(asked["module"]))  # now: pytest would import it as it is in the file
        from mutation import battery

        kernels = [one for one in battery.load(Path(os.environ[zygote.KERNELS])) if one.name in asked["kernels"]]
        for one in kernels:
            one.prepare()
    except BaseException as error:
        return {"by": f"import: {type(error).__name__}", "what": traceback.format_exc()[-300:]}
    found = zygote.of_kernels(kernels, asked["always"])
    if found["by"] or not asked["tests"]:
        return found
    import pytest

    watch = zygote.Watch()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *asked["tests"]], plugins=[watch])
    if watch.failed or code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        found |= {"by": "tests", "what": watch.failed or f"pytest: {code.name if isinstance(code, pytest.ExitCode) else code}"}
    return found


if __name__ == "__main__":
    answer = main()
    sys.stdout.flush()
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)
