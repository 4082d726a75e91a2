"""`fireiron.pytorch.register()` registers the PyTorch operators before the first call, as programs of `torch.export` require."""

from __future__ import annotations


def register() -> None:
    """Register the operators of `matmul`, `attention`, `conv2d` and `function`; otherwise their first call registers them."""
    from fireiron.attention_operator import register_operators as attention
    from fireiron.conv2d_operator import register_operators as conv2d
    from fireiron.function import register_operator as function
    from fireiron.matmul_operator import register_operators as matmul

    for register_operators in (attention, conv2d, function, matmul):
        register_operators()


__all__ = ["register"]
