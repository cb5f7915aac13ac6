"""The search page's pure parts: files and their headers, facets, what the page may ask."""

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
from starlette.applications import Starlette

from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.ui.facets import (
    FacetField,
    FacetKind,
    choose_facets,
    facet_fields,
    number_boundaries,
    survey_body,
    time_boundaries,
)
from es_sbert.gateway.ui.page_api import (
    CosinesRequest,
    DocumentRef,
    SimilarDocumentsRequest,
    list_searchable_indices,
    parse_page_request,
)
from es_sbert.gateway.ui.page_routes import CONTENT_TYPES, page_files, static_file_routes

REFERENCE = re.compile(r"""(?:src|href)="([\w.]+)"|(?:from|import) "\./([\w.]+)";""")
META = {"fingerprint": "f" * 32, "model": "m", "dimensions": 3, "index_type": "hnsw", "text": "{title}. {text}"}


def _get(path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Starlette(routes=static_file_routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


# Files


def test_every_page_file_is_used() -> None:
    files = page_files()
    used = {one or other for content in files.values() for one, other in REFERENCE.findall(content.decode())}

    assert used | {"index.html"} == set(files)


def test_page_has_no_inline_code_and_no_other_host() -> None:
    page = page_files()["index.html"].decode()

    assert re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", page) == []
    for name, content in page_files().items():
        addresses = set(re.findall(r"https?://[^\"' ]+", content.decode()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name


def test_page_scripts_use_no_html_sinks() -> None:
    code = b"\n".join(content for name, content in page_files().items() if name.endswith(".js")).decode()

    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc", code) == []
    )


@pytest.mark.parametrize("path", ["/ui/", *(f"/ui/{name}" for name in page_files())])
def test_files_are_served_with_security_headers(path: str) -> None:
    answer = _get(path)

    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["content-type"] in CONTENT_TYPES.values()
    again = _get(path, **{"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_missing_slash_redirects_and_keeps_the_query() -> None:
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


def test_facet_fields_are_chosen_from_the_mapping() -> None:
    found = facet_fields([MAPPING], {"title", "text", "embedding", "embedding_meta"})

    assert found == [
        FacetField("topic.keyword", "topic", FacetKind.TERMS),
        FacetField("language", "language", FacetKind.TERMS),
        FacetField("year", "year", FacetKind.NUMBER, whole=True),
        FacetField("price", "price", FacetKind.NUMBER),
        FacetField("open", "open", FacetKind.TERMS),
        FacetField("published", "published", FacetKind.DATE),
        FacetField("shop.city", "shop.city", FacetKind.TERMS),
    ]
    asked = orjson.loads(orjson.dumps(survey_body(found)))["aggs"]
    assert asked["2_quantiles"]["percentiles"]["field"] == asked["2_distinct"]["cardinality"]["field"] == "year"
    assert "0_quantiles" not in asked


def test_field_with_conflicting_types_is_no_facet() -> None:
    # Counted where it is a text or of another type, it would cost the hits of that index.
    other: dict[str, Any] = {
        "language": {"type": "keyword"},
        "year": {"type": "keyword"},
        "open": {"type": "text"},
        "shop": {"properties": {"place": {"type": "keyword"}, "owner": {"type": "keyword"}}},
    }

    found = [facet.field for facet in facet_fields([MAPPING, other], {"title", "text", "embedding", "embedding_meta"})]

    assert found == ["topic.keyword", "language", "price", "published", "shop.city", "shop.owner"]


def _survey_answer(distinct: int, values: list[float | None]) -> dict[str, Any]:
    """The engine's answer for one field of an index with 100 documents."""
    quantiles = {"values": [{"key": float(place), "value": value} for place, value in enumerate(values)]}
    held = {"0_distinct": {"value": distinct}, "0_quantiles": quantiles}
    return {"hits": {"total": {"value": 100}}, "aggregations": held}


EACH = {"terms": {"field": "f", "size": 10, "order": {"_key": "asc"}}}


@pytest.mark.parametrize(
    ("kind", "distinct", "quantiles", "shown"),
    [
        (FacetKind.TERMS, 5, [], {"terms": {"field": "f", "size": 10}}),
        (FacetKind.TERMS, 1, [], None),  # nothing to choose
        (FacetKind.TERMS, 90, [], None),  # an id
        (FacetKind.NUMBER, 4, [1, 1, 2, 2, 3, 4, 1e9], EACH),  # one bucket for each of few values
        (FacetKind.NUMBER, 1, [3, 3, 3, 3, 3, 3, 3], None),  # all equal
        (FacetKind.NUMBER, 0, [None] * 7, None),  # no document has the field
        (FacetKind.NUMBER, 17, [0, 0, 0, 0, 0, 0, 9], None),  # nearly all equal
        (FacetKind.DATE, 2, [0, 0, 0, 1, 1, 1, 1], {"terms": EACH["terms"] | {"format": "strict_date_time"}}),
        (FacetKind.DATE, 50, [0, 0, 0, 1e12, 1e12, 1e12, 1e15],
         {"date_range": {"field": "f", "format": "strict_date_time", "ranges": [
             {"key": "..2002-01-01T00:00:00.000Z", "to": "2002-01-01T00:00:00.000Z"},
             {"key": "2002-01-01T00:00:00.000Z..", "from": "2002-01-01T00:00:00.000Z"}]}}),
    ],
)  # fmt: skip
def test_choose_facets(
    kind: FacetKind, distinct: int, quantiles: list[float | None], shown: dict[str, Any] | None
) -> None:
    found = choose_facets([FacetField("f", "f", kind)], _survey_answer(distinct, quantiles))

    assert [facet["aggregation"] for facet in found] == ([] if shown is None else [shown])


def test_facet_ranges_ignore_outliers() -> None:
    values = [*range(1, 101), 10**9]
    quantiles = np.percentile(values, [100 * share / 6 for share in range(7)]).tolist()

    [facet] = choose_facets([FacetField("f", "f", FacetKind.NUMBER, whole=True)], _survey_answer(101, quantiles))

    ranges = facet["aggregation"]["range"]["ranges"]
    assert [span["key"] for span in ranges] == ["..20", "20..30", "30..50", "50..70", "70..80", "80.."]
    counts = [
        sum(float(span.get("from", "-inf")) <= value < float(span.get("to", "inf")) for value in values)
        for span in ranges
    ]
    assert counts == [19, 10, 20, 20, 10, 22]


def test_field_with_unique_values_is_no_facet() -> None:
    answer = {"hits": {"total": {"value": 4}}, "aggregations": {"0_distinct": {"value": 4}}}
    assert choose_facets([FacetField("id", "id", FacetKind.TERMS)], answer) == []


QUANTILES = st.lists(st.floats(-1e15, 1e15), min_size=7, max_size=7).map(sorted)


@given(QUANTILES, st.booleans())
def test_boundaries_ascend_near_the_quantiles(quantiles: list[float], whole: bool) -> None:
    if whole:
        quantiles = [float(round(value)) for value in quantiles]

    bounds = [float(bound) for bound in number_boundaries(quantiles, whole=whole)]

    assert bounds == sorted(set(bounds))
    assert all(bound > quantiles[0] for bound in bounds)
    assert all(bound <= quantiles[-1] + (quantiles[-2] - quantiles[0]) / 2 for bound in bounds)
    inner = {value for value in quantiles[1:-1] if value > quantiles[0]}
    assert len(bounds) == len(inner)
    assert not whole or all(bound == int(bound) for bound in bounds)


@pytest.mark.parametrize(
    ("quantiles", "whole", "bounds"),
    [
        ([1.3, 3.23, 7.9, 15.2, 39.1, 203.7, 9e9], False, ["3", "8", "15", "40", "200"]),
        ([0, 12.4, 25.1, 37.6, 50.2, 63.1, 75], True, ["10", "25", "40", "50", "60"]),
        ([0.1, 0.1000001, 0.1000002, 0.1000003], False, ["0.1000001", "0.1000002"]),
        ([-80, -41, -19, 0.2, 21, 38, 80], True, ["-40", "-20", "0", "20", "40"]),
        ([1, 1, 1, 5, 5, 5, 5], True, ["5"]),  # the greatest value is a common one
        ([0, float("inf")], False, []),
    ],
)
def test_boundaries_are_round_numbers(quantiles: list[float], whole: bool, bounds: list[str]) -> None:
    assert number_boundaries(quantiles, whole=whole) == bounds


DAY = 86_400_000


@pytest.mark.parametrize(
    ("quantiles", "bounds"),
    [
        ([0, 3653 * DAY, 7310 * DAY, 9e15], ["1980-01-01", "1990-01-01"]),
        ([0, 33 * DAY, 62 * DAY, 90 * DAY], ["1970-02-01", "1970-03-01"]),
        ([0, 3.2 * DAY, 5.9 * DAY, 9 * DAY], ["1970-01-04", "1970-01-07"]),
        ([-1, 1e18, 2e18, 3e18], []),  # after the year 9999
    ],
)
def test_date_boundaries_are_calendar_units(quantiles: list[float], bounds: list[str]) -> None:
    assert time_boundaries(quantiles) == [f"{bound}T00:00:00.000Z" for bound in bounds]


def test_boundaries_within_a_minute_are_seconds() -> None:
    assert time_boundaries([0, 9_800, 20_300, 30_000]) == ["1970-01-01T00:00:10.000Z", "1970-01-01T00:00:20.000Z"]


# The list of indices


def test_catalog_lists_indices_with_vectors_aliases_first() -> None:
    mappings = {"_meta": {"es_sbert": {"fields": {"embedding": META}}}}
    answer = {
        "docs-2": {"aliases": {"docs": {}}, "mappings": mappings},
        "logs": {"aliases": {"all": {}}, "mappings": {}},
    }

    listed, problems = list_searchable_indices(answer, "semantic")
    assert problems == []

    assert [entry["name"] for entry in listed] == ["docs", "docs-2"]
    [field] = listed[0]["fields"]
    assert field == {
        "name": "embedding",
        "semantic": "semantic.embedding",
        "meta": "embedding_meta",
        "model": "m",
        "passages": False,
        "parts": [["", "title", None], [". ", "text", None]],
        "texts": ("title", "text"),
        "hidden": ["embedding", "embedding_meta"],
    }


@pytest.mark.parametrize(
    "fields",
    [7, {"embedding": {"model": 7}}, {"embedding": META | {"text": "{"}}, {"embedding": META | {"text": "{title!r}"}}],
)
def test_damaged_mapping_skips_only_its_index(fields: Any) -> None:
    answer = {
        "bad": {"mappings": {"_meta": {"es_sbert": {"fields": fields}}}},
        "good": {"mappings": {"_meta": {"es_sbert": {"fields": {"embedding": META}}}}},
    }

    indices, [problem] = list_searchable_indices(answer, "semantic")

    assert [entry["name"] for entry in indices] == ["good"]
    assert problem.startswith("bad is skipped: ")


# Requests


def test_page_request_is_parsed() -> None:
    raw = b'{"index":"docs","field":"embedding","query":"sun","hits":[{"index":"docs-2","id":"1"}]}'
    assert parse_page_request(CosinesRequest, raw).hits == (DocumentRef(index="docs-2", id="1"),)


PLACE = {"index": "i", "id": "1"}


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        (CosinesRequest, b"[]", "not an object"),
        (CosinesRequest, b"{", "as JSON"),
        (CosinesRequest, b'{"index":"docs","field":"f","hits":[]}', "exactly one of query and document"),
        (
            CosinesRequest,
            b'{"index":"docs","field":"f","query":"a","document":{"index":"i","id":"1"},"hits":[]}',
            "exactly one of query and document",
        ),
        (CosinesRequest, b'{"index":"","field":"f","query":"a","hits":[]}', "index"),
        (CosinesRequest, orjson.dumps({"index": "i", "field": "f", "query": "a", "hits": [PLACE] * 1001}), "hits"),
        (SimilarDocumentsRequest, b'{"index":"docs","field":"f","document":{"index":"i","id":7},"k":3}', "document.id"),
        (
            SimilarDocumentsRequest,
            b'{"index":"docs","field":"f","document":{"index":"i","id":"7"},"k":3,"size":1}',
            "size",
        ),
    ],
)  # fmt: skip
def test_invalid_page_request_is_rejected(kind: type[CosinesRequest], raw: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_page_request(kind, raw)
