"""The step of the tree that generated each CUDA line, and the page that shows both."""

import functools
import html
import re
from html.parser import HTMLParser

import pytest

from fireiron import *
from fireiron.cli import main
from fireiron.cuda import emit, printed
from fireiron.ir import execs
from fireiron.language.library import bind, find

STRATEGIES = ("naive", "maxwell", "hmma_ampere", "hopper", "lstm", "tasks_gemm", "tasks_attention")

WHOLE = re.compile(
    r"(extern __shared__|constexpr int |const int (block|thread|warp_index) =|// (consumers|producer|stores)$|(else )?if \((warp_index <|threadIdx\.x ==))"
    r"|prefetch_tensor_map\(|mbarrier_init|fence_mbarrier_init|for \(int stage = 0;|__syncthreads\(\);$"
)
"""Lines of a body that belong to the whole kernel: shared declarations, roles, and the mbarriers of rings."""


@functools.cache
def kernel_of(name):
    program = bind(find(name)).program()
    return program, program.lowered


def body_of(lines):
    """The lines between the braces of the kernel."""
    start = max(place for place, line in enumerate(lines) if line.text == "{")
    return [line for line in lines[start + 1 : -1] if line.text.strip() not in ("", "{", "}", "#pragma unroll", "} else {")]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_line_has_its_steps(name):
    program, kernel = kernel_of(name)
    lines = printed(kernel)
    assert "\n".join([*(line.text for line in lines), ""]) == emit(kernel)
    nodes = dict(program.tree.paths())
    assert {step for line in lines for step in line.steps} <= set(nodes)
    body = body_of(lines)
    assert [line.text for line in body if not line.steps and not WHOLE.match(line.text.strip())] == []
    linked = {step for line in body for step in line.steps}
    assert {one.path for one, _ in execs(kernel.body)} <= linked, "each statement has lines"


@pytest.mark.parametrize("name", STRATEGIES)
def test_lines_name_the_buffers_of_their_steps(name):
    """A line of a single leaf names no buffer of others; a name is bound on a line of the step that created it."""
    program, kernel = kernel_of(name)
    nodes = dict(program.tree.paths())
    touched, texts = {}, {one.path for one, _ in execs(kernel.body) if isinstance(one.instruction, MicroKernel)}
    for statement, _ in execs(kernel.body):
        touched.setdefault(statement.path, set()).update(access.buffer for access in statement.accesses)
        if statement.scratch is not None:
            touched[statement.path].add(statement.scratch.name)
    buffers = {one.name for one in kernel.buffers}
    seen = 0
    for line in body_of(printed(kernel)):
        text = line.text.partition("//")[0]
        if len(line.steps) == 1 and line.steps[0] in touched:
            named = buffers & set(re.findall(r"\w+", text))
            names = set(nodes[line.steps[0]].names)
            assert named <= touched[line.steps[0]] | names, line
            seen += bool(named)
        bound = re.match(r"\s*(?:for \(int|const int) (\w+) =", text)
        if bound and bound[1] in kernel.makers and not set(line.steps) & texts:
            assert line.steps == (kernel.makers[bound[1]],), line
            assert bound[1] in nodes[line.steps[0]].names
    assert seen


def test_a_barrier_belongs_to_the_steps_that_it_orders():
    program, kernel = kernel_of("maxwell")
    nodes = dict(program.tree.paths())
    (complete,) = (line for line in printed(kernel) if "a_sh, b_sh complete" in line.text)
    specs = [nodes[step].spec for step in complete.steps]
    assert {tuple(spec.memories) for spec in specs} == {(GL, SH), (SH, RF)} and len(specs) == 4


def test_a_comment_belongs_to_the_following_lines():
    lines = printed(kernel_of("hmma_ampere")[1])
    for place, line in enumerate(lines):
        if line.text.strip().startswith("// A to a_sh:"):
            following = next(one for one in lines[place + 1 :] if one.steps and not one.text.strip().startswith("//"))
            assert line.steps == following.steps or line.steps[0][: len(following.steps[0])] == following.steps[0]


