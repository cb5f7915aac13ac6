"""Semantic queries in ES|QL: what is found among strings, comments and names, and what each becomes.

The test builds of Elasticsearch have no ES|QL. The tokens are those of its grammar (`EsqlBaseLexer.g4` of 9.1), which
`tokenize` was compared with.
"""

from __future__ import annotations

import json
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.index_lookup import NO_MAPPINGS, ResolvedIndices
from es_sbert.gateway.search.esql import EsqlQuery, tokenize
from es_sbert.gateway.search.field_resolver import FieldResolver
from es_sbert.gateway.search.semantic_query import SemanticQueryParser
from es_sbert.gateway.settings import SemanticSettings
from tests.raised import raises_as_recorded
from tests.unit.gateway.rewriting import PASSAGES, PLAIN, SEVERAL_TYPES, TWO_FIELDS, vector_field

CALIBRATED = ResolvedIndices({"docs": {"embedding": vector_field(min_cosine=0.3)}}, {"docs": 1}, ordinary=False)
HEX = "0A" * 3  # as many bytes as the vectors have dimensions


class Rewritten:
    """A query that was rewritten, with the texts of its vectors."""

    def __init__(
        self,
        query: str,
        params: Any = None,
        searched: ResolvedIndices = PLAIN,
        version: tuple[int, int, int] = (9, 5, 0),
    ) -> None:
        esql = EsqlQuery(json.dumps({"query": query} | ({} if params is None else {"params": params})).encode())
        engine = EngineInfo(EngineType.ELASTICSEARCH, version, "http://localhost:9200")
        upstream: Any = SimpleNamespace(info=engine, engine_type_or_default=engine.engine_type)
        parser = SemanticQueryParser(FieldResolver(searched, "semantic"), SemanticSettings(k=10), 1000)
        found = esql.find(parser, upstream)
        for number, (placeholder, (holder, name)) in enumerate(found.items()):
            holder[name] = placeholder.native_section([number + 0.5])
        body = orjson.loads(esql.rewritten())
        self.texts = [placeholder.semantic.text for placeholder in found]
        self.query, self.params = (body["query"], body["params"]) if found else (query, params)


WIDE = '{"k":10,"min_candidates":100}'
V = "_es_sbert_"


@pytest.mark.parametrize(
    ("condition", "becomes", "text"),
    [
        ('MATCH(semantic, "how do")', f"KNN(embedding, ?{V}1, {WIDE})", "how do"),
        ('match ( `semantic` , """a "b" \\n""" )', f"KNN(embedding, ?{V}1, {WIDE})", 'a "b" \\n'),
        ('semantic : "a\\"b\\\\ \\t"', f"KNN(embedding, ?{V}1, {WIDE})", 'a"b\\ \t'),
        ("semantic:2024 AND x == 1", f"KNN(embedding, ?{V}1, {WIDE}) AND x == 1", "2024"),
        (
            '(semantic.embedding: "x" /* MATCH */ OR a:"b")',
            f'(KNN(embedding, ?{V}1, {WIDE}) /* MATCH */ OR a:"b")',
            "x",
        ),
        (
            'MATCH_PHRASE(semantic, "x", {"k": 3, "min_cosine": -0.5, "boost": 2.0})',
            f'KNN(embedding, ?{V}1, {{"k":3,"min_candidates":100,"similarity":-0.5,"boost":2.0}})',
            "x",
        ),
        ('KNN(embedding, "x")', f"KNN(embedding, ?{V}1)", "x"),
        ('KNN ( semantic ,/**/"x", {"k": 5})', f'KNN ( embedding ,/**/?{V}1, {{"k": 5}})', "x"),
        ('knn(title, "x", {"k": 7})', f'knn(embedding, ?{V}1, {{"k": 7}})', "x"),
        ('NOT semantic.embedding : "x"', None, None),
        ('NOT (a:"b" OR NOT (semantic : "x"))', f'NOT (a:"b" OR NOT (KNN(embedding, ?{V}1, {WIDE})))', "x"),
    ],
)
def test_condition_becomes_knn_with_a_vector_as_a_parameter(condition: str, becomes: str | None, text: str) -> None:
    query = "FROM docs METADATA _score | WHERE {} | SORT _score DESC | LIMIT 5"
    if becomes is None:
        with raises_as_recorded(BadRequest):  # without a minimum cosine, all documents of a small index
            Rewritten(query.format(condition))
        return
    found = Rewritten(query.format(condition))
    assert (found.query, found.params, found.texts) == (query.format(becomes), [{f"{V}1": [0.5]}], [text])


