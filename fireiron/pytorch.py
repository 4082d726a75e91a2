"""Register PyTorch's operators before the first call, as programs of `torch.export` need: `fireiron.pytorch.register()`."""

from __future__ import annotations


def register() -> None:
    """Register the operators of `matmul`, `attention` and `function`, which the first call registers otherwise."""
    from fireiron.attention import register_operators as attention
    from fireiron.function import register_operator as function
    from fireiron.matmul_operator import register_operators as matmul

    for register_operators in (attention, function, matmul):
        register_operators()


__all__ = ["register"]
