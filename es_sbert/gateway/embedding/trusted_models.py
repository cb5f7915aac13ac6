"""Find the model that made an index's vectors, by fingerprint, among the models that the operator trusts.

Anyone who may write an index can write its mapping, so the mapping's model name is a claim. The fingerprint is
verified by hashing the model. The name is only compared with other names and never opened as a path; it is passed to
the hub only if `download` is set. Models in the registry of the gateway's own user are trusted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from cachetools import LRUCache

from es_sbert.bundle.bundle import cached_bundle_path, is_encoder_bundle
from es_sbert.bundle.fingerprint import is_fingerprint
from es_sbert.bundle.model_lookup import find_registered_folder, installed_model_folder, is_hub_id, resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.errors import IndexMismatch, ModelError, ModelNotFound
from es_sbert.gateway.settings import ModelSettings

logger = logging.getLogger(__name__)

# Registered folders that hold another model are hashed again after this time, not for every search.
_RECHECK_SECONDS = 30.0
_MAX_UNUSABLE = 1000
# What the operator can do about a model that is not there.
REGISTER_HINT = (
    "As the user who runs the gateway, register the folder of that model: es-sbert model add FOLDER. Or start the "
    "gateway with --also-model FOLDER"
)


class TrustedModels:
    """Finds models by fingerprint. Thread-safe; it reads files, so call it in a thread."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._fingerprints: dict[str, str] = {}
        # Fingerprint → when its registered folders were read, and what is wrong with them.
        self._unusable: LRUCache[str, tuple[float, str]] = LRUCache(_MAX_UNUSABLE)

    def find(self, name: str | None, fingerprint: str) -> str:
        """A model of that fingerprint, as `Encoder` takes it.

        Tried in this order: the served models, under any name; the registered models (`registry.py`); the
        bundles that were exported here before; the installed package that registers the name; the hub, where that is
        allowed.

        Args:
            name: What the mapping calls the model.
            fingerprint: What the mapping says made the vectors.

        Raises:
            IndexMismatch: the model of that name is another one here, or what stands there is no fingerprint.
            ModelNotFound: none of them has it.
        """
        if not is_fingerprint(fingerprint):
            raise IndexMismatch(
                f"{fingerprint!r} is no fingerprint of a model: the index's _meta was edited by hand",
                "Load the documents into a new index.",
            )
        for model in self._served(name):
            if self._fingerprint(model) == fingerprint:
                return model
        registered = self._registered(fingerprint)
        if registered is not None:
            return registered
        folder = cached_bundle_path(fingerprint)
        if is_encoder_bundle(folder):
            return str(folder)
        if name is not None:
            if installed_model_folder(name) and self._fingerprint(name) == fingerprint:
                return name
            if self._settings.download and is_hub_id(name):
                return name
        raise self._unknown(name, fingerprint)

    def _served(self, name: str | None) -> Iterator[str]:
        """The served models, the one of that name first: hashing others may be spared."""
        models = self._settings.models
        yield from sorted(models, key=lambda model: model != name)

    def _registered(self, fingerprint: str) -> str | None:
        """The folder of a registered model of that fingerprint."""
        looked = self._unusable.get(fingerprint)
        if looked is not None and time.monotonic() - looked[0] < _RECHECK_SECONDS:
            return None
        self._unusable.pop(fingerprint, None)
        problems: list[str] = []
        folder = find_registered_folder(fingerprint, problems)
        if folder is None and problems:
            self._unusable[fingerprint] = time.monotonic(), "; ".join(problems)
        return None if folder is None else str(folder)

    def _fingerprint(self, model: str) -> str | None:
        """The fingerprint of a model; None where it cannot be read, which says nothing about the others."""
        if model not in self._fingerprints:
            try:
                self._fingerprints[model] = read_sentence_model(resolve_model(model), model).fingerprint
            except ModelError as error:
                logger.warning("the model %r cannot be compared with that of an index: %s", model, error.message)
                return None
        return self._fingerprints[model]

    def _unknown(self, name: str | None, fingerprint: str) -> ModelError | IndexMismatch:
        here = self._fingerprints.get(name or "")
        if here is not None:
            return IndexMismatch(
                f"an index needs the model {name!r} ({fingerprint[:12]}), and another model of that name is here "
                f"({here[:12]})",
                f"{REGISTER_HINT}, or embed the documents again.",
            )
        problem = self._unusable.get(fingerprint, (0.0, ""))[1]
        return ModelNotFound(
            f"an index needs the model {name!r} ({fingerprint[:12]}), which this gateway does not have"
            + (f": {problem}" if problem else ""),
            f"{REGISTER_HINT}.",
        )
