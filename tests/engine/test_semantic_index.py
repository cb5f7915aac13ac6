"""What `SemanticIndex` offers beside the plain search, on each real engine, compared with brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from es_sbert import AsyncSemanticIndex, SemanticIndex, StoredDocument
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import IndexMismatch, IndexMissing, NotFoundError, UsageError, WrongArgument
from es_sbert.search.hybrid_search import DEFAULT_DEPTH, fuse_rankings
from tests.conftest import also_es8, on_every_version
from tests.engine.sample_indices import COUNT, SampleIndices, best, half, samples, text_of
from tests.engine.vectors import cosines
from tests.raised import raises, raises_as_recorded

TEXT = "the man plays a guitar"
CLOSE = 2e-5


@pytest.fixture(scope="module")
def site(engine_url: str, tiny: Encoder) -> Iterator[SampleIndices]:
    with samples(engine_url, tiny) as made:
        yield made


@pytest.fixture(scope="module")
def one(site: SampleIndices) -> Iterator[SemanticIndex]:
    with SemanticIndex(site.one, site.engine, encoder=site.encoder, vector_field="v") as index:
        yield index


@pytest.fixture(scope="module")
def split(site: SampleIndices) -> Iterator[SemanticIndex]:
    with SemanticIndex(site.split, site.engine, encoder=site.encoder, vector_field="v") as index:
        yield index


def open_at(site: SampleIndices, index: Any, **more: Any) -> SemanticIndex:
    return SemanticIndex(index, site.engine, encoder=site.encoder, **{"vector_field": "v", **more})


def number(hit: Any) -> int:
    return int(hit.id.removeprefix("two-"))


def test_multiple_indices_are_searched_as_one(site: SampleIndices) -> None:
    """One of them is quantized, the other is not."""
    values = cosines(site.query(TEXT), site.v)
    with open_at(site, [site.one, site.two]) as both:
        result = both.search(TEXT, 20, num_candidates=COUNT)
    assert (result[0]["_id"], result[0]["_source"]) == (result[0].id, result[0].source)
    assert [hit.cosine for hit in result] == pytest.approx(best(np.concatenate([values, values]), 20), abs=CLOSE)
    assert {hit.index for hit in result} == {site.one, site.two}
    assert [hit.cosine for hit in result] == pytest.approx([values[number(hit)] for hit in result], abs=CLOSE)


def test_alias_filter_applies_to_every_search(site: SampleIndices) -> None:
    alias = f"{site.one}-narrow"
    adds = [(site.one, "narrow", [3, 4]), (site.one, "other", [5]), (site.two, "narrow", [6])]
    site.engine.update_aliases(
        [
            {"add": {"index": index, "alias": f"{site.one}-{name}", "filter": {"terms": {"group": groups}}}}
            for index, name, groups in adds
        ]
    )

    def found(result: Any) -> set[tuple[str, int]]:
        return {(hit.index, hit.source["group"]) for hit in result}

    narrow = {(site.one, 3), (site.one, 4), (site.two, 6)}
    with open_at(site, alias) as index:
        assert found(index.search(TEXT, 2 * COUNT)) == narrow
        assert found(index.search(TEXT, 5, filter={"term": {"group": 4}})) == {(site.one, 4)}
        assert found(index.similar_to("two-0", 2 * COUNT, index=site.two)) == narrow
        assert found(index.hybrid(TEXT, 2 * COUNT)) == narrow
    with open_at(site, [alias, f"{site.one}-other"]) as either:
        assert found(either.search(TEXT, 2 * COUNT)) == narrow | {(site.one, 5)}
    with open_at(site, [alias, site.one]) as whole:
        groups = {group for index, group in found(whole.search(TEXT, 2 * COUNT)) if index == site.one}
        assert groups == set(range(10))


def test_search_many_equals_single_searches(one: SemanticIndex, split: SemanticIndex) -> None:
    texts = [text_of(number) for number in range(250)]  # more than fit into one request
    for index in (one, split):
        filters = [{"range": {"number": {"gte": 20}}}, {"terms": {"group": [2, 3]}}]
        many = index.search_many(iter(texts), 3, filter=filters, num_candidates=2 * COUNT)
        assert len(many) == len(texts)
        for place in (0, 99, 100, 249):
            alone = index.search(texts[place], 3, filter={"bool": {"filter": filters}}, num_candidates=2 * COUNT)
            assert [(hit.id, hit.cosine) for hit in many[place]] == [
                (hit.id, pytest.approx(hit.cosine, abs=CLOSE)) for hit in alone
            ]
            assert all(hit.source["group"] in (2, 3) and hit.source["number"] >= 20 for hit in alone)
    assert one.search_many([]) == []
    with raises(UsageError, "text"):
        one.search_many(["a", " "])


def test_count_exists_and_get_see_what_the_name_covers(site: SampleIndices, one: SemanticIndex) -> None:
    assert one.count() == COUNT + 1  # with the document without a vector
    assert one.count([{"term": {"group": 1}}, {"range": {"number": {"lt": 50}}}]) == 5
    assert one.exists("17")
    assert not one.exists("missing")
    assert one.get("17") == StoredDocument(
        id="17", index=site.one, source={"text": text_of(17), "group": 7, "number": 17}
    )
    assert one.get("bare")["_source"] == {"text": "nothing", "group": 1, "number": COUNT}
    assert not one.exists("")
    for find, id in ((one.get, "missing"), (one.get, ""), (one.similar_to, "missing")):
        with raises(NotFoundError, "id", id) as caught:
            find(id)
        error = caught.value
        assert (error.status_code, error.error, error.request) == (
            404, "document_missing_exception", f"POST /{site.one}/_search",
        )  # fmt: skip
        assert error.body["hits"]["hits"] == []
    alias = f"{site.one}-sevens"
    site.engine.update_aliases([{"add": {"index": site.one, "alias": alias, "filter": {"term": {"group": 7}}}}])
    with open_at(site, alias) as sevens:
        assert (sevens.count(), sevens.exists("17"), sevens.exists("18")) == (COUNT / 10, True, False)
    with open_at(site, [site.one, site.two]) as both:
        assert both.count() == 2 * (COUNT + 1)
        assert both.get("two-17").source == one.get("17").source


def test_names_of_elasticsearch_py_are_answered_with_the_names_here(site: SampleIndices, one: SemanticIndex) -> None:
    for hit in one.search(TEXT, 3):
        assert (hit["_id"], hit["_index"], hit["_score"], hit["_source"]) == (hit.id, hit.index, hit.score, hit.source)
    calls: list[tuple[Any, dict[str, Any]]] = [
        (one.search, {"query": TEXT, "size": 3}),
        (one.search, {"text": TEXT, "min_score": 1}),
        (one.count, {"query": {"term": {"group": 1}}}),
        (SemanticIndex, {"index": site.one, "text_field": "text"}),
        (one.add, {"documents": [], "refresh": True}),
        (partial(SemanticIndex, "x"), {"index": site.one}),
        (SemanticIndex, {"index": site.one, "model": one.encoder}),
        (SemanticIndex, {"index": site.one, "hosts": site.engine.info.url}),
        (SemanticIndex.create, {"name": site.one, "text_field": "text"}),
    ]
    for call, keywords in calls:
        with raises_as_recorded(WrongArgument):
            call(**keywords)
    for name, instead in (("msearch", "search_many"), ("bulk", "add"), ("hybrid_search", "hybrid")):
        with pytest.raises(AttributeError, match=f"SemanticIndex has no `{name}`; use `{instead}`"):
            getattr(one, name)
    with pytest.raises(TypeError, match="iterate over it"):
        one.search(TEXT, 3)["hits"]  # type: ignore[call-overload]


def test_timeout_is_that_of_the_connection_or_refused(site: SampleIndices) -> None:
    address = site.engine.info.url
    with SemanticIndex(site.one, address, vector_field="v", request_timeout=7) as index:
        assert index.engine._timeout == 7
    with raises(UsageError, "request_timeout", 7):
        SemanticIndex(site.one, site.engine, vector_field="v", request_timeout=7)
    with raises_as_recorded(IndexMissing) as missing:
        SemanticIndex("no-such-index", address)
    error = missing.value
    assert (error.setting, error.value, error.request) == ("index", "no-such-index", "GET /no-such-index")
    assert error.body["error"]["type"] == error.type
    wrong: dict[str, Any] = {"sise": 3}
    with raises(WrongArgument, "sise", 3):
        SemanticIndex.search(SemanticIndex.__new__(SemanticIndex), "text", **wrong)


def test_mixed_models_raise(site: SampleIndices) -> None:
    with raises_as_recorded(IndexMismatch):
        open_at(site, [site.one, site.foreign])
    with raises_as_recorded(IndexMismatch):
        open_at(site, [site.one, site.split])
    with pytest.raises(IndexMissing) as missing:
        open_at(site, [site.one, "test-of-no-index"])
    assert (missing.value.status, missing.value.type) == (404, "index_not_found_exception")


def test_like_returns_nearest_other_documents(site: SampleIndices, one: SemanticIndex) -> None:
    values = cosines(site.v[17], site.v)
    others = [row for row in range(COUNT) if row != 17]
    result = one.similar_to("17", 12, num_candidates=COUNT)
    assert [hit.cosine for hit in result] == pytest.approx(best(values, 12, others), abs=CLOSE)
    assert "17" not in {hit.id for hit in result}
    filtered = one.similar_to("17", COUNT, filter={"term": {"group": 7}})
    assert {number(hit) for hit in filtered} == {row for row in others if row % 10 == 7}


def test_like_with_passages_and_several_indices(site: SampleIndices, split: SemanticIndex) -> None:
    mean = (site.halves[17] / np.linalg.norm(site.halves[17], axis=1, keepdims=True)).mean(axis=0)
    others = [row for row in range(COUNT) if row != 17]
    result = split.similar_to("17", 12, num_candidates=2 * COUNT)
    assert [hit.cosine for hit in result] == pytest.approx(best(site.of_split(mean), 12, others), abs=CLOSE)
    assert "17" not in {hit.id for hit in result}
    with open_at(site, [site.one, site.two]) as both:
        twin = both.similar_to("17", 1, index=site.one).hits[0]
        assert (twin.id, twin.index) == ("two-17", site.two)
        with raises(UsageError, "index"):
            both.similar_to("17", index="elsewhere")
        with raises(UsageError, "id"):
            both.similar_to("bare")


@on_every_version
def test_hits_carry_best_passage(site: SampleIndices, split: SemanticIndex) -> None:
    query = site.query(TEXT)
    for result in (split.search(TEXT, 5), split.hybrid(TEXT, 5)):
        for hit in result:
            if hit.cosine is not None:
                which = int(np.argmax(cosines(query, site.halves[number(hit)])))
                text = text_of(number(hit))
                assert hit.passage is not None
                assert hit.passage.text == text[slice(*half(text, which))]
                assert (hit.passage.start, hit.passage.end) == half(text, which)


def test_source_and_highlight_options(site: SampleIndices, one: SemanticIndex) -> None:
    assert one.search(TEXT, 1, source=False).hits[0].source == {}
    assert set(one.search(TEXT, 1, source=["group", "v"]).hits[0].source) == {"group"}
    marked = one.search("guitar", 20, highlight=["text"], num_candidates=COUNT)
    for hit in marked:
        assert ("guitar" in text_of(number(hit)).split()) == (
            "<em>guitar</em>" in "".join(hit.highlight.get("text", []))
        )
    with raises(UsageError, "highlight"):
        one.similar_to("1", highlight=["text"])


def lexical(site: SampleIndices, index: str, filter: Any = None) -> dict[str, float]:
    """The words' own scores, best first."""
    query: Any = {"bool": {"must": [{"match": {"text": TEXT}}], **({"filter": [filter]} if filter else {})}}
    hits = site.engine.search(index, {"query": query, "size": 200, "_source": False})["hits"]["hits"]
    return {hit["_id"]: hit["_score"] for hit in hits}


