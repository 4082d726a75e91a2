"""`fireiron.pytorch.register()` registers the PyTorch operators before the first call, as programs of `torch.export` require."""

from __future__ import annotations


def register() -> None:
    """Register the operators of `matmul`, `attention`, `paged_attention` and `function`; otherwise their first call registers them."""
    from fireiron.attention_operator import register_operators as attention
    from fireiron.function import register_operator as function
    from fireiron.matmul_operator import register_operators as matmul
    from fireiron.paged_attention import register_operators as paged_attention

    for register_operators in (attention, function, matmul, paged_attention):
        register_operators()


__all__ = ["register"]
