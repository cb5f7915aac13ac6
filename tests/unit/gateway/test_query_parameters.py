"""Every parameter of a semantic query is kept, translated, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch, UsageError
from es_sbert.gateway.index_lookup import ResolvedIndices
from es_sbert.index.mapping import ChunkRules
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
NEURAL_PARAMETERS = (
    "expand_nested_docs",
    "max_distance",
    "method_parameters",
    "min_score",
    "query_image",
    "query_tokens",
    "rescore",
)


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


@pytest.mark.parametrize(
    ("query", "reason"),
    [
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
        *(
            ({kind: {"query": text, "fields": ["title", "semantic^2"]}}, f"{kind} on semantic is not supported")
            for kind in ("multi_match", "combined_fields", "query_string", "simple_query_string")
            for text in (TEXT, 5, True, None)
        ),
        ({"query_string": {"query": TEXT, "default_field": "semantic", "escape": True}}, "query_string on semantic is"),
        ({"query_string": {"query": "semantic:plants", "min_cosine": 0.1}}, "has the parameter 'min_cosine'"),
        ({"query_string": {"query": "semantic:plants", "minimum_should_match": 2}}, "has the parameter 'minimum_"),
        ({"query_string": {"query": "semantic:plants", "_name": "mine"}}, "has the parameter '_name'"),
    ],
)
def test_other_parameters_are_refused_by_name(query: Json, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        Rewriting().query(query)
    assert "Supported are" in caught.value.remedy or "has the parameter" not in reason


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
    with pytest.raises(UsageError, match="excludes words"):
        Rewriting().query({"query_string": {"query": text}})
