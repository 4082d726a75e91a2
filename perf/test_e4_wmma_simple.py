"""E4: Listing 3 relative to the simple kernel of NVIDIA's sample and to a handwritten one (Fireiron, sections 4.3 and 5.2).

The paper: Listing 3 generates exactly the unoptimized kernel of the sample. It is the same structure here, so the times should be equal.
"""

from contenders import handwritten, sample, sample_sizes

from fireiron import sweep
from fireiron.strategies import wmma_simple

SIZES = (4096, 4096, 4096)


@sweep("wmma_simple", [SIZES])
def test_e4_by_hand(gpu_benchmark, case):
    gpu_benchmark(case, against={"written by hand": handwritten("wmma_simple", SIZES)})


def test_e4_sample(gpu_benchmark, sample_folder):
    strategy = wmma_simple.strategy(wmma_simple.spec(*sample_sizes(sample_folder)))
    gpu_benchmark(strategy, against={"sample, simple": sample(sample_folder, "sample, simple")})
