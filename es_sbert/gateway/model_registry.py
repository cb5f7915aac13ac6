"""Load a gateway's models on first use, and find them by fingerprint.

Anyone who may write an index can write its mapping, so the mapping's model name is a claim. The fingerprint is
verified by hashing the model. The name is only compared with other names and never opened as a path, nor passed to the
hub. Models in the registry of the gateway's own user are trusted.
"""

from __future__ import annotations

import asyncio
import logging
import re

from cachetools import LRUCache, TTLCache

from es_sbert.bundle.model_lookup import find_registered_folder, installed_model_folder, resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.shortened_model import split_shortened_name
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import DeviceError, EsSbertError, IndexMismatch, ModelError, ModelNotFound
from es_sbert.gateway.embedder import BatchingEmbedder, VectorCache
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import Limits, ModelSettings, public_name
from es_sbert.index.mapping import VectorFieldMeta

logger = logging.getLogger(__name__)

# Registered folders that did not match are hashed again after this time, not for every search.
_RECHECK_SECONDS = 30.0
# Anyone who may write a mapping can name many models.
_MAX_NAMES = 1000
# Remedy for a missing model.
REGISTER_HINT = (
    "As the user who runs the gateway, register the folder of that model: es-sbert model add FOLDER. Or start the "
    "gateway with --also-model MODEL"
)


class TrustedModels:
    """Finds models by fingerprint. Thread-safe. It reads files, so call it in a thread."""

    def __init__(self, served: tuple[str, ...]) -> None:
        self._served = served
        self._fingerprints: dict[str, str] = {}
        # Name and fingerprint → problems with the registered folders that were searched for it.
        self._unusable: TTLCache[tuple[str | None, str], str] = TTLCache(_MAX_NAMES, _RECHECK_SECONDS)

    def find(self, name: str | None, fingerprint: str) -> str:
        """Find a model with that fingerprint; return its name or folder, for `Encoder`.

        These are searched, in this order: the served models, under any name; the registered models; the installed
        package that provides the name. Not the cache of exported bundles: it holds every model that this user has ever
        loaded.

        Args:
            name: The model name in the mapping.
            fingerprint: The fingerprint in the mapping.

        Raises:
            IndexMismatch: the model of that name has a different fingerprint, or the fingerprint is malformed.
            ModelNotFound: no model has that fingerprint.
        """
        if not re.fullmatch("[0-9a-f]{32}", fingerprint):
            raise IndexMismatch(
                f"{fingerprint!r} is not a model fingerprint: the index's _meta was edited by hand",
                "Load the documents into a new index.",
            )
        # Check the served model of that name first, to avoid hashing the others.
        for model in sorted(self._served, key=lambda model: model != name):
            if self._fingerprint(model) == fingerprint:
                return model
        problem = self._unusable.get((name, fingerprint), "")
        if not problem:
            problems: list[str] = []
            if (folder := find_registered_folder(fingerprint, problems)) is not None:
                return str(folder)
            self._unusable[name, fingerprint] = problem = "; ".join(problems)
        if name is not None and installed_model_folder(name) and self._fingerprint(name) == fingerprint:
            return name
        raise self._unknown(name, fingerprint, problem)

    def _fingerprint(self, model: str) -> str | None:
        """The fingerprint of a model; None if the model cannot be read."""
        if model not in self._fingerprints:
            try:
                self._fingerprints[model] = read_sentence_model(resolve_model(model), model).fingerprint
            except ModelError as error:
                logger.warning("the model %r cannot be compared with that of an index: %s", model, error.message)
                return None
        return self._fingerprints[model]

    def _unknown(self, name: str | None, fingerprint: str, problem: str) -> ModelError | IndexMismatch:
        here = self._fingerprints.get(name or "")
        if here is not None:
            return IndexMismatch(
                f"an index needs the model {name!r} ({fingerprint[:12]}), but this gateway has another model of that "
                f"name ({here[:12]})",
                f"{REGISTER_HINT}, or embed the documents again.",
            )
        # Shortened models are not created on demand: anyone who may write a mapping could fill the disk with them.
        remedy = f"Start it with --model {name}." if split_shortened_name(name or "") else f"{REGISTER_HINT}."
        return ModelNotFound(
            f"an index needs the model {name!r} ({fingerprint[:12]}), which this gateway does not have"
            + (f": {problem}" if problem else ""),
            f"{remedy} Or embed the documents with another model: es-sbert index migrate.",
        )


