"""Parse a single semantic query: `match` on the virtual field, `knn` with `query_vector_builder`, `neural`,
`semantic`.

A silently dropped parameter would change the result unnoticed. So each query type has a list of the parameters that the
gateway applies or translates; any other parameter is refused by name, as in the engine.

A `query_string` is split into one query per field. The text of a semantic query has no operators in Lucene syntax:
words, a phrase in quotes, or several in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from luqum import tree as lucene
from luqum.exceptions import ParseError
from luqum.thread import parse

from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch
from es_sbert.gateway.errors import BadRequest
from es_sbert.gateway.search.compound_queries import clause_list
from es_sbert.gateway.search.field_resolver import FieldResolver
from es_sbert.gateway.settings import SemanticSettings
from es_sbert.io.text_formats import json_type_name
from es_sbert.search.search_scope import SearchScope
from es_sbert.search.vector_query import MAX_K

_SCORE = frozenset({"boost", "_name"})
# Parameters that control how words are expanded or missing words are treated, and that exclude no document.
_WITHOUT_EFFECT = frozenset({
    "auto_generate_synonyms_phrase_query", "fuzzy_rewrite", "fuzzy_transpositions", "lenient", "max_expansions",
    "prefix_length", "zero_terms_query",
})  # fmt: skip
# Parameters that select by single words, with the values at which they do not. Java's clients send all defaults.
_WORD_PARAMETERS: Mapping[str, tuple[object, ...]] = {
    "analyzer": (),
    "fuzziness": (0, "0"),
    "minimum_should_match": (0, 1, "0", "1"),
    "operator": ("or", "OR", "Or"),
    "slop": (0, "0"),
}
_FULL_TEXT = frozenset({"query", "k", "min_cosine"}) | _SCORE | _WITHOUT_EFFECT | _WORD_PARAMETERS.keys()
# The engine applies these to the other fields of the query, or to how the syntax is read.
_LUCENE = (_FULL_TEXT - {"k", "min_cosine", "minimum_should_match", "_name"}) | frozenset({
    "allow_leading_wildcard", "analyze_wildcard", "default_field", "default_operator", "enable_position_increments",
    "escape", "fields", "flags", "fuzzy_max_expansions", "fuzzy_prefix_length", "max_determinized_states",
    "phrase_slop", "quote_analyzer", "quote_field_suffix", "rewrite", "tie_breaker", "time_zone", "type",
})  # fmt: skip
# Full-text queries on one field. On the virtual field they all mean the same: Kibana sends a phrase for quoted words.
SINGLE_FIELD_QUERIES = frozenset({"match", "match_phrase", "match_phrase_prefix", "match_bool_prefix"})
MULTI_FIELD_QUERIES = frozenset({"multi_match", "combined_fields", "query_string", "simple_query_string"})
# Query type → the parameters that are applied, or change nothing.
_PARAMETERS: Mapping[str, Collection[str]] = {
    **dict.fromkeys(SINGLE_FIELD_QUERIES, _FULL_TEXT),
    "query_string": _LUCENE,
    "semantic": _SCORE | {"field", "query"},
    "knn": _SCORE | {"field", "filter", "k", "num_candidates", "query_vector_builder", "similarity"},
    "text_embedding": frozenset({"model_id", "model_text"}),
    "neural": _SCORE | {"filter", "k", "model_id", "query_text"},
}


def check_parameters(kind: str, location: str, parameters: Iterable[str]) -> None:
    """Refuse parameters that the gateway does not apply.

    Args:
        kind: Type of the query.
        location: The part of the request, for messages.
        parameters: Names of the query's parameters.

    Raises:
        BadRequest: a parameter is not supported.
    """
    supported = _PARAMETERS[kind]
    for name in parameters:
        if name not in supported:
            raise BadRequest(
                f"{location} has the parameter {name!r}, which the gateway does not support in a semantic query",
                f"Remove it. Supported are {', '.join(sorted(supported))}.",
            )


def check_word_parameters(location: str, parameters: Json) -> None:
    """Refuse parameters that select by single words: a semantic query compares the text as a whole.

    Raises:
        BadRequest: there is such a parameter.
    """
    for name, values in _WORD_PARAMETERS.items():
        # True is 1 to Python, and no list is in a tuple of scalars.
        if name in parameters and (isinstance(parameters[name], bool) or parameters[name] not in values):
            raise BadRequest(
                f"{location} sets {name}, but a semantic query compares the text as a whole, not its words",
                f"Remove {name}, or search for the words in a text field, in the same bool.",
            )


def number_between(value: object, location: str, lowest: float, highest: float) -> float:
    """Check a number.

    Raises:
        BadRequest: the value is not a number, or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise BadRequest(f"{location} is {value!r}", f"Use a number from {lowest:g} to {highest:g}.")
    return value


