"""The folder of a training run: its lock, its recorded inputs, its stages and their checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from es_sbert.bundle.bundle import EncoderManifest, hash_file
from es_sbert.errors import CheckpointInvalid, UsageError
from es_sbert.evaluation.evaluation_report import TRAINING_RECORD
from es_sbert.filesystem import file_lock
from es_sbert.training.recipe import Recipe
from es_sbert.training.training_device import NumberFormat
from es_sbert.training.training_errors import translate_disk_errors

_COMPLETE_MARKER = "complete"


def mark_checkpoint_complete(checkpoint: Path) -> None:
    """Say that a checkpoint was written whole: every file is on the disk before the marker is.

    Raises:
        OSError: the disk is full.
    """
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file():
            _fsync(path)
    marker = checkpoint / _COMPLETE_MARKER
    marker.touch()
    _fsync(marker)
    _fsync(checkpoint)


def _fsync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows flushes files alone, and only through a handle that may write
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_complete_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written whole; None where there is none."""
    complete = [path for path in _list_checkpoints(folder) if (path / _COMPLETE_MARKER).exists()]
    return complete[-1] if complete else None


def remove_incomplete_checkpoints(folder: Path) -> None:
    """Remove what an interrupted save left."""
    for path in _list_checkpoints(folder):
        if not (path / _COMPLETE_MARKER).exists():
            shutil.rmtree(path)


def remove_checkpoints(folder: Path) -> None:
    """Remove every checkpoint: the trained model has been written."""
    for path in _list_checkpoints(folder):
        shutil.rmtree(path)


def _list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders by their step."""
    found = []
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = path.name.rpartition("-")[2]
        if path.is_dir() and step.isdigit():
            found.append((int(step), path))
    return [path for _, path in sorted(found)]


_RUN_FILE = "run.json"
_LOCK_FILE = "lock"
_MODEL_SUFFIXES = (".safetensors", ".json")


class RunFolder:
    """`OUTPUT/training` while a run lasts; its logs stay when the model has moved to OUTPUT.

    Args:
        output: Folder of the trained model.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output / "training"

    @contextmanager
    def lock(
        self,
        recipe: Recipe,
        data: Mapping[str, str],
        models: Mapping[str, str],
        precision: NumberFormat,
        *,
        resume: bool,
    ) -> Iterator[None]:
        """Begin a run in an empty folder, or go on with the same one, and keep others out of it meanwhile.

        Args:
            recipe: What is run.
            data: Path → SHA-256 of every file that training reads.
            models: Name → `hash_model` of every model that the recipe names; those that are not there any more are
                left out where a run goes on.
            precision: Number format of the run, which `precision` gives when it goes on.
            resume: Go on with a run that ended early.

        Raises:
            UsageError: the folder holds something else, or another process trains into it.
            CheckpointInvalid: there is nothing to go on with, or it is another recipe's, other data's or other models'.
            OutputError: the folder cannot be written to.
        """
        settings = {
            "recipe": recipe.model_dump(mode="json"),
            "data": dict(data),
            "models": dict(models),
            "precision": precision,
        }
        path, lock_file = self.folder / _RUN_FILE, self.folder / _LOCK_FILE
        if resume:
            self._check_same(path, settings)
        else:
            self._check_empty(self.output)
        with translate_disk_errors(self.output):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock_file.touch()
        with file_lock(lock_file, self._refuse):
            if not resume:
                self._check_empty(path)  # of two that began at once, one was here first
                write_json(path, settings)
            yield

    def _refuse(self) -> None:
        raise UsageError(
            f"another process trains into {self.output}", "Let it finish, or stop it, or name another folder."
        )

    def _check_empty(self, path: Path) -> None:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if self.output.is_dir():
            raise UsageError(
                f"{self.output} is not empty",
                "Name a folder that does not exist yet, or go on with the run that is in it: --resume.",
            )
        raise UsageError(f"{self.output} is a file", "Name a folder that does not exist yet.")

    def _check_same(self, path: Path, settings: Mapping[str, Any]) -> None:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointInvalid(
                f"{self.output} holds no run to go on with", "Leave --resume out to start one."
            ) from error
        except (OSError, ValueError) as error:
            raise CheckpointInvalid(f"{path} cannot be read: {error}", "Start anew in another folder.") from error
        started = {"recipe": _recorded_recipe(before, settings["recipe"]), "data": before.get("data")}
        for part, what in (("recipe", "another recipe"), ("data", "other training data")):
            if started[part] != settings[part]:
                changed = ", ".join(_changed_settings(started[part], settings[part]))
                raise CheckpointInvalid(
                    f"{self.output} was started with {what}: {changed}",
                    "Run the recipe it was started with (it stands in training/run.json), or start anew in another "
                    "folder.",
                )
        self._check_same_models(before.get("models", {}), settings["models"])

    def _check_same_models(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        for name, found in now.items():
            started = before.get(name, found)  # runs that older versions began have noted none
            if started != found:
                raise CheckpointInvalid(
                    f"{self.output} was started with another model under the name {name}: its hash was {started[:12]}, "
                    f"that of the model found now is {found[:12]}",
                    "Put the model back that it was started with (run the command in the same folder, where the name "
                    "is a relative path), or start anew in another folder.",
                )

    def precision(self) -> NumberFormat | None:
        """The number format that the run began with; None where there is no run, or none was noted."""
        try:
            run = json.loads((self.folder / _RUN_FILE).read_text(encoding="utf-8"))
            noted = run.get("precision", run["recipe"]["precision"])  # older versions noted the recipe's alone
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # `lock` reports the error
        return noted if noted in get_args(NumberFormat) else None

    def stage(self, name: str) -> Path:
        """Folder of a stage: its checkpoints, and `model` when it is through."""
        return self.folder / name

    def result(self, name: str) -> Path:
        """How a stage went; it stands there before its model does."""
        return self.stage(name) / "result.json"

    def log(self, name: str) -> Path:
        """Path of a stage's log and plot, without suffix."""
        return self.folder / f"{name}-log"

    @property
    def staging_folder(self) -> Path:
        """Where the model is put together before it moves to OUTPUT; no stage can be called so."""
        return self.folder / ".built"

    def finished(self) -> bool:
        """Whether the model stands in OUTPUT whole."""
        return (self.output / TRAINING_RECORD).exists() and not self.staging_folder.exists()

    def publish(self, *, keep_checkpoints: bool, stages: list[str]) -> None:
        """Move the built model into OUTPUT; what makes it a model to others, modules.json or config.json, comes last.

        Raises:
            OutputError: the folder cannot be written to.
        """
        with translate_disk_errors(self.output):
            entries = sorted(
                self.staging_folder.iterdir(),
                key=lambda path: path.name in ("modules.json", EncoderManifest.FILE_NAME),
            )
            for entry in entries:
                target = self.output / entry.name
                if target.is_dir():
                    shutil.rmtree(target)  # half of it, from a run that was interrupted here
                entry.replace(target)
            self.staging_folder.rmdir()
            if not keep_checkpoints:
                for name in stages:
                    remove_checkpoints(self.stage(name))
                    shutil.rmtree(self.stage(name) / "model", ignore_errors=True)


def write_json(path: Path, value: object) -> None:
    """Write JSON whole or not at all.

    Raises:
        OutputError: the folder cannot be written to.
    """
    with translate_disk_errors(path.parent):
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)


