from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.index_lookup import NO_MAPPINGS, ResolvedIndices
from es_sbert.gateway.search.field_resolver import FieldResolver
from es_sbert.gateway.search.hybrid_queries import ranking_query, ranks_hits
from es_sbert.gateway.search.incoming_search import SemanticBudget
from es_sbert.gateway.search.knn_clauses import CandidateCounts, kth_hit_body
from es_sbert.gateway.search.query_finder import QueryFinder
from es_sbert.gateway.search.semantic_query import SemanticQueryParser
from es_sbert.gateway.settings import Limits, SemanticSettings
from es_sbert.index.mapping import ChunkRules
from es_sbert.search.vector_query import MAX_K, VectorQuery
from tests.gateway.hybrid_kinds import HYBRID, RESTRICTIONS, UNCHANGED
from tests.raised import raises_as_recorded
from tests.unit.gateway.rewriting import (
    CUT_HERE_WHOLE_THERE,
    MIXED,
    PASSAGES,
    PLAIN,
    SEVERAL_TYPES,
    TWO_FIELDS,
    Rewriting,
    clauses,
    copy_json,
    vector_field,
)
from tests.unit.golden import assert_golden

TEXT = "how do plants make energy"
EN: Json = {"term": {"language": "en"}}
YEAR: Json = {"range": {"year": {"gte": 2020}}}
TITLE: Json = {"match": {"title": "plants"}}
SEMANTIC: Json = {"match": {"semantic": TEXT}}
NEURAL: Json = {"neural": {"embedding": {"query_text": TEXT}}}

