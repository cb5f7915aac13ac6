"""Semantic searches through the gateway, on each engine, against cosines computed here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.index.mapping import index_body
from tests.conftest import also_es8, also_opensearch2, delete_index, on_every_version
from tests.engine.ingest_support import load, write_jsonl
from tests.engine.vectors import field_of
from tests.gateway import patient
from tests.gateway.bed import Bed, bed_of, ids, scores
from tests.gateway.conftest import loaded_index
from tests.gateway.serving import gateway
from tests.tiny import write_tiny_bert

K = 7
QUERY = "the cat sleeps"
LANGUAGES = ("en", "de", "fr")
ENGLISH: Json = {"term": {"lang.keyword": "en"}}
MATCH: Json = {"match": {"semantic": QUERY}}
SETTINGS = {"k": K, "num_candidates": 100}


def documents() -> list[dict[str, Any]]:
    """Short texts of the tiny model's words, no two alike."""
    words = product(["a", "the"], ["man", "cat", "guitar"], ["plays", "sleeps"], ["on", "."], ["mat", "guitar", "cat"])
    return [
        {"id": f"d{number}", "text": " ".join(text), "lang": LANGUAGES[number % 3], "rank": number}
        for number, text in enumerate(words)
    ]


def cosines_of(encoder: Encoder) -> dict[str, float]:
    found = documents()
    vectors = encoder.encode([document["text"] for document in found], "document")  # (documents, dimensions)
    [query] = encoder.encode([QUERY], "query")
    return {document["id"]: float(cosine) for document, cosine in zip(found, vectors @ query, strict=True)}


@pytest.fixture(scope="module")
def cosines(tiny_encoder: Encoder) -> dict[str, float]:
    return cosines_of(tiny_encoder)


def nearest(cosines: dict[str, float], count: int = K, lang: str | None = None) -> Any:
    """The scores that the nearest documents must have, best first."""
    chosen = {document["id"] for document in documents() if lang in (None, document["lang"])}
    best = sorted((cosine for id, cosine in cosines.items() if id in chosen), reverse=True)[:count]
    return pytest.approx([(1 + cosine) / 2 for cosine in best], abs=1e-5)


