"""Compare attention with per-lane partial row sums with the same strategy that reduces them for each block of keys.

    python perf/partial_sums.py FOLDER [--sizes 512,4096] [--rounds 5]

Float16, 16k tokens, heads of 64 and 128, causal and not, in one run, each kernel first verified on an output initialized to NaN. About 8
seconds per case. Writes `partial_sums.txt` and `partial_sums.json`.
"""

import argparse

from attention import by_kernel, error_of, sets_of, spec_of
from fused import ERROR, written

from fireiron.measure.timing import measure
from fireiron.strategies import attention

TOKENS = 16384


def kernel_of(length, d, causal, partial_sums):
    """Return a compiled kernel, with the library's default values."""
    spec = spec_of(length, d, causal, TOKENS)
    strategy = attention.by_rows(attention.definition(causal=causal), partial_sums=partial_sums, branch=d > 64)
    return strategy.with_(**attention.values(spec))(spec).compile("sm_90")


def measured(length, d, causal, rounds):
    """Return microseconds by name, of the first of the candidates."""
    arrays = sets_of(length, d, TOKENS)
    calls = {}
    for name, partial_sums in (("complete", False), ("partial", True)):
        kernel = kernel_of(length, d, causal, partial_sums)
        error = error_of(by_kernel(kernel, arrays[0]), arrays[0], causal)
        if not error < ERROR:
            print(f"left out: {length} {d} {causal} {name}: error {error:.1e}", flush=True)
            continue
        calls[name] = [by_kernel(kernel, one) for one in arrays]
    return {name: one.us for name, one in measure(calls, rounds=rounds).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--sizes", default="512,4096")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows, kept = [], {}
    for d in (64, 128):
        for causal in (False, True):
            for length in map(int, arguments.sizes.split(",")):
                times = kept[f"{d} {causal} {length}"] = measured(length, d, causal, arguments.rounds)
                complete, partial = times.get("complete"), times.get("partial")
                rows.append((d, causal, length, complete, partial, None if None in (complete, partial) else complete / partial))
    written(arguments.folder, "partial_sums", ("d", "causal", "length", "complete us", "partial us", "faster by"), rows, kept)


if __name__ == "__main__":
    main()
