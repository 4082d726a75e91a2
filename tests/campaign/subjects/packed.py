"""Random definitions that unpack numbers of 4 bits, integers and FP4, with scales, in shared memory, registers and global memory.

The reference has the values of `ml_dtypes`, and all results are equal bit by bit.
"""

from packed_generator import draw as drawn_definition
from test_packed_random import objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "packed",
    "random definitions that unpack numbers of 4 bits: equal to NumPy bit by bit, no alarm",
    drawn_from(drawn_definition, objection, program_to_paste),
    nightly=300,
    campaign=10_000,
    first=20_291_130,
)