@pytest.fixture(scope="module")
def bed(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    with bed_of(engine_url, tiny, tiny_encoder, documents(), **SETTINGS) as bed:
        yield bed


NEURAL: Json = {"neural": {"embedding": {"query_text": QUERY, "k": K}}}
WAYS: dict[str, Json] = {
    "match": MATCH,
    "wrapped": {"wrapper": {"query": base64.b64encode(orjson.dumps(MATCH)).decode()}},
    "phrase": {"match_phrase": {"semantic": {"query": QUERY}}},
    "query_string": {"query_string": {"query": f'semantic:"{QUERY}"', "analyze_wildcard": True}},
    "semantic": {"semantic": {"field": "text", "query": QUERY}},
    "neural": NEURAL,
    "knn": {"knn": {"field": "embedding", "k": K, "num_candidates": 100,
                    "query_vector_builder": {"text_embedding": {"model_text": QUERY}}}},
    # As Kibana sends its query bar: everything is a filter.
    "kql": {"bool": {"must": [], "filter": [{"bool": {"should": [{"match_phrase": {"semantic": QUERY}}],
                                                      "minimum_should_match": 1}}], "should": [], "must_not": []}},
}  # fmt: skip


@pytest.mark.parametrize("way", list(WAYS))
@also_opensearch2
def test_every_query_form_finds_nearest_with_cosines_and_keeps_k_hits_with_a_filter(
    bed: Bed, cosines: dict[str, float], way: str
) -> None:
    answer = bed.search({"query": WAYS[way], "size": 50})
    assert scores(answer) == nearest(cosines)
    assert answer["hits"]["total"]["value"] == K
    filtered = bed.search({"query": {"bool": {"must": [WAYS[way]], "filter": [ENGLISH]}}, "size": 50})
    assert {hit["_source"]["lang"] for hit in filtered["hits"]["hits"]} == {"en"}
    assert scores(filtered) == nearest(cosines, lang="en")


@on_every_version
def test_alias_filter_keeps_k_hits(bed: Bed, cosines: dict[str, float]) -> None:
    alias = f"{bed.index}-english"
    add: Json = {"add": {"index": bed.index, "alias": alias, "filter": ENGLISH}}
    bed.engine.post("/_aliases", json={"actions": [add]}).raise_for_status()
    assert scores(bed.search({"query": MATCH, "size": 50}, index=alias)) == nearest(cosines, lang="en")


@on_every_version
def test_aggregations_sort_paging_and_highlight_work(bed: Bed, cosines: dict[str, float]) -> None:
    body = {
        "query": {"bool": {"filter": [MATCH]}},
        "sort": [{"rank": "asc"}], "from": 2, "size": 3, "_source": ["rank"],
        "highlight": {"fields": {"text": {"highlight_query": {"match": {"text": "cat"}}}}},
        "aggs": {"langs": {"terms": {"field": "lang.keyword"}}, "near": {"filter": MATCH}},
    }  # fmt: skip
    answer = bed.search(body)
    ranks = sorted(int(id[1:]) for id in sorted(cosines, key=lambda id: -cosines[id])[:K])
    assert [hit["_source"] for hit in answer["hits"]["hits"]] == [{"rank": rank} for rank in ranks[2:5]]
    assert sum(bucket["doc_count"] for bucket in answer["aggregations"]["langs"]["buckets"]) == K
    assert answer["aggregations"]["near"]["doc_count"] == K
    assert bed.search({"query": ENGLISH, "size": 0, "aggs": body["aggs"]})["aggregations"]["near"]["doc_count"] == K
    assert all("<em>cat</em>" in hit["highlight"]["text"][0] for hit in answer["hits"]["hits"] if "highlight" in hit)


@also_opensearch2
def test_min_cosine_and_k_in_request(bed: Bed, cosines: dict[str, float]) -> None:
    least = sorted(cosines.values(), reverse=True)[3] - 1e-4
    answer = bed.search({"query": {"match": {"semantic": {"query": QUERY, "k": 20, "min_cosine": least}}}, "size": 50})
    count = sum(cosine >= least for cosine in cosines.values())
    assert scores(answer) == nearest(cosines, count)
    assert count < 20


@also_opensearch2
def test_clauses_differing_only_in_k_are_kept_apart(bed: Bed, cosines: dict[str, float]) -> None:
    """OpenSearch takes its own kNN queries for one where they look at as many vectors."""
    asked = [{"match": {"semantic": {"query": QUERY, "k": k}}} for k in (3, 10)]
    found = bed.search({"query": {"bool": {"should": asked}}, "size": 50})
    best = nearest(cosines, 10).expected
    assert scores(found) == pytest.approx([*(2 * score for score in best[:3]), *best[3:]], abs=1e-5)
    beside = bed.search({"query": {"bool": {"must": [asked[1]], "should": [asked[0]]}}, "size": 50})
    assert scores(beside) == scores(found)


def test_must_not_with_min_cosine_excludes_exactly_near_documents(bed: Bed, cosines: dict[str, float]) -> None:
    ranked = sorted(cosines.values(), reverse=True)
    for above in (0, 2, 3 * K, len(ranked)):
        least = (([1.0, *ranked])[above] + [*ranked, -1.0][above]) / 2
        near = {"match": {"semantic": {"query": QUERY, "min_cosine": least}}}
        query: Json = {"bool": {"must": [{"match_all": {}}], "must_not": [near]}}
        found = bed.search({"query": query, "size": 100, "track_total_hits": True})
        far = {id for id, cosine in cosines.items() if cosine < least}
        assert set(ids(found)) == far
        assert found["hits"]["total"]["value"] == bed.search({"query": query}, "_count")["count"] == len(far)


def test_unknown_header_value_is_rejected(bed: Bed) -> None:
    for path, body in (("_search", {"query": ENGLISH}), ("_doc", {"text": "a cat"})):
        answer = bed.post(body, path, mode="on, off")
        assert (answer.status_code, "X-Es-Sbert" in answer.json()["error"]["reason"]) == (400, True)


@also_es8
def test_every_search_api_is_rewritten(bed: Bed, cosines: dict[str, float]) -> None:
    right = nearest(cosines)
    assert scores(bed.search(None, q=f'semantic:"{QUERY}"', size=50)) == right
    source = orjson.dumps({"query": MATCH}).decode()
    assert scores(bed.search(None, source=source, source_content_type="application/json")) == right
    assert bed.search({"query": MATCH}, "_count")["count"] == K

    lines = [{"index": bed.index}, {"query": MATCH}, {}, {"query": {"match": {"semantic": ""}}}, {}, {"query": ENGLISH}]
    near, empty, plain = bed.msearch(*lines)
    assert scores(near) == right
    assert empty["error"]["type"] == "illegal_argument_exception"
    assert "is empty" in empty["error"]["reason"]
    assert plain["hits"]["total"]["value"] == sum(document["lang"] == "en" for document in documents())
    filtered = bed.send("_msearch?filter%5Fpath=responses.error", *lines)
    assert filtered == {"responses": [empty]}, "the error that the gateway adds is whole"
    missing = [f"test-no-such-index-{number:040}" for number in range(100)]
    [found] = bed.msearch({"index": [bed.index, *missing], "ignore_unavailable": True}, {"query": MATCH, "size": 50})
    assert scores(found) == right, "indices that fit into no path"

    pit = {"id": bed.point_in_time(), "keep_alive": "10m"}
    assert scores(bed.gateway.post("/_search", json={"query": MATCH, "pit": pit}).json()) == right
    if bed.is_opensearch:  # Elasticsearch's small build has no templates
        template = {"source": '{"query":{"match":{"semantic":"{{words}}"}},"size":50}', "params": {"words": QUERY}}
        explained = bed.search(template | {"explain": True}, "_search/template")
        assert scores(explained) == right
        assert "_explanation" in explained["hits"]["hits"][0]
        unknown, answer = bed.msearch({}, {"id": "missing"}, {}, template, path="_msearch/template")
        assert (unknown["status"], unknown["error"]["type"]) == (404, "resource_not_found_exception")
        assert scores(answer) == right


def test_virtual_field_with_letters_outside_ascii(bed: Bed, tiny: Path, cosines: dict[str, float]) -> None:
    query: Json = {"query": {"match": {"ähnlich": QUERY}}}
    escaped = rb'{"query":{"match":{"\u00e4hnlich":"%b"}}}' % QUERY.encode()
    far: Json = {"query": {"bool": {"must_not": [query["query"]]}}}
    kind = {"content-type": "application/json"}
    with gateway(bed.url, tiny, virtual_field="ähnlich", **SETTINGS) as url:
        place = f"{url}/{bed.index}"
        for answer in (
            patient.post(f"{place}/_search", content=orjson.dumps(query), headers=kind),
            patient.post(f"{place}/_search", content=escaped, headers=kind),
            patient.get(f"{place}/_search?q={quote('ähnlich')}:({quote(QUERY)})"),
        ):
            assert scores(answer.json()) == nearest(cosines), answer.request.url
        for refused in (
            patient.post(f"{place}/_delete_by_query", json=far),
            patient.post(f"{place}/_delete_by_query?q=NOT%20{quote('ähnlich')}:cat"),
        ):
            assert refused.status_code == 400, refused.text


RATED: Json = {"id": "q", "ratings": []}
PRECISION: Json = {"precision": {"k": 5}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/INDEX/_eql/search", lambda query: {"query": "any where true", "filter": query}),
        ("/INDEX/_explain/d1", lambda query: {"query": query}),
        ("/_transform/_preview", lambda query: {"source": {"index": "INDEX", "query": query}, "pivot": {}}),
        ("/_fleet/_fleet_msearch", None),
        ("/INDEX/_rank_eval", lambda query: {"metric": PRECISION, "requests": [{"request": {"query": query}} | RATED]}),
    ],
)
def test_semantic_query_in_another_api_is_rejected(bed: Bed, path: str, body: Callable[[Json], Json] | None) -> None:
    """Whether the engine has the API or not: those with modules or plugins of their own do not run here."""
    near: Json = {"bool": {"must_not": [MATCH]}}

    def send(client: httpx.Client, query: Json, **headers: str) -> httpx.Response:
        lines: list[Json] = [{"index": bed.index}, {"query": query}] if body is None else [body(query)]
        content = patient.ndjson(*lines).replace(b"INDEX", bed.index.encode())
        kind = {"content-type": "application/json"} | headers
        return client.post(path.replace("INDEX", bed.index), content=content, headers=kind)

    refused = send(bed.gateway, near)
    assert (refused.status_code, "does not support semantic queries" in refused.text) == (400, True)
    for query, headers in (({"match": {"text": "semantic"}}, {}), (near, {"x-es-sbert": "off"})):
        assert send(bed.gateway, query, **headers).text == send(bed.engine, query, **headers).text


