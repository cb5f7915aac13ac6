"""Models of a gateway: loaded on first use, dropped when the least recently used, found by fingerprint.

Anyone who may write an index can write its mapping, so the mapping's model name is a claim. The fingerprint is
verified by hashing the model. The name is only compared with other names and never opened as a path; it is passed to
the hub only if `download` is set. Models in the registry of the gateway's own user are trusted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator

from cachetools import LRUCache

from es_sbert.bundle.bundle import cached_bundle_path, is_encoder_bundle
from es_sbert.bundle.fingerprint import is_fingerprint
from es_sbert.bundle.model_lookup import find_registered_folder, installed_model_folder, is_hub_id, resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import DeviceError, EsSbertError, IndexMismatch, ModelError, ModelNotFound
from es_sbert.gateway.embedding.embedder import BatchingEmbedder, VectorCache
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import EmbeddingSettings, ModelSettings, public_name
from es_sbert.index.mapping import VectorFieldMeta

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


class ModelRegistry:
    """Embedders by the name or the fingerprint of their model. For one event loop.

    Args:
        settings: Which models, and where they run.
        embedding: How their texts are put together.
        metrics: Told what happens.
    """

    def __init__(self, settings: ModelSettings, embedding: EmbeddingSettings, metrics: GatewayMetrics) -> None:
        self.settings = settings
        self._embedding = embedding
        self._metrics = metrics
        self._cache = VectorCache(embedding.cached_vectors)
        self._trusted = TrustedModels(settings)
        self._kept: OrderedDict[str, BatchingEmbedder] = OrderedDict()
        self._loading: dict[str, asyncio.Task[BatchingEmbedder]] = {}
        self._log = ThrottledLog(logger)
        self._default_loaded = False
        self._default_failed = False

    async def get(self, name: str | None = None, fingerprint: str | None = None) -> BatchingEmbedder:
        """The embedder of a model.

        Hold it as long as you need it and no longer: a model that was dropped from memory is closed when the last
        holder lets go.

        Args:
            name: A served model as a client names it, or what an index's mapping calls its model; None is the default.
            fingerprint: What an index's mapping says made its vectors. With it the model is found by fingerprint, and
                may be one that the index names and the operator trusts (`trust.py`).

        Raises:
            ModelNotFound: the gateway serves no such model.
            IndexMismatch: the model of that name has another fingerprint.
            ModelError, DeviceError: it cannot be loaded.
        """
        if fingerprint is None:
            return await self._open(self.settings.find(name))
        for model, embedder in self._kept.items():
            if embedder.info.fingerprint == fingerprint:
                self._kept.move_to_end(model)
                return embedder
        embedder = await self._open(await asyncio.to_thread(self._trusted.find, name, fingerprint))
        if embedder.info.fingerprint != fingerprint:
            # A model from the hub is known only now.
            raise IndexMismatch(
                f"an index needs the model {name!r} ({fingerprint[:12]}), and the hub has another model of that name "
                f"({embedder.info.fingerprint[:12]})",
                f"{REGISTER_HINT}.",
            )
        return embedder

    async def for_field(self, meta: VectorFieldMeta, index: str) -> BatchingEmbedder:
        """The embedder of the model that made a field's vectors, for a caller who may not know the mapping.

        Args:
            meta: What the mapping says of the field.
            index: The index, for the log.

        Raises:
            ModelError: it cannot be loaded. Why is in the log: it may name models and folders.
        """
        try:
            return await self.get(meta.model, meta.fingerprint)
        except (ModelError, IndexMismatch, DeviceError) as error:
            self._log.warning(
                "the model of %s cannot be used: %s. %s", index, error.message, error.remedy, kind="model"
            )
            raise ModelError(
                "the model that made the vectors cannot be loaded by the gateway",
                "The gateway's log says why, and what its operator can do.",
            ) from error

    @property
    def not_ready_reason(self) -> str | None:
        """Why texts cannot be embedded by the default model; None once it was loaded."""
        if self._default_loaded:
            return None
        name = self.settings.public_names[0]
        if self._default_failed:
            return f"the model {name} cannot be loaded; the log says why"
        return f"the model {name} is not loaded yet"

    async def close(self) -> None:
        """Answer those who wait, and close all models."""
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for embedder in list(self._kept.values()):
            await embedder.drain()
            embedder.close()
        self._kept.clear()

    async def _open(self, model: str) -> BatchingEmbedder:
        """One of those in memory, or else loaded, once for all who ask meanwhile."""
        if model in self._kept:
            self._kept.move_to_end(model)
            return self._kept[model]
        if model not in self._loading:
            self._loading[model] = asyncio.create_task(self._load(model))
            self._loading[model].add_done_callback(lambda _: self._loading.pop(model))
        # Shielded: others may wait for the same model when one caller gives up.
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
                threads=settings.threads,
                report=logger.info,
            )
        except EsSbertError:
            self._default_failed |= default
            raise
        for warning in encoder.info.warnings:
            logger.warning("%s: %s", public_name(model), warning)
        self._default_loaded |= default
        embedder = BatchingEmbedder(encoder, self._embedding, self._cache, self._metrics)
        self._metrics.model_loaded(public_name(model), embedder.info.fingerprint)
        self._kept[model] = embedder
        while len(self._kept) > settings.in_memory:
            # Not closed: callers may hold it, and the last of them closes it by letting go.
            name, dropped = self._kept.popitem(last=False)
            self._metrics.model_loaded(public_name(name), dropped.info.fingerprint, -1)
        return embedder
