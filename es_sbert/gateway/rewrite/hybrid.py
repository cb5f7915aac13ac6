"""Plain full-text queries on an embedded text, found to be searched by meaning too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from es_sbert.engines.protocol import Flavour, Json
from es_sbert.gateway.rewrite.compound import as_list, kind_of, opened
from es_sbert.gateway.rewrite.semantic import Semantic, Way
from es_sbert.gateway.rewrite.texts import words
from es_sbert.gateway.settings import Limits, Meaning
from es_sbert.gateway.targets import FieldNames, FieldTarget
from es_sbert.search.hybrid_requests import DEFAULT_WEIGHTED

_OF_ONE_FIELD = frozenset({"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"})
_OF_SEVERAL = frozenset({"multi_match", "combined_fields", "simple_query_string"})
_BOOST = re.compile(r"\^[\d.]+$")


def semantic_weight(meaning: Meaning, flavour: Flavour) -> float:
    """What a cosine score of 1 counts beside BM25: as the operator says, or as was measured to be best."""
    usual = DEFAULT_WEIGHTED[flavour]
    return meaning.semantic_weight or usual.semantic / usual.lexical


class Hybrid:
    """Finds the full-text queries that mean a text with a vector.

    An application writes one box's words into several queries (exact words, prefixes, phrases) under one bool; meaning
    is added once, around all of them, not to each.

    Args:
        names: What fields of the request's indices are called.
        meaning, limits: The operator's.
        weight: What a cosine score of 1 counts beside BM25.
    """

    def __init__(self, names: FieldNames, meaning: Meaning, limits: Limits, weight: float) -> None:
        self._names = names
        self._weight = weight
        self._meaning = meaning
        self._limits = limits
        # By identity, the query kept beside: bools inside bools are asked again at every level.
        self._known: dict[int, tuple[Json, tuple[str, FieldTarget] | None]] = {}

    def meaning_of(self, node: Json) -> Semantic | None:
        """What a query asks for, where all of it asks for one text; None where it is something else.

        A text that cannot be embedded (empty, too long) is left to full-text search: nobody asked for meaning.

        Raises:
            IndexMismatch: the indices hold vectors of different models.
        """
        found = self._asked(node)
        if found is None:
            return None
        text, target = found
        if not text.strip() or len(text) > self._limits.query_characters:
            return None
        meaning = self._meaning
        return Semantic(target, text, meaning.k, min_cosine=meaning.min_cosine, num_candidates=meaning.num_candidates,
                        boost=self._weight, way=Way.HYBRID)  # fmt: skip

    def _asked(self, node: Json) -> tuple[str, FieldTarget] | None:
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._read(node)
        return known[1]

    def _read(self, node: Json) -> tuple[str, FieldTarget] | None:
        query = kind_of(opened(node))
        if query is None:
            return None
        kind, said = query
        if kind in _OF_ONE_FIELD and len(said) == 1:
            [(field, wanted)] = said.items()
            return self._text(wanted.get("query") if isinstance(wanted, dict) else wanted, [field])
        if kind in _OF_SEVERAL:
            fields = said.get("fields", ["*"])
            return self._text(said.get("query"), fields if isinstance(fields, list) else [fields])
        if kind == "dis_max":
            return self._same(as_list(said.get("queries")))
        if kind == "bool" and set(said) <= {"must", "should", "minimum_should_match", "boost"}:
            return self._same([*as_list(said.get("must")), *as_list(said.get("should"))])
        return None

    def _same(self, nodes: Sequence[Json]) -> tuple[str, FieldTarget] | None:
        found = [self._asked(node) for node in nodes]
        if not found or found[0] is None or any(other != found[0] for other in found):
            return None
        return found[0]

    def _text(self, value: Any, fields: Sequence[Any]) -> tuple[str, FieldTarget] | None:
        text = words(value)
        if not isinstance(text, str):
            return None
        for written in fields:
            if isinstance(written, str) and (target := self._target(_BOOST.sub("", written))) is not None:
                return text, target
        return None

    def _target(self, written: str) -> FieldTarget | None:
        """The vector field of a text field as queries write it: `title`, `title.ngram` (a multi-field), `ti*`."""
        if "*" in written:
            matching = (field for field in self._names.texts() if fnmatchcase(field, written))
            field = next(matching, None)
            return None if field is None else self._names.of_text(field)
        target = self._names.of_text(written)
        if target is None and "." in written:
            return self._names.of_text(written.rpartition(".")[0])
        return target