def positive_integer(value: object, location: str) -> int:
    """Check an integer from 1 to `MAX_K`.

    Raises:
        BadRequest: the value is not an integer, or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_K:
        raise BadRequest(f"{location} is {value!r}", f"Use a whole number from 1 to {MAX_K:,}.")
    return value


class SemanticSyntax(StrEnum):
    """The syntax in which a semantic query was written."""

    VIRTUAL_FIELD = "virtual_field"
    TEXT_EMBEDDING = "text_embedding"
    SEMANTIC = "semantic"
    NEURAL = "neural"
    HYBRID = "hybrid"


# The engines' own queries, which find k documents of each shard and define the candidates themselves.
NATIVE_SYNTAXES = (SemanticSyntax.TEXT_EMBEDDING, SemanticSyntax.NEURAL)


@dataclass(frozen=True)
class SemanticQuery:
    """A semantic query.

    Attributes:
        target: The vector field.
        text: The text to embed.
        k: Number of nearest documents to keep.
        filter: Filter for the documents, from the query itself.
        min_cosine: Documents below this cosine are dropped.
        calibrated: Whether the minimum cosine in the mapping of each index applies as well.
        num_candidates: Vectors that each shard compares; None derives it from k.
        boost: Factor of the score.
        name: The query's `_name`.
        syntax: Syntax of the query in the request.
    """

    target: SearchScope = field(repr=False)
    text: str
    k: int
    filter: Json | None = None
    min_cosine: float | None = None
    num_candidates: int | None = None
    boost: float = 1.0
    name: str | None = None
    syntax: SemanticSyntax = SemanticSyntax.SEMANTIC
    calibrated: bool = False

    def without_k(self) -> SemanticQuery:
        """Return the query without its limit k, to exclude all documents above the minimum cosine.

        Raises:
            BadRequest: there is no minimum cosine. The k nearest documents may be all documents of a small index.
        """
        in_mappings = self.calibrated and all(field.meta.min_cosine is not None for field in self.target.fields)
        if self.min_cosine is None and not in_mappings:
            raise BadRequest(
                "a semantic query whose matches are to be excluded has no minimum cosine; without one, the k nearest "
                "documents would be excluded, however distant they are",
                "Measure one for the index: es-sbert index calibrate INDEX --save; or set one in the request: "
                '{"match": {"semantic": {"query": "…", "min_cosine": 0.4}}}, or with --min-cosine of es-sbert serve.',
            )
        return self if self.syntax in NATIVE_SYNTAXES else replace(self, k=MAX_K, num_candidates=MAX_K)


class SemanticQueryParser:
    """Parses the semantic queries of one search body.

    Args:
        fields: Resolves the field names of the request.
        settings: Defaults of semantic queries.
        max_text_characters: Maximum length of a query text.
        check: Called with the number of semantic queries each time another one is found; may reject them.
    """

    def __init__(
        self,
        fields: FieldResolver,
        settings: SemanticSettings,
        max_text_characters: int,
        check: Callable[[int], None] | None = None,
    ) -> None:
        self.fields = fields
        self.settings = settings
        self.max_text_characters = max_text_characters
        self._check = check
        self._count = 0

    def parse(self, kind: str, body: Json, *, is_section: bool = False) -> SemanticQuery | None:
        """Parse a query; None if it is not a semantic one.

        Args:
            kind: Type of the query.
            is_section: Whether it is Elasticsearch's section or retriever `knn`, whose other parameters are not
                checked: the engine gets all of them.

        Raises:
            BadRequest: a value is invalid.
            IndexMismatch: the query names a model other than the field's, or fields with different models.
        """
        semantic = None
        if kind in SINGLE_FIELD_QUERIES:
            semantic = self._full_text(kind, body)
        elif kind == "knn":
            semantic = self._knn(body, is_section=is_section)
        elif kind == "neural":
            semantic = self._neural(body)
        elif kind == "semantic" and (target := self._target(body.get("field"), None)) is not None:
            location = f"semantic on {body['field']}"
            check_parameters("semantic", location, body)
            minimum = self.settings.min_cosine
            semantic = self._query(target, SemanticSyntax.SEMANTIC, body.get("query"), location, body, minimum)
        if semantic is not None:
            self._count += 1
            if self._check is not None:
                self._check(self._count)
        return semantic

    def _full_text(self, kind: str, body: Json) -> SemanticQuery | None:
        field, options = next(iter(body.items())) if len(body) == 1 else ("", None)
        target = self.fields.virtual(field)
        if target is None:
            return None
        options, location = options if isinstance(options, dict) else {"query": options}, f"{kind} on {field}"
        check_parameters(kind, location, options)
        check_word_parameters(location, options)
        minimum = _cosine_or_none(options.get("min_cosine", self.settings.min_cosine), f"min_cosine of {location}")
        text = scalar_as_text(options.get("query"))
        return self._query(target, SemanticSyntax.VIRTUAL_FIELD, text, location, options, minimum)

    def _knn(self, body: Json, *, is_section: bool) -> SemanticQuery | None:
        builder = body.get("query_vector_builder")
        embedding = builder.get("text_embedding") if isinstance(builder, dict) else None
        if not isinstance(embedding, dict):
            return None
        target = self._target(body.get("field"), embedding.get("model_id"))
        if target is None:
            return None
        location = f"knn on {body['field']}"
        check_parameters("text_embedding", f"query_vector_builder of {location}", embedding)
        if not is_section:
            check_parameters("knn", location, body)
        candidates = body.get("num_candidates")
        if candidates is not None:
            positive_integer(candidates, f"num_candidates of {location}")
        minimum = _cosine_or_none(body.get("similarity"), f"similarity of {location}")
        text = embedding.get("model_text")
        return self._query(target, SemanticSyntax.TEXT_EMBEDDING, text, location, body, minimum, candidates)

    def _neural(self, body: Json) -> SemanticQuery | None:
        fields = {name: value for name, value in body.items() if isinstance(value, dict) and "query_text" in value}
        if len(fields) != 1:
            return None
        [(field, options)] = fields.items()
        target = self._target(field, options.get("model_id"))
        if target is None:
            return None
        location = f"neural on {field}"
        check_parameters("neural", location, options)
        for name in body.keys() - {field, "_name"}:
            raise BadRequest(
                f"{location} has {name!r} next to the field", f"Move {name!r} into the object of the field."
            )
        named = options | {"_name": _name(body) or _name(options)}
        return self._query(target, SemanticSyntax.NEURAL, options["query_text"], location, named, None)

    def _query(
        self,
        target: SearchScope,
        syntax: SemanticSyntax,
        text: object,
        location: str,
        options: Json,
        min_cosine: float | None,
        num_candidates: int | None = None,
    ) -> SemanticQuery:
        is_native = syntax in NATIVE_SYNTAXES
        return SemanticQuery(
            target,
            parse_query_text(text, location, self.max_text_characters),
            positive_integer(options.get("k", self.settings.k), f"k of {location}"),
            filter=_filter(options.get("filter")),
            min_cosine=min_cosine,
            num_candidates=num_candidates if is_native else self.settings.num_candidates,
            boost=number_between(options.get("boost", 1.0), f"boost of {location}", 0.0, 1e9),
            name=_name(options),
            syntax=syntax,
            # A minimum cosine of the request or of the gateway's settings replaces the one in the mapping; the engines'
            # own queries never use the one in the mapping.
            calibrated=not is_native and "min_cosine" not in options and self.settings.min_cosine is None,
        )

    def _target(self, name: object, model: object) -> SearchScope | None:
        """Find a vector field by its own name, its virtual name, or the name of its text field.

        Args:
            model: The model that the request names; None for the field's.
        """
        if not isinstance(name, str):
            return None
        target = self.fields.named(name) or self.fields.virtual(name) or self.fields.for_text(name)
        if target is not None:
            meta = target.meta
            if model not in {meta.model, meta.fingerprint, meta.model.rstrip("/").rpartition("/")[2], None}:
                raise IndexMismatch(
                    f"the request names the model {model!r}, but the vectors of {target.name} are of another model",
                    "Remove the model from the request, or use the one in the mapping's _meta.es_sbert.",
                )
        return target


def _filter(value: Any) -> Json | None:
    if value is None or value == []:
        return None
    clauses = clause_list(value)
    if not clauses:
        raise BadRequest(
            "the filter of a semantic query is not a query", """Write e.g. {"term": {"language": "en"}}."""
        )
    return clauses[0] if len(clauses) == 1 else {"bool": {"filter": value}}


def _cosine_or_none(value: object, location: str) -> float | None:
    return None if value is None else number_between(value, location, -1.0, 1.0)


def _name(options: Json) -> str | None:
    name = scalar_as_text(options.get("_name"))
    return name if isinstance(name, str) else None


_TEXT_REMEDY = "Send the text to search for as a string."


def parse_query_text(value: object, location: str, max_characters: int) -> str:
    """Check a query text.

    Args:
        value: The JSON value. The caller converts numbers and booleans to text (`scalar_as_text`) where engines accept
            them: Kibana sends `semantic: 2024` as a number.
        location: The part of the request, for messages.

    Raises:
        BadRequest: the value is not a string, is blank or too long, or contains lone surrogates.
    """
    if not isinstance(value, str):
        raise BadRequest(f"the text of {location} is a JSON {json_type_name(value)}, not a string", _TEXT_REMEDY)
    if not value.strip():
        raise BadRequest(f"the text of {location} is empty", _TEXT_REMEDY)
    if len(value) > max_characters:
        raise BadRequest(
            f"the text of {location} has {len(value):,} characters; the limit is {max_characters:,}",
            "Search for the most important sentence: models read a few hundred words at most.",
        )
    if not value.isprintable() and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise BadRequest(f"the text of {location} is not valid Unicode", _TEXT_REMEDY)
    return value


def scalar_as_text(value: object) -> object:
    """Convert a number or boolean to text, as engines read it in full-text queries; return other values unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


