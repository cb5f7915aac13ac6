"""Every parameter of a semantic query is kept, translated, or refused by name."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import UsageError
from es_sbert.gateway.index_lookup import ResolvedIndices
from es_sbert.gateway.settings import SemanticSettings
from es_sbert.index.mapping import ChunkRules
from es_sbert.search.vector_query import MAX_K
from tests.unit.gateway.rewriting import PASSAGES, Rewriting, clauses, vector_field

TEXT = "how do plants make energy"
SEMANTIC: Json = {"match": {"semantic": TEXT}}
QUANTIZED = ResolvedIndices({"docs": {"embedding": vector_field(index_type="int8_hnsw")}}, {"docs": 1})
PASSAGES_OF_TWO_TYPES = ResolvedIndices(
    {
        "docs": {"embedding": vector_field(passages=ChunkRules(tokens=64, overlap=8))},
        "old": {"embedding": vector_field(passages=ChunkRules(tokens=64, overlap=8), index_type="int8_hnsw")},
    },
    {"docs": 1, "old": 1},
)
BOTH = list(EngineType)


def knn(**parameters: Any) -> Json:
    builder = {"text_embedding": {"model_text": TEXT}}
    return {"knn": {"field": "embedding", "query_vector_builder": builder, "k": 5, "num_candidates": 50, **parameters}}


def neural(field: str = "embedding", **parameters: Any) -> Json:
    return {"neural": {field: {"query_text": TEXT, "k": 5, **parameters}}}


def around(query: Json, **parameters: Any) -> Json:
    return {"nested": {"path": "embedding", "query": query, **parameters}}


def match(**parameters: Any) -> Json:
    return {"match": {"semantic": {"query": TEXT, **parameters}}}


@pytest.mark.parametrize("engine_type", BOTH)
@pytest.mark.parametrize("inner", [neural("embedding.vector", boost=3), knn(field="embedding.vector", boost=3)])
def test_nested_keeps_its_parameters(engine_type: EngineType, inner: Json) -> None:
    inner_hits = {"name": "mine", "size": 5, "_source": ["embedding.start"], "fields": ["embedding.end"]}
    written = around(inner, inner_hits=inner_hits, score_mode="avg", boost=2, ignore_unmapped=False, _name="outer")
    rewritten = Rewriting(PASSAGES, engine_type).query(written)
    [nested] = clauses(rewritten, "nested")
    assert nested["inner_hits"] == inner_hits
    assert nested["score_mode"] == "avg"
    assert nested["boost"] == 6
    assert rewritten["bool"]["_name"] == "outer"


def test_name_of_a_query_inside_nested_is_one_of_passages() -> None:
    rewritten = Rewriting(PASSAGES).query(around(neural("embedding.vector", _name="inner")))
    [nested] = clauses(rewritten, "nested")
    assert clauses(nested["query"], "_name") == ["inner"]
    assert "_name" not in rewritten["bool"]


def test_nested_without_inner_hits_returns_none() -> None:
    rewritten = Rewriting(PASSAGES).query(around(neural("embedding.vector")))
    assert not clauses(rewritten, "inner_hits")
    assert clauses(rewritten, "score_mode") == ["max"]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"score_mode": "best"}, "score_mode of nested on embedding is 'best'"),
        ({"inner_hits": []}, "inner_hits of nested on embedding is a JSON array"),
        ({"scoremode": "max"}, "nested on embedding has the parameter 'scoremode'"),
        ({"boost": "two"}, "boost of nested on embedding is 'two'"),
    ],
)
def test_nested_refuses_other_parameters(parameters: Json, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Rewriting(PASSAGES).query(around(neural("embedding.vector"), **parameters))


def test_inner_hits_of_the_gateway_have_other_names_than_the_callers() -> None:
    own: Json = {"nested": {"path": "comments", "query": {"match_all": {}}, "inner_hits": {"name": "embedding_2"}}}
    query = {"bool": {"should": [around(neural("embedding.vector"), inner_hits={}), SEMANTIC, own]}}
    rewritten = Rewriting(PASSAGES).query(query)
    names = [hits.get("name", "embedding") for hits in clauses(rewritten, "inner_hits")]
    assert names == ["embedding", "embedding_3", "embedding_2"]


def test_inner_hits_are_numbered_in_indices_of_another_type() -> None:
    rewritten = Rewriting(PASSAGES_OF_TWO_TYPES).query(around(neural("embedding.vector"), inner_hits={"size": 2}))
    assert clauses(rewritten, "inner_hits") == [{"size": 2}, {"size": 2, "name": "embedding.1"}]


@pytest.mark.parametrize("engine_type", BOTH)
def test_ef_search_is_the_number_of_candidates(engine_type: EngineType) -> None:
    rewritten = Rewriting(engine_type=engine_type).query(neural(method_parameters={"ef_search": 77}))
    assert [*clauses(rewritten, "ef_search"), *clauses(rewritten, "num_candidates")] == [77]


@pytest.mark.parametrize("engine_type", BOTH)
@pytest.mark.parametrize(
    ("query", "factor"),
    [
        (neural(rescore={"oversample_factor": 4}), 4),
        (knn(rescore_vector={"oversample": 4}), 4),
        (neural(rescore=True), None),
        (neural(), None),
    ],
)
def test_oversampling_is_the_callers(engine_type: EngineType, query: Json, factor: float | None) -> None:
    rewritten = Rewriting(QUANTIZED, engine_type).query(query)
    if engine_type is EngineType.ELASTICSEARCH:
        usual = clauses(Rewriting(QUANTIZED).query(neural()), "rescore_vector")
        assert clauses(rewritten, "rescore_vector") == (usual if factor is None else [{"oversample": factor}])
        return
    [found] = clauses(rewritten, "knn")
    usual_k = clauses(Rewriting(QUANTIZED, engine_type).query(neural()), "k")[0]
    assert found["embedding"]["k"] == {None: usual_k, 4: 20}[factor]
    assert clauses(rewritten, "script_score")


@pytest.mark.parametrize("query", [neural(rescore={"oversample_factor": 4}), knn(rescore_vector={"oversample": 4})])
def test_oversampling_changes_nothing_where_vectors_are_not_quantized(query: Json) -> None:
    assert not clauses(Rewriting().query(query), "rescore_vector")


def test_section_knn_keeps_every_parameter() -> None:
    written = knn(inner_hits={"name": "mine", "size": 4}, visit_percentage=20, rescore_vector={"oversample": 3})["knn"]
    section = Rewriting(PASSAGES)({"knn": written})["knn"]
    assert {name: section[name] for name in ("inner_hits", "visit_percentage", "rescore_vector")} == {
        "inner_hits": {"name": "mine", "size": 4},
        "visit_percentage": 20,
        "rescore_vector": {"oversample": 3},
    }


def test_section_knn_is_refused_on_opensearch() -> None:
    with pytest.raises(UsageError, match="OpenSearch has no section or retriever knn") as caught:
        Rewriting(engine_type=EngineType.OPENSEARCH)({"knn": knn()["knn"]})
    assert "Write it as a query" in caught.value.remedy


@pytest.mark.parametrize("engine_type", BOTH)
@pytest.mark.parametrize("minimum", [{"min_score": 0.6}, {"max_distance": 0.8}])
def test_radial_neural_query_has_no_k(engine_type: EngineType, minimum: Json) -> None:
    rewritten = Rewriting(engine_type=engine_type).query({"neural": {"embedding": {"query_text": TEXT, **minimum}}})
    assert clauses(rewritten, "k") == [MAX_K]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (neural(query_image="aGk="), "neural on embedding has the parameter 'query_image'"),
        (neural(query_tokens={"a": 1}), "has the parameter 'query_tokens'"),
        (
            neural(method_parameters={"nprobes": 3}),
            "method_parameters of neural on embedding has the parameter 'nprobes'",
        ),
        (neural(method_parameters={"ef_search": 0}), "ef_search in method_parameters of neural on embedding is 0"),
        (neural(method_parameters=3), "method_parameters of neural on embedding is a JSON"),
        (neural(rescore={"factor": 3}), "rescore of neural on embedding is not supported"),
        (neural(rescore={"oversample_factor": 50}), "oversample_factor of rescore of neural on embedding is 50"),
        (neural(rescore=False), "rescore of neural on embedding is not supported"),
        (neural(min_score=0.5, max_distance=1), "sets both min_score and max_distance"),
        (neural(expand_nested_docs=True), "has the parameter 'expand_nested_docs'"),
        (knn(visit_percentage=20), "knn on embedding has the parameter 'visit_percentage'"),
        (
            {"neural": {"embedding": {"query_text": TEXT}, "boost": 2}},
            "neural on embedding has 'boost' next to the field",
        ),
        (knn(query_vector=[1]), "knn on embedding has the parameter 'query_vector'"),
        (knn(inner_hits={}), "knn on embedding has the parameter 'inner_hits'"),
        (knn(rescore_vector={"factor": 2}), "rescore_vector of knn on embedding is not supported"),
        (knn(rescore_vector={"oversample": 99}), "oversample of rescore_vector of knn on embedding is 99"),
        (knn(rescore_vector={"oversample": 0}), "oversample of rescore_vector of knn on embedding is 0"),
        (
            knn(query_vector_builder={"text_embedding": {"model_text": TEXT, "truncate": 3}}),
            "query_vector_builder of knn on embedding has the parameter 'truncate'",
        ),
        ({"semantic": {"field": "body", "query": TEXT, "k": 3}}, "semantic on body has the parameter 'k'"),
        (match(min_cosin=0.3), "match on semantic has the parameter 'min_cosin'"),
        (match(operator="and"), "match on semantic sets operator"),
        (match(minimum_should_match="75%"), "match on semantic sets minimum_should_match"),
        (match(analyzer="english"), "match on semantic sets analyzer"),
        (match(fuzziness="AUTO"), "match on semantic sets fuzziness"),
        ({"match_phrase": {"semantic": {"query": TEXT, "slop": 2}}}, "match_phrase on semantic sets slop"),
        ({"term": {"semantic": TEXT}}, "a term query on semantic is not supported"),
        ({"multi_match": {"query": TEXT, "fields": ["semantic"], "operator": "and"}}, "multi_match on semantic sets"),
        ({"multi_match": {"query": TEXT, "fields": ["semantic", "title"], "k": 3}}, "has the parameter 'k'"),
        ({"multi_match": {"query": TEXT, "fields": ["semantic"], "boost": "x"}}, "boost of multi_match on semantic"),
        ({"query_string": {"query": "semantic:plants", "min_cosine": 0.1}}, "has the parameter 'min_cosine'"),
        ({"query_string": {"query": "semantic:plants", "minimum_should_match": 2}}, "has the parameter 'minimum_"),
        ({"query_string": {"query": "semantic:plants", "_name": "mine"}}, "has the parameter '_name'"),
    ],
)
def test_other_parameters_are_refused_by_name(query: Json, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Rewriting().query(query)


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        (match(min_cosin=0.3), "Did you mean min_cosine? Supported are "),
        (knn(num_candidate=10), "Did you mean num_candidates? Supported are "),
        (knn(truncation="END"), "Remove it. Supported are "),
    ],
)
def test_nearest_parameter_is_named(query: Json, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        Rewriting().query(query)
    assert caught.value.remedy.startswith(remedy)


def test_defaults_that_clients_send_are_accepted() -> None:
    """Java's high-level clients write every parameter with its default."""
    defaults = {
        "operator": "OR", "prefix_length": 0, "max_expansions": 50, "fuzzy_transpositions": True, "lenient": False,
        "zero_terms_query": "NONE", "auto_generate_synonyms_phrase_query": True, "boost": 1.0,
    }  # fmt: skip
    assert Rewriting().query(match(**defaults)) == Rewriting().query(SEMANTIC)
    phrase = {"slop": 0, "zero_terms_query": "NONE", "boost": 1.0}
    assert Rewriting().query({"match_phrase": {"semantic": {"query": TEXT, **phrase}}}) == Rewriting().query(SEMANTIC)


