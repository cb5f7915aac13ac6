"""What other programs do to the index of a load: they delete and overwrite documents, and set ingest pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import Json
from tests.engine.ingest_support import open_engine
from tests.engine.sources import read_sources
from tests.faults.bench import Bench, FaultNotFelt, Load, WrongEnd
from tests.faults.servers import call

# Of the documents that a load has written.
_SOME = 40
_NEGATE = "def n = new ArrayList(); for (x in ctx.embedding) { n.add(-x); } ctx.embedding = n"
_PROCESSORS = [{"lowercase": {"field": "text"}}, {"script": {"if": "ctx.embedding != null", "source": _NEGATE}}]


def deleted_before_resume(bench: Bench) -> dict[str, Any]:
    """Documents are deleted between SIGKILL and the next command."""
    bench.kill_in_the_middle()
    with open_engine(bench.url) as engine:
        _write(engine, bench, [({"delete": {"_id": key}}, None) for key in _some(engine, bench)])
    return bench.finish()


def vectors_dropped(bench: Bench) -> dict[str, Any]:
    """Between two loads, an application writes documents as it has read them: without the vector."""
    bench.finish()
    with open_engine(bench.url) as engine:
        sources = read_sources(engine, bench.index, _some(engine, bench), source_includes=["*"])
        for source in sources.values():
            source.pop(DEFAULT_VECTOR_FIELD, None)
        _write(engine, bench, [({"index": {"_id": key}}, source) for key, source in sources.items()])
    return _next_load(bench)


def texts_updated(bench: Bench) -> dict[str, Any]:
    """Between two loads, an application changes texts by partial updates, which leave the vector."""
    bench.finish()
    with open_engine(bench.url) as engine:
        change = {"doc": {"text": "Another program has written this."}}
        _write(engine, bench, [({"update": {"_id": key}}, change) for key in _some(engine, bench)])
    return _next_load(bench)


def altered_by_pipeline(bench: Bench) -> dict[str, Any]:
    """A pipeline changes texts and vectors: first from the beginning of a load, then from the middle of one."""
    with altering_pipeline(bench):
        refused(bench, bench.start())
    with bench.held() as (load, hold), altering_pipeline(bench):
        hold.release()
        refused(bench, load)
    return bench.finish()


def refused(bench: Bench, load: Load) -> None:
    """Wait for the end of a load that finds out what the pipeline does.

    Raises:
        WrongEnd: it ends otherwise.
    """
    said = load.end(2)
    if f"index.default_pipeline is '{bench.index}'" not in said or not bench.state.exists():
        raise WrongEnd(f"it does not name the pipeline: {said}")


@contextmanager
def altering_pipeline(bench: Bench) -> Iterator[None]:
    """The index has a default pipeline until the block ends."""
    call(bench.url, "PUT", f"/_ingest/pipeline/{bench.index}", {"processors": _PROCESSORS})
    with open_engine(bench.url) as engine:
        engine.put_settings(bench.index, {"index.default_pipeline": bench.index})
        try:
            yield
        finally:
            engine.put_settings(bench.index, {"index.default_pipeline": None})
            call(bench.url, "DELETE", f"/_ingest/pipeline/{bench.index}", None)


def _some(engine: Engine, bench: Bench) -> list[str]:
    """Ids of documents in the index.

    Raises:
        FaultNotFelt: there are none.
    """
    engine.refresh(bench.index)
    answer = engine.search(bench.index, {"size": _SOME, "sort": ["_doc"], "_source": False})
    ids = [str(hit["_id"]) for hit in answer["hits"]["hits"]]
    if not ids:
        raise FaultNotFelt("the load had written nothing")
    return ids


def _write(engine: Engine, bench: Bench, actions: list[tuple[Json, Mapping[str, Any] | None]]) -> None:
    lines = [orjson.dumps(line) for action in actions for line in action if line is not None]
    if not all(result.ok for result in engine.bulk(bench.index, b"\n".join([*lines, b""]))):
        raise FaultNotFelt("the engine does not take the writes of the other program")


def _next_load(bench: Bench) -> dict[str, Any]:
    """The same command after a load that has come to its end: it writes its dead letters anew."""
    bench.letters.unlink()
    return bench.finish()