BODIES: dict[str, Json] = {
    "virtual": {"query": SEMANTIC},
    "knn-section": {
        "knn": {"field": "embedding", "k": 5, "num_candidates": 50, "filter": EN, "boost": 2.0,
                "query_vector_builder": {"text_embedding": {"model_id": "all-MiniLM-L6-v2", "model_text": TEXT}}},
    },
    "neural": {"query": {"neural": {"embedding": {"query_text": TEXT, "k": 7, "filter": EN}}}},
    "semantic": {"query": {"semantic": {"field": "body", "query": TEXT, "boost": 3}}},
    # As Kibana sends `semantic: "…" and not topic: old` with a time range, and a histogram beside.
    "kibana": {
        "size": 500,
        "query": {"bool": {
            "must": [],
            "filter": [
                {"bool": {"filter": [
                    {"bool": {"should": [{"match_phrase": {"semantic": TEXT}}], "minimum_should_match": 1}},
                    {"bool": {"must_not": {"bool": {"should": [{"match": {"topic": "old"}}],
                                                    "minimum_should_match": 1}}}},
                ]}},
                YEAR,
            ],
            "should": [],
            "must_not": [{"match_phrase": {"host": "down"}}],
        }},
        "aggs": {"years": {"date_histogram": {"field": "year", "fixed_interval": "1d"}}},
    },
    "aggregation": {
        "size": 0,
        "aggs": {"near": {"filter": SEMANTIC, "aggs": {"inner": {"filters": {"filters": {"a": SEMANTIC, "b": EN}}}}}},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine_type", "name"),
    # OpenSearch has no section `knn`.
    [pair for pair in product(EngineType, BODIES) if pair != (EngineType.OPENSEARCH, "knn-section")],
)
def test_rewritten_bodies_match_golden_files(engine_type: EngineType, name: str) -> None:
    assert_golden(engine_type, f"gateway-{name}", Rewriting(engine_type=engine_type)(BODIES[name]))


@pytest.mark.parametrize("engine_type", list(EngineType))
def test_inner_hits_are_named_and_omitted_in_aggregations(engine_type: EngineType) -> None:
    body = {"query": {"bool": {"should": [SEMANTIC, {"match": {"semantic": "light"}}]}}} | BODIES["aggregation"]
    rewritten = Rewriting(PASSAGES, engine_type)(body)
    assert [told["name"] for told in clauses(rewritten["query"], "inner_hits")] == ["embedding", "embedding_2"]
    assert clauses(rewritten["aggs"], "nested")
    assert not clauses(rewritten["aggs"], "inner_hits")
    quantized = vector_field(passages=ChunkRules(tokens=64, overlap=8), index_type="int8_hnsw")
    two_types = ResolvedIndices(PASSAGES.fields | {"old": {"embedding": quantized}}, {"docs": 1, "old": 1})
    told = clauses(Rewriting(two_types, engine_type).query(SEMANTIC), "inner_hits")
    assert [hits["name"] for hits in told] == ["embedding", "embedding.1"]
    named = Rewriting(engine_type=engine_type).query({"match": {"semantic": {"query": TEXT, "_name": "near"}}})
    assert named["bool"]["_name"] == "near"


def test_section_has_the_oversampling_of_its_field_and_names_the_nearest_chunk() -> None:
    meta = vector_field(passages=ChunkRules(tokens=64, overlap=8), index_type="bbq_hnsw")
    section = Rewriting(ResolvedIndices({"docs": {"embedding": meta}}, {"docs": 1}))(BODIES["knn-section"])["knn"]
    assert (section["inner_hits"]["name"], section["rescore_vector"]) == ("embedding", {"oversample": 3.0})


def knn_filter(query: Json) -> Json:
    [knn] = clauses(query, "knn")
    applied: Json = knn["filter"]
    return applied


def test_required_clauses_become_the_knn_filter_and_semantic_ones_do_not() -> None:
    query: Json = {"bool": {"must": [SEMANTIC], "filter": [EN], "must_not": [YEAR]}}
    assert knn_filter(Rewriting().query(query)) == {"bool": {"filter": [EN, {"bool": {"must_not": [YEAR]}}]}}
    query = {"bool": {"must": [SEMANTIC, {"match": {"semantic": "light"}}], "filter": EN}}
    assert [knn["filter"] for knn in clauses(Rewriting().query(query), "knn")] == [EN, EN]
    assert "filter" not in clauses(Rewriting().query({"bool": {"should": [SEMANTIC, TITLE]}}), "knn")[0]


def test_inner_hits_are_kept_in_one_place() -> None:
    nested: Json = {"nested": {"path": "comments", "query": EN, "inner_hits": {}}}
    rewritten = Rewriting().query(
        {"bool": {"must": [SEMANTIC, {"bool": {"must": [nested]}}], "must_not": [nested, YEAR]}}
    )
    assert len(clauses(rewritten, "inner_hits")) == 2
    silent: Json = {"nested": {"path": "comments", "query": EN}}
    assert knn_filter(rewritten) == {
        "bool": {"filter": [{"bool": {"must": [silent]}}, {"bool": {"must_not": [silent, YEAR]}}]}
    }


NEAR: Json = {"filter": SEMANTIC}
NOT_NEAR: Json = {"match": {"semantic": {"query": TEXT, "min_cosine": 0.3}}}
# Where → a search with the query there, and what narrows the search by meaning down; None for nothing.
ELSEWHERE: dict[str, tuple[Json, Json | None]] = {
    "aggregation": ({"query": EN, "aggs": {"a": NEAR}}, EN),
    "of all": ({"query": {"match_all": {}}, "aggs": {"a": NEAR}}, None),
    "of what the query requires": (
        {"query": {"bool": {"filter": [{"bool": {"filter": [{"constant_score": {"filter": SEMANTIC}}, EN]}}],
                            "should": [TITLE], "must_not": [NOT_NEAR, YEAR]}}, "aggs": {"a": NEAR}},
        {"bool": {"filter": [EN, {"bool": {"must_not": [YEAR]}}]}},
    ),
    "below a filter": (
        {"query": EN, "aggs": {"a": {"filter": YEAR, "aggs": {"b": {"filters": {"filters": [SEMANTIC]}}}}}},
        {"bool": {"filter": [EN, YEAR]}},
    ),
    "global": ({"query": EN, "aggs": {"a": {"global": {}, "aggs": {"b": NEAR}}}}, None),
    "beside a section": ({"query": EN, "knn": {"field": "x", "query_vector": [1]}, "aggs": {"a": NEAR}}, None),
    "post_filter": ({"query": EN, "post_filter": SEMANTIC}, EN),
    "hybrid": ({"query": {"hybrid": {"queries": [SEMANTIC], "filter": EN}}}, EN),
}  # fmt: skip


@pytest.mark.parametrize("where", list(ELSEWHERE))
def test_knn_filter_matches_the_enclosing_scope(where: str) -> None:
    body, narrowed = ELSEWHERE[where]
    rewritten = Rewriting()(body)
    found = [knn for knn in clauses(rewritten, "knn") if len(knn["query_vector"]) == 3]
    assert found[-1].get("filter") == narrowed


def test_semantic_field_in_filter_scores_when_sorted_by_score() -> None:
    query = {"bool": {"filter": [{"bool": {"should": [SEMANTIC, TITLE], "minimum_should_match": 1}}, EN]}}
    promoted = Rewriting().query(query)["bool"]
    assert promoted["filter"] == [EN]
    [moved] = promoted["must"]
    near, silent = moved["bool"]["should"]
    assert clauses(near, "knn")
    assert silent == {"bool": {"filter": [TITLE]}}, "only meaning scores"
    for sort in ([{"year": "desc"}], "year", {"year": "asc"}):
        assert "must" not in Rewriting().query(query, sort=sort)["bool"]
    for sort in ("_score", ["_score"], [{"_score": "desc"}, "year"], [{"year": "desc"}, "_score"], []):
        assert "must" in Rewriting().query(query, sort=sort)["bool"]
    assert "must" not in Rewriting().query({"bool": {"filter": [NEURAL]}})["bool"], "the engine's own query"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"match": {"semantic": {"query": TEXT, "k": 3}}}, TEXT),
        ({"match": {"semantic": 2024}}, "2024"),
        ({"match_phrase": {"semantic": TEXT}}, TEXT),
        ({"query_string": {"query": f'semantic:"{TEXT}"'}}, TEXT),
        ({"query_string": {"query": "semantic:(how do plants) AND lang:en"}}, "how do plants"),
        ({"query_string": {"query": r"semantic:(what is love\?)"}}, "what is love?"),
        ({"query_string": {"query": "NOT (semantic:plants^2 OR title:b)"}}, "plants"),
        ({"query_string": {"query": r"semantic:\"quoted\" x:y", "default_operator": "AND"}}, '"quoted"'),
        ({"dis_max": {"queries": [TITLE, SEMANTIC]}}, TEXT),
        ({"function_score": {"query": TITLE, "functions": [{"weight": 2}, {"filter": SEMANTIC, "weight": 3}]}}, TEXT),
        ({"boosting": {"positive": TITLE, "negative": SEMANTIC, "negative_boost": 0.5}}, TEXT),
        ({"semantic": {"field": "embedding", "query": TEXT}}, TEXT),
    ],
)
def test_every_query_syntax_embeds_its_text(written: Json, text: str) -> None:
    rewriting = Rewriting(meaning=SemanticSettings(k=10, min_cosine=-1.0))
    rewritten = rewriting.query(written)
    assert rewriting.texts == [text]
    assert len(clauses(rewritten, "query_vector")) == 1
    assert "semantic" not in str(rewritten), "nothing of ours reaches the engine"


