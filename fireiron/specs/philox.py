"""Counter-based random numbers: Philox4x32-10.

A call maps a counter of four 32-bit words and a key of two to four random words, and keeps no state. Source: Salmon, Moraes, Dror and Shaw,
"Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 3.3 and table 2.

>>> import numpy
>>> hex(int(philox(0, 0, 0, 0, 0, word=3)))
'0x9b00dbd8'
"""

from __future__ import annotations

from typing import Any, Final

ROUNDS: Final = 10
"""The number of rounds."""

MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
"""The multipliers of words 0 and 2 of the counter."""

KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
"""The numbers that are added to the words of the key after each round."""

WORDS: Final = 4
"""The number of words of a counter, and of results."""

UNIFORM_BITS: Final = 24
"""The number of random bits of `uniform`: those of the significand of a float32."""


def philox(seed: Any, *counter: Any, word: Any = 0) -> Any:
    """One of the four random words, from 0 to 2^32 - 1, as int64.

    Args: seed: the key, of which the low 64 bits count. counter: up to four words, of which the low 32 bits count; missing ones are 0.
    word: the number of the result, modulo 4. All are integers or integer arrays, which are broadcast.
    """
    import numpy

    def low_bits(values: Any) -> Any:
        return (numpy.asarray(values, numpy.int64) & 0xFFFFFFFF).astype(numpy.uint64)

    keys = [low_bits(seed), low_bits(numpy.asarray(seed, numpy.int64) >> 32)]
    words = [*map(low_bits, counter), *(low_bits(0) for _ in range(WORDS - len(counter)))]
    multipliers, steps = (numpy.array(numbers, numpy.uint64) for numbers in (MULTIPLIERS, KEY_STEPS))
    half, low = numpy.uint64(32), numpy.uint64(0xFFFFFFFF)
    for _ in range(ROUNDS):
        first, second = multipliers[0] * words[0], multipliers[1] * words[2]
        words = [second >> half ^ words[1] ^ keys[0], second & low, first >> half ^ words[3] ^ keys[1], first & low]
        keys = [key + step & low for key, step in zip(keys, steps, strict=True)]
    number = numpy.asarray(word, numpy.int64) & 3
    return numpy.choose(number, numpy.broadcast_arrays(*words)).astype(numpy.int64)


def uniform(seed: Any, *counter: Any, word: Any = 0) -> Any:
    """The upper 24 bits of a random word as a float32 in [0, 1), a multiple of 2^-24."""
    import numpy

    return ((philox(seed, *counter, word=word) >> 32 - UNIFORM_BITS) * 2.0**-UNIFORM_BITS).astype(numpy.float32)
