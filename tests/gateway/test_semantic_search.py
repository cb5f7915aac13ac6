"""Searches by meaning through the gateway, on each engine, against cosines computed here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.rest import Json
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import GatewaySettings, SemanticSettings
from tests.conftest import also_es8, also_opensearch2, delete_index, on_every_version
from tests.engine.ingest_support import load, write_jsonl
from tests.gateway import patient
from tests.gateway.conftest import loaded_index, tiny_gateway, tiny_settings
from tests.gateway.serving import served
from tests.tiny import write_tiny_bert

K = 7
QUERY = "the cat sleeps"
ENGLISH: Json = {"term": {"lang.keyword": "en"}}


def documents() -> list[dict[str, Any]]:
    """Short texts of the tiny model's words, no two alike."""
    words = product(["a", "the"], ["man", "cat", "guitar"], ["plays", "sleeps"], ["on", "."], ["mat", "guitar", "cat"])
    return [
        {"id": f"d{number}", "text": " ".join(text), "lang": ["en", "de", "fr"][number % 3], "rank": number}
        for number, text in enumerate(words)
    ]


@dataclass(frozen=True)
class Bed:
    """An engine with an index, a gateway before it, and what is right.

    Attributes:
        engine, gateway: Addresses.
        index: Its name.
        cosines: Of each document and the query.
    """

    engine: str
    gateway: str
    index: str
    cosines: dict[str, float]

    def nearest(self, count: int = K, lang: str | None = None) -> list[float]:
        """The scores that the nearest documents must have, best first."""
        chosen = {document["id"] for document in documents() if lang in (None, document["lang"])}
        best = sorted((cosine for id, cosine in self.cosines.items() if id in chosen), reverse=True)[:count]
        return [(1 + cosine) / 2 for cosine in best]

    def search(self, body: Json, path: str = "_search", **params: Any) -> Json:
        answer = patient.post(f"{self.gateway}/{self.index}/{path}", json=body, params=params)
        assert answer.status_code == 200, answer.text
        return orjson.loads(answer.content)  # type: ignore[no-any-return]

    def several(self, lines: list[Json], **params: Any) -> list[Json]:
        """The answers to searches of one `_msearch`."""
        answer = patient.post(
            f"{self.gateway}/{self.index}/_msearch",
            content=b"".join(orjson.dumps(line) + b"\n" for line in lines),
            headers={"content-type": "application/x-ndjson"},
            params=params,
        )
        responses: list[Json] = answer.json()["responses"]
        return responses

    @property
    def is_opensearch(self) -> bool:
        return "x-elastic-product" not in patient.get(f"{self.engine}/_cluster/health").headers


def cosines(encoder: Encoder) -> dict[str, float]:
    found = documents()
    vectors = encoder.encode([document["text"] for document in found], "document")  # (documents, dimensions)
    [query] = encoder.encode([QUERY], "query")
    return {document["id"]: float(cosine) for document, cosine in zip(found, vectors @ query, strict=True)}


@pytest.fixture(scope="module")
def bed(engine_url: str, tiny: Path, tiny_encoder: Encoder) -> Iterator[Bed]:
    with (
        loaded_index(engine_url, tiny_encoder, documents()) as index,
        tiny_gateway(engine_url, tiny, k=K, num_candidates=100) as gateway,
    ):
        yield Bed(engine_url, gateway, index, cosines(tiny_encoder))


def scores(answer: Json) -> list[float]:
    return [hit["_score"] for hit in answer["hits"]["hits"]]


