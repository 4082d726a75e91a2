"""The sections of the instructions: docstrings of the files of `fireiron/executable`, and tables of their instructions and targets."""

import functools

import attrs
from docstrings import attribute_texts, parts
from section import Section, own, prose

import fireiron
from fireiron import GL, RF, SH, Block, MatMul, Move, Thread, Warp, Warpgroup, executable


@functools.cache
def instructions():
    """The sections of the instructions, one for each file of `fireiron/executable` with `__all__`."""
    return tuple(_instruction(module) for module in executable.MODULES if hasattr(module, "__all__"))


def _instruction(module):
    classes = own(module, fireiron.Executable)
    texts = attribute_texts(module)
    stated = tuple(dict.fromkeys((*getattr(module, "INSTRUCTIONS", ()), *_values(module))))
    read = parts(module.__doc__, *(one.__doc__ for one in classes))
    example = "\n".join(filter(None, [read.example, *(parts(one.__doc__).example for one in classes)]))
    notes = [_families(classes)]
    if stated:
        notes.append("\n".join(["| instruction | performs | from |", "|---|---|---|", *(_row(module, one) for one in stated)]))
    notes += [f"`{name}` are all of these." for name in module.__all__ if isinstance(getattr(module, name), tuple)]
    names = [name for name in module.__all__ if name in texts]
    notes += [f"`{name}`: {' '.join(texts[name].split())}" for name in names]
    return Section(
        f"`{module.__name__.rpartition('.')[2]}`", (), attrs.evolve(read, example=example), tuple(notes), ("sentence", "sources", "example")
    )


def _values(module):
    return [one for name in module.__all__ if isinstance(one := getattr(module, name), fireiron.Executable)]


def _families(classes):
    rows = []
    for instruction in classes:
        read = parts(instruction.__doc__)
        rows.append(f"`{instruction.__name__}`: {prose(read.sentence)} {prose(read.text)}")
    return "\n\n".join(rows)


def _row(module, instruction):
    called = next((name for name in module.__all__ if getattr(module, name) is instruction), instruction.name)
    has = [one.name for one in fireiron.ARCHITECTURES if not _lacks(instruction, one)]
    only = f"{has[0]} alone" if len(has) == 1 else has[0]
    return f"| `{called}` | `{instruction.performs()}` | {only} |"


def _lacks(instruction, architecture):
    """Whether the target lacks something that the instruction requires for any spec."""
    return any(one.field == "target" for spec in _probes() for one in instruction.mismatches(spec, architecture))


@functools.cache
def _probes():
    """Specs of the kinds that instructions perform, so that each instruction compares more than the kind for one of them."""
    float16_option, fragments = {"dtype": fireiron.float16}, fireiron.FR(16, 16, 16)
    places = [
        (GL, SH, Thread),
        (GL, SH, Block),
        (SH, RF, Warp),
        (RF, SH, Warp),
        (RF, RF, Warp),
        (SH, RF, Warpgroup),
        (RF, SH, Warpgroup),
        (SH, GL, Warpgroup),
    ]
    copies = [Move(16, 16, **float16_option)(source, target)(level) for source, target, level in places]
    products = [
        MatMul(1, 1, 1)(RF, RF, RF)(Thread),
        MatMul(16, 16, 16, **float16_option)(fragments, fragments, fragments)(Warp),
        MatMul(64, 64, 16, **float16_option)(SH, SH, RF)(Warpgroup),
    ]
    whole = [
        Move(16, 16)(SH, fragments)(Warp),
        Move(16, 16)(fragments, SH)(Warp),
        fireiron.Init(16, 16)(fragments)(Warp),
        Move(64, **float16_option)(GL, SH)(Block),
    ]
    return (*copies, *products, *whole, fireiron.AtomicAdd(1, 1)(RF, GL)(Thread))
