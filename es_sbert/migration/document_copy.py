"""Copy documents from the old index to the new one in rounds, and verify the copy before the swap.

Every write gets the next sequence number of its shard. A round reads a shard's documents in that order, starting after
the last number that was copied, so an interrupted round can resume.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import orjson

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.protocol import BulkItemResult, DocumentKey, Engine, Json, document_key
from es_sbert.engines.retry import Backoff, RetryPolicy, is_retryable, is_transient, with_retries
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.document_vectors import action_metadata, bulk_bodies, if_unchanged, read_stored_vectors, row_cosines
from es_sbert.index.mapping import VectorFieldMeta, random_order_query
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.migration.migration_state import MigrationStateStore, vector_field_names

WriteVersion = tuple[int, int]  # `_seq_no` and `_primary_term`

BODY_BYTES = 5 << 20
CONFLICT = 409
# An external version that every other write in the document's life beats, a deletion included: the engines number their
# own from 1. It accepts documents that have never existed.
_IF_NEVER_WRITTEN: Json = {"version": 1, "version_type": "external"}


@dataclass(frozen=True)
class BulkWrite:
    """One action.

    Attributes:
        key: What tells the document apart.
        body: Its lines.
    """

    key: DocumentKey
    body: bytes


def copy_write(hit: Json, dropped: Collection[str], condition: Json | None = None) -> BulkWrite:
    """Write a document of the old index, without some of its top-level fields.

    Args:
        hit: With `_id`, `_source` and perhaps `_routing`.
        dropped: Fields to leave out.
        condition: Such as `if_seq_no`.
    """
    source = {key: value for key, value in hit["_source"].items() if key not in dropped}
    # The ingest pipeline has processed the document already.
    action = action_metadata(hit) | {"pipeline": "_none"} | (condition or {})
    return BulkWrite(document_key(hit), b"%b\n%b\n" % (orjson.dumps({"index": action}), _to_json(source)))


def late_copy_write(hit: Json, dropped: Collection[str], existing: Json | None) -> BulkWrite:
    """A copy that keeps what another writer has done to the document in the new index, deletion included.

    Args:
        existing: The document in the new index, last written by the migration; None where there is none.
    """
    return copy_write(hit, dropped, _IF_NEVER_WRITTEN if existing is None else if_unchanged(existing))


def delete_write(existing: Json) -> BulkWrite:
    """Remove a document from the new index, unless it was written since it was read."""
    action = {"delete": action_metadata(existing) | if_unchanged(existing)}
    return BulkWrite(document_key(existing), orjson.dumps(action) + b"\n")


def _to_json(source: Json) -> bytes:
    try:
        return orjson.dumps(source)
    except TypeError:
        # Whole numbers beyond 64 bits, which engines keep in fields that they do not index.
        return json.dumps(source, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


T = TypeVar("T")

_CHECKPOINT_SECONDS = 5.0
_PROGRESS_SECONDS = 10.0
_PAGE = 200  # whole documents, with vectors


@dataclass(frozen=True)
class MigrationContext:
    """What the steps of one migration share.

    Attributes:
        engine: Where.
        source, target: The old and the new index.
        state_store: The stored state.
        policy: How long transient failures are waited out.
        control: Stops it from outside.
        late_versions: What late rounds have written into the new index, in this process.
    """

    engine: Engine
    source: str
    target: str
    state_store: MigrationStateStore
    policy: RetryPolicy
    control: LoadControl
    late_versions: dict[DocumentKey, WriteVersion] = field(default_factory=dict)

    @property
    def aborted(self) -> threading.Event:
        """Set when no failed request is tried again: the user stopped the migration."""
        return self.control.stop_retrying

    def send(self, writes: Sequence[BulkWrite]) -> dict[DocumentKey, WriteVersion]:
        """Write into the new index, no two writes of one document; returns when the engine has answered all of them.

        Returns:
            What the engine has written. A write whose condition did not hold (409) is missing: another writer was
            faster.

        Raises:
            EngineError: the engine refuses a document, or has not taken the writes within the policy's budget.
        """
        written: dict[DocumentKey, WriteVersion] = {}
        groups = list(bulk_bodies(writes, BODY_BYTES))
        backoff = Backoff(self.policy, self.aborted)
        while groups:
            group = groups.pop(0)
            try:
                results = self.engine.bulk(self.target, b"".join(write.body for write in group))
            except RequestFailed as error:
                if error.status == 413 and len(group) > 1:
                    half = len(group) // 2
                    groups[:0] = [group[:half], group[half:]]
                elif is_transient(error) and backoff.wait():
                    groups.insert(0, group)
                else:
                    raise
                continue
            pairs = list(zip(group, results, strict=True))
            written |= {
                write.key: result.version for write, result in pairs if result.ok and result.version is not None
            }
            retryable = [write for write, result in pairs if self._is_retryable(write, result)]
            if len(retryable) < len(group):
                backoff.reset()
            if retryable:
                groups.insert(0, retryable)
                if not backoff.wait():
                    reason = next(result.reason for _, result in pairs if is_retryable(result.status))
                    raise RequestFailed(
                        f"{self.engine.info.label} did not take {len(retryable):,} documents within "
                        f"{self.policy.budget:g} s: {reason}",
                        "Check the engine's load and free disk space, then run the same command again to resume.",
                    )
        return written

    def _is_retryable(self, write: BulkWrite, result: BulkItemResult) -> bool:
        """Whether to send a write again.

        Raises:
            RequestFailed: the engine will never accept the document.
        """
        if result.ok or result.status in (404, CONFLICT):
            return False
        if not is_retryable(result.status):
            raise RequestFailed(
                f"{self.engine.info.label} refuses the document {write.key[0]!r} in {self.target}: {result.reason}",
                "Fix or delete that document in the old index, then run the same command again to resume.",
                result.status,
            )
        return True

    def retrying(self, call: Callable[[], T]) -> T:
        """A call's answer; transient failures are retried."""
        answer = with_retries(call, self.policy, self.aborted, lambda error: self.control.set_backoff(error.message))
        self.control.clear_backoff()
        return answer

    def refresh(self, *indices: str) -> None:
        """Let searches see all writes to these indices."""
        for index in indices:
            self.retrying(partial(self.engine.refresh, index))

    def find(self, index: str, ids: Sequence[str], source: Json | bool = False) -> dict[DocumentKey, Json]:
        """The documents of an index that have these ids, as `multi_get` finds them, with `_shard`."""
        return self.retrying(partial(multi_get, self.engine, index, ids, source=source, shards=True))

    def is_migration_write(self, hit: Json) -> bool:
        """Whether the last write to a document of the new index was the migration's."""
        boundary = self.state_store.state.boundary
        if not boundary or int(hit["_seq_no"]) <= boundary[shard_number(hit)]:
            return True
        return self.late_versions.get(document_key(hit)) == (hit["_seq_no"], hit["_primary_term"])


