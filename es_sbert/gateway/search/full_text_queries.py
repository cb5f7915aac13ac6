"""Full-text queries with a semantic part: on several fields, or in Lucene syntax.

A `multi_match` or `query_string` that names the virtual field is split into one query per field. The text of a semantic
query has no operators: words, a phrase in quotes, or several in brackets.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from luqum import tree as lucene
from luqum.exceptions import ParseError
from luqum.thread import parse

from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.semantic_query import (
    MULTI_FIELD_QUERIES,
    SemanticQueryParser,
    check_parameters,
    check_word_parameters,
    number_between,
    parse_query_text,
)

BOOSTED_FIELD = re.compile(r"^(?P<field>.+?)\^(?P<boost>\d+(?:\.\d+)?)$")


def split_virtual_fields(kind: str, body: Json, parser: SemanticQueryParser) -> Json | None:
    """Split a query on several fields into one query per field; None if it names no virtual field.

    Raises:
        BadRequest: the Lucene syntax is invalid, the text of a semantic query has operators, or the query is a
            `simple_query_string`.
    """
    if kind not in MULTI_FIELD_QUERIES:
        return None
    virtual, others = _partition_fields(body, parser)
    if not virtual:
        return _query_string_as_bool(body, parser) if kind == "query_string" else None
    location = f"{kind} on {virtual[0][0]}"
    if kind == "simple_query_string":
        raise BadRequest(
            f"{location} is not supported: {virtual[0][0]} is a semantic field",
            f'Search it as {{"match": {{"{virtual[0][0]}": "…"}}}}, next to the simple_query_string on other fields.',
        )
    check_parameters(kind, location, body)
    if not others:
        check_word_parameters(location, body)
    text = body.get("query")
    if kind == "query_string" and isinstance(text, str) and text.strip() and body.get("escape") is not True:
        text = _plain_text(_parse_lucene(text, location, parser))
    outer_boost = number_between(body.get("boost", 1.0), f"boost of {location}", 0.0, 1e9)
    should = [_virtual_query(field, text, boost * outer_boost) for field, boost in virtual]
    if others:
        rest = {name: value for name, value in body.items() if name not in ("default_field", "fields", "_name")}
        should.append({kind: rest | {"fields": others}})
    query_name = {"_name": body["_name"]} if "_name" in body else {}
    return {"bool": {"should": should, "minimum_should_match": 1, **query_name}}


def _partition_fields(body: Json, parser: SemanticQueryParser) -> tuple[list[tuple[str, float]], list[str]]:
    """Return the virtual fields of a query with their boosts, and the other fields unparsed."""
    fields: Any = body.get("fields", body.get("default_field"))
    if isinstance(fields, str):
        fields = [fields]
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        return [], []
    virtual: list[tuple[str, float]] = []
    others: list[str] = []
    for spec in fields:
        boosted = BOOSTED_FIELD.match(spec)
        field, boost = (boosted["field"], float(boosted["boost"])) if boosted else (spec, 1.0)
        if parser.fields.virtual(field) is None:
            others.append(spec)
        else:
            virtual.append((field, boost))
    return virtual, others


def _virtual_query(field: str, text: object, boost: float) -> Json:
    if text == "*":
        return {"exists": {"field": field} if boost == 1.0 else {"field": field, "boost": boost}}
    return {"match": {field: {"query": text, "boost": boost}}}


# `*` and `?` in a word; a question mark at its end is punctuation.
_WILDCARD = re.compile(r"(?:\\.|[^\\*?])*(?:\*|\?(?!$))")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# Lucene's symbols for AND, OR and NOT, which luqum does not support; not inside phrases and regular expressions.
_SYMBOLS = re.compile(
    r"""\\. | "(?:[^\\"]|\\.)*" | (?<![^\s(:])/(?:[^\\/]|\\.)*/
        | (?<![^\s()"])(?P<symbol>&&|\|\|)(?![^\s()"]) | (?<![^\s(])(?P<not>!)""",
    re.VERBOSE | re.DOTALL,
)
_OPERATOR_WORDS = {"&&": "AND", "||": "OR", "!": "NOT "}


def _query_string_as_bool(body: Json, parser: SemanticQueryParser) -> Json | None:
    """Convert a `query_string` to a bool: `match` for the virtual field, `query_string` for all other parts.

    Raises:
        BadRequest: the query may name a virtual field, but is not valid Lucene syntax.
    """
    text, virtual_field = body.get("query"), parser.settings.virtual_field
    if not isinstance(text, str) or not may_name_field(text, virtual_field) or body.get("escape") is True:
        return None
    try:
        tree = _parse_lucene(text, "query_string", parser)
    except BadRequest:
        if parser.fields.virtual(virtual_field) is None:
            return None
        raise
    if not _names_virtual(tree, parser):
        return None
    check_parameters("lucene", "query_string", body)
    boost = number_between(body.get("boost", 1.0), "boost of query_string", 0.0, 1e9)
    return _TreeConverter(body, parser).convert(tree, boost)


def _parse_lucene(text: str, location: str, parser: SemanticQueryParser) -> lucene.Item:
    """Parse a `query_string` into a syntax tree.

    Raises:
        BadRequest: the text is too long, or is not valid Lucene syntax.
    """
    if len(text) > parser.max_text_characters:
        # Reject long texts before they reach the Lucene parser, which is slow on them.
        parse_query_text(text, location, parser.max_text_characters)
    try:
        return parse(_SYMBOLS.sub(lambda found: _OPERATOR_WORDS.get(found["symbol"] or found["not"], found[0]), text))
    except ParseError as error:
        raise BadRequest(
            f"the query_string is not valid Lucene syntax: {error}",
            f'Put the text into quotes, e.g. {parser.settings.virtual_field}:"how do plants make energy", and close '
            "all brackets.",
        ) from None


def may_name_field(text: str, virtual_field: str) -> bool:
    """Whether a text may name the virtual field, checked without parsing it. False is certain.

    A text that only contains the name as a word does not name the field.
    """
    virtual = re.escape(virtual_field)
    return re.search(rf'(?<![\w.]){virtual}[^\s:()"]*\s*:|_exists_\s*:\s*"?{virtual}', text) is not None


def _names_virtual(tree: lucene.Item, parser: SemanticQueryParser) -> bool:
    if isinstance(tree, lucene.SearchField) and parser.fields.virtual(_searched_field(tree)) is not None:
        return True
    return any(_names_virtual(child, parser) for child in tree.children)


def _searched_field(tree: lucene.SearchField) -> str:
    """The searched field, or the one of `_exists_`."""
    return _plain_text(tree.expr) if tree.name == "_exists_" else str(tree.name)


class _TreeConverter:
    """Converts a parsed `query_string` to queries."""

    def __init__(self, body: Json, parser: SemanticQueryParser) -> None:
        self._rest = {name: value for name, value in body.items() if name not in ("query", "boost")}
        self._parser = parser
        self._default_and = str(body.get("default_operator", "or")).lower() == "and"

    def convert(self, tree: lucene.Item, boost: float) -> Json:
        if not _names_virtual(tree, self._parser):
            query = self._rest | {"query": str(tree).strip()}
            return {"query_string": query if boost == 1.0 else query | {"boost": boost}}
        if isinstance(tree, lucene.Boost):
            return self.convert(tree.expr, boost * float(tree.force))
        if isinstance(tree, lucene.SearchField) and self._parser.fields.virtual(_searched_field(tree)) is not None:
            expression = tree.expr
            while isinstance(expression, lucene.Boost):
                boost *= float(expression.force)
                expression = expression.children[0]
            text = "*" if tree.name == "_exists_" else _plain_text(expression)
            return _virtual_query(_searched_field(tree), text, boost)
        if isinstance(tree, lucene.Group | lucene.Plus):
            return self.convert(tree.children[0], boost)
        if isinstance(tree, lucene.Not | lucene.Prohibit):
            return {"bool": {"must_not": [self.convert(tree.children[0], 1.0)]}}
        if isinstance(tree, lucene.BaseOperation):
            return self._operation(tree, boost)
        raise BadRequest(
            f"{str(tree).strip()!r} is an expression that cannot contain a semantic query",
            "Put the semantic query outside of it, joined by AND or OR.",
        )

    def _operation(self, tree: lucene.BaseOperation, boost: float) -> Json:
        every = isinstance(tree, lucene.AndOperation) or (
            self._default_and and not isinstance(tree, lucene.OrOperation)
        )
        clauses: dict[str, Any] = {}
        for child in tree.children:
            name = "must" if every else "should"
            if isinstance(child, lucene.Not | lucene.Prohibit):
                name, child = "must_not", child.children[0]
            elif isinstance(child, lucene.Plus):
                name, child = "must", child.children[0]
            clauses.setdefault(name, []).append(self.convert(child, boost))
        if "should" in clauses and "must" not in clauses:
            clauses["minimum_should_match"] = 1
        return {"bool": clauses}


def _plain_text(expression: lucene.Item) -> str:
    """Extract the text of an expression, without Lucene syntax; `*` for any.

    Raises:
        BadRequest: the expression is not a text.
    """
    if isinstance(expression, lucene.Phrase):
        return _unescape(expression.value[1:-1])
    if isinstance(expression, lucene.Word) and (expression.value == "*" or not _WILDCARD.match(expression.value)):
        return _unescape(expression.value)
    if isinstance(expression, lucene.FieldGroup | lucene.Group | lucene.BaseOperation):
        return " ".join(_plain_text(child) for child in expression.children)
    _refuse_operator(str(expression).strip())


def _unescape(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _refuse_operator(expression: str) -> NoReturn:
    raise BadRequest(
        f"{expression!r} excludes words or is a pattern, but a semantic query compares its text as a whole",
        'Write the text in quotes, e.g. semantic:"how do plants make energy", and exclude documents with a separate '
        "query in the must_not of a bool.",
    )
