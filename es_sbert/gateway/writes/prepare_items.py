"""Add vectors to the items of a write request: resolve indices, read previous documents, detect changes, embed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from es_sbert.batched import batched
from es_sbert.bundle.modules import PromptKind
from es_sbert.clock import Clock
from es_sbert.engines.engine_info import EngineInfo
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineUnreachable, EsSbertError, IndexMismatch
from es_sbert.gateway.concurrency import gather_or_cancel, offload_if_large
from es_sbert.gateway.embedder import BatchingEmbedder
from es_sbert.gateway.errors import ThrottledLog, log_detail, unknown_text_error, without_details
from es_sbert.gateway.incoming_request import Headers, credential_headers
from es_sbert.gateway.metrics import GatewayMetrics
from es_sbert.gateway.model_registry import ModelRegistry
from es_sbert.gateway.settings import GatewaySettings
from es_sbert.gateway.upstream import Upstream, UpstreamReply
from es_sbert.gateway.writes.bulk_items import DOCUMENT_STARTS, BulkItem
from es_sbert.gateway.writes.destinations import Destination, DestinationResolver
from es_sbert.gateway.writes.document_changes import (
    NoPreviousDocument,
    PreviousDocument,
    WriteItem,
    WriteKey,
    detect_vector_changes,
)
from es_sbert.gateway.writes.missing_vectors import MissingVectors, NoVectorReason
from es_sbert.index.document_vectors import ChunkedText, EmbeddingTarget, VectorFieldValue, build_field_value
from es_sbert.vectors import Vectors

logger = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)

# Concurrent lookups of indices per request.
_MAX_CONCURRENT_LOOKUPS = 16


class PreparedItems(NamedTuple):
    """Items of a request, those with changed vectors rewritten.

    Attributes:
        items: All items of the request.
        rejected: Number of an item that is not sent → its error.
    """

    items: list[BulkItem]
    rejected: Mapping[int, EsSbertError]


class ItemPreparer:
    """Adds vectors to items, and counts and logs the documents that get none.

    Args:
        settings: Settings of the gateway.
        upstream: The engine.
        destinations: Resolves the indices of items.
        models: The models of the vector fields.
        metrics: Counts documents.
        missing: Counts and logs documents without a vector.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        upstream: Upstream,
        destinations: DestinationResolver,
        models: ModelRegistry,
        metrics: GatewayMetrics,
        missing: MissingVectors,
    ) -> None:
        self._upstream = upstream
        self._destinations = destinations
        self._embedder = DocumentEmbedder(models, settings.limits.waiting_texts)
        self._documents = metrics.documents
        self._missing = missing
        self._log = ThrottledLog(logger)
        self._mapping_log = ThrottledLog(logger, interval=math.inf)  # of problems that last until it is changed
        self._clock = Clock()

    async def resolve(self, names: Iterable[str], headers: Headers, *, fresh: bool = False) -> dict[str, Destination]:
        """Return the destination of writes to each of these names.

        Args:
            names: Indices, aliases or data streams.
            headers: The caller's headers.
            fresh: Do not use cached results.

        Raises:
            EsSbertError: the engine is not available, or a mapping is invalid.
        """
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT_LOOKUPS)

        async def resolve_one(name: str) -> Destination:
            async with semaphore:
                return await self._destinations.get(name, headers, fresh=fresh)

        sorted_names = sorted(names)
        try:
            return dict(zip(sorted_names, await gather_or_cancel(map(resolve_one, sorted_names)), strict=True))
        except IndexMismatch as error:
            # The documents are valid: the same request succeeds once the mapping is repaired.
            raise without_details(error, "the vector fields in the mapping of the index cannot be filled") from error

    async def prepare(self, items: Sequence[BulkItem], headers: Headers) -> PreparedItems | None:
        """Add vectors to items; None if all are sent unchanged.

        Args:
            headers: The caller's headers.

        Raises:
            EsSbertError: the engine is not available, or the vector fields are unknown.
        """
        try:
            return await self._prepare(items, headers)
        except EsSbertError as error:
            self.report_refused(error, sum(item.has_document for item in items))
            raise

    def report_refused(self, error: EsSbertError, documents: int) -> None:
        """Report documents that are refused because an error leaves their vector fields unknown."""
        if not isinstance(error, EngineUnreachable):
            self._log.warning("requests are rejected: %s", log_detail(error))
            self._documents.labels("refused").inc(documents)

    def report_missing_fields(self, destinations: Mapping[str, Destination], counts: Mapping[str, int]) -> None:
        """Report documents for indices that lack a vector field, or whose mapping cannot be read.

        They are written: nothing has failed, and the engine accepts them.

        Args:
            counts: Number of documents by the name of the index.
        """
        for name, destination in destinations.items():
            if destination.missing is NoVectorReason.NO_FIELD:
                self._missing.record(name, [destination.missing], counts[name])
            elif destination.missing is not None:
                self._missing.count([destination.missing], counts[name])

    async def _prepare(self, items: Sequence[BulkItem], headers: Headers) -> PreparedItems | None:
        # Items that are not JSON objects are rejected by the engine.
        names = {item.index for item in items if item.index and item.source.startswith(DOCUMENT_STARTS)}
        destinations = await self.resolve(names, headers)
        size = sum(len(item.source) for item in items)
        while True:
            written = await offload_if_large(size, parse_items, items, destinations)
            errors = await self._detect_changes(written, destinations, headers, size)
            errors |= {
                number: refused
                for number, item in enumerate(items)
                if item.index in destinations and (refused := destinations[item.index].refused) and item.has_document
            }
            # Items with errors are not sent.
            changed = [item for item in written if item.is_changed and item.number not in errors]
            if not changed and not errors:
                break
            embedded = await self._embedder([text for item in changed for text in item.to_embed])
            # Resolve again: an alias may now point to another index, whose vectors are from another model.
            changing = [name for name, destination in destinations.items() if destination.has_vectors]
            latest = await self.resolve(changing, headers, fresh=True)
            if all(destinations[name] == destination for name, destination in latest.items()):
                break
            destinations |= latest
        if any(destination.missing for destination in destinations.values()):
            self.report_missing_fields(destinations, Counter(item.index for item in items if item.has_document))
        self._report_missing_vectors(written, errors)
        if not changed and not errors:
            return None
        size += sum(text.vectors.nbytes for text in embedded if isinstance(text, EmbeddedText))
        # The version is not requested, because a writer may lack the privilege. All versions accept lists of numbers.
        engine = EngineInfo(self._upstream.engine_type_or_default, (0, 0, 0), self._upstream.url)
        prepared, failed = await offload_if_large(
            size, add_vectors, items, changed, embedded, engine, self._clock.now()
        )
        self._documents.labels("embedded").inc(
            sum(bool(item.to_embed) and item.number not in failed for item in changed)
        )
        rejected = {**errors, **failed}
        self._documents.labels("refused").inc(len(rejected))
        for number, error in rejected.items():
            self._log.warning("documents for %s are rejected: %s", items[number].index, log_detail(error))
        return PreparedItems(prepared, rejected)

    async def _detect_changes(
        self, written: Sequence[WriteItem], destinations: Mapping[str, Destination], headers: Headers, size: int
    ) -> dict[int, EsSbertError]:
        """Set the changes of items; return the errors of items whose changes are unknown, by their number."""
        documents, lookup_errors = await read_previous_documents(self._upstream, written, destinations, headers)
        await offload_if_large(size, detect_vector_changes, written, documents)
        errors = {item.number: error for item in written if (error := item.error) is not None}
        return errors | {
            item.number: lookup_errors[item.key]
            for item in written
            if item.key in lookup_errors and item.changes and item.needed
        }

    def _report_missing_vectors(self, written: Sequence[WriteItem], errors: Mapping[int, EsSbertError]) -> None:
        """Count and log the documents for indices with vector fields that lack a vector, except those of the errors."""
        for item in written:
            name = item.item.index
            lacking = {reason for change in item.changes.values() for reason in change.lacking}
            if lacking and item.number not in errors:
                self._missing.record(name, lacking, partly=bool(item.to_embed))
            if item.unseen is not None:
                self._missing.record(name, [item.unseen])
            elif item.without_text and item.doc is not None and not item.creates:
                self._missing.count([NoVectorReason.TEXT_UNKNOWN])
                message = "partial updates of documents in %s pass without a new vector: %s"
                self._mapping_log.warning(message, name, log_detail(unknown_text_error()))