class DocumentCopier:
    """Copies what has changed in the old index since the last round; in the first round, everything.

    Args:
        context: The migration.
        late: Whether the aliases were swapped already: what other writers have done in the new index is kept. Otherwise
            nobody else writes into the new index.
        report: Receives the progress of a long round.
    """

    def __init__(self, context: MigrationContext, report: Callable[[str], None], *, late: bool = False) -> None:
        self._context = context
        self._report = report
        self._late = late

    def copy_changes(self, keys: set[DocumentKey] | None = None) -> int:
        """One round.

        Args:
            keys: Gets the keys of the copied documents.

        Returns:
            Documents copied, or, in a late round, found to be newer in the new index.

        Raises:
            EngineError: the engine fails for longer than the policy allows, or refuses a document.
        """
        context, store = self._context, self._context.state_store
        # First the numbers, then the refresh: every write up to these numbers is visible then.
        numbers = context.retrying(partial(context.engine.sequence_numbers, context.source))
        context.refresh(*((context.target, context.source) if self._late else (context.source,)))
        copied, deletions = list(store.state.copied), False
        count, saved, reported = 0, time.monotonic(), time.monotonic()
        for shard, number in enumerate(numbers):
            begin, seen = copied[shard], 0
            while copied[shard] < number.global_checkpoint:
                page = self._read_page(shard, copied[shard], number.global_checkpoint)
                if not page:
                    break
                self._write_page(page)
                if keys is not None:
                    keys.update(map(document_key, page))
                seen += len(page)
                count += len(page)
                copied[shard] = page[-1]["_seq_no"]
                if time.monotonic() - reported > _PROGRESS_SECONDS:
                    self._report(f"{count:,} documents copied")
                    reported = time.monotonic()
                stopped = context.control.stop.is_set()
                if stopped or time.monotonic() - saved > _CHECKPOINT_SECONDS:
                    # Numbers without a document may have been deletions; the end of the round finds out.
                    store.write(copied=tuple(copied), deletions=True)
                    saved = time.monotonic()
                if stopped:
                    return count
            copied[shard] = max(number.global_checkpoint, begin)
            # Each number belongs to an existing document, or to one that was written again or deleted since.
            deletions |= begin >= 0 and seen < copied[shard] - begin
        deletions |= store.state.deletions
        if (tuple(copied), deletions) != (store.state.copied, store.state.deletions):
            store.write(copied=tuple(copied), deletions=deletions)
        return count

    def _read_page(self, shard: int, after: int, up_to: int) -> list[Json]:
        read = partial(
            self._context.engine.read_changes,
            self._context.source,
            shard,
            after,
            up_to,
            query={"match_all": {}},
            source_includes=["*"],
            page=_PAGE,
            vectors=True,
        )
        return self._context.retrying(read)

    def _write_page(self, page: list[Json]) -> None:
        context = self._context
        dropped = vector_field_names(context.state_store.state.fields)
        if not self._late:
            context.send([copy_write(hit, dropped) for hit in page])
            return
        existing = context.find(context.target, [hit["_id"] for hit in page])
        copies = [(hit, existing.get(document_key(hit))) for hit in page]
        late = [
            late_copy_write(hit, dropped, old) for hit, old in copies if old is None or context.is_migration_write(old)
        ]
        context.late_versions.update(context.send(late))


