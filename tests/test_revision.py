"""The measured code is identified by its content, independent of git history."""

import os
import shutil
import subprocess

import pytest

from fireiron.measure import revision as module
from fireiron.measure.revision import revision, tree_name

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *words):
    names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-c", "core.autocrlf=false", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | names).stdout.strip()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with one commit of a package and a library, with files, folders, programs and links."""
    root = tmp_path / "root"
    for name, text in {"fireiron/a.py": "1", "fireiron/a/b.py": "2", "fireiron/a-b": "3", "strategies/x.py": "ä", "notes": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "fireiron/run").write_text("#!")
    (root / "fireiron/run").chmod(0o755)
    (root / "fireiron/link").symlink_to("a.py")
    git(tmp_path, "init", "-q", "--object-format=sha1", "root")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    (root / "fireiron/__pycache__").mkdir()
    (root / "fireiron/__pycache__/a.pyc").write_text("x")
    monkeypatch.setattr(module, "PACKAGE", root / "fireiron")
    monkeypatch.setattr(module, "library_folder", lambda: root / "strategies")
    return root


@needs_git
def test_folders_have_the_names_that_git_gives_them(tree):
    for name in ("fireiron", "strategies"):
        assert tree_name(tree / name) == git(tree, "rev-parse", f"HEAD:{name}")


@needs_git
def test_a_commit_is_named_where_the_files_are_its_own(tree):
    assert revision() == git(tree, "rev-parse", "HEAD")
    (tree / "notes").write_text("no code")
    assert revision() == git(tree, "rev-parse", "HEAD")
    (tree / "fireiron/a.py").write_text("changed")
    changed = revision()
    assert changed.startswith("fireiron ") and changed.endswith(f" strategies {git(tree, 'rev-parse', 'HEAD:strategies')[:12]}")
    git(tree, "commit", "-q", "-a", "-m", "second")
    assert revision() == git(tree, "rev-parse", "HEAD") and git(tree, "rev-parse", "HEAD:fireiron")[:12] in changed


@needs_git
def test_copies_with_other_or_no_history_name_their_content(tree):
    old, wanted = git(tree, "rev-parse", "HEAD"), git(tree, "rev-parse", "HEAD:fireiron")[:12]
    (tree / "fireiron/a.py").write_text("older")
    git(tree, "commit", "-q", "-a", "-m", "another")
    (tree / "fireiron/a.py").write_text("1")
    assert revision().startswith(f"fireiron {wanted} strategies ") and revision() != old
    shutil.rmtree(tree / ".git")
    assert revision().startswith(f"fireiron {wanted} strategies ")


def test_this_package_has_one():
    assert len(revision()) >= 40