BOOST_SUFFIX = re.compile(r"\^[\d.]+$")


def query_string_as_bool(kind: str, body: Json, parser: SemanticQueryParser) -> Json | None:
    """Convert a `query_string` with semantic parts to a bool: `match` for the virtual field, `query_string` for all
    other parts. None for a query without semantic parts.

    Raises:
        BadRequest: the query may name a virtual field, but is not valid Lucene syntax; or it is a query on several
            fields, and one of them is virtual.
    """
    if kind not in MULTI_FIELD_QUERIES:
        return None
    fields: Any = body.get("fields", body.get("default_field"))
    for name in fields if isinstance(fields, list) else [fields]:
        if isinstance(name, str) and parser.fields.virtual(name := BOOST_SUFFIX.sub("", name)) is not None:
            raise BadRequest(
                f"{kind} on {name} is not supported: {name} is a semantic field",
                f'Search it as {{"match": {{"{name}": "…"}}}}, in one bool with the {kind} on other fields.',
            )
    text, virtual_field = body.get("query"), parser.settings.virtual_field
    if kind != "query_string" or not isinstance(text, str) or body.get("escape") is True:
        return None
    if not may_name_field(text, virtual_field):
        return None
    try:
        tree = _parse_lucene(text, parser)
    except BadRequest:
        if parser.fields.virtual(virtual_field) is None:
            return None
        raise
    if not _names_virtual(tree, parser):
        return None
    check_parameters(kind, kind, body)
    boost = number_between(body.get("boost", 1.0), f"boost of {kind}", 0.0, 1e9)
    return _convert_tree(tree, boost, body, parser)


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


