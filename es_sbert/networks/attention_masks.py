"""Let transformers use attention masks without reading them, so that the host need not wait for the GPU.

This relies on two private names of transformers, for which there are no public ones: `config._attn_implementation` is
the attention that a network uses, and `_can_set_attn_implementation()` shows whether it can use a different one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from es_sbert.installation import unsupported_version

_SDPA, _EAGER = "sdpa_given_mask", "eager_given_mask"


def skip_mask_check(transformer: nn.Module) -> None:
    """Let a transformer use every attention mask that it is given, without reading it; None means no padding.

    Saved configurations do not change.

    Args:
        transformer: A transformers network; changed in place, unless it is configured for an attention other than its
            own or torch's `scaled_dot_product_attention`.

    Raises:
        UsageError: transformers lacks a name that this needs.
    """
    network: Any = transformer
    try:
        attention, can_change = network.config._attn_implementation, network._can_set_attn_implementation()
    except AttributeError as error:
        raise unsupported_version("transformers", str(error)) from error
    if attention == "sdpa":
        AttentionInterface.register(_SDPA, sdpa_attention_forward)
        AttentionMaskInterface.register(_SDPA, _without_skips(sdpa_mask))
        network.set_attn_implementation(_SDPA)
    elif attention == "eager" and not can_change:
        # MPNet has only its own attention: the name chooses only the mask.
        AttentionMaskInterface.register(_EAGER, _without_skips(eager_mask))
        network.config._attn_implementation = _EAGER


def _without_skips(make_mask: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes masks, and omits one only if no padding mask was given."""

    def make(**arguments: Any) -> Any:
        if arguments.get("attention_mask") is not None:
            arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return make_mask(**arguments)

    return make
