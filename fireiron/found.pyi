"""Verbs of steps and refinements that are found in their folders. Written by `make names`."""

class FoundSteps:
    __slots__ = ()

class FoundRefinements:
    __slots__ = ()
