"""Recognize requests that fail because the engine was built without a module.

Complete servers have every module. Test builds, such as those of `es-sbert engine`, have only some of them, and the
engine's own message does not say that a module is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from es_sbert.errors import FeatureMissing


@dataclass(frozen=True)
class EngineModule:
    """A part of the engine that a build may lack.

    Attributes:
        name: As `GET _nodes/plugins` lists it.
        feature: What it brings, as messages call it.
        in_es9: Whether `es-sbert engine up es9` has it.
        in_opensearch: Whether `es-sbert engine up opensearch` has the feature.
    """

    name: str
    feature: str
    in_es9: bool = False
    in_opensearch: bool = True


SCRIPTS_MODULE = EngineModule("lang-painless", "scripts", in_es9=True)
_REINDEX = EngineModule("reindex", "reindexing, and updating and deleting by query", in_es9=True)
_ANALYSIS = EngineModule("analysis-common", "language analyzers", in_es9=True)
_INGEST = EngineModule("ingest-common", "the common ingest processors", in_es9=True)
_JOIN = EngineModule("parent-join", "parents and children", in_es9=True)
_AGGREGATIONS = EngineModule("aggregations", "further aggregations", in_es9=True)
_MAPPER_EXTRAS = EngineModule("mapper-extras", "further field types")
_PERCOLATOR = EngineModule("percolator", "the percolator")
_TEMPLATES = EngineModule("lang-mustache", "search templates")
_RANK_EVAL = EngineModule("rank-eval", "the evaluation of rankings")
_ASYNC = EngineModule("x-pack-async-search", "asynchronous search", in_opensearch=False)
_SQL = EngineModule("x-pack-sql", "SQL", in_opensearch=False)
_ESQL = EngineModule("x-pack-esql", "ES|QL", in_opensearch=False)
_EQL = EngineModule("x-pack-eql", "EQL", in_opensearch=False)
_ILM = EngineModule("x-pack-ilm", "index lifecycle management", in_opensearch=False)
_SPATIAL = EngineModule("spatial", "shapes")
_ANALYTICS = EngineModule("x-pack-analytics", "further aggregations", in_opensearch=False)
_DATA_STREAMS = EngineModule("data-streams", "data streams")

MODULES = (
    SCRIPTS_MODULE,
    _REINDEX,
    _ANALYSIS,
    _INGEST,
    _JOIN,
    _AGGREGATIONS,
    _MAPPER_EXTRAS,
    _PERCOLATOR,
    _TEMPLATES,
    _RANK_EVAL,
    _ASYNC,
    _SQL,
    _ESQL,
    _EQL,
    _ILM,
    _SPATIAL,
    _ANALYTICS,
    _DATA_STREAMS,
)


def _by_name(names: Mapping[EngineModule, str]) -> Mapping[str, EngineModule]:
    return MappingProxyType({name: module for module, listed in names.items() for name in listed.split()})


# What the engine calls the thing that it does not know → which of its names come with which module.
_UNKNOWN_NAME_PATTERNS = (
    (
        re.compile(r"script_lang not supported \[(\w+)\]"),
        _by_name({SCRIPTS_MODULE: "painless", _TEMPLATES: "mustache"}),
    ),
    (
        re.compile(r"(?:No handler for|The mapper) type \[(\w+)\] declared on field"),
        _by_name(
            {
                _MAPPER_EXTRAS: "match_only_text rank_feature rank_features scaled_float search_as_you_type "
                "token_count",
                _JOIN: "join",
                _PERCOLATOR: "percolator",
                _SPATIAL: "geo_shape shape",
            }
        ),
    ),
    (
        re.compile(r"unknown query \[(\w+)\]"),
        _by_name(
            {
                _JOIN: "has_child has_parent parent_id",
                _PERCOLATOR: "percolate",
                _MAPPER_EXTRAS: "rank_feature",
            }
        ),
    ),
    (
        re.compile(r"Unknown aggregation type \[(\w+)\]"),
        _by_name(
            {
                _AGGREGATIONS: "adjacency_matrix auto_date_histogram bucket_selector bucket_sort derivative "
                "matrix_stats "
                "moving_fn time_series",
                _JOIN: "children parent",
                _ANALYTICS: "boxplot cumulative_cardinality rate string_stats top_metrics t_test",
            }
        ),
    ),
    (
        re.compile(r"No processor type exists with name \[(\w+)\]"),
        _by_name(
            {
                _INGEST: "append bytes convert csv date date_index_name dissect dot_expander fail foreach grok gsub "
                "html_strip join json kv lowercase remove rename script set sort split trim uppercase urldecode",
            }
        ),
    ),
    (
        re.compile(
            r"(?:analyzer|Unknown analyzer type) \[(\w+)\] (?:has not been configured|for \[)|"
            r"failed to find global analyzer \[(\w+)\]"
        ),
        _by_name(
            {
                _ANALYSIS: "arabic armenian basque bengali brazilian bulgarian catalan chinese cjk czech danish dutch "
                "english estonian finnish french galician german greek hindi hungarian indonesian irish "
                "italian latvian lithuanian norwegian persian portuguese romanian russian serbian sorani "
                "spanish swedish thai turkish fingerprint pattern snowball",
            }
        ),
    ),
    (
        re.compile(r"(?:failed to find (?:global )?(?:token ?)?filter under (?:name )?|Unknown filter type )\[(\w+)\]"),
        _by_name(
            {
                _ANALYSIS: "asciifolding edge_ngram elision keyword_marker ngram pattern_replace "
                "porter_stem reverse snowball stemmer stemmer_override synonym synonym_graph trim truncate "
                "unique uppercase word_delimiter word_delimiter_graph",
            }
        ),
    ),
    (
        re.compile(r"(?:failed to find (?:global )?tokenizer under (?:name )?|Unknown tokenizer type )\[(\w+)\]"),
        _by_name(
            {
                _ANALYSIS: "char_group edge_ngram ngram path_hierarchy pattern simple_pattern uax_url_email whitespace",
            }
        ),
    ),
)

# Of a path without a handler, the first part is taken for the name of an index.
_UNKNOWN_PATH = re.compile(r"no handler found for uri|Incorrect HTTP method for uri|Invalid index name \[_")
_MODULE_BY_PATH = _by_name({
    _REINDEX: "_reindex _update_by_query _delete_by_query",
    _RANK_EVAL: "_rank_eval",
    _ASYNC: "_async_search",
    _SQL: "_sql",
    _ESQL: "_query",
    _EQL: "_eql",
    _ILM: "_ilm",
    _DATA_STREAMS: "_data_stream",
    _TEMPLATES: "_search/template _msearch/template _render",
})  # fmt: skip


def find_missing_module(reason: str, path: str) -> EngineModule | None:
    """The module that a request needed and the engine lacks; None where the request failed for another reason.

    Args:
        reason: The engine's own.
        path: What was asked, `/docs/_search`.
    """
    for pattern, modules in _UNKNOWN_NAME_PATTERNS:
        if found := pattern.search(reason):
            return modules.get(next(filter(None, found.groups())))
    if _UNKNOWN_PATH.search(reason):
        whole = f"{path.partition('?')[0]}/"
        return next((module for part, module in _MODULE_BY_PATH.items() if f"/{part}/" in whole), None)
    return None


def missing_feature_error(module: EngineModule, *, label: str, action: str, reason: str, status: int) -> FeatureMissing:
    """A request that needs a module as an error.

    Args:
        label: `Elasticsearch 9.5.0 at http://…`.
        action: What was asked, `POST /docs/_search`.
        reason: The engine's own.
    """
    return FeatureMissing(
        f"{label} lacks the module {module.name} ({module.feature}), which {action} needs: {reason}",
        f"{servers_with_module(module)} docs/commands/engine.md lists what each build has.",
        status,
        module.name,
    )


def servers_with_module(module: EngineModule) -> str:
    """Which servers have it, as a sentence of a remedy."""
    builds = [name for name, has in (("es9", module.in_es9), ("opensearch", module.in_opensearch)) if has]
    here = "".join(f"`es-sbert engine up {name}`, " for name in builds)
    return f"Use a server that has it: {here}{'or ' if here else ''}the complete Elasticsearch of docker-compose.yml."
