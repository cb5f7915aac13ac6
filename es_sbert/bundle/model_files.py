"""Read the JSON files, the safetensors headers and single tensors of a model folder.

Format: https://github.com/huggingface/safetensors#format (8 bytes little-endian header length,
JSON header, raw tensor bytes).
"""

from __future__ import annotations

import json
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from es_sbert.errors import BundleInvalid, UnsupportedArchitecture
from es_sbert.io.text_formats import depth_problem
from es_sbert.messages import size_text

COPY_AGAIN = "Copy or download the model folder again."

# A tokenizer.json of a million words has less. Parsed, JSON can take thirty times its size.
_MAX_TEXT_BYTES = 128_000_000


# The beginning of the small file that git has in place of a large one until Git LFS downloads that.
_LFS_POINTER = b"version https://git-lfs.github.com/"


def check_model_file(path: Path) -> int:
    """Check that a file of a model folder is a regular file, and return its size: a pipe or device may never end.

    Raises:
        BundleInvalid: it is something else, or a Git LFS pointer to the file.
        OSError: the file is missing or unreadable.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BundleInvalid(f"{path} is not a regular file", "Replace it with a file, or do not use this model.")
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise BundleInvalid(
                f"{path} is a Git LFS pointer to the file, not the file itself",
                "Run `git lfs pull` in the repository, and copy the folder again.",
            )
    return status.st_size


def read_model_text(path: Path) -> str:
    """Read a text file of a model folder.

    Raises:
        BundleInvalid: it is not a regular file, or larger than any such file.
        OSError, ValueError: the file is missing, unreadable, or not UTF-8.
    """
    size = check_model_file(path)
    if size > _MAX_TEXT_BYTES:
        raise BundleInvalid(
            f"{path} has {size_text(size)}, more than the limit of {size_text(_MAX_TEXT_BYTES)} for texts of a model",
            "Do not use this model, or reduce its vocabulary.",
        )
    return path.read_text(encoding="utf-8")


def _parse_json(path: Path) -> Any:
    """Parse a file.

    Raises:
        BundleInvalid: see `read_model_text`.
        OSError, ValueError: the file is missing, unreadable, not JSON, or nested too deeply.
    """
    text = read_model_text(path)
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("its objects are nested too deeply") from error
    # Values are also written again, at other depths of the call stack.
    if problem := depth_problem({"": value}, text.encode()):
        raise ValueError(problem)
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        BundleInvalid: the file is missing, unreadable, too large, nested too deeply, or not a JSON object.
    """
    try:
        value = _parse_json(path)
    except FileNotFoundError as error:
        raise BundleInvalid(f"{path} is missing", COPY_AGAIN) from error
    except (OSError, ValueError) as error:
        raise BundleInvalid(f"{path} cannot be read: {error}", COPY_AGAIN) from error
    if not isinstance(value, dict):
        raise BundleInvalid(f"{path} does not hold a JSON object", COPY_AGAIN)
    return value


def write_json(path: Path, value: object) -> None:
    """Write indented JSON; the folder of the file is created if necessary."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; empty if there is no file.

    Raises:
        BundleInvalid: the file is unreadable, or not a JSON object.
    """
    return read_json(path) if path.exists() else {}