def test_negation_excludes_all_documents_above_the_minimum_cosine() -> None:
    found = Rewritten('FROM docs | WHERE NOT MATCH(semantic, "x") AND semantic:"y"', searched=CALIBRATED)
    assert '{"k":10000,"min_candidates":10000,"similarity":0.3}) AND KNN' in found.query
    assert found.query.endswith('{"k":10,"min_candidates":100,"similarity":0.3})')


def test_several_types_of_index_share_the_options_that_all_need() -> None:
    query = 'FROM docs,old,small | WHERE semantic : "x" | LIMIT 3'
    assert '{"k":10,"min_candidates":100,"rescore_oversample":' in Rewritten(query, searched=SEVERAL_TYPES).query
    assert f"KNN(embedding, ?{V}1) |" in Rewritten(query, version=(9, 2, 0)).query  # `{}` is no map of options
    assert "KNN(title_vector, ?" in Rewritten('FROM docs | WHERE semantic.title_vector:"x"', searched=TWO_FIELDS).query


A, B = "MATCH(semantic, {})", "KNN(embedding, {})"


@pytest.mark.parametrize(
    ("first", "second", "params", "references", "sent", "texts"),
    [
        ('"a"', '"b"', None, (f"?{V}1", f"?{V}2"), [{f"{V}1": [0.5]}, {f"{V}2": [1.5]}], ["a", "b"]),
        ("?q", '"b"', [{"q": "a"}], (f"?{V}1", f"?{V}2"), [{"q": "a"}, {f"{V}1": [0.5]}, {f"{V}2": [1.5]}], ["a", "b"]),
        ("?q", "?q", [{"q": {"value": "a"}}], (f"?{V}1", f"?{V}2"), None, ["a", "a"]),
        ("?2", '"b"', [1, "a"], ("?3", "?4"), [1, "a", [0.5], [1.5]], ["a", "b"]),
        ("?1", "?2", [{"x": "a"}, {"y": "b"}], ("?3", "?4"), None, ["a", "b"]),
        ("?", '"b"', [7, "a", 8], ("?", "?"), [7, [0.5], [1.5], 8], ["a", "b"]),
        ('"a"', "?", [7, "b", 8], ("?", "?"), [7, [0.5], [1.5], 8], ["a", "b"]),
        ('?, {"k": ?}', "?", [7, "a", 4, "b", 8], ("?", "?"), [7, [0.5], [1.5], 8], ["a", "b"]),
    ],
)
def test_vectors_join_the_parameters_in_their_own_style(
    first: str, second: str, params: Any, references: tuple[str, str], sent: Any, texts: list[str]
) -> None:
    lower, upper = ("x > ? AND ", " AND y < ?") if "?" in (*references,) else ("", "")
    query = f"FROM docs | WHERE {lower}{A.format(first)} OR {B.format(second)}{upper}"
    found = Rewritten(query, params)
    wide = WIDE.replace("10,", "4,") if "k" in first else WIDE
    assert found.query == (
        f"FROM docs | WHERE {lower}KNN(embedding, {references[0]}, {wide}) OR KNN(embedding, {references[1]}){upper}"
    )
    assert found.texts == texts
    assert sent is None or found.params == sent


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("FROM docs", ["docs"]),
        ('from a-1.*, -b , <l-{now/d}>,"c,d" METADATA _id, _score | LIMIT 1', ["a-1.*", "-b", "<l-{now/d}>", "c", "d"]),
        ("TS far:docs, docs::failures // FROM x\n| WHERE from == 1", ["far:docs", "docs"]),
        ("FROM a, (FROM b METADATA _id | WHERE (from > 1)), c METADATA _id", ["a", "b", "c"]),
        ("SET x=1; FROM a | FORK (WHERE x IN (FROM b | KEEP y)) (LIMIT 1)", ["a", "b"]),
        ('ROW a = "| FROM b" /* | FROM c /* */ | FROM d */', []),
        ("EXPLAIN (FROM a)", ["a"]),
    ],
)  # fmt: skip
def test_reads_the_indices(query: str, names: list[str]) -> None:
    assert tokenize(query)[1] == names


UNCHANGED = [
    "FROM docs | WHERE a : \"semantic\" AND b == \"semantic : \\\"x\\\"\" // semantic : \"x\"",
    'FROM docs | WHERE a == """MATCH(semantic, "x")""" /* semantic:"x" /* , */ KNN(embedding, "x") */',
    "FROM docs | WHERE KNN(embedding, [0.1, 0.2, 0.3], {\"k\": 3})",
    "FROM docs | WHERE KNN(embedding, TO_DENSE_VECTOR(x)) AND KNN(other, \"x\")",
    f'FROM docs | WHERE KNN(embedding, "{HEX}")',
    "FROM docs | WHERE my.semantic : \"x\" AND semantic_2 == 1 | KEEP semantic*, semantics",
    "FROM docs | EVAL semantic = LENGTH(title) | WHERE semantic > 1 | SORT semantic",
    "FROM docs | RENAME title AS semantic | WHERE MATCH(semantic, \"x\")",
    "FROM docs | GROK title \"%{WORD:semantic}\" | KEEP semantic",
    "FROM semantic METADATA semantic | LIMIT 1",
    "FROM docs | WHERE semantic : \"x\" /* not closed",
    "FROM docs | WHERE KNN(embedding, \"x\" | LIMIT 3",
    "FROM docs | WHERE KNN(embedding, \"x\" + \"y\") | LIMIT 3",
]  # fmt: skip


