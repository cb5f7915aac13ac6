"""`NAME@DIMENSIONS`: a model whose vectors are truncated to their first values and scaled to length 1 again.

In models trained for it (Matryoshka, Kusupati et al. 2022, arXiv 2205.13147), the first values carry most of the
meaning. A Dense module with the first rows of the identity matrix, followed by Normalize, truncates the vectors: the
folder opens in sentence-transformers with the same vectors, and graph and fingerprint include the modules.
"""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

from es_sbert.bundle.model_files import (
    module_entry,
    read_module_entries,
    read_optional_json,
    write_json,
    write_module_entries,
)
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.config import cache_folder
from es_sbert.errors import UsageError
from es_sbert.filesystem import cached_folder

# Not copied: graphs of the model without the new modules, and the files that describe their export.
_LEFT_OUT = ("*.onnx", "*.onnx.data", "es_sbert.json", ".git", "onnx", "openvino")

_SHORT_NAME = re.compile(r"(?P<name>.+)@(?P<dimensions>[1-9]\d{0,8})")


def shortened_name(name: str, dimensions: int) -> str:
    """Name of a model that is truncated to this many dimensions."""
    return f"{name}@{dimensions}"


def split_shortened_name(name: str) -> tuple[str, int] | None:
    """Name and dimensions of `NAME@DIMENSIONS`; None for any other name."""
    found = _SHORT_NAME.fullmatch(name)
    return None if found is None else (found["name"], int(found["dimensions"]))


def whole_name(name: str) -> str:
    """`NAME` of `NAME@DIMENSIONS`; any other name unchanged."""
    found = split_shortened_name(name)
    return name if found is None else found[0]


def shortened_model_folder(folder: Path, dimensions: int, name: str | None = None) -> Path:
    """Return the folder, in the cache, of a model with fewer dimensions. The first call writes it.

    Args:
        folder: The folder of the model.
        dimensions: Number of values to keep.
        name: Name of the model, for messages.

    Raises:
        UsageError: the model does not have more than `dimensions` dimensions.
        ModelError: the folder is not a model.
        OutputError: the cache cannot be written.
    """
    model = read_sentence_model(folder, name)
    if dimensions >= model.dimensions:
        raise UsageError(
            f"{model.name} has {model.dimensions} dimensions, so it cannot be truncated to {dimensions}",
            f"Choose fewer than {model.dimensions}, or leave the number out.",
        ).about("model", f"{model.name}@{dimensions}")
    target = cache_folder() / "shortened" / f"{model.fingerprint}-{dimensions}"
    return cached_folder(target, partial(_write_folder, model, dimensions))


def _write_folder(model: SentenceModel, dimensions: int, target: Path) -> None:
    """Write a copy of a model's folder, without its `truncate_dim`, with a Dense module and Normalize at the end."""
    # Imported here, because this module is imported with every command.
    import numpy as np
    from safetensors.numpy import save_file

    shutil.copytree(model.folder, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    entries: list[dict[str, object]] = []

    def append(kind: str, config: dict[str, object] | None = None) -> Path:
        folder = target / f"{len(entries)}_{kind}"
        entries.append(module_entry(kind, folder.name))
        folder.mkdir()
        if config is not None:
            write_json(folder / "config.json", config)
        return folder

    if (target / "modules.json").exists():
        entries.extend(read_module_entries(target))
    else:
        entries.append(module_entry("Transformer", ""))
        width = model.dimensions // len(model.pooling)
        append("Pooling", {"embedding_dimension": width, "pooling_mode": [mode.value for mode in model.pooling]})
    settings = target / "config_sentence_transformers.json"
    if "truncate_dim" in (stated := read_optional_json(settings)):
        write_json(settings, {key: value for key, value in stated.items() if key != "truncate_dim"})
    write_module_entries(target, entries)
    # Dimensions of the model's own modules, which truncate_dim may have made fewer.
    width = read_sentence_model(target).dimensions
    dense = append("Dense", {
        "in_features": width,
        "out_features": dimensions,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    })  # fmt: skip
    save_file({"linear.weight": np.eye(dimensions, width, dtype=np.float32)}, dense / "model.safetensors")
    append("Normalize")
    write_module_entries(target, entries)
