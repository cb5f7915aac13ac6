from __future__ import annotations

import gc
import weakref
from contextlib import suppress
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
from es_sbert.gateway.field_resolver import FieldResolver
from es_sbert.gateway.index_lookup import NO_MAPPINGS, ResolvedIndices
from es_sbert.gateway.search.incoming_search import SemanticBudget
from es_sbert.gateway.search.knn_clauses import CandidateCounts, kth_hit_body
from es_sbert.gateway.search.query_finder import QueryFinder
from es_sbert.gateway.search.semantic_query import SemanticQueryParser
from es_sbert.gateway.settings import Limits, SemanticSettings
from es_sbert.search.vector_query import MAX_K, VectorQuery
from tests.unit.gateway.rewriting import (
    CUT_HERE_WHOLE_THERE,
    MIXED,
    PASSAGES,
    PLAIN,
    SEVERAL_TYPES,
    TWO_FIELDS,
    Rewriting,
    clauses,
    vector_field,
)
from tests.unit.golden import assert_golden

TEXT = "how do plants make energy"
EN: Json = {"term": {"language": "en"}}
YEAR: Json = {"range": {"year": {"gte": 2020}}}
TITLE: Json = {"match": {"title": "plants"}}
SEMANTIC: Json = {"match": {"semantic": TEXT}}

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
    again = {"bool": {"must": {"bool": {"should": [nested, {"constant_score": {"filter": YEAR}}]}}}}
    rewritten = Rewriting().query({"bool": {"must": [SEMANTIC, nested], "filter": [again], "must_not": [nested, YEAR]}})
    assert len(clauses(rewritten, "inner_hits")) == 3
    silent: Json = {"nested": {"path": "comments", "query": EN}}
    kept = {"bool": {"must": {"bool": {"should": [silent, {"constant_score": {"filter": YEAR}}]}}}}
    assert knn_filter(rewritten) == {"bool": {"filter": [silent, kept, {"bool": {"must_not": [silent, YEAR]}}]}}


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


def test_neural_query_in_filter_stays_a_filter() -> None:
    query = {"bool": {"filter": [{"neural": {"embedding": {"query_text": TEXT}}}]}}
    assert "must" not in Rewriting().query(query)["bool"]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"match": {"semantic": {"query": TEXT, "k": 3}}}, TEXT),
        ({"match": {"semantic": 2024}}, "2024"),
        ({"match": {"semantic": True}}, "true"),
        ({"match_phrase": {"semantic": TEXT}}, TEXT),
        ({"match_bool_prefix": {"semantic": TEXT}}, TEXT),
        ({"query_string": {"query": f'semantic:"{TEXT}"'}}, TEXT),
        ({"query_string": {"query": "semantic:(how do plants) AND lang:en"}}, "how do plants"),
        ({"query_string": {"query": "semantic:(how do plants make energy?)"}}, "how do plants make energy?"),
        ({"query_string": {"query": r"semantic:(what is love\?)"}}, "what is love?"),
        ({"query_string": {"query": "NOT (semantic:plants^2 OR title:b)"}}, "plants"),
        ({"query_string": {"query": r"semantic:\"quoted\" x:y", "default_operator": "AND"}}, '"quoted"'),
        ({"dis_max": {"queries": [TITLE, SEMANTIC]}}, TEXT),
        ({"function_score": {"query": SEMANTIC, "boost": 2}}, TEXT),
        ({"function_score": {"query": TITLE, "functions": [{"weight": 2}, {"filter": SEMANTIC, "weight": 3}]}}, TEXT),
        ({"constant_score": {"filter": SEMANTIC}}, TEXT),
        ({"boosting": {"positive": TITLE, "negative": SEMANTIC, "negative_boost": 0.5}}, TEXT),
        ({"semantic": {"field": "semantic", "query": TEXT}}, TEXT),
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
    query = {
        "query_string": {"query": 'semantic:"light" AND -topic:(old OR new) AND year:[2000 TO *]', "lenient": True}
    }
    said = Rewriting().query(query)["bool"]
    assert [part["query_string"] for part in said["must"] if "query_string" in part] == [
        {"lenient": True, "query": "year:[2000 TO *]"}
    ]
    assert [part["query_string"]["query"] for part in said["must_not"]] == ["topic:(old OR new)"]


