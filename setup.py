"""The settings that setup.cfg cannot express.

The folder strategies/ is installed as the package fireiron.strategies. The top-level name `strategies` is left to users
(docs/decisions/0017-strategy-library.md). The description for a package index is the README without what only a checkout has.
"""

import re
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


def description() -> str:
    """README.md for a package index, which has no other file of the project: without pictures, and with relative links as plain text."""
    text = re.sub(r"^!\[[^\]]*\]\((?!\w+:)[^)]*\)\n", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!\w+:|#)[^)]*\)", r"\1", text)


setup(
    cmdclass={"build_py": WithStrategies},
    long_description=description(),
    long_description_content_type="text/markdown",
)