def _parse_lucene(text: str, parser: SemanticQueryParser) -> lucene.Item:
    """Parse a `query_string` into a syntax tree.

    Raises:
        BadRequest: the text is too long, or is not valid Lucene syntax.
    """
    if len(text) > parser.max_text_characters:
        # Reject long texts before they reach the Lucene parser, which is slow on them.
        parse_query_text(text, "query_string", parser.max_text_characters)
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
    return re.search(rf'(?<![\w.]){virtual}[^\s:()"]*\s*:|_exists_\s*:[^:]*{virtual}', text) is not None


def _names_virtual(tree: lucene.Item, parser: SemanticQueryParser) -> bool:
    return _virtual_name(tree, parser) is not None or any(_names_virtual(child, parser) for child in tree.children)


def _virtual_name(tree: lucene.Item, parser: SemanticQueryParser) -> str | None:
    """The virtual field that a part of a query searches, also by `_exists_`; None for any other part."""
    if not isinstance(tree, lucene.SearchField):
        return None
    names: Iterable[str] = [str(tree.name)]
    if tree.name == "_exists_":  # `*` finds all documents, other patterns those with a field that matches
        virtual = parser.settings.virtual_field
        names = (virtual if word != "*" and fnmatchcase(virtual, word) else word for word in _words(tree.expr))
    return next((name for name in names if parser.fields.virtual(name) is not None), None)