NEURAL: Json = {"neural": {"embedding": {"query_text": QUERY, "k": K}}}
WAYS: dict[str, Json] = {
    "match": {"match": {"semantic": QUERY}},
    "wrapped": {"wrapper": {"query": base64.b64encode(orjson.dumps({"match": {"semantic": QUERY}})).decode()}},
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
def test_every_query_form_finds_nearest_with_cosines(bed: Bed, way: str) -> None:
    answer = bed.search({"query": WAYS[way], "size": 50})
    assert scores(answer) == pytest.approx(bed.nearest(), abs=1e-5)
    assert answer["hits"]["total"]["value"] == K


@pytest.mark.parametrize("way", ["match", "knn", "neural", "kql"])
@also_opensearch2
def test_filter_in_query_keeps_k_hits(bed: Bed, way: str) -> None:
    answer = bed.search({"query": {"bool": {"must": [WAYS[way]], "filter": [ENGLISH]}}, "size": 50})
    assert {hit["_source"]["lang"] for hit in answer["hits"]["hits"]} == {"en"}
    assert scores(answer) == pytest.approx(bed.nearest(lang="en"), abs=1e-5)


@on_every_version
def test_alias_filter_keeps_k_hits(bed: Bed) -> None:
    alias = f"{bed.index}-english"
    add: Json = {"add": {"index": bed.index, "alias": alias, "filter": ENGLISH}}
    patient.post(f"{bed.engine}/_aliases", json={"actions": [add]}).raise_for_status()
    body: Json = {"query": {"match": {"semantic": QUERY}}, "size": 50}
    answer = patient.post(f"{bed.gateway}/{alias}/_search", json=body).json()
    assert scores(answer) == pytest.approx(bed.nearest(lang="en"), abs=1e-5)


@on_every_version
def test_aggregations_sort_paging_and_highlight_work(bed: Bed) -> None:
    body = {
        "query": {"bool": {"filter": [{"match": {"semantic": QUERY}}]}},
        "sort": [{"rank": "asc"}], "from": 2, "size": 3, "_source": ["rank"],
        "highlight": {"fields": {"text": {"highlight_query": {"match": {"text": "cat"}}}}},
        "aggs": {"langs": {"terms": {"field": "lang.keyword"}}, "near": {"filter": {"match": {"semantic": QUERY}}}},
    }  # fmt: skip
    answer = bed.search(body)
    ids = sorted(bed.cosines, key=lambda id: -bed.cosines[id])[:K]
    ranks = sorted(int(id[1:]) for id in ids)
    assert [hit["_source"] for hit in answer["hits"]["hits"]] == [{"rank": rank} for rank in ranks[2:5]]
    assert sum(bucket["doc_count"] for bucket in answer["aggregations"]["langs"]["buckets"]) == K
    assert answer["aggregations"]["near"]["doc_count"] == K
    assert bed.search({"query": ENGLISH, "size": 0, "aggs": body["aggs"]})["aggregations"]["near"]["doc_count"] == K
    assert all("<em>cat</em>" in hit["highlight"]["text"][0] for hit in answer["hits"]["hits"] if "highlight" in hit)


@also_opensearch2
def test_min_cosine_and_k_in_request(bed: Bed) -> None:
    least = 2 * bed.nearest()[3] - 1 - 1e-4
    answer = bed.search({"query": {"match": {"semantic": {"query": QUERY, "k": 20, "min_cosine": least}}}, "size": 50})
    assert scores(answer) == pytest.approx(bed.nearest(len(scores(answer))), abs=1e-5)
    assert min(scores(answer)) >= (1 + least) / 2 - 1e-6
    assert len(scores(answer)) == sum(cosine >= least for cosine in bed.cosines.values()) < 20


@also_opensearch2
def test_clauses_differing_only_in_k_are_kept_apart(bed: Bed) -> None:
    """OpenSearch takes its own kNN queries for one where they look at as many vectors."""
    asked = [{"match": {"semantic": {"query": QUERY, "k": k}}} for k in (3, 10)]
    found = bed.search({"query": {"bool": {"should": asked}}, "size": 50})
    nearest = bed.nearest(10)
    assert scores(found) == pytest.approx([*(2 * score for score in nearest[:3]), *nearest[3:]], abs=1e-5)
    beside = bed.search({"query": {"bool": {"must": [asked[1]], "should": [asked[0]]}}, "size": 50})
    assert scores(beside) == scores(found)


def test_must_not_with_min_cosine_excludes_exactly_near_documents(bed: Bed) -> None:
    ranked = sorted(bed.cosines.values(), reverse=True)
    for above in (0, 2, 3 * K, len(ranked)):
        least = (([1.0, *ranked])[above] + [*ranked, -1.0][above]) / 2
        near = {"match": {"semantic": {"query": QUERY, "min_cosine": least}}}
        query: Json = {"bool": {"must": [{"match_all": {}}], "must_not": [near]}}
        found = bed.search({"query": query, "size": 100, "track_total_hits": True})
        far = {id for id, cosine in bed.cosines.items() if cosine < least}
        assert {hit["_id"] for hit in found["hits"]["hits"]} == far
        assert found["hits"]["total"]["value"] == bed.search({"query": query}, "_count")["count"] == len(far)


def test_gateway_options_do_not_hide_missing_index(bed: Bed) -> None:
    query: Json = {"query": {"match": {"semantic": {"query": QUERY, "k": 5, "min_cosine": 0.1}}}}
    for index, options in (("test-missing", ""), ("test-missing", "?ignore_unavailable=true"), ("test-missing*", "")):
        path = f"/{index}/_search{options}"
        plain: Json = {"query": {"match": {"semantic": QUERY}}}
        through = patient.post(f"{bed.gateway}{path}", json=query)
        direct = patient.post(f"{bed.engine}{path}", json=plain)
        assert through.status_code == direct.status_code == (404 if path.endswith("missing/_search") else 200)
        assert through.json().get("error") == direct.json().get("error")


@pytest.mark.parametrize("value", ["bogus", "on, off", "hybrid!"])
def test_unknown_header_value_is_rejected(bed: Bed, value: str) -> None:
    for path, body in (("_search", {"query": ENGLISH}), ("_doc", {"text": "a cat"}), ("_refresh", None)):
        answer = httpx.post(f"{bed.gateway}/{bed.index}/{path}", json=body, headers={"x-es-sbert": value}, timeout=120)
        assert answer.status_code == 400
        assert "X-Es-Sbert" in answer.json()["error"]["reason"]


@also_es8
def test_every_search_api_is_rewritten(bed: Bed) -> None:
    query: Json = {"match": {"semantic": QUERY}}
    right = pytest.approx(bed.nearest(), abs=1e-5)
    base = f"{bed.gateway}/{bed.index}"
    words = quote(f'semantic:"{QUERY}"')
    uri = patient.get(f"{base}/_search?q={words}&size=50").json()
    assert scores(uri) == right
    source = quote(orjson.dumps({"query": query}))
    in_query = patient.get(f"{base}/_search?source={source}&source_content_type=application/json").json()
    assert scores(in_query) == right
    assert bed.search({"query": query}, "_count")["count"] == K

    lines = [{"index": bed.index}, {"query": query}, {}, {"query": {"match": {"semantic": ""}}}, {}, {"query": ENGLISH}]
    several = bed.several(lines)
    assert scores(several[0]) == right
    assert several[1]["error"]["type"] == "illegal_argument_exception"
    assert "is empty" in several[1]["error"]["reason"]
    filtered = patient.post(
        f"{bed.gateway}/{bed.index}/_msearch?filter%5Fpath=responses.error",
        content=b"".join(orjson.dumps(line) + b"\n" for line in lines),
        headers={"content-type": "application/x-ndjson"},
    )
    assert filtered.json() == {"responses": [several[1]]}, "the error that the gateway adds is whole"
    long = {
        "index": [bed.index, *(f"test-no-such-index-{number:040}" for number in range(100))],
        "ignore_unavailable": True,
    }
    [found] = bed.several([long, {"query": query, "size": 50}])
    assert scores(found) == right, "indices that fit into no path"
    assert several[2]["hits"]["total"]["value"] == sum(document["lang"] == "en" for document in documents())

    opened = "_search/point_in_time" if bed.is_opensearch else "_pit"
    point = patient.post(f"{base}/{opened}?keep_alive=10m").json()
    by_point = patient.post(
        f"{bed.gateway}/_search",
        json={"query": query, "pit": {"id": point.get("id") or point["pit_id"], "keep_alive": "10m"}},
    ).json()
    assert scores(by_point) == right
    if bed.is_opensearch:
        template = {"source": '{"query":{"match":{"semantic":"{{words}}"}},"size":50}', "params": {"words": QUERY}}
        explained = bed.search(template | {"explain": True}, "_search/template")
        assert scores(explained) == right
        assert "_explanation" in explained["hits"]["hits"][0]
        pairs = b"".join(b"{}\n" + orjson.dumps(one) + b"\n" for one in ({"id": "missing"}, template))
        missing, answer = patient.post(
            f"{base}/_msearch/template", content=pairs, headers={"content-type": "application/x-ndjson"}
        ).json()["responses"]
        assert (missing["status"], missing["error"]["type"]) == (404, "resource_not_found_exception")
        assert scores(answer) == right


def test_rank_eval_of_semantic_queries_is_refused(bed: Bed) -> None:
    """Also of those that are templates, or invalid, or would become hybrid. Others pass through unchanged."""
    semantic: Json = {"query": {"match": {"semantic": QUERY}}}
    invalid: Json = {"query": {"match": {"semantic": {"query": QUERY, "fuzziness": 2}}}}
    words: Json = {"query": {"match": {"text": QUERY}}}
    template = {"id": "t", "template": {"source": '{"query":{"match":{"semantic":"{{words}}"}}}'}}
    rated: Json = {"template_id": "t", "params": {"words": QUERY}}
    path, metric = f"{bed.index}/_rank_eval", {"mean_reciprocal_rank": {"k": 1}}

    def send(mode: str, *requests: Json, templates: tuple[Json, ...] = ()) -> httpx.Response:
        ratings = [{"_index": bed.index, "_id": "d1", "rating": 1}]
        numbered = [one | {"id": str(number), "ratings": ratings} for number, one in enumerate(requests)]
        body = {"requests": numbered, "metric": metric} | ({"templates": list(templates)} if templates else {})
        return patient.post(f"{bed.gateway}/{path}", json=body, headers={"X-Es-Sbert": mode})

    refused = [
        send("on", {"request": words}, {"request": semantic}),
        send("on", {"request": invalid}),
        send("hybrid", {"request": words}),
    ]
    if bed.is_opensearch:  # Elasticsearch's small build has no templates
        refused.append(send("on", rated, templates=(template,)))
    for answer in refused:
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "illegal_argument_exception"
        assert "es-sbert evaluate" in answer.json()["error"]["reason"]
    if bed.is_opensearch:
        assert send("on", {"request": words}).json()["details"]["0"]["unrated_docs"]
        assert send("off", {"request": semantic}).json()["metric_score"] == 0.0


JSON_TYPE = "application/json"
JSON, NDJSON = {"content-type": JSON_TYPE}, {"content-type": "application/x-ndjson"}


def test_virtual_field_with_letters_outside_ascii(bed: Bed, tiny: Path) -> None:
    query: Json = {"query": {"match": {"ähnlich": QUERY}}}
    escaped = rb'{"query":{"match":{"\u00e4hnlich":"%b"}}}' % QUERY.encode()
    far: Json = {"query": {"bool": {"must_not": [query["query"]]}}}
    with tiny_gateway(bed.engine, tiny, virtual_field="ähnlich", k=K, num_candidates=100) as url:
        place = f"{url}/{bed.index}"
        for answer in (
            patient.post(f"{place}/_search", content=orjson.dumps(query), headers=JSON),
            patient.post(f"{place}/_search", content=escaped, headers=JSON),
            patient.get(f"{place}/_search?q={quote('ähnlich')}:({quote(QUERY)})"),
            patient.get(
                f"{place}/_search", params={"source": orjson.dumps(query).decode(), "source_content_type": JSON_TYPE}
            ),
        ):
            assert scores(answer.json()) == pytest.approx(bed.nearest(), abs=1e-5), answer.request.url
        for refused in (
            patient.post(f"{place}/_delete_by_query", json=far),
            patient.post(f"{place}/_delete_by_query?q=NOT%20{quote('ähnlich')}:cat"),
        ):
            assert refused.status_code == 400, refused.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/INDEX/_eql/search", lambda query: {"query": "any where true", "filter": query}),
        ("/INDEX/_field_caps?fields=text", lambda query: {"index_filter": query}),
        ("/INDEX/_explain/d1", lambda query: {"query": query}),
        ("/INDEX/_validate/query", lambda query: {"query": query}),
        ("/_transform/_preview", lambda query: {"source": {"index": "INDEX", "query": query}, "pivot": {}}),
        ("/_fleet/_fleet_msearch", None),
    ],
)
def test_semantic_query_in_another_api_is_rejected(bed: Bed, path: str, body: Callable[[Json], Json] | None) -> None:
    """Whether the engine has the API or not: those with modules or plugins of their own do not run here."""
    near: Json = {"bool": {"must_not": [{"match": {"semantic": QUERY}}]}}

    def send(address: str, query: Json, **headers: str) -> httpx.Response:
        lines: list[Json] = [{"index": bed.index}, {"query": query}] if body is None else [body(query)]
        content = b"".join(orjson.dumps(line).replace(b"INDEX", bed.index.encode()) + b"\n" for line in lines)
        return patient.post(address + path.replace("INDEX", bed.index), content=content, headers=JSON | headers)

    refused = send(bed.gateway, near)
    assert (refused.status_code, "does not support semantic queries" in refused.text) == (400, True)
    for query, headers in (({"match": {"text": "semantic"}}, {}), (near, {"x-es-sbert": "off"})):
        assert send(bed.gateway, query, **headers).text == send(bed.engine, query, **headers).text


