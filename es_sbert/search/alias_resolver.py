"""`AliasResolver`: the index behind an alias and the model of its vectors, looked up again every 30 seconds.

A running program follows an alias that is switched to another index, for example by `es-sbert index migrate`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Engine
from es_sbert.errors import EngineError, IndexMismatch, VectorIndexError
from es_sbert.index.vector_field import VectorField, check_field_model
from es_sbert.search.search_scope import SearchScope, read_search_scope

logger = logging.getLogger(__name__)

# How old the knowledge of what an alias points to may become.
REFRESH_SECONDS = 30.0


@dataclass(frozen=True)
class SearchTarget:
    """What is searched and the encoder of its vectors; they belong together and are replaced together.

    Attributes:
        searched: Vector fields of concrete indices.
        encoder: Of the fields' model; None until it is needed.
    """

    searched: SearchScope
    encoder: Encoder | None

    @property
    def field(self) -> VectorField:
        """The first of the fields, which speaks for the model of all."""
        return self.searched.fields[0]

    @property
    def loaded(self) -> Encoder:
        """The encoder of a target that was taken by `AliasResolver.target`."""
        assert self.encoder is not None, "a target that was taken has its encoder"
        return self.encoder

    def encode(self, text: str) -> dict[str, Vectors]:
        """By vector field, the vector of a text to search for, *shape* ``(dimensions,)``."""
        return dict.fromkeys(self.searched.names, self.loaded.encode(text, "query"))


class AliasResolver:
    """What an alias points to now. Thread-safe.

    A search takes the target once and uses its index and its encoder: even where another thread replaces the target
    meanwhile, the vectors of one model are never compared with those of another.

    Args:
        engine: Where.
        indices: Indices or aliases.
        vector_fields: Their vector fields.
        load: Loads the model of a field.
        is_chosen: Whether the caller has named the model that `load` loads, whatever the field's is.
        encoder: An encoder that is there already, and that the caller closes.

    Raises:
        IndexMissing, IndexMismatch: no such index or field, or an encoder of another model.
        EngineError: the engine cannot be used.
    """

    def __init__(
        self,
        engine: Engine,
        indices: Sequence[str],
        vector_fields: Sequence[str],
        load: Callable[[VectorField], Encoder],
        *,
        is_chosen: bool,
        encoder: Encoder | None,
    ) -> None:
        self._engine = engine
        self._indices = indices
        self._vector_fields = vector_fields
        self._load = load
        self._model_given = is_chosen or encoder is not None
        self._loaded: list[Encoder] = []
        self._lock = threading.Lock()
        self._target = SearchTarget(read_search_scope(engine, indices, vector_fields), encoder)
        if encoder is not None:
            check_field_model(self._target.field, encoder.info.fingerprint, encoder.info.model)
        self._refreshed_at = time.monotonic()

    @property
    def cached_target(self) -> SearchTarget:
        """The target as it is, perhaps without its encoder."""
        return self._target

    def current(self) -> SearchTarget:
        """As `target`, perhaps without its encoder: no model is loaded for it."""
        self._refresh_if_stale()
        return self._target

    def target(self) -> SearchTarget:
        """The target with its encoder; now and then the alias is looked at again.

        While the model of the next index is being loaded, other threads go on with the index that they have. A caller
        who has named a model or given an encoder stays with the old index as long as it stands.

        Raises:
            IndexMismatch: the model that was named is not the field's.
            ModelError, DeviceError: the model cannot be loaded.
        """
        if self._target.encoder is None:
            with self._lock:
                self._target = self._attach_encoder(self._target)
        self._refresh_if_stale()
        return self._target

    def _refresh_if_stale(self) -> None:
        if time.monotonic() - self._refreshed_at > REFRESH_SECONDS and self._lock.acquire(blocking=False):
            try:
                self._refresh_scope()
            except (EngineError, VectorIndexError) as error:
                # The index that is in use still answers, or says by itself what is wrong with it.
                still = ", ".join(self._target.searched.indices)
                logger.warning("%s still searches %s: %s", ", ".join(self._indices), still, error.message)
            finally:
                self._refreshed_at = time.monotonic()
                self._lock.release()

    def after(self, gone: SearchTarget) -> SearchTarget:
        """The target in place of one whose index is gone.

        Raises:
            IndexMissing, IndexMismatch: the alias is gone too, or the next index is another model's than the caller's.
            EngineError, ModelError, DeviceError: it cannot be looked at, or its model cannot be loaded.
        """
        with self._lock:
            if self._target is gone:
                self._refresh_scope()
            return self._target

    def _refresh_scope(self) -> None:
        """The lock is held."""
        searched = read_search_scope(self._engine, self._indices, self._vector_fields)
        if searched == self._target.searched:
            return
        if self._target.encoder is None:
            self._target = SearchTarget(searched, None)
            return
        same = searched.fields[0].meta.fingerprint == self._target.field.meta.fingerprint
        keeps = same or self._model_given
        self._target = self._attach_encoder(SearchTarget(searched, self._target.encoder if keeps else None))

    def _attach_encoder(self, target: SearchTarget) -> SearchTarget:
        encoder = target.encoder
        if encoder is None:
            encoder = self._load(target.field)
            self._loaded.append(encoder)
        try:
            check_field_model(target.field, encoder.info.fingerprint, encoder.info.model)
        except IndexMismatch:
            if encoder is not target.encoder:
                self._loaded.remove(encoder)
                encoder.close()
            raise
        return SearchTarget(target.searched, encoder)

    def close(self) -> None:
        """Close the encoders that were loaded here; those of earlier models may have been in use until now."""
        for encoder in self._loaded:
            encoder.close()
        self._loaded.clear()