def test_steps_of_several_launches():
    """Step paths start with the kernel's name if there are preceding copies."""
    from fireiron.strategies import hopper

    problem = MatMul(1024, 1024, 1000, dtype=float16, A=RowMajor(ld=1001), B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    program = hopper.strategy(problem).program()
    assert program.preceding
    names = [*(launch.program.name for launch in program.preceding), program.name]
    launches = {step[0] for line in program.lines for step in line.steps}
    assert launches == set(names)
    assert "\n".join([*(line.text for line in program.lines), ""]) == program.cuda
    page = explore(program).html
    assert checked(page).count("button") == sum(
        len(list(launch.tree.paths())) for launch in (program, *(two.program for two in program.preceding))
    )


# ---------------------------------------------------------------------------------------------- the page

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags with their attributes, in order; an error where they do not close."""

    def __init__(self):
        super().__init__()
        self.open, self.found = [], []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def count(self, tag):
        return sum(one == tag for one, _ in self.found)


def checked(text):
    """The page, whose tags close, and which needs no other file."""
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open
    for tag, attributes in page.found:
        assert not {"src", "href", "action", "data"} & set(attributes), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in text and "@import" not in text and "fetch(" not in text
    return page


@pytest.fixture(scope="module")
def maxwell_page():
    program = bind(find("maxwell")).program()
    return program, explore(program).html


def test_the_page_links_lines_and_steps(maxwell_page):
    program, text = maxwell_page
    page = checked(text)
    steps = [attributes["data-step"] for tag, attributes in page.found if tag == "button"]
    assert steps == [str(number) for number in range(len(list(program.tree.nodes())))]
    assert {attributes["id"] for tag, attributes in page.found if tag == "section"} == {"none", *(f"step-{step}" for step in steps)}
    linked = [attributes.get("data-steps", "").split() for tag, attributes in page.found if tag == "li" and "style" not in attributes]
    assert {step for those in linked for step in those} <= set(steps)


def test_the_page_has_the_text_line_by_line(maxwell_page):
    program, text = maxwell_page
    code = re.search(r'<ol id="code".*?>\n(.*)\n</ol>', text, re.DOTALL)[1]
    lines = [html.unescape(re.sub(r"<[^>]*>", "", line)) for line in code.split("\n")]
    assert "\n".join([*lines, ""]) == program.cuda


def section_of(text, step):
    """The details of a step, by the beginning of its title."""
    section = next(one for one in re.findall(r"<section id=.*?</section>", text, re.DOTALL) if f"<h2><code>{html.escape(step)}" in one)
    return html.unescape(re.sub(r"<[^>]*>", " ", section))


def test_details_of_a_step(maxwell_page):
    """A load: its buffer with bytes and padding, the waits for it with reasons, conflicts."""
    _, text = maxwell_page
    load = section_of(text, ".load(B, SH)")
    assert all(word in load for word in ("b_sh", "8×128", "4224", "padded by 4", "strategies/maxwell.py:"))
    assert "barrier of the block: a_sh, b_sh complete" in load and "write -> read of b_sh" in load
    assert "bank conflict" in load and "coalescing" in load
    assert "unrolled" in section_of(text, ".split(1)") and "256" in section_of(text, ".split(8)")


def test_texts_of_users_are_escaped():
    text = '// </script><script>alert(1)</script> &amp; "quoted"\nfor (int i = 0; i < dst_size_m; ++i) dst_at(i, 0) = src_at(i, 0);'
    kernel = MicroKernel("copy<b>", text)
    strategy = Move.tile(8, 1).to(Block).done(kernel)
    page = explore(strategy(Move(64, 4)(GL, GL)(Kernel))).html
    assert checked(page).count("script") == 1 and "<b>" not in page.replace("<b>target", "").replace("decomposes <b>", "").replace(
        " <b>", ""
    )
    assert html.escape("</script><script>", quote=False) in page


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "naive", "--html", "page.html", "-M", "32", "-N", "32", "-K", "8"]) == 0
    checked((tmp_path / "page.html").read_text())
    assert "page.html" in capsys.readouterr().out
    assert main(["draw", "naive", "--html", "page.html"]) != 0 and "exists" in capsys.readouterr().err
    assert main(["draw", "naive", "--html", "page.svg"]) != 0 and ".html" in capsys.readouterr().err
    assert main(["draw", "naive", "--html", "other.html", "--what", "tree"]) != 0 and "--html" in capsys.readouterr().err


def test_programs_without_a_page():
    with pytest.raises(IncompleteError):
        explore(MatMul.tile(8, 8).to(Block)(MatMul(32, 32, 8)(GL, GL, GL)(Kernel)))
    with pytest.raises(ArgumentError, match="not a strategy"):
        explore(3)
