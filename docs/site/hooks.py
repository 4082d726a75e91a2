"""The MkDocs hooks of the site: generated pages, links to files outside docs/, and the order of the pages.

`mkdocs build --strict` from the root of the repository, or `make docs`. The variable FIREIRON_GALLERY names the strategies of the gallery
("naive,maxwell"); without it, the gallery has all strategies of the library.
"""

import logging
import os
import re
from pathlib import Path

import commands
import contents
import gallery
import outside
import pictures
import reference
import search
from fences import readable
from mkdocs.structure.files import File, InclusionLevel
from pygments.formatters import HtmlFormatter

from fireiron.language import library

log = logging.getLogger("mkdocs.hooks.site")

_origins = {}
"""By page: its source file in the repository, to which its links are relative."""


def on_config(config):
    _origins.clear()
    return config


def on_files(files, config):
    """All pages: those of docs/, those of the root, the generated ones, and the files to which they link."""
    pages = {one.src_uri: one.content_string for one in files if one.src_uri.endswith(".md") and one.inclusion != InclusionLevel.EXCLUDED}
    generated = {**reference.pages(), **commands.pages(), **gallery.pages(_shown()), "css/code.css": _colors()}
    generated |= {f"reference/pictures/{name.replace('/', '_')}.svg": drawn.svg for name, drawn in pictures.OF.items()}
    for page, text in generated.items():
        files.append(File.generated(config, page, content=text))
    pages |= {page: text for page, text in generated.items() if page.endswith(".md")}
    _origins.update({page: f"docs/{page}" for page in pages})
    _follow({f"docs/{page}": text for page, text in pages.items()}, files, config)
    config.nav = [
        {title: [{"Overview": page} if page == "index.md" else page for page in section_pages]}
        for title, section_pages in contents.navigation(
            [one.src_uri for one in files if one.src_uri.endswith(".md") and one.inclusion.is_included()]
        )
    ]
    return files


def on_page_markdown(markdown, page, config, files):
    origin = _origins.get(page.file.src_uri)
    return readable(markdown if origin is None else outside.relinked(markdown, origin))


def on_post_page(output, page, config):
    return gallery.with_kernels(output)


def on_post_build(config):
    """Write the search index as a script, if the search plugin made one; its own scripts are not used."""
    folder = Path(config.site_dir, "search")
    index = folder / "search_index.json"
    if not index.exists():
        return
    text = index.read_text(encoding="utf-8")
    if unknown := search.unknown(text):
        log.warning("docs/site/search.py has keywords for pages that do not exist: %s", sorted(unknown))
    (folder / "index.js").write_text(search.script(text), encoding="utf-8")
    for name in ("lunr.js", "main.js", "worker.js"):
        (folder / name).unlink(missing_ok=True)


def _colors():
    """The colors of code, by day and by night."""
    day, night = (HtmlFormatter(style=style).get_style_defs(".codehilite").splitlines() for style in ("default", "github-dark"))
    rules = [[line for line in lines if line.startswith(".codehilite .")] for lines in (day, night)]
    return "\n".join([*rules[0], "@media (prefers-color-scheme: dark) {", *rules[1], "}", ""])


def _shown():
    names = os.environ.get("FIREIRON_GALLERY")
    return names.split(",") if names else library.names()


def _follow(texts, files, config):
    """Add the files outside docs/ to which pages link, and the files to which these link."""
    waiting = list(outside.IN_FRONT)
    for origin, text in texts.items():
        waiting += outside.targets(text, origin)
    seen = set()
    while waiting:
        path = waiting.pop()
        page = outside.page_of(path)
        if page in seen or files.get_file_from_path(page) is not None:
            continue
        seen.add(page)
        text = _index(path) if path.startswith("docs/") else outside.copied(path)
        if text is None:
            files.append(File.generated(config, page, abs_src_path=str(outside.ROOT / path)))
            continue
        _origins[page] = f"{path}/README.md" if (outside.ROOT / path).is_dir() else path
        files.append(File.generated(config, page, content=text))
        if page.endswith(".md") and not re.search(r"\.(py|cu)\.md$", page):
            waiting += outside.targets(text, _origins[page])


def _index(path):
    """The index page of a folder of docs/: its pages by title."""
    rows = []
    for page in sorted((outside.ROOT / path).glob("*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        rows.append(f"- [{title}]({page.name})")
    return "\n".join([f"# {path.removeprefix('docs/').capitalize()}", "", *rows, ""])
