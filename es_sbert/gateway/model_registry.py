"""Load a gateway's models on first use, drop the least recently used, and find models by fingerprint.

Anyone who may write an index can write its mapping, so the mapping's model name is a claim. The fingerprint is
verified by hashing the model. The name is only compared with other names and never opened as a path; it is passed to
the hub only if `download` is set. Models in the registry of the gateway's own user are trusted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

from cachetools import LRUCache

from es_sbert.bundle.fingerprint import is_fingerprint
from es_sbert.bundle.model_lookup import find_registered_folder, installed_model_folder, is_hub_id, resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.shortened_model import split_shortened_name
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import DeviceError, EsSbertError, IndexMismatch, ModelError, ModelNotFound
from es_sbert.gateway.embedder import BatchingEmbedder, VectorCache
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import EmbeddingSettings, ModelSettings, public_name
from es_sbert.index.mapping import VectorFieldMeta

logger = logging.getLogger(__name__)

# Registered folders that did not match are hashed again after this time, not for every search.
_RECHECK_SECONDS = 30.0
_MAX_UNUSABLE = 1000
_MAX_FOUND = 1000
# Remedy for a missing model.
REGISTER_HINT = (
    "As the user who runs the gateway, register the folder of that model: es-sbert model add FOLDER. Or start the "
    "gateway with --also-model MODEL"
)


class TrustedModels:
    """Finds models by fingerprint. Thread-safe. It reads files, so call it in a thread."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._fingerprints: dict[str, str] = {}
        # Name and fingerprint → time when registered folders were searched for it, and problems with them.
        self._unusable: LRUCache[tuple[str | None, str], tuple[float, str]] = LRUCache(_MAX_UNUSABLE)

    def find(self, name: str | None, fingerprint: str) -> str:
        """Find a model with that fingerprint; return its name or folder, for `Encoder`.

        These are searched, in this order: the served models, under any name; the registered models; the installed
        package that provides the name; the hub, if downloads are allowed. Not the cache of exported bundles: it holds
        every model that this user has ever loaded.

        Args:
            name: The model name in the mapping.
            fingerprint: The fingerprint in the mapping.

        Raises:
            IndexMismatch: the model of that name has a different fingerprint, or the fingerprint is malformed.
            ModelNotFound: no model has that fingerprint.
        """
        if not is_fingerprint(fingerprint):
            raise IndexMismatch(
                f"{fingerprint!r} is not a model fingerprint: the index's _meta was edited by hand",
                "Load the documents into a new index.",
            )
        # Check the served model of that name first, to avoid hashing the others.
        for model in sorted(self._settings.models, key=lambda model: model != name):
            if self._fingerprint(model) == fingerprint:
                return model
        registered = self._registered(name, fingerprint)
        if registered is not None:
            return registered
        if name is not None:
            if installed_model_folder(name) and self._fingerprint(name) == fingerprint:
                return name
            if self._settings.download and is_hub_id(name):
                return name
        raise self._unknown(name, fingerprint)

    def _registered(self, name: str | None, fingerprint: str) -> str | None:
        """The folder of a registered model of that fingerprint."""
        checked = self._unusable.get((name, fingerprint))
        if checked is not None and time.monotonic() - checked[0] < _RECHECK_SECONDS:
            return None
        self._unusable.pop((name, fingerprint), None)
        problems: list[str] = []
        folder = find_registered_folder(name, fingerprint, problems)
        if folder is None and problems:
            self._unusable[name, fingerprint] = time.monotonic(), "; ".join(problems)
        return None if folder is None else str(folder)

    def _fingerprint(self, model: str) -> str | None:
        """The fingerprint of a model; None if the model cannot be read."""
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
                f"an index needs the model {name!r} ({fingerprint[:12]}), but this gateway has another model of that "
                f"name ({here[:12]})",
                f"{REGISTER_HINT}, or embed the documents again.",
            )
        problem = self._unusable.get((name, fingerprint), (0.0, ""))[1]
        # Shortened models are not created on demand: anyone who may write a mapping could fill the disk with them.
        remedy = f"Start it with --model {name}." if split_shortened_name(name or "") else f"{REGISTER_HINT}."
        remedy += " Or embed the documents with another model: es-sbert index migrate."
        return ModelNotFound(
            f"an index needs the model {name!r} ({fingerprint[:12]}), which this gateway does not have"
            + (f": {problem}" if problem else ""),
            remedy,
        )


