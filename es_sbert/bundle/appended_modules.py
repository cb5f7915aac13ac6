"""Copy a model's folder and append modules: a linear layer, or normalization to length 1.

The copy opens in sentence-transformers with the same vectors, the graph computes the modules, and the fingerprint
covers them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from es_sbert.bundle.model_files import (
    module_entry,
    read_module_entries,
    read_optional_json,
    write_json,
    write_module_entries,
)
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Not copied: graphs of the model without the new modules, and the files that describe their export.
_LEFT_OUT = ("*.onnx", "*.onnx.data", "es_sbert.json", ".git", "onnx", "openvino")


class ModelFolderCopy:
    """A copy of a model's folder, without its `truncate_dim`.

    Args:
        model: The model.
        target: The new folder, which must not exist.

    Attributes:
        folder: The new folder.
        width: Dimensions of the vectors of the model's own modules, before `truncate_dim`.
        is_normalized: Whether the last of the model's own modules is a Normalize.

    Raises:
        ModelError: the folder is not a model.
        OSError: the copy cannot be written.
    """

    def __init__(self, model: SentenceModel, target: Path) -> None:
        self.folder = target
        shutil.copytree(model.folder, target, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        if (target / "modules.json").exists():
            self._entries = read_module_entries(target)
        else:
            self._entries = [module_entry("Transformer", "")]
            self._append("Pooling", {
                "embedding_dimension": model.dimensions // len(model.pooling),
                "pooling_mode": [mode.value for mode in model.pooling],
            })  # fmt: skip
        settings = target / "config_sentence_transformers.json"
        if "truncate_dim" in (stated := read_optional_json(settings)):
            write_json(settings, {key: value for key, value in stated.items() if key != "truncate_dim"})
        write_module_entries(self.folder, self._entries)
        self.width = read_sentence_model(target).dimensions
        self.is_normalized = str(self._entries[-1]["type"]).endswith("Normalize")

    def append_linear(self, weights: NDArray[np.float32]) -> None:
        """Multiply vectors by a matrix.

        Args:
            weights: *Shape:* ``(dimensions after, dimensions before)``.
        """
        # Imported here, because this module is imported with every command.
        from safetensors.numpy import save_file

        after, before = weights.shape
        folder = self._append("Dense", {
            "in_features": before,
            "out_features": after,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        })  # fmt: skip
        save_file({"linear.weight": weights}, folder / "model.safetensors")
        write_module_entries(self.folder, self._entries)

    def append_normalize(self) -> None:
        """Scale vectors to length 1."""
        self._append("Normalize", None)
        write_module_entries(self.folder, self._entries)

    def _append(self, kind: str, config: dict[str, object] | None) -> Path:
        """Add a module to the list and write its settings; returns the module's folder."""
        path = f"{len(self._entries)}_{kind}"
        self._entries.append(module_entry(kind, path))
        (self.folder / path).mkdir()
        if config is not None:
            write_json(self.folder / path / "config.json", config)
        return self.folder / path
