"""Full-text queries over several fields, one of them the virtual one, as one query a field."""

from __future__ import annotations

import re
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.gateway.rewrite.compound import kind_of
from es_sbert.gateway.rewrite.query_string import as_bool
from es_sbert.gateway.rewrite.semantic import Reader

_OF_SEVERAL = frozenset({"multi_match", "combined_fields", "query_string", "simple_query_string"})
_BOOSTED = re.compile(r"^(?P<field>.+?)\^(?P<boost>\d+(?:\.\d+)?)$")
# Characters that simple_query_string reads as operators; they are no words to search by.
_OPERATORS = re.compile(r'[+|"()~*\\]|(?<!\S)-')


def spelled_out(node: Json, reader: Reader) -> Json:
    """A query over several fields as a bool of queries over one; the very same object where no field is virtual.

    Raises:
        BadRequest: Lucene syntax that cannot be read.
    """
    found = kind_of(node)
    if found is None or found[0] not in _OF_SEVERAL:
        return node
    kind, said = found
    virtual, others = _split(said, reader)
    if virtual:
        text = said.get("query")
        if kind.endswith("query_string") and isinstance(text, str):
            text = " ".join(_OPERATORS.sub(" ", text).split()) or text
        should: list[Json] = [_match(field, boost, text, said) for field, boost in virtual]
        if others:
            rest = {name: value for name, value in said.items() if name not in ("default_field", "fields", "_name")}
            should.append({kind: rest | {"fields": others}})
        return {"bool": {"should": should, "minimum_should_match": 1} | _named(said)}
    if kind == "query_string":
        return as_bool(node, said, reader)
    return node


def _split(said: Json, reader: Reader) -> tuple[list[tuple[str, float]], list[str]]:
    """The virtual fields with their boosts, and the others as they were written."""
    fields: Any = said.get("fields", said.get("default_field"))
    if isinstance(fields, str):
        fields = [fields]
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        return [], []
    virtual: list[tuple[str, float]] = []
    others: list[str] = []
    for written in fields:
        boosted = _BOOSTED.match(written)
        field, boost = (boosted["field"], float(boosted["boost"])) if boosted else (written, 1.0)
        if reader.names.virtual(field) is None:
            others.append(written)
        else:
            virtual.append((field, boost))
    return virtual, others


def _match(field: str, boost: float, text: object, said: Json) -> Json:
    own = said.get("boost", 1.0)
    factor = own if isinstance(own, int | float) and not isinstance(own, bool) else 1.0
    return {"match": {field: {"query": text, "boost": boost * factor}}}


def _named(said: Json) -> Json:
    return {"_name": said["_name"]} if "_name" in said else {}
