"""`NAME@DIMENSIONS`: a model whose vectors are truncated to their first values and scaled to length 1 again.

In models trained for it (Matryoshka, Kusupati et al. 2022, arXiv 2205.13147), the first values carry most of the
meaning. A Dense module with the first rows of the identity matrix, followed by Normalize, truncates the vectors: the
folder opens in sentence-transformers with the same vectors, and graph and fingerprint include the modules.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from es_sbert.bundle.appended_modules import ModelFolderCopy
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.config import cache_folder
from es_sbert.errors import UsageError
from es_sbert.filesystem import cached_folder

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
        )
    target = cache_folder() / "shortened" / f"{model.fingerprint}-{dimensions}"
    return cached_folder(target, partial(_write_folder, model, dimensions))


def _write_folder(model: SentenceModel, dimensions: int, target: Path) -> None:
    # Imported here, because this module is imported with every command.
    import numpy as np

    copy = ModelFolderCopy(model, target)
    copy.append_linear(np.eye(dimensions, copy.width, dtype=np.float32))
    copy.append_normalize()