def test_query_string_keeps_non_semantic_clauses() -> None:
    text = 'semantic:"light" AND -topic:(old OR new) AND year:[2000 TO *]'
    said = Rewriting().query({"query_string": {"query": text, "lenient": True}})["bool"]
    assert [part["query_string"] for part in said["must"] if "query_string" in part] == [
        {"lenient": True, "query": "year:[2000 TO *]"}
    ]
    assert [part["query_string"]["query"] for part in said["must_not"]] == ["topic:(old OR new)"]
    said = Rewriting().query({"query_string": {"query": "+(semantic:light OR title:a)^2 title:b"}})["bool"]
    assert said["must"][0]["bool"]["should"][1] == {"query_string": {"query": "title:a", "boost": 2.0}}
    assert said["should"] == [{"query_string": {"query": "title:b"}}]


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        ("(semantic:a)||(lang:en && !topic:old)", "(semantic:a) OR (lang:en AND NOT topic:old)"),
        ("!semantic:a ! lang:/a || !b/", "NOT semantic:a NOT lang:/a || !b/"),
    ],
)
def test_query_string_operators_equal_their_symbols(symbols: str, words: str) -> None:
    meaning = SemanticSettings(k=10, min_cosine=0.3)
    by_symbols, by_words = (
        Rewriting(meaning=meaning).query({"query_string": {"query": text}}) for text in (symbols, words)
    )
    assert by_symbols == by_words
    assert clauses(by_words, "knn")


