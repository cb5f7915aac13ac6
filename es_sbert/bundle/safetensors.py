"""Headers and hashes of safetensors files, read without loading the tensors.

Format: https://github.com/huggingface/safetensors#format (8 bytes little-endian header length, JSON header,
raw tensor bytes).
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from es_sbert.errors import BundleInvalid

_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the format's own limit
_REMEDY = "Copy or download the model folder again."


def find_weights(folder: Path) -> list[Path]:
    """The safetensors files of a module's folder, one or several shards, sorted by name.

    Raises:
        BundleInvalid: there are none, or only a pickle, which runs its author's code when it is opened.
    """
    single = folder / "model.safetensors"
    files = [single] if single.exists() else sorted(folder.glob("model-*.safetensors"))
    if files:
        return files
    if (folder / "pytorch_model.bin").exists():
        raise BundleInvalid(
            f"{folder} holds its weights as a pickle (pytorch_model.bin), which can run code when it is opened",
            "Where you trust it, save it again as safetensors: SentenceTransformer(...).save(folder).",
        )
    raise BundleInvalid(f"{folder} holds no model.safetensors", "Copy or download the model folder again.")


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name → `{"dtype", "shape", "data_offsets"}` of a safetensors file.

    Raises:
        BundleInvalid: the file is missing, cut short or no safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _MAX_HEADER):
                raise BundleInvalid(f"{path} is cut short or is no safetensors file", _REMEDY)
            header = json.loads(file.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    except OSError as error:
        raise BundleInvalid(f"{path} cannot be read: {error.strerror}", _REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BundleInvalid(f"{path} has no valid safetensors header", _REMEDY) from error
    if _LENGTH_BYTES + length + end != size:
        raise BundleInvalid(f"{path} has {size} bytes, its header says {_LENGTH_BYTES + length + end}", _REMEDY)
    return tensors


def hash_tensors(paths: Sequence[Path]) -> str:
    """SHA-256 over name, type, shape and bytes of all tensors, sorted by name.

    The same weights give the same hash however they are ordered or spread over files.

    Raises:
        BundleInvalid: a file is broken.
    """
    entries = [(name, path, entry) for path in paths for name, entry in read_header(path).items()]
    digest = hashlib.sha256()
    maps: dict[Path, mmap.mmap] = {}
    try:
        for path in {path for _, path, _ in entries}:
            with path.open("rb") as file:
                maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for name, path, entry in sorted(entries, key=lambda item: item[0]):
            digest.update(f"{name}\0{entry['dtype']}\0{entry['shape']}\0".encode())
            base = _LENGTH_BYTES + int.from_bytes(maps[path][:_LENGTH_BYTES], "little")
            start, end = entry["data_offsets"]
            with memoryview(maps[path]) as view, view[base + start : base + end] as tensor:
                digest.update(tensor)
    finally:
        for mapped in maps.values():
            mapped.close()
    return digest.hexdigest()
