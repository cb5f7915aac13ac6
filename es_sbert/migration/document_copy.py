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

from es_sbert.encoder.batching import Vectors
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.protocol import BulkItemResult, DocumentKey, Engine, Json, document_key
from es_sbert.engines.retry import Backoff, RetryPolicy, is_retryable, is_transient, with_retries
from es_sbert.errors import IndexMismatch, RequestFailed
from es_sbert.index.document_vectors import bulk_bodies, read_stored_vectors
from es_sbert.index.mapping import VectorFieldMeta, random_order_query
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest.pipeline import LoadControl
from es_sbert.migration.migration_state import MigrationStateStore, vector_field_names

WriteVersion = tuple[int, int]  # `_seq_no` and `_primary_term`

BODY_BYTES = 5 << 20
CONFLICT = 409
# An external version that every other write in the document's life beats, a deletion included: the engines number their
# own from 1. It lets through what has never been there.
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


def copy_write(hit: Json, dropped: Collection[str], guard: Json | None = None) -> BulkWrite:
    """Write a document of the old index, without some of its top-level fields.

    Args:
        hit: With `_id`, `_source` and perhaps `_routing`.
        dropped: Fields to leave out.
        guard: Conditions, e.g. `if_seq_no`.
    """
    source = {key: value for key, value in hit["_source"].items() if key not in dropped}
    # Its pipeline has made the document what it is: a second time would make another one of it.
    head = _action_metadata(hit) | {"pipeline": "_none"} | (guard or {})
    return BulkWrite(document_key(hit), b"%b\n%b\n" % (orjson.dumps({"index": head}), _to_json(source)))


def late_copy_write(hit: Json, dropped: Collection[str], there: Json | None) -> BulkWrite:
    """A copy that gives way to whatever another writer has done to the document in the new index, deletion included.

    Args:
        there: The document in the new index, last written by us; None where there is none.
    """
    return copy_write(hit, dropped, _IF_NEVER_WRITTEN if there is None else if_unchanged(there))


def delete_write(there: Json) -> BulkWrite:
    """Remove a document from the new index, unless it was written since it was looked at."""
    return BulkWrite(
        document_key(there), orjson.dumps({"delete": _action_metadata(there) | if_unchanged(there)}) + b"\n"
    )


def if_unchanged(hit: Json) -> Json:
    """The condition that a document is as it was seen."""
    return {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}


def _action_metadata(hit: Json) -> Json:
    head: Json = {"_id": hit["_id"]}
    return head if hit.get("_routing") is None else head | {"routing": hit["_routing"]}


