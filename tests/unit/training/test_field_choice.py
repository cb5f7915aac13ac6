"""Which fields of an index become query and text."""

from __future__ import annotations

from typing import Any

import pytest

from es_sbert.errors import IndexMismatch
from es_sbert.index.text_template import TextTemplate
from es_sbert.training.adapt_plan import choose_fields, field_statistics
from es_sbert.training.pair_corpus import FieldChoice
from tests.raised import raises_as_recorded

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


# The title leaves the text that is embedded, or the query would be in its own answer.
@pytest.mark.parametrize("embedded", [None, "{body}", "{title}. {body}"])
def test_title_is_short_distinct_and_not_in_the_text(embedded: str | None) -> None:
    template = None if embedded is None else TextTemplate.parse(embedded)
    assert choose_fields(field_statistics(documents(), NAMES), template) == FieldChoice("title", ("body",))


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
    with raises_as_recorded(IndexMismatch):
        choose_fields(fields, None, title="absent")
    with raises_as_recorded(IndexMismatch):
        choose_fields(field_statistics(documents(), ["topic", "url"]), None)
    with raises_as_recorded(IndexMismatch):
        choose_fields(fields, None, title="body", body=["body"])
