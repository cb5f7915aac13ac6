"""Choose the fields of an index for pairs of query and text: a title, and the text with that title."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.index.text_template import TITLE_FIELDS, TextTemplate

_TITLE_WORDS = (2, 20)  # median number of words
_BODY_WORDS = 8
# Minimum share of documents with text in the field, and of distinct texts among them.
_MIN_SHARE, _MIN_DISTINCT = 0.5, 0.5


@dataclass(frozen=True)
class FieldStatistics:
    """Statistics of a field in a sample of documents.

    Attributes:
        name: The field, dotted if it is nested.
        share: Share of the documents that have text in it.
        words: Median number of words of these texts.
        distinct: Number of different texts divided by the number of texts.
    """

    name: str
    share: float
    words: float
    distinct: float

    def __str__(self) -> str:
        return f"{self.name} ({self.words:,.0f} words, in {self.share:.0%} of the documents)"


@dataclass(frozen=True)
class FieldChoice:
    """The fields of pairs.

    Attributes:
        title: The field whose text is the query; None makes the first sentence of the body the query.
        body: The fields of the text, at least one.
    """

    title: str | None
    body: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields."""
        return self.body if self.title is None else (self.title, *self.body)


def field_statistics(
    documents: Sequence[Json], names: Sequence[str], embedded: TextTemplate | None = None
) -> list[FieldStatistics]:
    """Compute statistics of the text fields in a sample of documents; fields without text are left out.

    Args:
        documents: The documents.
        names: The fields.
        embedded: The text that the index embeds, whose filters apply to its fields; None if that is not known.
    """
    found = []
    for name in names:
        template = (embedded or TextTemplate("", ())).of_fields([name])
        texts = [text for document in documents if (text := template.readable_text(document).strip())]
        if texts:
            words = statistics.median(len(text.split()) for text in texts)
            found.append(FieldStatistics(name, len(texts) / len(documents), words, len(set(texts)) / len(texts)))
    return found


def choose_fields(
    fields: Sequence[FieldStatistics],
    embedded: TextTemplate | None,
    *,
    title: str | None = None,
    body: Sequence[str] = (),
    use_title: bool = True,
) -> FieldChoice:
    """Choose title and body.

    The body is the text that the index embeds, or else the field with the longest texts. The title is a field with
    short texts that differ between documents. It is not in the body, or is one of several fields of the embedded text.
    Among several such fields, a common name such as `title` decides.

    Args:
        fields: Text fields of the index.
        embedded: The text that the index embeds, if that is known.
        title, body: Fields that the user has chosen.
        use_title: Whether a title may be chosen; otherwise it is None.

    Raises:
        IndexMismatch: a field that was chosen has no text, or no field has texts long enough for a body.
    """
    by_name = {field.name: field for field in fields}
    missing = [name for name in (*body, *([title] if title else [])) if name not in by_name]
    if missing:
        raise IndexMismatch(
            f"no document of the sample has text in {', '.join(missing)}",
            f"Use one of the fields with text: {', '.join(by_name) or 'there is none'}.",
        )
    texts = list(body) or ([name for name in embedded.fields if name in by_name] if embedded else [])
    if not texts:
        long = [field for field in fields if field.words >= _BODY_WORDS and field.share >= _MIN_SHARE]
        if not long:
            raise IndexMismatch(
                f"no field holds texts of {_BODY_WORDS} words or more in at least {_MIN_SHARE:.0%} of the documents",
                "Set `body_fields` to the field of the text.",
            )
        texts = [max(long, key=lambda field: field.words).name]
    if title is None and use_title:
        title = _choose_title(by_name, texts, keep=bool(body))
    body_fields = tuple(name for name in texts if name != title)
    if not body_fields:
        raise IndexMismatch(f"{title} is both title and body", "Set a different `title_field` or `body_fields`.")
    return FieldChoice(title, body_fields)


def _choose_title(by_name: Mapping[str, FieldStatistics], texts: Sequence[str], *, keep: bool) -> str | None:
    """Find the field of titles, or None; a body field only if another one remains and the body may change."""
    longest = max(by_name[name].words for name in texts)
    may_lose = len(texts) > 1 and not keep
    fitting = [
        field
        for field in by_name.values()
        if (field.name not in texts or may_lose) and _title_problem(field, longest) is None
    ]

    def preference(field: FieldStatistics) -> tuple[int, bool, float]:
        last = field.name.rpartition(".")[2].lower()
        named = TITLE_FIELDS.index(last) if last in TITLE_FIELDS else len(TITLE_FIELDS)
        return named, field.name not in texts, -field.distinct

    return min(fitting, key=preference).name if fitting else None


def _title_problem(field: FieldStatistics, longest: float) -> str | None:
    """Explain why a field is unsuitable as the title; None if it is suitable.

    Args:
        field: The field.
        longest: Median number of words of the longest field of the body.
    """
    fewest, most = _TITLE_WORDS[0], min(_TITLE_WORDS[1], longest / 2)
    if not fewest <= field.words <= most:
        return f"its texts have {field.words:,.0f} words, not {fewest} to {most:,.0f}"
    if field.share < _MIN_SHARE:
        return f"only {field.share:.0%} of the documents have it"
    return None if field.distinct >= _MIN_DISTINCT else f"only {field.distinct:.0%} of its texts are distinct"


def unsuitable_titles(fields: Sequence[FieldStatistics], choice: FieldChoice) -> list[str]:
    """Explain why fields with the name of a title are not the title, if no field is."""
    longest = max(field.words for field in fields if field.name in choice.body)
    return [
        f"{field.name} is not used as the title, since {problem}; to use it, set `title_field`"
        for field in fields
        if choice.title is None and field.name in TITLE_FIELDS and field.name not in choice.body
        if (problem := _title_problem(field, longest)) is not None
    ]
