"""A whole search, from what is asked for to the bodies to send and a reader of the answers. No input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from es_sbert.encoder.types import Vectors
from es_sbert.engines.protocol import Flavour, Json
from es_sbert.errors import UsageError
from es_sbert.search.answers import Reader
from es_sbert.search.hybrid import nearest_clause
from es_sbert.search.options import Asked
from es_sbert.search.queries import search_body
from es_sbert.search.results import Found, SearchResult
from es_sbert.search.scores import Method
from es_sbert.search.searched import Searched
from es_sbert.search.vector_query import VectorQuery

Result = TypeVar("Result", bound=Found, covariant=True)  # type: ignore[type-arg]


@dataclass(frozen=True)
class Request(Generic[Result]):
    """A search ready to be sent.

    Attributes:
        indices: Where.
        bodies: One for `_search`, several for `_msearch`.
        method: How the nearest are found.
        named_scores: Whether hits must tell the scores of named clauses.
        read: From the answers, in the order of the bodies, to the result.
    """

    indices: tuple[str, ...]
    bodies: tuple[Json, ...]
    method: Method
    named_scores: bool
    read: Callable[[Sequence[Json]], Result]


def search_request(flavour: Flavour, searched: Searched, vectors: Mapping[str, Vectors], asked: Asked,
                   text: str | None = None) -> Request[SearchResult]:  # fmt: skip
    """A search for the nearest vectors.

    Args:
        vectors: By vector field, what is searched for, each of *shape* ``(dimensions,)``.
        text: What they stand for, where it is a text.

    Raises:
        UsageError: see `VectorQuery` and `Page`; a sort over more than the nearest.
    """
    method = searched.method(flavour, asked.exact)
    asked = replace(asked, filter=searched.narrowed(asked.filter))
    queries = vector_queries(searched, vectors, asked, asked.k)
    check_sort(method, asked)
    page = asked.page.body(flavour, asked.k, searched.names, text)
    several = len(queries) > 1
    if several:
        body: Json = {"query": nearest_clause(flavour, method, queries)} | page
    else:
        body = search_body(flavour, method, queries[0]) | page
    reader = Reader(flavour, method, searched, queries)
    return Request(searched.indices, (body,), method, several, lambda answers: reader.found(answers[0], named=several))


def vector_queries(searched: Searched, vectors: Mapping[str, Vectors], asked: Asked, k: int) -> list[VectorQuery]:
    """One query for each vector field.

    Raises:
        UsageError: a vector of another length, a boost of a field that is not searched, or a value out of range.
    """
    strange = asked.boosts.keys() - set(searched.names)
    if strange:
        raise UsageError(
            f"{', '.join(sorted(strange))} is not among the vector fields that are searched",
            f"Give boosts to {', '.join(searched.names)}.",
        )
    queries = []
    for name in searched.names:
        meta = searched.meta(name)
        with np.errstate(over="ignore"):  # what is infinite as float32 is refused below
            vector = np.asarray(vectors[name], dtype=np.float32)
        if vector.shape != (meta.dimensions,):
            raise UsageError(
                f"the query vector has the shape {vector.shape}, the field's vectors ({meta.dimensions},)",
                f"Make it with the model {meta.model}.",
            )
        queries.append(VectorQuery(
            name, vector, k, asked.filter, asked.num_candidates, searched.oversample(name, asked.oversample),
            passages=meta.passages is not None, min_cosine=asked.min_cosine, boost=asked.boosts.get(name, 1.0),
            inner_hits=name,
        ))  # fmt: skip
    return queries


def check_sort(method: Method, asked: Asked) -> None:
    """Refuse to sort what is more than the nearest.

    Raises:
        UsageError: an exact search, which finds all documents, sorted by something else and without a minimum cosine.
    """
    if asked.page.sort is not None and method is Method.EXACT and asked.min_cosine is None:
        raise UsageError(
            "an exact search finds every document, so the first by another order say nothing about the query",
            "Give min_cosine as well, or leave sort out and sort the hits.",
        )