def test_semantic_query_on_joined_documents_is_refused() -> None:
    for kind, more in (("nested", {"path": "embedding"}), ("has_child", {"type": "answer"}), ("has_parent", {})):
        for query in (SEMANTIC, {"bool": {"must": [{"neural": {"embedding.vector": {"query_text": TEXT}}}]}}):
            with raises_as_recorded(UsageError):
                Rewriting(PASSAGES).query({"bool": {"must": [{kind: more | {"query": query}}]}})
        joined = {kind: more | {"query": TITLE}}
        [knn] = clauses(Rewriting(hybrid=True).query({"bool": {"must": [joined, SEMANTIC]}}), "knn")
        assert knn["filter"] == joined, "it does not become hybrid"


def test_semantic_field_selects_one_of_several_vector_fields() -> None:
    rewritten = Rewriting(TWO_FIELDS).query(
        {"bool": {"must": [SEMANTIC, {"match": {"semantic.title_vector": "light"}}]}}
    )
    assert [knn["field"] for knn in clauses(rewritten, "knn")] == ["embedding", "title_vector"]
    with raises_as_recorded(IndexMismatch):
        Rewriting(TWO_FIELDS).query({"match": {"semantic.other": "light"}})


def test_index_without_vectors_raises_unless_field_is_mapped() -> None:
    with raises_as_recorded(IndexMismatch):
        Rewriting(ResolvedIndices({}, {}, ordinary=False)).query(SEMANTIC)
    for text in ("title:semantic", '_exists_:title AND "semantic: a science"'):
        other: Json = {"query": {"query_string": {"query": text}}}
        assert Rewriting(ResolvedIndices({}, {}, ordinary=False))(other) is other
    for query in (SEMANTIC, {"query_string": {"query": 'semantic:"open'}}):
        body = {"query": query}
        assert Rewriting(NO_MAPPINGS)(body) is body


CALIBRATED = ResolvedIndices({"docs": {"embedding": vector_field(min_cosine=0.3)}}, {"docs": 1}, ordinary=False)
NEGATED: Json = {"bool": {"must_not": [SEMANTIC]}}


def minima(searched: ResolvedIndices, query: Json, meaning: SemanticSettings | None = None) -> list[float | None]:
    """The minimum cosine of each native query."""
    rewriting = Rewriting(searched, meaning=meaning or SemanticSettings(k=10))
    return [knn.get("similarity") for knn in clauses(rewriting.query(query), "knn")]


@pytest.mark.parametrize(
    ("query", "gateway", "expected"),
    [
        (SEMANTIC, None, 0.3),
        ({"semantic": {"field": "body", "query": TEXT}}, None, 0.3),
        ({"match": {"semantic": {"query": TEXT, "min_cosine": 0.1}}}, None, 0.1),
        (SEMANTIC, 0.2, 0.2),
        # The engines' own queries have the minimum that they name.
        ({"neural": {"embedding": {"query_text": TEXT}}}, None, None),
    ],
)
def test_minimum_of_the_mapping_applies_unless_request_or_gateway_sets_one(
    query: Json, gateway: float | None, expected: float | None
) -> None:
    assert minima(CALIBRATED, query, SemanticSettings(k=10, min_cosine=gateway)) == [expected]
    assert minima(PLAIN, SEMANTIC) == [None]  # of an index that was not calibrated


def test_minimum_of_the_mapping_is_that_of_each_field_and_index() -> None:
    two = ResolvedIndices(
        {"docs": {"title_vector": vector_field(min_cosine=0.5), "embedding": vector_field(min_cosine=0.3)}}, {"docs": 1}
    )
    either = {"bool": {"should": [SEMANTIC, {"match": {"semantic.title_vector": TEXT}}]}}
    minimum = {"docs": 0.3, "old": None, "small": 0.6}
    fields = {index: {"embedding": vector_field(min_cosine=cosine)} for index, cosine in minimum.items()}
    several = ResolvedIndices(fields, dict.fromkeys(minimum, 1))
    assert minima(two, either) == [0.3, 0.5]
    assert minima(several, SEMANTIC) == [0.3, None, 0.6]
    # By the script's score, which is (1 + cosine) / 2.
    assert clauses(Rewriting(several, EngineType.OPENSEARCH).query(SEMANTIC), "min_score") == [0.65, 0.8]


