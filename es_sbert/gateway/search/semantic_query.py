"""Parsing of a single semantic query: `match` on the virtual field, `knn` with `query_vector_builder`, `neural`,
`semantic`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import FieldResolver, ResolvedField
from es_sbert.gateway.settings import Limits, SemanticSettings
from es_sbert.io.text_formats import json_type_name
from es_sbert.search.vector_query import MAX_K

# Full-text queries of one field, which a virtual field understands alike: Kibana sends a phrase for quoted words.
_SINGLE_FIELD_QUERIES = frozenset({"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"})


class SemanticSyntax(StrEnum):
    """How a search by meaning is asked for."""

    VIRTUAL_FIELD = "virtual_field"
    TEXT_EMBEDDING = "text_embedding"
    SEMANTIC = "semantic"
    NEURAL = "neural"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class SemanticQuery:
    """A query by meaning.

    Attributes:
        target: The vector field.
        text: What is looked for.
        k: Documents to keep.
        filter: What they must match, as the query itself says.
        min_cosine: Documents less near are no hits.
        num_candidates: Vectors that each shard looks at; None is what suits k.
        boost: Factor of the score.
        name: The query's `_name`.
        way: How it was asked.
    """

    target: ResolvedField
    text: str
    k: int
    filter: Json | None = None
    min_cosine: float | None = None
    num_candidates: int | None = None
    boost: float = 1.0
    name: str | None = None
    way: SemanticSyntax = SemanticSyntax.SEMANTIC

    @property
    def virtual(self) -> bool:
        """Whether it was asked by the virtual field, which knows no difference between filter and query."""
        return self.way is SemanticSyntax.VIRTUAL_FIELD


class SemanticQueryParser:
    """Recognises queries by meaning.

    Args:
        names: What fields of the request's indices are called.
        meaning, limits: The operator's.
        check: Told how many semantic queries there are, each time that another one is found; may refuse them.
    """

    def __init__(
        self,
        names: FieldResolver,
        meaning: SemanticSettings,
        limits: Limits,
        check: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.names = names
        self.meaning = meaning
        self.max_text_characters = limits.query_characters
        self._check = check
        self._found = 0
        # By identity: a request is read several times. Each query is kept beside what it says.
        self._known: dict[int, tuple[Json, SemanticQuery | None]] = {}

    def read(self, node: Json) -> SemanticQuery | None:
        """What a query asks by meaning; None where it is one for the engine alone.

        Raises:
            BadRequest: it asks for something that cannot be.
            IndexMismatch: by another model than the field's, or in fields of different models.
        """
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._read(node)
            if known[1] is not None:
                self._found += 1
                self._check(self._found)
        return known[1]

    def _read(self, node: Json) -> SemanticQuery | None:
        if len(node) != 1:
            return None
        [(kind, said)] = node.items()
        if not isinstance(said, dict):
            return None
        if kind in _SINGLE_FIELD_QUERIES:
            return self._full_text(kind, said)
        if kind == "term":
            return self._term(said)
        if kind == "knn":
            return self._knn(said)
        if kind == "neural":
            return self._neural(said)
        if kind == "semantic":
            return self._semantic(said)
        return None

    def text(self, value: object, where: str) -> str:
        return parse_query_text(value, where, self.max_text_characters)

    def _full_text(self, kind: str, said: Json) -> SemanticQuery | None:
        if len(said) != 1:
            return None
        [(field, wanted)] = said.items()
        target = self.names.virtual(field)
        if target is None:
            return None
        return self._of_text(target, kind, field, wanted if isinstance(wanted, dict) else {"query": wanted})

    def _term(self, said: Json) -> SemanticQuery | None:
        """One text as a whole, which applications look up in fields that they take for keywords."""
        fields = {field: wanted for field, wanted in said.items() if field not in ("boost", "_name")}
        if len(fields) != 1:
            return None
        [(field, wanted)] = fields.items()
        target = self.names.virtual_only(field)
        if target is None:
            return None
        options = wanted if isinstance(wanted, dict) else {"value": wanted}
        return self._of_text(target, "term", field, said | options | {"query": options.get("value")})

    def _of_text(self, target: ResolvedField, kind: str, field: str, options: Json) -> SemanticQuery:
        where = f"{kind} on {field}"
        if options.get("fuzziness", 0) not in (0, "0"):
            raise BadRequest("a semantic query has a fuzziness, which is for letters of words", "Leave fuzziness out.")
        return SemanticQuery(
            target=target,
            text=self.text(scalar_as_text(options.get("query")), where),
            k=positive_integer(options.get("k", self.meaning.k), f"k of {where}", MAX_K),
            min_cosine=_cosine_or_none(options.get("min_cosine", self.meaning.min_cosine), f"min_cosine of {where}"),
            num_candidates=self.meaning.num_candidates,
            boost=_boost(options, where),
            name=_name(options),
            way=SemanticSyntax.VIRTUAL_FIELD,
        )

    def _knn(self, said: Json) -> SemanticQuery | None:
        builder = said.get("query_vector_builder")
        field = said.get("field")
        if not isinstance(builder, dict) or not isinstance(builder.get("text_embedding"), dict):
            return None
        target = self._field(field)
        if target is None:
            return None
        wanted: Json = builder["text_embedding"]
        _check_model(target, wanted.get("model_id"))
        where = f"query_vector_builder of knn on {field}"
        k = positive_integer(said.get("k", self.meaning.k), f"k of knn on {field}", MAX_K)
        candidates = said.get("num_candidates")
        return SemanticQuery(
            target=target,
            text=self.text(wanted.get("model_text"), where),
            k=k,
            filter=_filter(said.get("filter")),
            min_cosine=_cosine_or_none(said.get("similarity"), f"similarity of knn on {field}"),
            num_candidates=None
            if candidates is None
            else max(k, positive_integer(candidates, "num_candidates", MAX_K)),
            boost=_boost(said, where),
            name=_name(said),
            way=SemanticSyntax.TEXT_EMBEDDING,
        )

    def _neural(self, said: Json) -> SemanticQuery | None:
        fields = {
            field: wanted for field, wanted in said.items() if isinstance(wanted, dict) and "query_text" in wanted
        }
        if len(fields) != 1:
            return None
        [(field, wanted)] = fields.items()
        target = self._field(field)
        if target is None:
            return None
        _check_model(target, wanted.get("model_id"))
        where = f"neural on {field}"
        least = None
        if "min_score" in wanted:
            # OpenSearch's score of a cosine, see es_sbert.search.vector_query.
            least = 2.0 * number_between(wanted["min_score"], f"min_score of {where}", 0.0, 1.0) - 1.0
        elif "max_distance" in wanted:
            least = 1.0 - number_between(wanted["max_distance"], f"max_distance of {where}", 0.0, 2.0)
        return SemanticQuery(
            target=target,
            text=self.text(wanted.get("query_text"), where),
            k=positive_integer(wanted.get("k", self.meaning.k), f"k of {where}", MAX_K),
            filter=_filter(wanted.get("filter")),
            min_cosine=least,
            boost=_boost(wanted, where),
            name=_name(said) or _name(wanted),
            way=SemanticSyntax.NEURAL,
        )

    def _semantic(self, said: Json) -> SemanticQuery | None:
        field = said.get("field")
        target = self._field(field)
        if target is None:
            return None
        where = f"semantic on {field}"
        return SemanticQuery(
            target=target,
            text=self.text(said.get("query"), where),
            k=self.meaning.k,
            min_cosine=self.meaning.min_cosine,
            num_candidates=self.meaning.num_candidates,
            boost=_boost(said, where),
            name=_name(said),
        )

    def _field(self, name: object) -> ResolvedField | None:
        """A field by its own name, its virtual one, or that of the text that was embedded."""
        if not isinstance(name, str):
            return None
        return self.names.named(name) or self.names.virtual(name) or self.names.for_text(name)


def _check_model(target: ResolvedField, asked: object) -> None:
    """A request that names a model means that one and no other."""
    ours = {target.meta.model, target.meta.fingerprint, target.meta.model.rstrip("/").rpartition("/")[2], None}
    if asked not in ours:
        raise IndexMismatch(
            f"the request names the model {asked!r}, and the vectors of {target.name} were made by another one",
            "Leave the model's name out, or write the one that the index's mapping names in _meta.es_sbert.",
        )


def _filter(value: Any) -> Json | None:
    if value is None or value == []:
        return None
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return {"bool": {"filter": value}} if len(value) > 1 else value[0]
    if not isinstance(value, dict):
        raise BadRequest("the filter of a query by meaning is no query", """Write e.g. {"term": {"language": "en"}}.""")
    return value


def _boost(options: Json, where: str) -> float:
    return number_between(options.get("boost", 1.0), f"boost of {where}", 0.0, 1e9)


def _cosine_or_none(value: object, where: str) -> float | None:
    return None if value is None else number_between(value, where, -1.0, 1.0)


def _name(options: Json) -> str | None:
    name = options.get("_name")
    return name if isinstance(name, str) else None


_TEXT_REMEDY = "Write what you look for in words, as a string."


def parse_query_text(value: object, where: str, most: int) -> str:
    """A text to search by.

    Args:
        value: As it stands in the request. Numbers and truth values are words too where engines take them as such
            (Kibana sends `semantic: 2024` as a number); the caller turns those into strings before.
        where: The part of the request, for the message.
        most: Characters that are allowed.

    Raises:
        BadRequest: not a string, empty, or too long.
    """
    if not isinstance(value, str):
        raise BadRequest(f"the text of {where} is a JSON {json_type_name(value)}, not a string", _TEXT_REMEDY)
    if not value.strip():
        raise BadRequest(f"the text of {where} is empty", _TEXT_REMEDY)
    if len(value) > most:
        raise BadRequest(
            f"the text of {where} has {len(value):,} characters, {most:,} are allowed",
            "Search by the sentence that matters; models read a few hundred words at most.",
        )
    if not value.isprintable() and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise BadRequest(f"the text of {where} is not valid Unicode", _TEXT_REMEDY)
    return value


def scalar_as_text(value: object) -> object:
    """A number or truth value as text, as engines read it in full-text queries; all else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def number_between(value: object, where: str, lowest: float, highest: float) -> float:
    """A number within limits.

    Raises:
        BadRequest: no number, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise BadRequest(f"{where} is {value!r}", f"Give a number from {lowest:g} to {highest:g}.")
    return value


def positive_integer(value: object, where: str, highest: int) -> int:
    """A whole number from 1 up.

    Raises:
        BadRequest: none, or outside.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise BadRequest(f"{where} is {value!r}", f"Give a whole number from 1 to {highest:,}.")
    return value
