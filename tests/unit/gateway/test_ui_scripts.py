"""The search page without a browser: its files, headers, facets and indices, and its scripts, which Node.js runs."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
from starlette.applications import Starlette

from es_sbert.gateway.server.search_page import (
    CONTENT_TYPES,
    facet_fields,
    list_searchable_indices,
    page_files,
    static_file_routes,
)
from es_sbert.index.text_template import TextTemplate
from tests.programs import program

# Around words that the engine found.
ON, OFF = "\ue000", "\ue001"
FIELD = {
    "name": "embedding", "meta": "embedding_meta", "semantic": "semantic.embedding",
    "texts": ["title", "text"], "parts": [["", "title"], [". ", "text"]], "hidden": ["embedding", "embedding_meta"],
}  # fmt: skip
TEXT_ALONE = FIELD | {"texts": ["text"], "parts": [["", "text"]]}
Calls = Callable[[str, str, list[list[Any]]], list[Any]]

_CALL = """
globalThis.matchMedia = () => ({ matches: true, addEventListener() {} });  // Node has no screen
const [module, name, calls] = JSON.parse(process.argv[1]);
const called = (await import(`./${module}`))[name];
console.log(JSON.stringify(calls.map((given) => called(...given) ?? null)));
"""


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """A function from a module, a function in it and lists of arguments to what each call returns."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "package.json").write_text('{"type": "module"}')
    for name, content in page_files().items():
        (folder / name).write_bytes(content)

    def called(module: str, name: str, calls: list[list[Any]]) -> list[Any]:
        given = orjson.dumps([module, name, calls]).decode()
        command = [program("node"), "--input-type=module", "--eval", _CALL, given]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        results: list[Any] = orjson.loads(done.stdout)
        return results

    return called


def _hit(source: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"_index": "docs", "_id": "7", "_source": source, **rest}


def _passage(start: int, end: int) -> dict[str, Any]:
    return {"embedding": {"hits": {"hits": [{"_source": {"start": start, "end": end}}]}}}


RAIN = "Rain fell for three days."


@pytest.mark.parametrize(
    ("field", "hit", "excerpt"),
    [
        # The template puts the title in front of the text.
        (FIELD, _hit({"title": "Weather", "text": RAIN}), RAIN),
        # The text begins with it again.
        (FIELD, _hit({"title": "Weather", "text": f"WEATHER: {RAIN}"}), RAIN),
        (TEXT_ALONE, _hit({"title": "Rain", "text": f"Rain\n\n{RAIN}"}), RAIN),
        # Highlights: of the title alone, and of a text that begins with it.
        (FIELD, _hit({"title": "Weather", "text": RAIN}, highlight={"title": [f"{ON}Weather{OFF}"]}), RAIN),
        (FIELD, _hit({"title": "Weather", "text": "?"}, highlight={"text": [f"{ON}Weather{OFF}. It {ON}rained{OFF}."]}),
         f"It {ON}rained{OFF}."),
        # Passages, whose places count characters of the whole text.
        (FIELD, _hit({"title": "😀 Weather", "text": f"{RAIN} Sun."}, inner_hits=_passage(0, 36)),
         f"{ON}{RAIN}{OFF} Sun."),
        (FIELD, _hit({"title": "Weather", "text": f"{RAIN} Sun."}, inner_hits=_passage(35, 39)),
         f"{RAIN} {ON}Sun.{OFF}"),
        (FIELD, _hit({}), "(the text is not in the document's _source)"),
    ],
)  # fmt: skip
def test_excerpts_do_not_repeat_the_title(
    call: Calls, field: dict[str, Any], hit: dict[str, Any], excerpt: str
) -> None:
    [runs] = call("excerpts.js", "excerptRuns", [[hit, field]])

    assert "".join(f"{ON}{run['text']}{OFF}" if run["marked"] else run["text"] for run in runs) == excerpt


# Titles and texts of HTML, as `--strip-html` leaves them in the mapping.
OF_HTML = FIELD | {"parts": [["", "title", "strip_html"], [". ", "text", "strip_html"]]}