def test_minimum_of_the_mapping_applies_to_hybrid_queries_and_below_a_cutoff() -> None:
    for rewriting, query, expected in (
        (Rewriting(CALIBRATED, hybrid=True), TITLE, 0.3),
        (Rewriting(CALIBRATED, least=0.1), SEMANTIC, 0.3),
        (Rewriting(CALIBRATED, least=0.7), SEMANTIC, 0.7),
    ):
        assert [knn["similarity"] for knn in clauses(rewriting.query(query), "knn")] == [expected]


def test_negated_query_needs_a_minimum_in_every_index() -> None:
    assert minima(CALIBRATED, NEGATED) == [0.3]
    [knn] = clauses(Rewriting(CALIBRATED, least=0.9).query(NEGATED), "knn")
    assert (knn["k"], knn["similarity"]) == (MAX_K, 0.3), "the cosine of a k-th document is no minimum here"
    some = ResolvedIndices(CALIBRATED.fields | {"old": {"embedding": vector_field()}}, {"docs": 1, "old": 1})
    for searched in (PLAIN, some):
        with raises_as_recorded(BadRequest):
            Rewriting(searched).query(NEGATED)
    with raises_as_recorded(BadRequest):
        Rewriting(CALIBRATED).query({"bool": {"must_not": [{"neural": {"embedding": {"query_text": TEXT}}}]}})


@pytest.mark.parametrize("engine_type", list(EngineType))
def test_each_index_is_searched_by_its_type_and_alias_filter(engine_type: EngineType) -> None:
    assert_golden(engine_type, "gateway-several-types", Rewriting(SEVERAL_TYPES, engine_type)({"query": SEMANTIC}))


@given(st.lists(st.tuples(st.integers(1, 10_000), st.none() | st.integers(0, 40), st.sampled_from([None, 1.5, 3.0]))))
def test_candidate_counts_are_distinct_per_k(asked: list[tuple[int, int | None, float | None]]) -> None:
    counts, looked = CandidateCounts(), dict[int, int]()
    for k, more, oversample in asked:
        candidates = None if more is None else min(10_000, k + more)
        query = VectorQuery("embedding", np.ones(3, np.float32), k, num_candidates=candidates, oversample=oversample)
        depth = counts.distinct(query).candidates
        assert depth >= query.oversampled_k
        assert looked.setdefault(depth, k) == k or query.oversampled_k == 10_000


def test_search_for_the_kth_hit_has_the_scope_of_the_search() -> None:
    semantic = SemanticQueryParser(FieldResolver(PLAIN, "semantic"), SemanticSettings(k=10), 1000).parse(
        "match", SEMANTIC["match"]
    )
    assert semantic is not None
    scope: Json = {"pit": {"id": "a"}, "runtime_mappings": {"year": {"type": "long"}}}
    body = kth_hit_body(EngineType.ELASTICSEARCH, semantic, np.ones(3, np.float32), [EN], scope | {"size": 3})
    assert body.items() >= (scope | {"from": 9, "size": 1}).items()
    assert EN in clauses(body, "filter")


def test_different_models_in_one_search_are_rejected() -> None:
    with raises_as_recorded(IndexMismatch):
        Rewriting(MIXED).query(SEMANTIC)
    with raises_as_recorded(IndexMismatch):
        Rewriting(MIXED, hybrid=True).query(TITLE)
    with raises_as_recorded(IndexMismatch):
        Rewriting(CUT_HERE_WHOLE_THERE).query(SEMANTIC)
    with raises_as_recorded(IndexMismatch):
        Rewriting().query({"neural": {"embedding": {"query_text": TEXT, "model_id": "other"}}})


