"""E5: Listing 5 relative to the optimized kernel of NVIDIA's sample cudaTensorCoreGemm (Fireiron, section 5.2, Figure 5).

The paper: the same performance as the hand-written kernel on Volta and Turing. The sample has two forms, with 64 and 72 KB of shared memory.
"""

import pytest
from contenders import sample, sample_sizes

from fireiron.strategies import wmma_optimized


@pytest.mark.parametrize("name", ["strategy", "listing_5"])
def test_e5(gpu_benchmark, sample_folder, name):
    """`listing_5` is the paper's, `strategy` leaves its outer loop rolled."""
    strategy = getattr(wmma_optimized, name)
    rivals = {form: sample(sample_folder, form) for form in ("sample, 64 KB", "sample, 72 KB")}
    gpu_benchmark(strategy(wmma_optimized.spec(*sample_sizes(sample_folder))), against=rivals)
