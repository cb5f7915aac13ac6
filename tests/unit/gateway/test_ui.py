"""The search page's pure parts: files and their headers, facets, the map, what the page may ask."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from starlette.applications import Starlette

from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.ui.catalogue import catalogue
from es_sbert.gateway.ui.facets import FacetField, Kind, calendar_unit, facet_fields, facets, step, survey
from es_sbert.gateway.ui.files import TYPES, file_routes, page_files
from es_sbert.gateway.ui.projection import project
from es_sbert.gateway.ui.requests import Document, LikeRequest, MapRequest, read

REFERENCE = re.compile(r"""(?:src|href)="([\w.]+)"|(?:from|import) "\./([\w.]+)";""")
META = {"fingerprint": "f" * 32, "model": "m", "dimensions": 3, "index_type": "hnsw", "text": "{title}. {text}"}


def _get(path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Starlette(routes=file_routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


# Files


def test_every_file_of_the_page_is_there_and_used() -> None:
    files = page_files()
    used = {one or other for content in files.values() for one, other in REFERENCE.findall(content.decode())}

    assert used | {"index.html"} == set(files)


def test_page_holds_no_inline_script_or_style_and_names_no_other_host() -> None:
    page = page_files()["index.html"].decode()

    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", page) == []
    for name, content in page_files().items():
        addresses = set(re.findall(r"https?://[^\"' ]+", content.decode()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name


def test_no_code_of_the_page_reads_text_as_html() -> None:
    code = b"\n".join(content for name, content in page_files().items() if name.endswith(".js")).decode()

    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", code) == []
    )


@pytest.mark.parametrize("path", ["/ui/", *(f"/ui/{name}" for name in page_files())])
def test_files_come_with_headers_that_keep_others_out(path: str) -> None:
    answer = _get(path)

    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["content-type"] in TYPES.values()
    again = _get(path, **{"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_address_without_slash_leads_to_the_page_with_its_search() -> None:
    assert _get("/ui?q=a%26b").headers["location"] == "ui/?q=a%26b"
    assert _get("/ui").headers["location"] == "ui/"


# Facets

MAPPING: dict[str, Any] = {
    "title": {"type": "text", "fields": {"keyword": {"type": "keyword"}}},
    "text": {"type": "text"},
    "topic": {"type": "text", "fields": {"length": {"type": "token_count"}, "keyword": {"type": "keyword"}}},
    "language": {"type": "keyword"},
    "year": {"type": "integer"},
    "price": {"type": "scaled_float"},
    "open": {"type": "boolean"},
    "published": {"type": "date"},
    "shop": {"properties": {"city": {"type": "keyword"}, "place": {"type": "geo_point"}}},
    "lines": {"type": "nested", "properties": {"sku": {"type": "keyword"}}},
    "hash": {"type": "keyword", "index": False},
    "note": {"type": "keyword", "doc_values": False},
    "embedding": {"type": "dense_vector"},
    "embedding_meta": {"properties": {"truncated": {"type": "boolean"}}},
}


def test_facets_are_chosen_from_the_mapping() -> None:
    found = facet_fields([MAPPING], {"title", "text", "embedding", "embedding_meta"})

    assert found == [
        FacetField("topic.keyword", "topic", Kind.TERMS),
        FacetField("language", "language", Kind.TERMS),
        FacetField("year", "year", Kind.NUMBER, whole=True),
        FacetField("price", "price", Kind.NUMBER),
        FacetField("open", "open", Kind.TERMS),
        FacetField("published", "published", Kind.DATE),
        FacetField("shop.city", "shop.city", Kind.TERMS),
    ]
    assert orjson.loads(orjson.dumps(survey(found)))["aggs"]["2"] == {"stats": {"field": "year"}}


def test_a_field_of_several_types_is_no_facet() -> None:
    # Counted where it is a text or of another type, it would cost the hits of that index.
    other: dict[str, Any] = {
        "language": {"type": "keyword"},
        "year": {"type": "keyword"},
        "open": {"type": "text"},
        "shop": {"properties": {"place": {"type": "keyword"}, "owner": {"type": "keyword"}}},
    }

    found = [facet.field for facet in facet_fields([MAPPING, other], {"title", "text", "embedding", "embedding_meta"})]

    assert found == ["topic.keyword", "language", "price", "published", "shop.city", "shop.owner"]


@pytest.mark.parametrize(
    ("kind", "held", "shown"),
    [
        (Kind.TERMS, {"value": 5}, {"terms": {"field": "f", "size": 10}}),
        (Kind.TERMS, {"value": 1}, None),  # nothing to choose
        (Kind.TERMS, {"value": 90}, None),  # an id
        (Kind.NUMBER, {"min": 0, "max": 80}, {"histogram": {"field": "f", "interval": 10.0, "min_doc_count": 1}}),
        (Kind.NUMBER, {"min": 3, "max": 3}, None),
        (Kind.NUMBER, {"min": None, "max": None}, None),  # no document has it
        (Kind.DATE, {"min": 0, "max": 5 * 365 * 86400e3},
         {"date_histogram": {"field": "f", "calendar_interval": "year", "format": "strict_date_time",
                             "min_doc_count": 1, "order": {"_key": "desc"}}}),
    ],
)  # fmt: skip
def test_facets_worth_showing(kind: Kind, held: dict[str, Any], shown: dict[str, Any] | None) -> None:
    answer = {"hits": {"total": {"value": 100}}, "aggregations": {"0": held}}

    found = facets([FacetField("f", "f", kind)], answer)

    assert [facet["aggregation"] for facet in found] == ([] if shown is None else [shown])


def test_a_value_of_its_own_in_every_document_is_no_facet() -> None:
    answer = {"hits": {"total": {"value": 4}}, "aggregations": {"0": {"value": 4}}}
    assert facets([FacetField("id", "id", Kind.TERMS)], answer) == []


@given(
    st.floats(-1e12, 1e12), st.floats(1e-6, 1e12), st.booleans()
)  # fmt: skip
def test_numbers_are_cut_into_few_round_steps(least: float, span: float, whole: bool) -> None:
    width = step(least, least + span, whole=whole) if least + span > least else None
    if width is not None:
        assert (least + span - least) / width <= 8 * (1 + 1e-6)
        assert f"{width:e}"[0] in "125"
        assert not whole or width >= 1


@pytest.mark.parametrize(
    ("milliseconds", "unit"),
    [(1, "minute"), (3600e3, "hour"), (86400e3, "hour"), (7 * 86400e3, "day"), (365 * 86400e3, "month"),
     (40 * 365 * 86400e3, "year")],
)  # fmt: skip
def test_dates_are_cut_by_units_of_the_calendar(milliseconds: float, unit: str) -> None:
    # An hour has 60 minutes, which are too many.
    assert calendar_unit(milliseconds) == unit


# The list of indices


def test_catalogue_lists_aliases_before_indices_and_only_those_with_vectors() -> None:
    mappings = {"_meta": {"es_sbert": {"fields": {"embedding": META}}}}
    answer = {
        "docs-2": {"aliases": {"docs": {}}, "mappings": mappings},
        "logs": {"aliases": {"all": {}}, "mappings": {}},
    }

    found = catalogue(answer, "semantic")

    listed = found.indices
    assert found.problems == []

    assert [entry["name"] for entry in listed] == ["docs", "docs-2"]
    [field] = listed[0]["fields"]
    assert field == {
        "name": "embedding", "semantic": "semantic.embedding", "model": "m", "passages": False,
        "parts": (("", "title"), (". ", "text")), "texts": ("title", "text"),
        "hidden": ["embedding", "embedding_meta"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [7, {"embedding": {"model": 7}}, {"embedding": META | {"text": "{"}}, {"embedding": META | {"text": "{title!r}"}}],
)
def test_a_damaged_mapping_leaves_its_index_out_alone(fields: Any) -> None:
    answer = {
        "bad": {"mappings": {"_meta": {"es_sbert": {"fields": fields}}}},
        "good": {"mappings": {"_meta": {"es_sbert": {"fields": {"embedding": META}}}}},
    }

    found = catalogue(answer, "semantic")

    assert [entry["name"] for entry in found.indices] == ["good"]
    [problem] = found.problems
    assert problem.startswith("bad is left out: ")


# The map


@given(st.integers(2, 12), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_map_is_the_principal_components(points: int, dimensions: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(points, dimensions)).astype(np.float32)
    found = project(vectors)

    components = min(2, points, dimensions)
    expected = np.zeros((points, 2))
    expected[:, :components] = PCA(components, svd_solver="full").fit_transform(vectors.astype(np.float64))
    expected /= np.abs(expected).max()
    for axis in range(2):
        same = np.abs(found[:, axis] - expected[:, axis]).max()
        turned = np.abs(found[:, axis] + expected[:, axis]).max()
        assert min(same, turned) < 1e-5
    assert np.abs(found).max() <= 1


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.ones((4, 3)), np.full((3, 2), 0.1)])
def test_vectors_that_are_alike_lie_at_the_origin(vectors: np.ndarray) -> None:
    assert np.array_equal(project(vectors.astype(np.float32)), np.zeros((len(vectors), 2)))


def test_the_same_vectors_give_the_same_picture() -> None:
    vectors = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    assert np.allclose(project(vectors[::-1])[::-1], project(vectors))


# Requests


def test_requests_of_the_page_are_read() -> None:
    raw = b'{"index":"docs","field":"embedding","query":"sun","hits":[{"index":"docs-2","id":"1"}]}'
    assert read(MapRequest, raw).hits == (Document(index="docs-2", id="1"),)


PLACE = {"index": "i", "id": "1"}


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        (MapRequest, b"[]", "no JSON object"),
        (MapRequest, b"{", "no JSON object"),
        (MapRequest, b'{"index":"docs","field":"f","hits":[]}', "give query or document"),
        (MapRequest, b'{"index":"docs","field":"f","query":"a","document":{"index":"i","id":"1"},"hits":[]}', "give"),
        (MapRequest, b'{"index":"","field":"f","query":"a","hits":[]}', "index"),
        (MapRequest, orjson.dumps({"index": "i", "field": "f", "query": "a", "hits": [PLACE] * 1001}), "hits"),
        (LikeRequest, b'{"index":"docs","field":"f","document":{"index":"i","id":7},"k":3}', "document.id"),
        (LikeRequest, b'{"index":"docs","field":"f","document":{"index":"i","id":"7"},"k":3,"size":1}', "size"),
    ],
)  # fmt: skip
def test_what_is_no_request_of_the_page_is_refused(kind: type[MapRequest], raw: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read(kind, raw)
