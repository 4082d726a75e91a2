"""PyTorch's operators before a call requests them, for programs of `torch.export` that have them: `fireiron.pytorch.register()`."""

from __future__ import annotations


def register() -> None:
    """Register the operators of `matmul`, `attention` and `function`, which else are when the first call needs them."""
    from fireiron.attention import register_operators as attention
    from fireiron.function import register_operator as function
    from fireiron.matmul_operator import register_operators as matmul

    for register_operators in (attention, function, matmul):
        register_operators()


__all__ = ["register"]