_PROMPT_KIND: PromptKind = "document"
_UNUSABLE_MODEL = "the model of the vector field cannot be loaded by the gateway"
# Share of the queue that one request may occupy.
_QUEUE_SHARE = 1 / 16
# Texts that are split at once; other requests are embedded in between.
_SPLIT_BATCH = 16


@dataclass(frozen=True)
class EmbeddedText:
    """A text, split into chunks if the field has chunk rules, and its vectors.

    Attributes:
        chunked: The text.
        vectors: *Shape:* ``(chunks, dimensions)`` float32.
        tokens: Tokens of each chunk, before truncation.
        max_tokens: Tokens that the model reads of a chunk.
    """

    chunked: ChunkedText
    vectors: Vectors
    tokens: list[int]
    max_tokens: int


class DocumentEmbedder:
    """Embeds texts of documents.

    Args:
        models: The models of the vector fields.
        waiting_texts: Maximum number of queued texts of all requests.
    """

    def __init__(self, models: ModelRegistry, waiting_texts: int) -> None:
        self._models = models
        self._batch = max(1, int(waiting_texts * _QUEUE_SHARE))

    async def __call__(self, texts: Sequence[tuple[EmbeddingTarget, str]]) -> list[EmbeddedText | EsSbertError]:
        """Embed texts, each for a vector field. The result of a text that cannot be embedded is its error."""
        results: dict[int, EmbeddedText | EsSbertError] = {}
        rows_by_model = _group_rows((target.meta.model, target.meta.fingerprint) for target, _ in texts)
        for (model, fingerprint), rows in rows_by_model.items():
            embedded = await self._of_model(model, fingerprint, [texts[row] for row in rows])
            results.update(zip(rows, embedded, strict=True))
        return [results[row] for row in range(len(texts))]

    async def _of_model(
        self, model: str, fingerprint: str, field_texts: Sequence[tuple[EmbeddingTarget, str]]
    ) -> Sequence[EmbeddedText | EsSbertError]:
        try:
            embedder = await self._models.get(model, fingerprint)
            chunked = await self._chunk(embedder, field_texts)
        except EsSbertError as error:
            return [without_details(error, _UNUSABLE_MODEL)] * len(field_texts)
        texts = [text for each in chunked for text in each.texts]
        vectors = np.empty((len(texts), embedder.info.dimensions), np.float32)  # (texts, dimensions)
        tokens = np.zeros(len(texts), np.int64)  # (texts,)
        problems: dict[int, EsSbertError] = {}  # by the row of a text
        # Texts of similar length are embedded together: a batch is padded to its longest text.
        for rows in batched(sorted(range(len(texts)), key=lambda row: len(texts[row])), self._batch):
            try:
                encoded = await embedder.embed([texts[row] for row in rows], _PROMPT_KIND)
            except EsSbertError as error:
                problems |= dict.fromkeys(rows, without_details(error, _UNUSABLE_MODEL))
                continue
            vectors[rows], tokens[rows] = encoded.vectors, encoded.tokens
        results: list[EmbeddedText | EsSbertError] = []
        limit = embedder.input_limit(_PROMPT_KIND)
        first = 0
        for each in chunked:
            start, first = first, first + len(each.texts)
            problem = next((problems[row] for row in range(start, first) if row in problems), None)
            own_tokens = tokens[start:first].tolist()
            results.append(problem or EmbeddedText(each, vectors[start:first], own_tokens, limit))
        return results

    async def _chunk(
        self, embedder: BatchingEmbedder, field_texts: Sequence[tuple[EmbeddingTarget, str]]
    ) -> list[ChunkedText]:
        chunked = [ChunkedText(target, text) for target, text in field_texts]
        for rules, rows in _group_rows(target.meta.passages for target, _ in field_texts).items():
            if rules is None:
                continue
            chunker = await embedder.chunker(rules)
            for part in batched(rows, _SPLIT_BATCH):
                split = await embedder.run_in_thread(chunker, [field_texts[row][1] for row in part])
                for row, spans in zip(part, split, strict=True):
                    chunked[row] = ChunkedText.cut(*field_texts[row], spans)
        return chunked


