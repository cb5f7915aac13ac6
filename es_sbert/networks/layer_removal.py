"""Remove layers of a transformer, to start a smaller student from the rest."""

from __future__ import annotations

from typing import Any

from torch import nn

from es_sbert.errors import UnsupportedArchitecture, UsageError

# Architectures with identical layers. In others, such as ModernBERT, the attention of a layer depends on its number.
_ALIKE = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "electra"})


def evenly_spaced_layers(layers: int, kept: int) -> tuple[int, ...]:
    """Return the numbers of the layers to keep, from 0, evenly spaced; the last one is among them.

    Of 12 layers, for example, the 3 to keep are 3, 7 and 11, as in paraphrase-MiniLM-L3-v2.

    Args:
        layers: Number of layers.
        kept: Number of layers to keep, from 1 to `layers`.
    """
    return tuple((number + 1) * layers // kept - 1 for number in range(kept))


def remove_layers(transformer: nn.Module, kept: int, name: str) -> None:
    """Remove all layers except those that `evenly_spaced_layers` chooses.

    Args:
        transformer: A transformers encoder; changed in place.
        kept: Number of layers to keep.
        name: Name of the model, for messages.

    Raises:
        UnsupportedArchitecture: the layers of this architecture are not identical.
        UsageError: `kept` is less than 1, or not less than the number of layers.
    """
    network: Any = transformer
    config = getattr(network, "config", None)
    architecture = getattr(config, "model_type", "static")
    if config is None or architecture not in _ALIKE:
        raise UnsupportedArchitecture(
            f"{name} has the architecture {architecture}, from which es-sbert cannot remove layers",
            f"Choose a model with one of these architectures: {', '.join(sorted(_ALIKE))}.",
        )
    layers = config.num_hidden_layers
    if not 1 <= kept < layers:
        possible = "no smaller number" if layers == 1 else "1" if layers == 2 else f"1 to {layers - 1}"
        raise UsageError(f"{name} has {layers} layers, so {kept} cannot be kept", f"Keep {possible}.")
    (place,) = [
        place
        for place, module in network.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == layers and "." in place
    ]
    parent, _, attribute = place.rpartition(".")
    owner = network.get_submodule(parent)
    stack = getattr(owner, attribute)
    setattr(owner, attribute, nn.ModuleList([stack[number] for number in evenly_spaced_layers(layers, kept)]))
    config.num_hidden_layers = kept
