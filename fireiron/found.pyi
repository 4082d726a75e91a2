"""Verbs of steps and refinements that are found in their folders. Written by `make names`."""

import typing

import fireiron.language.strategy
import fireiron.values.machine

class FoundSteps:
    __slots__ = ()
    def place(self, tensor: str, memory: fireiron.values.machine.Memory, pad: int = ...) -> fireiron.language.strategy.Strategy: ...

class FoundRefinements:
    __slots__ = ()
    def cluster(self, m: typing.Any, n: typing.Any = ...) -> fireiron.language.strategy.Strategy: ...
    def last_first(self, dim: str, together: typing.Any = ...) -> fireiron.language.strategy.Strategy: ...
    def within(self, bytes: typing.Any) -> fireiron.language.strategy.Strategy: ...