@pytest.mark.parametrize(
    ("symbols", "words"),
    [
        ('semantic:"a && !b" && lang:en', 'semantic:"a && !b" AND lang:en'),
        ("(semantic:a)||(lang:en && !topic:old)", "(semantic:a) OR (lang:en AND NOT topic:old)"),
        ("!semantic:a ! lang:/a || !b/", "NOT semantic:a NOT lang:/a || !b/"),
        (r"semantic:wow! AND path:a/b && path:c/d\\!", r"semantic:wow! AND path:a/b AND path:c/d\\!"),
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
            with pytest.raises(UsageError, match=f"cannot be used inside `{kind}`"):
                Rewriting(PASSAGES).query({"bool": {"must": [{kind: more | {"query": query}}]}})
        untouched = {"query": {kind: more | {"query": {"match": {"comments.text": "a"}}}}}
        assert Rewriting(hybrid=True)(untouched) is untouched


def test_semantic_field_selects_one_of_several_vector_fields() -> None:
    rewritten = Rewriting(TWO_FIELDS).query(
        {"bool": {"must": [SEMANTIC, {"match": {"semantic.title_vector": "light"}}]}}
    )
    assert [knn["field"] for knn in clauses(rewritten, "knn")] == ["embedding", "title_vector"]
    with pytest.raises(IndexMismatch, match="semantic.other is not a vector field") as caught:
        Rewriting(TWO_FIELDS).query({"match": {"semantic.other": "light"}})
    assert "title_vector" in caught.value.message


def test_index_without_vectors_raises_unless_field_is_mapped() -> None:
    with pytest.raises(IndexMismatch, match="have no vector field") as caught:
        Rewriting(ResolvedIndices({}, {}, ordinary=False)).query(SEMANTIC)
    assert "es-sbert ingest" in caught.value.remedy
    for text in ("title:semantic", '_exists_:title AND "semantic: a science"'):
        other: Json = {"query": {"query_string": {"query": text}}}
        assert Rewriting(ResolvedIndices({}, {}, ordinary=False))(other) is other
    body = {"query": SEMANTIC}
    assert Rewriting(NO_MAPPINGS)(body) is body


def test_semantic_query_on_multi_field_searches_its_field() -> None:
    def query(field: str) -> Json:
        return Rewriting(TWO_FIELDS).query({"semantic": {"field": field, "query": TEXT}})

    assert clauses(query("title.en"), "knn")
    assert query("title.en") == query("title")
    unknown: Json = {"semantic": {"field": "other.en", "query": TEXT}}
    assert Rewriting(TWO_FIELDS).query(unknown) == unknown


def query_bar(*filters: Json, must: tuple[Json, ...] = ()) -> Json:
    """A query as the query bar of Kibana and OpenSearch Dashboards sends it, with the filters of the page."""
    return {"bool": {"must": list(must), "filter": list(filters), "should": [], "must_not": []}}


KQL: Json = {"bool": {"should": [{"match_phrase": {"semantic": TEXT}}], "minimum_should_match": 1}}
LUCENE: Json = {"query_string": {"query": f'semantic:"{TEXT}"', "analyze_wildcard": True}}


@pytest.mark.parametrize(
    "query",
    [
        query_bar(KQL),
        query_bar({"match_all": {}}, {"bool": {"must_not": KQL}}, YEAR),
        query_bar({"bool": {"filter": [KQL, EN]}}),
        query_bar({"match_phrase": {"semantic.title_vector": TEXT}}),
        query_bar(must=(LUCENE,)),
    ],
    ids=["kql", "not", "and", "named", "lucene"],
)
def test_query_bar_finds_nothing_in_index_without_vectors(query: Json) -> None:
    """A dashboard sends the query to the indices of all its panels. The engine knows no such field: no hits."""
    none = ResolvedIndices({}, {}, ordinary=False)
    body = {"size": 0, "query": query, "aggs": {"2": {"terms": {"field": "tag"}}}}
    assert Rewriting(none)(body) is body
    assert Rewriting(TWO_FIELDS, meaning=SemanticSettings(min_cosine=0.1))(body) is not body
    with pytest.raises(IndexMismatch, match="have no vector field"):
        # Somebody who writes a search by hand means this index.
        Rewriting(none)({"query": {"bool": {"filter": [SEMANTIC]}}})


@pytest.mark.parametrize(
    "query",
    [
        query_bar({"multi_match": {"type": "best_fields", "query": "plants", "lenient": True}}),
        query_bar({"bool": {"should": [{"match": {"title": "plants"}}], "minimum_should_match": 1}}),
        query_bar(must=({"query_string": {"query": "title:plants", "analyze_wildcard": True}},)),
    ],
    ids=["kql words", "kql field", "lucene"],
)
def test_hybrid_mode_leaves_keywords_of_the_query_bar_alone(query: Json) -> None:
    """docs/kibana.md says so. Filters do not score, and query_string does not become hybrid."""
    body = {"size": 500, "sort": [{"_score": {"order": "desc"}}], "query": query}
    assert Rewriting(hybrid=True)(body) is body


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
        ({"match": {"semantic": {"query": TEXT, "min_cosine": None}}}, None, None),
        (SEMANTIC, 0.2, 0.2),
        (SEMANTIC, -1.0, -1.0),
        # The engines' own queries have the minimum that they name.
        ({"neural": {"embedding": {"query_text": TEXT}}}, None, None),
    ],
)
def test_minimum_of_the_mapping_applies_unless_request_or_gateway_sets_one(
    query: Json, gateway: float | None, expected: float | None
) -> None:
    assert minima(CALIBRATED, query, SemanticSettings(k=10, min_cosine=gateway)) == [expected]
    assert minima(PLAIN, SEMANTIC) == [None]  # of an index that was not calibrated


