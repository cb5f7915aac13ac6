"""Full-text queries with a semantic part: on several fields, or in Lucene syntax.

A `multi_match` or `query_string` that names the virtual field is split into one query per field.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from luqum import tree as lucene
from luqum.exceptions import ParseError
from luqum.thread import parse

from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import query_type_and_body
from es_sbert.gateway.search.semantic_query import (
    SemanticQueryParser,
    check_parameters,
    check_word_parameters,
    number_between,
    parse_query_text,
)

_MULTI_FIELD_QUERIES = frozenset({"multi_match", "combined_fields", "query_string", "simple_query_string"})
_BOOSTED = re.compile(r"^(?P<field>.+?)\^(?P<boost>\d+(?:\.\d+)?)$")


def split_virtual_fields(node: Json, parser: SemanticQueryParser) -> Json:
    """Split a query on several fields into one query per field. Returns the identical object if no field is virtual.

    Raises:
        BadRequest: the Lucene syntax is invalid.
    """
    query = query_type_and_body(node)
    if query is None or query[0] not in _MULTI_FIELD_QUERIES:
        return node
    kind, body = query
    virtual, others = _partition_fields(body, parser)
    if not virtual:
        return query_string_as_bool(node, body, parser) if kind == "query_string" else node
    location = f"{kind} on {virtual[0][0]}"
    check_parameters(kind, location, body)
    if not others:
        check_word_parameters(location, body)
    text = _semantic_text(kind, body, location, parser)
    should: list[Json] = [_virtual_query(field, boost, text, body, location) for field, boost in virtual]
    if others:
        rest = {name: value for name, value in body.items() if name not in ("default_field", "fields", "_name")}
        should.append({kind: rest | {"fields": others}})
    query_name = {"_name": body["_name"]} if "_name" in body else {}
    return {"bool": {"should": should, "minimum_should_match": 1, **query_name}}


def _semantic_text(kind: str, body: Json, location: str, parser: SemanticQueryParser) -> object:
    """Return the text of a query that names the virtual field among its fields; `*` for all documents with a vector."""
    text = body.get("query")
    if not isinstance(text, str):
        return text
    if kind == "simple_query_string":
        return simple_query_text(text, body.get("flags"), location)
    if kind != "query_string" or body.get("escape") is True or not text.strip():
        return text
    tree = _parse_lucene(text, location, parser)
    named = _named_field(tree)
    if named is not None:
        raise BadRequest(
            f"the text of {location} names the field {named} itself, so it cannot be the text of a semantic query",
            f'Name all fields there: {virtual_syntax(parser)} AND {named}:…, without "fields" and "default_field".',
        )
    return _plain_text(tree)


def virtual_syntax(parser: SemanticQueryParser) -> str:
    """An example of a semantic query in Lucene syntax."""
    return f'{parser.settings.virtual_field}:"how do plants make energy"'


def _virtual_query(field: str, boost: float, text: object, body: Json, location: str) -> Json:
    boost *= number_between(body.get("boost", 1.0), f"boost of {location}", 0.0, 1e9)
    if text == "*":
        return {"exists": {"field": field, "boost": boost}}
    return {"match": {field: {"query": text, "boost": boost}}}


# simple_query_string has no syntax errors: anything that is not syntax is text.
_SIMPLE_SYNTAX = re.compile(
    r"""\\(?P<escape>.)
        | "(?P<phrase>(?:[^"\\]|\\.)*)"(?P<near>~\d+)?
        | (?<![^\s()+|"])(?P<not>-+)(?=[^\s-])
        | (?<=[^\s()+|"])(?P<prefix>\*)(?=[\s()+|"]|$)
        | (?<=[^\s()+|"])(?P<fuzzy>~\d+)(?=[\s()+|"]|$)
        | (?P<and>\+) | (?P<or>\|) | (?P<precedence>[()])""",
    re.VERBOSE | re.DOTALL,
)


_SIMPLE_CLAUSE = re.compile(r"""["(][^")]*[")]|[^\s()+|"]+""")


def simple_query_text(text: str, flags: object, location: str) -> str:
    """Extract the text of a `simple_query_string`, without its operators.

    Args:
        text: In the syntax of simple_query_string.
        flags: The operators that are enabled, as in `OR|AND|PREFIX`; by default all.
        location: The part of the request, for messages.

    Raises:
        BadRequest: the text excludes words, or has prefixes, fuzziness or a distance: semantic queries lack these.
    """
    enabled = set(flags.upper().split("|")) if isinstance(flags, str) else {"ALL"}
    if "SLOP" in enabled:
        enabled.add("NEAR")

    def plain(match: re.Match[str]) -> str:
        operator = str(match.lastgroup)
        if "ALL" not in enabled and operator.upper() not in enabled:
            return match[0]
        if operator == "escape":
            return match["escape"]
        if operator == "phrase":
            return " " + _ESCAPED.sub(r"\1", match["phrase"]) + " "
        if operator == "not" and len(match["not"]) % 2:
            excluded = _SIMPLE_CLAUSE.match(text, match.end())
            raise _excludes_words(f"-{excluded[0] if excluded else ''}", location)
        return " " if operator in ("not", "and", "or", "precedence") else _refuse_pattern(match[0])

    return " ".join(_SIMPLE_SYNTAX.sub(plain, text).split()) or text


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
        boosted = _BOOSTED.match(spec)
        field, boost = (boosted["field"], float(boosted["boost"])) if boosted else (spec, 1.0)
        if parser.fields.virtual(field) is None:
            others.append(spec)
        else:
            virtual.append((field, boost))
    return virtual, others


# Expressions on a field that do not search for a text.
_NOT_A_TEXT = (lucene.Range, lucene.From, lucene.To, lucene.Regex, lucene.Fuzzy, lucene.Proximity)
_ESCAPED = re.compile(r"\\(.)")
# `*` and `?` in a word; a question mark at its end is punctuation.
_WILDCARD = re.compile(r"(?:\\.|[^\\*?])*(?:\*|\?(?!$))")
# Lucene's symbols for AND, OR and NOT, which luqum does not support; not inside phrases and regular expressions.
_SYMBOLS = re.compile(
    r"""\\. | "(?:[^\\"]|\\.)*" | (?<![^\s(:])/(?:[^\\/]|\\.)*/
        | (?<![^\s()"])(?P<symbol>&&|\|\|)(?![^\s()"]) | (?<![^\s(])(?P<not>!)""",
    re.VERBOSE | re.DOTALL,
)
_OPERATOR_WORDS = {"&&": "AND", "||": "OR", "!": "NOT "}


def query_string_as_bool(node: Json, body: Json, parser: SemanticQueryParser) -> Json:
    """Convert a `query_string` to a bool: `match` for the virtual field, `query_string` for all other parts.

    Returns:
        The identical object if no virtual field is named.

    Raises:
        BadRequest: the query may name a virtual field, but is not valid Lucene syntax.
    """
    text = body.get("query")
    if not isinstance(text, str) or not may_name_field(text, parser.settings.virtual_field):
        return node
    if body.get("escape") is True:
        return node  # there is no syntax in it
    try:
        tree = _parse_lucene(text, "query_string", parser)
    except BadRequest:
        if parser.fields.virtual(parser.settings.virtual_field) is None:
            return node
        raise
    if not _names_virtual(tree, parser):
        return node
    check_parameters("query_string", "query_string", body)
    boost = number_between(body.get("boost", 1.0), "boost of query_string", 0.0, 1e9)
    query = _TreeConverter(body, parser).convert_all(tree, boost)
    return {"bool": {"must": [query], "_name": body["_name"]}} if "_name" in body else query


def _parse_lucene(text: str, location: str, parser: SemanticQueryParser) -> lucene.Item:
    """Parse a `query_string` into a syntax tree.

    Raises:
        BadRequest: the text is too long, or is not valid Lucene syntax.
    """
    if len(text) > parser.max_text_characters:
        # Reject long texts before they reach the Lucene parser, which is slow on them.
        parse_query_text(text, location, parser.max_text_characters)
    try:
        return parse(_SYMBOLS.sub(_replace_symbol, text))
    except ParseError as error:
        raise BadRequest(
            f"the query_string is not valid Lucene syntax: {error}",
            f"Put the text to search by into quotes, e.g. {virtual_syntax(parser)}, and close all brackets.",
        ) from None


def _named_field(tree: lucene.Item) -> str | None:
    """The first field that an expression names."""
    if isinstance(tree, lucene.SearchField):
        return str(tree.name)
    return next(filter(None, map(_named_field, tree.children)), None)


def may_name_field(text: str, virtual_field: str) -> bool:
    """Whether a text may name the virtual field, checked without parsing it. False is certain.

    A text that only contains the name as a word does not name the field.
    """
    virtual = re.escape(virtual_field)
    return re.search(rf'(?<![\w.]){virtual}[^\s:()"]*\s*:|_exists_\s*:\s*"?{virtual}', text) is not None


def _replace_symbol(match: re.Match[str]) -> str:
    symbol = match["symbol"] or match["not"]
    return _OPERATOR_WORDS[symbol] if symbol else match[0]


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
        self._body = body
        self._parser = parser
        self._default_and = str(body.get("default_operator", "or")).lower() == "and"

    def convert_all(self, tree: lucene.Item, boost: float) -> Json:
        """Convert a whole `query_string`, whose `minimum_should_match` counts the clauses of its outermost bool."""
        query = self.convert(tree, boost)
        if "minimum_should_match" in self._body and "should" in query.get("bool", {}):
            query["bool"]["minimum_should_match"] = self._body["minimum_should_match"]
        return query

    def convert(self, tree: lucene.Item, boost: float = 1.0) -> Json:
        if not _names_virtual(tree, self._parser):
            return self._query_string(tree, boost)
        if isinstance(tree, lucene.Boost):
            return self.convert(tree.expr, boost * float(tree.force))
        if isinstance(tree, lucene.SearchField) and self._parser.fields.virtual(_searched_field(tree)) is not None:
            return _semantic_match(tree, boost)
        if isinstance(tree, lucene.Group | lucene.Plus):
            return self.convert(tree.children[0], boost)
        if isinstance(tree, lucene.Not | lucene.Prohibit):
            return {"bool": {"must_not": [self.convert(tree.children[0])]}}
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
            if isinstance(child, lucene.Not | lucene.Prohibit):
                clauses.setdefault("must_not", []).append(self.convert(child.children[0], boost))
            elif isinstance(child, lucene.Plus):
                clauses.setdefault("must", []).append(self.convert(child.children[0], boost))
            else:
                clauses.setdefault("must" if every else "should", []).append(self.convert(child, boost))
        if "should" in clauses and "must" not in clauses:
            clauses["minimum_should_match"] = 1
        return {"bool": clauses}

    def _query_string(self, tree: lucene.Item, boost: float) -> Json:
        replaced = ("query", "boost", "_name", "minimum_should_match")
        rest = {name: value for name, value in self._body.items() if name not in replaced}
        query = rest | {"query": str(tree).strip()}
        return {"query_string": query if boost == 1.0 else query | {"boost": boost}}


def _semantic_match(field: lucene.SearchField, boost: float) -> Json:
    expression = field.expr
    while isinstance(expression, lucene.Boost):
        boost *= float(expression.force)
        expression = expression.children[0]
    text = _plain_text(expression)
    if text == "*" or field.name == "_exists_":
        exists = {"field": _searched_field(field)}
        return {"exists": exists if boost == 1.0 else exists | {"boost": boost}}
    return {"match": {field.name: {"query": text, "boost": boost}}}


def _plain_text(expression: lucene.Item) -> str:
    """Extract the text of an expression, without Lucene syntax.

    Raises:
        BadRequest: the expression is not a text.
    """
    word = expression.value if isinstance(expression, lucene.Term) else "*"
    if isinstance(expression, _NOT_A_TEXT) or (word != "*" and _WILDCARD.match(word)):
        _refuse_pattern(str(expression).strip())
    if isinstance(expression, lucene.Not | lucene.Prohibit):
        raise _excludes_words(str(expression).strip(), "a semantic query")
    if isinstance(expression, lucene.Phrase):
        return _ESCAPED.sub(r"\1", expression.value[1:-1])
    if isinstance(expression, lucene.Term):
        return word if word == "*" else _ESCAPED.sub(r"\1", word)
    text = " ".join(_plain_text(child) for child in expression.children)
    if isinstance(expression, lucene.FieldGroup | lucene.Group | lucene.BaseOperation):
        return text
    return text or str(expression).strip()


def _refuse_pattern(expression: str) -> NoReturn:
    raise BadRequest(
        f"{expression!r} is a range, a pattern or a proximity search, but a semantic query needs a text",
        'Write the text in quotes, e.g. semantic:"how do plants make energy".',
    )


def _excludes_words(expression: str, location: str) -> BadRequest:
    return BadRequest(
        f"{expression!r} in the text of {location} excludes words, but a semantic query compares the text as a whole",
        "Exclude documents with a separate query in the must_not of a bool, or write the text in quotes.",
    )
