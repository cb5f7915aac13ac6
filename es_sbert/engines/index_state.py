"""An index and its shards as the engine describes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from es_sbert.engines.rest import Json
from es_sbert.errors import IndexMismatch

# A setting as engines return it: one value, or a list of values.
SettingValue = str | list[str] | None

# The engines' default of `index.max_result_window`.
DEFAULT_RESULT_WINDOW = 10_000


@dataclass(frozen=True)
class IndexState:
    """An index as the engine describes it.

    Attributes:
        name: The concrete index (an alias is resolved to its one index).
        mappings: The whole mapping (`properties`, `_meta`, …).
        settings: Flat settings (`index.knn`, `index.number_of_shards`, …) as the engine returns them; `setting` and
            `has_setting` read those that have one value.
        aliases: Its aliases, and those of its data stream, with their properties (`index_routing`, `filter`, …).
        data_stream: The data stream whose documents it holds; None for an ordinary index.
    """

    name: str
    mappings: Json
    settings: dict[str, SettingValue]
    aliases: dict[str, Json] = field(default_factory=dict)
    data_stream: str | None = None

    @property
    def uuid(self) -> str:
        """The id that distinguishes the index from another one of the same name (`index.uuid`)."""
        return str(self.settings["index.uuid"])

    @property
    def shards(self) -> int:
        """Number of primary shards (`index.number_of_shards`)."""
        return int(str(self.settings["index.number_of_shards"]))

    @property
    def result_window(self) -> int:
        """Number of hits that one search may return (`index.max_result_window`)."""
        return int(self.setting("index.max_result_window") or DEFAULT_RESULT_WINDOW)

    def setting(self, name: str) -> str | None:
        """The value of a setting that has one value; None for the engine's default."""
        value = self.settings.get(name)
        assert not isinstance(value, list), f"{name} is a list"
        return value

    def has_setting(self, name: str) -> bool:
        """Whether a setting is `true`."""
        return self.setting(name) == "true"

    def alias(self, name: str) -> Json:
        """The properties of an alias (`filter`, `index_routing`, …); empty if it has none, or if this is no alias."""
        return self.aliases.get(name, {})

    def takes_writes(self, alias: str) -> bool:
        """Whether documents that are written through this alias may go to this index."""
        return self.alias(alias).get("is_write_index") is not False


def read_aliases(state: Json, stream_aliases: Json) -> dict[str, Json]:
    """The aliases of an index and of its data stream, with their properties.

    Args:
        state: The index in a response to `GET /INDEX`.
        stream_aliases: The response to `GET /STREAM/_alias`: Elasticsearch's data streams have separate aliases, which
            their indices do not list.
    """
    owners = (state, stream_aliases.get(state.get("data_stream", ""), {}))
    return {alias: dict(found) for owner in owners for alias, found in owner.get("aliases", {}).items()}


def find_write_index(name: str, states: Sequence[IndexState]) -> IndexState | None:
    """Find the index that receives documents written to a name; None if the engine refuses to write to it.

    That is an alias's write index, and the newest index of a data stream or of an alias's write stream.

    Args:
        states: All indices of the name, at least one.
    """
    if len(states) == 1:
        return states[0]
    written = [
        state for state in states if state.data_stream == name or state.alias(name).get("is_write_index") is True
    ]
    # Of a data stream: `.ds-STREAM-DATE-GENERATION`
    return max(written, key=lambda state: state.name.rpartition("-")[2], default=None)


def write_index(name: str, states: Sequence[IndexState]) -> IndexState:
    """Like `find_write_index`.

    Raises:
        IndexMismatch: the alias points to several indices, and none of them is its write index.
    """
    found = find_write_index(name, states)
    if found is None:
        raise IndexMismatch(
            f"{name!r} points to {len(states)} indices, and none of them is its write index: "
            f"{', '.join(state.name for state in states[:5])}",
            "Use one of them, or set `is_write_index` for one of them (`POST _aliases`).",
        )
    return found


@dataclass(frozen=True)
class ShardState:
    """The state of one shard's writes. Every write and every deletion gets the next sequence number.

    A number up to the global checkpoint always belongs to the same write, even if the shard gets another primary, as
    long as the history stays the same. A shard gets another history if an operator makes it lose writes, with
    `allocate_stale_primary` or by restoring a snapshot over it. Its numbers are then assigned a second time.

    Attributes:
        max_seq_no: The highest number that was assigned; -1 for none.
        global_checkpoint: Every write up to this number has arrived on all copies, so a refresh makes it visible.
        history: UUID of the shard's history; empty if unknown.
        copies: Number of copies that are started, including the primary.
        node: Id of the node that holds the primary.
        documents: Number of documents on the disk of the primary that are not deleted, and of the nested objects in
            them. Nothing hides one from it: no filter of an alias, no search pipeline, no document-level security. It
            may include writes that searches see only after the next refresh.
    """

    max_seq_no: int
    global_checkpoint: int
    history: str = ""
    copies: int = 1
    node: str = ""
    documents: int = 0


def matches_patterns(name: str, patterns: Iterable[str]) -> bool:
    """Whether a template with these index patterns applies to an index; only `*` is a wildcard."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) for pattern in patterns)
