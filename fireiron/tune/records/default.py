"""Choose a default strategy of the library, with values that were not measured, if there is no record."""

from __future__ import annotations

from fireiron.errors import ArgumentError, FireironError
from fireiron.language.library import default_strategy, defaults
from fireiron.spec import Spec
from fireiron.tune.records.choosing import Accept, Choice, Prove, any_program, prove_only
from fireiron.values.machine import Architecture


def default_choice(spec: Spec, architecture: Architecture, accept: Accept = any_program, prove: Prove = prove_only) -> Choice:
    """Return the first default strategy of the library that is legal for a spec and accepted; `prove` checks its program.

    Raises: ArgumentError with the reason for each default, if no default is legal.
    """
    refusals = []
    for name, values in defaults(spec, architecture):
        try:
            program = default_strategy(name, values, spec)(spec).program(architecture)
            prove(program)
        except FireironError as error:
            refusals.append(f"{name}: {error.headline}")
            continue
        if accept(program):
            text = " ".join([name, *(f"{tunable}={value}" for tunable, value in values.items())])
            types = spec.operands[spec.inputs[0]].dtype
            return Choice(None, False, f"no record applies; the default for {types} on {architecture}: {text}", program)
    kinds = ", ".join(str(view.dtype) for view in spec.operands.values())
    problem = f"no strategy of the library computes {spec} of {kinds} on {architecture}"
    raise ArgumentError(problem, got="; ".join(refusals), hint="use other element types, or another target")
