"""`es-sbert search` and `SemanticIndex` with the real model, as a user meets them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import orjson
import pytest

from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.errors import IndexMismatch
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.search.semantic_index import SemanticIndex
from tests.conftest import also_es8
from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import ask
from tests.engine.vectors import load

TEXTS = [
    ("en", "A man is playing a guitar on the stage."),
    ("en", "The stock market fell sharply after the bank raised interest rates."),
    ("en", "Vaccines train the immune system to recognize a virus."),
    ("en", "Heavy rain flooded the streets of the old town."),
    ("en", "She baked fresh bread for breakfast."),
    ("xx", "A musician performs a song with his band [live] in the park."),
    ("xx", "Inflation makes groceries more expensive."),
    ("xx", "The doctor gave the child an injection against measles."),
]


@dataclass(frozen=True)
class Site:
    """A small index, filled by the default model with `title` as its text."""

    url: str
    index: str
    foreign: str


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    with Encoder(DEFAULT_MODEL, device="cpu", precision="fp32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def site(engine_url: str, encoder: Encoder) -> Iterator[Site]:
    engine = connect(EngineSettings(url=engine_url))
    name = f"test-{uuid.uuid4().hex[:12]}"
    site = Site(engine_url, name, f"{name}-foreign")
    with closing(engine):
        for name, fingerprint in ((site.index, encoder.info.fingerprint), (site.foreign, "0" * 64)):
            ensure_vector_field(
                engine,
                name,
                FieldRequest(
                    name="embedding",
                    fingerprint=fingerprint,
                    model_name=encoder.info.model,
                    dimensions=encoder.info.dimensions,
                    index_type="hnsw",
                    text="{title}",
                ),
                replicas=0,
            )
        # As ingest does it: the language as a keyword, so that terms filter by it on every engine.
        engine.put_mapping(site.index, {"properties": {"language": {"type": "keyword"}, "title": {"type": "keyword"}}})
        vectors = encoder.encode([text for _, text in TEXTS], "document")
        load(engine, site.index, "embedding", vectors, lambda i: {"language": TEXTS[i][0], "title": TEXTS[i][1]})
        yield site
        for name in (site.index, site.foreign):
            ask(engine, "DELETE", f"/{name}")


Search = Callable[..., Done]


@pytest.fixture
def search(site: Site, cli: Cli) -> Search:
    """`es-sbert search ARGUMENTS…` in the site's index, or in another one."""
    return lambda *arguments, index=site.index: cli(
        "search", "--index", index, "--url", site.url, "--device", "cpu", "--precision", "fp32", *arguments
    )


def test_json_output_is_one_hit_per_line_best_first(search: Search, encoder: Encoder) -> None:
    done = search("someone makes music", "-k", "3", "--json")
    assert done.code == 0, done.err
    hits = [orjson.loads(line) for line in done.out.splitlines()]
    assert [set(hit) for hit in hits] == [{"id", "index", "cosine", "score", "source"}] * 3
    assert {hits[0]["id"], hits[1]["id"]} == {"0", "5"}
    assert hits[0]["source"] == {"language": TEXTS[int(hits[0]["id"])][0], "title": TEXTS[int(hits[0]["id"])][1]}
    query, *documents = encoder.encode(["someone makes music", *(TEXTS[int(hit["id"])][1] for hit in hits)])
    expected = [float(np.dot(query, document)) for document in documents]
    assert [hit["cosine"] for hit in hits] == pytest.approx(expected, abs=1e-5)
    assert all(hit["cosine"] == round(hit["cosine"], 6) for hit in hits)


def test_text_output_has_hits_on_stdout_and_summary_on_stderr(search: Search) -> None:
    done = search("someone makes music", "-k", "2")
    assert done.code == 0, done.err
    header, first, text, second, _ = done.out.splitlines()
    assert header.split() == ["#", "cosine", "id"]
    assert (first.split()[0], second.split()[0]) == ("1", "2")
    assert text.startswith("   ")
    assert "A man is playing" in done.out
    assert "band [live] in" in done.out
    assert re.search(r"^2 hits in \d+ ms \(knn, ", done.err, re.MULTILINE)
    single = search("someone makes music", "-k", "1", "--hybrid")
    assert re.search(r"^1 hit in \d+ ms \(hybrid, knn, ", single.err, re.MULTILINE)


def test_show_body_sends_nothing_and_prints_valid_request(site: Site, search: Search) -> None:
    shown = search("a shot against an illness", "-k", "2", "--show-body")
    assert shown.code == 0, shown.err
    request, _, body = shown.out.partition("\n")
    assert request == f"POST /{site.index}/_search"
    machine = search("a shot against an illness", "-k", "2", "--show-body", "--json")
    assert orjson.loads(machine.out) == orjson.loads(body)
    with closing(connect(EngineSettings(url=site.url))) as engine:
        pasted = [hit["_id"] for hit in engine.search(site.index, orjson.loads(body))["hits"]["hits"]]
    sent = search("a shot against an illness", "-k", "2", "--json")
    assert pasted == [orjson.loads(line)["id"] for line in sent.out.splitlines()]


@also_es8
def test_hybrid_search(site: Site, search: Search) -> None:
    title = TEXTS[3][1]  # a keyword: only the whole of it is a word of its own
    done = search(title, "--hybrid", "-k", "3", "--json")
    assert done.code == 0, done.err
    first, second, _ = (orjson.loads(line) for line in done.out.splitlines())
    assert first["id"] == "3"
    assert first["ranks"] == {"embedding": 1, "lexical": 1}
    assert (first["match"], first["score"]) == ("phrase", pytest.approx(5.0)), (
        "4 for the phrase, 1 for both first ranks"
    )
    assert (second["lexical"], second["ranks"]["embedding"]) == (None, 2)
    table = search(title, "--hybrid", "-k", "2")
    assert table.out.splitlines()[0].split() == ["#", "score", "keyword", "cosine", "id"]
    assert "Heavy rain" in table.out.splitlines()[2]
    shown = search(title, "--hybrid", "--show-body").out.splitlines()
    assert shown[0] == f"POST /{site.index}/_msearch"
    assert [bool(orjson.loads(line)) for line in shown[1:]] == [False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["x", "--min-cosine", "2"], "the minimum cosine is 2"),
        (["--like", "gone"], "no document 'gone'"),
        (["x", "--filter", "{"], "the filter is not JSON"),
        (["x", "--filter", '{"nonsense": {}}'], "nonsense"),
    ],
)
def test_bad_input_is_refused_in_two_lines(search: Search, args: list[str], message: str) -> None:
    done = search(*args)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_index_of_another_model_is_refused(site: Site, search: Search, encoder: Encoder) -> None:
    done = search("x", index=site.foreign)
    assert (done.code, done.out) == (2, "")
    assert "holds vectors of the model" in done.err
    assert "--vector-field" in done.err
    with pytest.raises(IndexMismatch, match="holds vectors of the model"):
        SemanticIndex(site.foreign, site.url, encoder=encoder)
