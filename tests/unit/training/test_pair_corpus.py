"""Pairs of documents: no query is in its own text, and no text or query of one part is in another."""

from __future__ import annotations

import pytest

from es_sbert.errors import SourceError
from es_sbert.evaluation.judgement_files import LabeledQuery
from es_sbert.index.document_sample import SampledDocument
from es_sbert.index.text_template import TextTemplate
from es_sbert.training.example_augmentation import normalized_text
from es_sbert.training.pair_corpus import (
    MIN_HELD_OUT,
    FieldChoice,
    PairDocument,
    QueryPair,
    build_corpus,
    labeled_pairs,
    near_duplicates,
    sentence_problem,
    split_queries,
    split_sentence,
    strip_heading,
)
from tests.raised import raises_as_recorded


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("Why cats purr\n\nA cat purrs when", "A cat purrs when"),
        ("WHY  cats purr. A cat purrs", "A cat purrs"),
        ("Why cats purr: A cat purrs", "A cat purrs"),
        ("Why cats purr is not known.", "Why cats purr is not known."),
    ],
)
def test_heading_is_removed_and_a_sentence_stays(text: str, rest: str) -> None:
    assert strip_heading("Why cats purr", text) == rest


def corpus_of(
    choice: FieldChoice, template: str, *sources: dict[str, object]
) -> tuple[list[PairDocument], dict[str, int]]:
    documents = [SampledDocument((str(number), None), source) for number, source in enumerate(sources)]
    return build_corpus(documents, choice, TextTemplate.parse(template))


def test_pairs_have_the_text_that_the_index_embeds() -> None:
    source = {"subject": "Bread &amp; <i>butter</i>", "body": "<p>Bread &amp; butter</p><p>A meal of flour."}
    template = "{subject|strip_html}. {body|strip_html}"
    [document], left_out = corpus_of(FieldChoice("subject", ("body",)), template, source)
    assert (document.query, document.text) == ("Bread & butter", "A meal of flour.")
    assert document.full_text == "Bread & butter. Bread & butter\n\nA meal of flour."
    assert not left_out


def test_title_is_not_in_the_text_that_it_finds() -> None:
    documents, left_out = corpus_of(
        FieldChoice("title", ("body",)),
        "{title}. {body}",
        {"title": "Ada Lovelace", "body": "Ada Lovelace wrote programs."},
        {"title": "Five ways to bake bread", "body": "We show five ways to bake  bread at home."},
        {"title": "Bread", "body": "Bread\nis flour and water"},
        {"title": "Only this", "body": "Only this"},
        {"body": "Without a title"},
        {"title": "Without a body"},
        {"title": "A number", "body": 7},
    )
    assert [(document.query, document.text) for document in documents] == [
        # A name of two words is what people search for, and texts do repeat it.
        ("Ada Lovelace", "Ada Lovelace wrote programs."),
        (None, "We show five ways to bake  bread at home."),
        ("Bread", "is flour and water"),
        (None, "Only this"),
        (None, "Without a title"),
    ]
    assert documents[0].full_text == "Ada Lovelace. Ada Lovelace wrote programs."
    assert left_out == {
        "whose text repeats the title word for word": 1,
        "whose text is only the title": 1,
        "without a title": 1,
        "without text": 2,
    }


def test_first_sentence_is_not_in_the_rest() -> None:
    assert split_sentence("A cat purrs at night. Nobody knows why.") == ("A cat purrs at night.", "Nobody knows why.")
    assert split_sentence("A cat purrs at night.") == (None, "A cat purrs at night.")
    repeated = "A cat purrs at night. It is so: a cat purrs at night. And by day."
    assert split_sentence(repeated) == (None, "It is so: a cat purrs at night. And by day.")
    assert sentence_problem(["One sentence only"]) == "only 0% of the texts have a first sentence with text after it"
    documents, left_out = corpus_of(FieldChoice(None, ("text",)), "{text}", {"text": "One sentence only"})
    assert (documents[0].query, left_out) == (None, {"with a text of one sentence": 1})


