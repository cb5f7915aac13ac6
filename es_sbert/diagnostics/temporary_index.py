"""Create temporary indices for measurements, fill and merge them into one segment, and delete them after any error."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import orjson

from es_sbert.engines.engine import Engine
from es_sbert.engines.error_mapping import access_denied
from es_sbert.engines.rest import Json
from es_sbert.errors import EngineError, RequestFailed

# Prefix of the names of all temporary indices.
PREFIX = "es-sbert-advise-"
_BULK_BYTES = 5 << 20
_POLL_SECONDS = 0.2


def leftover_indices(engine: Engine) -> list[str]:
    """List existing temporary indices, left by a command that was killed or in use by one that is still running.

    Raises:
        EngineError: the engine failed.
    """
    return [state.name for state in engine.resolve_indices(f"{PREFIX}*")]


@contextmanager
def temporary_index(engine: Engine, body: Json, report: Callable[[str], None]) -> Iterator[str]:
    """Create an index under a new name, and delete it at the end, even after an error or an interrupt.

    Args:
        engine: The engine.
        body: Body of `PUT /index`.
        report: Called with a warning if the index cannot be deleted.

    Yields:
        The name of the index.

    Raises:
        EngineError: the engine failed.
    """
    name = f"{PREFIX}{uuid.uuid4().hex[:12]}"
    try:
        engine.create_index(name, body)
        yield name
    finally:
        # Even if the request failed, the engine may have created the index.
        try:
            engine.delete_index(name)
        except (EngineError, KeyboardInterrupt) as error:
            reason = error.message if isinstance(error, EngineError) else "interrupted"
            report(f"Warning: the temporary index {name} may still exist ({reason}). Delete it: `DELETE /{name}`")
            if isinstance(error, KeyboardInterrupt):
                raise


def fill_index(engine: Engine, name: str, documents: Iterable[Json]) -> None:
    """Write documents under the ids 0, 1, 2, …, and merge them into one segment; return when the graph is built.

    Args:
        engine: The engine.
        name: The index.
        documents: Documents that orjson can write, numpy arrays included.

    Raises:
        RequestFailed: the engine rejected a document.
        EngineError: the engine failed.
    """
    lines: list[bytes] = []
    size = 0
    for number, document in enumerate(documents):
        source = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        lines += [b'{"index":{"_id":"%d"}}' % number, source]
        size += len(source)
        if size > _BULK_BYTES:
            _send(engine, name, lines)
            lines, size = [], 0
    if lines:
        _send(engine, name, lines)
    force_merge(engine, name)
    engine.refresh(name)


def force_merge(engine: Engine, name: str) -> None:
    """Merge every shard into one segment, and wait until the merge is done.

    Raises:
        EngineError: the engine failed; the merge may continue in the background.
    """
    engine.refresh(name)
    task = engine.start_force_merge(name)
    while not engine.is_task_done(task):
        time.sleep(_POLL_SECONDS)


def _send(engine: Engine, name: str, lines: list[bytes]) -> None:
    for result in engine.bulk(name, b"\n".join(lines) + b"\n", actions=len(lines) // 2):
        if result.is_denied:
            raise access_denied(engine.info.label, f"writing to {name}", result.reason)
        if not result.ok:
            raise RequestFailed(
                f"{engine.info.label} rejected a document of the temporary index {name}: {result.reason}",
                "If the engine is overloaded, run the command again later or with a smaller `sample`.",
                result.status,
            )
