"""Every parameter of a semantic query is kept, translated, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.gateway.index_lookup import ResolvedIndices
from es_sbert.gateway.settings import SemanticSettings
from es_sbert.index.mapping import ChunkRules
from es_sbert.search.vector_query import MAX_K
from tests.unit.gateway.rewriting import PASSAGES, PLAIN, Rewriting, clauses, vector_field

TEXT = "how do plants make energy"
SEMANTIC: Json = {"match": {"semantic": TEXT}}
PASSAGES_OF_TWO_TYPES = ResolvedIndices(
    {
        "docs": {"embedding": vector_field(passages=ChunkRules(tokens=64, overlap=8))},
        "old": {"embedding": vector_field(passages=ChunkRules(tokens=64, overlap=8), index_type="int8_hnsw")},
    },
    {"docs": 1, "old": 1},
)
BOTH = list(EngineType)
# Parameters of OpenSearch's query that the gateway does not apply.
NEURAL_PARAMETERS = ("expand_nested_docs", "method_parameters", "query_image", "query_tokens", "rescore")


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


def test_inner_hits_are_numbered_in_indices_of_another_type() -> None:
    rewritten = Rewriting(PASSAGES_OF_TWO_TYPES).query(SEMANTIC)
    assert [hits["name"] for hits in clauses(rewritten, "inner_hits")] == ["embedding", "embedding.1"]


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
        (neural(min_score=0.5, max_distance=1), "sets both min_score and max_distance"),
        *((neural(**{name: 1}), f"has the parameter '{name}'") for name in NEURAL_PARAMETERS),
        (knn(visit_percentage=20), "knn on embedding has the parameter 'visit_percentage'"),
        (
            {"neural": {"embedding": {"query_text": TEXT}, "boost": 2}},
            "neural on embedding has 'boost' next to the field",
        ),
        (knn(query_vector=[1]), "knn on embedding has the parameter 'query_vector'"),
        (knn(inner_hits={}), "knn on embedding has the parameter 'inner_hits'"),
        (knn(rescore_vector={"oversample": 2}), "knn on embedding has the parameter 'rescore_vector'"),
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
        *(
            ({"simple_query_string": {"query": text, "fields": ["title", "semantic^2"]}}, "simple_query_string on sem")
            for text in (TEXT, 5, True, None)
        ),
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
    ("searched", "name", "reason"),
    [
        (ResolvedIndices({}, {}, ordinary=False), "semantic", "cannot be used: the searched indices have no vector"),
        (PLAIN, "semantic.zz", "is not a vector field"),
        (PLAIN, "semantic.*", "is not a vector field"),
    ],
)
def test_simple_query_string_is_refused_where_there_is_no_vector_field(
    searched: ResolvedIndices, name: str, reason: str
) -> None:
    with pytest.raises(IndexMismatch, match=reason):
        Rewriting(searched).query({"simple_query_string": {"query": TEXT, "fields": [name]}})


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


@pytest.mark.parametrize("kind", ["multi_match", "query_string"])
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
    "text",
    [
        "dog -cat", "dog AND NOT cat", "semantic:(dog -cat)", "semantic:(dog NOT cat)", "plants title:light", "pla*",
        "plants~2", '"green plants"~3',
    ],
)  # fmt: skip
def test_operators_in_a_text_are_refused(text: str) -> None:
    fields = {} if "semantic" in text else {"fields": ["semantic", "title"]}
    with pytest.raises(UsageError, match="excludes words"):
        Rewriting().query({"query_string": {"query": text, **fields}})


def test_escaped_query_string_is_a_text() -> None:
    rewriting = Rewriting()
    rewriting.query({"query_string": {"query": "title:light -x", "default_field": "semantic", "escape": True}})
    assert set(rewriting.texts) == {"title:light -x"}


def test_asterisk_finds_all_documents_with_a_vector() -> None:
    query = {"query_string": {"query": "*", "fields": ["semantic"]}}
    rewritten = Rewriting(meaning=SemanticSettings(k=10)).query(query)
    assert [found["field"] for found in clauses(rewritten, "exists")] == ["embedding"]