def documents_of(count: int) -> list[PairDocument]:
    return [
        PairDocument(f"d{number}", f"query {number}", f"text {number}", f"whole {number}") for number in range(count)
    ]


def test_split_has_no_text_or_query_in_two_parts() -> None:
    documents = documents_of(400)
    # The last documents repeat a text of the held-out part, a query of it, and a text of the dev part.
    documents += [
        PairDocument("e0", "another query", " TEXT 3", ""),
        PairDocument("e1", "Query  5", "another text", ""),
        PairDocument("e2", "a third query", "text 90", ""),
    ]
    split = split_queries(documents, held_out=60, most_trained=1000)
    assert (len(split.held_out), split.dropped) == (60, 3)
    parts = [
        {query.text for query in split.held_out}
        | {documents[row].text for query in split.held_out for row in query.rows},
        *(
            {pair.query for pair in pairs} | {documents[pair.row].text for pair in pairs}
            for pairs in (split.dev, split.train)
        ),
    ]
    held_out, dev, train = ({normalized_text(text) for text in part} for part in parts)
    assert not held_out & dev
    assert not held_out & train
    assert not dev & train
    # Documents with the same text, or the same title, are as relevant as the query's own.
    rows = {query.text: query.rows for query in split.held_out}
    assert rows["query 3"] == (3, 400)
    assert rows["query 5"] == (5, 401)
    assert len(split_queries(documents, held_out=60, most_trained=70).train) == 70


def test_labeled_queries_replace_those_of_documents() -> None:
    documents = documents_of(100)
    labeled = [LabeledQuery(f"a question {number}", (f"d{number}", "gone")) for number in range(30)]
    labeled += [LabeledQuery("no document", ("gone",)), LabeledQuery("query 50", ("d50",))]
    extra = labeled_pairs([LabeledQuery("from a log", ("d1", "d2")), LabeledQuery("A question 3", ("d9",))], documents)
    split = split_queries(documents, held_out=500, most_trained=1000, labeled=labeled, extra=extra)
    assert [query.rows for query in split.held_out] == [*((number,) for number in range(30)), (50,)]
    # The titles of all documents are trained on, but for one that is a held-out query too.
    assert len(split.train) + len(split.dev) == 100 - 1 + 2
    assert split.train[:2] == (QueryPair("from a log", 1), QueryPair("from a log", 2))
    assert split.dropped == 2


def test_too_few_pairs_are_refused() -> None:
    with raises_as_recorded(SourceError):
        split_queries(documents_of(5 * MIN_HELD_OUT - 1), held_out=500, most_trained=1000)
    with raises_as_recorded(SourceError):
        split_queries(documents_of(200), held_out=40, most_trained=49)


def test_near_duplicates_of_held_out_documents_are_not_trained_on() -> None:
    long = "A cat purrs when it is content, but also when it is hurt: the low hum seems to calm it."
    edited = long.replace("content", "happy").upper() + " So it is."
    other = "A cat purrs when it is hungry, and nobody knows what to do about it in the morning at five."
    unspaced = [
        "猫は満足しているときに喉を鳴らします。怪我をしたときも同じです。",
        "猫は満足している時に喉を鳴らします。怪我をしたときも同じです。",
    ]
    texts = [long, unspaced[0], edited, other, unspaced[1], "a cat", "A  cat", ""]
    assert near_duplicates(texts, {0, 1}) == {2, 4}
    assert near_duplicates(texts, {5}) == {6}
    assert near_duplicates(texts, set()) == frozenset()
    documents = documents_of(200)
    documents[3] = PairDocument("d3", "query 3", long, long)
    documents[150] = PairDocument("d150", "query 150", edited, edited)
    split = split_queries(documents, held_out=20, most_trained=1000)
    assert split.excluded == {*range(20), 150}
    assert (split.dropped, 150 in {pair.row for pair in split.train}) == (1, False)
