"""Write the output folder of an export atomically: graph files with their hashes, copied model files, the manifest."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import onnx
import onnxruntime
from pydantic import BaseModel

from es_sbert import __version__
from es_sbert.bundle.bundle import hash_file, open_encoder_bundle
from es_sbert.bundle.manifest import ENCODER_MANIFEST_NAME, RERANKER_MANIFEST_NAME, EncoderManifest, GraphFile
from es_sbert.bundle.sentence_model import SentenceModel
from es_sbert.errors import OutputError, UsageError

# Protobuf ends at 2 GiB; beyond this many bytes of weights they go into a file of their own beside the graph.
EXTERNAL_DATA_FROM = 1_900_000_000


def save_graph(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph, with its weights beside it as `FILE.data` where they pass protobuf's limit."""
    path.parent.mkdir(exist_ok=True)
    size = sum(len(tensor.raw_data) for tensor in graph.graph.initializer)
    if size < EXTERNAL_DATA_FROM:
        onnx.save_model(graph, str(path))
    else:
        onnx.save_model(
            graph, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=f"{path.name}.data"
        )


def describe_graph_file(path: Path, folder: Path, *, precision: str, device: str, forced: bool) -> GraphFile:
    """What a manifest says of a graph's file, hashes included."""
    data = path.with_name(f"{path.name}.data")
    return GraphFile(
        file=path.relative_to(folder).as_posix(),
        sha256=hash_file(path),
        data_sha256=hash_file(data) if data.exists() else None,
        precision=precision,
        device=device,
        forced=forced,
    )


def exporter_versions() -> dict[str, str]:
    """Of the packages that decide what a graph is."""
    return {"es-sbert": __version__, "onnx": version("onnx"), "onnxruntime": str(onnxruntime.__version__)}


# What sentence-transformers reads of a model, and its card. Pickles and other runtimes' exports stay behind.
_KEPT_SUFFIXES = {".json", ".txt", ".safetensors", ".model", ".md", ".jinja"}
_LOG_SUFFIXES = {".csv", ".json", ".png"}
_MANIFESTS = {ENCODER_MANIFEST_NAME, RERANKER_MANIFEST_NAME}


def previous_manifest(model: SentenceModel, output: Path) -> EncoderManifest | None:
    """The manifest of the bundle that an export adds to; None where it writes a new one.

    Raises:
        UsageError: the folder holds something else, or a bundle of another model.
        BundleInvalid: it holds a bundle that was edited by hand.
    """
    if not is_previous_export(output, ENCODER_MANIFEST_NAME):
        return None
    manifest = open_encoder_bundle(output).manifest
    check_same_model(output, manifest, model)
    return manifest


class HasFingerprint(Protocol):
    """A model or a manifest of one."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


def is_previous_export(output: Path, manifest: str) -> bool:
    """Whether an export's output is there already, known by its manifest; False for a folder that is new or empty.

    Raises:
        UsageError: it is a file, or a folder of something else.
    """
    if not output.exists():
        return False
    if not output.is_dir():
        raise UsageError(f"{output} is a file", "Name a folder that does not exist yet.")
    if (output / manifest).is_file():
        return True
    if any(output.iterdir()):
        raise UsageError(
            f"{output} is neither empty nor a bundle of es-sbert", "Name a folder that does not exist yet, or is empty."
        )
    return False


def check_same_model(output: Path, found: HasFingerprint, given: HasFingerprint) -> None:
    """Refuse to add variants of one model to the bundle of another.

    Raises:
        UsageError: their fingerprints differ.
    """
    if found.fingerprint != given.fingerprint:
        raise UsageError(
            f"{output} is a bundle of {found.name} (fingerprint {found.fingerprint}), "
            f"not of this {given.name} ({given.fingerprint})",
            "Export to another folder, or remove that one first.",
        )


@contextmanager
def staged_folder(output: Path) -> Iterator[Path]:
    """A folder beside `output` that takes its place when the block ends well, and is removed when it does not.

    A reader sees the old folder, for an instant none, then the new one: never a half-written one.

    Raises:
        OutputError: the folder cannot be written: no permission, a full disk.
    """
    output = output.resolve()  # where it is a link, what it points to is replaced, not the link
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    except OSError as error:
        raise OutputError(
            f"{output.parent} cannot be written to: {error.strerror}", "Export to a folder where you may write."
        ) from error
    try:
        staging.chmod(0o755)  # mkdtemp makes it private; a bundle is read by others as any model folder is
        yield staging
        _replace_folder(staging, output)
    except OSError as error:
        raise OutputError(
            f"{output} cannot be written: {error}", "Free space there, or export to a folder where you may write."
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace_folder(staging: Path, output: Path) -> None:
    if not output.exists():
        staging.rename(output)
        return
    old = staging.with_suffix(".old")
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old)


def copy_model(model: SentenceModel, target: Path) -> None:
    """Copy what sentence-transformers needs of a model folder: modules.json and the files of each module's folder."""
    modules = json.loads((model.folder / "modules.json").read_text(encoding="utf-8"))
    copy_files(model.folder, target, ["", *(entry["path"] for entry in modules)])


def copy_files(source: Path, target: Path, places: Iterable[str]) -> None:
    """Copy configurations, tokenizer, safetensors and card from these folders inside `source`."""
    for place in dict.fromkeys(places):
        if not (source / place).is_dir():
            continue  # a Normalize module has no settings and often no folder
        (target / place).mkdir(parents=True, exist_ok=True)
        for file in sorted((source / place).iterdir()):
            if file.is_file() and file.suffix in _KEPT_SUFFIXES and file.name not in _MANIFESTS:
                shutil.copyfile(file, target / place / file.name)  # follows the links of a hub cache
    logs = source / "training"  # of a model that es-sbert trained: without what was left of the run's weights
    if logs.is_dir():
        for file in sorted(logs.iterdir()):
            if file.suffix in _LOG_SUFFIXES:
                (target / "training").mkdir(exist_ok=True)
                shutil.copyfile(file, target / "training" / file.name)


def copy_graphs(graphs: Iterable[GraphFile], source: Path, target: Path) -> None:
    """Carry ONNX files of an earlier export over."""
    for graph in graphs:
        (target / graph.file).parent.mkdir(parents=True, exist_ok=True)
        for part in (graph.file, f"{graph.file}.data"):
            if (source / part).is_file():
                shutil.copyfile(source / part, target / part)


def write_manifest(manifest: BaseModel, path: Path) -> None:
    """Write `es_sbert.json` or `es_sbert_reranker.json`."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
