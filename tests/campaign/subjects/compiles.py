"""Texts of accepted strategies, compiled by every installed CUDA compiler, with warnings as errors.

Two of three are for Hopper warpgroups (`hopper_generator`), wgmma with surrounding steps; the others are multi-step definitions, for sm_80
and sm_90a.
"""

from collections.abc import Mapping

from fused_generator import DrawnDefinition
from fused_generator import draw as drawn_definition
from hopper_generator import TARGET, DrawnHopper
from hopper_generator import draw as drawn_hopper

from campaign import Outcome, Subject, agreed, found
from campaign.shrink import story
from campaign.subjects.definitions import features_of as features_of_definition
from fireiron.compiler import Program
from fireiron.errors import LaunchError
from fireiron.gpu.toolchain import compile_cuda, toolchains

DEFINITION_TARGETS = ("sm_80", TARGET)


def needs() -> str | None:
    """Why nothing can be compiled here."""
    return None if any(one.serves(TARGET) for one in toolchains()) else f"no NVRTC for {TARGET} is installed"


def refusal(program: Program, symbols: Mapping[str, int]) -> str:
    """The diagnostics of compilers for the text of a program; empty if all accept it. Sizes do not matter."""
    arch = str(program.architecture)
    for compiler in toolchains():
        try:
            if compiler.serves(arch):
                compile_cuda(program.cuda, arch, newest=compiler.version)
        except LaunchError as error:
            return f"{compiler} {error}"
    return ""


def draw(seed: int) -> Outcome:
    """One accepted strategy."""
    return of_definition(seed) if seed % 3 == 0 else of_hopper(seed)


def of_hopper(seed: int) -> Outcome:
    """A strategy for warpgroups."""
    drawn, refusals = drawn_hopper(seed)
    assert isinstance(drawn, DrawnHopper)
    if refusal(drawn.program, drawn.symbols):
        return found(story(drawn.strategy, TARGET, drawn.symbols, refusal, seed), drawn.features)
    return agreed({*drawn.features, "by warpgroups"}, refusals=refusals, hopper=1)


def of_definition(seed: int) -> Outcome:
    """A multi-step definition, for each target that its strategy supports."""
    drawn, refusals = drawn_definition(seed)
    assert isinstance(drawn, DrawnDefinition)
    strategy = drawn.strategy(drawn.bound)
    for target in DEFINITION_TARGETS:
        if refusal(strategy.program(target), drawn.symbols):
            return found(story(strategy, target, drawn.symbols, refusal, seed), drawn.features)
    drawn.target = DEFINITION_TARGETS[0]
    return agreed(features_of_definition(drawn), refusals=refusals, definitions=1)


SUBJECT = Subject(
    "compiles",
    "Hopper warpgroup strategies and definitions: every installed NVRTC compiles their texts, warnings as errors",
    draw,
    nightly=1_000,
    campaign=3_000,
    sample=3,
    seconds=300.0,
    needs=needs,
)
