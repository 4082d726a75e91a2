"""Verbs of steps and refinements that are found in their folders. Written by `make names`."""

import typing

import fireiron.language.strategy

class FoundSteps:
    __slots__ = ()

class FoundRefinements:
    __slots__ = ()
    def within(self, bytes: typing.Any) -> fireiron.language.strategy.Strategy: ...
