"""Attention masks that are used without being read, which would make the host wait for a GPU.

transformers asks `mask.all()` in every forward pass, to leave out a mask that hides nothing. The answer is a value on
the device: the host waits until everything before it has been computed. Here the caller says whether a batch is padded,
which it knows from the lengths of the texts, and a mask that is given is used.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

_SDPA, _EAGER = "sdpa_given_mask", "eager_given_mask"


def use_given_masks(transformer: nn.Module) -> None:
    """Let a transformer use every attention mask that it is given, without reading it; None means no padding.

    Configurations that are saved do not change.

    Args:
        transformer: A transformers network; changed in place. One that was told to use another attention than torch's
            `scaled_dot_product_attention` or its own is left as it is.
    """
    network: Any = transformer
    if network.config._attn_implementation == "sdpa":
        AttentionInterface.register(_SDPA, sdpa_attention_forward)
        AttentionMaskInterface.register(_SDPA, _sdpa_mask)
        network.set_attn_implementation(_SDPA)
    elif network.config._attn_implementation == "eager" and not network._can_set_attn_implementation():
        # MPNet has one attention, its own: the name chooses the mask alone.
        AttentionMaskInterface.register(_EAGER, _eager_mask)
        network.config._attn_implementation = _EAGER


def _sdpa_mask(**kwargs: Any) -> Tensor | None:
    mask: Tensor | None = sdpa_mask(**_kept(kwargs))
    return mask


def _eager_mask(**kwargs: Any) -> Tensor | None:
    mask: Tensor | None = eager_mask(**_kept(kwargs))
    return mask


def _kept(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a mask, which may be left out only where no padding mask was given."""
    if arguments.get("attention_mask") is None:
        return arguments
    return arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
