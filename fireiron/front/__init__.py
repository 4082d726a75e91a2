"""The front end of calls on arrays, `fireiron.matmul`, `fireiron.attention` and `fireiron.function`: what they share.

`arrays` reads what of an array decides on a kernel, `place` where it runs and which records answer, `cache` keeps answers in memory, and
`call` is the life of a call: replayed, answered anew, copied first, or empty. A call is a subclass of `Call` in a file of its own.

May import: what computes, measures and records; no call.
"""
