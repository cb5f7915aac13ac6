"""Full-text queries with a semantic part: on several fields, in Lucene syntax, or made hybrid.

A `multi_match` or `query_string` that names the virtual field is split into one query per field. In hybrid mode, a
full-text query on embedded fields gets a semantic query added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from luqum.exceptions import ParseError
from luqum.thread import parse
from luqum.tree import (
    AndOperation,
    BaseOperation,
    Boost,
    FieldGroup,
    From,
    Fuzzy,
    Group,
    Item,
    Not,
    OrOperation,
    Phrase,
    Plus,
    Prohibit,
    Proximity,
    Range,
    Regex,
    SearchField,
    Term,
    To,
)

from es_sbert.engines.protocol import EngineType, Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.field_resolver import FieldResolver, ResolvedField
from es_sbert.gateway.search.compound_queries import clause_list, decode_wrapper, query_type_and_body
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser, SemanticSyntax, scalar_as_text
from es_sbert.gateway.settings import Limits, SemanticSettings
from es_sbert.search.hybrid_search import DEFAULT_BOOSTS

_MULTI_FIELD_QUERIES = frozenset({"multi_match", "combined_fields", "query_string", "simple_query_string"})
_BOOSTED = re.compile(r"^(?P<field>.+?)\^(?P<boost>\d+(?:\.\d+)?)$")
# Characters that simple_query_string reads as operators; they are no words to search by.
_OPERATORS = re.compile(r'[+|"()~*\\]|(?<!\S)-')


def split_virtual_fields(node: Json, reader: SemanticQueryParser) -> Json:
    """A query over several fields as a bool of queries over one; the very same object where no field is virtual.

    Raises:
        BadRequest: Lucene syntax that cannot be read.
    """
    found = query_type_and_body(node)
    if found is None or found[0] not in _MULTI_FIELD_QUERIES:
        return node
    kind, said = found
    virtual, others = _partition_fields(said, reader)
    if virtual:
        text = said.get("query")
        if kind.endswith("query_string") and isinstance(text, str):
            text = " ".join(_OPERATORS.sub(" ", text).split()) or text
        should: list[Json] = [_match_query(field, boost, text, said) for field, boost in virtual]
        if others:
            rest = {name: value for name, value in said.items() if name not in ("default_field", "fields", "_name")}
            should.append({kind: rest | {"fields": others}})
        return {"bool": {"should": should, "minimum_should_match": 1} | _query_name(said)}
    if kind == "query_string":
        return query_string_as_bool(node, said, reader)
    return node


def _partition_fields(said: Json, reader: SemanticQueryParser) -> tuple[list[tuple[str, float]], list[str]]:
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


def _match_query(field: str, boost: float, text: object, said: Json) -> Json:
    own = said.get("boost", 1.0)
    factor = own if isinstance(own, int | float) and not isinstance(own, bool) else 1.0
    return {"match": {field: {"query": text, "boost": boost * factor}}}


def _query_name(said: Json) -> Json:
    return {"_name": said["_name"]} if "_name" in said else {}


_ESCAPED = re.compile(r"\\(.)")
# `*` and `?` in a word; a question mark at its end is one.
_WILDCARD = re.compile(r"(?:\\.|[^\\*?])*(?:\*|\?(?!$))")
# Lucene's other words for AND, OR and NOT, which luqum does not know; not inside phrases and regular expressions.
_SYMBOLS = re.compile(
    r"""\\. | "(?:[^\\"]|\\.)*" | (?<![^\s(:])/(?:[^\\/]|\\.)*/
        | (?<![^\s()"])(?P<symbol>&&|\|\|)(?![^\s()"]) | (?<![^\s(])(?P<not>!)""",
    re.VERBOSE | re.DOTALL,
)
_OPERATOR_WORDS = {"&&": "AND", "||": "OR", "!": "NOT "}


def query_string_as_bool(node: Json, said: Json, reader: SemanticQueryParser) -> Json:
    """A `query_string` as a bool: what names a virtual field as `match`, all else as `query_string` again.

    Returns:
        The very same object where no virtual field is named.

    Raises:
        BadRequest: it names one, and is not Lucene's syntax.
    """
    text = said.get("query")
    if not isinstance(text, str) or not may_name_field(text, reader.meaning.virtual_field):
        return node
    if len(text) > reader.max_text_characters and reader.names.virtual(reader.meaning.virtual_field) is not None:
        reader.text(text, "query_string")  # refuses it: the parser takes its time
    try:
        tree = parse(_SYMBOLS.sub(_replace_symbol, text))
    except ParseError as error:
        if reader.names.virtual(reader.meaning.virtual_field) is None:
            return node
        raise BadRequest(
            f"the query_string is not Lucene's syntax: {error}",
            'Put the text to search by into quotes, e.g. semantic:"how do plants make energy", and close all brackets.',
        ) from None
    return _TreeConverter(said, reader).read(tree) if _names_virtual(tree, reader) else node


def may_name_field(text: str, virtual_field: str) -> bool:
    """A cheap look before the text is parsed: whoever only writes the word is left alone, whatever the syntax."""
    virtual = re.escape(virtual_field)
    return re.search(rf'(?<![\w.]){virtual}[^\s:()"]*\s*:|_exists_\s*:\s*"?{virtual}', text) is not None


def _replace_symbol(found: re.Match[str]) -> str:
    symbol = found["symbol"] or found["not"]
    return _OPERATOR_WORDS[symbol] if symbol else found[0]


def _names_virtual(tree: Item, reader: SemanticQueryParser) -> bool:
    if isinstance(tree, SearchField) and reader.names.virtual(_searched_field(tree)) is not None:
        return True
    return any(_names_virtual(child, reader) for child in tree.children)


def _searched_field(tree: SearchField) -> str:
    """The field that is searched, or asked for by `_exists_`."""
    return _plain_text(tree.expr) if tree.name == "_exists_" else str(tree.name)


class _TreeConverter:
    """Turns a tree into queries."""

    def __init__(self, said: Json, reader: SemanticQueryParser) -> None:
        self._said = said
        self._reader = reader
        self._all_words = str(said.get("default_operator", "or")).lower() == "and"

    def read(self, tree: Item, boost: float = 1.0) -> Json:
        if not _names_virtual(tree, self._reader):
            return self._for_the_engine(tree, boost)
        if isinstance(tree, Boost):
            return self.read(tree.expr, boost * float(tree.force))
        if isinstance(tree, SearchField) and self._reader.names.virtual(_searched_field(tree)) is not None:
            return _semantic_match(tree, boost)
        if isinstance(tree, Group | Plus):
            return self.read(tree.children[0], boost)
        if isinstance(tree, Not | Prohibit):
            return {"bool": {"must_not": [self.read(tree.children[0])]}}
        if isinstance(tree, BaseOperation):
            return self._operation(tree, boost)
        raise BadRequest(
            f"{str(tree).strip()!r} is an expression that no semantic query can be part of",
            "Put the semantic query beside it, joined by AND or OR.",
        )

    def _operation(self, tree: BaseOperation, boost: float) -> Json:
        every = isinstance(tree, AndOperation) or (self._all_words and not isinstance(tree, OrOperation))
        clauses: dict[str, list[Json]] = {}
        for child in tree.children:
            if isinstance(child, Not | Prohibit):
                clauses.setdefault("must_not", []).append(self.read(child.children[0], boost))
            elif isinstance(child, Plus):
                clauses.setdefault("must", []).append(self.read(child.children[0], boost))
            else:
                clauses.setdefault("must" if every else "should", []).append(self.read(child, boost))
        query: dict[str, Any] = dict(clauses)
        if "should" in clauses and "must" not in clauses:
            query["minimum_should_match"] = 1
        return {"bool": query}

    def _for_the_engine(self, tree: Item, boost: float) -> Json:
        rest = {name: value for name, value in self._said.items() if name not in ("query", "boost", "_name")}
        query = rest | {"query": str(tree).strip()}
        return {"query_string": query if boost == 1.0 else query | {"boost": boost}}


def _semantic_match(field: SearchField, boost: float) -> Json:
    expression = field.expr
    while isinstance(expression, Boost):
        boost *= float(expression.force)
        expression = expression.children[0]
    words = _plain_text(expression)
    if words == "*" or field.name == "_exists_":
        return {"exists": {"field": _searched_field(field)}}
    return {"match": {field.name: {"query": words, "boost": boost}}}


def _plain_text(expression: Item) -> str:
    """The text that is meant, without the syntax around it.

    Raises:
        BadRequest: it is no text.
    """
    if isinstance(expression, Range | From | To | Regex | Fuzzy | Proximity) or _has_wildcard(expression):
        raise BadRequest(
            f"{str(expression).strip()!r} is a range, a pattern or a distance between words, and a semantic query "
            "takes a text",
            'Write the text in quotes, e.g. semantic:"how do plants make energy".',
        )
    if isinstance(expression, Phrase):
        return _ESCAPED.sub(r"\1", expression.value[1:-1])
    if isinstance(expression, Term):
        return expression.value if expression.value == "*" else _ESCAPED.sub(r"\1", expression.value)
    if isinstance(expression, FieldGroup | Group | BaseOperation):
        return " ".join(_plain_text(child) for child in expression.children)
    return " ".join(_plain_text(child) for child in expression.children) or str(expression).strip()


def _has_wildcard(expression: Item) -> bool:
    return isinstance(expression, Term) and expression.value != "*" and _WILDCARD.match(expression.value) is not None


_SINGLE_FIELD_FULL_TEXT = frozenset({"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"})
_MULTI_FIELD_FULL_TEXT = frozenset({"multi_match", "combined_fields", "simple_query_string"})
_BOOST_SUFFIX = re.compile(r"\^[\d.]+$")


def semantic_weight(meaning: SemanticSettings, engine_type: EngineType) -> float:
    """What a cosine score of 1 counts beside BM25: as the operator says, or as was measured to be best."""
    usual = DEFAULT_BOOSTS[engine_type]
    return meaning.semantic_weight or usual.semantic / usual.lexical


class HybridDetector:
    """Finds the full-text queries that mean a text with a vector.

    An application writes one box's words into several queries (exact words, prefixes, phrases) under one bool; meaning
    is added once, around all of them, not to each.

    Args:
        names: What fields of the request's indices are called.
        meaning, limits: The operator's.
        weight: What a cosine score of 1 counts beside BM25.
    """

    def __init__(self, names: FieldResolver, meaning: SemanticSettings, limits: Limits, weight: float) -> None:
        self._names = names
        self._weight = weight
        self._meaning = meaning
        self._limits = limits
        # By identity, the query kept beside: bools inside bools are asked again at every level.
        self._known: dict[int, tuple[Json, tuple[str, ResolvedField] | None]] = {}

    def semantic_part(self, node: Json) -> SemanticQuery | None:
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
        return SemanticQuery(
            target,
            text,
            meaning.k,
            min_cosine=meaning.min_cosine,
            num_candidates=meaning.num_candidates,
            boost=self._weight,
            way=SemanticSyntax.HYBRID,
        )

    def _asked(self, node: Json) -> tuple[str, ResolvedField] | None:
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._read(node)
        return known[1]

    def _read(self, node: Json) -> tuple[str, ResolvedField] | None:
        query = query_type_and_body(decode_wrapper(node))
        if query is None:
            return None
        kind, said = query
        if kind in _SINGLE_FIELD_FULL_TEXT and len(said) == 1:
            [(field, wanted)] = said.items()
            return self._text(wanted.get("query") if isinstance(wanted, dict) else wanted, [field])
        if kind in _MULTI_FIELD_FULL_TEXT:
            fields = said.get("fields", ["*"])
            return self._text(said.get("query"), fields if isinstance(fields, list) else [fields])
        if kind == "dis_max":
            return self._same(clause_list(said.get("queries")))
        if kind == "bool" and set(said) <= {"must", "should", "minimum_should_match", "boost"}:
            return self._same([*clause_list(said.get("must")), *clause_list(said.get("should"))])
        return None

    def _same(self, nodes: Sequence[Json]) -> tuple[str, ResolvedField] | None:
        found = [self._asked(node) for node in nodes]
        if not found or found[0] is None or any(other != found[0] for other in found):
            return None
        return found[0]

    def _text(self, value: Any, fields: Sequence[Any]) -> tuple[str, ResolvedField] | None:
        text = scalar_as_text(value)
        if not isinstance(text, str):
            return None
        for written in fields:
            if isinstance(written, str) and (target := self._target(_BOOST_SUFFIX.sub("", written))) is not None:
                return text, target
        return None

    def _target(self, written: str) -> ResolvedField | None:
        """The vector field of a text field as queries write it: `title`, `title.ngram` (a multi-field), `ti*`."""
        if "*" in written:
            matching = (field for field in self._names.texts() if fnmatchcase(field, written))
            field = next(matching, None)
            return None if field is None else self._names.for_text(field)
        target = self._names.for_text(written)
        if target is None and "." in written:
            return self._names.for_text(written.rpartition(".")[0])
        return target