def test_semantic_by_query_and_reindex_are_rejected(bed: Bed) -> None:
    """To the engine nothing has a field `semantic`: what must not match it would be everything."""
    far: Json = {"bool": {"must_not": [MATCH]}}
    copy = f"{bed.index}-copy"
    requests: list[tuple[str, Json]] = [
        (f"/{bed.index}/_delete_by_query", {"query": far}),
        (f"/{bed.index}/_delete_by_query?q=NOT%20semantic:{quote(QUERY)}", {}),
        (f"/{bed.index}/_update_by_query", {"query": MATCH, "script": "ctx._source.lang = 'it'"}),
        ("/_reindex", {"source": {"index": [bed.index], "query": far}, "dest": {"index": copy}}),
    ]
    for path, body in requests:
        answer = bed.gateway.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert "does not support semantic queries" in answer.json()["error"]["reason"]
    assert bed.engine.head(f"/{copy}").status_code == 404
    words = {"query": {"bool": {"filter": [{"match": {"text": "semantic"}}]}}}
    # The distribution of Elasticsearch 9 that runs here has no such API, and says so itself.
    answers = [client.post(f"/{bed.index}/_delete_by_query", json=words) for client in (bed.engine, bed.gateway)]
    assert len({(answer.status_code, answer.json().get("deleted", answer.text)) for answer in answers}) == 1
    assert bed.direct({}, "_count")["count"] == len(documents())


