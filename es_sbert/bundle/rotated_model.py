"""Write a model with rotated vectors: cosines do not change, and the first values can carry the most information.

`es_sbert/analysis/dimension_reduction.py` finds the rotation.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from es_sbert.bundle.appended_modules import ModelFolderCopy
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.errors import OutputError
from es_sbert.filesystem import is_vacant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that is not empty.

    Raises:
        OutputError: the folder is not empty, or is a file.
    """
    try:
        taken = not is_vacant(folder)
    except OSError as error:
        raise OutputError(f"{folder} cannot be read: {error.strerror}", "Check its permissions.") from error
    if taken:
        raise OutputError(f"{folder} exists and is not empty", "Choose a new folder.")


def write_rotated_model(model: SentenceModel, axes: NDArray[np.float32], folder: Path) -> SentenceModel:
    """Write a copy of a model whose vectors are multiplied by a matrix, and read it again.

    Args:
        model: The model.
        axes: Orthonormal rows. *Shape:* ``(dimensions, dimensions)``.
        folder: The new folder.

    Raises:
        OutputError: the folder is not empty, or cannot be written.
        ModelError: no module can be added to the model.
    """
    import numpy as np

    check_new_folder(folder)
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        copy = ModelFolderCopy(model, partial)
        # A model with truncate_dim computes more values than it returns.
        copy.append_linear(np.ascontiguousarray(axes @ np.eye(model.dimensions, copy.width, dtype=np.float32)))
        if copy.is_normalized:
            copy.append_normalize()
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written: {error.strerror}", "Free disk space, or choose another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return read_sentence_model(folder)