def test_too_many_semantic_queries_are_rejected() -> None:
    def count_queries(count: int, size: int = 0) -> int:
        budget = SemanticBudget(Limits(semantic_queries=3))
        parser = SemanticQueryParser(
            FieldResolver(PLAIN, "semantic"), SemanticSettings(k=10), 1000, partial(budget.check, size=size)
        )
        should = [{"match": {"semantic": f"text {n}"}} for n in range(count)]
        body: Json = {"query": {"bool": {"should": should}}}
        return len(QueryFinder(EngineType.ELASTICSEARCH, parser, None).find(body))

    assert count_queries(3) == 3
    with raises_as_recorded(UsageError):
        count_queries(4)
    assert count_queries(1, size=100_000_000) == 1
    with raises_as_recorded(UsageError):
        count_queries(2, size=100_000_000)
    shared = SemanticBudget(Limits(semantic_queries=3, semantic_text_bytes=4))  # by the searches of a request
    shared.spend([("model", "aé"), ("model", "aé")])
    with raises_as_recorded(UsageError):
        shared.spend([("model", "aé"), ("model", "aé")])
    with raises_as_recorded(UsageError):
        shared.spend([("another", "aé")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"match": {"semantic": ""}},
        {"match": {"semantic": None}},
        {"match": {"semantic": "x" * 1001}},
        {"match": {"semantic": "\ud800"}},
        {"match": {"semantic": {"query": "x", "k": 0}}},
        {"match": {"semantic": {"query": "x", "min_cosine": 2}}},
        {"neural": {"embedding": {"query_text": "x", "filter": "en"}}},
        {"semantic": {"field": "body", "query": "x", "boost": "high"}},
        {"query_string": {"query": 'semantic:"open'}},
        {"query_string": {"query": "title:(a OR semantic:b)"}},
        {"bool": {"must_not": {"bool": {"must_not": [SEMANTIC]}}}},
        {"query_string": {"query": "title:a AND NOT semantic:plants"}},
        {"query_string": {"query": "title:a -semantic:plants"}},
        {"boosting": {"positive": EN, "negative": SEMANTIC, "negative_boost": 0.5}},
    ],
)
def test_invalid_semantic_queries_are_rejected(wrong: Json) -> None:
    with raises_as_recorded(UsageError):
        Rewriting().query({"bool": {"filter": [wrong]}})


def test_application_query_becomes_hybrid_once() -> None:
    box = {
        "bool": {
            "should": [
                {"multi_match": {"query": TEXT, "fields": ["title^3", "body"], "type": kind}}
                for kind in ("best_fields", "phrase", "bool_prefix")
            ]
        }
    }
    rewriting = Rewriting(hybrid=True)
    rewritten = rewriting.query({"bool": {"must": {"bool": {"must": [box]}}, "filter": [EN]}})
    assert rewriting.texts == [TEXT]
    [knn] = clauses(rewritten, "knn")
    assert knn["filter"] == EN
    [[words, _, exact]] = clauses(rewritten, "queries")
    assert words == {"bool": {"must": [box]}}, "what the application asked for is unchanged"
    assert {tuple(match["fields"]) for match in clauses(exact, "multi_match")} == {("title^3", "body")}


@pytest.mark.parametrize("written", ["title", "title.ngram", "ti*", "body^2", "*"])
def test_embedded_fields_match_all_field_name_syntaxes(written: str) -> None:
    rewriting = Rewriting(hybrid=True)
    rewriting.query({"multi_match": {"query": TEXT, "fields": ["other", written]}})
    assert rewriting.texts == [TEXT]


WORDS = """match bool must filter should query knn neural semantic field title nested path aggs query_string
           exists value embedding query_vector_builder text_embedding model_text query_text"""
NAMES = st.sampled_from(WORDS.split())
QUERIES = st.sampled_from([SEMANTIC, NEURAL, TITLE]).map(copy_json)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8) | NAMES | QUERIES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=30,
)


@given(
    st.dictionaries(
        st.sampled_from(["query", "knn", "aggs", "post_filter", "rescore", "retriever", "sort", "size"]), JSON
    )
)
def test_any_body_is_rewritten_rejected_or_unchanged(body: dict[str, Any]) -> None:
    before = str(body)
    rewritten, is_rejected = body, False
    try:
        rewritten = Rewriting(hybrid=True)(body)
    except (UsageError, IndexMismatch):
        is_rejected = True
    if rewritten is not body:
        assert clauses(rewritten, "query_vector")
        rest = {name: body[name] for name in body.keys() - {"query", "knn", "aggs", "post_filter"}}
        assert rewritten.items() >= rest.items()
    assert is_rejected or TEXT not in str(rewritten), "no semantic query is left"
    assert str(body) == before, "the request itself is never changed"
    assert Rewriting(NO_MAPPINGS, hybrid=True)(body) is body, "an index without vectors is the engine's alone"


