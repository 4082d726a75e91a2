"""All sections of the language reference but those of the instructions, made from the docstrings of the package."""

import functools
import inspect

import attrs
from docstrings import attribute_texts, parts, signature
from section import Section, classes

import fireiron
from fireiron import check, decomp, errors, executable, refine, specs
from fireiron.generated_verbs import StepVerbs
from fireiron.language import strategy as strategies
from fireiron.spec import Starter
from fireiron.specs.verbs import Verbs
from fireiron.values import level, machine

CHAINS = {
    "tile": strategies.TileStrategy,
    "split": strategies.SplitStrategy,
    "split_k": strategies.SplitKStrategy,
    "load": strategies.LoadStrategy,
    "set_memory": strategies.SetMemoryStrategy,
    "epilog": strategies.EpilogStrategy,
    "to_gpus": strategies.ToGpusStrategy,
}
"""The classes of chains that end with a step that has refinements, by verb."""


STEP = ("sentence", "legal", "rules", "sources", "example")


@functools.cache
def verbs():
    """The sections of the verbs: the decompositions, and `then`."""
    functions = {"then": Verbs.then, **vars(StepVerbs)}
    methods = {name: one for name, one in functions.items() if inspect.isfunction(one) and not name.startswith("_")}
    by_verb = {step.verb: step for step in classes(decomp, fireiron.Decomposition)}
    order = sorted(methods, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    return tuple(
        Section(
            f"`{name}`",
            (signature(methods[name], f".{name}"),),
            parts(methods[name].__doc__, (by_verb[name].__doc__ if name in by_verb else "")),
            (f"As a value: `{by_verb[name].__name__}`.",) if name in by_verb else (),
            STEP,
        )
        for name in order
    )


_ORDER = (
    "tile",
    "split",
    "load",
    "epilog",
    "done",
    "split_k",
    "mma_tile",
    "coalesced_copy",
    "repack",
    "step",
    "rfactor",
    "set_memory",
    "skip_steps",
    "then",
)


@functools.cache
def refinements():
    """The sections of the refinements by the step that they refine; a refinement of several steps is in the section of the first."""
    by_step = {verb: [] for verb in CHAINS}
    for refinement in classes(refine, fireiron.Refinement):
        methods = {name: method for verb in refinement.applies_to for name, method in _methods_making(refinement, CHAINS[verb]).items()}
        written = [signature(method, f".{name}") for name, method in methods.items()]
        others = list(refinement.applies_to[1:])
        notes = [f"As a value: `{refinement.__name__}`, in `.refine(...)` after a step, and in `.at(...).refine(...)` anywhere."]
        if others:
            notes.append(f"It refines {', '.join(f'`{verb}`' for verb in refinement.applies_to)}.")
        title = " · ".join(f"`{name}`" for name in methods) or f"`{refinement.__name__}`"
        by_step[refinement.applies_to[0]].append(
            Section(title, tuple(written), parts(refinement.__doc__), tuple(notes), STEP, refinement.applies_to)
        )
    return {verb: tuple(sorted(sections, key=lambda one: one.title)) for verb, sections in by_step.items() if sections}


def _methods_making(refinement, chain):
    """The methods of a chain that make a refinement of a class, by name."""
    methods = ((name, inspect.getattr_static(chain, name, None)) for name in sorted(dir(chain)))
    return {name: method for name, method in methods if getattr(method, "makes", None) is refinement}


@functools.cache
def spec_kinds():
    """The sections of the kinds of spec."""
    sections = []
    for module in specs.modules():
        for name in getattr(module, "__all__", ()):
            starter = getattr(module, name)
            if isinstance(starter, Starter):
                sections.append(_spec_kind(module, name, starter))
    return tuple(sections)


def _spec_kind(module, name, starter):
    own = None if type(starter) is Starter else type(starter).__dict__.get("__call__")
    text = (own.__doc__ if own is not None else None) or attribute_texts(module).get(name) or module.__doc__
    written = (signature(own, name),) if own is not None else ()
    formula = getattr(getattr(starter, "kind", None), "formula", None)
    notes = (f"Formula: `{formula}`",) if formula else ()
    read = parts(text, module.__doc__)
    example = read.example or parts(module.__doc__).example
    return Section(f"`{name}`", written, attrs.evolve(read, example=example), notes, ("sentence", "sources", "example"))


@functools.cache
def machine_parts():
    """The sections of memories, levels and element types."""
    texts = {**attribute_texts(level), **attribute_texts(machine)}
    memories = [Section(f"`{name}`", (), parts(texts.get(name)), ()) for name in ("GL", "SH", "RF", "VAL", "COORD")]
    fragments = Section("`FR`", (signature(machine.FR, "FR"),), parts(machine.FR.__doc__), ())
    levels = [Section(f"`{one.name}`", (), parts(texts.get(one.name)), (_level(one),)) for one in machine.LEVELS]
    types = [
        Section(
            f"`{dtype.name}`",
            (),
            parts(texts.get(dtype.name)),
            (f"{dtype.bits} bits, `{dtype.cuda}` in CUDA C++, `{dtype.numpy}` in NumPy.",),
        )
        for dtype in machine.DTYPES
    ]
    return {"Memories": (*memories[:2], fragments, *memories[2:]), "Levels": tuple(levels), "Element types": tuple(types)}


def _level(level):
    if level.parent is None:
        return "All blocks of the launch."
    count = {None: "Threads as the strategy says", 1: "One thread"}.get(level.threads, f"{level.threads} threads")
    return f"{count}, below `{level.parent}`."


@functools.cache
def strategy_methods():
    """The sections of the methods of chains: swapping, composing, tuning, storing, compiling."""
    sections = []
    for owner, written in ((fireiron.Strategy, "strategy"), (strategies.Cursor, "strategy.at(...)")):
        for name, member in vars(owner).items():
            if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, (property, staticmethod))):
                continue
            called = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
            how = f"{written}.{name}" if isinstance(member, property) else signature(called, f"{written}.{name}")
            title = f"`{name}`" if owner is fireiron.Strategy else f"`at(...).{name}`"
            sections.append(Section(title, (how,), parts(called.__doc__)))
    return tuple(sections)