def _to_json(source: Json) -> bytes:
    try:
        return orjson.dumps(source)
    except TypeError:
        # Whole numbers beyond 64 bits, which engines keep in fields that they do not index.
        return json.dumps(source, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def send_writes(
    engine: Engine, index: str, writes: Sequence[BulkWrite], policy: RetryPolicy, aborted: threading.Event
) -> dict[DocumentKey, WriteVersion]:
    """Send writes, no two of one document; returns when the engine has answered all of them.

    Returns:
        What the engine has written. A write whose condition did not hold (409) is missing: another writer was faster.

    Raises:
        EngineError: the engine refuses a document, or has not taken the writes within the policy's budget.
    """
    written: dict[DocumentKey, WriteVersion] = {}
    for group in bulk_bodies(writes, BODY_BYTES):
        written |= _send_group(engine, index, group, policy, aborted)
    return written


def _send_group(
    engine: Engine, index: str, group: list[BulkWrite], policy: RetryPolicy, aborted: threading.Event
) -> dict[DocumentKey, WriteVersion]:
    waiting, backoff = group, Backoff(policy, aborted)
    written: dict[DocumentKey, WriteVersion] = {}
    while waiting:
        try:
            results = engine.bulk(index, b"".join(write.body for write in waiting))
        except RequestFailed as error:
            if error.status == 413 and len(waiting) > 1:
                half = len(waiting) // 2
                for part in (waiting[:half], waiting[half:]):
                    written |= _send_group(engine, index, part, policy, aborted)
                return written
            if not is_transient(error) or not backoff.wait():
                raise
            continue
        pairs = list(zip(waiting, results, strict=True))
        for write, result in pairs:
            _check_result(engine, index, write, result)
            if result.ok and result.version is not None:
                written[write.key] = result.version
        again = [write for write, result in pairs if is_retryable(result.status)]
        if len(again) < len(waiting):
            backoff.reset()
        waiting = again
        if waiting and not backoff.wait():
            reason = next(result.reason for _, result in pairs if is_retryable(result.status))
            raise RequestFailed(
                f"{engine.info.label} did not take {len(waiting):,} documents within {policy.budget:g} s: {reason}",
                "Look at the engine's load and free disk space; the same command goes on where it was.",
            )
    return written


def _check_result(engine: Engine, index: str, write: BulkWrite, result: BulkItemResult) -> None:
    if not result.ok and result.status not in (404, CONFLICT) and not is_retryable(result.status):
        raise RequestFailed(
            f"{engine.info.label} refuses the document {write.key[0]!r} in {index}: {result.reason}",
            "Mend or delete that document in the old index; the same command goes on where it was.",
            result.status,
        )


T = TypeVar("T")

_CHECKPOINT_SECONDS = 5.0
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
        late: What late rounds have written into the new index, in this process.
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

    def send(self, writes: list[BulkWrite]) -> dict[DocumentKey, WriteVersion]:
        """Write into the new index; what was written."""
        return send_writes(self.engine, self.target, writes, self.policy, self.aborted)

    def retrying(self, call: Callable[[], T]) -> T:
        """A call's answer; transient failures are waited out."""
        answer = with_retries(call, self.policy, self.aborted, lambda error: self.control.set_backoff(error.message))
        self.control.clear_backoff()
        return answer

    def find(self, index: str, ids: Sequence[str], source: Json | bool = False) -> dict[DocumentKey, Json]:
        """The documents of an index that have these ids, as `look_up` finds them, with `_shard`."""
        return self.retrying(partial(multi_get, self.engine, index, ids, source=source, shards=True))


def copy_changes(
    context: MigrationContext, on_copied: Callable[[int], None], keys: set[DocumentKey] | None = None
) -> int:
    """Copy what has changed in the old index since the last round; everything, in the first.

    Only before the swap: nobody else writes into the new index.

    Args:
        keys: Gets what tells the copied documents apart.

    Returns:
        Documents copied.

    Raises:
        EngineError: an engine that fails for longer than the policy allows, or refuses a document.
    """

    def write(page: list[Json], dropped: frozenset[str]) -> None:
        context.send([copy_write(hit, dropped) for hit in page])
        if keys is not None:
            keys.update(map(document_key, page))

    return _copy_round(context, on_copied, write)


def copy_late_changes(context: MigrationContext, on_copied: Callable[[int], None]) -> int:
    """As `copy_changes`, after the swap: what other writers have done in the new index meanwhile stays.

    A document that another late round has copied, and that was written in the old index once more, is copied again.

    Returns:
        Documents copied, or found to be newer in the new index.
    """

    def write(page: list[Json], dropped: frozenset[str]) -> None:
        there = context.find(context.target, [hit["_id"] for hit in page])
        late = []
        for hit in page:
            found = there.get(document_key(hit))
            if found is None or is_migration_write(context, found):
                late.append(late_copy_write(hit, dropped, found))
        context.late_versions.update(context.send(late))

    # Documents of the round before are to be seen.
    context.retrying(lambda: context.engine.refresh(context.target))
    return _copy_round(context, on_copied, write)


def _copy_round(
    context: MigrationContext, on_copied: Callable[[int], None], write: Callable[[list[Json], frozenset[str]], object]
) -> int:
    engine, state_store = context.engine, context.state_store
    dropped = vector_field_names(state_store.state.fields)
    # First the numbers, then the refresh: whatever has one of them can be seen then.
    numbers = context.retrying(lambda: engine.sequence_numbers(context.source))
    context.retrying(lambda: engine.refresh(context.source))
    copied, deletions = list(state_store.state.copied), False
    count, noted = 0, time.monotonic()
    for shard, number in enumerate(numbers):
        begin, seen = copied[shard], 0
        while copied[shard] < number.global_checkpoint:
            ask = partial(
                engine.read_changes,
                context.source,
                shard,
                copied[shard],
                number.global_checkpoint,
                query={"match_all": {}},
                source_includes=["*"],
                page=_PAGE,
                vectors=True,
            )
            page = context.retrying(ask)
            if not page:
                break
            write(page, dropped)
            seen += len(page)
            count += len(page)
            copied[shard] = page[-1]["_seq_no"]
            on_copied(len(page))
            if time.monotonic() - noted > _CHECKPOINT_SECONDS:
                # Numbers between those of documents may have been deletions, which the end of the round sees to.
                state_store.write(copied=tuple(copied), deletions=True)
                noted = time.monotonic()
            if context.control.stop.is_set():
                state_store.write(copied=tuple(copied), deletions=True)
                return count
        copied[shard] = max(number.global_checkpoint, begin)
        # Every number belongs to a document that stands, or to one that was written again or deleted since.
        deletions |= begin >= 0 and seen < copied[shard] - begin
    deletions |= state_store.state.deletions
    if (tuple(copied), deletions) != (state_store.state.copied, state_store.state.deletions):
        state_store.write(copied=tuple(copied), deletions=deletions)
    return count


def is_migration_write(context: MigrationContext, hit: Json) -> bool:
    """Whether the last write to a document of the new index was the migration's."""
    boundary = context.state_store.state.boundary
    if not boundary or int(hit["_seq_no"]) <= boundary[shard_number(hit)]:
        return True
    return context.late_versions.get(document_key(hit)) == (hit["_seq_no"], hit["_primary_term"])


def shard_number(hit: Json) -> int:
    """Number of the shard in which a hit of `MigrationContext.find` stands."""
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
    engine = context.engine
    engine.refresh(context.source)
    engine.refresh(context.target)
    old, new = engine.count(context.source), engine.count(context.target)
    numbers = engine.sequence_numbers(context.source)
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
    engine = context.engine
    engine.refresh(context.source)
    engine.refresh(context.target)
    old, new = engine.count(context.source), engine.count(context.target)
    if new < old or (new > old and not surplus_ok):
        raise _mismatch_error(context, f"it holds {new:,} documents, {context.source} {old:,}")
    return new == old


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
            continue  # deleted meanwhile; the counts tell if many are
        if original["_seq_no"] <= copied[shard_number(original)] and _without_fields(
            hit["_source"], dropped
        ) != _without_fields(original["_source"], dropped):
            raise _mismatch_error(context, f"the document {hit['_id']!r} is not as it is in {context.source}")


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
    for document_id, cosine in zip(ids, _cosines(np.stack(vectors), expected), strict=True):
        if cosine < _MIN_COSINE:
            raise _mismatch_error(
                context,
                f"the vector of the document {document_id!r} in {name} is not the one that {encoder.info.model} gives "
                f"(cosine {cosine:.4f})",
            )
    return len(ids)


def _cosines(one: Vectors, two: Vectors) -> Vectors:
    """Cosine of each pair of rows. *Shape:* ``(rows,)``."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    cosines: Vectors = (one * two).sum(axis=1) / lengths
    return cosines


def _without_fields(source: Json, fields: frozenset[str]) -> Json:
    return {key: value for key, value in source.items() if key not in fields}


def _mismatch_error(context: MigrationContext, how: str) -> IndexMismatch:
    alias = context.state_store.state.alias
    return IndexMismatch(
        f"the new index {context.target} is not fit to take the place of {context.source}: {how}",
        f"Nothing was swapped. Make sure that only this migration writes to {context.target}, remove it with "
        f"`es-sbert index migrate {alias} --rollback`, and begin again.",
    )
