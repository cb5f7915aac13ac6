"""The search page's scripts without a browser: highlights, excerpts, numbers, filters, examples. Node.js runs them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from es_sbert.gateway.search_page import page_files
from es_sbert.index.text_template import TextFieldError, TextTemplate
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
        command = [
            program("node"),
            "--input-type=module",
            "--eval",
            _CALL,
            orjson.dumps([module, name, calls]).decode(),
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        results: list[Any] = orjson.loads(done.stdout)
        return results

    return called


def test_stop_words_and_single_letters_are_not_highlighted(call: Calls) -> None:
    highlighted = {
        "the light of stars": "light stars",
        "What's a dog? They don't, can’t": "dog",
        "die Sonne und der Mond": "Sonne Mond",
        "que mangent les astronautes dans l’espace": "mangent astronautes l’espace",
        "qué comen los astronautas en el espacio": "comen astronautas espacio",
        "vitamin C is": "vitamin",
    }
    found = call("stopwords.js", "wordsToHighlight", [[query] for query in highlighted])
    assert dict(zip(highlighted, found, strict=True)) == highlighted


def test_highlight_query_omits_stop_words(call: Calls) -> None:
    asked = {"text": "the moon", "field": FIELD, "filters": [], "k": 10, "weight": 1, "size": 10, "highlight": {}}

    [body] = call("queries.js", "bodyOf", [[{"name": "lexical"}, asked]])

    assert body["query"]["multi_match"]["query"] == "the moon"
    assert body["highlight"]["highlight_query"] == {"multi_match": {"query": "moon", "fields": ["title", "text"]}}


def test_cosines_are_asked_for_all_hits_at_any_minimum(call: Calls) -> None:
    hits = [{"_index": "a", "_id": "1"}, {"_index": "b", "_id": "1"}, {"_index": "a", "_id": "1"}]

    [body] = call("queries.js", "cosinesBody", [[{"text": "moon", "field": FIELD}, hits]])

    near = {"match": {"semantic.embedding": {"query": "moon", "k": 2, "min_cosine": -1}}}
    filters = [{"ids": {"values": ["1"]}}, {"terms": {"_index": ["a", "b"]}}]
    assert body == {"query": {"bool": {"must": [near], "filter": filters}}, "size": 2, "_source": False}


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
        (FIELD, _hit({"title": "Weather", "text": "Weather"}), ""),
        # It is no title, but how the first sentence begins.
        (TEXT_ALONE, _hit({"title": "Rain", "text": RAIN}), RAIN),
        (TEXT_ALONE, _hit({"title": "Rain", "text": f"Rain\n\n{RAIN}"}), RAIN),
        (TEXT_ALONE, _hit({"title": "Did it rain?", "text": f"Did it  rain? {RAIN}"}), RAIN),
        # Without a title the id takes its place.
        (TEXT_ALONE, _hit({"text": f"7: {RAIN}"}), RAIN),
        # Highlights: of the title alone, and of a text that begins with it.
        (FIELD, _hit({"title": "Weather", "text": RAIN}, highlight={"title": [f"{ON}Weather{OFF}"]}), RAIN),
        (FIELD, _hit({"title": "Weather", "text": "?"}, highlight={"text": [f"{ON}Weather{OFF}. It {ON}rained{OFF}."]}),
         f"It {ON}rained{OFF}."),
        # Passages, whose places count characters of the whole text.
        (FIELD, _hit({"title": "😀 Weather", "text": f"{RAIN} Sun."}, inner_hits=_passage(0, 36)),
         f"{ON}{RAIN}{OFF} Sun."),
        (FIELD, _hit({"title": "Weather", "text": f"{RAIN} Sun."}, inner_hits=_passage(35, 39)),
         f"{RAIN} {ON}Sun.{OFF}"),
        (FIELD, _hit({"title": "Weather", "text": RAIN}, inner_hits=_passage(0, 7)), RAIN),
        (FIELD, _hit({}), "(the text is not in the document's _source)"),
    ],
)  # fmt: skip
def test_excerpts_do_not_repeat_the_title(
    call: Calls, field: dict[str, Any], hit: dict[str, Any], excerpt: str
) -> None:
    [runs] = call("excerpts.js", "excerptRuns", [[hit, field]])

    assert "".join(f"{ON}{run['text']}{OFF}" if run["marked"] else run["text"] for run in runs) == excerpt


@pytest.mark.parametrize("template", ["{a}", "{a.b}", "{a.b.c}", "{t}: {a.b}", "{a.b} – {t}", " {t} {a} "])
def test_texts_are_rendered_as_they_were_embedded(call: Calls, template: str) -> None:
    values: list[Any] = [
        "one", " ", "", None, [], [None], ["one"], ["one", "two"], ["one", " ", None, ["two", ["three"]]], ["a", 2],
        {"b": "one"}, {"b": ["one", "two"]}, [{"b": "one"}, {"b": "two"}, {"c": "x"}, "x"], [{"b": []}], [{"b": None}],
        [{"b": [{"c": "one"}, {"c": ["two"]}]}, {"b": {"c": "three"}}], [[{"b": "one"}], {"b.c": "two"}], 3,
    ]  # fmt: skip
    documents = [{"a": value} | title for value in values for title in ({}, {"t": "T"}, {"t": ["T", "U"]})]
    documents += [{"a": {"b": "one"}, "a.b": "two"}, {"a.b": ["one"], "a": [{"b": "two"}]}]
    parsed = TextTemplate.parse(template)

    def embedded(document: dict[str, Any]) -> str | None:
        try:
            return parsed.text_of(document)
        except TextFieldError:
            return None

    found = call("text.js", "embeddedText", [[list(map(list, parsed.parts)), document] for document in documents])
    assert found == list(map(embedded, documents))


def test_texts_of_html_are_shown_without_tags_and_without_passages_of_another_text(call: Calls) -> None:
    field = FIELD | {"parts": [["", "title", None], [". ", "text", "strip_html"]]}
    source = {"title": "Weather", "text": "<script>a<b</script><p class=x>It <b>rained</b> 1 < 2.</p><!-- no -->"}
    hit = _hit(source, inner_hits=_passage(0, 9), highlight={"text": [f"<p class=x>It <b>{ON}rained{OFF}"]})
    [runs] = call("excerpts.js", "excerptRuns", [[hit, field]])
    assert runs == [{"text": "It rained 1 < 2.", "marked": False}]


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


def test_example_queries_are_titles_or_first_sentences(call: Calls) -> None:
    hits = [
        _hit({"title": "sun" + "x" * 500}),
        _hit({"title": "Living on board\na space station"}),
        _hit({"title": "LIVING on board a space station"}),
        _hit({}, highlight={"text": ["7: Start the thread's activity. It must be called once."]}),
        _hit({"title": "\u202eطلوع الشمس كل يوم\u202c"}),
        _hit({"title": "word " * 40}),
        _hit({"title": "12 %"}),
        _hit({}),
    ]

    [examples] = call("examples.js", "exampleQueries", [[hits, FIELD]])

    assert examples == [
        "LIVING on board a space station",
        "Start the thread's activity",
        "طلوع الشمس كل يوم",
        " ".join(["word"] * 16),
        ("sun" + "x" * 500)[:80],
    ]
