"""Files outside docs/ to which pages link: their paths on the site, and links to them.

The README and the pages for contributors are pages of the root; all other linked files are copied to `repository/`: Markdown and source
as pages, folders as lists of their files, other files unchanged.
"""

import posixpath
import re
from pathlib import Path

from fences import outside_fences

ROOT = Path(__file__).parent.parent.parent

IN_FRONT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Files of the root that are separate pages."""

GENERATED = {
    "strategies": "gallery/index.md",
    "fireiron/decomp": "reference/verbs.md",
    "fireiron/refine": "reference/index.md",
    "fireiron/executable": "reference/instructions.md",
    "fireiron/specs": "reference/specs.md",
    "fireiron/check": "reference/checks.md",
    "fireiron/errors.py": "reference/errors.md",
}
"""Files and folders from which the site has a generated page."""

SOURCE = {".py": "python", ".cu": "cpp"}
"""Suffixes of files that are shown as pages, with the language for their colors."""

LINK = re.compile(r"(!?\[[^\]\n]*\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def page_of(path):
    """The path of a file of the repository on the site, below docs/."""
    if path in IN_FRONT or path in GENERATED:
        return IN_FRONT.get(path) or GENERATED[path]
    if path == "docs" or path.startswith("docs/"):
        inside = posixpath.relpath(path, "docs")
        return f"{inside}/index.md" if (ROOT / path).is_dir() else inside
    if (ROOT / path).is_dir():
        return f"repository/{path}/README.md"
    return f"repository/{path}.md" if Path(path).suffix in SOURCE else f"repository/{path}"


def targets(text, origin):
    """The files of the repository that a page links to; `origin` is the page's own path from the root."""
    linked = []

    def look(part):
        linked.extend(_target(origin, match[2]) for match in LINK.finditer(part))
        return part

    outside_fences(text, look)
    return [one for one in linked if one is not None]


def relinked(text, origin):
    """The page with links to the paths of the files on the site."""
    here = posixpath.dirname(page_of(origin))

    def replaced(match):
        target = _target(origin, match[2])
        if target is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(page_of(target), here or '.')}{match[3] or ''}{match[4]}"

    return outside_fences(text, lambda part: LINK.sub(replaced, part))


def _target(origin, link):
    """The file or folder of the repository that a link names; None if it is not a path, or does not exist."""
    if ":" in link:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


def copied(path):
    """The text of the page for a file or folder outside docs/; None for a file that is copied unchanged."""
    file = ROOT / path
    if file.is_dir():
        return _folder(path, file)
    if file.suffix in SOURCE:
        return f"# {path}\n\n```{SOURCE[file.suffix]}\n{file.read_text(encoding='utf-8')}```\n"
    return file.read_text(encoding="utf-8") if file.suffix == ".md" else None


def _folder(path, folder):
    readme = folder / "README.md"
    if readme.exists():
        return readme.read_text(encoding="utf-8")
    rows = []
    for entry in sorted(folder.iterdir()):
        inside = f"{entry.name}/README.md" if entry.is_dir() else entry.name
        if (entry.is_dir() and (entry / "README.md").exists()) or (
            entry.is_file() and entry.suffix in (*SOURCE, ".md") and entry.name[0] != "_"
        ):
            rows.append(f"- [{entry.name}]({inside})")
    return "\n".join([f"# {path}", "", *rows, ""])