# Parameters of OpenSearch's query that the gateway does not apply.
NEURAL_PARAMETERS = ("max_distance", "min_score", "rescore")


def knn(**parameters: Any) -> Json:
    builder = {"text_embedding": {"model_text": TEXT}}
    return {"knn": {"field": "embedding", "query_vector_builder": builder, "k": 5, "num_candidates": 50, **parameters}}


def neural(field: str = "embedding", **parameters: Any) -> Json:
    return {"neural": {field: {"query_text": TEXT, "k": 5, **parameters}}}


def match(**parameters: Any) -> Json:
    return {"match": {"semantic": {"query": TEXT, **parameters}}}


def test_inner_hits_of_the_gateway_have_other_names_than_the_callers() -> None:
    own: Json = {"nested": {"path": "comments", "query": {"match_all": {}}, "inner_hits": {"name": "embedding"}}}
    rewritten = Rewriting(PASSAGES).query({"bool": {"should": [SEMANTIC, SEMANTIC, own]}})
    assert [hits["name"] for hits in clauses(rewritten, "inner_hits")] == ["embedding_2", "embedding_3", "embedding"]


def test_section_knn_keeps_every_parameter() -> None:
    written = knn(inner_hits={"name": "mine", "size": 4}, visit_percentage=20, rescore_vector={"oversample": 3})["knn"]
    section = Rewriting(PASSAGES)({"knn": written})["knn"]
    assert {name: section[name] for name in ("inner_hits", "visit_percentage", "rescore_vector")} == {
        "inner_hits": {"name": "mine", "size": 4},
        "visit_percentage": 20,
        "rescore_vector": {"oversample": 3},
    }


@pytest.mark.parametrize(
    "query",
    [
        *(neural(**{name: 1}) for name in NEURAL_PARAMETERS),
        knn(visit_percentage=20),
        {"neural": {"embedding": {"query_text": TEXT}, "boost": 2}},
        knn(rescore_vector={"oversample": 2}),
        knn(query_vector_builder={"text_embedding": {"model_text": TEXT, "truncate": 3}}),
        {"semantic": {"field": "body", "query": TEXT, "k": 3}},
        match(min_cosin=0.3),
        match(operator="and"),
        match(fuzziness="AUTO"),
        *(
            {kind: {"query": TEXT, "fields": ["title", "semantic^2"]}}
            for kind in ("multi_match", "combined_fields", "query_string", "simple_query_string")
        ),
        {"query_string": {"query": TEXT, "default_field": "semantic", "escape": True}},
        {"query_string": {"query": "semantic:plants", "minimum_should_match": 2}},
    ],
)
def test_other_parameters_are_refused_by_name(query: Json) -> None:
    with raises_as_recorded(UsageError):
        Rewriting().query(query)


def test_defaults_that_clients_send_are_accepted() -> None:
    """Java's high-level clients write every parameter with its default."""
    defaults = {
        "operator": "OR", "prefix_length": 0, "max_expansions": 50, "fuzzy_transpositions": True, "lenient": False,
        "zero_terms_query": "NONE", "auto_generate_synonyms_phrase_query": True, "boost": 1.0,
    }  # fmt: skip
    assert Rewriting().query(match(**defaults)) == Rewriting().query(SEMANTIC)
    phrase = {"slop": 0, "zero_terms_query": "NONE", "boost": 1.0}
    assert Rewriting().query({"match_phrase": {"semantic": {"query": TEXT, **phrase}}}) == Rewriting().query(SEMANTIC)


def test_query_string_keeps_its_boost() -> None:
    text = 'semantic:"light"^2 OR title:plants OR body:(green leaves)'
    rewritten = Rewriting().query({"query_string": {"query": text, "boost": 3}})
    assert [found["boost"] for found in clauses(rewritten, "knn")] == [6]
    assert [part["boost"] for part in clauses(rewritten, "query_string")] == [3, 3]


