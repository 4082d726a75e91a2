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
    "epilog": strategies.EpilogStrategy,
}
"""The chains that end with a step that has refinements, by its verb."""


STEP = ("sentence", "legal", "rules", "sources", "example")


@functools.cache
def verbs():
    """The sections of the verbs: the decompositions, and `then`."""
    found = {"then": Verbs.then, **vars(StepVerbs)}
    methods = {name: one for name, one in found.items() if inspect.isfunction(one) and not name.startswith("_")}
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
    """The sections of the refinements by the step that they refine; one that refines several stands with the first."""
    found = {verb: [] for verb in CHAINS}
    for one in classes(refine, fireiron.Refinement):
        methods = {name: method for verb in one.applies_to for name, method in _methods_making(one, CHAINS[verb]).items()}
        written = [signature(method, f".{name}") for name, method in methods.items()]
        others = list(one.applies_to[1:])
        notes = [f"As a value: `{one.__name__}`, in `.refine(...)` behind a step, and in `.at(...).refine(...)` anywhere."]
        if others:
            notes.append(f"It refines {', '.join(f'`{verb}`' for verb in one.applies_to)}.")
        title = " · ".join(f"`{name}`" for name in methods) or f"`{one.__name__}`"
        found[one.applies_to[0]].append(Section(title, tuple(written), parts(one.__doc__), tuple(notes), STEP, one.applies_to))
    return {verb: tuple(sorted(sections, key=lambda one: one.title)) for verb, sections in found.items() if sections}


def _methods_making(refinement, chain):
    """The methods of a chain that make a refinement of a class, by name."""
    methods = ((name, inspect.getattr_static(chain, name, None)) for name in sorted(dir(chain)))
    return {name: method for name, method in methods if getattr(method, "makes", None) is refinement}


@functools.cache
def spec_kinds():
    """The sections of the kinds of spec."""
    found = []
    for module in specs.modules():
        for name in getattr(module, "__all__", ()):
            one = getattr(module, name)
            if isinstance(one, Starter):
                found.append(_spec_kind(module, name, one))
    return tuple(found)


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
        Section(f"`{one.name}`", (), parts(texts.get(one.name)), (f"{one.bits} bits, `{one.cuda}` in CUDA C++, `{one.numpy}` in NumPy.",))
        for one in machine.DTYPES
    ]
    return {"Memories": (*memories[:2], fragments, *memories[2:]), "Levels": tuple(levels), "Element types": tuple(types)}


def _level(level):
    if level.parent is None:
        return "All blocks of the launch."
    count = {None: "Threads as the strategy says", 1: "One thread"}.get(level.threads, f"{level.threads} threads")
    return f"{count}, below `{level.parent}`."


@functools.cache
def strategy_methods():
    """The sections of what is done with chains: swapping, composing, tuning, storing, compiling."""
    found = []
    for owner, written in ((fireiron.Strategy, "strategy"), (strategies.Cursor, "strategy.at(...)")):
        for name, one in vars(owner).items():
            if name.startswith("_") or not (inspect.isfunction(one) or isinstance(one, (property, staticmethod))):
                continue
            called = one.fget if isinstance(one, property) else inspect.unwrap(getattr(one, "__func__", one))
            how = f"{written}.{name}" if isinstance(one, property) else signature(called, f"{written}.{name}")
            title = f"`{name}`" if owner is fireiron.Strategy else f"`at(...).{name}`"
            found.append(Section(title, (how,), parts(called.__doc__)))
    return tuple(found)


@functools.cache
def check_kinds():
    """The sections of what `fireiron check` looks at."""
    found = []
    for one in check.CHECKS:
        read = parts(inspect.getmodule(one).__doc__)
        found.append(Section(one.__name__.removeprefix("check_").capitalize(), (), attrs.evolve(read, rules=())))
    return tuple(found)


@functools.cache
def error_classes():
    """The sections of errors and warnings."""
    found = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, (errors.FireironError, Warning))]
    return tuple(
        Section(f"`{one.__name__}`", (), parts(one.__doc__), (f"A `{one.__mro__[1].__name__}`.",), ("sentence", "text"))
        for one in found
        if one.__module__ == errors.__name__
    )


@functools.cache
def others():
    """The sections of all other public names: values, then what makes, runs and measures kernels, then what extensions are made of."""
    known = _covered()
    pages = {"values": [], "functions": [], "extending": []}
    for name in sorted(set(fireiron.__all__) - known, key=str.lower):
        one = getattr(fireiron, name)
        module, called = _home(name, one), inspect.isclass(one) or inspect.isfunction(one)
        text = attribute_texts(module).get(name) or ("" if type(one).__module__ == "builtins" and not called else inspect.getdoc(one))
        written = (_signature(one, name),) if called else ()
        pages[_page_of(name, module)].append(Section(f"`{name}`", written, parts(text)))
    return {page: tuple(sections) for page, sections in pages.items()}


def _home(name, one):
    """The module in which a public name is assigned or defined."""
    if inspect.isclass(one) or inspect.isfunction(one):
        return inspect.getmodule(one)
    stated = [module for module in (executable, *fireiron._STATED) if name in getattr(module, "__all__", vars(module))]
    return stated[0] if stated else inspect.getmodule(type(one))


def _signature(one, name):
    try:
        return signature(one, name)
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
"""Names that those need who add to the language."""


def _covered():
    """Public names that stand on other pages than those of `others`."""
    extensions = [
        one
        for base, kind in ((decomp, "Decomposition"), (refine, "Refinement"), (executable, "Executable"))
        for one in classes(base, getattr(fireiron, kind))
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
