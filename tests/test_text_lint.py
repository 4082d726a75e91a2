"""Printed texts obey the rules of `text_lint`: those of the library and the corpus; each rule detects its faults in real texts."""

import functools
import json
import random
import re

import corpus
import pytest
from ringed import TARGET, float16_gemm, product
from test_programmatic_launch import CASES, program_of
from test_programmatic_launch_no_wait import CASES as READY
from test_programmatic_launch_no_wait import program_of as ready_program
from test_texts import FORMS, kernel
from text_lint import RULES, findings

from fireiron import *
from fireiron.cuda import printed
from fireiron.language.store import loads

SEED = 20_261_128
SAMPLE, ON_HOPPER = 12, 16


def violations(text):
    """The violations in a text."""
    return [str(one) for one in findings(text)]


# ---------------------------------------------------------------------------------------------- texts that obey the rules


@pytest.mark.parametrize("form", FORMS.strip().splitlines())
def test_library(form):
    assert violations("\n".join(line.text for line in printed(kernel(form)))) == []


@pytest.mark.parametrize("name", CASES)
def test_programmatic_launches(name):
    assert violations(program_of(name).cuda) == []


@pytest.mark.parametrize("name", READY)
def test_programmatic_launches_with_exempt_inputs(name):
    assert violations(ready_program(name).cuda) == []


def chosen():
    """Some of the stored strategies, mainly for Hopper."""
    names = corpus.accepted()
    random.Random(SEED).shuffle(names)
    on_hopper = [name for name in names if corpus.by_name()[name].target.startswith("sm_90")]
    return list(dict.fromkeys([*on_hopper[:ON_HOPPER], *names[:SAMPLE]]))


def test_corpus():
    for name in chosen():
        kept = corpus.by_name()[name]
        assert violations(loads(json.dumps(kept.strategy)).program(kept.target).cuda) == [], name


def test_names_of_one_segment():
    """Stream-K with one segment, one unit and one part declares no name that nothing reads (warning 177 of NVRTC)."""
    for size, k, blocks in ((16, 8, 1), (16, 40, 3), (70, 8, 132)):
        tile = MatMul(16, size, k)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).stream_k(blocks, 8).epilog(RF).tile(1, 1).to(Thread)
        assert violations(tile.split(8).split(1).done().program("sm_80").cuda) == []


# ---------------------------------------------------------------------------------------------- faults


@functools.cache
def text_of(name):
    """Texts into which faults are injected."""
    if name == "cluster":
        return product((128, 64, 64), (64, 64), 2, blocks=4, producer=128, cluster=(2, 1))(float16_gemm(256, 256, 256)).program(TARGET).cuda
    if name == "ring":
        return product((128, 64, 64), (64, 64), 2, producer=128, tma=False)(float16_gemm(256, 128, 192)).program(TARGET).cuda
    if name == "chained":
        return program_of("ring").cuda
    if name == "copies":
        return program_of("copies").cuda
    return ready_program(next(iter(READY))).cuda


