"""What the page may ask of the gateway, checked."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.wire.json_bodies import NotPlainJson, parse_object

MOST_DOCUMENTS = 1000
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Asked = TypeVar("Asked", bound=_Request)


class Document(_Request):
    """A document's place."""

    index: Name
    id: Name


class BodyRequest(_Request):
    """A search as callers of the gateway write it, to be shown in the engine's words.

    Attributes:
        index: Where it searches.
        body: Of `_search`.
    """

    index: Name
    body: dict[str, Any]


class LikeRequest(_Request):
    """A query for documents that are near another one.

    Attributes:
        index: Where to search.
        field: The vector field.
        document: The other one, which itself is no hit.
        k: How many, a shard.
        filter: Queries that all hits must match.
    """

    index: Name
    field: Name
    document: Document
    k: int
    filter: tuple[dict[str, Any], ...] = ()


class MapRequest(_Request):
    """Hits to be drawn, around what was searched for: a text or a document.

    Attributes:
        index: Through which the hits were found.
        field: The vector field.
        query: A text.
        document: A document in its place.
        hits: Their places.
    """

    index: Name
    field: Name
    query: str | None = None
    document: Document | None = None
    hits: tuple[Document, ...] = Field(max_length=MOST_DOCUMENTS)

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if (self.query is None) == (self.document is None):
            raise ValueError("give query or document")
        return self


def read(kind: type[Asked], raw: bytes) -> Asked:
    """A request's body.

    Raises:
        BadRequest: it is something else.
    """
    try:
        return kind.model_validate(parse_object(raw))
    except NotPlainJson as error:
        raise BadRequest(f"the body is no JSON object: {error}", "Open the page anew.") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise BadRequest(
            f"{where}: {first['msg']}", "Open the page anew: the gateway may be of another version."
        ) from None
