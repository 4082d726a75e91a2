"""The setting that setup.cfg cannot express: the folder strategies/ is installed as the package fireiron.strategies.

The top-level name `strategies` is left to users (docs/decisions/0017-strategy-library.md).
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class WithStrategies(build_py):
    """The modules, and the strategy library instead of its placeholder in a checkout."""

    def run(self) -> None:
        super().run()
        if not getattr(self, "editable_mode", False):
            target = Path(self.build_lib, "fireiron", "strategies")
            shutil.copytree(ROOT / "strategies", target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


setup(cmdclass={"build_py": WithStrategies})
