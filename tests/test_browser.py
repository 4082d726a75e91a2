"""Notebook tables in a real browser, with JupyterLab's rules, and with the style sheet that it removes from outputs it does not trust."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fireiron import *

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

PAGE = """<!doctype html><meta charset="utf-8">
<style>.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th {{text-align: right; white-space: normal; max-width: none}}</style>
<div class="jp-RenderedHTMLCommon">{body}</div><p id="result"></p>
<script>
const cells = [...document.querySelectorAll("td:not(.number)")].map(cell => getComputedStyle(cell));
const styles = new Set(cells.map(style => style.textAlign + " " + (style.whiteSpace || style.whiteSpaceCollapse)));
document.getElementById("result").textContent = JSON.stringify([cells.length, [...styles]]);
</script>"""


@pytest.mark.parametrize("trusted", [True, False])
def test_tables_keep_their_indentation(trusted: bool, tmp_path: Path) -> None:
    if BROWSER is None:
        pytest.skip("needs Chromium")
    strategy = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done()
    html = strategy(MatMul(32, 32, 8))._repr_html_()
    assert html is not None
    body = html if trusted else re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    (tmp_path / "page.html").write_text(PAGE.format(body=body), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom")
    words = [BROWSER, *options, (tmp_path / "page.html").as_uri()]
    run = subprocess.run(words, capture_output=True, text=True, timeout=120)
    match = re.search(r'<p id="result">(.*?)</p>', run.stdout)
    assert match is not None, run.stderr[-500:]
    count, styles = json.loads(match[1])
    assert count > 10 and styles == ["left pre-wrap"]