@pytest.mark.parametrize("engine_type", list(EngineType))
def test_minimum_of_the_mapping_is_that_of_each_field_and_index(engine_type: EngineType) -> None:
    two = ResolvedIndices(
        {"docs": {"title_vector": vector_field(min_cosine=0.5), "embedding": vector_field(min_cosine=0.3)}}, {"docs": 1}
    )
    either = {"bool": {"should": [SEMANTIC, {"match": {"semantic.title_vector": TEXT}}]}}
    several = ResolvedIndices(
        {
            "docs": {"embedding": vector_field(min_cosine=0.3)},
            "old": {"embedding": vector_field()},
            "small": {"embedding": vector_field(min_cosine=0.6)},
        },
        {"docs": 1, "old": 1, "small": 1},
    )
    if engine_type is EngineType.ELASTICSEARCH:
        assert minima(two, either) == [0.3, 0.5]
        assert minima(several, SEMANTIC) == [0.3, None, 0.6]
    else:
        # By the script's score, which is (1 + cosine) / 2.
        found = [
            Rewriting(searched, engine_type).query(query) for searched, query in ((two, either), (several, SEMANTIC))
        ]
        assert [clauses(query, "min_score") for query in found] == [[0.65, 0.75], [0.65, 0.8]]


def test_minimum_of_the_mapping_applies_to_hybrid_queries_and_below_a_cutoff() -> None:
    for rewriting, query, expected in (
        (Rewriting(CALIBRATED, hybrid=True), TITLE, 0.3),
        (Rewriting(CALIBRATED, least=0.1), SEMANTIC, 0.3),
        (Rewriting(CALIBRATED, least=0.7), SEMANTIC, 0.7),
    ):
        assert [knn["similarity"] for knn in clauses(rewriting.query(query), "knn")] == [expected]


def test_negated_query_needs_a_minimum_in_every_index() -> None:
    assert minima(CALIBRATED, NEGATED) == [0.3]
    assert [knn["k"] for knn in clauses(Rewriting(CALIBRATED).query(NEGATED), "knn")] == [MAX_K]
    some = ResolvedIndices(CALIBRATED.fields | {"old": {"embedding": vector_field()}}, {"docs": 1, "old": 1})
    for searched in (PLAIN, some):
        with pytest.raises(BadRequest, match="no minimum cosine") as caught:
            Rewriting(searched).query(NEGATED)
        assert "es-sbert index calibrate INDEX --save" in caught.value.remedy
    with pytest.raises(BadRequest, match="no minimum cosine"):
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


def test_kth_hit_body_keeps_the_search_scope() -> None:
    semantic = SemanticQueryParser(FieldResolver(SEVERAL_TYPES, "semantic"), SemanticSettings(k=10), 1000).parse(
        "match", {"semantic": TEXT}
    )
    assert semantic is not None
    asked: Json = {"pit": {"id": "a"}, "runtime_mappings": {"year": {"type": "long"}}, "size": 3, "aggs": {}}
    body = kth_hit_body(EngineType.ELASTICSEARCH, semantic, np.ones(3, np.float32), [EN], asked)
    assert (body["pit"], body["runtime_mappings"]) == (asked["pit"], asked["runtime_mappings"])
    assert (body["from"], body["size"], "aggs" in body) == (9, 1, False)


