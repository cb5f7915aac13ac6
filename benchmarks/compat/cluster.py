"""A cluster that tests write to: what it holds at first, and how it is brought back to that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx

from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.errors import UsageError

_TIMEOUT = 120.0
_WIPES, _PAUSE = 10, 1.0


class Cluster:
    """A server by its own address, never through the gateway.

    Args:
        url: Its address.
        may_wipe: Whether indices that it holds already may be deleted.

    Raises:
        UsageError: It holds indices and `may_wipe` is false.
    """

    def __init__(self, url: str, *, may_wipe: bool) -> None:
        self.url = url
        # Without the proxies of the environment: the suites are for servers that are nobody else's.
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT, trust_env=False)
        try:
            self._look(may_wipe)
        except BaseException:
            self.close()
            raise

    def _look(self, may_wipe: bool) -> None:
        """Read what the server is and holds."""
        engine = connect(EngineSettings(url=self.url))
        self.label = engine.info.label  # `OpenSearch 3.6.0`
        engine.close()
        self.product, _, self.version = self.label.partition(" ")
        indices = sorted(name for name in self._metadata().get("indices", {}) if not name.startswith("."))
        if indices and not may_wipe:
            raise UsageError(
                f"{self.url} holds indices, which the tests would delete: {', '.join(indices[:5])}",
                "Name a server that holds nothing, or give --wipe to have all its indices deleted.",
            )
        # Built-in templates and pipelines stay; everything else is deleted between tests.
        self._kept = {kind: frozenset(names(self._metadata())) for kind, names, _ in _KINDS if kind != "indices"}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def wipe(self) -> None:
        """Delete everything that was not there at first, and reset the settings of the cluster.

        Raises:
            httpx.HTTPStatusError: The server refuses it several times, for example while a snapshot is made.
        """
        for _ in range(_WIPES - 1):
            try:
                return self._wipe()
            except httpx.HTTPStatusError:
                time.sleep(_PAUSE)
        return self._wipe()

    def _wipe(self) -> None:
        self._delete("/_search/scroll/_all")
        if self.product == "OpenSearch":
            self._delete("/_search/point_in_time/_all")
        metadata = self._metadata()
        for kind, names, path in _KINDS:
            for name in sorted(set(names(metadata)) - self._kept.get(kind, frozenset())):
                self._delete_one(kind, path, name)
        if metadata.get("cluster_coordination", {}).get("voting_config_exclusions"):
            self._delete("/_cluster/voting_config_exclusions?wait_for_removal=false")
        self._reset_settings()

    def _delete_one(self, kind: str, path: str, name: str) -> None:
        if kind == "repositories":
            snapshots = self._client.get(f"/_snapshot/{name}/_all")
            for snapshot in snapshots.json().get("snapshots", ()) if snapshots.status_code == 200 else ():
                self._delete(f"/_snapshot/{name}/{snapshot['snapshot']}")
        self._delete(path.format(name))

    def _reset_settings(self) -> None:
        settings = self._get("/_cluster/settings?flat_settings=true")
        reset = {kind: dict.fromkeys(settings.get(kind) or ()) for kind in ("persistent", "transient")}
        if any(reset.values()):
            self._client.put("/_cluster/settings", json=reset).raise_for_status()

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self._get("/_cluster/state/metadata")["metadata"]
        return metadata

    def _get(self, path: str) -> Any:
        return self._client.get(path).raise_for_status().json()

    def _delete(self, path: str) -> None:
        answer = self._client.delete(path)
        if answer.status_code != 404:
            answer.raise_for_status()


def _keys(*path: str) -> Callable[[Mapping[str, Any]], Iterable[str]]:
    """Names of what the cluster's metadata holds at a path."""

    def names(metadata: Mapping[str, Any]) -> Iterable[str]:
        value: Any = metadata
        for part in path:
            value = value.get(part) or {}
        return value.keys() if isinstance(value, Mapping) else ()

    return names


def _ids(kind: str, field: str) -> Callable[[Mapping[str, Any]], Iterable[str]]:
    """Ids of what the cluster's metadata holds as a list."""
    return lambda metadata: [each["id"] for each in (metadata.get(kind) or {}).get(field) or ()]


def _free_indices(metadata: Mapping[str, Any]) -> Iterable[str]:
    """Indices that no data stream has: those go with it."""
    streams = (metadata.get("data_stream") or {}).get("data_stream") or {}
    backing = {index["index_name"] for stream in streams.values() for index in stream["indices"]}
    return [name for name in metadata.get("indices", {}) if name not in backing]


# Kind, names in the cluster's metadata, path to delete one; in an order in which nothing is in use any more.
_KINDS: tuple[tuple[str, Callable[[Mapping[str, Any]], Iterable[str]], str], ...] = (
    ("data streams", _keys("data_stream", "data_stream"), "/_data_stream/{}"),
    ("indices", _free_indices, "/{}"),
    ("templates", _keys("templates"), "/_template/{}"),
    ("index templates", _keys("index_template", "index_template"), "/_index_template/{}"),
    ("component templates", _keys("component_template", "component_template"), "/_component_template/{}"),
    ("ingest pipelines", _ids("ingest", "pipeline"), "/_ingest/pipeline/{}"),
    ("search pipelines", _ids("search_pipeline", "pipeline"), "/_search/pipeline/{}"),
    ("stored scripts", _keys("stored_scripts"), "/_scripts/{}"),
    ("repositories", _keys("repositories"), "/_snapshot/{}"),
)
