"""Single queries that ask by meaning: how each is written, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from es_sbert.engines.protocol import Json
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.rewrite.texts import number, read_text, whole, words
from es_sbert.gateway.settings import Limits, Meaning
from es_sbert.gateway.targets import FieldNames, FieldTarget
from es_sbert.search.vector_query import MAX_K

# Full-text queries of one field, which a virtual field understands alike: Kibana sends a phrase for quoted words.
_OF_ONE_FIELD = frozenset({"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"})


class Way(StrEnum):
    """How a search by meaning is asked for."""

    VIRTUAL_FIELD = "virtual_field"
    TEXT_EMBEDDING = "text_embedding"
    SEMANTIC = "semantic"
    NEURAL = "neural"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class Semantic:
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

    target: FieldTarget
    text: str
    k: int
    filter: Json | None = None
    min_cosine: float | None = None
    num_candidates: int | None = None
    boost: float = 1.0
    name: str | None = None
    way: Way = Way.SEMANTIC

    @property
    def virtual(self) -> bool:
        """Whether it was asked by the virtual field, which knows no difference between filter and query."""
        return self.way is Way.VIRTUAL_FIELD


class Reader:
    """Recognises queries by meaning.

    Args:
        names: What fields of the request's indices are called.
        meaning, limits: The operator's.
        check: Told how many semantic queries there are, each time that another one is found; may refuse them.
    """

    def __init__(
        self, names: FieldNames, meaning: Meaning, limits: Limits, check: Callable[[int], None] = lambda _: None
    ) -> None:
        self.names = names
        self.meaning = meaning
        self.most_characters = limits.query_characters
        self._check = check
        self._found = 0
        # By identity: a request is read several times. Each query is kept beside what it says.
        self._known: dict[int, tuple[Json, Semantic | None]] = {}

    def read(self, node: Json) -> Semantic | None:
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

    def _read(self, node: Json) -> Semantic | None:
        if len(node) != 1:
            return None
        [(kind, said)] = node.items()
        if not isinstance(said, dict):
            return None
        if kind in _OF_ONE_FIELD:
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
        return read_text(value, where, self.most_characters)

    def _full_text(self, kind: str, said: Json) -> Semantic | None:
        if len(said) != 1:
            return None
        [(field, wanted)] = said.items()
        target = self.names.virtual(field)
        if target is None:
            return None
        return self._of_text(target, kind, field, wanted if isinstance(wanted, dict) else {"query": wanted})

    def _term(self, said: Json) -> Semantic | None:
        """One text as a whole, which applications look up in fields that they take for keywords."""
        fields = {field: wanted for field, wanted in said.items() if field not in ("boost", "_name")}
        if len(fields) != 1:
            return None
        [(field, wanted)] = fields.items()
        target = self.names.only_virtual(field)
        if target is None:
            return None
        options = wanted if isinstance(wanted, dict) else {"value": wanted}
        return self._of_text(target, "term", field, said | options | {"query": options.get("value")})

    def _of_text(self, target: FieldTarget, kind: str, field: str, options: Json) -> Semantic:
        where = f"{kind} on {field}"
        if options.get("fuzziness", 0) not in (0, "0"):
            raise BadRequest("a semantic query has a fuzziness, which is for letters of words", "Leave fuzziness out.")
        return Semantic(
            target=target,
            text=self.text(words(options.get("query")), where),
            k=whole(options.get("k", self.meaning.k), f"k of {where}", MAX_K),
            min_cosine=_optional(options.get("min_cosine", self.meaning.min_cosine), f"min_cosine of {where}"),
            num_candidates=self.meaning.num_candidates,
            boost=_boost(options, where),
            name=_name(options),
            way=Way.VIRTUAL_FIELD,
        )

    def _knn(self, said: Json) -> Semantic | None:
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
        k = whole(said.get("k", self.meaning.k), f"k of knn on {field}", MAX_K)
        candidates = said.get("num_candidates")
        return Semantic(
            target=target,
            text=self.text(wanted.get("model_text"), where),
            k=k,
            filter=_filter(said.get("filter")),
            min_cosine=_optional(said.get("similarity"), f"similarity of knn on {field}"),
            num_candidates=None if candidates is None else max(k, whole(candidates, "num_candidates", MAX_K)),
            boost=_boost(said, where),
            name=_name(said),
            way=Way.TEXT_EMBEDDING,
        )

    def _neural(self, said: Json) -> Semantic | None:
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
            # OpenSearch's score of a cosine, see es_sbert.search.scores.
            least = 2.0 * number(wanted["min_score"], f"min_score of {where}", 0.0, 1.0) - 1.0
        elif "max_distance" in wanted:
            least = 1.0 - number(wanted["max_distance"], f"max_distance of {where}", 0.0, 2.0)
        return Semantic(
            target=target,
            text=self.text(wanted.get("query_text"), where),
            k=whole(wanted.get("k", self.meaning.k), f"k of {where}", MAX_K),
            filter=_filter(wanted.get("filter")),
            min_cosine=least,
            boost=_boost(wanted, where),
            name=_name(said) or _name(wanted),
            way=Way.NEURAL,
        )

    def _semantic(self, said: Json) -> Semantic | None:
        field = said.get("field")
        target = self._field(field)
        if target is None:
            return None
        where = f"semantic on {field}"
        return Semantic(
            target=target,
            text=self.text(said.get("query"), where),
            k=self.meaning.k,
            min_cosine=self.meaning.min_cosine,
            num_candidates=self.meaning.num_candidates,
            boost=_boost(said, where),
            name=_name(said),
        )

    def _field(self, name: object) -> FieldTarget | None:
        """A field by its own name, its virtual one, or that of the text that was embedded."""
        if not isinstance(name, str):
            return None
        return self.names.named(name) or self.names.virtual(name) or self.names.of_text(name)


def _check_model(target: FieldTarget, asked: object) -> None:
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
    return number(options.get("boost", 1.0), f"boost of {where}", 0.0, 1e9)


def _optional(value: object, where: str) -> float | None:
    return None if value is None else number(value, where, -1.0, 1.0)


def _name(options: Json) -> str | None:
    name = options.get("_name")
    return name if isinstance(name, str) else None