def shard_number(hit: Json) -> int:
    """Number of the shard of a hit of `MigrationContext.find`."""
    return int(hit["_shard"].rpartition("[")[2].rstrip("]"))


SAMPLE_SIZE = 50
# Batches differ in their padding, precisions in their rounding; another model's vectors are far off.
_MIN_COSINE = 0.999


def verify_copy(context: MigrationContext, encoder: Encoder, fields: dict[str, VectorFieldMeta], seed: int = 0) -> int:
    """Compare counts, and a random sample of documents and of vectors, which are embedded once more.

    Documents that were written in the old index since they were copied may differ.

    Returns:
        Vectors that were compared.

    Raises:
        IndexMismatch: the indices differ.
        EngineError: the engine failed.
    """
    old, new = _count_documents(context)
    numbers = context.engine.sequence_numbers(context.source)
    copied = context.state_store.state.copied
    since = sum(number.max_seq_no - done for number, done in zip(numbers, copied, strict=True))
    if abs(old - new) > since:
        raise _mismatch_error(
            context, f"it holds {new:,} documents, {context.source} {old:,} ({since:,} writes are to come)"
        )
    sample = _read_sample(context, seed)
    _verify_documents(context, sample)
    return sum(_verify_vectors(context, encoder, sample, name, meta) for name, meta in fields.items())


def verify_counts(context: MigrationContext, *, surplus_ok: bool = False) -> bool:
    """Compare counts while the old index takes no writes; both can be searched up to the last write afterwards.

    Args:
        surplus_ok: Whether the new index may still hold documents that were deleted from the old one.

    Returns:
        Whether they are equal.

    Raises:
        IndexMismatch: the new index holds too few documents, or too many.
        EngineError: the engine failed.
    """
    old, new = _count_documents(context)
    if new < old or (new > old and not surplus_ok):
        raise _mismatch_error(context, f"it holds {new:,} documents, {context.source} {old:,}")
    return new == old


def _count_documents(context: MigrationContext) -> tuple[int, int]:
    """Documents of the old index and of the new one, after a refresh."""
    for index in (context.source, context.target):
        context.engine.refresh(index)
    return context.engine.count(context.source), context.engine.count(context.target)


def _read_sample(context: MigrationContext, seed: int) -> list[Json]:
    """Documents of the new index taken at random, whole, with vectors."""
    body: Json = {
        "query": random_order_query(None, seed),
        "size": SAMPLE_SIZE,
        "_source": context.engine.info.source_with_vectors(),
    }
    hits: list[Json] = context.engine.search(context.target, body)["hits"]["hits"]
    return hits


def _verify_documents(context: MigrationContext, sample: list[Json]) -> None:
    """The copies are equal, unless the old document was written since."""
    if not sample:
        return
    copied, dropped = context.state_store.state.copied, vector_field_names(context.state_store.state.fields)
    # In one search: between two, a document may be written again.
    originals = context.find(context.source, [hit["_id"] for hit in sample], context.engine.info.source_with_vectors())
    for hit in sample:
        original = originals.get(document_key(hit))
        if original is None:
            continue  # deleted since; the counts show if many are
        if original["_seq_no"] <= copied[shard_number(original)] and _without_fields(
            hit["_source"], dropped
        ) != _without_fields(original["_source"], dropped):
            raise _mismatch_error(context, f"the document {hit['_id']!r} differs from that in {context.source}")


def _verify_vectors(
    context: MigrationContext, encoder: Encoder, sample: list[Json], name: str, meta: VectorFieldMeta
) -> int:
    """The vectors of one field are those that the encoder gives."""
    if meta.text is None:
        return 0
    template = TextTemplate.parse(meta.text)
    ids, texts, vectors = [], [], []
    for hit in sample:
        value = hit["_source"].get(name)
        if value is None:
            continue
        text = template.render(hit["_source"])
        for start, end, vector in read_stored_vectors(value, len(text)):
            ids.append(hit["_id"])
            texts.append(text[start:end])
            vectors.append(vector)
    if not ids:
        return 0
    expected = encoder.encode(texts, "document")  # (vectors, dimensions)
    for document_id, cosine in zip(ids, row_cosines(np.stack(vectors), expected), strict=True):
        if cosine < _MIN_COSINE:
            raise _mismatch_error(
                context,
                f"the vector of the document {document_id!r} in {name} is not the one that {encoder.info.model} gives "
                f"(cosine {cosine:.4f})",
            )
    return len(ids)


def _without_fields(source: Json, fields: frozenset[str]) -> Json:
    return {key: value for key, value in source.items() if key not in fields}


def _mismatch_error(context: MigrationContext, how: str) -> IndexMismatch:
    alias = context.state_store.state.alias
    return IndexMismatch(
        f"the new index {context.target} cannot replace {context.source}: {how}",
        f"Nothing was swapped. Make sure that only this migration writes to {context.target}, remove it with "
        f"`es-sbert index migrate {alias} --rollback`, and begin again.",
    )
