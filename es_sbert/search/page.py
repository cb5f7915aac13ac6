"""What a search shows of the documents it finds: which of them, which of their fields, highlights, aggregations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import UsageError

# How much of a text is looked through for words to mark. Where nobody says, one longer document fails the whole search.
MARKED_CHARACTERS: dict[Flavour, Json] = {
    Flavour.ELASTICSEARCH: {"max_analyzed_offset": 1_000_000},
    Flavour.OPENSEARCH: {"max_analyzer_offset": 1_000_000},
}


@dataclass(frozen=True)
class Page:
    """A part of the k documents that a search finds.

    Attributes:
        size: Hits to show; None for all k.
        offset: Hits to leave out before them.
        source: Fields of the documents (names or patterns); None for all, False for none. Vectors are never among them.
        highlight: Fields whose words of the query are marked; or the engine's own `highlight`.
        aggregations: The engine's own `aggs`, over the documents that the search matches (`queries` says which).
        sort: The engine's own `sort`, among the documents that are found; None for the nearest first.
    """

    size: int | None = None
    offset: int = 0
    source: Sequence[str] | bool | None = None
    highlight: Sequence[str] | Json | None = None
    aggregations: Json | None = None
    sort: Sequence[str | Json] | None = None

    def __post_init__(self) -> None:
        if self.offset < 0 or (self.size is not None and self.size < 0):
            raise UsageError(
                f"offset is {self.offset} and size {self.size}", "Give numbers of hits: to leave out, and to show."
            )
        for name in ("source", "highlight", "sort"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise UsageError(f"{name} is a text", f"Give a list of fields: [{given!r}].")
            if isinstance(given, Mapping) and name != "highlight":
                like = [given] if name == "sort" else ["title"]
                raise UsageError(f"{name} is one object", f"Give a list: {like!r}.")

    def within(self, k: int) -> tuple[int, int]:
        """Offset and size among the k hits.

        Raises:
            UsageError: the page goes beyond them.
        """
        size = max(0, k - self.offset) if self.size is None else self.size
        if self.offset + size > k or (self.offset >= k and size == 0 and self.offset > 0):
            raise UsageError(
                f"hits {self.offset + 1} to {self.offset + (self.size or 1)} are asked for, of the {k} nearest",
                "Raise k to at least the last of them: a vector search finds k documents and no more.",
            )
        return self.offset, size

    def body(self, flavour: Flavour, k: int, vector_fields: Sequence[str], text: str | None) -> Json:
        """The part of a request body that says so.

        Args:
            text: The words to highlight.

        Raises:
            UsageError: the page goes beyond k, or there are no words to highlight.
        """
        offset, size = self.within(k)
        body: Json = {"size": size, "_source": self._source(vector_fields)}
        if offset:
            body["from"] = offset
        if self.highlight is not None:
            body["highlight"] = self._highlight(flavour, text)
        if self.aggregations is not None:
            body["aggs"] = self.aggregations
        if self.sort is not None:
            # Without them sorted hits have no scores, and so no cosines.
            body |= {"sort": list(self.sort), "track_scores": True}
        return body

    @property
    def plain(self) -> bool:
        """Whether it asks for nothing that only the engine itself can do over all that it finds."""
        return self.aggregations is None and self.sort is None

    def _source(self, vector_fields: Sequence[str]) -> Json | bool:
        if self.source is not None and not self.source:
            return False  # to the engines an empty list of fields means all of them
        excludes: Json = {"excludes": list(vector_fields)}
        if self.source is None or self.source is True:
            return excludes
        return {"includes": list(self.source), **excludes}

    def _highlight(self, flavour: Flavour, text: str | None) -> Json:
        if isinstance(self.highlight, Mapping):
            return dict(self.highlight)
        if text is None:
            raise UsageError(
                "a search without a text has no words to highlight",
                "Leave highlight out, or give the engine's own with a highlight_query.",
            )
        # A vector search itself knows no words.
        fields = {field: {"highlight_query": {"match": {field: text}}} for field in self.highlight or ()}
        return MARKED_CHARACTERS[flavour] | {"fields": fields}
