"""LoRA adapters of a transformer, merged into its weights (Hu et al. 2021, arXiv 2106.09685).

An adapter is a folder's adapter_config.json and adapter_model.safetensors, as peft writes them. The weights that it
changes are in the same folder, or in the folder of the model that adapter_config.json names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import load_file

from es_sbert.bundle.known_settings import ADAPTER, check_settings
from es_sbert.bundle.model_files import COPY_AGAIN, find_weight_files, read_header, read_json, read_tensor
from es_sbert.errors import BundleInvalid, ModelError, UnsupportedSetting

Floats = NDArray[np.float32]

CONFIG_FILE = "adapter_config.json"
_WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
# The pooler is not in every checkpoint, and has no effect on a sentence vector.
_UNUSED = "pooler."


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter.

    Attributes:
        folder: Its folder.
        settings: Its adapter_config.json.
        tensors: Maps names, without peft's prefix, to tensors.
    """

    folder: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, Floats]

    def merge(self, name: str, weight: Floats) -> Floats:
        """Apply the adapter's update to a tensor of the model; without an update, the tensor is returned unchanged.

        Args:
            name: Name of the tensor in the model, without the prefix of a checkpoint.
            weight: The tensor.
        """
        replaced = self.tensors.get(name)
        if replaced is not None:
            return replaced
        module = name.removesuffix(".weight")
        down, up = (self.tensors.get(f"{module}.lora_{part}.weight") for part in "AB")
        if down is None or up is None:
            return weight
        if up.shape[0] != weight.shape[0] or down.shape[1:] != weight.shape[1:]:
            raise BundleInvalid(
                f"the adapter in {self.folder} has an update of shape {(up.shape[0], *down.shape[1:])} for {name} of "
                f"shape {weight.shape}",
                "The adapter belongs to another model: check base_model_name_or_path in adapter_config.json.",
            )
        if up.shape[1] != len(down):
            raise BundleInvalid(f"the adapter in {self.folder} has two ranks for {name}", COPY_AGAIN)
        # Rank by rank: the last bits of a matrix product depend on the processor, and the weights are hashed.
        update = np.zeros_like(weight)
        for column, row in zip(up.T, down, strict=True):
            update += np.multiply.outer(column, row)
        return weight + np.float32(self._scale(module, len(down))) * update

    def _scale(self, module: str, rank: int) -> float:
        """Scaling factor of the update: alpha / rank, or alpha / √rank with rank stabilization (arXiv 2312.03732)."""
        alpha = self.settings.get("lora_alpha", 8)
        try:
            for pattern, value in (self.settings.get("alpha_pattern") or {}).items():
                if re.match(rf"(.*\.)?({pattern})$", module):
                    alpha = value
                    break
            return float(alpha) / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)
        except (TypeError, ValueError, AttributeError, re.error) as error:
            raise BundleInvalid(
                f"{self.folder / CONFIG_FILE} has a lora_alpha or alpha_pattern of the wrong type: {error}", COPY_AGAIN
            ) from error

    @property
    def changed_names(self) -> set[str]:
        """Names of the tensors that the adapter changes."""
        return {re.sub(r"\.lora_[AB]\.weight$", ".weight", name) for name in self.tensors}


