"""Refinements without effect are reported, or refused if no spec could give them one."""

import pytest

from fireiron import *
from fireiron.check import check
from fireiron.errors import DecompositionError
from fireiron.inspect.findings import findings as all_findings
from fireiron.inspect.ineffective import ineffective


def findings_of(strategy):
    bound = strategy(MatMul(64, 64, 32)(GL, GL, GL)(Kernel))
    findings = [one for one in check(bound.program("sm_75").ir) if one.kind == "ineffective"]
    assert all(one.severity == "note" and "test_ineffective.py:" in one.at for one in findings)
    return [(one.details["refinement"], one.buffer) for one in findings]


def gemm(a=lambda load: load, b=lambda load: load, k=lambda split: split):
    chain = b(a(k(MatMul.tile(32, 32).to(Block).split(8)).load(A, SH)).load(B, SH))
    return chain.tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def test_a_chain_without_such_refinements():
    assert findings_of(gemm()) == []


def test_no_sync_on_the_first_of_two_loads():
    """One barrier after both loads suffices in any case."""
    assert findings_of(gemm(a=lambda load: load.no_sync())) == [("no_sync", "a_sh")]


def test_sync_next_to_an_existing_barrier():
    assert findings_of(gemm(k=lambda split: split.sync())) == [("sync", None)]


def test_sync_that_adds_a_barrier():
    thread = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).sync().tile(1, 1).done()
    assert findings_of(thread) == []


def test_reuse_buffer_without_a_dead_buffer_is_refused():
    with pytest.raises(DecompositionError, match="no earlier shared buffer is dead while b_sh is live"):
        findings_of(gemm(b=lambda load: load.reuse_buffer()))


@pytest.mark.parametrize("name", ["no_sync", "reuse_buffer"])
def test_shared_memory_refinements_on_registers_are_refused(name):
    chain = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1)
    refined = getattr(chain.load(A, RF), name)().tile(1, 1).done()
    with pytest.raises(DecompositionError, match=f"{name} has no effect on registers") as caught:
        _ = refined(MatMul(64, 64, 32)(GL, GL, GL)(Kernel)).program().tree
    assert caught.value.hint == f"drop .{name}()" and "test_ineffective.py:" in str(caught.value)


def ineffective_without(strategy, arch="sm_80"):
    bound = strategy(MatMul(64, 64, 32)(GL, GL, GL)(Kernel))
    findings = list(ineffective(bound.program(arch)))
    assert all(one.severity == "note" and one.kind == "ineffective" and "test_ineffective.py:" in one.at for one in findings)
    return sorted(one.details["refinement"] for one in findings)


def test_refinements_without_which_the_kernel_is_the_same():
    """A loop over registers is unrolled anyway, a row-major source is stored in rows; a pad changes addresses."""
    load = Move.tile(1, 1).to(Thread).unroll().done()
    for pad, reported in (("pad", []), ("storage_layout", ["storage_layout"])):
        chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH, load)
        chain = chain.pad(4) if pad == "pad" else chain.storage_layout(ColMajor)
        chain = chain.load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1)
        assert ineffective_without(chain.done()) == reported
        assert ineffective_without(chain.unroll().done()) == [*reported, "unroll"]


def test_a_refinement_of_a_chain_used_twice_counts_where_it_matters():
    """Removed from one of two uses, it would change the kernel: neither is reported."""
    copy = Move.tile(1, 1).to(Thread).unroll().done()
    chain = MatMul.tile(32, 32).to(Block).split(8).load(A, SH, copy).load(B, SH, copy).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    assert ineffective_without(chain) == []


def test_needed_refinements_have_an_effect():
    """Without its pipeline a chain is another kernel, and without `unchecked` one with a race is refused."""
    chain = MatMul.tile(32, 32).to(Block).split(8).pipeline(2).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    assert ineffective_without(chain) == []


def test_the_command_line_shows_them_with_their_line(tmp_path, capsys):
    from fireiron.cli import main

    path = tmp_path / "mine.py"
    path.write_text(
        "from fireiron import *\n\n"
        "strategy = (\n    MatMul.tile(32, 32).to(Block).split(8)\n    .load(A, SH)\n    .no_sync()\n    .load(B, SH)\n"
        "    .tile(4, 4).to(Thread).split(1).tile(1, 1).done()\n)\n"
    )
    assert main(["check", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ineffective" in text and "no_sync() on the load to" in text and "mine.py:" in text


def test_a_compiled_kernel_returns_the_findings_of_the_command():
    """Those of the kernel itself, and those that need its strategy: here a refinement without effect."""
    chain = MatMul.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).unroll()
    kernel = chain.done()(MatMul(64, 64, 1, order=RowMajor)).compile("sm_80")
    findings = kernel.check()
    assert findings == all_findings(kernel.program) and {finding.kind for finding in findings} > {
        finding.kind for finding in check(kernel.ir)
    }
