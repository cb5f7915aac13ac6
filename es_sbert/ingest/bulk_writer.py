"""Send bulk requests: retry on 429 and broken connections, split bodies that are too large, record every outcome.

`ReadBackCheck` reads written documents back and compares them with what was sent: an ingest pipeline sees every
document that is indexed as a whole and may change its text or its vector, and the engine acknowledges the write all the
same. The vector then no longer matches the text, and every later load finds a document that differs from its source. A
load therefore fails as soon as a document differs from what was sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import orjson

from es_sbert.engines.bulk_request import BulkAttempt, BulkItemResult, BulkOutcome, send_bulk, split_in_half
from es_sbert.engines.engine import DocumentKey
from es_sbert.engines.error_mapping import block_remedy
from es_sbert.engines.index_scan import multi_get
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import Backoff
from es_sbert.errors import (
    DocumentsAltered,
    EngineError,
    IndexMismatch,
    IndexMissing,
)
from es_sbert.index.document_vectors import (
    DocumentMeta,
    EmbeddingTarget,
    EmbeddingTargets,
    VectorFieldValue,
    append_members,
    read_document_meta,
    read_stored_vectors,
    row_cosines,
    stored_text,
    targets_to_fill,
    vector_members,
)
from es_sbert.index.mapping import vector_path
from es_sbert.index.source_mode import (
    check_source_is_whole,
    is_in_source,
)
from es_sbert.index.text_template import MISSING, find_field
from es_sbert.index.whole_documents import write_lines
from es_sbert.ingest.ledger import DocumentOutcome, Version, hit_version
from es_sbert.ingest.load_plan import LoadContext
from es_sbert.ingest.load_threads import StageAborted
from es_sbert.ingest.read_documents import Document
from es_sbert.messages import be, log_event, pluralize, setting
from es_sbert.vectors import Vectors


class DocumentAction(NamedTuple):
    """One action of a bulk request.

    Attributes:
        document: The document that it writes.
        body: The line of the action and the line of the document, each with a line feed.
        outcome: The outcome of the document if the engine takes the action.
        fields: The vector fields that it writes.
        lost_tokens: Tokens of its text that the model does not read.
        chunks: Number of chunks that got a vector; 0 if texts are not split.
    """

    document: Document
    body: bytes
    outcome: DocumentOutcome
    fields: tuple[VectorFieldValue, ...] = ()
    lost_tokens: int = 0
    chunks: int = 0


def bulk_lines(document: Document, fields: Sequence[VectorFieldValue], cleared: Sequence[str] = ()) -> bytes:
    """Build the lines that write a document with its vectors.

    A document from a source is indexed as a whole: its bytes, with the vectors and their metadata appended. For a
    document read from the index, only the vectors are updated, see `write_lines`, and only if it was not written in the
    meantime.

    Args:
        cleared: Vector fields whose text a document of the index has lost; they and their metadata are removed.
    """
    if document.version is not None:
        return write_lines(document.hit, vector_members(fields, cleared), document.whole)
    head: Json = {"_id": document.id}
    if document.routing is not None:
        head["routing"] = document.routing
    source = append_members(document.source, vector_members(fields))
    return b"".join((orjson.dumps({"index": head}), b"\n", source, b"\n"))


# The engine is overloaded, or the connection broke before a response arrived.
_OVERLOAD_STATUSES = frozenset({0, 429, 503})
# HTTP 500 for one item may be transient: it is retried, but only within the budget.
_INTERNAL_SERVER_ERROR = 500
_TOO_LARGE = 413


def misrouted_reason(document: Document, result: BulkItemResult, index: str) -> str | None:
    """The reason why a document that the engine acknowledged is not where it was sent to; None if it is.

    Args:
        result: The engine's result for the document.
        index: The index that the document was sent to.
    """
    if document.version is not None:  # ingest pipelines do not see partial updates
        return None
    if result.result == "noop":
        change = "drops it"
    elif (result.id, result.index) != (document.id, index):
        change = f"writes it to {result.index} as {result.id!r}"
    else:
        return None
    return f"an ingest pipeline {change}: see the settings {' and '.join(PIPELINE_SETTINGS)} of {index}"


class BulkWriter:
    """Sends groups of actions; thread-safe.

    Nothing is sent once the engine is unreachable. Once the load is interrupted, a failed request is not retried, and
    nothing is sent after it.

    Args:
        context: The load. Actions go to the index itself: an alias may be moved to another model's index during the
            load, which would mix the vectors of both.

    Attributes:
        read_back: Compares what the engine stores with what was sent.
    """

    def __init__(self, context: LoadContext) -> None:
        self.read_back = ReadBackCheck(context)
        self._context = context
        self._index = context.index.concrete
        self._control = context.control
        self._outcomes = context.outcomes
        self._conflicts: dict[DocumentKey, DocumentAction] = {}
        self._given_up = threading.Event()

    def send(self, actions: list[DocumentAction]) -> None:
        """Send a group; when this returns, every document of it has an outcome."""
        groups = [actions]
        # The backoff also ends when another thread finds the engine unreachable.
        backoff = Backoff(self._context.retry_policy, self._control.stop_embedding)
        while groups:
            groups.extend(reversed(self._send_group(groups.pop(), backoff)))

    def take_conflicts(self) -> dict[DocumentKey, DocumentAction]:
        """Return the updates of documents that other writers changed after they were read; each is returned once.

        Nothing may be sent at the same time.
        """
        conflicts, self._conflicts = self._conflicts, {}
        return conflicts

    def _send_group(self, group: list[DocumentAction], backoff: Backoff) -> Sequence[list[DocumentAction]]:
        """Send one request; return the groups to send next, in order."""
        throttle = self._context.throttle
        if self._leave_if_stopped(group):
            return ()
        if len(group) > 1 and sum(len(action.body) for action in group) > throttle.body_bytes:
            # The group was packed before the limit fell.
            return split_in_half(group)
        with throttle.slot(), self.read_back.exclusive_first_request():
            # The engine may have become unreachable while the group waited for its slot.
            if self._leave_if_stopped(group):
                return ()
            try:
                attempt = send_bulk(group, partial(self._post, len(group), backoff.seconds_left))
            except EngineError as error:
                attempt = BulkAttempt(error=error)
                self._control.stop_sending_after(error)
                self._leave(group)
            self._record(attempt)
        if attempt.statuses & _OVERLOAD_STATUSES:
            throttle.decrease()
        elif _TOO_LARGE in attempt.statuses:
            throttle.limit_body(sum(len(action.body) for action in group))
        if attempt.retryable:
            if len(attempt.retryable) < len(group):
                # Some documents were accepted: the retry budget covers only the time without progress.
                backoff.reset()
            return self._wait(attempt, backoff)
        if attempt.error is None:
            throttle.increase()
        backoff.reset()
        self._control.engine_wait.end()
        return attempt.halves

    def _leave_if_stopped(self, group: Sequence[DocumentAction]) -> bool:
        """Leave the group for the next run if nothing is sent any more; return whether it was left."""
        if not (self._control.engine_lost or self._given_up.is_set()):
            return False
        self._leave(group)
        return True

    def _leave(self, actions: Sequence[DocumentAction]) -> None:
        """Leave the documents of these actions for the next run."""
        self._outcomes.leave([action.document.key for action in actions])

    def _wait(self, attempt: BulkAttempt[DocumentAction], backoff: Backoff) -> Sequence[list[DocumentAction]]:
        """Wait before a retry; return the groups to send then, none if the retries have ended."""
        actions, seconds = attempt.retryable, self._context.retry_policy.budget
        reason = f"{attempt.reason} {block_remedy(attempt.reason)}" if attempt.is_blocked else attempt.reason
        self._control.engine_wait.begin(reason)
        moved = self._context.moved_alias_reason() if attempt.is_blocked else None
        if moved is not None:
            self._control.stop_sending(moved)
        elif backoff.wait():
            self._outcomes.ledger.add(retries=len(actions))
            message = f"{pluralize(len(actions), 'document')} {be(len(actions))} sent again: {attempt.reason}"
            log_event("retry", message, documents=len(actions), reason=attempt.reason)
        elif self._control.stop_embedding.is_set():
            self._leave(actions)
            if attempt.error is not None:
                self._given_up.set()  # each further request might take as long to fail
            return ()
        elif attempt.statuses == {_INTERNAL_SERVER_ERROR} and attempt.error is None:
            for action in actions:
                self._record_failure(action, f"the engine kept failing on it for {seconds:g} s: {attempt.reason}")
            return ()
        else:
            self._control.stop_sending(f"{reason} (retried for {seconds:g} s)")
        if 0 in attempt.statuses and len(actions) > 1:
            # Split, because the body may be the cause: a proxy limits its size, or it keeps the server too busy.
            return split_in_half(actions)
        return (actions,)

    def _post(self, actions: int, seconds: float, body: bytes) -> list[BulkItemResult]:
        """Send one request.

        Args:
            seconds: Maximum time for which the engine itself may wait for a shard.
        """
        self._context.check_index_uuid()
        return self._context.engine.bulk(self._index, body, actions=actions, timeout=seconds)

    def _record(self, attempt: BulkAttempt[DocumentAction]) -> None:
        """Record the outcome of every document that needs no retry."""
        acknowledged: list[tuple[DocumentAction, Version | None]] = []
        others: list[tuple[DocumentAction, BulkItemResult]] = []
        writes = 0
        for action, result in attempt.results:
            if result.ok and misrouted_reason(action.document, result, self._index) is None:
                acknowledged.append((action, result.version))
            else:
                others.append((action, result))
            # An update that changes nothing gets no sequence number.
            writes += result.ok and result.index == self._index and result.result != "noop"
        self._outcomes.record_in_index([(action.document.key, version) for action, version in acknowledged], writes)
        self._record_outcomes([action for action, _ in acknowledged])
        for action, result in others:
            self._record_unwritten(action, result)
        self.read_back.check_first_request([(action, each) for action, each in acknowledged if each is not None])

    def _record_outcomes(self, actions: Sequence[DocumentAction]) -> None:
        """Record the outcomes of documents that the index holds as they were sent."""
        indexed = [(each.lost_tokens, each.chunks) for each in actions if each.outcome is DocumentOutcome.INDEXED]
        self._outcomes.ledger.add_indexed(indexed)
        if len(indexed) < len(actions):
            for action in actions:
                if action.outcome is not DocumentOutcome.INDEXED:
                    self._outcomes.add(action.outcome)

    def _record_unwritten(self, action: DocumentAction, result: BulkItemResult) -> None:
        """Record the outcome of a document that the index does not hold as it was sent."""
        outcome, in_place = result.outcome, action.document.version is not None
        if outcome is BulkOutcome.WRITTEN:
            self._record_failure(action, str(misrouted_reason(action.document, result, self._index)))
        elif outcome in (BulkOutcome.DENIED, BulkOutcome.INDEX_CLOSED):
            self._control.stop_sending_after(result.error(self._context.engine.info.label, f"writing to {self._index}"))
            self._leave([action])
        elif outcome is BulkOutcome.INDEX_MISSING:
            self._leave([action])  # the load ends with an error that says so
        elif in_place and outcome is BulkOutcome.CONFLICT:
            self._uncount_embedded(action)
            self._conflicts[action.document.key] = action
        elif in_place and outcome is BulkOutcome.MISSING:
            self._uncount_embedded(action)
            self._outcomes.add(DocumentOutcome.DELETED)
        else:
            self._record_failure(action, f"refused by the engine ({result.status}): {result.reason}")

    def _record_failure(self, action: DocumentAction, reason: str) -> None:
        self._uncount_embedded(action)
        self._outcomes.record_dead_letter(action.document.rejected(reason))

    def _uncount_embedded(self, action: DocumentAction) -> None:
        if action.outcome is DocumentOutcome.INDEXED:
            self._outcomes.ledger.add(embedded=-1)


# Documents read back after the first bulk request, and at the end of a load.
FIRST_REQUEST_DOCUMENTS = 8
SAMPLE_DOCUMENTS = 32
# Larger documents are read back only if there are no others: a response with a thousand chunks takes megabytes.
_MAX_CHECKED_BYTES = 64 << 10
# Quantized storage and normalization by the engine change a vector far less than that.
_MIN_COSINE = 0.999

PIPELINE_SETTINGS = ("index.default_pipeline", "index.final_pipeline")


# An action that the engine has acknowledged, with `_seq_no` and `_primary_term` of the write.
WrittenAction = tuple[DocumentAction, tuple[int, int]]


class SentDocument(NamedTuple):
    """A document as it was sent.

    Attributes:
        document: The document.
        version: `_seq_no` and `_primary_term` of the write.
        fields: Vector field → its vectors and their metadata.
    """

    document: Document
    version: tuple[int, int]
    fields: Mapping[str, tuple[tuple[Vectors, ...], DocumentMeta]]

    @classmethod
    def from_action(cls, action: DocumentAction, version: tuple[int, int]) -> SentDocument:
        # Copies: a vector of a window is a view that would keep the vectors of the whole window in memory.
        fields = {
            field.field: (tuple(vector.copy() for _, _, vector in read_stored_vectors(field.value)), field.meta)
            for field in action.fields
        }
        return cls(action.document, version, fields)


class ReadBackCheck:
    """Compares documents of a load with what the engine stores of them. Thread-safe.

    Args:
        context: The load.
    """

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        self._state = context.index.state
        self._gate = threading.Lock()
        self._first_checked = False
        self._failed = False
        self._lock = threading.Lock()
        self._sample: list[SentDocument] = []
        self._seen = 0
        self._chance = np.random.default_rng()

    @contextmanager
    def exclusive_first_request(self) -> Iterator[None]:
        """Hold back the second request until documents of the first one were read back.

        Raises:
            StageAborted: documents of the first request differ; another thread has raised the error.
        """
        if self._first_checked:
            yield
            return
        with self._gate:
            if self._failed:
                raise StageAborted
            yield

    def check_first_request(self, acknowledged: Sequence[WrittenAction]) -> None:
        """Read back a few documents of the first bulk request in which the engine accepted any.

        If one differs, the vectors of all documents of the request are removed: these count as not embedded.

        Args:
            acknowledged: Actions that the engine acknowledged; those of later requests are candidates for the sample.

        Raises:
            DocumentsAltered: a document differs from what was sent.
        """
        self._add_to_sample(acknowledged)
        if self._first_checked or not acknowledged:
            return
        fit = [pair for pair in acknowledged if len(pair[0].body) <= _MAX_CHECKED_BYTES]
        fit = fit or [min(acknowledged, key=lambda pair: len(pair[0].body))]
        chosen = fit[:: max(1, len(fit) // FIRST_REQUEST_DOCUMENTS)][:FIRST_REQUEST_DOCUMENTS]
        try:
            self._check([SentDocument.from_action(*pair) for pair in chosen])
        except DocumentsAltered:
            self._failed = True
            self._remove_vectors(acknowledged)
            raise
        except EngineError:
            return  # the next request is checked instead, and fails too if the engine still does
        self._first_checked = True

    def check_sample(self) -> None:
        """Read back documents from all over the load, unless its engine is lost.

        Raises:
            DocumentsAltered: a document differs from what was sent.
        """
        if self._context.control.engine_lost:
            return
        try:
            self._context.retrying(self._check, self._sample)
        except EngineError as error:
            self._context.control.end_early(f"written documents could not be read back: {error.message}")

    def _add_to_sample(self, acknowledged: Sequence[WrittenAction]) -> None:
        """Add documents to the sample, by reservoir sampling: each document of the load has the same chance."""
        fit = [pair for pair in acknowledged if len(pair[0].body) <= _MAX_CHECKED_BYTES]
        with self._lock:
            numbers = np.arange(self._seen + 1, self._seen + len(fit) + 1)  # (documents,)
            self._seen += len(fit)
            for row in np.flatnonzero(self._chance.random(len(fit)) * numbers < SAMPLE_DOCUMENTS).tolist():
                sent = SentDocument.from_action(*fit[row])
                if len(self._sample) < SAMPLE_DOCUMENTS:
                    self._sample.append(sent)
                else:
                    self._sample[self._chance.integers(SAMPLE_DOCUMENTS)] = sent

    def _check(self, sent: Sequence[SentDocument]) -> None:
        context = self._context
        names = [
            name for target in context.targets for name in (*target.template.fields, target.field, target.meta_field)
        ]
        keys = [each.document.key for each in sent]
        try:
            stored = context.engine.mget(context.index.concrete, keys, source_includes=list(dict.fromkeys(names)))
            missing = [each for each, found in zip(sent, stored, strict=True) if found is None]
            pairs = [*zip(sent, stored, strict=True), *self._find_misrouted(missing)]
        except IndexMissing:
            # The index was deleted after the documents were acknowledged.
            raise context.index_replaced_error() from None
        for each, found in pairs:
            # A document that is missing or was written again is skipped: another writer changed it after this write.
            if found is None or hit_version(found) != each.version:
                continue
            differences = _differences(each, found, context.targets, self._state)
            if differences:
                raise self._altered_error(each.document, differences)

    def _find_misrouted(self, missing: Sequence[SentDocument]) -> list[tuple[SentDocument, Json]]:
        """Search for documents that a lookup by id and routing does not find, because another shard holds them."""
        if not missing:
            return []
        engine, name = self._context.engine, self._context.index.concrete
        engine.refresh(name)
        ids = [each.document.id for each in missing]
        hits = multi_get(engine, name, ids, source=engine.info.source_with_vectors())
        return [(each, hit) for each in missing for hit in hits.values() if hit["_id"] == each.document.id]

    def _altered_error(self, document: Document, differences: Sequence[str]) -> DocumentsAltered:
        name, again = self._context.index.concrete, "run the same command again: it embeds again what it wrote"
        if not self._context.plan.sources and self._first_checked:
            # Other documents of the index may be altered too; there is no record of them.
            again = f"embed the documents into a different {setting('vector_field')}"
        return DocumentsAltered(
            f"{name} stores documents that differ from what was sent: in the document {document.id!r}, "
            f"{'; '.join(differences)}",
            f"An ingest pipeline did this ({' or '.join(PIPELINE_SETTINGS)} in `GET {name}/_settings`), a plugin "
            "(`GET _cat/plugins`), or a proxy in front of the engine. Remove the cause; `PUT "
            f'{name}/_settings` with {{"SETTING": "_none"}} switches the one of a setting off. Then {again}.',
        )

    def _remove_vectors(self, acknowledged: Sequence[WrittenAction]) -> None:
        """Remove vectors that may differ from what was sent, by partial updates, which pipelines do not see."""
        lines = []
        for action, version in acknowledged:
            if action.fields:
                hit = action.document._replace(version=version).hit
                change = vector_members((), [field.field for field in action.fields])
                lines.append(write_lines(hit, change, action.document.whole))
        filled = [target.field for target in targets_to_fill(self._context.targets)]
        try:
            if lines:
                # A load from files may write documents of which `_source` lacks other fields.
                check_source_is_whole(self._context.index.state, filled if len(filled) == 1 else ())
                self._context.engine.bulk(self._context.index.concrete, b"".join(lines), actions=len(lines))
        except (EngineError, IndexMismatch) as error:
            log_event("vectors_left", f"the vectors of {len(lines)} documents remain: {error.message}")


def _differences(sent: SentDocument, found: Json, targets: EmbeddingTargets, state: IndexState) -> list[str]:
    """Compare a stored document with the sent one, and return the differences."""
    source: Json = found.get("_source") or {}
    differences = []
    if found.get("_routing") != sent.document.routing:
        differences.append(f"the routing is {found.get('_routing')!r} and not {sent.document.routing!r}")
    for target, text in zip(targets, sent.document.texts, strict=True):
        names = target.template.fields
        if all(is_in_source(name, state) for name in names) and stored_text(source, target) != text:
            differences.append(f"the text {target.template.template!r} is different")
        if is_in_source(vector_path(target.field, target.meta), state):
            differences += _vector_differences(sent, source, target)
        expected = sent.fields.get(target.field)
        meta_is_kept = is_in_source(target.meta_field, state)
        if expected is not None and meta_is_kept and read_document_meta(source, target.meta_field) != expected[1]:
            differences.append(f"{target.meta_field} differs")
    return differences


def _vector_differences(sent: SentDocument, source: Json, target: EmbeddingTarget) -> list[str]:
    field, sent_value = target.field, sent.fields.get(target.field)
    value = find_field(source, field)
    has_vector = value is not MISSING and value is not None
    if sent_value is None:
        # A partial update keeps the vectors that it does not name.
        is_whole = sent.document.version is None
        return [f"{field} has a vector that was not sent"] if has_vector and is_whole else []
    if not has_vector:
        return [f"the vector in {field} is missing"]
    try:
        stored = [vector for _, _, vector in read_stored_vectors(value)]
        if len(stored) != len(sent_value[0]):
            return [f"{field} has {pluralize(len(stored), 'passage')} and not {len(sent_value[0])}"]
        cosine = float(row_cosines(np.stack(stored), np.stack(sent_value[0])).min())
    except (ValueError, TypeError, KeyError):
        return [f"{field} does not have a vector of the form that was sent"]
    return [] if cosine >= _MIN_COSINE else [f"the vector in {field} has the cosine {cosine:.3f} with the one sent"]