def test_streamed_bulk_is_rejected(bed: Bed) -> None:
    lines = b'{"index": {}}\n{"text": "a cat"}\n'
    path = f"/{bed.index}/_bulk/stream"
    refused = patient.post(f"{bed.gateway}{path}", content=lines, headers=NDJSON)
    assert (refused.status_code, "would be stored without vectors" in refused.text) == (400, True)
    # Without the reactor-netty transport, OpenSearch refuses it too.
    asked = [
        patient.post(f"{at}{path}", content=lines, headers=NDJSON | {"x-es-sbert": "off"})
        for at in (bed.engine, bed.gateway)
    ]
    assert asked[0].text == asked[1].text


def test_semantic_by_query_and_reindex_are_rejected(bed: Bed) -> None:
    """To the engine nothing has a field `semantic`: what must not match it would be everything."""
    near: Json = {"match": {"semantic": QUERY}}
    far: Json = {"bool": {"must_not": [near]}}
    copy = f"{bed.index}-copy"
    requests: list[tuple[str, Json]] = [
        (f"/{bed.index}/_delete_by_query", {"query": far}),
        (f"/{bed.index}/_delete_by_query?q=NOT%20semantic:{quote(QUERY)}", {}),
        (f"/{bed.index}/_update_by_query", {"query": near, "script": "ctx._source.lang = 'it'"}),
        ("/_reindex", {"source": {"index": [bed.index], "query": far}, "dest": {"index": copy}}),
    ]
    with httpx.Client(timeout=120) as client:
        for path, body in requests:
            answer = client.post(f"{bed.gateway}{path}", json=body)
            assert answer.status_code == 400, answer.text
            assert "does not support semantic queries" in answer.json()["error"]["reason"]
        assert client.head(f"{bed.engine}/{copy}").status_code == 404
        words = {"query": {"bool": {"filter": [{"match": {"text": "semantic"}}]}}}
        # The distribution of Elasticsearch 9 that runs here has no such API, and says so itself.
        answers = [client.post(f"{at}/{bed.index}/_delete_by_query", json=words) for at in (bed.engine, bed.gateway)]
        assert len({(answer.status_code, answer.json().get("deleted", answer.text)) for answer in answers}) == 1
        assert client.get(f"{bed.engine}/{bed.index}/_count").json()["count"] == len(documents())


