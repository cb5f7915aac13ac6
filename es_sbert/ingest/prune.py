"""`--prune`: remove documents that an earlier load from files wrote and that the source no longer has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

import orjson

from es_sbert.engines.error_mapping import access_denied
from es_sbert.engines.multi_get import multi_get
from es_sbert.engines.protocol import DocumentKey, Engine, Json, document_key
from es_sbert.engines.retry import Backoff, RetryPolicy, is_retryable, with_retries
from es_sbert.errors import EngineError, RequestFailed
from es_sbert.index.document_vectors import EmbeddingTargets, targets_to_fill
from es_sbert.ingest.checkpoint import LoadCheckpoint
from es_sbert.ingest.load_context import LoadContext, refresh_index
from es_sbert.ingest.pipeline import LoadControl

_SAMPLE = 5
_PAGE = 1000
_CONFLICT = 409
_FORBIDDEN = 403


@dataclass(frozen=True)
class PruneCandidates:
    """Documents of an index that the source no longer has.

    Attributes:
        count: How many.
        loaded: How many documents from files the index holds in all.
        sample: Some of their ids.
    """

    count: int
    loaded: int
    sample: tuple[str, ...]


ConfirmPrune = Callable[[PruneCandidates], bool]


class Pruner:
    """Finds and removes documents that were not met in a whole pass over the source.

    Documents that other writers put into the index are left alone: they lack the hash that a load from files writes.

    Args:
        engine: Where.
        index: Index or alias.
        targets: The load's vector fields, beside whose vectors the hashes stand.
        memory: What was met.
        policy: How long transient failures are waited out.
        control: Told to stop.
        on_retry: Called with the number of documents that are sent again.
    """

    def __init__(
        self,
        engine: Engine,
        index: str,
        targets: EmbeddingTargets,
        memory: LoadCheckpoint,
        policy: RetryPolicy,
        control: LoadControl,
        on_retry: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._index = index
        hashes = [{"exists": {"field": f"{target.meta_field}.document_hash"}} for target in targets_to_fill(targets)]
        self._query: Json = {"bool": {"should": hashes, "minimum_should_match": 1}}
        self._memory = memory
        self._policy = policy
        self._control = control
        self._on_retry = on_retry

    def find(self) -> PruneCandidates:
        """Count them.

        Raises:
            EngineError: the engine failed.
        """
        count, loaded = 0, 0
        sample: list[str] = []
        for page in self._engine.scan(self._index, query=self._query, source_includes=[], page=_PAGE):
            loaded += len(page)
            for hit in self._gone(page):
                count += 1
                if len(sample) < _SAMPLE:
                    sample.append(str(hit["_id"]))
        return PruneCandidates(count, loaded, tuple(sample))

    def remove(self) -> int:
        """Remove them, but for those that were written since they were seen; how many were removed.

        Raises:
            EngineError: the engine failed; the same command goes on.
        """
        removed = 0
        for page in self._engine.scan(self._index, query=self._query, source_includes=[], page=_PAGE):
            if self._control.stop.is_set():
                break
            removed += self._delete(list(self._gone(page)))
        return removed

    def _gone(self, page: list[Json]) -> Iterator[Json]:
        there = self._memory.holds([hit["_id"] for hit in page])
        return (hit for hit in page if hit["_id"] not in there)

    def _standing(self, hits: list[Json]) -> Collection[DocumentKey]:
        """Which documents stand in the index now that have the ids of these hits."""
        self._engine.refresh(self._index)
        return multi_get(self._engine, self._index, [hit["_id"] for hit in hits]).keys()

    def _delete(self, hits: list[Json]) -> int:
        removed = 0
        backoff = Backoff(self._policy, self._control.no_waiting)
        while hits:
            body = b"".join(_delete_action(hit) for hit in hits)
            send, number = partial(self._engine.bulk, self._index, body, timeout=backoff.left), len(hits)

            def count(error: EngineError, number: int = number) -> None:
                self._on_retry(number)

            results = with_retries(send, self._policy, self._control.no_waiting, count)
            again, conflicts = [], []
            for hit, result in zip(hits, results, strict=True):
                if result.ok:
                    removed += 1
                elif is_retryable(result.status):
                    again.append(hit)
                elif result.status == _CONFLICT:
                    conflicts.append(hit)
                elif result.status == _FORBIDDEN:
                    label = self._engine.info.label
                    raise access_denied(label, f"removing {hit['_id']!r} from {self._index}", result.reason)
                else:
                    raise RequestFailed(
                        f"{self._engine.info.label} does not remove {hit['_id']!r} from {self._index}: {result.reason}",
                        "Mend the reason and run the same command again: it goes on with what is left.",
                        result.status,
                    )
            if conflicts:
                # Where an answer got lost, the next try meets documents that are no longer there.
                there = with_retries(partial(self._standing, conflicts), self._policy, self._control.no_waiting, count)
                removed += sum(document_key(hit) not in there for hit in conflicts)
            if again and not backoff.wait():
                raise RequestFailed(
                    f"{self._engine.info.label} is too busy to remove documents (tried for {self._policy.budget:g} s)",
                    "Run the same command again later: it goes on with what is left.",
                    429,
                )
            self._on_retry(len(again))
            hits = again
        return removed


def prune_index(context: LoadContext, confirm: ConfirmPrune) -> tuple[int, list[str]]:
    """How many documents were removed, and what must be said about those that were not."""
    assert context.memory is not None, "a load of files remembers what it met"
    settings = context.plan.settings
    pruner = Pruner(
        context.engine,
        settings.index,
        context.targets,
        context.memory,
        context.policy,
        context.control,
        context.outcomes.ledger.add_retries,
    )
    gone = pruner.find()
    if not gone.count:
        return 0, []
    kept = f"{gone.count:,} documents of the index are no longer in the source; none of them was removed"
    if not context.outcomes.ledger.read:
        return 0, [f"{kept}, since the source holds no document at all: an export that failed looks the same"]
    if context.outcomes.rejected:
        broken = f"{context.outcomes.rejected:,} records of the source cannot be used"
        return 0, [f"{kept}, since {broken}: their documents would be taken for gone"]
    if not confirm(gone):
        return 0, [kept]
    removed = pruner.remove()
    refresh_index(context)
    return removed, []


def _delete_action(hit: Json) -> bytes:
    head = {"_id": hit["_id"], "if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    if "_routing" in hit:
        head["routing"] = hit["_routing"]
    return orjson.dumps({"delete": head}, option=orjson.OPT_APPEND_NEWLINE)
