"""The parameters of semantic queries: which are applied or translated, and which are refused by name.

A silently dropped parameter would change the result unnoticed. So each query type has a list of the parameters that the
gateway applies; any other parameter is an error, as in the engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from es_sbert.engines.rest import Json
from es_sbert.gateway.errors import BadRequest
from es_sbert.io.text_formats import json_type_name
from es_sbert.search.vector_query import MAX_K, MAX_OVERSAMPLE

_SCORE = frozenset({"boost", "_name"})
# Parameters that control how words are expanded or missing words are treated, and that exclude no document.
_WITHOUT_EFFECT = frozenset({
    "auto_generate_synonyms_phrase_query", "case_insensitive", "fuzzy_rewrite", "fuzzy_transpositions", "lenient",
    "max_expansions", "prefix_length", "zero_terms_query",
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
_MULTI_FIELD = (_FULL_TEXT - {"k", "min_cosine"}) | {"fields", "type", "tie_breaker"}
_QUERY_STRING = frozenset({
    "allow_leading_wildcard", "analyze_wildcard", "analyzer", "auto_generate_synonyms_phrase_query", "default_field",
    "default_operator", "enable_position_increments", "escape", "fields", "fuzziness", "fuzzy_max_expansions",
    "fuzzy_prefix_length", "fuzzy_rewrite", "fuzzy_transpositions", "lenient", "max_determinized_states",
    "minimum_should_match", "phrase_slop", "query", "quote_analyzer", "quote_field_suffix", "rewrite", "tie_breaker",
    "time_zone", "type",
})  # fmt: skip
_SIMPLE_QUERY_STRING = frozenset({
    "analyze_wildcard", "analyzer", "auto_generate_synonyms_phrase_query", "default_operator", "fields", "flags",
    "fuzzy_max_expansions", "fuzzy_prefix_length", "fuzzy_transpositions", "lenient", "minimum_should_match", "query",
    "quote_field_suffix",
})  # fmt: skip
# Query type → the parameters that are applied, or change nothing.
_PARAMETERS: Mapping[str, Collection[str]] = {
    "match": _FULL_TEXT,
    "match_bool_prefix": _FULL_TEXT,
    "match_phrase": _FULL_TEXT,
    "match_phrase_prefix": _FULL_TEXT,
    "term": (_FULL_TEXT - _WORD_PARAMETERS.keys()) | {"value"},
    "multi_match": _MULTI_FIELD,
    "combined_fields": _MULTI_FIELD,
    "query_string": _QUERY_STRING | _SCORE,
    "simple_query_string": _SIMPLE_QUERY_STRING | _SCORE,
    "semantic": _SCORE | {"field", "query"},
    "knn": _SCORE
    | {"field", "filter", "k", "num_candidates", "query_vector_builder", "rescore_vector", "similarity"}
    | {"visit_percentage"},
    "text_embedding": frozenset({"model_id", "model_text"}),
    "neural": _SCORE
    | {"expand_nested_docs", "filter", "k", "max_distance", "method_parameters", "min_score", "model_id"}
    | {"query_text", "rescore"},
    "method_parameters": frozenset({"ef_search"}),
    "nested": _SCORE | {"ignore_unmapped", "inner_hits", "path", "query", "score_mode"},
}
_SCORE_MODES = ("avg", "max", "min", "none", "sum")


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
            near = get_close_matches(name, supported, 1)
            raise BadRequest(
                f"{location} has the parameter {name!r}, which the gateway does not support in a semantic query",
                f"{f'Did you mean {near[0]}?' if near else 'Remove it.'} Supported are {', '.join(sorted(supported))}.",
            )


def check_word_parameters(location: str, parameters: Json) -> None:
    """Refuse parameters that select by single words: a semantic query compares the text as a whole.

    Raises:
        BadRequest: there is such a parameter.
    """
    for name, values in _WORD_PARAMETERS.items():
        if name in parameters and not _is_one_of(parameters[name], values):
            raise BadRequest(
                f"{location} sets {name}, but a semantic query compares the text as a whole, not its words",
                f"Remove {name}, or search for the words in a text field, in the same bool.",
            )


def _is_one_of(value: Any, values: tuple[object, ...]) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | str) and value in values


def parse_nested(body: Json, location: str) -> tuple[Json, float]:
    """Parse a `nested` query around a semantic one: its parameters apart from path and query, and its boost.

    Unmapped indices match nothing, with `ignore_unmapped` or without: only indices with the field are searched.

    Raises:
        BadRequest: a parameter is unknown or invalid.
    """
    check_parameters("nested", location, body)
    mode = body.get("score_mode", "max")
    if mode not in _SCORE_MODES:
        raise BadRequest(f"score_mode of {location} is {mode!r}", f"Use one of {', '.join(_SCORE_MODES)}.")
    inner_hits = body.get("inner_hits")
    if inner_hits is not None and not isinstance(inner_hits, dict):
        raise BadRequest(
            f"inner_hits of {location} is a JSON {json_type_name(inner_hits)}, not an object",
            "Use an object, e.g. {}.",
        )
    parameters = {name: body[name] for name in ("inner_hits", "_name") if body.get(name) is not None}
    return parameters | {"score_mode": mode}, number_between(body.get("boost", 1.0), f"boost of {location}", 0.0, 1e9)


def parse_rescore_vector(value: Any, location: str) -> float | None:
    """Convert the `rescore_vector` of Elasticsearch's `knn` query to an oversampling factor.

    Returns:
        The factor; 0 for no rescoring, None for the default.

    Raises:
        BadRequest: the value is invalid.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"oversample"}:
        raise BadRequest(f"rescore_vector of {location} is not supported", 'Write {"oversample": 2}.')
    return _oversample(value["oversample"], f"rescore_vector.oversample of {location}")


def parse_rescore(value: Any, location: str) -> float | None:
    """Convert the `rescore` of OpenSearch's `neural` query to an oversampling factor.

    Returns:
        The factor; 0 for no rescoring, None for the default.

    Raises:
        BadRequest: the value is invalid.
    """
    if value is None or value is True:
        return None
    if value is False:
        return 0.0
    if not isinstance(value, dict) or not value.keys() <= {"oversample_factor"}:
        raise BadRequest(f"rescore of {location} is not supported", 'Write true, false or {"oversample_factor": 2}.')
    factor = value.get("oversample_factor")
    return None if factor is None else _oversample(factor, f"rescore.oversample_factor of {location}")


def _oversample(value: Any, location: str) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else number_between(value, location, 1.0, MAX_OVERSAMPLE)


def parse_ef_search(value: Any, location: str) -> int | None:
    """Parse the `method_parameters` of OpenSearch's `neural` query, and return `ef_search`; None if it is missing.

    Raises:
        BadRequest: `ef_search` is invalid, or there are other parameters.
    """
    if value is None:
        return None
    location = f"method_parameters of {location}"
    if not isinstance(value, dict):
        raise BadRequest(f"{location} is a JSON {json_type_name(value)}, not an object", 'Write {"ef_search": 100}.')
    check_parameters("method_parameters", location, value)
    return positive_integer(value["ef_search"], f"ef_search in {location}") if "ef_search" in value else None


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