@functools.cache
def check_kinds():
    """The sections of the checks of `fireiron check`."""
    sections = []
    for function in check.CHECKS:
        read = parts(inspect.getmodule(function).__doc__)
        sections.append(Section(function.__name__.removeprefix("check_").replace("_", " ").capitalize(), (), attrs.evolve(read, rules=())))
    return tuple(sections)


@functools.cache
def error_classes():
    """The sections of errors and warnings."""
    error_types = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, (errors.FireironError, Warning))]
    return tuple(
        Section(
            f"`{error_type.__name__}`", (), parts(error_type.__doc__), (f"A `{error_type.__mro__[1].__name__}`.",), ("sentence", "text")
        )
        for error_type in error_types
        if error_type.__module__ == errors.__name__
    )


@functools.cache
def others():
    """The sections of all other public names: values; functions that make, run and measure kernels; parts of extensions."""
    known = _covered()
    pages = {"values": [], "functions": [], "extending": []}
    for name in sorted(set(fireiron.__all__) - known, key=str.lower):
        value = getattr(fireiron, name)
        module, called = _home(name, value), inspect.isclass(value) or inspect.isfunction(value)
        text = attribute_texts(module).get(name) or ("" if type(value).__module__ == "builtins" and not called else inspect.getdoc(value))
        written = (_signature(value, name),) if called else ()
        pages[_page_of(name, module)].append(Section(f"`{name}`", written, parts(text)))
    return {page: tuple(sections) for page, sections in pages.items()}


def _home(name, value):
    """The module in which a public name is assigned or defined."""
    if inspect.isclass(value) or inspect.isfunction(value):
        return inspect.getmodule(value)
    stated = [module for module in (executable, *fireiron._STATED) if name in getattr(module, "__all__", vars(module))]
    return stated[0] if stated else inspect.getmodule(type(value))


def _signature(value, name):
    try:
        return signature(value, name)
    except ValueError:
        return name


def _page_of(name, module):
    if name in EXTENDING:
        return "extending"
    return (
        "values"
        if module.__name__.startswith(
            ("fireiron.values", "fireiron.language.tunable", "fireiron.decomp", "fireiron.specs", "fireiron.refine", "fireiron.executable")
        )
        else "functions"
    )


EXTENDING = (
    "Child",
    "Context",
    "Decomposition",
    "Executable",
    "Expansion",
    "INSTRUCTIONS",
    "Kind",
    "LaneMap",
    "Mismatch",
    "Parameter",
    "Refinement",
)
"""Names for those who extend the language."""


def _covered():
    """Public names on other pages than those of `others`."""
    extensions = [
        cls
        for base, kind in ((decomp, "Decomposition"), (refine, "Refinement"), (executable, "Executable"))
        for cls in classes(base, getattr(fireiron, kind))
    ]
    kinds = [
        section.title.strip("`")
        for section in (*spec_kinds(), *(one for group in machine_parts().values() for one in group), *error_classes())
    ]
    values = [
        name
        for module in executable.MODULES
        for name in getattr(module, "__all__", ())
        if isinstance(getattr(module, name), (fireiron.Executable, tuple))
    ]
    return {one.__name__ for one in extensions} | set(kinds) | set(values) | {"Strategy"}
