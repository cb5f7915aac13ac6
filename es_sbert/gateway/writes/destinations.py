"""`DestinationResolver`: the vector fields of the index that a write goes to."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from cachetools import TTLCache

from es_sbert.engines.protocol import Json
from es_sbert.errors import AccessDenied
from es_sbert.gateway.errors import ThrottledLog, log_detail
from es_sbert.gateway.index_lookup import IndexLookup
from es_sbert.gateway.proxy.incoming_request import CallerCacheKeys, Headers
from es_sbert.gateway.proxy.upstream import Upstream
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets
from es_sbert.index.mapping import VectorFieldMeta, vector_fields
from es_sbert.index.text_template import TextTemplate

logger = logging.getLogger(__name__)

_CACHE_SIZE = 1000
# An index that just got its vector field must not go without vectors for long; where there are vectors, the mapping is
# looked at again once they are made.
_CACHE_SECONDS = 1.0
# Bytes of memory for a number of a vector: as float32, and in the request that is sent.
_BYTES_PER_NUMBER = 16
# Bytes of a text for a token, at least.
_BYTES_PER_TOKEN = 2


@dataclass(frozen=True)
class Destination:
    """Where a write goes.

    Attributes:
        index: Name by which one document can be looked up there.
        targets: The vector fields whose text is known; none where it has no vectors.
        without_text: Names of the vector fields whose text is not known.
    """

    index: str
    targets: EmbeddingTargets = ()
    without_text: tuple[str, ...] = ()

    @classmethod
    def of(cls, index: str, fields: Mapping[str, VectorFieldMeta]) -> Destination:
        """The destination with these vector fields."""
        targets = tuple(
            EmbeddingTarget(name, TextTemplate.parse(meta.text), meta)
            for name, meta in fields.items()
            if meta.text is not None
        )
        return cls(index, targets, tuple(name for name, meta in fields.items() if meta.text is None))

    @property
    def has_vectors(self) -> bool:
        """Whether it has any vector field."""
        return bool(self.targets or self.without_text)

    def vector_bytes(self, source_bytes: int) -> int:
        """An estimate of the memory for the vectors of a document of this size."""
        return (
            sum(_vector_count(target.meta, source_bytes) * target.meta.dimensions for target in self.targets)
            * _BYTES_PER_NUMBER
        )


class DestinationResolver:
    """Finds out where writes go, and remembers for a moment.

    Args:
        upstream: The engine.
        indices: Looks mappings up.
    """

    def __init__(self, upstream: Upstream, indices: IndexLookup) -> None:
        self._upstream = upstream
        self._indices = indices
        self._keys = CallerCacheKeys()
        self._log = ThrottledLog(logger)
        self._known: TTLCache[bytes, Destination] = TTLCache(_CACHE_SIZE, _CACHE_SECONDS)

    def invalidate(self) -> None:
        """Ask anew from now on: something about indices is being changed."""
        self._known.clear()

    async def known(self, name: str, headers: Headers) -> Destination:
        """Where a write to this name goes, or went a moment ago. As `now`."""
        found = self._known.get(self._keys.key(headers, name))
        return await self.now(name, headers) if found is None else found

    async def now(self, name: str, headers: Headers) -> Destination:
        """Where a write to this name goes.

        A caller who may not look at the mapping writes without vectors.

        Args:
            name: Index, alias or data stream; of what does not exist, the index template decides.
            headers: The caller's.

        Raises:
            IndexMismatch: a damaged `_meta.es_sbert`.
            EngineUnreachable, RequestFailed: the engine cannot be asked.
        """
        try:
            found = await self._ask(name, headers)
        except AccessDenied as error:
            self._log.warning("documents for %s pass without vectors: %s", name, log_detail(error))
            found = Destination(name)
        self._known[self._keys.key(headers, name)] = found
        return found

    async def _ask(self, name: str, headers: Headers) -> Destination:
        searched = await self._indices.get_for_write(name, headers)
        if searched is None:
            return Destination(name)  # the engine itself says so to the caller
        if not searched.exists:
            return Destination.of(name, await self._of_template(name, headers))
        if not searched or name in searched.fields:
            return Destination.of(name, searched.fields.get(name, {}))
        # An alias or a data stream: its other indices may have vectors where the one that is written to has none.
        index, alone = await self._write_index(name, headers)
        return Destination.of(name if alone else index, searched.fields.get(index, {}))

    async def _write_index(self, name: str, headers: Headers) -> tuple[str, bool]:
        """The concrete index that takes the writes, and whether it is the only one of that name."""
        resolved = await self._get(f"/_resolve/index/{quote(name, safe='')}", headers)
        with self._upstream.parsing("GET /_resolve/index"):
            for stream in resolved.get("data_streams", ()):
                if stream["name"] == name:
                    return str(stream["backing_indices"][-1]), False
            behind = next((alias["indices"] for alias in resolved.get("aliases", ()) if alias["name"] == name), None)
            if behind is None:
                # A name with a date in it.
                behind = [index["name"] for index in resolved.get("indices", ())]
            names = [behind] if isinstance(behind, str) else behind
            if len(names) == 1:
                return names[0], True
        aliases = await self._get(f"/_alias/{quote(name, safe='')}", headers)
        with self._upstream.parsing("GET /_alias"):
            return _write_index_of_alias(name, aliases) or "", False

    async def _of_template(self, name: str, headers: Headers) -> dict[str, VectorFieldMeta]:
        """What an index of that name would have; nothing where the caller may not ask."""
        target = f"/_index_template/_simulate_index/{quote(name, safe='')}"
        answer = await self._upstream.request("POST", target, self._indices.lookup_credentials(headers))
        if answer.status != 200 or not isinstance(answer.body, dict):
            return {}
        with self._upstream.parsing("POST /_index_template/_simulate_index"):
            mappings = answer.body.get("template", {}).get("mappings", {})
            return vector_fields(mappings.get("_doc", mappings), name)

    async def _get(self, path: str, headers: Headers) -> Json:
        answer = await self._upstream.request("GET", path, self._indices.lookup_credentials(headers))
        return self._upstream.require_object(answer, f"GET {path}")


def _vector_count(meta: VectorFieldMeta, source_bytes: int) -> int:
    return 1 if meta.passages is None else 1 + source_bytes // (meta.passages.tokens * _BYTES_PER_TOKEN)


def _write_index_of_alias(alias: str, indices: Mapping[str, Json]) -> str | None:
    """The index that an alias of several writes to; None where it takes no writes."""
    said: Iterable[tuple[str, Json]] = ((index, state["aliases"].get(alias, {})) for index, state in indices.items())
    return next((index for index, options in said if options.get("is_write_index")), None)