def test_alias_moved_to_another_model_is_followed_at_once(bed: Bed, tiny: Path, tmp_path: Path) -> None:
    other = write_tiny_bert(tmp_path / "other", seed=5)
    alias, index = f"{bed.index}-alias", f"{bed.index}-other"
    with Encoder(str(other), device="cpu", precision="fp32", threads=1) as loaded:
        load(
            bed.engine,
            loaded,
            index,
            write_jsonl(tmp_path / "docs.jsonl", documents()),
            dead=tmp_path / "dead",
            id_field="id",
        )
        right = sorted(((1 + cosine) / 2 for cosine in cosines(loaded).values()), reverse=True)[:K]
    settings = GatewaySettings(
        upstream=EngineSettings(url=bed.engine),
        models=tiny_settings(tiny, models=(str(tiny), str(other))),
        semantic=SemanticSettings(k=K, num_candidates=100),
    )

    def point(alias_of: str, away_from: str | None = None) -> None:
        actions: list[Json] = [{"add": {"index": alias_of, "alias": alias}}]
        if away_from is not None:
            actions.append({"remove": {"index": away_from, "alias": alias}})
        patient.post(f"{bed.engine}/_aliases", json={"actions": actions}).raise_for_status()

    def found(where: str, path: str = "_search") -> httpx.Response:
        body = orjson.dumps({"query": {"match": {"semantic": QUERY}}}) + b"\n"
        content = b"{}\n" + body if path == "_msearch" else body
        return patient.post(
            f"{gateway}/{where}/{path}", content=content, headers=NDJSON if path == "_msearch" else JSON
        )

    try:
        with served(Gateway(settings)) as gateway:
            point(bed.index)
            assert scores(found(alias).json()) == pytest.approx(bed.nearest(), abs=1e-5)
            point(index, bed.index)
            assert scores(found(alias).json()) == pytest.approx(right, abs=1e-5)
            point(bed.index, index)
            assert scores(found(alias, "_msearch").json()["responses"][0]) == pytest.approx(bed.nearest(), abs=1e-5)
            point(index, bed.index)
            assert scores(found(alias, "_search?scroll=1m").json()) == pytest.approx(right, abs=1e-5)
            both = found(f"{index},{bed.index}")
            assert both.status_code == 400
            assert both.json()["error"]["type"] == "es_sbert_index_mismatch"
    finally:
        delete_index(bed.engine, index)


