"""Models of a gateway, loaded on first use and dropped when the least recently used."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import DeviceError, EsSbertError, IndexMismatch, ModelError
from es_sbert.gateway.embedding.embedder import BatchingEmbedder, VectorCache
from es_sbert.gateway.embedding.trusted_models import REGISTER_HINT, TrustedModels
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.settings import EmbeddingSettings, ModelSettings, public_name
from es_sbert.gateway.throttled_log import ThrottledLog
from es_sbert.index.mapping import VectorFieldMeta

logger = logging.getLogger(__name__)


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
            self._metrics.model_dropped(public_name(name), dropped.info.fingerprint)
        return embedder