def _words(expression: lucene.Item) -> Iterator[str]:
    if isinstance(expression, lucene.Term):
        yield _ESCAPED.sub(r"\1", expression.value.strip('"'))
    for child in expression.children:
        yield from _words(child)


def _convert_tree(tree: lucene.Item, boost: float, body: Json, parser: SemanticQueryParser) -> Json:
    """Convert a parsed `query_string` to queries."""
    rest = {name: value for name, value in body.items() if name not in ("query", "boost")}
    default_and = str(body.get("default_operator", "or")).lower() == "and"

    def convert(tree: lucene.Item, boost: float) -> Json:
        if not _names_virtual(tree, parser):
            query = rest | {"query": str(tree).strip()}
            return {"query_string": query if boost == 1.0 else query | {"boost": boost}}
        if isinstance(tree, lucene.Boost):
            return convert(tree.expr, boost * float(tree.force))
        name = _virtual_name(tree, parser)
        if name is not None:
            expression = tree.children[0]
            while isinstance(expression, lucene.Boost):
                boost *= float(expression.force)
                expression = expression.children[0]
            if tree.name == "_exists_" or str(expression).strip() == "*":
                return {"exists": {"field": name}}  # which is refused
            return {"match": {name: {"query": _plain_text(expression), "boost": boost}}}
        if isinstance(tree, lucene.Group | lucene.Plus):
            return convert(tree.children[0], boost)
        if isinstance(tree, lucene.Not | lucene.Prohibit):
            return {"bool": {"must_not": [convert(tree.children[0], 1.0)]}}
        if isinstance(tree, lucene.BaseOperation):
            return operation(tree, boost)
        raise BadRequest(
            f"{str(tree).strip()!r} is an expression that cannot contain a semantic query",
            "Put the semantic query outside of it, joined by AND or OR.",
        )

    def operation(tree: lucene.BaseOperation, boost: float) -> Json:
        every = isinstance(tree, lucene.AndOperation) or (default_and and not isinstance(tree, lucene.OrOperation))
        clauses: dict[str, Any] = {}
        for child in tree.children:
            name = "must" if every else "should"
            if isinstance(child, lucene.Not | lucene.Prohibit):
                name, child = "must_not", child.children[0]
            elif isinstance(child, lucene.Plus):
                name, child = "must", child.children[0]
            clauses.setdefault(name, []).append(convert(child, boost))
        if "should" in clauses and "must" not in clauses:
            clauses["minimum_should_match"] = 1
        return {"bool": clauses}

    return convert(tree, boost)


def _plain_text(expression: lucene.Item) -> str:
    """Extract the text of an expression, without Lucene syntax.

    Raises:
        BadRequest: the expression is not a text.
    """
    if isinstance(expression, lucene.Phrase):
        return _ESCAPED.sub(r"\1", expression.value[1:-1])
    if isinstance(expression, lucene.Word) and not _WILDCARD.match(expression.value):
        return _ESCAPED.sub(r"\1", expression.value)
    if isinstance(expression, lucene.FieldGroup | lucene.Group | lucene.BaseOperation):
        return " ".join(_plain_text(child) for child in expression.children)
    raise BadRequest(
        f"{str(expression).strip()!r} excludes words or is a pattern, but a semantic query compares its whole text",
        'Write the text in quotes, e.g. semantic:"how do plants make energy", and exclude documents with a separate '
        "query in the must_not of a bool.",
    )