def test_different_models_in_one_search_are_rejected() -> None:
    with pytest.raises(IndexMismatch, match="in docs, and that field with another model in old") as caught:
        Rewriting(MIXED).query(SEMANTIC)
    assert "migrate" in caught.value.remedy
    with pytest.raises(IndexMismatch, match="has one vector per document in old, and one per chunk in docs"):
        Rewriting(CUT_HERE_WHOLE_THERE).query(SEMANTIC)
    with pytest.raises(IndexMismatch, match="names the model 'other'"):
        Rewriting().query({"neural": {"embedding": {"query_text": TEXT, "model_id": "other"}}})


@pytest.mark.parametrize("engine_type", list(EngineType))
def test_must_not_excludes_all_documents_above_min_cosine(engine_type: EngineType) -> None:
    query = {"bool": {"must": [TITLE], "must_not": [NOT_NEAR]}}
    rewritten = Rewriting(SEVERAL_TYPES, engine_type, least=0.9).query(query)
    assert {knn["k"] for knn in clauses(rewritten, "knn") if "k" in knn} <= {MAX_K}
    assert 0.9 not in clauses(rewritten, "similarity"), "the cosine of a k-th document is no minimum here"
    assert clauses(Rewriting().query(query), "similarity") == [0.3]


class Counting(dict[str, Any]):
    """A query that counts how often it is read."""

    reads = 0

    def items(self) -> Any:
        Counting.reads += 1
        return super().items()


@pytest.mark.parametrize("hybrid", [False, True])
def test_query_is_read_in_linear_time_at_any_depth(hybrid: bool) -> None:
    def reads(depth: int) -> int:
        query: Json = {"bool": {"must": [Counting(TITLE), SEMANTIC]}}
        for _ in range(depth):
            query = {"bool": {"filter": [query, {"bool": {"should": [EN]}}]}}
        Counting.reads = 0
        Rewriting(hybrid=hybrid).query(query)
        return Counting.reads

    assert reads(60) <= reads(1) + 2


def test_filters_are_read_once_for_many_queries() -> None:
    """Each of the queries is narrowed down by the same list of filters."""
    query = {
        "bool": {
            "must": [*({"match": {"semantic": f"text {n}"}} for n in range(50)), *([Counting(EN)] * 2)],
            "filter": [Counting(YEAR) for _ in range(50)],
        }
    }
    Counting.reads = 0
    Rewriting().query(query)
    assert Counting.reads <= 2 * 52 * 20  # in two readings; not 50 times as often


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
    with pytest.raises(UsageError, match="more than 3 semantic queries"):
        count_queries(4)
    assert count_queries(1, size=100_000_000) == 1
    with pytest.raises(UsageError, match="which all repeat its filters"):
        count_queries(2, size=100_000_000)


