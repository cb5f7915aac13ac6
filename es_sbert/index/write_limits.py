"""Foresee what an engine would refuse: a new index, a new vector field, and updates of documents."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json, quote_index_name
from es_sbert.errors import AccessDenied, VectorIndexError
from es_sbert.index.index_template import index_template_of

# `index.mode` of indices whose documents cannot be written again, and why.
_APPEND_ONLY_MODES = {
    "time_series": "Elasticsearch does not update documents, and chooses their ids",
    "columnar": "documents have no sequence numbers, so Elasticsearch does not update them",
    "logsdb_columnar": "documents have no sequence numbers, so Elasticsearch does not update them",
}


def index_mode(state: IndexState) -> str:
    """The `index.mode` of Elasticsearch, such as `logsdb`; `standard` by default."""
    return str(state.setting("index.mode") or "standard").lower()


def check_accepts_updates(state: IndexState) -> None:
    """Refuse an index in which the engine changes no document, and takes none by its id.

    Raises:
        VectorIndexError: its `index.mode` rules updates out, or it is append-only.
    """
    mode = index_mode(state)
    if mode in _APPEND_ONLY_MODES:
        setting, reason = f"index.mode: {mode}", _APPEND_ONLY_MODES[mode]
    elif state.has_setting("index.append_only.enabled"):
        setting, reason = (
            "index.append_only.enabled",
            "OpenSearch does not update documents, and takes none by their ids",
        )
    else:
        return
    raise VectorIndexError(
        f"the index {state.name} has `{setting}`: {reason}",
        "Write new documents through the gateway (`es-sbert serve`), which embeds them on the way. Copy existing "
        "ones into an index without this setting (`POST _reindex`), and embed them there.",
    )


class _MappingSize(NamedTuple):
    """Size of a mapping as the engines count it: fields with subfields and objects, nested fields, levels."""

    fields: int
    nested: int
    depth: int


def _mapping_size(mapping: Mapping[str, Any]) -> _MappingSize:
    """Count the fields below a mapping or an object."""
    parts = list(mapping.get("properties", {}).values())
    sizes = [_mapping_size(part) for part in parts]
    return _MappingSize(
        sum(1 + len(part.get("fields", {})) for part in parts)
        + len(mapping.get("runtime", {}))
        + sum(size.fields for size in sizes),
        sum(part.get("type") == "nested" for part in parts) + sum(size.nested for size in sizes),
        max((size.depth for size in sizes), default=0) + bool(parts),
    )


# Setting of an index → its default, and the number in a mapping that it limits.
_MAPPING_LIMITS = {
    "index.mapping.total_fields.limit": (1000, "fields"),
    "index.mapping.nested_fields.limit": (None, "nested"),  # 50 or 100, by version
    "index.mapping.depth.limit": (20, "depth"),
}


def check_mapping_limits(state: IndexState, addition: Json) -> None:
    """Refuse fields that are too many for the mapping of an index.

    Args:
        addition: A mapping with the new fields.

    Raises:
        VectorIndexError: a limit of the index would be exceeded.
    """
    properties = {**state.mappings.get("properties", {}), **addition.get("properties", {})}
    size = _mapping_size({**state.mappings, "properties": properties})
    for setting, (default, counted) in _MAPPING_LIMITS.items():
        limit, needed = state.setting(setting) or default, getattr(size, counted)
        if limit is not None and needed > int(limit):
            raise VectorIndexError(
                f"with {' and '.join(addition['properties'])}, the mapping of {state.name} needs {setting} {needed}, "
                f"but it is {limit}",
                f'Raise the limit: `PUT {state.name}/_settings` with {{"{setting}": {needed}}}.',
            )


def check_can_create(engine: Engine, name: str) -> None:
    """Refuse the name of a new index that the engine would not create.

    What this user may not read is not checked: the engine's own error follows then.

    Raises:
        VectorIndexError: the name is that of data streams, or the cluster holds no more shards.
    """
    with suppress(AccessDenied):  # the engine's own error follows
        template = index_template_of(engine, name)
        if template is not None and "data_stream" in template[1]:
            raise VectorIndexError(
                f"the index template {template[0]} makes {name} a data stream, not an index",
                "Choose another name, or change the patterns of the template. A data stream is filled by the "
                "application that writes to it; then embed its documents in place, one backing index at a time.",
            )
        _check_shard_limit(engine, name)


_MAX_SHARDS = "cluster.max_shards_per_node"


def _check_shard_limit(engine: Engine, name: str) -> None:
    params = {"include_defaults": "true", "filter_path": f"*.{_MAX_SHARDS}"}
    answer = engine.request_api("/_cluster/settings", params) or {}
    levels = [answer[level]["cluster"] for level in ("transient", "persistent", "defaults") if level in answer]
    nodes = (engine.request_api("/_cluster/health") or {}).get("number_of_data_nodes")
    if not levels or not nodes:
        return
    # Without a body: one is the template to simulate.
    path = f"/_index_template/_simulate_index/{quote_index_name(name)}"
    simulated = engine.request_api(path, method="POST") or {}
    added = _copies(simulated.get("template", {}).get("settings", {}))
    # Closed indices do not count. Names with a dot are left out, except those of data streams: system indices are among
    # them, for which engines log a warning. So the sum may be too small, but is never too large.
    indices = engine.request_api("/*,-.*,.ds-*/_settings/index.number_of_*", {"expand_wildcards": "open"}) or {}
    is_open = sum(_copies(state["settings"]) for state in indices.values())
    limit = int(levels[0]["max_shards_per_node"]) * int(nodes)
    if is_open + added > limit:
        raise VectorIndexError(
            f"{name} would add {added} shards to {is_open} in the cluster, but its limit is {limit} ({_MAX_SHARDS} × "
            "data nodes)",
            f"Delete or close indices, give the index fewer shards or replicas, or raise {_MAX_SHARDS} "
            "(`PUT _cluster/settings`).",
        )


def _copies(settings: Json) -> int:
    """Number of shards of an index with their replicas."""
    index = settings.get("index", {})
    return int(index.get("number_of_shards", 1)) * (1 + int(index.get("number_of_replicas", 1)))
