"""The folder of a training run: its lock, its recorded inputs, its stages and their checkpoints."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from transformers.trainer_utils import sort_checkpoints

from es_sbert.bundle.bundle import MANIFESTS, EncoderManifest, hash_file
from es_sbert.errors import CheckpointInvalid, UsageError
from es_sbert.filesystem import file_lock, open_output
from es_sbert.messages import setting
from es_sbert.training.recipe import NumberFormat, Recipe, describe_problems
from es_sbert.training.training_errors import translate_disk_errors

# In the folder of a finished model: how it was trained.
TRAINING_RECORD = "training.json"
_COMPLETE_MARKER = "complete"


def mark_checkpoint_complete(checkpoint: Path) -> None:
    """Mark a checkpoint as complete, after all its files are on the disk.

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
    """Find the newest complete checkpoint; None if there is none."""
    complete = [path for path in sort_checkpoints(str(folder)) if (Path(path) / _COMPLETE_MARKER).exists()]
    return Path(complete[-1]) if complete else None


def remove_checkpoints(folder: Path, *, keep_complete: bool) -> None:
    """Remove checkpoints: those of interrupted saves, or all once the trained model has been written."""
    for path in sort_checkpoints(str(folder)):
        if not (keep_complete and (Path(path) / _COMPLETE_MARKER).exists()):
            shutil.rmtree(path)


_RUN_FILE = "run.json"
_LOCK_FILE = "lock"
_MODEL_SUFFIXES = (".safetensors", ".json")