def test_index_without_vectors_is_searched_by_engine_alone(bed: Bed) -> None:
    index, bare = f"{bed.index}-plain", f"{bed.index}-bare"
    patient.put(
        f"{bed.engine}/{index}/_doc/1?refresh=true", json={"semantic": "the cat", "text": "a"}
    ).raise_for_status()
    try:
        body = {"query": {"match": {"semantic": "cat"}}}
        answers = [patient.post(f"{url}/{index}/_search", json=body).json() for url in (bed.engine, bed.gateway)]
        assert answers[0]["hits"] == answers[1]["hits"]
        assert answers[0]["hits"]["total"]["value"] == 1, "a field of that name is searched as any other"
        mixed = patient.post(
            f"{bed.gateway}/{index},{bed.index}/_search", json={"query": {"match": {"semantic": QUERY}}}
        )
        assert scores(mixed.json()) == pytest.approx(bed.nearest(), abs=1e-5), "where there are vectors, they are meant"
        patient.put(f"{bed.engine}/{bare}/_doc/1?refresh=true", json={"text": "a"}).raise_for_status()
        refused = patient.post(f"{bed.gateway}/{bare}/_search", json=body)
        assert refused.status_code == 400
        assert "es-sbert ingest --index" in refused.json()["error"]["reason"], "nobody is left to wonder"
        missing = patient.post(f"{bed.gateway}/{index}-not/_search", json=body)
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "index_not_found_exception")
    finally:
        delete_index(bed.engine, index)
        delete_index(bed.engine, bare)