@pytest.mark.parametrize("kind", ["multi_match", "query_string", "simple_query_string"])
def test_word_parameters_apply_to_the_text_fields_of_a_query(kind: str) -> None:
    operator = "operator" if kind == "multi_match" else "default_operator"
    body: Json = {"query": TEXT, "fields": ["semantic", "title"], operator: "and", "minimum_should_match": 2}
    [rest] = clauses(Rewriting().query({kind: body}), kind)
    assert rest == body | {"fields": ["title"]}


def test_exists_keeps_boost_and_name() -> None:
    kept = {"boost": 2, "_name": "has"}
    assert Rewriting().query({"exists": {"field": "semantic", **kept}}) == {"exists": {"field": "embedding", **kept}}
    [nested] = clauses(Rewriting(PASSAGES).query({"exists": {"field": "semantic", **kept}}), "nested")
    assert (nested["boost"], nested["_name"]) == (2, "has")


def test_query_string_keeps_its_boost() -> None:
    text = 'semantic:"light"^2 OR title:plants OR body:(green leaves)'
    rewritten = Rewriting().query({"query_string": {"query": text, "boost": 3}})
    assert [found["boost"] for found in clauses(rewritten, "knn")] == [6]
    assert [part["boost"] for part in clauses(rewritten, "query_string")] == [3, 3]
    [exists] = clauses(Rewriting().query({"query_string": {"query": "semantic:*", "boost": 3}}), "exists")
    assert exists["boost"] == 3


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("simple_query_string", "dog -cat"),
        ("simple_query_string", 'dog -"black cat"'),
        ("simple_query_string", "dog +-cat"),
        ("simple_query_string", "(dog | -cat)"),
        ("simple_query_string", '"dog"-cat'),
        ("query_string", "dog -cat"),
        ("query_string", "dog AND NOT cat"),
        ("query_string", "semantic:(dog -cat)"),
        ("query_string", "semantic:(dog NOT cat)"),
        ("query_string", "plants title:light"),
        *product(("simple_query_string", "query_string"), ("pla*", "plants~2", '"green plants"~3')),
    ],
)
def test_operators_in_a_text_are_refused(kind: str, text: str) -> None:
    fields = {} if "semantic" in text else {"fields": ["semantic", "title"]}
    with pytest.raises(UsageError, match="excludes words"):
        Rewriting().query({kind: {"query": text, **fields}})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"query": "a well-known state - of the +art | (really)"}, "a well-known state - of the art really"),
        ({"query": r"dog \-cat"}, "dog -cat"),
        ({"query": '"dog -cat"'}, "dog -cat"),
        ({"query": "about ~5 2*3"}, "about ~5 2*3"),
    ],
)
def test_simple_query_string_reads_operators_as_the_engine_does(body: Json, text: str) -> None:
    rewriting = Rewriting()
    rewriting.query({"simple_query_string": body | {"fields": ["semantic"]}})
    assert set(rewriting.texts) == {text}


def test_escaped_query_string_is_a_text() -> None:
    rewriting = Rewriting()
    rewriting.query({"query_string": {"query": "title:light -x", "default_field": "semantic", "escape": True}})
    assert set(rewriting.texts) == {"title:light -x"}


@pytest.mark.parametrize("kind", ["simple_query_string", "query_string"])
def test_asterisk_finds_all_documents_with_a_vector(kind: str) -> None:
    rewritten = Rewriting(meaning=SemanticSettings(k=10)).query({kind: {"query": "*", "fields": ["semantic"]}})
    assert [found["field"] for found in clauses(rewritten, "exists")] == ["embedding"]