def test_alias_moved_to_another_model_is_followed_at_once(
    bed: Bed, tiny: Path, tmp_path: Path, cosines: dict[str, float]
) -> None:
    other, alias = write_tiny_bert(tmp_path / "other", seed=5), f"{bed.index}-alias"

    def point(alias_of: str, away_from: str | None = None) -> None:
        actions: list[Json] = [{"add": {"index": alias_of, "alias": alias}}]
        if away_from is not None:
            actions.append({"remove": {"index": away_from, "alias": alias}})
        bed.engine.post("/_aliases", json={"actions": actions}).raise_for_status()

    with (
        Encoder(str(other), device="cpu", precision="fp32", threads=1) as encoder,
        loaded_index(bed.url, encoder, documents()) as index,
        gateway(bed.url, tiny, models=(str(tiny), str(other)), **SETTINGS) as url,
        patient.client(url) as through,
    ):
        here, there = nearest(cosines), nearest(cosines_of(encoder))
        moved = Bed(bed.engine, through, alias)
        point(bed.index)
        assert scores(moved.search({"query": MATCH})) == here
        point(index, bed.index)
        assert scores(moved.search({"query": MATCH})) == there
        point(bed.index, index)
        assert scores(moved.msearch({}, {"query": MATCH})[0]) == here
        point(index, bed.index)
        assert scores(moved.search({"query": MATCH}, scroll="1m")) == there
        both = moved.post({"query": MATCH}, index=f"{index},{bed.index}")
        assert (both.status_code, both.json()["error"]["type"]) == (400, "es_sbert_index_mismatch")


