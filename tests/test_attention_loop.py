"""The printed attention loop on Hopper has the order of hand-written kernels: which statements wait, and what overlaps with them."""

import math
import re

import pytest

from fireiron.strategies import attention, hopper_attention

# Patterns in the text, and their names here; a count is the number of executions, including surrounding loops.
EVENTS = {
    r"mbarrier_wait\((\w)_sh_ring_full": lambda found: f"wait {found[1].upper()} full",
    r"mbarrier_arrive\((\w)_sh_ring_empty": lambda found: f"arrive {found[1].upper()} empty",
    r"wgmma_fence\(\)": lambda found: "fence",
    r"wgmma_commit_group\(\)": lambda found: "commit",
    r"wgmma_wait_group<(\d)>\(\)": lambda found: f"wait_group {found[1]}",
    r"pin_registers\((\w+)\)": lambda found: f"hold {found[1]}",
    r"wgmma_m64n\d+k16_row_col_f32_f16\(\s*s,[^;]*,\s*([^,;]*)\);": lambda found: f"s = Q K^T, adds where {found[1]}",
    r"wgmma_m64n\d+k16_reg_row_f32_f16\(\s*acc,[^;]*,\s*([^,;]*)\);": lambda found: f"acc += P V, adds where {found[1]}",
    r"fmaxf\(": lambda found: "maximum",
    r"quad_reduce_(\w+)\(": lambda found: f"{found[1]} of four lanes",
    r"alpha\[\w+\] = exp2_approx\(": lambda found: "alpha = exp2",
    r"\bs\[[^\]]*\] =\s*exp2_approx\(": lambda found: "s = exp2",
    r"l_parts\[\w+\] = l_parts\[\w+\] \* alpha": lambda found: "l = l alpha + sum of s",
    r"__floats2half2_rn\(": lambda found: "P = pack s",
    r"acc\[[^\]]*\] =\s*acc\[[^\]]*\] \* alpha": lambda found: "acc *= alpha",
}
LOOP = r"for \(int (?P<var>\w+) = 0; \w+ < (?P<times>\d+); \+\+\w+\)"

BEFORE = """\
wait Q full; wait K full
fence; 8 s = Q K^T, adds where s_d > 0; commit; wait_group 0; hold s; arrive K empty
62 maximum; max of four lanes; 2 maximum; 2 alpha = exp2; 64 s = exp2; 2 l = l alpha + sum of s; 32 P = pack s"""

ITERATION = """\
wait K full
fence; 8 s = Q K^T, adds where s_d > 0; commit
wait V full
fence; 8 acc += P V, adds where n > 0 || pv_n > 0; commit
wait_group 1; hold s; arrive K empty
62 maximum; max of four lanes; 2 maximum
2 alpha = exp2; 64 s = exp2; 2 l = l alpha + sum of s
wait_group 0; hold acc; arrive V empty
32 P = pack s; 64 acc *= alpha"""
"""The scores of a block of keys, then the PV product of the preceding one; meanwhile the exponentials of the scores."""

AFTER = """\
wait V full; fence; 8 acc += P V, adds where true; commit
sum of four lanes
wait_group 0; hold acc; arrive V empty"""


def skeleton(text):
    """The events of a text in order, with equal consecutive ones counted together; events in the loop over n are in brackets."""
    events, around = (
        [],
        [],
    )  # around: for each loop or block the number of executions, whether it has a brace, and whether it is the loop over n
    pattern = "|".join([LOOP, *(f"(?P<event{number}>{one})" for number, one in enumerate(EVENTS)), "(?P<sign>[{};])"])

    def add(name, count=1):
        if events and events[-1][0] == name:
            count += events.pop()[1]
        events.append((name, count))

    for match in re.finditer(pattern, re.sub("//.*", "", text)):
        event = next((number for number in range(len(EVENTS)) if match[f"event{number}"]), None)
        if match["times"]:
            is_key_loop = match["var"] == "n"
            around.append([1 if is_key_loop else int(match["times"]), False, is_key_loop])
            add("[") if is_key_loop else None
        elif event is not None:
            pattern_of_event, name = list(EVENTS.items())[event]
            add(name(re.match(pattern_of_event, match[0])), math.prod(times for times, _, _ in around))
        elif match["sign"] == "{" and around and not around[-1][1]:
            around[-1][1] = True
        elif match["sign"] == "{":
            around.append([1, True, False])
        elif match["sign"] == "}":
            add("]") if around.pop()[2] else None
        if match["sign"] in ("}", ";") or match[0].endswith(";"):
            while around and not around[-1][1]:
                around.pop()
    return [name if count == 1 else f"{count} {name}" for name, count in events]


def events_of(text):
    """The events of a written skeleton."""
    return [one.strip() for line in text.splitlines() for one in line.split(";")]


FUNCTION = re.compile(r"^// [^\n]* on registers\n__device__ __forceinline__ void (\w+)\(.*?\)\n\{\n(.*?)\n\}\n", re.DOTALL | re.MULTILINE)


def consumers(text):
    """The statements of the consumers from their first wait to the last MMA, with the bodies of the functions that they call."""
    for name, body in FUNCTION.findall(text):
        text = re.sub(rf"^ +{name}\([^;]*\);", lambda match, body=body: body, text, flags=re.MULTILINE)
    start = text.index("mbarrier_wait(q_sh_ring_full")
    return text[start : text.index("// norm", start)]


@pytest.fixture(scope="module")
def printed():
    spec = attention.spec(*hopper_attention.SIZES)  # four blocks of 128 keys, head dimension 128, rows of two registers
    return hopper_attention.by_rows(attention.definition()).with_(bm=128, bn=128, stages=2)(spec).cuda()


def test_the_loop_is_that_of_hand_written_kernels(printed):
    assert skeleton(consumers(printed)) == [*events_of(BEFORE), "[", *events_of(ITERATION), "]", *events_of(AFTER)]


def test_the_peeled_iteration_and_the_loop_call_one_function(printed):
    assert [name for name, _ in FUNCTION.findall(printed)] == ["top_max_to_l_parts"]
    calls = re.findall(r"^ +top_max_to_l_parts\(([^;]*)\);", printed, re.MULTILINE)
    assert len(calls) == 2 and len({" ".join(call.split()) for call in calls}) == 1
    assert printed.count("exp_n < 16") == printed.count("sums_parts[sums_m] =") == 1


@pytest.mark.parametrize(
    "change",
    [
        ("wgmma_wait_group<1>", "wgmma_wait_group<0>"),
        (r"wgmma_wait_group<1>\(\);([^\n]*)\n +pin_registers\(s\);", r"wgmma_wait_group<1>();\1"),
        (r"\n( +)wgmma_commit_group\(\);\n +mbarrier_wait\(v_sh", r"\n\1mbarrier_wait(v_sh"),
        ("exp_n < 16", "exp_n < 15"),
        ("n > 0 \\|\\| pv_n > 0", "true"),
    ],
    ids=str,
)
def test_another_loop_differs(printed, change):
    other = re.sub(*change, printed)
    assert other != printed and skeleton(consumers(other)) != skeleton(consumers(printed))