class ModelRegistry:
    """Embedders by the name or the fingerprint of their model. For one event loop.

    Args:
        settings: The models and their devices.
        limits: Limits of batches and their queue.
        metrics: Counts models, texts and batches.

    Attributes:
        not_ready_reason: Reason why the default model cannot be used; None once it was loaded.
    """

    def __init__(self, settings: ModelSettings, limits: Limits, metrics: GatewayMetrics) -> None:
        self.settings = settings
        self._limits = limits
        self._metrics = metrics
        self._cache = VectorCache(limits.cached_vectors)
        self._trusted = TrustedModels(settings.models)
        self._loads: dict[str, asyncio.Task[BatchingEmbedder]] = {}  # in progress or done
        # Name and fingerprint in a mapping → the embedder of the model that was found for it.
        self._found: LRUCache[tuple[str | None, str], BatchingEmbedder] = LRUCache(_MAX_NAMES)
        self._log = ThrottledLog(logger)
        self.not_ready_reason: str | None = f"the model {settings.public_names[0]} is not loaded yet"

    async def get(self, name: str | None = None, fingerprint: str | None = None) -> BatchingEmbedder:
        """Return the embedder of a model, which is loaded on first use.

        Args:
            name: A model's name for clients, or the model name in a mapping; None is the default model.
            fingerprint: The fingerprint in a mapping. With it, the model is found by fingerprint among all trusted
                models.

        Raises:
            ModelNotFound: the gateway serves no such model.
            IndexMismatch: the model of that name has a different fingerprint.
            ModelError, DeviceError: the model cannot be loaded.
        """
        if fingerprint is None:
            return await self._open(self.settings.find(name))
        embedder = self._found.get((name, fingerprint))
        if embedder is None:
            embedder = await self._open(await asyncio.to_thread(self._trusted.find, name, fingerprint))
            if embedder.info.fingerprint != fingerprint:
                raise IndexMismatch(
                    f"an index needs the model {name!r} ({fingerprint[:12]}), whose folder was changed before it was "
                    f"loaded: it holds another model ({embedder.info.fingerprint[:12]})",
                    f"{REGISTER_HINT}, and restart the gateway.",
                )
            self._found[name, fingerprint] = embedder
        return embedder

    async def for_field(self, meta: VectorFieldMeta, index: str) -> BatchingEmbedder:
        """Return the embedder of a field's model, for a caller who may not read the mapping.

        Args:
            meta: The field's metadata.
            index: The index, for the log.

        Raises:
            ModelError: the model cannot be loaded. The reason, which may name models and folders, is only logged.
        """
        try:
            return await self.get(meta.model or None, meta.fingerprint)
        except (ModelError, IndexMismatch, DeviceError) as error:
            self._log.warning(
                "the model of %s cannot be used: %s. %s", index, error.message, error.remedy, kind="model"
            )
            raise ModelError(
                "the gateway cannot load the model of the vectors", "The gateway's log has the reason and the remedy."
            ) from error

    async def close(self) -> None:
        """Finish the waiting requests and close all models."""
        for embedder in await asyncio.gather(*self._loads.values(), return_exceptions=True):
            if isinstance(embedder, BatchingEmbedder):
                await embedder.drain()
                embedder.close()

    async def _open(self, model: str) -> BatchingEmbedder:
        """Return the embedder of a model, loading it if needed. Concurrent calls share one load."""
        if model not in self._loads:
            self._loads[model] = asyncio.create_task(self._load(model))
        # Shielded: other requests may wait for the same model when one is cancelled.
        return await asyncio.shield(self._loads[model])

    async def _load(self, model: str) -> BatchingEmbedder:
        settings = self.settings
        is_default = model == settings.models[0]
        try:
            encoder = await asyncio.to_thread(
                Encoder,
                model,
                device=settings.device,
                precision=settings.precision,
                runtime=settings.runtime,
                threads=settings.threads,
                report=logger.info,
            )
        except BaseException as error:
            del self._loads[model]  # the next request tries again
            if is_default and isinstance(error, EsSbertError):
                self.not_ready_reason = f"the model {public_name(model)} cannot be loaded; the log says why"
            raise
        for warning in encoder.info.warnings:
            logger.warning("%s: %s", public_name(model), warning)
        if is_default:
            self.not_ready_reason = None
        self._metrics.model_loaded(public_name(model), encoder.info.fingerprint)
        return BatchingEmbedder(encoder, self._limits, self._cache, self._metrics)