def test_indices_without_vectors_or_that_are_missing(bed: Bed, cosines: dict[str, float]) -> None:
    """A field `semantic` of another index is searched as any other; where there are vectors, they are meant."""
    index, bare = f"{bed.index}-plain", f"{bed.index}-bare"
    bed.engine.put(f"/{index}/_doc/1?refresh=true", json={"semantic": QUERY, "text": "a"}).raise_for_status()
    bed.engine.put(f"/{bare}/_doc/1?refresh=true", json={"text": "a"}).raise_for_status()
    body = {"query": MATCH}
    try:
        found = bed.search(body, index=index)["hits"]
        assert found == bed.direct(body, index=index)["hits"]
        assert found["total"]["value"] == 1
        assert scores(bed.search(body, index=f"{index},{bed.index}")) == nearest(cosines)
        refused = bed.post(body, index=bare)
        assert (refused.status_code, "es-sbert ingest --index" in refused.json()["error"]["reason"]) == (400, True)
    finally:
        delete_index(bed.url, index)
        delete_index(bed.url, bare)
    for name, params in (("test-missing", {}), ("test-missing", {"ignore_unavailable": True}), ("test-missing*", {})):
        through = bed.post(body, index=name, **params)
        direct = bed.engine.post(f"/{name}/_search", json=body, params=params)
        assert through.status_code == direct.status_code == (404 if (name, params) == ("test-missing", {}) else 200)
        assert through.json().get("error") == direct.json().get("error")


def test_a_field_is_searched_as_it_is_mapped_not_as_meta_says(
    bed: Bed, tiny_encoder: Encoder, tmp_path: Path, cosines: dict[str, float], fresh_index: Callable[[str], str]
) -> None:
    engine_type = EngineType.OPENSEARCH if bed.is_opensearch else EngineType.ELASTICSEARCH
    quantized, euclidean = fresh_index(bed.url), fresh_index(bed.url)
    body = index_body(engine_type, "embedding", field_of(tiny_encoder.info, index_type="int8_hnsw"))
    body["mappings"]["_meta"]["es_sbert"]["fields"]["embedding"]["index_type"] = "hnsw"
    bed.engine.put(f"/{quantized}", json=body).raise_for_status()
    rows = write_jsonl(tmp_path / "docs.jsonl", documents())
    load(bed.url, tiny_encoder, quantized, rows, dead=tmp_path / "dead", id_field="id")
    assert scores(bed.search({"query": MATCH}, index=quantized)) == nearest(cosines)
    vector = body["mappings"]["properties"]["embedding"]
    vector |= {"method": vector["method"] | {"space_type": "l2"}} if bed.is_opensearch else {"similarity": "l2_norm"}
    bed.engine.put(f"/{euclidean}", json=body).raise_for_status()
    bed.gateway.put(f"/{euclidean}/_doc/1?refresh=true", json={"text": QUERY}).raise_for_status()
    for query in ({"match": {"text": QUERY}}, {"exists": {"field": "embedding"}}):
        assert ids(bed.search({"query": query}, index=euclidean)) == ["1"], "it is written, and found by other queries"
    refused = bed.post({"query": MATCH}, index=euclidean)
    assert (refused.status_code, "compares vectors by l2" in refused.json()["error"]["reason"]) == (400, True)