def read_adapter(folder: Path, ignored: Collection[str] = ()) -> Adapter | None:
    """Read the adapter in a transformer's folder; None if there is none.

    Raises:
        BundleInvalid: the adapter is incomplete or broken.
        UnsupportedSetting: the adapter is not a plain LoRA adapter.
    """
    path, weights = folder / CONFIG_FILE, folder / _WEIGHTS_FILE
    if not path.exists():
        return None
    settings = read_json(path)
    check_settings(path, settings, ADAPTER, ignored)
    if not weights.exists():
        raise BundleInvalid(f"{folder} has {CONFIG_FILE} but no {_WEIGHTS_FILE}", COPY_AGAIN)
    read_header(weights)
    try:
        tensors = {name: np.asarray(value, np.float32) for name, value in load_file(weights).items()}
    except (OSError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise BundleInvalid(f"{weights} cannot be read: {error}", "Save the adapter in float32 or float16.") from error
    others = [name for name in tensors if "lora_" in name and not re.search(r"\.lora_[AB]\.weight$", name)]
    if others or not tensors:
        raise UnsupportedSetting(
            f"{weights} has {'the tensor ' + others[0] if others else 'no tensors'}, which es-sbert cannot merge",
            "Merge it with peft and save the model: model[0].model.merge_and_unload().",
        )
    names = {name: name.removeprefix(_PREFIX).replace(".base_layer.", ".") for name in tensors}
    return Adapter(folder, settings, {short: tensors[name] for name, short in names.items()})


def find_base_folder(folder: Path, adapter: Adapter, find_model: Callable[[str], Path]) -> Path:
    """Find the folder with the weights that an adapter changes.

    Args:
        folder: Folder of the transformer.
        adapter: Its adapter.
        find_model: Finds the folder of a model by its name.

    Raises:
        BundleInvalid: adapter_config.json does not name the base model, or the base model is not found.
    """
    if (folder / "model.safetensors").exists() or (folder / "model.safetensors.index.json").exists():
        return folder
    name = adapter.settings.get("base_model_name_or_path")
    if not name or not isinstance(name, str):
        raise BundleInvalid(
            f"{folder} has an adapter but no weights, and {CONFIG_FILE} does not name the base model",
            "Set base_model_name_or_path to its name or folder.",
        )
    try:
        return find_model(name)
    except ModelError as error:
        raise BundleInvalid(
            f"{folder} has an adapter of {name} but no weights: {error.message}",
            "Download that model, or set base_model_name_or_path in adapter_config.json to its folder.",
        ) from error


def merge_weights(folder: Path, adapter: Adapter) -> dict[str, Floats]:
    """Compute the tensors that an adapter changes, as float32, by their full names in the weights.

    Args:
        folder: Folder with the weights.

    Raises:
        BundleInvalid: a tensor that the adapter changes is missing in the weights, or has a different shape.
    """
    places = {name: (file, entry) for file in find_weight_files(folder) for name, entry in read_header(file).items()}
    merged = {}
    for name in sorted(adapter.changed_names):
        full = [each for each in places if each == name or each.endswith(f".{name}")]
        if not full and name.startswith(_UNUSED):
            continue
        if len(full) != 1:
            raise BundleInvalid(
                f"the adapter in {adapter.folder} changes {name}, for which {folder} has {len(full)} tensors instead "
                "of one",
                "The adapter belongs to another model: check base_model_name_or_path in adapter_config.json.",
            )
        file, entry = places[full[0]]
        merged[full[0]] = adapter.merge(name, read_tensor(file, full[0], entry))
    return merged


def write_merged_weights(folder: Path, adapter: Adapter, output: Path) -> None:
    """Write the weights of a model with its adapter merged into them, as one safetensors file.

    Tensors that the adapter does not change keep their type and their bytes.

    Args:
        folder: Folder with the weights.
        output: The file.
    """
    merged = merge_weights(folder, adapter)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[tuple[Path, int, int] | Floats] = []
    position = 0
    for file in find_weight_files(folder):
        for name, entry in read_header(file).items():
            start, end = entry["data_offsets"]
            weight = merged.get(name)
            parts.append((file, start, end) if weight is None else weight)
            size = end - start if weight is None else weight.nbytes
            kept = {"dtype": entry["dtype"], "shape": entry["shape"]} if weight is None else _described(weight)
            header[name] = {**kept, "data_offsets": [position, position + size]}
            position += size
    # Not with safetensors' own functions: their interface has changed, and the one for numpy lacks bfloat16.
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with output.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        for part in parts:
            if isinstance(part, tuple):
                file, start, end = part
                with file.open("rb") as source:
                    source.seek(start)
                    stream.write(source.read(end - start))
            else:
                stream.write(part.tobytes())


def _described(weight: Floats) -> dict[str, Any]:
    return {"dtype": "F32", "shape": list(weight.shape)}
