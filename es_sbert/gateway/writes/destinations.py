"""`DestinationResolver`: find the vector fields of the index that a write goes to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

from cachetools import LRUCache, TTLCache

from es_sbert.engines.error_mapping import is_missing_api
from es_sbert.engines.index_state import matches_patterns
from es_sbert.engines.rest import Json
from es_sbert.errors import AccessDenied
from es_sbert.gateway.errors import BadRequest, ThrottledLog, log_detail
from es_sbert.gateway.incoming_request import Headers, caller_cache_key
from es_sbert.gateway.index_lookup import NEW_FIELD_SECONDS, IndexLookup, read_vector_fields
from es_sbert.gateway.upstream import Upstream
from es_sbert.gateway.writes.missing_vectors import MissingVectors, NoVectorReason, UnreadReason
from es_sbert.index.document_vectors import EmbeddingTarget, EmbeddingTargets
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextTemplate

logger = logging.getLogger(__name__)

_CACHE_SIZE = 1000
# Of legacy templates, those with vector fields have mappings in the response.
_LEGACY_FILTER = urlencode({"filter_path": "*.index_patterns,*.mappings._meta.es_sbert,*.mappings._doc._meta.es_sbert"})
# Memory per dimension of a vector, in bytes: its float32 value and its JSON in the request.
_BYTES_PER_NUMBER = 16
# Minimum bytes of text for a token.
_BYTES_PER_TOKEN = 2


@dataclass(frozen=True)
class Destination:
    """The destination of a write.

    Attributes:
        index: Name by which a document can be read.
        routing: Routing of documents that are written to it without one; None if reading by `index` implies it.
        targets: The vector fields whose text is known.
        without_text: Names of the vector fields whose text is not known.
        missing: The reason why documents get no vector for some vector fields: its mapping cannot be read, or it lacks
            fields that other indices of the alias or data stream have, as after a rollover without an index template.
        refused: The error of its documents: the index would be created by a legacy template with vector fields.
    """

    index: str
    targets: EmbeddingTargets = ()
    without_text: tuple[str, ...] = ()
    missing: NoVectorReason | None = None
    routing: str | None = None
    refused: BadRequest | None = None

    @classmethod
    def from_fields(cls, index: str, fields: Mapping[str, VectorFieldMeta]) -> Destination:
        """Create the destination with these vector fields."""
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

    def vector_bytes(self, source_bytes: int, listed_strings: int) -> int:
        """Estimate the memory for the vectors of a document of this size.

        Args:
            listed_strings: The most strings that its lists can hold; each is a chunk if the field has chunks.
        """
        numbers = 0
        for meta in (target.meta for target in self.targets):
            numbers += meta.dimensions
            if meta.passages is not None:
                chunks = listed_strings + source_bytes // (meta.passages.tokens * _BYTES_PER_TOKEN)
                numbers += chunks * meta.dimensions
        return numbers * _BYTES_PER_NUMBER


class DestinationResolver:
    """Resolves the destinations of writes, with a cache of one second. The mapping is read again after embedding.

    Args:
        upstream: The engine.
        indices: Resolves mappings.
        missing: Counts and logs writes that may have passed without the vector of a new field.
    """

    def __init__(self, upstream: Upstream, indices: IndexLookup, missing: MissingVectors) -> None:
        self._upstream = upstream
        self._indices = indices
        self._missing = missing
        self._log = ThrottledLog(logger)
        self._known: TTLCache[bytes, Destination] = TTLCache(_CACHE_SIZE, NEW_FIELD_SECONDS)
        # Name → requests since its mapping was read and had no vector field.
        self._without_vectors: LRUCache[str, int] = LRUCache(_CACHE_SIZE)

    def invalidate(self) -> None:
        """Drop cached destinations, because indices are about to change."""
        self._known.clear()

    async def get(self, name: str, headers: Headers, *, fresh: bool = False) -> Destination:
        """Resolve the destination of a write.

        A caller who is not allowed to read the mapping writes without vectors.

        Args:
            name: Index, alias or data stream; if it does not exist, its index template is used.
            headers: The caller's headers.
            fresh: Do not use a cached result.

        Raises:
            IndexMismatch: `_meta.es_sbert` of a mapping is invalid.
            EngineUnreachable, RequestFailed: the lookup failed.
        """
        key = caller_cache_key(headers, name)
        destination = None if fresh else self._known.get(key)
        if destination is not None:
            self._without_vectors[name] = 0 if destination.has_vectors else self._without_vectors.get(name, 0) + 1
            return destination
        try:
            destination = await self._look_up(name, headers)
            if self._upstream.updates_keep_vectors:
                destination = replace(
                    destination,
                    targets=tuple(
                        replace(target, meta=target.meta.model_copy(update={"in_source": True}))
                        for target in destination.targets
                    ),
                )
        except AccessDenied as error:
            self._log.warning("documents for %s pass without vectors: %s", name, log_detail(error))
            destination = Destination(name, missing=NoVectorReason.MAPPING_UNREADABLE)
        self._known[key] = destination
        passed = self._without_vectors.pop(name, 0)
        if destination.has_vectors and passed:
            self._missing.record_unread(name, UnreadReason.NEW_FIELD, passed)
        return destination

    async def _look_up(self, name: str, headers: Headers) -> Destination:
        written = await self._indices.get_for_write(name, headers)
        if written is None:
            return Destination(name)  # the engine rejects the write
        searched, index = written.indices, written.index
        if not searched.exists:
            # OpenSearch does not resolve date math in the simulation, and neither resolves it in legacy templates.
            created = searched.missing if name.startswith("<") else name
            if not created:
                raise self._upstream.malformed_response("the response to GET /INDEX does not name the missing index")
            try:
                return Destination.from_fields(name, await self._of_template(created, headers))
            except BadRequest as error:
                return Destination(name, refused=error)
        # Of an alias or a data stream, indices other than the write index may have vectors.
        write_fields = {} if index is None else searched.fields.get(index.name, {})
        lacks_field = any(
            field not in write_fields and meta.text is not None
            for fields in searched.fields.values()
            for field, meta in fields.items()
        )
        missing = NoVectorReason.NO_FIELD if lacks_field else None
        if index is None:
            return Destination(name, missing=missing)  # the engine rejects the write
        if written.is_only and index.data_stream is None:
            return Destination.from_fields(name, write_fields)  # an alias of one index implies its routing
        destination = Destination.from_fields(index.name, write_fields)
        return replace(destination, missing=missing, routing=index.alias(name).get("index_routing"))

    async def _of_template(self, name: str, headers: Headers) -> dict[str, VectorFieldMeta]:
        """Look up the vector fields that the index templates give to a new index.

        Raises:
            AccessDenied: reading the templates is not allowed.
            BadRequest: a legacy template has vector fields.
            EngineUnreachable, RequestFailed: the lookup failed.
        """
        simulate = "/_index_template/_simulate_index"
        simulated = await self._read_templates("POST", f"{simulate}/{quote(name, safe='')}", headers)
        with self._upstream.parsing(f"POST {simulate}"):
            template = simulated.get("template")
            if template is not None:
                mappings = template.get("mappings", {})
                template |= {"mappings": mappings.get("_doc", mappings)}
                return read_vector_fields(template, name, self._upstream.engine_type_or_default)
        # Legacy templates apply if no composable one does.
        legacy = await self._read_templates("GET", f"/_template?{_LEGACY_FILTER}", headers)
        with self._upstream.parsing("GET /_template"):
            for label, body in legacy.items():
                if "mappings" in body and matches_patterns(name, body.get("index_patterns", [])):
                    raise BadRequest(
                        f"the legacy template {label!r}, which applies to the new index {name!r}, has vector fields",
                        f"Only composable templates can have them: send it as `PUT _index_template/{label}`, and "
                        f"delete the old one by `DELETE _template/{label}`.",
                    )
        return {}

    async def _read_templates(self, method: str, target: str, headers: Headers) -> Json:
        """Read a response about templates; empty if the engine does not have the API."""
        action = f"{method} {target.partition('?')[0]}"
        reply = await self._upstream.request(method, target, self._indices.lookup_credentials(headers))
        if reply.status != 200 and is_missing_api(reply.body):
            return {}
        return self._upstream.require_answer(reply, action)