def _recorded_recipe(run: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """The recipe that a run was started with, as this version writes it: settings that are newer have their defaults.

    Older versions had a precision where this one has `auto`; a run of theirs goes on in it.
    """
    try:
        recipe = Recipe.model_validate(run["recipe"]).model_dump(mode="json")
    except (KeyError, ValueError):
        return run.get("recipe")
    if "precision" not in run and now["precision"] == "auto":
        recipe["precision"] = "auto"
    return recipe


def _changed_settings(before: Any, now: Any, place: str = "") -> list[str]:
    """Dotted paths of settings that differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [path for key in keys for path in _changed_settings(before.get(key), now.get(key), f"{place}.{key}")]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            path
            for number, pair in enumerate(zip(before, now, strict=True))
            for path in _changed_settings(*pair, f"{place}.{number}")
        ]
    return [] if before == now else [place.removeprefix(".")]


def hash_source(path: Path) -> str:
    """SHA-256 of a file, or over the names and hashes of a folder's files."""
    return hash_file(path) if path.is_file() else _hash_files(path, path.rglob("*"))


def hash_model(folder: Path) -> str:
    """SHA-256 over the names and hashes of a model's files: weights, tokenizer and settings of it and its modules.

    Its card and what was exported of it do not count.
    """
    files = (file for pattern in ("*", "*/*") for file in folder.glob(pattern))
    return _hash_files(
        folder, (f for f in files if f.suffix in _MODEL_SUFFIXES and f.name != EncoderManifest.FILE_NAME)
    )


def _hash_files(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        if file.is_file():
            digest.update(f"{file.relative_to(folder).as_posix()}\0{hash_file(file)}\0".encode())
    return digest.hexdigest()
