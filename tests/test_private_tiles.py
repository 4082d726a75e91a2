"""Loads to shared memory by single threads, which get private copies."""

from fireiron import *


def test_a_tile_in_shared_memory_that_one_thread_reads_is_reported():
    tiles, problem = MatMul.tile(16, 16).to(Block), MatMul(32, 32, 16, order=RowMajor)
    kinds = {}
    for name, chain in {
        "private": tiles.tile(4, 4).to(Thread).epilog(RF).split(8).load(A, SH).load(B, SH),
        "shared": tiles.epilog(RF).split(8).load(A, SH).load(B, SH).tile(4, 4).to(Thread),
    }.items():
        findings = chain.split(1).tile(1, 1).done()(problem).compile("sm_80").check()
        kinds[name] = [(finding.buffer, finding.details["copies"]) for finding in findings if finding.kind == "private"]
        texts = [finding.message for finding in findings if finding.kind == "private"]
        assert all("before the tile of the Thread" in text for text in texts)
    assert kinds == {"private": [("a_sh", 16), ("b_sh", 16)], "shared": []}


def test_a_block_of_one_thread_names_the_missing_step():
    rows = Fused(name="rows", dims="m n", operands={"X": "m n", "Y": "m"}, body={"out": "Y[m] = max(n, X[m,n])"})
    findings = rows.tile(m=4).to(Block).done()(rows(m=8, n=20, dtype=float32)).compile("sm_80").check()
    assert any("1 thread in a block: no step assigns work to threads" in finding.message for finding in findings)
