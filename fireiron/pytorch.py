"""`fireiron.pytorch.register()` registers the PyTorch operators before the first call, as programs of `torch.export` require."""

from __future__ import annotations


def register() -> None:
    """Register the operators of all calls on arrays; otherwise the first call of each registers its own."""
    from fireiron.attention_operator import register_operators as attention
    from fireiron.conv2d_operator import register_operators as conv2d
    from fireiron.distributed_operator import register_operators as distributed
    from fireiron.experts_operator import register_operators as experts
    from fireiron.function import register_operator as function
    from fireiron.latent_attention import register_operators as latent_attention
    from fireiron.linear_cross_entropy import register_operators as linear_cross_entropy
    from fireiron.matmul_operator import register_operators as matmul
    from fireiron.paged_attention import register_operators as paged_attention
    from fireiron.ssd_operator import register_operators as ssd

    for register_operators in (attention, conv2d, function, linear_cross_entropy, matmul, paged_attention, latent_attention, ssd):
        register_operators()
    experts()
    distributed()


__all__ = ["register"]
