"""Attention masks without a GPU synchronization.

transformers evaluates `mask.all()` in every forward pass to drop a mask that hides nothing. Reading that value makes
the host wait for the GPU. Here the caller states whether a batch is padded, which is known from the text lengths, and
a given mask is always applied.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

_SDPA, _EAGER = "sdpa_given_mask", "eager_given_mask"


def skip_mask_check(transformer: nn.Module) -> None:
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
    mask: Tensor | None = sdpa_mask(**_keep_mask(kwargs))
    return mask


def _eager_mask(**kwargs: Any) -> Tensor | None:
    mask: Tensor | None = eager_mask(**_keep_mask(kwargs))
    return mask


def _keep_mask(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a mask, which may be left out only where no padding mask was given."""
    if arguments.get("attention_mask") is None:
        return arguments
    return arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