@pytest.mark.parametrize("filter", [None, {"range": {"group": {"lt": 4}}}])
@also_es8
def test_hybrid_scores_match_formula(site: SampleIndices, one: SemanticIndex, filter: Any) -> None:
    result = one.hybrid(TEXT, 20, filter=filter, weights=(2.0, 1.0))
    near = [hit.id for hit in one.search(TEXT, DEFAULT_DEPTH, filter=filter)]
    words = lexical(site, site.one, filter)
    expected = fuse_rankings(
        {"v": near, "lexical": list(words)[:DEFAULT_DEPTH]},
        depth=DEFAULT_DEPTH,
        weights={"v": 2.0, "lexical": 1.0},
        matches={},
    )
    assert [hit.score for hit in result] == pytest.approx([document.score for document in expected[:20]], abs=1e-9)
    values = cosines(site.query(TEXT), site.v)
    for hit in result:
        assert (hit.cosine is not None) == ("v" in hit.ranks)
        if hit.cosine is not None:
            assert hit.cosine == pytest.approx(values[number(hit)], abs=CLOSE)
            assert near[hit.ranks["v"] - 1] == hit.id
        if hit.lexical is not None:
            assert hit.lexical == pytest.approx(words[hit.id], rel=1e-5)


def test_wrong_arguments_are_named(site: SampleIndices, one: SemanticIndex) -> None:
    options = {
        "k": True, "filter": ["group"], "exact": 1, "num_candidates": "5", "oversample": [1], "min_cosine": "0.3",
        "source": np.array([1]), "highlight": "text", "allow_partial": "no", "rerank": "model", "window": 0,
    }  # fmt: skip
    wrong: list[tuple[Callable[..., object], dict[str, Any]]] = [
        (partial(one.search, TEXT), options),
        (partial(one.hybrid, TEXT), {"weights": (1,), "lexical_fields": "text"}),
        (partial(one.hybrid, TEXT), {"lexical_fields": ["text", {"a"}]}),
        (one.search, {"text": b"bytes"}),
        (one.search_vector, {"vector": [None] * 16}),
        (one.similar_to, {"id": ""}),
        (one.delete, {"ids": [None]}),
        (one.add, {"documents": {"a": 1}}),
        (one.embed_missing, {"retry_seconds": float("nan")}),
        (partial(SemanticIndex.create, "unused", site.engine), {"text_fields": 1, "passages": 0, "shards": "1"}),
        (partial(AsyncSemanticIndex, site.one), {"concurrency": 0}),
    ]
    for call, values in wrong:
        for name, value in values.items():
            with raises_as_recorded(UsageError):
                call(**{name: value})
    documents: Any
    for documents in ({"a": 1}, "a text", pd.DataFrame({"text": ["a text"]})):
        with raises(WrongArgument, "documents"):
            one.add(documents)


def test_values_of_numpy_and_views_of_a_dict_are_arguments(one: SemanticIndex) -> None:
    fields = {"text": 1}
    for source in (np.array(["text"]), fields.keys(), set(fields)):
        assert one.body(TEXT, np.int64(3), source=source) == one.body(TEXT, 3, source=["text"])
    expected = one.hybrid_bodies(TEXT, 3, weights=[0.25, 0.75], lexical_fields=["text"])
    for weights in (np.array([0.25, 0.75]), [np.float32(0.25), np.float32(0.75)], {"a": 0.25, "b": 0.75}.values()):
        options: dict[str, Any] = {"weights": weights, "lexical_fields": fields.keys()}
        assert one.hybrid_bodies(TEXT, np.int64(3), **options) == expected
