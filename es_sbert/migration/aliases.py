"""Which aliases move, as actions of one `_aliases` request. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from es_sbert.engines.protocol import Json


def swap_actions(source: str, target: str, aliases: Mapping[str, Json]) -> list[Json]:
    """All aliases of the old index go to the new one, each with its filter, routing and write flag.

    Read and write aliases of one index stay together: with one of them left behind, writes would be lost. Where an
    alias is no longer on the old index, the whole request is refused.

    Args:
        aliases: Alias → properties, of the old index.
    """
    actions: list[Json] = []
    for alias, properties in sorted(aliases.items()):
        actions.append({"remove": {"index": source, "alias": alias, "must_exist": True}})
        actions.append({"add": {"index": target, "alias": alias, **properties}})
    return actions


def replace_actions(source: str, target: str, aliases: Mapping[str, Json]) -> list[Json]:
    """The old index is removed and its name becomes an alias of the new one."""
    moved = [{"add": {"index": target, "alias": alias, **properties}} for alias, properties in sorted(aliases.items())]
    return [{"remove_index": {"index": source}}, {"add": {"index": target, "alias": source}}, *moved]
