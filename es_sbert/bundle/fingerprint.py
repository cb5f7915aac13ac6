"""Compute the fingerprint of a model.

Two models with the same fingerprint produce the same vectors, so their vectors can share a field.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from es_sbert.bundle.file_hashes import remembered_hash
from es_sbert.bundle.model_files import read_header

# Architectures with known settings, and the keys of their config.json that change the output.
KNOWN_ARCHITECTURES = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet"})
_CONFIG_KEYS = (
    "model_type", "hidden_act", "activation", "layer_norm_eps", "num_attention_heads", "n_heads",
    "position_embedding_type", "relative_attention_num_buckets", "pad_token_id",
)  # fmt: skip

# Settings that make even these architectures different networks, unless they are false or empty.
UNSUPPORTED_CONFIG_KEYS = ("is_decoder", "add_cross_attention", "pruned_heads", "quantization_config")

_LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layers")
_LAYER_PATTERN = re.compile(r"\blayer\.(\d+)\.")

# For any other architecture, all settings count except those that no network computes with (origin, training).
_IGNORED_CONFIG_KEYS = frozenset({
    "_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range",
    "initializer_factor", "init", "init_range", "init_std", "id2label", "label2id", "problem_type",
    "gradient_checkpointing", "_attn_implementation", "_attn_implementation_autoset", "sentence_transformers",
    "sbert_ce_default_activation_function",
})  # fmt: skip


def fingerprint_settings(config: dict[str, Any], weights: Sequence[Path]) -> dict[str, Any]:
    """Return the settings in config.json that affect a transformer's output and therefore belong in its fingerprint.

    Args:
        config: Its config.json.
        weights: Its safetensors files.
    """
    if config.get("model_type") not in KNOWN_ARCHITECTURES:
        return {key: value for key, value in config.items() if key not in _IGNORED_CONFIG_KEYS and "dropout" not in key}
    settings = {key: config[key] for key in _CONFIG_KEYS if key in config}
    settings |= {key: config[key] for key in UNSUPPORTED_CONFIG_KEYS if config.get(key)}
    held = {int(found[1]) for file in weights for name in read_header(file) if (found := _LAYER_PATTERN.search(name))}
    layers = next((config[key] for key in _LAYER_COUNT_KEYS if key in config), None)
    # A config.json may declare fewer layers than the weights contain.
    return settings if layers == len(held) else {**settings, "layers": layers}


def hash_tensors(paths: Sequence[Path]) -> str:
    """Compute the SHA-256 over name, type, shape and bytes of all tensors, sorted by name.

    The hash does not depend on the order of the weights or on their distribution over files. It is cached for as long
    as the files do not change.

    Raises:
        BundleInvalid: a file is broken.
    """
    return remembered_hash("tensors", paths, lambda: _hash_tensors(paths))


def _hash_tensors(paths: Sequence[Path]) -> str:
    entries = [(name, path, entry) for path in paths for name, entry in read_header(path).items()]
    digest = hashlib.sha256()
    with ExitStack() as stack:
        maps = {}
        for path in paths:
            file = stack.enter_context(path.open("rb"))
            maps[path] = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for name, path, entry in sorted(entries, key=lambda item: item[0]):
            digest.update(f"{name}\0{entry['dtype']}\0{entry['shape']}\0".encode())
            with memoryview(maps[path]) as view, view[slice(*entry["data_offsets"])] as tensor:
                digest.update(tensor)
    return digest.hexdigest()


def compute_fingerprint(
    weights: str, file: Path, read_tokenizer: Callable[[], dict[str, Any]], settings: dict[str, Any]
) -> str:
    """Hash everything that affects a vector, to 32 hex digits (128 bits).

    The hash is cached for as long as tokenizer.json does not change.

    Args:
        weights: Hash of the transformer's and the Dense modules' tensors.
        file: The tokenizer.json, which may not exist.
        read_tokenizer: Reads it, or builds it from other files.
        settings: Transformer configuration that changes the result, pooling, Dense modules, normalization,
            maximum tokens, prompts.
    """

    def compute() -> str:
        tokenizer = read_tokenizer()
        # These two are settings of a run, not of the tokenizer; exporters rewrite them.
        stable = {key: tokenizer[key] for key in tokenizer.keys() - {"padding", "truncation"}}
        return _hash_json([weights, stable, settings])

    return remembered_hash(f"fingerprint {_hash_json([weights, settings])}", [file], compute)[:32]


def _hash_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
