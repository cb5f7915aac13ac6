"""Read the JSON files and the safetensors headers of a model folder.

Tensors are not loaded. Format: https://github.com/huggingface/safetensors#format (8 bytes little-endian header length,
JSON header, raw tensor bytes).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from es_sbert.errors import BundleInvalid

COPY_AGAIN = "Copy or download the model folder again."


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BundleInvalid: missing, unreadable, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BundleInvalid(f"{path} is missing", COPY_AGAIN) from error
    except (OSError, ValueError) as error:
        raise BundleInvalid(f"{path} cannot be read: {error}", COPY_AGAIN) from error
    if not isinstance(value, dict):
        raise BundleInvalid(f"{path} does not hold a JSON object", COPY_AGAIN)
    return value


def write_json(path: Path, value: object) -> None:
    """Write JSON for people to read; the folder of the file may be new."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_optional_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; an empty one where there is none.

    Raises:
        BundleInvalid: unreadable, or not a JSON object.
    """
    return read_json(path) if path.exists() else {}


def read_module_list(folder: Path) -> list[tuple[str, str]]:
    """(class name, folder) of each module in a folder's modules.json.

    Raises:
        BundleInvalid: the file is broken.
    """
    path = folder / "modules.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleInvalid(f"{path} is broken: {error}", COPY_AGAIN) from error


_HEADER_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the format's own limit


def find_weight_files(folder: Path) -> list[Path]:
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
    raise BundleInvalid(f"{folder} holds no model.safetensors", COPY_AGAIN)


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Tensor name → `{"dtype", "shape", "data_offsets"}` of a safetensors file; offsets count from its beginning.

    Raises:
        BundleInvalid: the file is missing, cut short or no safetensors file.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
            if size < _HEADER_LENGTH_BYTES or length > min(size - _HEADER_LENGTH_BYTES, _MAX_HEADER):
                raise BundleInvalid(f"{path} is cut short or is no safetensors file", COPY_AGAIN)
            header = json.loads(file.read(length))
        base = _HEADER_LENGTH_BYTES + length
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for entry in tensors.values():
            start, end = entry["data_offsets"]
            entry["data_offsets"] = base + start, base + end
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=base)
    except OSError as error:
        raise BundleInvalid(f"{path} cannot be read: {error.strerror}", COPY_AGAIN) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise BundleInvalid(f"{path} has no valid safetensors header", COPY_AGAIN) from error
    if end != size:
        raise BundleInvalid(f"{path} has {size} bytes, its header says {end}", COPY_AGAIN)
    return tensors
