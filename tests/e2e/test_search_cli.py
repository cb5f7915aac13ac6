"""`es-sbert search` and `SemanticIndex` with the real model, as a user meets them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import orjson
import pytest

from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from tests.conftest import also_es8
from tests.e2e.cli_support import Cli, Done
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


@pytest.fixture(scope="module")
def encoder() -> Iterator[Encoder]:
    with Encoder(DEFAULT_MODEL, device="cpu", precision="fp32") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def site(engine_url: str, encoder: Encoder) -> Iterator[str]:
    """A small index, filled by the default model with `title` as its text."""
    name, info = f"test-{uuid.uuid4().hex[:12]}", encoder.info
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        request = FieldRequest("embedding", info.fingerprint, info.model, info.dimensions, "hnsw", text="{title}")
        ensure_vector_field(engine, name, request, replicas=0)
        # As ingest does it: the language as a keyword, so that terms filter by it on every engine.
        engine.put_mapping(name, {"properties": {"language": {"type": "keyword"}, "title": {"type": "keyword"}}})
        vectors = encoder.encode([text for _, text in TEXTS], "document")
        load(engine, name, "embedding", vectors, lambda i: {"language": TEXTS[i][0], "title": TEXTS[i][1]})
        yield name
        engine.delete_index(name)


@pytest.fixture
def search(site: str, engine_url: str, cli: Cli) -> Callable[..., Done]:
    """`es-sbert search ARGUMENTS…` in the index."""
    return partial(cli, "search", "--index", site, "--url", engine_url, "--device", "cpu", "--precision", "fp32")


def test_json_output_is_one_hit_per_line_best_first(search: Callable[..., Done], encoder: Encoder) -> None:
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


def test_text_output_has_hits_on_stdout_and_summary_on_stderr(search: Callable[..., Done]) -> None:
    done = search("someone makes music", "-k", "2")
    assert done.code == 0, done.err
    header, first, text, second, _ = done.out.splitlines()
    assert header.split() == ["#", "cosine", "id"]
    assert (first.split()[0], second.split()[0]) == ("1", "2")
    assert text.startswith("   ")
    assert "A man is playing" in done.out
    assert "band [live] in" in done.out
    assert re.search(r"^2 hits in \d+ ms \(knn, ", done.err, re.MULTILINE)


def test_show_body_sends_nothing_and_prints_valid_request(
    site: str, engine_url: str, search: Callable[..., Done]
) -> None:
    shown = search("a shot against an illness", "-k", "2", "--show-body")
    assert shown.code == 0, shown.err
    request, _, body = shown.out.partition("\n")
    assert request == f"POST /{site}/_search"
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        pasted = [hit["_id"] for hit in engine.search(site, orjson.loads(body))["hits"]["hits"]]
    sent = search("a shot against an illness", "-k", "2", "--json")
    assert pasted == [orjson.loads(line)["id"] for line in sent.out.splitlines()]


def test_similar_documents_and_hybrid_hits_are_shown_with_what_they_lack(search: Callable[..., Done]) -> None:
    similar = search("--like", "0", "-k", "1", "--fields", "language,gone")
    assert similar.out.split()[3::2] == ["1", "5", "xx"]
    assert re.findall("no hit has the field '(.*?)'", similar.err) == ["gone"]
    hybrid = search(TEXTS[3][1], "--hybrid", "-k", "2")
    assert hybrid.out.split()[:5] == ["#", "score", "keyword", "cosine", "id"]
    assert hybrid.out.splitlines()[3].split()[2] == "–", "no word of the second hit is in the query"
    assert "No minimum cosine is stored" in hybrid.err
    assert '"must_not"' in search("--like", "0", "--show-body").out
    first, *bodies = search("rain", "--hybrid", "--show-body").out.splitlines()
    assert (first[-9:], [*map(bool, map(orjson.loads, bodies))]) == ("/_msearch", [False, True] * (len(bodies) // 2))


@also_es8
def test_hybrid_search(search: Callable[..., Done]) -> None:
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