def test_rewrite_errors_have_engine_error_format(bed: Bed) -> None:
    query: Json = {"bool": {"must_not": [{"prefix": {"semantic": "ca"}}]}}
    answer = patient.post(f"{bed.gateway}/{bed.index}/_search", json={"query": query})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "a prefix query on semantic is not supported" in error["reason"]
    assert error["root_cause"][0]["reason"] == error["reason"]
    assert ("x-elastic-product" in answer.headers) is not bed.is_opensearch


def test_unserved_model_is_reported(bed: Bed, tmp_path: Path) -> None:
    tiny = write_tiny_bert(tmp_path / "unknown", seed=9)
    with tiny_gateway(bed.engine, tiny) as gateway:
        body = {"query": {"match": {"semantic": QUERY}}}
        answer = patient.post(f"{gateway}/{bed.index}/_search", json=body)
        assert answer.status_code in (400, 503)
        assert answer.json()["error"]["type"].startswith("es_sbert_")
        plain = patient.post(f"{gateway}/{bed.index}/_search", json={"query": ENGLISH})
        assert plain.status_code == 200, "searches that ask for no meaning need no model"


@pytest.mark.parametrize(("index_type", "shards"), [("hnsw", 3), ("flat", 1), ("int8_hnsw", 1)])
def test_k_hits_are_kept_despite_engine_defaults(
    bed: Bed, tiny_encoder: Encoder, tmp_path: Path, index_type: str, shards: int
) -> None:
    index = f"{bed.index}-{index_type}"
    settings: Json = {"number_of_shards": shards} | ({"knn": index_type != "flat"} if bed.is_opensearch else {})
    patient.put(f"{bed.engine}/{index}", json={"settings": {"index": settings}}).raise_for_status()
    load(
        bed.engine,
        tiny_encoder,
        index,
        write_jsonl(tmp_path / "docs.jsonl", documents()),
        dead=tmp_path / "dead",
        id_field="id",
        index_type=index_type,
    )
    query = {"bool": {"filter": [{"match": {"semantic": QUERY}}, ENGLISH]}}
    try:
        for sort in ([], ["rank"]):
            body: Json = {"query": query, "size": 50, "sort": sort, "aggs": {"all": {"filter": {"match_all": {}}}}}
            answer = patient.post(f"{bed.gateway}/{index}/_search", json=body).json()
            assert answer["hits"]["total"]["value"] == answer["aggregations"]["all"]["doc_count"] == K
            if not sort:
                assert scores(answer) == pytest.approx(bed.nearest(lang="en"), abs=1e-5)
        if shards == 1:
            count = patient.post(f"{bed.gateway}/{index}/_count", json={"query": NEURAL}).json()["count"]
            assert count == K, "the engine's own query keeps as many as it says"
        body = {"query": {"match": {"semantic": {"query": QUERY, "k": 2 * K}}}, "size": 50}
        both = patient.post(f"{bed.gateway}/{index},{bed.index}/_search", json=body).json()["hits"]["hits"]
        assert [hit["_id"] for hit in both[::2]] == [hit["_id"] for hit in both[1::2]], "each is in both indices"
        assert [hit["_score"] for hit in both[::2]] == pytest.approx(bed.nearest(), abs=1e-5)
        settings_url = f"{bed.engine}/{index}/_settings"
        patient.put(settings_url, json={"index.max_result_window": K}).raise_for_status()
        beyond = patient.post(f"{bed.gateway}/{index}/_search", json=body | {"size": K})
        patient.put(settings_url, json={"index.max_result_window": None}).raise_for_status()
        if beyond.status_code == 200:
            assert beyond.json()["hits"]["total"]["value"] == 2 * K, "the engine by itself keeps as many"
        else:
            assert "more than the index.max_result_window" in beyond.json()["error"]["reason"]
        if shards > 1:
            check_only_what_is_searched_counts(bed, index)
    finally:
        delete_index(bed.engine, index)