FAULTS = {
    # a text, the pattern, its replacement, the count, and the rule with its message
    "a fence without volatile": (
        "ring",
        r"asm volatile\(\"wgmma\.fence",
        'asm("wgmma.fence',
        "volatile",
        "wgmma_fence: wgmma.fence.sync.aligned",
    ),
    "a wait without volatile": ("ring", r"asm volatile\((\s+\"\{\\n\"\s+\"\.reg \.pred done)", r"asm(\1", "volatile", "mbarrier_wait"),
    "a product without volatile": ("ring", r"asm volatile\((\s+\"\{ \.reg \.pred scale_d)", r"asm(\1", "volatile", "wgmma.mma_async"),
    "setmaxnreg without volatile": ("ring", r"asm volatile\(\"setmaxnreg\.inc", 'asm("setmaxnreg.inc', "volatile", "setmaxnreg.inc"),
    "a copy without memory": ("copies", r'("l"\(source\)) : "memory"', r"\1", "memory", "cp.async.cg.shared.global"),
    "a commit without memory": ("copies", r'(cp\.async\.commit_group;") ::: "memory"', r"\1", "memory", "cp.async.commit_group"),
    "ldmatrix without memory": ("copies", r'("r"\(source\)) : "memory"', r"\1", "memory", "ldmatrix"),
    "an arrival without memory": (
        "ring",
        r'(mbarrier\.arrive\.shared::cta\.b64 _, \[%0\];" :: "r"\(mbarrier\)) : "memory"',
        r"\1",
        "memory",
        "mbarrier_arrive: mbarrier.arrive",
    ),
    "a load by TMA without memory": (
        "ring",
        r'("r"\(mbarrier\)) : "memory"\);(\s+\}\s+)(?=//)',
        r"\1);\2",
        "memory",
        "cp.async.bulk.tensor",
    ),
    "a store by TMA without memory": ("cluster", r'("r"\(source\)) : "memory"', r"\1", "memory", "cp.async.bulk.tensor.2d.global"),
    "a fence of the proxy without memory": (
        "cluster",
        r'(fence\.proxy\.async\.shared::cta;") ::: "memory"',
        r"\1",
        "memory",
        "fence.proxy.async",
    ),
    "a barrier of the cluster without memory": (
        "cluster",
        r'(barrier\.cluster\.wait\.acquire;") ::: "memory"',
        r"\1",
        "memory",
        "barrier.cluster.wait",
    ),
    "a link without memory": ("chained", r'(griddepcontrol\.wait;") ::: "memory"', r"\1", "memory", "griddepcontrol.wait"),
    "another instruction": ("ring", r"fence\.mbarrier_init\.release\.cluster", "discard.global.L2", "unknown", "discard.global.L2"),
    "inc for dec": ("ring", r"setmaxnreg\.dec", "setmaxnreg.inc", "setmaxnreg value", "inc to"),
    "dec for inc": ("ring", r"setmaxnreg\.inc", "setmaxnreg.dec", "setmaxnreg value", "dec to"),
    "no multiple of 8": ("ring", r"(setmaxnreg\.dec\.sync\.aligned\.u32) \d+", r"\1 60", "setmaxnreg value", "60 registers"),
    "too few registers": ("ring", r"(setmaxnreg\.dec\.sync\.aligned\.u32) \d+", r"\1 16", "setmaxnreg value", "16 registers"),
    "too many registers": ("ring", r"(setmaxnreg\.inc\.sync\.aligned\.u32) \d+", r"\1 264", "setmaxnreg value", "264 registers"),
    "more registers than there are": ("cluster", r"(setmaxnreg\.dec\.sync\.aligned\.u32) \d+", r"\1 168", "setmaxnreg sum", "of 65536"),
    "registers under a condition": (
        "ring",
        r"(\n    )(setmaxnreg_dec_\d+\(\);)",
        r"\1if (lane == 0) { \2 }",
        "setmaxnreg place",
        "0 times, 1 times",
    ),
    "registers by a thread": (
        "ring",
        r"(\n    )(setmaxnreg_dec_\d+\(\);)(\s+if \([^\n]*\{)",
        r"\3\1\2",
        "setmaxnreg place",
        "0 times, 1 times",
    ),
    "registers twice": ("ring", r"(setmaxnreg_inc_\d+\(\);)", r"\1 \1", "setmaxnreg place", "2 times"),
    "registers not at all": ("ring", r"    setmaxnreg_dec_\d+\(\);\n", "", "setmaxnreg place", "0 times"),
    "registers of half a warpgroup": ("ring", r"warp_index < 8", "warp_index < 6", "setmaxnreg place", "not a multiple of a warpgroup"),
    "registers behind a loop": (
        "cluster",
        r"(    setmaxnreg_inc_224\(\);\n)(.*?)(  \}\n  // producer|  \}\n  else)",
        r"\2\1\3",
        "setmaxnreg place",
        "behind other work",
    ),
    "no least number of blocks": (
        "ring",
        r"__launch_bounds__\((\d+), 1\)",
        r"__launch_bounds__(\1)",
        "setmaxnreg value",
        "no least number of blocks",
    ),
    "other bounds": (
        "ring",
        r"__launch_bounds__\((\d+), 1\)",
        "__launch_bounds__(128, 1)",
        "launch bounds",
        "128 threads, and it is launched with 384",
    ),
    "more threads than a block has": ("copies", r"__launch_bounds__\(\d+", "__launch_bounds__(2048", "launch bounds", "2048 threads"),
    "no bounds": ("copies", r" __launch_bounds__\([^)]*\)", "", "launch bounds", "does not say"),
    "fewer bytes": ("cluster", r"65568 bytes", "65536 bytes", "shared size", "something begins at byte 65536 of 65536"),
    "static bytes": (
        "cluster",
        r"bytes of dynamic",
        "bytes of static",
        "shared size",
        "65568 bytes of static shared memory, and the array is dynamic",
    ),
    "shared memory anywhere": (
        "cluster",
        r"__align__\(1024\) unsigned char",
        "__align__(16) unsigned char",
        "shared alignment",
        "multiples of 16 bytes",
    ),
    "no cluster": ("cluster", r" __cluster_dims__\(2, 1, 1\)", "", "cluster", "launched without clusters"),
    "a larger cluster": (
        "cluster",
        r"__cluster_dims__\(2, 1, 1\)",
        "__cluster_dims__(4, 1, 1)",
        "cluster",
        "clusters of 4 blocks, and 2 are stated",
    ),
    "blocks that meet once": ("cluster", r"  cluster_sync\(\);[^\n]*\n\}", "}", "cluster", "meet before and after"),
    "an arrival without a wait": (
        "cluster",
        r'  asm volatile\("barrier\.cluster\.wait\.acquire;" ::: "memory"\);\n',
        "",
        "cluster",
        "2 arrivals at the cluster's barrier, and 0 waits",
    ),
    "barriers not fenced": ("ring", r"    fence_mbarrier_init\(\);\n", "", "mbarrier", "when barriers are made"),
    "fenced too late": (
        "ring",
        r"(    fence_mbarrier_init\(\);\n)(  \}\n  __syncthreads\(\);[^\n]*\n)",
        r"\2\1",
        "mbarrier",
        "when barriers are",
    ),
    "not met": ("ring", r"(fence_mbarrier_init\(\);\n  \}\n)  __syncthreads\(\);[^\n]*\n", r"\1", "mbarrier", "when barriers are fenced"),
    "not met by the cluster": ("cluster", r"  cluster_sync\(\);  // the mbarriers[^\n]*\n", "", "mbarrier", "when barriers are fenced"),
    "barriers by all threads": ("ring", r"if \(threadIdx\.x == 0\) \{", "if (threadIdx.x < 32) {", "mbarrier", "by more threads than one"),
    "barriers in use are made": (
        "ring",
        r"(    setmaxnreg_inc_\d+\(\);\n)",
        r"\1    mbarrier_init(k_ring_full, 1);\n",
        "mbarrier",
        "when barriers are|behind others that are in use",
    ),
    "no fence of registers": ("ring", r" +wgmma_fence\(\);\n", "", "wgmma", "an MMA without a preceding fence of its registers"),
    "a fence behind": (
        "ring",
        r"( +wgmma_fence\(\);\n)(.*?)( +wgmma_commit_group\(\);\n)",
        r"\2\1\3",
        "wgmma",
        "an MMA without a preceding fence of its registers",
    ),
    "no commit": ("ring", r" +wgmma_commit_group\(\);\n", "", "wgmma", "not in a group yet"),
    "a commit in front": (
        "ring",
        r"( +wgmma_fence\(\);\n)(.*?)( +wgmma_commit_group\(\);\n)",
        r"\1\3\2",
        "wgmma",
        "a commit without MMAs",
    ),
    "no wait": ("ring", r" +wgmma_wait_group<\d>\(\);[^\n]*\n", "", "wgmma", "that nobody has waited for"),
    "a weaker wait": ("ring", r"wgmma_wait_group<0>\(\)", "wgmma_wait_group<1>()", "wgmma", "that nobody has waited for"),
    "no wait for the kernel before": (
        "chained",
        r" *griddepcontrol_wait\(\);\n",
        "",
        "griddepcontrol",
        "C before the wait|without a wait for the kernel before",
    ),
    "a wait of the consumers alone": (
        "chained",
        r"(  griddepcontrol_wait\(\);\n)(.*?if \(warp_index < 4\) \{\n)",
        r"\2\1",
        "griddepcontrol",
        "A before the wait for the kernel before: tma_load",
    ),
    "a wait behind the loads": (
        "copies",
        r"( +griddepcontrol_wait\(\);\n)(.*?cp_async_16\([^;]*;)",
        r"\2\1",
        "griddepcontrol",
        "A before the wait for the kernel before: ",
    ),
    "no leave for the next kernel": (
        "chained",
        r" *griddepcontrol_launch_dependents\(\);\n",
        "",
        "griddepcontrol",
        "not once, for all threads",
    ),
    "leave given twice": (
        "chained",
        r"griddepcontrol_launch_dependents\(\);",
        "griddepcontrol_launch_dependents(); griddepcontrol_launch_dependents();",
        "griddepcontrol",
        "not once",
    ),
    "leave given by a thread": (
        "chained",
        r"  (griddepcontrol_launch_dependents\(\);)",
        r"  if (lane == 0) { \1 }",
        "griddepcontrol",
        "not once, for all threads",
    ),
    "a restricted pointer": ("copies", r"const __half\* A", "const __half* __restrict__ A", "griddepcontrol", "a pointer is restricted"),
    "links of a kernel launched alone": (
        "chained",
        r",\s+(// +)?programmatic\s+(// +)?dependent\s+(// +)?launch",
        "",
        "griddepcontrol",
        "in a kernel that is launched as any other",
    ),
    "an input that is not ready": (
        "ready",
        r"no kernel that may still run writes \w+",
        "no kernel that may still run writes nothing",
        "griddepcontrol",
        "before the wait for the kernel before: tma_load",
    ),
    "a variable without a use": ("copies", r"(__global__[^{]*\n\{\n)", r"\1  const int segment = 0;\n", "unused", "segment in"),
}


def faulty_text(name):
    """A text with a fault."""
    which, pattern, by, _, _ = FAULTS[name]
    text = text_of(which)
    changed = re.sub(pattern, by, text, flags=re.DOTALL)
    assert changed != text, "no such place: adapt this fault"
    return changed


def test_each_rule_has_faults():
    assert {rule for *_, rule, _ in FAULTS.values()} == {*RULES}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_texts(name):
    *_, rule, what = FAULTS[name]
    assert any(one.startswith(f"{rule}: ") and re.search(what, one) for one in violations(faulty_text(name))), violations(faulty_text(name))
