"""Rewrite semantic queries in ES|QL: `MATCH(semantic, "…")`, `semantic : "…"`, and `KNN(embedding, "…")` with a text.

Each becomes the engine's `KNN` with a vector, which is a parameter of the request: numbers in the query would fill logs
and error messages. Only tokens are read, so strings and comments never count. What is not certain passes unchanged: in
ES|QL, a column that does not exist is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from es_sbert.engines.engine_info import EngineInfo, EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.incoming_request import UnreadableJson, parse_object, write_object
from es_sbert.gateway.search.compound_queries import Place
from es_sbert.gateway.search.incoming_search import index_expression
from es_sbert.gateway.search.knn_clauses import SectionPlaceholder, query_without_vector
from es_sbert.gateway.search.semantic_query import SemanticQuery, SemanticQueryParser
from es_sbert.gateway.upstream import Upstream
from es_sbert.index.document_vectors import QueryVector, to_float_list

_KNN_VERSION = (9, 2, 0)
# Before, the number of neighbors is that of LIMIT, and no option changes it.
_K_OPTION_VERSION = (9, 3, 0)

_COMMON = r"""(?P<space>\s+|//[^\r\n]*)|(?P<comment>/\*)
    |(?P<string>"{3}[^\r\n]*?"{3,5}|"(?:[^"\\\r\n]|\\[tnr"\\])*")"""
_IDENTIFIER = r"(?:[A-Za-z]\w*|[_@]\w+|`(?:[^`]|``)+`)"
_EXPRESSION = re.compile(
    rf"""{_COMMON}|(?P<name>{_IDENTIFIER}(?:\s*\.\s*{_IDENTIFIER})*)|(?P<parameter>\?{{1,2}}(?:\d{{1,9}}|[A-Za-z_]\w*)?)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<symbol>::|[=!<>]=|=~|.)""",
    re.ASCII | re.DOTALL | re.VERBOSE,
)
# The indices of FROM and TS: `logs-2026.*`, `<logs-{now/d}>`.
_SOURCE = re.compile(
    rf"""{_COMMON}|(?P<source>(?:[^:"=|,\[\]/()\s]|/(?![*/]))+)|(?P<symbol>::|.)""", re.DOTALL | re.VERBOSE
)
_MAX_CHARACTERS = 1_000_000
_SURROGATE = re.compile("[\ud800-\udfff]")
_COMMENT_MARK = re.compile(r"/\*|\*/")
_ESCAPED = re.compile(r"\\(.)")
_CONTROL = {"t": "\t", "n": "\n", "r": "\r"}
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
# Names before a bracket that are not functions, where a semantic query may be inside.
_GROUPING = frozenset({"and", "fork", "in", "not", "or", "where"})
# Commands that may define columns whose names are not written in the query, or in a string.
_DEFINING = frozenset({"dissect", "enrich", "grok", "join"})


@dataclass(frozen=True, slots=True)
class Token:
    """A token of ES|QL. A name with its parts, such as `semantic.title`, is one token."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def value(self) -> str:
        """The name without quotation marks, or the content of the string."""
        if self.kind == "name":
            parts = re.findall(_IDENTIFIER, self.text, re.ASCII)
            return ".".join(part[1:-1].replace("``", "`") if part[0] == "`" else part for part in parts)
        if self.text.startswith('"""'):
            return self.text[3:-3]
        if self.kind == "string":
            return _ESCAPED.sub(lambda found: _CONTROL.get(found[1], found[1]), self.text[1:-1])
        return self.text


def tokenize(text: str) -> tuple[list[Token], list[str]]:
    """Split a query into tokens, and read the names of its indices, also of those in subqueries.

    A query with a comment that is not closed has no tokens: the engine reports it.
    """
    tokens: list[Token] = []
    sources, outer = list[str](), list[bool]()  # `outer`: of each open bracket, whether it is among the indices of FROM
    position, in_source, in_metadata = 0, False, False
    while position < len(text):
        found = (_SOURCE if in_source else _EXPRESSION).match(text, position)
        assert found is not None, "`.` matches any character"
        kind, position = str(found.lastgroup), found.end()
        if kind == "comment":
            position = _comment_end(text, position)
            if position < 0:
                return [], []
        if kind in ("space", "comment"):
            continue
        token = Token(kind, found[0], found.start())
        if in_source and token.text not in _OPENING | _CLOSING | {"|"}:
            in_metadata = in_metadata or token.text.lower() == "metadata"
            sources.append("" if in_metadata else token.value)
        elif token.text.lower() in ("from", "ts") and _begins_command(tokens, outer):
            in_source, in_metadata = True, False
            sources.append(",")
        elif token.text == "(":
            outer.append(in_source)
            in_source = False
            sources.append(",")
        elif token.text == ")":
            in_source, in_metadata = bool(outer and outer.pop()), False
        elif token.text == "|":
            in_source = False
        tokens.append(token)
    # `docs::failures` are other documents of the same data stream.
    return tokens, [name.partition("::")[0] for name in "".join(sources).split(",") if name]


def _comment_end(text: str, position: int) -> int:
    """The end of a comment, which may contain others; -1 if there is none."""
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(text, position)
        if mark is None:
            return -1
        depth, position = depth + (1 if mark[0] == "/*" else -1), mark.end()
    return position


def _begins_command(tokens: Sequence[Token], outer: Sequence[bool]) -> bool:
    before = [token.text.lower() for token in tokens[-2:]]
    if not before or before[-1] in ("|", ";", "["):
        return True
    return before[-1] == "(" and (outer[-1] or before[0] in ("in", "explain"))


@dataclass(frozen=True)
class EsqlCall:
    """A call of `KNN`, `MATCH` or `MATCH_PHRASE`; or `field : text`, which is a `MATCH`.

    Attributes:
        function: Its name in lower case.
        field: Its first argument.
        text, options: The tokens of its other arguments.
        first, after: Number of its first token, and of the one after it.
    """

    function: str
    field: Token
    text: list[Token]
    options: list[Token]
    first: int
    after: int


@dataclass(frozen=True, eq=False)
class EsqlPlaceholder(SectionPlaceholder):
    """The place of a semantic query in ES|QL; as with a section, the engine itself keeps the k nearest documents.

    Attributes:
        name: The parameter with the vector.
        start, end: The text that `before`, the reference to the parameter, and `behind` replace.
    """

    name: str
    start: int
    end: int
    before: str
    behind: str

    def native_section(self, vector: QueryVector) -> Json:
        """The named parameter with the vector, *shape:* ``(dimensions,)``."""
        return {self.name: to_float_list(vector)}


class EsqlQuery:
    """The body of a request to `_query`.

    Attributes:
        body: The body, as sent.
        indices: The index expression, percent-encoded; None without indices.
        parameters: The parameter of each semantic query that was found, once its text is embedded.

    Raises:
        UnreadableJson: the body is not a JSON object.
    """

    def __init__(self, plain: bytes) -> None:
        self.body = parse_object(plain)
        self.parameters: dict[EsqlPlaceholder, Json] = {}
        params = self.body.get("params")
        text = self.body.get("query")
        is_valid = isinstance(text, str) and len(text) <= _MAX_CHARACTERS and not _SURROGATE.search(text)
        self._text = str(text) if is_valid else ""  # the engine refuses any other text
        self._params: list[Any] = params if isinstance(params, list) else []
        self._tokens, names = tokenize(self._text)
        marks = [token for token in self._tokens if token.kind == "parameter" and not token.text.strip("?")]
        self._unnamed = {token.start: number for number, token in enumerate(marks)}
        self.indices = index_expression(names)
        # Columns that the query itself defines are not virtual fields.
        self._defined = {
            token.value
            for number, token in enumerate(self._tokens)
            if self._at(number + 1) == "=" or self._at(number - 1) == "as"
        }
        self._has_other_columns = not _DEFINING.isdisjoint(token.text.lower() for token in self._tokens)

    def find(self, parser: SemanticQueryParser, upstream: Upstream) -> dict[EsqlPlaceholder, Place]:
        """Find the semantic queries, and where to put their parameters; none on OpenSearch, which has no ES|QL.

        Raises:
            BadRequest: a semantic query is invalid or not a condition of WHERE, or the engine lacks `KNN`.
            IndexMismatch: see `FieldResolver`.
        """
        found: dict[EsqlPlaceholder, Place] = {}
        after, engine = 0, upstream.info
        is_elasticsearch = upstream.engine_type_or_default is EngineType.ELASTICSEARCH
        for number, token in enumerate(self._tokens if is_elasticsearch else ()):
            if number < after or token.kind != "name" or token.value in self._defined:
                continue
            call = self._call(number)
            semantic = None if call is None else self._knn(call, parser) or self._match(call, parser)
            if call is not None and semantic is not None:
                _check_engine(semantic, engine)
                semantic = semantic.without_k() if self._is_negated(call) else semantic
                placeholder = self._placeholder(call, semantic, engine, f"_es_sbert_{len(found) + 1}")
                found[placeholder] = self.parameters, placeholder
                after = call.after
            elif self._at(number + 1) not in ("(", "*", ".") and not self._has_other_columns:
                _reject_column(token.value, parser)
        return found

    def rewritten(self) -> bytes:
        """The request with its `parameters`."""
        params, pieces, end, shift = list(self._params), list[str](), 0, 0
        unnamed = self._unnamed
        is_named = all(isinstance(param, dict) for param in params)
        by_position = not is_named or any(
            token.kind == "parameter" and token.text.strip("?").isdigit() for token in self._tokens
        )
        for place, named in self.parameters.items():
            param = named if is_named else named[place.name]
            if unnamed:  # the engine counts them, and refuses to mix them with others
                first = shift + sum(start < place.start for start in unnamed)
                inside = sum(place.start <= start < place.end for start in unnamed)
                params[first : first + inside] = [param]
                shift, reference = shift + 1 - inside, "?"
            else:
                params.append(param)
                reference = f"?{len(params)}" if by_position else f"?{place.name}"
            pieces += [self._text[end : place.start], place.before, reference, place.behind]
            end = place.end
        return write_object(self.body | {"query": "".join(pieces) + self._text[end:], "params": params})

    def _at(self, number: int) -> str:
        """The text of a token in lower case; empty beyond the query."""
        return self._tokens[number].text.lower() if 0 <= number < len(self._tokens) else ""

    def _call(self, number: int) -> EsqlCall | None:
        """The call that begins with a token; None if there is none."""
        function, tokens = self._at(number), self._tokens
        field, first, after = number, number + 2, number + 3
        if self._at(number + 1) == "(" and function in ("knn", "match", "match_phrase") and self._at(number + 3) == ",":
            field, first = number + 2, number + 4
            # Options have no brackets, so each token is read for one call only.
            brackets = (each for each in range(first, len(tokens)) if tokens[each].text in ("(", ")"))
            after = next(brackets, -1) + 1
        elif self._at(number + 1) == ":":
            function = "match"
        else:
            return None
        if not after or first >= len(tokens) or tokens[field].kind != "name" or tokens[field].value in self._defined:
            return None
        is_constant = after == first + 1 or self._at(first + 1) in (",", ")")
        text, options = tokens[first : first + (1 if is_constant else 2)], tokens[first + 2 : after - 1]
        return EsqlCall(function, tokens[field], text, options, number, after)

    def _knn(self, call: EsqlCall, parser: SemanticQueryParser) -> SemanticQuery | None:
        """Parse `KNN` with a text; None for another function, for a vector, and for a field without a model."""
        text = self._constant(call.text) if call.function == "knn" else None
        if not isinstance(text, str) or call.text[0].kind == "number":
            return None
        builder = {"text_embedding": {"model_text": text}}
        options = {name: value for name, value in self._options(call).items() if name in ("k", "similarity")}
        body: Json = {"field": call.field.value, "query_vector_builder": builder, **options}
        semantic = parser.parse("knn", body, is_section=True)
        if semantic is None or len(text) != 2 * semantic.target.meta.dimensions:
            return semantic
        return None if re.fullmatch("[0-9a-fA-F]+", text) else semantic  # the engine reads such a text as a vector

    def _match(self, call: EsqlCall, parser: SemanticQueryParser) -> SemanticQuery | None:
        """Parse `MATCH` on the virtual field; None for another function or field."""
        field = call.field.value
        if call.function == "knn" or parser.fields.virtual(field) is None:
            return None
        text = self._constant(call.text)
        if isinstance(text, dict):
            raise BadRequest(
                f"the text to search for in {field} is not a constant",
                f'Write a string, as in WHERE MATCH({field}, "…"), or a parameter: MATCH({field}, ?text).',
            )
        return parser.parse(call.function, {field: {"query": text, **self._options(call)}})

    def _placeholder(
        self, call: EsqlCall, semantic: SemanticQuery, engine: EngineInfo | None, name: str
    ) -> EsqlPlaceholder:
        path, field, text = semantic.target.name, call.field, call.text[0]
        path = path if re.fullmatch(_IDENTIFIER, path, re.ASCII) else f"`{path.replace('`', '``')}`"
        start, end = self._tokens[call.first].start, self._tokens[call.after - 1].end
        before, behind = f"KNN({path}, ", f"{_knn_options(semantic, engine)})"
        if call.function == "knn":  # its options stay as they are
            start, end, before, behind = field.start, text.end, path + self._text[field.end : text.start], ""
        return EsqlPlaceholder(semantic, {}, None, name, start, end, before, behind)

    def _constant(self, tokens: Sequence[Token]) -> object:
        """The value of a string, number or parameter; an empty object for anything else, which is not a text."""
        if len(tokens) != 1 or tokens[0].kind not in ("string", "number", "parameter"):
            return {}
        return self._parameter(tokens[0]) if tokens[0].kind == "parameter" else tokens[0].value

    def _parameter(self, token: Token) -> object:
        name = token.text.lstrip("?")
        if name and not name.isdigit():
            found = [param[name] for param in self._params if isinstance(param, dict) and name in param]
        else:
            position = int(name) - 1 if name else self._unnamed[token.start]
            chosen = self._params[position : position + 1]
            found = [value for param in chosen for value in (param.values() if isinstance(param, dict) else [param])]
        value = found[0] if found else {}
        return value.get("value", value) if isinstance(value, dict) else value

    def _options(self, call: EsqlCall) -> Json:
        """Read the map of options, such as `{"k": 20}`.

        Raises:
            BadRequest: it is not one.
        """
        written = [
            orjson.dumps(self._constant([token]))
            if token.kind in ("string", "parameter")
            else token.text.lower().encode()
            for token in call.options
        ]
        try:
            return parse_object(b"".join(written) or b"{}")
        except UnreadableJson:
            raise BadRequest(
                f"the options of {call.function.upper()} on {call.field.value} are not a map of constants",
                'Write them as in {"k": 20, "min_cosine": 0.3}.',
            ) from None

    def _is_negated(self, call: EsqlCall) -> bool:
        """Whether the documents that a condition matches are excluded.

        Raises:
            BadRequest: it is not a condition of WHERE, but an argument of a function or in another command.
        """
        negated, depth, edge = False, 0, call.first
        for number in range(call.first - 1, -1, -1):
            text = self._at(number)
            if text in _CLOSING or depth:
                depth += (text in _CLOSING) - (text in _OPENING)
            elif text == "where":
                return negated
            elif text == "not" and number == edge - 1:
                negated, edge = not negated, number
            elif text == "(" and (self._tokens[number - 1].kind != "name" or self._at(number - 1) in _GROUPING):
                edge = number
            elif text in _OPENING or text == "|":
                break
        raise BadRequest(
            f"the semantic query on {call.field.value} in ES|QL is not a condition of WHERE",
            "Write the semantic query in WHERE, joined to other conditions by AND, OR and NOT.",
        )


def _reject_column(name: str, parser: SemanticQueryParser) -> None:
    """Refuse a virtual field in any other place."""
    if parser.fields.virtual_only(name) is not None:
        raise BadRequest(
            f"ES|QL uses {name}, which is a semantic field, outside of MATCH",
            f'Write WHERE MATCH({name}, "…"), and sort by the score: FROM … METADATA _score | WHERE … | SORT _score '
            "DESC. X-Es-Sbert: off passes the request through unchanged.",
        )


def _check_engine(semantic: SemanticQuery, engine: EngineInfo | None) -> None:
    if engine is not None and engine.version < _KNN_VERSION:
        raise BadRequest(
            f"ES|QL of {engine.label} has no function KNN, which semantic queries need",
            "Use _search for semantic search, or upgrade to Elasticsearch 9.3 or later.",
        )
    if semantic.target.meta.passages is not None:
        raise BadRequest(
            f"ES|QL cannot search {semantic.target.name}, which holds one vector per passage, in nested objects",
            "Use _search for semantic search in this index.",
        )


def _knn_options(semantic: SemanticQuery, engine: EngineInfo | None) -> str:
    """Write the options of `KNN` for a query on the virtual field, after a comma; empty without any."""
    query = query_without_vector(EngineType.ELASTICSEARCH, semantic, (), None, matches_candidates=False)
    options: Json = {}
    if engine is None or engine.version >= _K_OPTION_VERSION:
        options |= {"k": query.k, "min_candidates": max(query.k, query.candidates)}
    minima = (query.min_cosine, semantic.target.min_cosine if semantic.calibrated else None)
    if known := [value for value in minima if value is not None]:
        options["similarity"] = max(known)
    if query.boost != 1.0:
        options["boost"] = query.boost
    if (oversample := semantic.target.oversample()) is not None:
        options["rescore_oversample"] = oversample
    return f", {orjson.dumps(options).decode()}" if options else ""