@pytest.mark.parametrize(
    "text",
    [
        "semantic:(dog -cat)", "semantic:(dog NOT cat)", "semantic:(plants title:light)", "semantic:pla*",
        "semantic:plants~2", 'semantic:"green plants"~3',
    ],
)  # fmt: skip
def test_operators_in_a_text_are_refused(text: str) -> None:
    with raises_as_recorded(UsageError):
        Rewriting().query({"query_string": {"query": text}})


LIGHT: Json = {"match": {"semantic": "light"}}
MATCH: Json = {"match": {"title": TEXT}}


@pytest.mark.parametrize("name", HYBRID)
def test_query_that_matches_by_any_word_becomes_hybrid(name: str) -> None:
    rewriting = Rewriting(hybrid=True)
    rewriting(HYBRID[name]("title", TEXT))
    assert rewriting.texts == [TEXT]


@pytest.mark.parametrize("name", UNCHANGED)
def test_query_that_says_what_a_hit_must_have_is_unchanged(name: str) -> None:
    body = UNCHANGED[name]("title", TEXT)
    assert Rewriting(hybrid=True)(body) is body


@pytest.mark.parametrize(
    ("body", "options", "ranks"),
    [
        ({}, {}, True),
        ({"size": 0}, {}, False),
        ({}, {"size": "0"}, False),
        ({"sort": ["date"]}, {"sort": "_score,date"}, True),
        ({"knn": {}}, {}, False),
    ],
)
def test_parameters_of_the_request_override_the_body(body: Json, options: dict[str, str], ranks: bool) -> None:
    assert ranks_hits(body, options) is ranks


def test_words_of_an_unranked_document_score_below_all_ranked_ones() -> None:
    documents = [(("docs", "a"), 4.9), (("docs", "b"), 0.4)]
    queries: list[Any] = ranking_query(MATCH, documents, 10.0)["dis_max"]["queries"]
    assert [query["constant_score"]["boost"] for query in queries[1:]] == [49.0, 4.0]
    assert queries[0] == {"bool": {"must": [MATCH], "boost": pytest.approx(0.3996)}}
    assert ranking_query(MATCH, [], 1.0)["dis_max"]["queries"] == [{"bool": {"must": [MATCH], "boost": 0.999}}]


@pytest.mark.parametrize("name", RESTRICTIONS)
def test_query_that_never_becomes_hybrid_filters_a_semantic_query(name: str) -> None:
    restriction = RESTRICTIONS[name](MATCH)
    required = MATCH if name == "next to a hybrid query" else restriction
    for body in (
        {"query": {"bool": {"must": [restriction, LIGHT]}}},
        {"query": {"bool": {"must": [restriction], "filter": [{"bool": {"must": [LIGHT]}}]}}},
        {"query": restriction, "post_filter": LIGHT},
        {"query": restriction, "aggs": {"near": {"filter": LIGHT}}},
    ):
        rewriting = Rewriting(hybrid=True)
        *_, knn = clauses(rewriting(body), "knn")
        assert knn["filter"] == required or "wrapper" in required  # which is decoded
        assert rewriting.texts == ["light"] if required is restriction else len(rewriting.texts) == 2


@pytest.mark.parametrize("place", ["post_filter", "aggs", "must"])
def test_query_that_becomes_hybrid_does_not_filter_a_semantic_query(place: str) -> None:
    """Its hits need not hold its words."""
    body: Json = {"query": MATCH, "post_filter": LIGHT}
    if place == "aggs":
        body = {"query": MATCH, "aggs": {"near": {"filter": LIGHT}}}
    if place == "must":
        body = {"query": {"bool": {"must": [{"bool": {"should": [MATCH]}}, LIGHT]}}}
    *_, knn = clauses(Rewriting(hybrid=True)(body), "knn")
    assert "filter" not in knn


def test_filter_of_a_hybrid_query_is_applied_once() -> None:
    """A bool inside another one repeats none of the filters that the outer one collected."""
    query, term = LIGHT, {"term": {"language": "en"}}
    for _ in range(20):
        query = {"bool": {"must": [query, MATCH], "filter": [term]}}
    for knn in clauses(Rewriting(hybrid=True).query(query), "knn"):
        assert len(clauses(knn["filter"], "term")) == 20