def _group_rows(keys: Iterable[K]) -> dict[K, list[int]]:
    """Key → the numbers of its rows."""
    rows: dict[K, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return rows


_MGET = "POST /_mget"


async def read_previous_documents(
    upstream: Upstream, written: Iterable[WriteItem], destinations: Mapping[str, Destination], headers: Headers
) -> tuple[dict[WriteKey, PreviousDocument], dict[WriteKey, EsSbertError]]:
    """Read the documents that writes depend on, in one request with the caller's permissions.

    Args:
        destinations: Index name of items → destination.
        headers: The caller's headers.

    Returns:
        The documents, and the errors of those that could not be read.

    Raises:
        EngineUnreachable: the engine did not respond.
    """
    requests: dict[WriteKey, Json] = {}
    for item in written:
        read = (*item.needed, *item.compared)
        if item.key is not None and read:
            destination = destinations[item.item.index]
            location = {"_index": destination.index, "_id": item.item.id}
            routing = destination.routing if item.item.routing is None else item.item.routing
            if routing is not None:
                location["routing"] = routing
            request = requests.setdefault(item.key, {**location, "_source": []})
            request["_source"] = list(dict.fromkeys([*request["_source"], *read]))
    if not requests:
        return {}, {}
    answer = await upstream.request("POST", "/_mget", credential_headers(headers), {"docs": list(requests.values())})
    if answer.status != 200 or not isinstance(answer.body, dict):
        error = upstream.reply_error(answer, _MGET)
        return dict.fromkeys(requests, NoPreviousDocument.UNKNOWN), dict.fromkeys(requests, error)
    documents: dict[WriteKey, PreviousDocument] = {}
    errors: dict[WriteKey, EsSbertError] = {}
    with upstream.parsing(_MGET):
        for key, document in zip(requests, answer.body["docs"], strict=True):
            documents[key] = _previous_document(document)
            if documents[key] is NoPreviousDocument.UNKNOWN:
                denied = document.get("error", {}).get("type") == "security_exception"
                errors[key] = upstream.reply_error(UpstreamReply(403 if denied else 503, document), _MGET)
    return documents, errors


def _previous_document(document: Json) -> PreviousDocument:
    if "error" in document:
        missing = document["error"].get("type") == "index_not_found_exception"
        return NoPreviousDocument.MISSING if missing else NoPreviousDocument.UNKNOWN
    source: Any = document.get("_source")
    if not document.get("found"):
        return NoPreviousDocument.MISSING
    return source if isinstance(source, dict) else NoPreviousDocument.UNKNOWN


def parse_items(items: Iterable[BulkItem], destinations: Mapping[str, Destination]) -> list[WriteItem]:
    """Parse the items for indices with vector fields.

    Args:
        destinations: Destination of each index name.
    """
    return [
        WriteItem.from_bulk_item(item, destination.targets, destination.without_text, number)
        for number, item in enumerate(items)
        if (destination := destinations.get(item.index)) is not None and destination.has_vectors
    ]


def add_vectors(
    items: Sequence[BulkItem],
    changed: Sequence[WriteItem],
    embedded: Sequence[EmbeddedText | EsSbertError],
    info: EngineInfo,
    embedded_at: str,
) -> tuple[list[BulkItem], dict[int, EsSbertError]]:
    """Add vectors to items.

    Args:
        embedded: For each text of `changed`, in order.
        info: The engine, which determines the format of a vector.
        embedded_at: Time of the embedding.

    Returns:
        All items, and the number of an item that could not be embedded → its error.
    """
    prepared = list(items)
    errors: dict[int, EsSbertError] = {}
    results = iter(embedded)
    for item in changed:
        filled: dict[str, list[VectorFieldValue]] = {member: [] for member in item.changes}
        for member, change in item.changes.items():
            for result in islice(results, len(change.to_embed)):
                if isinstance(result, EsSbertError):
                    errors[item.number] = result
                else:
                    measured = result.vectors, result.tokens, result.max_tokens
                    made = build_field_value(info, result.chunked, *measured, change.document_hash, embedded_at)
                    filled[member].append(made)
        if item.number not in errors:
            prepared[item.number] = item.with_vectors(filled)
    return prepared, errors