class RunFolder:
    """The folder `OUTPUT/training` of a run; its logs stay there after the model has moved to OUTPUT.

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
        """Start a run in an empty folder, or resume the run in it, and lock the folder against other processes.

        Args:
            recipe: The recipe.
            data: Path → SHA-256 of every file that training reads.
            models: Name → `hash_model` of every model in the recipe; on resume, without missing models.
            precision: Number format of the run; `precision` returns it on resume.
            resume: Resume an interrupted run.

        Raises:
            UsageError: the folder holds something else, or another process is training in it.
            CheckpointInvalid: there is no run to resume, or the run used a different recipe, data or models.
            OutputError: the folder cannot be written to.
        """
        written = recipe.model_dump(mode="json")
        settings = {"recipe": written, "data": dict(data), "models": dict(models), "precision": precision}
        path, lock_file = self.folder / _RUN_FILE, self.folder / _LOCK_FILE
        if resume:
            self._check_same(path, settings)
        else:
            self.check_new()
        with translate_disk_errors(self.output):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock_file.touch()
        remedy = "Wait for it, stop it, or use another folder."
        with file_lock(lock_file, UsageError(f"another process is training in {self.output}", remedy)):
            if not resume:
                self._check_empty(path)  # another process may have started a run since the first check
                write_json(path, settings)
            yield

    def check_new(self) -> None:
        """Check that OUTPUT is a new or empty folder.

        Raises:
            UsageError: OUTPUT is a file, or is not empty.
        """
        self._check_empty(self.output)

    def _check_empty(self, path: Path) -> None:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        if self.output.is_dir():
            remedy = f"Use a new folder, or resume the run in it with {setting('resume')}."
            raise UsageError(f"{self.output} is not empty", remedy).about("output", self.output)
        raise UsageError(f"{self.output} is a file", "Use a new folder.").about("output", self.output)

    def _check_same(self, path: Path, settings: Mapping[str, Any]) -> None:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            problem = f"{self.output} holds no run to resume"
            raise CheckpointInvalid(problem, f"Omit {setting('resume')}.").about("resume") from error
        except (OSError, ValueError) as error:
            raise CheckpointInvalid(f"{path} cannot be read: {error}", "Start a new run in another folder.") from error
        started = {"recipe": self._recorded_recipe(before), "data": before.get("data")}
        for part, what in (("recipe", "another recipe"), ("data", "other training data")):
            if started[part] != settings[part]:
                changed = ", ".join(_changed_settings(started[part], settings[part]))
                raise CheckpointInvalid(
                    f"{self.output} was started with {what}: {changed}",
                    "Resume with the recipe of the run (see training/run.json), or start a new run in another folder.",
                )
        models = before.get("models", {})
        for name, current in settings["models"].items():
            recorded = models.get(name, current)  # older versions did not record it
            if recorded != current:
                raise CheckpointInvalid(
                    f"{self.output} was started with another model under the name {name}: "
                    f"its hash was {recorded[:12]}, now it is {current[:12]}",
                    "Restore that model (or, if the name is a relative path, run the command in the same folder), or "
                    "start a new run in another folder.",
                )

    def _recorded_recipe(self, run: Mapping[str, Any]) -> Any:
        """Convert the recorded recipe of a run to this version's format: newer settings have their defaults.

        Raises:
            CheckpointInvalid: this version cannot run the recipe.
        """
        try:
            return Recipe.model_validate(run.get("recipe")).model_dump(mode="json")
        except ValidationError as error:
            raise CheckpointInvalid(
                f"the run in {self.output} cannot be resumed: {describe_problems(error)}",
                "Resume it with the version of es-sbert that started it, or start a new run in another folder.",
            ) from error

    def precision(self) -> NumberFormat | None:
        """Number format of the run; None if there is no run, or it is not recorded."""
        try:
            run = json.loads((self.folder / _RUN_FILE).read_text(encoding="utf-8"))
            precision = run["precision"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # `lock` reports the error
        return precision if precision in get_args(NumberFormat) else None

    def stage(self, name: str) -> Path:
        """Folder of a stage: its checkpoints, and `model` once it is finished."""
        return self.folder / name

    def result(self, name: str) -> Path:
        """Result of a stage, written before its model."""
        return self.stage(name) / "result.json"

    def log(self, name: str) -> Path:
        """Path of a stage's log."""
        return self.folder / f"{name}-log.csv"

    @property
    def staging_folder(self) -> Path:
        """The model before it is moved to OUTPUT; no stage can have this name."""
        return self.folder / ".built"

    def finished(self) -> bool:
        """Whether the complete model is in OUTPUT."""
        return (self.output / TRAINING_RECORD).exists() and not self.staging_folder.exists()

    def publish(self, stages: list[str]) -> None:
        """Move the staged model to OUTPUT, last the file that marks it as a model: modules.json or the manifest.

        Then remove the checkpoints and the models of the stages.

        Raises:
            OutputError: the folder cannot be written to.
        """
        with translate_disk_errors(self.output):
            entries = sorted(
                self.staging_folder.iterdir(), key=lambda path: path.name in ("modules.json", EncoderManifest.FILE_NAME)
            )
            for entry in entries:
                target = self.output / entry.name
                if target.is_dir():
                    shutil.rmtree(target)  # left by a run that was interrupted here
                entry.replace(target)
            self.staging_folder.rmdir()
            for name in stages:
                remove_checkpoints(self.stage(name), keep_complete=False)
                shutil.rmtree(self.stage(name) / "model", ignore_errors=True)


def write_json(path: Path, value: object) -> None:
    """Write JSON completely or not at all.

    Raises:
        OutputError: the folder cannot be written to.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with translate_disk_errors(path.parent), open_output(path) as file:
        file.write(text.encode())


def _changed_settings(before: Any, now: Any, place: str = "") -> list[str]:
    """List the dotted paths of settings that differ."""
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


def hash_model(folder: Path) -> str:
    """Compute the SHA-256 over the names and hashes of a model's files: weights, tokenizer, and all settings.

    The model card and exported files are not included.
    """
    digest = hashlib.sha256()
    for file in sorted(file for pattern in ("*", "*/*") for file in folder.glob(pattern)):
        if file.suffix in _MODEL_SUFFIXES and file.name not in MANIFESTS and file.is_file():
            digest.update(f"{file.relative_to(folder).as_posix()}\0{hash_file(file)}\0".encode())
    return digest.hexdigest()
