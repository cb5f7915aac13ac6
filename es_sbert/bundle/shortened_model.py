"""`NAME@DIMENSIONS`: a model whose vectors are cut to their first values and scaled to length 1 again.

Of models that were trained for it (Matryoshka, Kusupati et al. 2022, arXiv 2205.13147), the first values hold most of
the meaning. The cut is a Dense module with the first rows of the identity matrix, followed by Normalize: the folder
opens in sentence-transformers with the same vectors, the graph computes the cut, and the fingerprint covers it.
"""

from __future__ import annotations

import re
import shutil
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
from es_sbert.errors import OutputError, UsageError
from es_sbert.filesystem import file_lock

_SHORT_NAME = re.compile(r"(?P<name>.+)@(?P<dimensions>[1-9]\d{0,8})")
# Graphs of the whole vector, and what says how they were made.
_LEFT_OUT = ("*.onnx", "*.onnx.data", "es_sbert.json", ".git", "onnx", "openvino")


def shortened_name(name: str, dimensions: int) -> str:
    """The name of a model with so many dimensions."""
    return f"{name}@{dimensions}"


def split_shortened_name(name: str) -> tuple[str, int] | None:
    """Name and dimensions of `NAME@DIMENSIONS`; None for any other name."""
    found = _SHORT_NAME.fullmatch(name)
    return None if found is None else (found["name"], int(found["dimensions"]))


def shortened_model_folder(folder: Path, dimensions: int, name: str | None = None) -> Path:
    """The folder of a model with fewer dimensions, in the cache; it is written at the first call.

    Args:
        folder: The folder of the model.
        dimensions: How many values to keep.
        name: Of the model, for messages.

    Raises:
        UsageError: the model has no more dimensions than that.
        ModelError: the folder is not a model.
        OutputError: the cache cannot be written.
    """
    model = read_sentence_model(folder, name)
    if dimensions >= model.dimensions:
        raise UsageError(
            f"{model.name} has {model.dimensions} dimensions, so it cannot be cut to {dimensions}",
            f"Choose fewer than {model.dimensions}, or leave the number out.",
        )
    target = cache_folder() / "shortened" / f"{model.fingerprint}-{dimensions}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(target.with_suffix(".lock"), lambda: None):
            if not target.is_dir():
                partial = target.with_suffix(".partial")
                shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: this one holds the lock
                _write_folder(model, dimensions, partial)
                partial.rename(target)
    except OSError as error:
        raise OutputError(
            f"{target.parent} cannot be written: {error.strerror}", "Free space there, or set ES_SBERT_CACHE."
        ) from error
    return target


def _write_folder(model: SentenceModel, dimensions: int, target: Path) -> None:
    shutil.copytree(model.folder, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    if (target / "modules.json").exists():
        entries = read_module_entries(target)
    else:
        entries = [module_entry("Transformer", "")]
        _append(entries, target, "Pooling", {
            "embedding_dimension": model.dimensions // len(model.pooling),
            "pooling_mode": [mode.value for mode in model.pooling],
        })  # fmt: skip
    settings = target / "config_sentence_transformers.json"
    if "truncate_dim" in (stated := read_optional_json(settings)):
        write_json(settings, {key: value for key, value in stated.items() if key != "truncate_dim"})
    write_module_entries(target, entries)
    width = read_sentence_model(target).dimensions  # without truncate_dim
    cut = _append(entries, target, "Dense", {
        "in_features": width,
        "out_features": dimensions,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    })  # fmt: skip
    # Imported here, because this module is imported with every command.
    import numpy as np
    from safetensors.numpy import save_file

    save_file({"linear.weight": np.eye(dimensions, width, dtype=np.float32)}, cut / "model.safetensors")
    _append(entries, target, "Normalize", None)
    write_module_entries(target, entries)


def _append(entries: list[dict[str, object]], target: Path, kind: str, config: dict[str, object] | None) -> Path:
    """Add a module to the list, and write its settings; returns its folder."""
    path = f"{len(entries)}_{kind}"
    entries.append(module_entry(kind, path))
    (target / path).mkdir()
    if config is not None:
        write_json(target / path / "config.json", config)
    return target / path
