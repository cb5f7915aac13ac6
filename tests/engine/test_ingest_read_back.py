"""Engines that store something else than they were sent: a load ends with an error that names the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import DocumentsAltered
from es_sbert.ingest.load_report import LoadReport
from tests.conftest import ES8_IN_LONG_RUN
from tests.engine.ingest_support import Interposed, Loads, ask, contents, load, open_engine, put, sentences, write_jsonl
from tests.faulty_proxy import Exchange, FaultyProxy
from tests.raised import raises_as_recorded

_NEGATE = (
    "def v = ctx.embedding; if (v instanceof List) { def n = new ArrayList(); "
    "for (x in v) { if (x instanceof Map) { def w = new ArrayList(); for (y in x.vector) { w.add(-y); } "
    "x.vector = w; n.add(x); } else { n.add(-x); } } ctx.embedding = n; }"
)
LOWERCASE = {"lowercase": {"field": "text"}}
NEGATE = {"script": {"source": _NEGATE}}
REMOVE = {"remove": {"field": "embedding"}}
HARMLESS = {"set": {"field": "received", "value": "{{{_ingest.timestamp}}}"}}
REROUTE = {"set": {"field": "_routing", "value": "elsewhere"}}

Piped = Callable[..., str]
Ingest = Callable[..., LoadReport]


@pytest.fixture(scope="module", params=[ES8_IN_LONG_RUN, "opensearch"])
def url(request: pytest.FixtureRequest) -> str:
    """An engine that has ingest pipelines."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def piped(url: str, fresh_index: Callable[[str], str]) -> Iterator[Piped]:
    """A function processor, setting → an index whose documents go through it; the pipeline has the index's name."""
    made = []

    def make(
        processor: dict[str, Any], setting: str = "index.default_pipeline", shards: int = 1, **mappings: Any
    ) -> str:
        index = fresh_index(url)
        made.append(index)
        with open_engine(url) as engine:
            put_pipeline(engine, index, processor)
            settings = {setting: index, "index.number_of_shards": shards}
            engine.create_index(index, {"settings": settings, "mappings": mappings})
        return index

    yield make
    with open_engine(url) as engine:
        for index in made:
            engine.delete_index(index)
            ask(engine, "DELETE", f"/_ingest/pipeline/{index}")


def put_pipeline(engine: Engine, name: str, processor: dict[str, Any]) -> None:
    ask(engine, "PUT", f"/_ingest/pipeline/{name}", body={"processors": [processor]})


@pytest.fixture
def ingest(url: str, tiny: Encoder, tmp_path: Path) -> Ingest:
    """Load 20 documents into an index; other arguments are options of the load."""
    docs = write_jsonl(tmp_path / "docs.jsonl", sentences(20))

    def run(index: str, encoder: Any = tiny, **options: Any) -> LoadReport:
        return load(url, encoder, index, docs, dead=tmp_path / "dead", id_field="id", **options)

    return run


@pytest.mark.parametrize("setting", ["index.default_pipeline", "index.final_pipeline"])
@pytest.mark.parametrize(
    "processor",
    [LOWERCASE, NEGATE, REMOVE],
    ids=["lowercase", "negate", "remove"],
)
def test_altering_pipeline_stops_load_after_first_request(
    url: str, piped: Piped, ingest: Ingest, tmp_path: Path, processor: dict[str, Any], setting: str
) -> None:
    index, state = piped(processor, setting), tmp_path / "state"
    with raises_as_recorded(DocumentsAltered) as told:
        ingest(index, batch_window=2, state=state)
    assert "after 2 documents were written" in told.value.with_notes()
    assert state.exists()
    stored = contents(url, index)
    assert len(stored) == 2, "nothing is sent after the first request"
    assert all(source.get("embedding") is None for source in stored.values()), "no wrong vector is left"


def test_altered_vectors_stay_if_their_removal_would_lose_a_field(url: str, piped: Piped, ingest: Ingest) -> None:
    index = piped(NEGATE, _source={"excludes": ["price"]})
    with raises_as_recorded(DocumentsAltered):
        ingest(index, batch_window=2)
    with open_engine(url) as engine:
        engine.refresh(index)
        assert engine.count(index, {"exists": {"field": "price"}}) == engine.count(index) == 2


@pytest.mark.parametrize("processor", [NEGATE, REMOVE], ids=["negate", "remove"])
def test_altered_passages_raise(piped: Piped, ingest: Ingest, processor: dict[str, Any]) -> None:
    with raises_as_recorded(DocumentsAltered):
        ingest(piped(processor), passages=8)


def test_altered_routing_raises(piped: Piped, ingest: Ingest) -> None:
    with raises_as_recorded(DocumentsAltered):
        ingest(piped(REROUTE, shards=4))


@pytest.mark.parametrize("passages", [None, 8], ids=["vector", "passages"])
def test_pipeline_adding_another_field_is_accepted(
    url: str, piped: Piped, ingest: Ingest, tiny: Encoder, tmp_path: Path, passages: int | None
) -> None:
    index = piped(HARMLESS)
    summary = ingest(index, passages=passages)
    assert (summary.indexed, summary.exit_code) == (20, 0)
    assert all("received" in source for source in contents(url, index).values())
    in_place = load(url, tiny, index, dead=tmp_path / "dead")
    assert (in_place.unchanged, in_place.exit_code) == (20, 0)


def test_pipeline_added_mid_load_is_detected_and_rerun_repairs(
    url: str, piped: Piped, ingest: Ingest, tiny: Encoder, tmp_path: Path
) -> None:
    index, state = piped(HARMLESS), tmp_path / "state"
    options: dict[str, Any] = {"batch_window": 5, "state": state}
    with open_engine(url) as engine:
        meddle = Interposed(tiny, lambda window: put_pipeline(engine, index, NEGATE) if window == 2 else None)
        with raises_as_recorded(DocumentsAltered):
            ingest(index, meddle, **options)
        put_pipeline(engine, index, HARMLESS)
    assert state.exists()
    summary = ingest(index, **options)
    assert (summary.indexed, summary.exit_code, state.exists()) == (20, 0, False)
    stored = contents(url, index)
    texts = [document["text"] for document in sentences(20)]
    vectors = tiny.encode(texts, "document")
    for document, vector in zip(sentences(20), vectors, strict=True):
        assert stored[document["id"]]["embedding"] == pytest.approx(vector.tolist(), abs=1e-5)


def test_in_place_embeddings_are_read_back(engine: Engine, tiny_loads: Loads) -> None:
    """Pipelines do not see partial updates: a proxy drops the vectors here."""

    def drop(exchange: Exchange) -> tuple[int, bytes]:
        lines = [orjson.loads(line) for line in exchange.body.splitlines()]
        for line in lines:
            line.get("doc", {}).pop("embedding", None)
        exchange.body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        return exchange.forward()

    engine.create_index(tiny_loads.index, {})
    put(engine, tiny_loads.index, sentences(4))
    with FaultyProxy(tiny_loads.url, faults=[drop]) as proxy, raises_as_recorded(DocumentsAltered) as told:
        tiny_loads.load(url=proxy.url, batch_window=2)
    assert "after 2 documents were written" in told.value.with_notes()
    again = tiny_loads.load()
    assert (again.indexed, again.exit_code) == (4, 0)