def test_searches_of_one_request_share_limits() -> None:
    budget = SemanticBudget(Limits(semantic_queries=5))
    budget.spend([("model", "a"), ("model", "b")])
    budget.spend([("model", "a"), ("model", "a")])
    with pytest.raises(UsageError, match="more than 5 semantic queries"):
        budget.spend([("model", "a"), ("model", "a")])
    budget = SemanticBudget(Limits(semantic_text_bytes=10))
    budget.spend([("model", "aaaaaaaaaa")])
    budget.spend([("model", "aaaaaaaaaa")])
    with pytest.raises(UsageError, match="more than 10 bytes"):
        budget.spend([("other model", "é")])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"match": {"semantic": ""}}, "is empty"),
        ({"match": {"semantic": " \n"}}, "is empty"),
        ({"match": {"semantic": None}}, "JSON null, not a string"),
        ({"match": {"semantic": {"query": ["a"]}}}, "JSON array, not a string"),
        ({"match": {"semantic": "x" * 1001}}, "the limit is 1,000"),
        ({"match": {"semantic": "\ud800"}}, "not valid Unicode"),
        ({"match": {"semantic": {"query": "x", "k": 0}}}, "k of match on semantic is 0"),
        ({"match": {"semantic": {"query": "x", "k": 10_001}}}, "k of match on semantic is 10001"),
        ({"match": {"semantic": {"query": "x", "min_cosine": 2}}}, "min_cosine of match on semantic is 2"),
        ({"neural": {"embedding": {"query_text": 5}}}, "JSON number, not a string"),
        ({"neural": {"embedding": {"query_text": "x", "filter": "en"}}}, "is not a query"),
        ({"semantic": {"field": "body", "query": "x", "boost": "high"}}, "boost of semantic on body is 'high'"),
        ({"query_string": {"query": 'semantic:"open'}}, "is not valid Lucene syntax"),
        ({"query_string": {"query": "semantic:pl?nts"}}, "'pl\\?nts' excludes words"),
        ({"bool": {"must_not": {"match": {"semantic": "plants"}}}}, "to be excluded has no minimum cosine"),
        ({"bool": {"must_not": {"bool": {"must_not": [SEMANTIC]}}}}, "to be excluded has no minimum cosine"),
        ({"query_string": {"query": "title:a AND NOT semantic:plants"}}, "to be excluded has no minimum cosine"),
        ({"query_string": {"query": "title:a -semantic:plants"}}, "to be excluded has no minimum cosine"),
        ({"boosting": {"positive": EN, "negative": SEMANTIC, "negative_boost": 0.5}}, "has no minimum cosine"),
        ({"bool": {"must_not": {"neural": {"embedding": {"query_text": "x", "k": 3}}}}}, "has no minimum cosine"),
    ],
)
def test_invalid_semantic_queries_are_rejected(wrong: Json, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Rewriting().query({"bool": {"filter": [wrong]}})
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("body", "members"),
    [
        ({"query": {"function_score": {"functions": [{"filter": SEMANTIC, "weight": 2}, 1]}}},
         ["query", "function_score", "functions"]),
        ({"query": {"dis_max": {"queries": [SEMANTIC, []]}}}, ["query", "dis_max", "queries"]),
    ],
    ids=["functions", "queries"],
)  # fmt: skip
def test_malformed_list_element_is_left_to_the_engine(body: Json, members: list[str]) -> None:
    before: Any = body
    rewritten: Any = Rewriting()(body)
    for member in members:
        before, rewritten = before[member], rewritten[member]
    assert rewritten[1] == before[1]
    assert clauses(rewritten[0], "knn")


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


@pytest.mark.parametrize(
    "query",
    [
        {"match": {"other": TEXT}},
        {"match": {"title": ""}},
        {"multi_match": {"query": TEXT, "fields": ["other", "ot*"]}},
        {"bool": {"filter": [{"match": {"title": TEXT}}]}},
        {"bool": {"must_not": [{"match": {"title": TEXT}}]}},
        {"term": {"title": TEXT}},
        {"query_string": {"query": "title:plants"}},
        {"query_string": {"query": "title:semantic AND my.semantic:web AND [left to the engine"}},
    ],
)
def test_queries_of_non_embedded_fields_pass_through(query: Json) -> None:
    body = {"query": query}
    assert Rewriting(hybrid=True)(body) is body


@pytest.mark.parametrize("written", ["title", "title.ngram", "ti*", "body^2", "*"])
def test_embedded_fields_match_all_field_name_syntaxes(written: str) -> None:
    rewriting = Rewriting(hybrid=True)
    rewriting.query({"multi_match": {"query": TEXT, "fields": ["other", written]}})
    assert rewriting.texts == [TEXT]


WORDS = """match bool must filter should query knn neural semantic field title nested path aggs fields query_string
           exists value embedding query_vector_builder text_embedding model_text query_text"""
NAMES = st.sampled_from(WORDS.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | NAMES,
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
    rewritten = body
    with suppress(UsageError, IndexMismatch):
        rewritten = Rewriting(hybrid=True)(body)
    if rewritten is not body:
        assert clauses(rewritten, "query_vector")
    assert str(body) == before, "the request itself is never changed"
    assert Rewriting(NO_MAPPINGS, hybrid=True)(body) is body, "an index without vectors is the engine's alone"


class _Query(dict[str, Any]):
    """A query that can be referred to weakly."""


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_search_is_freed_without_a_garbage_collection(hybrid: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        query = _Query(SEMANTIC)
        freed = weakref.ref(query)
        body: Json = {"query": {"bool": {"must": [query, TITLE], "filter": [{"bool": {"should": [query, YEAR]}}]}}}
        assert Rewriting(hybrid=hybrid)(body) is not body
        del query, body
        assert freed() is None
    finally:
        gc.enable()
