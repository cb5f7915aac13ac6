"""Options of a search, the same for every method of `SemanticIndex` and `AsyncSemanticIndex`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.protocol import Json
from es_sbert.errors import UsageError
from es_sbert.search.filters import check_query
from es_sbert.search.page import Page
from es_sbert.search.vector_query import check_k

# Far beyond what any model reads of a text, and far below what would keep its tokenizer busy.
MAX_CHARACTERS = 100_000


class OpenOptions(TypedDict, total=False):
    """Keyword arguments that open an index for searches, see `SemanticIndex`."""

    model: str | None
    encoder: Encoder | None
    vector_field: str | Sequence[str]
    device: str
    precision: str
    threads: int | None
    report: Callable[[str], None]


class SearchOptions(TypedDict, total=False):
    """Keyword arguments of a search; all may be left out.

    Attributes:
        filter: Query in the engine's language that every hit must match; applied during the search.
        exact: Compare with every vector instead of searching the graph.
        num_candidates: Vectors each shard looks at; more is slower and misses less. Default: twice k, at least 100.
        oversample: On a quantised index type: the nearest `oversample * k` are compared again by float32 vectors;
            the default suits the type (`es-sbert index recall` measures it).
        min_cosine: Documents below it are no hits.
        boosts: By vector field, where several are searched: what the score of each is multiplied by.
        size, offset, source, highlight, aggregations, sort: What is shown of the k hits, see `Page`.
    """

    filter: Json | None
    exact: bool
    num_candidates: int | None
    oversample: float | None
    min_cosine: float | None
    boosts: Mapping[str, float] | None
    size: int | None
    offset: int
    source: Sequence[str] | bool | None
    highlight: Sequence[str] | Json | None
    aggregations: Json | None
    sort: Sequence[str | Json] | None


@dataclass(frozen=True)
class Asked:
    """The options of one search, see `SearchOptions`, with k."""

    k: int = 10
    filter: Json | None = None
    exact: bool = False
    num_candidates: int | None = None
    oversample: float | None = None
    min_cosine: float | None = None
    boosts: Mapping[str, float] = field(default_factory=dict)
    page: Page = field(default_factory=Page)

    @classmethod
    def of(cls, k: int, options: SearchOptions) -> Asked:
        """Options as they were given.

        Raises:
            UsageError: an option that does not exist, or a value out of range.
        """
        check_k(k)
        unknown = options.keys() - SearchOptions.__annotations__.keys()
        if unknown:
            raise UsageError(
                f"there is no option {', '.join(sorted(unknown))}",
                f"Options of a search are {', '.join(SearchOptions.__annotations__)}.",
            )
        if options.get("filter") is not None:
            check_query(options["filter"], "the filter")
        page = Page(
            size=options.get("size"), offset=options.get("offset", 0), source=options.get("source"),
            highlight=options.get("highlight"), aggregations=options.get("aggregations"), sort=options.get("sort"),
        )  # fmt: skip
        return cls(
            k=k, filter=options.get("filter"), exact=options.get("exact", False),
            num_candidates=options.get("num_candidates"), oversample=options.get("oversample"),
            min_cosine=options.get("min_cosine"), boosts=options.get("boosts") or {}, page=page,
        )  # fmt: skip


def check_text(text: object) -> None:
    """Refuse what is no text to search by.

    Raises:
        UsageError: no text, an empty one, or one beyond `MAX_CHARACTERS`.
    """
    if not isinstance(text, str):
        raise UsageError(f"the text to search for is {type(text).__name__}, not a text", "Give a str.")
    if not text.strip():
        raise UsageError("the text to search for is empty", "Give some words to search by.")
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"the text to search for has {len(text):,} characters",
            f"Give at most {MAX_CHARACTERS:,}; a model reads only the beginning anyway.",
        )