@pytest.mark.parametrize(("index_type", "shards"), [("hnsw", 3), ("flat", 1), ("int8_hnsw", 1)])
def test_k_hits_are_kept_despite_engine_defaults(
    bed: Bed, tiny_encoder: Encoder, tmp_path: Path, cosines: dict[str, float], index_type: str, shards: int
) -> None:
    index = f"{bed.index}-{index_type}"
    settings: Json = {"number_of_shards": shards} | ({"knn": index_type != "flat"} if bed.is_opensearch else {})
    bed.engine.put(f"/{index}", json={"settings": {"index": settings}}).raise_for_status()
    rows = write_jsonl(tmp_path / "docs.jsonl", documents())
    load(bed.url, tiny_encoder, index, rows, dead=tmp_path / "dead", id_field="id", index_type=index_type)
    query = {"bool": {"filter": [MATCH, ENGLISH]}}
    try:
        for sort in ([], ["rank"]):
            body: Json = {"query": query, "size": 50, "sort": sort, "aggs": {"all": {"filter": {"match_all": {}}}}}
            answer = bed.search(body, index=index)
            assert answer["hits"]["total"]["value"] == answer["aggregations"]["all"]["doc_count"] == K
            if not sort:
                assert scores(answer) == nearest(cosines, lang="en")
        if shards == 1:
            count = bed.search({"query": NEURAL}, "_count", index=index)["count"]
            assert count == K, "the engine's own query keeps as many as it says"
        body = {"query": {"match": {"semantic": {"query": QUERY, "k": 2 * K}}}, "size": 50}
        both = bed.search(body, index=f"{index},{bed.index}")["hits"]["hits"]
        assert [hit["_id"] for hit in both[::2]] == [hit["_id"] for hit in both[1::2]], "each is in both indices"
        assert [hit["_score"] for hit in both[::2]] == nearest(cosines)
        bed.engine.put(f"/{index}/_settings", json={"index.max_result_window": K}).raise_for_status()
        beyond = bed.post(body | {"size": K}, index=index)
        bed.engine.put(f"/{index}/_settings", json={"index.max_result_window": None}).raise_for_status()
        if beyond.status_code == 200:
            assert beyond.json()["hits"]["total"]["value"] == 2 * K, "the engine by itself keeps as many"
        else:
            assert "more than the index.max_result_window" in beyond.json()["error"]["reason"]
        if shards > 1:
            check_only_what_is_searched_counts(Bed(bed.engine, bed.gateway, index), cosines)
    finally:
        delete_index(bed.url, index)


def check_only_what_is_searched_counts(bed: Bed, cosines: dict[str, float]) -> None:
    body: Json = {"query": MATCH, "size": 50}
    there = ids(bed.direct({"size": 100, "_source": False}, routing="x"))
    assert len(there) < len(documents())
    expected = nearest({id: cosines[id] for id in there})
    assert scores(bed.search(body, routing="x")) == expected
    missing = [f"test-no-such-index-{number:040}" for number in range(100)]
    header: Json = {"index": bed.index, "ignore_unavailable": True, "routing": "x"}
    # The second names more indices than fit into a path.
    for found in bed.msearch(header, body, header | {"index": [bed.index, *missing]}, body):
        assert scores(found) == expected

    of_each = [{"bool": {"must": [MATCH], "filter": [{"term": {"lang.keyword": lang}}]}} for lang in LANGUAGES]
    every = sorted(score for lang in LANGUAGES for score in nearest(cosines, lang=lang).expected)
    found = bed.search({"query": {"bool": {"should": of_each}}, "size": 50})
    assert scores(found)[::-1] == pytest.approx(every, abs=1e-5), "the filters are not the same"

    point = bed.point_in_time()
    best = max(cosines, key=lambda id: cosines[id])
    bed.engine.delete(f"/{bed.index}/_doc/{best}?refresh=true").raise_for_status()
    pages: list[float] = []
    page: Json = body | {"size": 3, "pit": {"id": point}, "sort": ["_score", "rank"]}
    while hits := bed.gateway.post("/_search", json=page).json()["hits"]["hits"]:
        pages += [hit["_score"] for hit in hits]
        page["search_after"] = hits[-1]["sort"]
    assert pages == nearest(cosines)