@pytest.mark.parametrize(
    "html",
    [
        "<p>O'Brien &amp; S&ouml;hne</p>", "a &lt;b&gt; c", "&#8217; &#x2019; &apos; &hellip; &ccaron; &copy 2020",
        "".join(f"&#{code};" for code in range(0x80, 0xA0)), "&constructor; &constructor &unknown; & &; &#; &amp;amp;",
        "a<!-- <b> unclosed", "a<script>b()", "a <b and", "<table><tr><td>a<td>b</table>", "<i>c</i>at, <b>dog</b>.",
        "<!DOCTYPE html><html><head><title>Page</title><style>p{}</style></head><body><p>Text<svg><text>x</text></svg>",
        "می&zwnj;خواهم &#x200d; 👩\u200d🚀",
    ],
)  # fmt: skip
def test_html_is_shown_as_it_is_embedded(call: Calls, html: str) -> None:
    embedded = TextTemplate.parse("{text|strip_html}").readable_text({"text": html}).strip()
    [title] = call("text.js", "titleOf", [[_hit({"title": html}), OF_HTML]])
    assert title == {"text": embedded, "field": "title"}
    [runs] = call("excerpts.js", "excerptRuns", [[_hit({"title": "Letter", "text": html}), OF_HTML]])
    assert runs == [{"text": embedded, "marked": False}]


def test_words_found_in_html_are_marked_without_its_tags(call: Calls) -> None:
    hit = _hit({"title": "T", "text": "<p>It Rained &amp; rained.</p>"}, highlight={"text": [f"<p>It {ON}Rained{OFF}"]})
    [runs] = call("excerpts.js", "excerptRuns", [[hit, OF_HTML]])
    assert [run["text"] for run in runs if run["marked"]] == ["Rained", "rained"]


META = {"fingerprint": "f" * 32, "model": "m", "dimensions": 3, "index_type": "hnsw", "text": "{title}. {text}"}


def _get(path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Starlette(routes=static_file_routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


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


MAPPING: dict[str, Any] = {
    "title": {"type": "text", "fields": {"keyword": {"type": "keyword"}}},
    "text": {"type": "text"},
    "topic": {"type": "text", "fields": {"length": {"type": "token_count"}, "keyword": {"type": "keyword"}}},
    "language": {"type": "keyword"},
    "open": {"type": "boolean"},
    "shop": {"properties": {"city": {"type": "keyword"}, "place": {"type": "geo_point"}}},
    "lines": {"type": "nested", "properties": {"sku": {"type": "keyword"}}},
    "hash": {"type": "keyword", "index": False},
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
    # Counted where it has another type, a field would cost the hits of that index.
    other: dict[str, Any] = {"language": {"type": "keyword"}, "open": {"type": "text"}}
    assert [facet["field"] for facet in facet_fields([MAPPING, other], HIDDEN)] == [
        "topic.keyword",
        "language",
        "shop.city",
    ]


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
        "min_cosine": None,
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


def test_facts_are_few_valued_fields_and_dates(call: Calls) -> None:
    labels = ["draft", "featured", "lang", "author", "created_by", "customer_name", "code", "topic", "tags", "empty"]
    source = {
        "title": "T", "author": "Li Wei", "created_by": "x", "customer_name": "y", "code": "12-4", "empty": " ",
        "price": 3.5, "lang": "en", "topic": "Space", "tags": ["a", "b"], "city": None, "draft": False,
        "featured": True, "url": "https://x", "seen": "2024-05-01",
    }  # fmt: skip
    asked = {"field": FIELD, "facets": [{"label": label} for label in labels]}
    [facts] = call("hits.js", "factsOf", [[{"_id": "1", "_source": source}, asked]])
    [day, none] = call("numbers.js", "dateText", [["2024-05-01"], ["2024-13-01"]])
    assert none is None
    assert "2024" in day
    assert facts == [["seen", day], ["featured", ""], ["tags", "a, b"], ["topic", "Space"]]
