"""Tensors of safetensors files by name, converted to float32 one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from es_sbert.bundle.safetensors import find_weights, read_header
from es_sbert.errors import BundleInvalid
from es_sbert.exporters.transformer import Floats, Linear, Norm

_HEADER_LENGTH_BYTES = 8
# numpy has no bfloat16: its bits are the upper half of a float32's, so it is read as integers.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

# Checkpoints converted from BERT's first, TensorFlow, release name the parameters of their norms so.
_OLD_NORM_NAMES = ("gamma", "beta")


class Tensors:
    """The tensors of a module's folder, spread over one or several safetensors files.

    Args:
        folder: Folder with `model.safetensors` or its shards.
        prefix: Put in front of every name asked for (`bert.`, `model.`, …).

    Raises:
        BundleInvalid: there are no weights, or only pickled ones.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self.folder = folder
        self._prefix = prefix
        self._places = {
            name: (file, entry) for file in find_weights(folder) for name, entry in read_header(file).items()
        }

    def with_prefix_of(self, suffix: str) -> Tensors:
        """The same tensors, asked for relative to the one name that ends in `suffix`.

        Which prefix a checkpoint carries depends on the class that saved it: none, `bert.`, `model.`, ….

        Raises:
            BundleInvalid: no name ends so, or several do.
        """
        found = [name for name in self._places if name == suffix or name.endswith("." + suffix)]
        if len(found) != 1:
            raise BundleInvalid(
                f"{self.folder} holds {len(found)} tensors called {suffix}, expected one",
                "The weights are not those of the architecture that config.json names: copy the folder again.",
            )
        return Tensors(self.folder, found[0].removesuffix(suffix))

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> Floats:
        """One tensor as float32.

        Args:
            name: Its name without the prefix.
            shape: The shape it must have, where that is known.

        Raises:
            BundleInvalid: it is missing, of another shape, or not of a floating-point type.
        """
        full = self._prefix + name
        if full not in self._places:
            raise BundleInvalid(
                f"the weights in {self.folder} lack the tensor {full}",
                "The download is incomplete or the weights belong to another architecture: copy the folder again.",
            )
        file, entry = self._places[full]
        if entry["dtype"] not in _DTYPES:
            raise BundleInvalid(
                f"the tensor {full} in {self.folder} is of type {entry['dtype']}, not floating-point",
                "Give the model as it was before it was quantised; es-sbert quantises it itself.",
            )
        actual = tuple(entry["shape"])
        if shape is not None and actual != shape:
            raise BundleInvalid(
                f"the tensor {full} in {self.folder} has shape {actual}, expected {shape}",
                "config.json and the weights do not belong together: copy the folder again.",
            )
        with file.open("rb") as stream:
            base = _HEADER_LENGTH_BYTES + int.from_bytes(stream.read(_HEADER_LENGTH_BYTES), "little")
            start, end = entry["data_offsets"]
            stream.seek(base + start)
            raw = stream.read(end - start)
        dtype = _DTYPES[entry["dtype"]]
        if len(raw) != dtype.itemsize * int(np.prod(actual)):
            raise BundleInvalid(f"{file} is broken at the tensor {full}", "Copy or download the model folder again.")
        values = np.frombuffer(raw, dtype).reshape(actual)
        if entry["dtype"] == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        floats: Floats = values.astype(np.float32, copy=False)
        return floats

    def linear(self, name: str, in_features: int, out_features: int, *, bias: bool = True) -> Linear:
        """`name.weight`, stored as (out_features, in_features), and `name.bias` (zeros without one)."""
        weight = self.get(f"{name}.weight", (out_features, in_features)).T
        return Linear(weight, self.get(f"{name}.bias", (out_features,)) if bias else np.zeros(out_features, np.float32))

    def norm(self, name: str, size: int, epsilon: float) -> Norm:
        """`name.weight` and `name.bias` of a layer normalisation, or `gamma` and `beta` in old checkpoints."""
        old = f"{self._prefix}{name}.gamma" in self._places
        weight, bias = _OLD_NORM_NAMES if old else ("weight", "bias")
        return Norm(self.get(f"{name}.{weight}", (size,)), self.get(f"{name}.{bias}", (size,)), epsilon)