@pytest.mark.parametrize("query", UNCHANGED)
def test_other_queries_are_unchanged(query: str) -> None:
    assert Rewritten(query).query == query


def test_ordinary_field_and_index_without_vectors() -> None:
    query = 'FROM docs | WHERE semantic : "x" | SORT semantic'
    assert Rewritten(query, searched=NO_MAPPINGS).query == query
    with raises_as_recorded(IndexMismatch):
        Rewritten(query, searched=ResolvedIndices({}, {}, ordinary=False))


inside = st.sampled_from(["semantic", ":", "MATCH(", "KNN(embedding,", '"x"', "'", "|", "//", "a", "\\", "`", "?", ")"])
texts = st.lists(inside, max_size=6).map(" ".join)


@given(st.lists(st.tuples(texts, st.sampled_from(["string", "triple", "line", "comment", "name"])), max_size=4))
def test_nothing_inside_strings_comments_and_quoted_names_is_found(parts: list[tuple[str, str]]) -> None:
    written = {
        "string": lambda text: "WHERE a == " + orjson.dumps(text).decode(),
        "triple": lambda text: 'WHERE a == """' + text.replace('"', "'") + '"""',
        "line": lambda text: f"WHERE b // {text}\n",
        "comment": lambda text: f"WHERE /* {text.replace('/*', '')} */ c",
        "name": lambda text: f"WHERE `x{text.replace('`', '``')}` == 1",
    }
    query = "FROM docs " + " | ".join(["", *(written[kind](text) for text, kind in parts)])
    assert Rewritten(query).query == query
    assert tokenize(query)[1] == ["docs"]


odd_tokens = ['{"k":', "}", "1.", ".5", "007", f"?{'9' * 5000}", "?p", "?1", "NOT", "(", ",", "\ud800"]
odd_params = st.sampled_from([None, 1, ["x"], [{"p": ["x"]}], [{"p": {}}]])


@given(st.lists(inside | st.sampled_from(odd_tokens), max_size=9).map(" ".join), odd_params)
def test_any_query_is_read_or_refused_by_name(text: str, params: Any) -> None:
    with suppress(BadRequest, IndexMismatch):
        assert Rewritten(f"FROM docs | WHERE {text}", params).query


REFUSED = {
    "expression": 'WHERE MATCH(semantic, CONCAT("a", "b"))',
    "field": "WHERE semantic : title",
    "cast": 'WHERE semantic::keyword : "x"',
    "options": 'WHERE MATCH(semantic, "x", {"k": 2 + 3})',
    "unknown option": 'WHERE MATCH(semantic, "x", {"size": 3})',
    "word option": 'WHERE MATCH(semantic, "x", {"operator": "AND"})',
    "missing parameter": "WHERE MATCH(semantic, ?text)",
    "blank": 'WHERE semantic : " "',
    "sort": "SORT semantic DESC",
    "other function": 'WHERE MULTI_MATCH("x", title, semantic)',
    "vector of the virtual field": "WHERE KNN(semantic, [0.1, 0.2, 0.3])",
    "eval": 'EVAL x = semantic : "a"',
    "argument": 'WHERE CASE(MATCH(semantic, "a"), TRUE, FALSE)',
    "no such field": 'WHERE semantic.other : "x"',
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_does_not_know(name: str) -> None:
    with raises_as_recorded(IndexMismatch if name == "no such field" else BadRequest):
        Rewritten(f"FROM docs | {REFUSED[name]} | LIMIT 3")


@pytest.mark.parametrize(("version", "searched"), [((8, 19, 8), PLAIN), ((9, 1, 0), PLAIN), ((9, 5, 0), PASSAGES)])
def test_engine_without_knn_and_passages_are_refused(version: tuple[int, int, int], searched: ResolvedIndices) -> None:
    with raises_as_recorded(BadRequest):
        Rewritten('FROM docs | WHERE semantic.embedding : "x"', searched=searched, version=version)
    assert Rewritten("FROM docs | LIMIT 3", version=version).texts == []
