"""The search page's pure parts: files and their headers, facets, what the page may ask."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search_page import (
    CONTENT_TYPES,
    choose_facets,
    facet_fields,
    list_searchable_indices,
    page_files,
    parse_page_request,
    static_file_routes,
    survey_body,
)

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


HIDDEN = {"title", "text", "embedding", "embedding_meta"}


def test_facet_fields_are_chosen_from_the_mapping() -> None:
    found = facet_fields([MAPPING], HIDDEN)

    assert [(facet["field"], facet["label"]) for facet in found] == [
        ("topic.keyword", "topic"),
        ("language", "language"),
        ("open", "open"),
        ("shop.city", "shop.city"),
    ]


def test_field_with_conflicting_types_is_no_facet() -> None:
    # Counted where it is a text or of another type, it would cost the hits of that index.
    other: dict[str, Any] = {
        "language": {"type": "keyword"},
        "year": {"type": "keyword"},
        "open": {"type": "text"},
        "shop": {"properties": {"place": {"type": "keyword"}, "owner": {"type": "keyword"}}},
    }

    found = [facet["field"] for facet in facet_fields([MAPPING, other], HIDDEN)]

    assert found == ["topic.keyword", "language", "shop.city", "shop.owner"]


@pytest.mark.parametrize(
    ("distinct", "is_shown"),
    [(5, True), (1, False), (0, False), (90, False), (100, False)],  # too few, or almost an id
)
def test_facets_have_several_values_but_far_fewer_than_documents(distinct: int, is_shown: bool) -> None:
    fields = facet_fields([{"f": {"type": "keyword"}}], ())
    assert survey_body(fields)["aggs"].keys() == {"0"}
    answer = {"hits": {"total": {"value": 100}}, "aggregations": {"0": {"value": distinct}}}
    aggregations = [facet["aggregation"] for facet in choose_facets(fields, answer)]
    assert aggregations == [{"terms": {"field": "f", "size": 10}}] * is_shown


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


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"[]", "not an object"),
        (b"{", "as JSON"),
        (b'{"index":"","body":{}}', "index"),
        (b'{"index":"a","body":{},"size":1}', "size"),
    ],
)
def test_invalid_page_request_is_rejected(raw: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        parse_page_request(raw)
