"""Lucene's query syntax with the virtual field in it: `lang:en AND semantic:"how do plants make energy"`."""

from __future__ import annotations

import re
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

from es_sbert.engines.protocol import Json
from es_sbert.gateway.failures import BadRequest
from es_sbert.gateway.rewrite.semantic import Reader

_ESCAPED = re.compile(r"\\(.)")
# `*` and `?` in a word; a question mark at its end is one.
_WILDCARD = re.compile(r"(?:\\.|[^\\*?])*(?:\*|\?(?!$))")
# Lucene's other words for AND, OR and NOT, which luqum does not know; not inside phrases and regular expressions.
_SYMBOLS = re.compile(
    r"""\\. | "(?:[^\\"]|\\.)*" | (?<![^\s(:])/(?:[^\\/]|\\.)*/
        | (?<![^\s()"])(?P<symbol>&&|\|\|)(?![^\s()"]) | (?<![^\s(])(?P<not>!)""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"&&": "AND", "||": "OR", "!": "NOT "}


def as_bool(node: Json, said: Json, reader: Reader) -> Json:
    """A `query_string` as a bool: what names a virtual field as `match`, all else as `query_string` again.

    Returns:
        The very same object where no virtual field is named.

    Raises:
        BadRequest: it names one, and is not Lucene's syntax.
    """
    text = said.get("query")
    if not isinstance(text, str) or not may_name(text, reader.meaning.virtual_field):
        return node
    if len(text) > reader.most_characters and reader.names.virtual(reader.meaning.virtual_field) is not None:
        reader.text(text, "query_string")  # refuses it: the parser takes its time
    try:
        tree = parse(_SYMBOLS.sub(_in_words, text))
    except ParseError as error:
        if reader.names.virtual(reader.meaning.virtual_field) is None:
            return node
        raise BadRequest(
            f"the query_string is not Lucene's syntax: {error}",
            'Put the text to search by into quotes, e.g. semantic:"how do plants make energy", and close all brackets.',
        ) from None
    return _Reading(said, reader).read(tree) if _names_virtual(tree, reader) else node


def may_name(text: str, virtual_field: str) -> bool:
    """A cheap look before the text is parsed: whoever only writes the word is left alone, whatever the syntax."""
    virtual = re.escape(virtual_field)
    return re.search(rf'(?<![\w.]){virtual}[^\s:()"]*\s*:|_exists_\s*:\s*"?{virtual}', text) is not None


def _in_words(found: re.Match[str]) -> str:
    symbol = found["symbol"] or found["not"]
    return _WORDS[symbol] if symbol else found[0]


def _names_virtual(tree: Item, reader: Reader) -> bool:
    if isinstance(tree, SearchField) and reader.names.virtual(_field(tree)) is not None:
        return True
    return any(_names_virtual(child, reader) for child in tree.children)


def _field(tree: SearchField) -> str:
    """The field that is searched, or asked for by `_exists_`."""
    return _words(tree.expr) if tree.name == "_exists_" else str(tree.name)


class _Reading:
    """Turns a tree into queries."""

    def __init__(self, said: Json, reader: Reader) -> None:
        self._said = said
        self._reader = reader
        self._all_words = str(said.get("default_operator", "or")).lower() == "and"

    def read(self, tree: Item, boost: float = 1.0) -> Json:
        if not _names_virtual(tree, self._reader):
            return self._for_the_engine(tree, boost)
        if isinstance(tree, Boost):
            return self.read(tree.expr, boost * float(tree.force))
        if isinstance(tree, SearchField) and self._reader.names.virtual(_field(tree)) is not None:
            return _meaning(tree, boost)
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


def _meaning(field: SearchField, boost: float) -> Json:
    expression = field.expr
    while isinstance(expression, Boost):
        boost *= float(expression.force)
        expression = expression.children[0]
    words = _words(expression)
    if words == "*" or field.name == "_exists_":
        return {"exists": {"field": _field(field)}}
    return {"match": {field.name: {"query": words, "boost": boost}}}


def _words(expression: Item) -> str:
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
        return " ".join(_words(child) for child in expression.children)
    return " ".join(_words(child) for child in expression.children) or str(expression).strip()


def _has_wildcard(expression: Item) -> bool:
    return isinstance(expression, Term) and expression.value != "*" and _WILDCARD.match(expression.value) is not None
