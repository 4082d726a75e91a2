"""Shared front end of calls on arrays: `fireiron.matmul`, `fireiron.attention` and `fireiron.function`.

`arrays` reads the properties of arrays that select a kernel. `place` contains the target and the records. `cache` keeps kernels in memory.
`call` executes a call: by a replay, by a kernel, on copies, or without a kernel for empty arrays. Each call is a subclass of `Call` in a
separate file.

May import: modules that compute, measure and record. It must not import the calls.
"""
