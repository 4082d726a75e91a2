"""The contents and metadata of an installation, and its name in messages."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import pytest
import scripts

import fireiron

ROOT = Path(__file__).parent.parent
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
TEXTS = sorted(
    path
    for folder, pattern in (
        ("fireiron", "*.py"),
        ("strategies", "*.py"),
        ("tests", "*.py"),
        ("docs", "*.md"),
        (".", "*.md"),
        (".", "Makefile"),
    )
    for path in (ROOT.glob(pattern) if folder == "." else (ROOT / folder).rglob(pattern))
)
EXTRA = re.compile(r"(?P<before>.)(?:\bfireiron|(?<=[ '\"`])\.)\\?\[(?P<extras>[a-z][a-z0-9]+(?:,[a-z0-9]+)*)\\?\]")
"""The package, or the folder `.`, with extras in brackets, and the character before it."""


def test_hints_to_install_are_quoted_and_name_extras_that_exist() -> None:
    """Shells treat brackets as a pattern: zsh refuses them unquoted."""
    extras, seen = set(CONFIG["options.extras_require"]), set()
    for path in TEXTS:
        for match in EXTRA.finditer(path.read_text()):
            if not set(match["extras"].split(",")) <= extras and match["before"] != "'":
                continue  # a subscript
            line = f"{path.relative_to(ROOT)}: {match[0]}"
            assert match["before"] == "'", f"no quote in front: {line}"
            assert set(match["extras"].split(",")) <= extras, f"no such extra: {line}"
            seen |= set(match["extras"].split(","))
    assert seen >= {"check", "cuda12", "cuda13", "plot", "tune", "bf16", "test"}


def test_the_version_is_defined_in_one_place() -> None:
    version = fireiron.__version__
    assert CONFIG["metadata"]["version"] == "attr: fireiron._version.VERSION"
    stated = [path for path in (*(ROOT / "fireiron").rglob("*.py"), *ROOT.glob("*.[ct][fo][gm]*")) if f'"{version}"' in path.read_text()]
    assert stated == [ROOT / "fireiron" / "_version.py"]
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0].startswith(f"{version} (")
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", head) for head in heads)


def test_the_two_settings_files_do_not_repeat_each_other() -> None:
    """setup.cfg states what is installed, pyproject.toml how it is built and how the tools are configured."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project) == {"build-system", "tool"} and "setuptools" not in project["tool"]
    assert all(section == "metadata" or section.startswith("options") for section in CONFIG.sections())
    named = [
        line for text in CONFIG["options.extras_require"].values() for line in text.split("\n") if line and not line.startswith("fireiron[")
    ]
    twice = sorted({one for one in named if named.count(one) > 1})
    assert twice == ["pytest-benchmark>=5", "pytest>=8"], "bench is for users, test for those who work on the package"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    if not _builds():
        pytest.skip("needs setuptools 70.1, the build backend (pip install 'fireiron[test]')")
    out, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree")
    _copied(tree)
    _hook(tree, "build_sdist", out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tree / "unpacked", filter="data")
    (unpacked,) = (tree / "unpacked").iterdir()
    _hook(unpacked, "build_wheel", out)
    return out


def _builds() -> bool:
    """Whether the build backend of pyproject.toml is installed: an isolated build would have to download it."""
    try:
        return tuple(map(int, installed_version("setuptools").split(".")[:2])) >= (70, 1)
    except PackageNotFoundError:
        return False


def _copied(tree: Path) -> None:
    """The files of the checkout known to git: an old folder `build/` would otherwise get into the wheel."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())


def _hook(tree: Path, hook: str, out: Path) -> None:
    """The action of a frontend: call the build backend in the folder."""
    script = f"import sys, setuptools.build_meta as backend; backend.{hook}(sys.argv[1])"
    run = subprocess.run([sys.executable, "-c", script, str(out)], cwd=tree, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def _names(folder: str, *endings: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.suffix in endings or path.name in endings}


@pytest.mark.nightly
def test_the_wheel_has_all_that_the_package_needs(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = _names("fireiron", ".py", ".pyi", "py.typed", ".txt", ".cu", ".css", ".js", ".c", ".cpp") - {
        "fireiron/strategies/__init__.py"
    }
    library = {f"fireiron/{name}" for name in _names("strategies", ".py", ".cu", ".jsonl", ".gitattributes")}
    installed = {name for name in names if ".dist-info/" not in name}
    assert installed == {*package, *library, "pytest_fireiron.py"}
    (about,) = (name for name in names if name.endswith("/METADATA"))
    metadata = zipfile.ZipFile(wheel).read(about).decode()
    assert f"Version: {fireiron.__version__}" in metadata and "Description-Content-Type: text/markdown" in metadata
    assert "Typing :: Typed" in metadata and "Keywords: " in metadata and "\n\n# Fireiron" in metadata
    assert "License" not in metadata  # the owner chooses


@pytest.mark.nightly
def test_the_sdist_has_all_that_is_needed_to_build_test_and_read_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = _names("fireiron", ".py", ".pyi", "py.typed") | _names("strategies", ".py", ".cu", ".jsonl") | _names("docs", ".md", ".svg")
    wanted |= _names("tests", ".py", ".hpp", ".cpp", ".events") | {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "setup.cfg"}
    assert wanted <= names
    assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name]


def test_the_description_for_a_package_index_has_no_relative_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, they would lead nowhere, and pictures would be missing."""
    setuptools = pytest.importorskip("setuptools")
    settings: dict[str, str] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: settings.update(options))
    scripts.loaded("setup.py")
    text = settings["long_description"]
    assert not re.findall(r"\]\((?!\w+:)", text) and "strategy = (" in text and "three kernels, puzzles" in text
    assert "](docs/first-kernels.md)" in (ROOT / "README.md").read_text()


COMMANDS = (
    ("list",),
    ("show", "maxwell"),
    ("run", "maxwell", "-M", "64", "-N", "64", "-K", "16"),
)


@pytest.mark.nightly
def test_an_installation_works_outside_the_checkout(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    place, outside = tmp_path / "place", tmp_path / "outside"
    outside.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    env = {"PYTHONPATH": str(place), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def output_of(*words: str) -> str:
        run = subprocess.run([sys.executable, *words], cwd=outside, env=env, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout

    texts = [output_of("-m", "fireiron", *words) for words in COMMANDS]
    assert "maxwell" in texts[0] and "tile(128, 128).to(Block)" in texts[1] and "PASS" in texts[2]
    script = "import fireiron, fireiron.strategies.maxwell as one; print(fireiron.__file__, one.__file__, len(fireiron.Records.shipped().records))"
    package, strategy, records = output_of("-c", script).split()
    assert package.startswith(str(place)) and strategy.startswith(str(place)) and int(records) > 0
    (outside / "test_mine.py").write_text("def test_mine(pytestconfig):\n    assert pytestconfig.getoption('fireiron_rounds') == 20\n")
    assert "1 passed" in output_of("-m", "pytest", "-q", "-p", "pytest_fireiron", "test_mine.py")