def check_only_what_is_searched_counts(bed: Bed, index: str) -> None:
    """The k nearest are those of the shards that are searched, and of the point in time."""
    body: Json = {"query": {"match": {"semantic": QUERY}}, "size": 50}
    url = f"{bed.gateway}/{index}"
    whole: Json = {"size": 100, "_source": False}
    there = patient.post(f"{bed.engine}/{index}/_search?routing=x", json=whole).json()["hits"]["hits"]
    nearest = sorted(((1 + bed.cosines[hit["_id"]]) / 2 for hit in there), reverse=True)[:K]
    assert len(there) < len(documents())
    assert scores(patient.post(f"{url}/_search?routing=x", json=body).json()) == pytest.approx(nearest, abs=1e-5)
    missing = [f"test-no-such-index-{number:040}" for number in range(100)]
    headers: list[Json] = [{"index": names, "ignore_unavailable": True, "routing": "x"} for names in (index, missing)]
    headers[1]["index"] = [index, *missing]  # which fit into no path
    for found in bed.several([headers[0], body, headers[1], body]):
        assert scores(found) == pytest.approx(nearest, abs=1e-5)

    opened = "_search/point_in_time" if bed.is_opensearch else "_pit"
    point = patient.post(f"{url}/{opened}?keep_alive=10m").json()
    best = max(bed.cosines, key=lambda id: bed.cosines[id])
    patient.delete(f"{bed.engine}/{index}/_doc/{best}?refresh=true").raise_for_status()
    pages: list[float] = []
    page: Json = body | {"size": 3, "pit": {"id": point.get("id") or point["pit_id"]}, "sort": ["_score", "rank"]}
    while found := patient.post(f"{bed.gateway}/_search", json=page).json()["hits"]["hits"]:
        pages += [hit["_score"] for hit in found]
        page["search_after"] = found[-1]["sort"]
    assert pages == pytest.approx(bed.nearest(), abs=1e-5)
