"""The local model registry: models trained, exported or added on this machine, found by fingerprint or name.

The registry is one JSON file per user: `{"format": 1, "models": [{"name", "fingerprint", "folder"}, …]}`, the latest
registration last. It stores paths, not models. Each entry is checked against its folder when it is used, so
an outdated entry never opens the wrong model.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from es_sbert.bundle.bundle import is_reranker_bundle, open_reranker_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import expand_home, home_folder
from es_sbert.errors import EsSbertError, ModelNotFound, OutputError, RegistryInvalid, UsageError
from es_sbert.filesystem import file_lock, open_output
from es_sbert.messages import log_event, setting

REGISTRY_VARIABLE = "ES_SBERT_REGISTRY"
_REGISTRY_FORMAT = 1


class FolderState(StrEnum):
    """State of the folder of a registered model."""

    PRESENT = "present"  # it holds the registered model
    MISSING = "missing"  # it was moved or deleted
    CHANGED = "changed"  # it holds another model, or no readable model


@dataclass(frozen=True)
class RegisteredModel:
    """An entry of the registry.

    Attributes:
        name: Name that users may give instead of the folder. Several models may share a name.
        fingerprint: Fingerprint of the registered model.
        folder: Absolute path of its folder.
    """

    name: str
    fingerprint: str
    folder: Path

    def state(self) -> FolderState:
        """Check whether the folder still holds the registered model. This hashes all weights."""
        return self.check()[0]

    def check(self) -> tuple[FolderState, str]:
        """Return the state as `state` does, and a clause that describes the problem; empty if there is no problem."""
        try:
            if not self.folder.is_dir():
                return FolderState.MISSING, f"its folder {self.folder} was moved or deleted"
            found = fingerprint_of(self.folder)
        except (EsSbertError, OSError) as error:
            reason = error.message if isinstance(error, EsSbertError) else error.strerror
            return FolderState.CHANGED, f"its folder {self.folder} can no longer be opened ({reason})"
        if found != self.fingerprint:
            return FolderState.CHANGED, f"its folder {self.folder} now holds another model ({found[:12]})"
        return FolderState.PRESENT, ""


def fingerprint_of(folder: Path) -> str:
    """Compute the fingerprint of the sentence encoder or the exported reranker in a folder from its files.

    Raises:
        ModelError: the folder contains no such model.
    """
    if is_reranker_bundle(folder):
        return open_reranker_bundle(folder).manifest.fingerprint
    return read_sentence_model(folder).fingerprint


def registry_path() -> Path:
    """`$ES_SBERT_REGISTRY`, else `$XDG_DATA_HOME/es-sbert/models.json`, else `~/.local/share/es-sbert/models.json`.

    Raises:
        UsageError: this user has no home folder, and no environment variable gives the path.
    """
    if configured := os.environ.get(REGISTRY_VARIABLE):
        return expand_home(configured).absolute()
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared) if shared else home_folder(REGISTRY_VARIABLE) / ".local/share") / "es-sbert/models.json"


def read_registry() -> list[RegisteredModel]:
    """Read all entries, the latest last; none if nothing was registered or this user has no home folder.

    Raises:
        RegistryInvalid: the file cannot be read, or it is broken.
    """
    try:
        path = registry_path()
    except UsageError:
        return []  # without a home folder there is no registry
    return _read_entries(path)


def register_model(
    folder: Path,
    fingerprint: str,
    *,
    name: str | None = None,
    default: str = "",
    is_taken: Callable[[str], bool] = lambda name: False,
) -> RegisteredModel:
    """Add a model, or update the entry of a model that was moved. Several processes may do so at once.

    Entries of the same model whose folders no longer hold it are replaced. An entry of another model in the same folder
    is kept, to explain why an index of that model cannot be searched.

    Args:
        folder: The folder of the model.
        fingerprint: Fingerprint of the model.
        name: Its name. If it is empty, the name of the replaced entry is kept.
        default: Name if there is no such entry either; if empty, the name of the folder.
        is_taken: Whether a name is already taken, so that a model registered under it would never be found.

    Raises:
        RegistryInvalid: the registry is broken.
        OutputError: the registry cannot be written.
        UsageError: the name is not valid, or the location of the registry is unknown.
    """
    folder = folder.resolve()
    if name is not None:
        _check_name(name, is_taken)
    with _update_registry() as models:
        same = [model for model in models if model.fingerprint == fingerprint]
        replaced = [model for model in same if model.folder == folder or model.state() is not FolderState.PRESENT]
        chosen = name or (replaced[-1].name if replaced else default or folder.name.lstrip(".~-") or "model")
        if name is None:
            _check_name(chosen, is_taken)
        new = RegisteredModel(chosen, fingerprint, folder)
        models[:] = [*(model for model in models if model not in replaced), new]
    return new


def try_register_model(folder: Path, fingerprint: str, *, name: str = "") -> None:
    """Register a model that a command has written. If this fails, a warning is logged, since the model is complete.

    Args:
        name: Its name; if empty, the name of the folder.
    """
    try:
        model = register_model(folder, fingerprint, default=name)
    except EsSbertError as error:
        remedy = f"Then register it: `es-sbert model add {shlex.quote(str(folder))}`"
        log_event(
            "model_not_registered",
            error.message,
            logging.WARNING,
            folder=str(folder),
            remedy=error.remedy,
            text=f"Warning: the model was not registered: {error.message}\n  {error.remedy} {remedy}",
        )
        return
    log_event(
        "model_registered",
        f"the model was registered as {model.name!r}",
        text=f"Registered as {model.name}.",
        name=model.name,
        fingerprint=model.fingerprint,
        folder=str(model.folder),
    )


def unregister_model(key: str) -> list[RegisteredModel]:
    """Remove the entries of one model; its folder is not touched.

    Args:
        key: Its name, its folder, or at least the first eight digits of its fingerprint.

    Returns:
        The removed entries.

    Raises:
        ModelNotFound: no such model is registered.
        UsageError: several models have that name.
        RegistryInvalid, OutputError: the registry is broken or cannot be written.
    """
    with _update_registry() as models:
        found = _find_entries(models, key)
        if not found:
            raise ModelNotFound(
                f"there is no registered model {key!r}", "List the registered models: `es-sbert model list`."
            )
        if len({model.fingerprint for model in found}) > 1:
            raise UsageError(
                f"several registered models have the name {key!r}: {_format_entries(found)}",
                "Use the folder or the fingerprint of one of them.",
            ).about("model", key)
        models[:] = [model for model in models if model not in found]
    return found


def registered_model_folder(name: str) -> Path | None:
    """Find and check the folder of a registered model by name; None if no registered model has the name.

    Raises:
        ModelNotFound: the folder of the model is missing or changed, or several models have the name.
        RegistryInvalid: the registry is broken.
    """
    found = [model for model in read_registry() if model.name == name]
    checked = [(model, *model.check()) for model in reversed(found)]
    present = [model for model, state, _ in checked if state is FolderState.PRESENT]
    if len({model.fingerprint for model in present}) > 1:
        raise ModelNotFound(
            f"several registered models have the name {name!r}: {_format_entries(present)}",
            "Use the folder of one of them, or rename one: `es-sbert model add FOLDER --name NAME`.",
        )
    if present:
        return present[0].folder
    if not found:
        return None
    model, _, problem = checked[0]
    raise ModelNotFound(
        f"the model {name!r} ({model.fingerprint[:12]}) is registered, but {problem}",
        "Register its new folder: `es-sbert model add FOLDER`. Or remove the entry: "
        f"`es-sbert model remove {shlex.quote(name)}`.",
    )


_MAX_NAME_CHARACTERS = 200


def _check_name(name: str, is_taken: Callable[[str], bool]) -> None:
    """Refuse a name that could be mistaken for a path, a hub id or an option.

    Raises:
        UsageError: the name could be mistaken, is too long, or belongs to an installed model.
    """
    if is_taken(name):
        raise UsageError(f"{name!r} is an installed model", f"Choose another {setting('name')}.").about("name", name)
    is_too_long = len(name) > _MAX_NAME_CHARACTERS
    if not name or is_too_long or "/" in name or name.startswith((".", "~", "-")) or not name.isprintable():
        raise UsageError(
            f"a model cannot be registered as {name[:_MAX_NAME_CHARACTERS]!r}",
            f"Choose a name of at most {_MAX_NAME_CHARACTERS} characters, without a slash or control character, that "
            f"does not begin with a dot, a tilde or a hyphen: {setting('name', 'NAME')}.",
        ).about("name", name)


def _find_entries(models: Sequence[RegisteredModel], key: str) -> list[RegisteredModel]:
    """Find entries by name, else by folder, else by fingerprint."""
    named = [model for model in models if model.name == key]
    folder = Path(os.path.abspath(expand_home(key)))
    placed = [model for model in models if model.folder in (folder, folder.resolve())]
    marked = [model for model in models if len(key) >= 8 and model.fingerprint.startswith(key)]
    return named or placed[-1:] or marked


def _format_entries(models: Sequence[RegisteredModel]) -> str:
    return ", ".join(f"{model.fingerprint[:12]} in {model.folder}" for model in models)


@contextmanager
def _update_registry() -> Iterator[list[RegisteredModel]]:
    """Yield the entries for changes in place; they are locked, and written at the end of the block."""
    path = registry_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(f"{path.name}.lock")):
            models = _read_entries(path)
            yield models
            entries = [asdict(model) | {"folder": str(model.folder)} for model in models]
            with open_output(path) as file:
                file.write(json.dumps({"format": _REGISTRY_FORMAT, "models": entries}, indent=2).encode() + b"\n")
    except OSError as error:
        raise OutputError(
            f"the model registry {path} cannot be written: {error.strerror}",
            f"Free disk space, or set {REGISTRY_VARIABLE} to a file that this user may write.",
        ) from error


def _read_entries(path: Path) -> list[RegisteredModel]:
    try:
        # Reading a named pipe would block, and a device may never end.
        if path.exists() and not path.is_file():
            raise RegistryInvalid(
                f"the model registry {path} is not a file",
                f"Remove it, or set {REGISTRY_VARIABLE} to a file.",
            )
        value = json.loads(path.read_bytes())
        _warn_if_others_may_write(path)
    except FileNotFoundError:  # nothing was registered yet
        return []
    except OSError as error:
        raise RegistryInvalid(
            f"the model registry {path} cannot be read: {error.strerror}",
            f"Check its permissions, or set {REGISTRY_VARIABLE} to another file.",
        ) from error
    except ValueError as error:
        raise _invalid_registry(path, "it is not JSON") from error
    if not isinstance(value, dict) or not isinstance(value.get("models"), list):
        raise _invalid_registry(path, "it has no list of models")
    if value.get("format") != _REGISTRY_FORMAT:
        raise RegistryInvalid(
            f"the model registry {path} has format {value.get('format')!r}, but this es-sbert reads {_REGISTRY_FORMAT}",
            f"Upgrade es-sbert, or set {REGISTRY_VARIABLE} to another file.",
        )
    return [_parse_entry(path, entry) for entry in value["models"]]


@cache
def _warn_if_others_may_write(path: Path) -> None:
    """Warn once if other users can change which models are opened by name."""
    if sys.platform == "win32":
        return  # permissions are not in the mode here
    file, folder = path.stat(), path.parent.stat()
    is_replaceable = bool(folder.st_mode & stat.S_IWOTH) and not folder.st_mode & stat.S_ISVTX
    if file.st_uid not in (os.getuid(), 0):
        problem, remedy = "belongs to another user", f"set {REGISTRY_VARIABLE} to a file of this user"
    elif file.st_mode & stat.S_IWOTH:
        problem, remedy = "can be written by all users", f"run: chmod o-w {shlex.quote(str(path))}"
    elif is_replaceable:
        problem, remedy = "can be replaced by all users", f"run: chmod o-w {shlex.quote(str(path.parent))}"
    else:
        return
    message = f"the model registry {path} {problem}, who can then change which models es-sbert opens"
    log_event(
        "registry_writable_by_others",
        message,
        logging.WARNING,
        path=str(path),
        remedy=remedy,
        text=f"Warning: {message}.\n  To prevent that, {remedy}",
    )


def _parse_entry(path: Path, entry: Any) -> RegisteredModel:
    keys = ("name", "fingerprint", "folder")
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in keys):
        raise _invalid_registry(path, f"an entry lacks one of {', '.join(keys)}")
    if not os.path.isabs(entry["folder"]):
        raise _invalid_registry(path, f"{entry['folder']!r} is not an absolute path")
    if entry.get("query_fingerprint"):  # queries of its indices were embedded with the other model
        raise _invalid_registry(path, f"{entry['name']} is a pair of two models, which es-sbert does not open")
    return RegisteredModel(entry["name"], entry["fingerprint"], Path(entry["folder"]))


def _invalid_registry(path: Path, reason: str) -> RegistryInvalid:
    return RegistryInvalid(
        f"the model registry {path} is broken: {reason}",
        "Correct it, or delete it and register your models again: `es-sbert model add FOLDER`.",
    )