def read_module_entries(folder: Path) -> list[dict[str, Any]]:
    """Read the entries of a folder's modules.json, each with `type` and `path`.

    Raises:
        BundleInvalid: the file is broken.
    """
    path = folder / "modules.json"
    try:
        entries: list[dict[str, Any]] = _parse_json(path)
        for entry in entries:
            _ = entry["type"], entry["path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleInvalid(f"{path} is broken: {error}", COPY_AGAIN) from error
    return entries


def module_entry(kind: str, place: str) -> dict[str, Any]:
    """Make an entry of modules.json for a module of sentence-transformers in a subfolder of the model folder."""
    return {"path": place, "type": f"sentence_transformers.models.{kind}"}


def write_module_entries(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write a folder's modules.json, numbering the entries like sentence-transformers."""
    numbered = [{**entry, "idx": number, "name": str(number)} for number, entry in enumerate(entries)]
    write_json(folder / "modules.json", numbered)


def read_module_list(folder: Path) -> list[tuple[str, str]]:
    """Read (class name, folder) of each module in a folder's modules.json.

    Raises:
        BundleInvalid: the file is broken.
    """
    return [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in read_module_entries(folder)]


_HEADER_LENGTH_BYTES = 8
_MAX_HEADER = 100_000_000  # the format's own limit


def refuse_adapter(folder: Path, library_class: str = "SentenceTransformer") -> None:
    """Refuse a folder with a LoRA adapter: its vectors or scores are not those of the weights next to it.

    Args:
        folder: The folder of a module, with or without weights.
        library_class: Class of sentence-transformers that opens the model, for the remedy.

    Raises:
        UnsupportedArchitecture: the folder has one.
    """
    found = [name for name in ("adapter_config.json", "adapter_model.safetensors") if (folder / name).exists()]
    if not found:
        return
    settings = read_optional_json(folder / "adapter_config.json")
    base = settings.get("base_model_name_or_path") or "BASE_MODEL"
    library_class = "CrossEncoder" if settings.get("task_type") == "SEQ_CLS" else library_class
    remedy = (
        # With its task type, peft would look for a head that sentence-transformers does not save.
        f"Merge it with peft, and save the model: config = PeftConfig.from_pretrained({str(folder)!r}); "
        f"config.task_type = None; model = {library_class}({base!r}); model[0].model = "
        f"PeftModel.from_pretrained(model[0].model, {str(folder)!r}, config=config).merge_and_unload(); "
        "model.save(NEW_FOLDER)."
    )
    raise UnsupportedArchitecture(f"{folder} has a LoRA adapter ({found[0]}), which es-sbert does not merge", remedy)


# What torch.compile, DataParallel and FSDP put in front of all names of a network that they wrap.
_WRAPPERS = ("_orig_mod.", "module.", "_fsdp_wrapped_module.")


def unexpected_prefix(folder: Path, prefix: str) -> BundleInvalid:
    """Create the error for tensors whose names have a prefix that transformers does not know."""
    return BundleInvalid(
        f"the names of the tensors in {folder} begin with {prefix!r}: transformers would ignore them, and compute with "
        "random weights",
        f"Rename them with safetensors.torch: save_file({{name.removeprefix({prefix!r}): tensor for name, tensor in "
        'load_file(FILE).items()}, FILE, {"format": "pt"}).',
    )


def unfilled_weights(folder: Path, missing: Collection[str], unexpected: Collection[str]) -> BundleInvalid:
    """Create the error for tensors that a network needs and weights lack: transformers would fill in random values.

    Args:
        unexpected: Tensors that the network does not have.
    """
    name = min(missing)
    if wrapped := next((other for other in unexpected if other.endswith(f".{name}")), None):
        return unexpected_prefix(folder, wrapped.removesuffix(name))
    return BundleInvalid(
        f"the weights in {folder} lack {', '.join(sorted(missing)[:3])}",
        "Copy the folder again, or use another one: a cross-encoder needs a trained head.",
    )


def find_weight_files(folder: Path, library_class: str = "SentenceTransformer") -> list[Path]:
    """Find the safetensors files of a module's folder: one, or the shards that their index names, sorted by name.

    Args:
        folder: The folder of a module.
        library_class: See `refuse_adapter`.

    Raises:
        BundleInvalid: the folder has no weights, or only a pickle, which can run code when it is opened, or those of a
            wrapped network.
        UnsupportedArchitecture: the folder has an adapter of weights.
    """
    refuse_adapter(folder, library_class)
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists() or index.exists():
        files = [single] if single.exists() else _shards(index)
        names = [name for file in files for name in read_header(file)]
        for wrapper in _WRAPPERS:
            if names and all(name.startswith(wrapper) for name in names):
                raise unexpected_prefix(folder, wrapper)
        return files
    if any(folder.glob("model-*.safetensors")):
        raise BundleInvalid(f"{folder} has shards of weights, but no {index.name} that lists them", COPY_AGAIN)
    if (folder / "pytorch_model.bin").exists():
        check_model_file(folder / "pytorch_model.bin")
        raise BundleInvalid(
            f"{folder} holds its weights as a pickle (pytorch_model.bin), which can run code when it is opened",
            f"If you trust it, save it again as safetensors: {library_class}(...).save(folder).",
        )
    raise BundleInvalid(
        f"{folder} holds no model.safetensors",
        f"{COPY_AGAIN} If its only weights are an ONNX file, use the model from which that was made.",
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleInvalid(f"{index} has no weight_map of file names", COPY_AGAIN) from error
    if outside:
        raise BundleInvalid(f"{index} names {outside[0]!r}, which is outside the folder", "Do not use this model.")
    return [index.parent / name for name in names]


def read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Read the header of a safetensors file: tensor name → `{"dtype", "shape", "data_offsets"}`.

    The offsets are counted from the start of the file.

    Raises:
        BundleInvalid: the file is missing or truncated, or not a safetensors file.
    """
    try:
        size = check_model_file(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_HEADER_LENGTH_BYTES), "little")
            if size < _HEADER_LENGTH_BYTES or length > min(size - _HEADER_LENGTH_BYTES, _MAX_HEADER):
                raise BundleInvalid(f"{path} is truncated or is not a safetensors file", COPY_AGAIN)
            header = json.loads(file.read(length))
        base = _HEADER_LENGTH_BYTES + length
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for entry in tensors.values():
            start, end = entry["data_offsets"]
            entry["data_offsets"] = base + start, base + end
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=base)
    except OSError as error:
        raise BundleInvalid(f"{path} cannot be read: {error.strerror}", COPY_AGAIN) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BundleInvalid(f"{path} has no valid safetensors header", COPY_AGAIN) from error
    if end != size:
        raise BundleInvalid(f"{path} has {size} bytes, but {end} according to its header", COPY_AGAIN)
    return tensors


# numpy has no bfloat16: its bits are the upper half of a float32's, so it is read as integers.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


def read_tensor(path: Path, name: str, entry: dict[str, Any]) -> NDArray[np.float32]:
    """Read a tensor of a safetensors file as float32.

    Args:
        entry: Its entry in the file's header, from `read_header`.

    Raises:
        BundleInvalid: the type of the tensor is not floating-point, or the file is broken.
    """
    if entry["dtype"] not in _DTYPES:
        raise BundleInvalid(
            f"the tensor {name} in {path.parent} has the type {entry['dtype']}, which is not floating-point",
            "Use the model from before it was quantized; es-sbert does the quantization itself.",
        )
    start, end = entry["data_offsets"]
    with path.open("rb") as stream:
        stream.seek(start)
        raw = stream.read(end - start)
    dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
    if len(raw) != dtype.itemsize * int(np.prod(shape)):
        raise BundleInvalid(f"{path} is broken at the tensor {name}", COPY_AGAIN)
    values = np.frombuffer(raw, dtype).reshape(shape)
    if entry["dtype"] == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    floats: NDArray[np.float32] = values.astype(np.float32, copy=False)
    return floats
