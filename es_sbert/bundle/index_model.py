"""The model that an index needs: found by the fingerprint in its mapping, and only then by the name there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from es_sbert.bundle.registry import FolderState, RegisteredModel, fingerprint_of, read_registry
from es_sbert.bundle.resolve import download_model, how_to_get, installed_folder, is_path
from es_sbert.errors import ModelError, ModelNotFound, RegistryInvalid
from es_sbert.home import expanded

_REMEDY = (
    "Register the folder that holds it: es-sbert model add FOLDER. Or name the folder for this call: --model FOLDER."
)


@dataclass(frozen=True)
class IndexModel:
    """A model that an index needs, found on this machine.

    Attributes:
        folder: The folder to open.
        name: What the mapping calls the model.
        is_public: Whether other machines find the same model by its name: in an installed package or on the hub.
    """

    folder: Path
    name: str
    is_public: bool = False


def find_index_model(index: str, name: str, fingerprint: str) -> IndexModel:
    """Find the model whose vectors an index holds.

    Tried in this order: the registered models of that fingerprint; the folder that `name` is the path of, if its
    model has the fingerprint; the installed package of that name; the hub. A bare name is looked up in the hub's
    cache only if the registry shows that it belongs to a model of this user. The models of packages and of the hub are
    not compared here: the caller compares what it has loaded.

    Args:
        index: For messages.
        name: What the mapping calls the model.
        fingerprint: What the mapping says made the vectors.

    Raises:
        ModelNotFound: none of them has it; the message says what was found in its place.
    """
    problems: list[str] = []
    hints: list[str] = []
    found = _find(name, fingerprint, problems, hints)
    if found is not None:
        return found
    reason = f": {'; '.join(problems)}" if problems else ""
    raise ModelNotFound(
        f"the index {index} needs the model {name!r} ({fingerprint[:12]}), which was not found{reason}",
        " ".join([_REMEDY, *hints]),
    )


def registered_of(fingerprint: str, problems: list[str]) -> Path | None:
    """The folder of a registered model of that fingerprint, after it was checked; the latest registration first.

    Args:
        problems: Gets a clause for each entry of that fingerprint that is not usable, and for an unreadable registry.
    """
    for model in reversed(_entries(problems)):
        if model.fingerprint == fingerprint:
            state, problem = model.check()
            if state is FolderState.PRESENT:
                return model.folder
            problems.append(problem)
    return None


def _find(name: str, fingerprint: str, problems: list[str], hints: list[str]) -> IndexModel | None:
    registered = registered_of(fingerprint, problems)
    if registered is not None:
        return IndexModel(registered, name)
    folder = expanded(name)
    if name and os.path.isdir(folder):  # False for what this user may not read
        if _holds(folder, fingerprint):
            return IndexModel(folder.resolve(), name)
        problems.append(f"the folder {folder.absolute()} holds another model")
    elif is_path(name):
        problems.append(f"there is no folder {name!r}")
    if is_path(name):
        return None
    installed = installed_folder(name)
    if installed is not None:
        return IndexModel(installed, name, is_public=True)
    own = [model for model in _entries([]) if name == model.name or fingerprint == model.fingerprint]
    is_own = "/" not in name and bool(own)
    try:
        found = download_model(name, from_cache=is_own)
        if not is_own or _holds(found, fingerprint):
            return IndexModel(found, name, is_public=True)
    except ModelNotFound as error:
        if not is_own:
            problems.append(error.message)
            hints += [how_to_get(name)] if how_to_get(name) else []
            hints.append("The hub needs a network (HF_ENDPOINT, HF_TOKEN).")
    others = sorted({model.fingerprint[:12] for model in own if model.fingerprint != fingerprint})
    if others:
        problems.append(f"the registered model of that name is another one ({', '.join(others)})")
    return None


def _entries(problems: list[str]) -> list[RegisteredModel]:
    try:
        return read_registry()
    except RegistryInvalid as error:
        problems.append(error.message)
        return []


def _holds(folder: Path, fingerprint: str) -> bool:
    try:
        return fingerprint_of(folder) == fingerprint
    except (ModelError, OSError):
        return False  # no model, or one that cannot be read: certainly not the one that is needed