class ModelRegistry:
    """Embedders by the name or the fingerprint of their model. For one event loop.

    Args:
        settings: The models and their devices.
        embedding: Settings of the models' embedders.
        metrics: Counts models, texts and batches.

    Attributes:
        not_ready_reason: Reason why the default model cannot be used; None once it was loaded.
    """

    def __init__(self, settings: ModelSettings, embedding: EmbeddingSettings, metrics: GatewayMetrics) -> None:
        self.settings = settings
        self._embedding = embedding
        self._metrics = metrics
        self._cache = VectorCache(embedding.cached_vectors)
        self._trusted = TrustedModels(settings)
        self._loaded: OrderedDict[str, BatchingEmbedder] = OrderedDict()
        # Name and fingerprint in a mapping → the model that was found for it.
        self._found: LRUCache[tuple[str | None, str], str] = LRUCache(_MAX_FOUND)
        self._loading: dict[str, asyncio.Task[BatchingEmbedder]] = {}
        self._log = ThrottledLog(logger)
        self.not_ready_reason: str | None = f"the model {settings.public_names[0]} is not loaded yet"

    async def get(self, name: str | None = None, fingerprint: str | None = None) -> BatchingEmbedder:
        """Return the embedder of a model, which is loaded on first use.

        Do not keep a reference: a dropped model is closed when its last reference is gone.

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
        model = self._found.get((name, fingerprint))
        if model is None or model not in self._loaded:
            model = await asyncio.to_thread(self._trusted.find, name, fingerprint)
        embedder = await self._open(model)
        if embedder.info.fingerprint != fingerprint:
            # The fingerprint of a model from the hub is only known after loading.
            raise IndexMismatch(
                f"an index needs the model {name!r} ({fingerprint[:12]}), but the hub has another model of that name "
                f"({embedder.info.fingerprint[:12]})",
                f"{REGISTER_HINT}.",
            )
        self._found[name, fingerprint] = model
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
            return await self.get(meta.model or None, meta.fingerprint)  # a remote field has no model name
        except (ModelError, IndexMismatch, DeviceError) as error:
            self._log.warning(
                "the model of %s cannot be used: %s. %s", index, error.message, error.remedy, kind="model"
            )
            raise ModelError(
                "the gateway cannot load the model of the vectors", "The gateway's log has the reason and the remedy."
            ) from error

    async def close(self) -> None:
        """Finish the waiting requests and close all models."""
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for embedder in list(self._loaded.values()):
            await embedder.drain()
            embedder.close()
        self._loaded.clear()

    async def _open(self, model: str) -> BatchingEmbedder:
        """Return the embedder of a model, loading it if needed. Concurrent calls share one load."""
        if model in self._loaded:
            self._loaded.move_to_end(model)
            return self._loaded[model]
        if model not in self._loading:
            self._loading[model] = asyncio.create_task(self._load(model))
            self._loading[model].add_done_callback(lambda _: self._loading.pop(model))
        # Shielded: other requests may wait for the same model when one is cancelled.
        return await asyncio.shield(self._loading[model])

    async def _load(self, model: str) -> BatchingEmbedder:
        settings = self.settings
        default = model == settings.models[0]
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
        except EsSbertError:
            if default and self.not_ready_reason is not None:
                self.not_ready_reason = f"the model {public_name(model)} cannot be loaded; the log says why"
            raise
        for warning in encoder.info.warnings:
            logger.warning("%s: %s", public_name(model), warning)
        if default:
            self.not_ready_reason = None
        embedder = BatchingEmbedder(encoder, self._embedding, self._cache, self._metrics)
        self._metrics.model_loaded(public_name(model), embedder.info.fingerprint)
        self._loaded[model] = embedder
        while len(self._loaded) > settings.in_memory:
            # Not closed: requests may still use it. It is closed when the last reference is gone.
            name, dropped = self._loaded.popitem(last=False)
            self._metrics.model_loaded(public_name(name), dropped.info.fingerprint, -1)
        return embedder
