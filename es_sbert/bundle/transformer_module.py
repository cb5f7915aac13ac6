"""Read the Transformer of a model folder: its settings, weights, adapter and tokenizer."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from es_sbert.bundle.adapter import Adapter, find_base_folder, merge_weights, read_adapter
from es_sbert.bundle.fingerprint import fingerprint_settings, hash_tensors
from es_sbert.bundle.model_files import find_weight_files
from es_sbert.bundle.module_list import plain_pooling
from es_sbert.bundle.modules import Feature, InputModule
from es_sbert.bundle.tokenizer_settings import read_tokenizer_json, resolve_tokenizer
from es_sbert.bundle.transformer_settings import (
    check_truncation,
    input_limits,
    read_sentence_bert_config,
    read_tokenizer_settings,
    read_transformer_config,
)
from es_sbert.errors import UnsupportedSetting


def read_transformer(folder: Path, transformer: str, ignored: Collection[str], *, is_plain: bool) -> InputModule:
    """Read the Transformer in a folder of a model folder.

    Args:
        folder: The model folder.
        transformer: The Transformer's folder, relative to it.
        ignored: Unknown settings to accept.
        is_plain: Whether the model folder has no modules.json, so that sentence-transformers' defaults for such a
            folder apply.

    Raises:
        BundleInvalid: a file is missing or broken, or weights are pickled.
        UnsupportedSetting: a setting that may change vectors and that es-sbert does not apply.
    """
    place = folder / transformer
    # Like sentence-transformers, read sentence_bert_config.json only if modules.json exists.
    sbert = read_sentence_bert_config(place, ignored, is_plain=is_plain)
    adapter = read_adapter(place, ignored)
    base = None if adapter is None else _find_base_folder(place, adapter)
    config = read_transformer_config(
        place if base is None or (place / "config.json").exists() else base, sbert, ignored
    )
    tokenizer_settings = read_tokenizer_settings(place, sbert, ignored)
    if config.get("model_type") in ("bert", "distilbert") and tokenizer_settings.get("padding_side") == "left":
        raise UnsupportedSetting(
            f"{place / 'tokenizer_config.json'} pads on the left, which moves the positions of this architecture: "
            "vectors would depend on the batch",
            "Set padding_side to right.",
        )
    tokenizer = read_tokenizer_json(place, tokenizer_settings, config)
    check_truncation(place, tokenizer_settings, tokenizer)
    resolved = resolve_tokenizer(place, tokenizer, tokenizer_settings, config)
    max_tokens, by_kind = input_limits(place, config, sbert, tokenizer)
    files = find_weight_files(base or place)
    return InputModule(
        settings={
            "has_adapter": adapter is not None,
            "base_folder": None if base == place else base,
            "architecture": str(config.get("model_type", "unknown")),
            "transformer_config": config,
            "hidden_state": sbert["hidden_state"],
            "max_tokens": max_tokens,
            "max_tokens_by_kind": by_kind,
            "lowercase": sbert.get("do_lower_case", False),
            "tokenizer_class": resolved.class_name,
            "tokenizer_changes": resolved.changes,
            "tokenizer_is_known": resolved.is_known,
            "tokenizer_arguments": sbert["processor_kwargs"],
            "uses_token_types": resolved.uses_token_types,
        },
        output=plain_pooling(folder, config) if is_plain else Feature(width=None),
        tokenizer=tokenizer,
        weights_hash=hash_tensors(files, None if adapter is None else merge_weights(base or place, adapter)),
        fingerprint_fields=("lowercase",),
        fingerprint_settings={"config": fingerprint_settings(config, files)},
        has_all_layers=bool(config.get("output_hidden_states")),
    )


def _find_base_folder(folder: Path, adapter: Adapter) -> Path:
    # Imported here to avoid a circular import.
    from es_sbert.bundle.model_lookup import resolve_model

    return find_base_folder(folder, adapter, partial(resolve_model, organization=""))
