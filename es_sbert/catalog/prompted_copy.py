"""Copy a model folder and add prompts, for models that were trained with prompts that their folder does not state."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from es_sbert.bundle.local_registry import FolderState, RegisteredModel, register_model
from es_sbert.bundle.model_files import read_optional_json, write_json
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.errors import UsageError
from es_sbert.exporters.export_bundle import copy_model
from es_sbert.filesystem import is_vacant, staged_folder

_SETTINGS = "config_sentence_transformers.json"


def stated_prompts(folder: Path) -> dict[str, str]:
    """The prompts that a model folder states; empty if it states none."""
    stated = read_optional_json(folder / _SETTINGS).get("prompts")
    return stated if isinstance(stated, dict) else {}


def add_prompts(folder: Path, prompts: Mapping[str, str]) -> None:
    """Add prompts to those of a model folder."""
    settings = read_optional_json(folder / _SETTINGS)
    write_json(folder / _SETTINGS, {**settings, "prompts": {**stated_prompts(folder), **prompts}})


def copy_and_register(
    model: SentenceModel, output: Path, name: str, prompts: Mapping[str, str], report: Callable[[str], None]
) -> RegisteredModel:
    """Copy a model, add prompts, and register the copy. An output that holds the same copy is kept.

    Args:
        model: The model.
        output: Folder of the copy.
        name: Name under which to register it.
        prompts: Maps prompt names to the text in front of an input.
        report: Called before slow steps.

    Raises:
        UsageError: the output is not empty and holds something else, or the name is not valid.
        ModelError: the copy is not a valid model.
        OutputError: the folder cannot be written.
        RegistryInvalid: the registry is broken.
    """
    if not is_vacant(output):
        with tempfile.TemporaryDirectory() as work:
            fingerprint = _write_copy(model, Path(work), prompts)
        if RegisteredModel(name, fingerprint, output).state() is not FolderState.PRESENT:
            raise UsageError(
                f"{output} is not empty and does not hold this copy of {model.name}",
                "Remove it, or choose another folder with `output`.",
            )
        return register_model(output, fingerprint, name=name)
    report(f"Copying {model.name}")
    with staged_folder(output) as folder:
        fingerprint = _write_copy(model, folder, prompts)
    return register_model(output, fingerprint, name=name)


def _write_copy(model: SentenceModel, folder: Path, prompts: Mapping[str, str]) -> str:
    """Write the copy, and return its fingerprint."""
    copy_model(model, folder)
    add_prompts(folder, prompts)
    return read_sentence_model(folder, model.name).fingerprint
