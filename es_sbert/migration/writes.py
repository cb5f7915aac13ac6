"""Bulk lines of copies, and their way into the new index."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson

from es_sbert.engines.hits import Key, key_of
from es_sbert.engines.protocol import Engine, ItemResult, Json
from es_sbert.errors import RequestFailed
from es_sbert.index.bulk_lines import bodies
from es_sbert.ingest.retry import Backoff, RetryPolicy, is_transient, passes

Version = tuple[int, int]  # `_seq_no` and `_primary_term`

BODY_BYTES = 5 << 20
CONFLICT = 409
# An external version that every other write in the document's life beats, a deletion included: the engines number their
# own from 1. It lets through what has never been there.
_NEVER_THERE: Json = {"version": 1, "version_type": "external"}


@dataclass(frozen=True)
class Write:
    """One action.

    Attributes:
        key: What tells the document apart.
        body: Its lines.
    """

    key: Key
    body: bytes


def copy_of(hit: Json, dropped: Collection[str], guard: Json | None = None) -> Write:
    """Write a document of the old index, without some of its top-level fields.

    Args:
        hit: With `_id`, `_source` and perhaps `_routing`.
        dropped: Fields to leave out.
        guard: Conditions, e.g. `if_seq_no`.
    """
    source = {key: value for key, value in hit["_source"].items() if key not in dropped}
    # Its pipeline has made the document what it is: a second time would make another one of it.
    head = _head(hit) | {"pipeline": "_none"} | (guard or {})
    return Write(key_of(hit), b"%b\n%b\n" % (orjson.dumps({"index": head}), _as_json(source)))


def late_copy_of(hit: Json, dropped: Collection[str], there: Json | None) -> Write:
    """A copy that gives way to whatever another writer has done to the document in the new index, deletion included.

    Args:
        there: The document in the new index, last written by us; None where there is none.
    """
    return copy_of(hit, dropped, _NEVER_THERE if there is None else unless_written(there))


def removal_of(there: Json) -> Write:
    """Remove a document from the new index, unless it was written since it was looked at."""
    return Write(key_of(there), orjson.dumps({"delete": _head(there) | unless_written(there)}) + b"\n")


def unless_written(hit: Json) -> Json:
    """The condition that a document is as it was seen."""
    return {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}


def _head(hit: Json) -> Json:
    head: Json = {"_id": hit["_id"]}
    return head if hit.get("_routing") is None else head | {"routing": hit["_routing"]}


def _as_json(source: Json) -> bytes:
    try:
        return orjson.dumps(source)
    except TypeError:
        # Whole numbers beyond 64 bits, which engines keep in fields that they do not index.
        return json.dumps(source, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def send(engine: Engine, index: str, writes: Sequence[Write], policy: RetryPolicy,
         aborted: threading.Event) -> dict[Key, Version]:  # fmt: skip
    """Send writes, no two of one document; returns when the engine has answered all of them.

    Returns:
        What the engine has written. A write whose condition did not hold (409) is missing: another writer was faster.

    Raises:
        EngineError: the engine refuses a document, or has not taken the writes within the policy's budget.
    """
    written: dict[Key, Version] = {}
    for group in bodies(writes, BODY_BYTES):
        written |= _send(engine, index, group, policy, aborted)
    return written


def _send(engine: Engine, index: str, group: list[Write], policy: RetryPolicy,
          aborted: threading.Event) -> dict[Key, Version]:  # fmt: skip
    waiting, backoff = group, Backoff(policy, aborted)
    written: dict[Key, Version] = {}
    while waiting:
        try:
            results = engine.bulk(index, b"".join(write.body for write in waiting))
        except RequestFailed as error:
            if error.status == 413 and len(waiting) > 1:
                half = len(waiting) // 2
                for part in (waiting[:half], waiting[half:]):
                    written |= _send(engine, index, part, policy, aborted)
                return written
            if not is_transient(error) or not backoff.wait():
                raise
            continue
        pairs = list(zip(waiting, results, strict=True))
        for write, result in pairs:
            _check(engine, index, write, result)
            if result.ok and result.version is not None:
                written[write.key] = result.version
        again = [write for write, result in pairs if passes(result.status)]
        if len(again) < len(waiting):
            backoff.succeeded()
        waiting = again
        if waiting and not backoff.wait():
            reason = next(result.reason for _, result in pairs if passes(result.status))
            raise RequestFailed(
                f"{engine.info.label} did not take {len(waiting):,} documents within {policy.budget:g} s: {reason}",
                "Look at the engine's load and free disk space; the same command goes on where it was.",
            )
    return written


def _check(engine: Engine, index: str, write: Write, result: ItemResult) -> None:
    if not result.ok and result.status not in (404, CONFLICT) and not passes(result.status):
        raise RequestFailed(
            f"{engine.info.label} refuses the document {write.key[0]!r} in {index}: {result.reason}",
            "Mend or delete that document in the old index; the same command goes on where it was.",
            result.status,
        )
