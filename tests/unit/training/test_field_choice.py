"""Which fields of an index become query and text."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.errors import IndexMismatch
from es_sbert.index.text_template import TextTemplate
from es_sbert.training.adapt_plan import choose_fields, field_statistics
from es_sbert.training.pair_corpus import FieldChoice

LONG = "a text that has more than a few words, as the body of an article number"


def documents(count: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "title": f"A short title {number}",
            "body": f"{LONG} {number}",
            "topic": "one of few topics" if number % 2 else "another of few topics",
            "url": f"https://example.org/{number}",
            "remark": "set in some documents only" if number < 5 else None,
            "meta": {"subtitle": f"Below the title {number}"},
            "year": 2000 + number,
        }
        for number in range(count)
    ]


NAMES = ["title", "body", "topic", "url", "remark", "meta.subtitle", "year", "absent"]


def test_statistics_count_texts_words_and_different_texts() -> None:
    found = {field.name: field for field in field_statistics(documents(), NAMES)}
    assert found.keys() == {"title", "body", "topic", "url", "remark", "meta.subtitle"}
    assert (found["title"].share, found["title"].words, found["title"].distinct) == (1, 4, 1)
    assert found["topic"].distinct == 0.05
    assert found["remark"].share == 0.125
    assert str(found["remark"]) == "remark (5 words, in 12% of the documents)"


@pytest.mark.parametrize(
    ("embedded", "title", "body"),
    [
        (None, "title", ("body",)),
        ("{body}", "title", ("body",)),
        # The title leaves the text that is embedded, or the query would be in its own answer.
        ("{title}. {body}", "title", ("body",)),
        ("{title}", "meta.subtitle", ("title",)),
    ],
)
def test_title_is_short_distinct_and_not_in_the_text(embedded: str | None, title: str, body: tuple[str, ...]) -> None:
    template = None if embedded is None else TextTemplate.parse(embedded)
    fields = field_statistics(documents(), [name for name in NAMES if embedded != "{title}" or name != "meta.subtitle"])
    if embedded == "{title}":
        # Nothing is much shorter than a title.
        assert choose_fields(fields, template) == FieldChoice(None, ("title",))
        return
    assert choose_fields(fields, template) == FieldChoice(title, body)


def test_statistics_and_names_of_titles_are_those_of_the_shown_texts() -> None:
    tickets = [
        {"subject": f"Printer &amp; paper {n}", "body": f"<p class=x>{LONG} {n}", "name": f"Ada Lovelace {n}"}
        for n in range(9)
    ]
    template = TextTemplate.parse("{subject|strip_html}. {body|strip_html}")
    fields = field_statistics(tickets, ["name", "body", "subject"], template)
    assert {field.name: field.words for field in fields} == {"name": 3, "body": 17, "subject": 4}
    # Of a person and a subject, the subject is the title.
    assert choose_fields(fields, template) == FieldChoice("subject", ("body",))


def test_chosen_fields_win() -> None:
    fields = field_statistics(documents(), NAMES)
    assert choose_fields(fields, None, title="topic") == FieldChoice("topic", ("body",))
    assert choose_fields(fields, None, body=["title", "body"]) == FieldChoice("meta.subtitle", ("title", "body"))
    assert choose_fields(fields, None, use_title=False) == FieldChoice(None, ("body",))
    with pytest.raises(IndexMismatch, match="has text in absent"):
        choose_fields(fields, None, title="absent")
    with pytest.raises(IndexMismatch, match="both title and body"):
        choose_fields(fields, None, title="body", body=["body"])


def test_index_without_long_texts_is_refused() -> None:
    with pytest.raises(IndexMismatch, match="no field holds texts of 8 words"):
        choose_fields(field_statistics(documents(), ["title", "url"]), None)
