"""Read a bare transformers folder, which says nothing about pooling, as a sentence model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from es_sbert.bundle.checkpoint import longest_input
from es_sbert.bundle.json_files import read_json
from es_sbert.bundle.model import Pooling, SentenceModel
from es_sbert.bundle.safetensors import find_weights
from es_sbert.errors import BundleInvalid

# Where configurations keep the width of a token vector.
_WIDTHS = ("hidden_size", "dim", "d_model")


def read_bare_transformer(folder: Path, name: str, pooling: Sequence[Pooling] = (Pooling.MEAN,)) -> SentenceModel:
    """A transformers folder (config.json, safetensors, tokenizer.json) with a pooling of the caller's choice.

    The fingerprint is left empty: such a model is a start for training, never one that vectors are stored of.

    Args:
        folder: The folder.
        name: Name for people.
        pooling: Pooling modes; several are concatenated.

    Raises:
        BundleInvalid: a file is missing or broken, or the weights are pickled.
    """
    config = read_json(folder / "config.json")
    if not (folder / "tokenizer.json").exists():
        raise BundleInvalid(
            f"{folder} has no tokenizer.json",
            "Write one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        )
    find_weights(folder)
    width = next((int(config[key]) for key in _WIDTHS if key in config), None)
    if width is None:
        raise BundleInvalid(
            f"{folder / 'config.json'} does not say how wide a token vector is ({', '.join(_WIDTHS)})",
            "Give the folder of a transformer encoder.",
        )
    tokenizer = read_json(folder / "tokenizer.json")
    return SentenceModel(
        folder=folder,
        name=name,
        transformer="",
        architecture=str(config.get("model_type", "unknown")),
        transformer_config=config,
        pooling=tuple(pooling),
        dense=(),
        normalize=False,
        max_tokens=longest_input(folder, config, {}, tokenizer),
        dimensions=width * len(pooling),
        prompts={},
        default_prompt=None,
        lowercase=False,
        fingerprint="",
    )
