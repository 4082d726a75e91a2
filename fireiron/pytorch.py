"""`fireiron.pytorch.register()` registers the PyTorch operators before the first call, as programs of `torch.export` require."""

from __future__ import annotations


def register() -> None:
    """Register the operators of `matmul`, `attention`, `experts` and `function`; otherwise their first call registers them."""
    from fireiron.attention_operator import register_operators as attention
    from fireiron.experts_operator import register_operators as experts
    from fireiron.function import register_operator as function
    from fireiron.matmul_operator import register_operators as matmul

    for register_operators in (attention, experts, function, matmul):
        register_operators()


__all__ = ["register"]
