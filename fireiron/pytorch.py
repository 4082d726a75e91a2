"""PyTorch's operators before a call asks for them, for programs of `torch.export` that have them: `fireiron.pytorch.register()`."""

from __future__ import annotations


def register() -> None:
    """Register the operators of `matmul`, `attention` and `function`, which else are when the first call needs them."""
    from fireiron.attention import register_operators as attention
    from fireiron.function import register_operator as function
    from fireiron.matmul_operator import register_operators as matmul

    for one in (attention, function, matmul):
        one()


__all__ = ["register"]
