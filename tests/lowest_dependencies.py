"""Install the wheel with the lowest dependencies that it states, on each given Python, and use it.

    python tests/lowest_dependencies.py python3.11 python3.12 python3.13

It builds wheel and sdist, checks their descriptions by `twine check --strict`, and makes a virtual environment per interpreter, outside
of the checkout. Packages are downloaded. Exit status 1 if something fails.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FIRST_MINOR = {"attrs==25": "25.1", "cattrs==24": "24.1"}
"""The first minor version of a stated major version."""

FIRST_WHEELS = {"numpy": {(3, 13): "2.1"}}
"""The first version of a package with a wheel for a version of Python, if it is newer than the lowest stated one."""

KINDS = ("elementwise", "softmax", "matmul", "tensor-core", "hopper", "fused", "gpus", "move", "micro-kernel")


def run(*words: object, folder: Path) -> str:
    """The output of a command; its whole output and an exit on failure."""
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def lowest(version: tuple[int, ...]) -> list[str]:
    """The requirements of the package, each with its lowest version for a version of Python."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    pins = []
    for line in settings["options"]["install_requires"].split():
        name, _, number = line.partition(">=")
        number = FIRST_MINOR.get(f"{name}=={number}", number)
        pins.append(f"{name}=={FIRST_WHEELS.get(name, {}).get(version, number)}.*")
    return pins


def built(folder: Path) -> Path:
    """The wheel, after both distributions passed the check of their descriptions."""
    run(sys.executable, "-m", "venv", "tools", folder=folder)
    python = folder / "tools" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "build", "twine", folder=folder)
    run(python, "-m", "build", "-o", folder / "dist", ROOT, folder=folder)
    distributions = sorted((folder / "dist").iterdir())
    print(run(python, "-m", "twine", "check", "--strict", *distributions, folder=folder).strip(), flush=True)
    return next(path for path in distributions if path.suffix == ".whl")


def used(interpreter: str, wheel: Path, folder: Path) -> None:
    """Install the wheel, and use it without the checkout."""
    text = run(interpreter, "--version", folder=folder)
    version = tuple(map(int, re.findall(r"\d+", text)[:2]))
    folder = folder / ".".join(map(str, version))
    folder.mkdir()
    run(interpreter, "-m", "venv", "env", folder=folder)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--only-binary", ":all:", wheel, *lowest(version), folder=folder)
    run(python, "-m", "fireiron", "demo", folder=folder)
    for kind in KINDS:
        name = f"my_{kind.replace('-', '_')}"
        run(python, "-m", "fireiron", "new", name, "--kind", kind, folder=folder)
        run(python, "-m", "fireiron", "check", f"{name}.py", folder=folder)
        if "PASS" not in run(python, "-m", "fireiron", "run", f"{name}.py", "--simulate", folder=folder):
            sys.exit(f"{interpreter}: {kind} does not pass")
    print(f"{text.strip()}: demo, {len(KINDS)} templates; {' '.join(lowest(version))}", flush=True)


def main(interpreters: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        wheel = built(Path(name))
        for interpreter in interpreters:
            used(interpreter, wheel, Path(name))


if __name__ == "__main__":
    main(sys.argv[1:] or ["python3"])
