"""Collect only what has tests: doctests of modules with examples. Asserts of the package stay plain; pytest rewrites those of tests."""

import pytest

PLAIN = ("fireiron", "strategies")
"""Packages whose asserts pytest would rewrite, because the distribution has a plugin of pytest. That takes a third of the time of a first
collection.
"""


def pytest_configure(config):
    """Leave the asserts of the package as they are."""
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    if hook is not None:
        hook._must_rewrite = {name for name in hook._must_rewrite if name.partition(".")[0] not in PLAIN}


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path):
    """Import no module for doctests that it does not have."""
    collectors = yield
    if file_path.suffix == ".py" and collectors and ">>>" not in file_path.read_text(encoding="utf-8"):
        return [collector for collector in collectors if type(collector).__name__ != "DoctestModule"]
    return collectors
