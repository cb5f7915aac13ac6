"""Index-level requests that are the same on both engines: settings, aliases, segments, force merge, statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from es_sbert.engines.error_mapping import root_cause
from es_sbert.engines.protocol import EngineInfo, Json, SequenceNumbers
from es_sbert.errors import AccessDenied, RequestFailed, UsageError


class IndexAdmin(ABC):
    """The part of `Engine` that keeps indices rather than documents."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo: ...

    @abstractmethod
    def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Json | bytes | None = None,
        *,
        missing_ok: bool = False,
    ) -> Any: ...

    @abstractmethod
    def _check_shards(self, answer: Json, name: str, done: str) -> None: ...

    def create_index(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}", body=body)

    def delete_index(self, name: str) -> None:
        self._request("DELETE", f"/{quote_index_name(name)}", missing_ok=True)

    def put_mapping(self, name: str, body: Json) -> None:
        self._request("PUT", f"/{quote_index_name(name)}/_mapping", body=body)

    def put_settings(self, name: str, settings: Mapping[str, str | None]) -> None:
        self._request("PUT", f"/{quote_index_name(name)}/_settings", body=dict(settings))

    def block_writes(self, name: str) -> None:
        answer = self._request("PUT", f"/{quote_index_name(name)}/_block/write")
        if not (answer.get("acknowledged") and answer.get("shards_acknowledged")):
            raise RequestFailed(
                f"{self.info.label} cannot say that writes to {name} have ended: a request in flight takes too long, "
                "or a node does not answer",
                "Look at `GET _tasks?actions=*write*&detailed` and `GET _cluster/health`, and run the command again.",
            )

    def flush(self, name: str) -> None:
        self._check_shards(self._request("POST", f"/{quote_index_name(name)}/_flush"), name, "flushed")

    def refresh(self, name: str) -> None:
        self._check_shards(self._request("POST", f"/{quote_index_name(name)}/_refresh"), name, "refreshed")

    def get_aliases(self, name: str) -> dict[str, dict[str, Json]]:
        answer = self._request("GET", f"/{quote_index_name(name)}/_alias", missing_ok=True) or {}
        return {index: state.get("aliases", {}) for index, state in answer.items()}

    def update_aliases(self, actions: Sequence[Json]) -> None:
        self._request("POST", "/_aliases", body={"actions": list(actions)})

    def count_segments(self, name: str) -> list[int]:
        answer = self._request("GET", f"/{quote_index_name(name)}/_segments")
        return [
            sum(bool(segment["search"]) for segment in copy["segments"].values())
            for shards in answer["indices"].values()
            for _, copies in sorted(shards["shards"].items(), key=lambda item: int(item[0]))
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def start_force_merge(self, name: str) -> str:
        params = {"max_num_segments": "1", "wait_for_completion": "false"}
        return str(self._request("POST", f"/{quote_index_name(name)}/_forcemerge", params)["task"])

    def is_task_done(self, task: str) -> bool:
        answer = self._request("GET", f"/_tasks/{quote(task, safe=':')}")
        failures = answer.get("response", {}).get("_shards", {}).get("failures")
        error = answer.get("error") or (failures[0].get("reason", failures[0]) if failures else None)
        if error:
            raise RequestFailed(
                f"{self.info.label} could not finish the task {task}: {root_cause({'error': error})[1]}",
                "Look at the engine's log and its free disk space, and try again.",
            )
        return bool(answer.get("completed"))

    def sequence_numbers(self, name: str) -> list[SequenceNumbers]:
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats", {"level": "shards"})
        [index] = answer["indices"].values()
        return [
            SequenceNumbers(int(copy["seq_no"]["max_seq_no"]), int(copy["seq_no"]["global_checkpoint"]))
            for _, copies in sorted(index["shards"].items(), key=lambda item: int(item[0]))
            for copy in copies
            if copy["routing"]["primary"]
        ]

    def index_uuids(self, name: str) -> dict[str, str]:
        params = {"filter_path": "*.settings.index.uuid"}
        answer = self._request("GET", f"/{quote_index_name(name)}", params, missing_ok=True) or {}
        return {index: state["settings"]["index"]["uuid"] for index, state in answer.items()}

    def primary_terms(self, name: str) -> dict[int, int] | None:
        params = {"filter_path": "metadata.indices.*.primary_terms"}
        try:
            answer = self._request("GET", f"/_cluster/state/metadata/{quote_index_name(name)}", params)
        except AccessDenied:
            return None
        terms = answer.get("metadata", {}).get("indices", {}).get(name, {}).get("primary_terms")
        return None if terms is None else {int(shard): int(term) for shard, term in terms.items()}

    def store_size(self, name: str) -> int:
        answer = self._request("GET", f"/{quote_index_name(name)}/_stats/store")
        return int(answer["_all"]["primaries"]["store"]["size_in_bytes"])


def quote_index_names(names: str | Sequence[str]) -> str:
    """One name or several as a part of a path.

    Raises:
        UsageError: as `quoted` does.
    """
    return quote_index_name(names) if isinstance(names, str) else ",".join(map(quote_index_name, names))


def quote_index_name(name: str) -> str:
    """An index or alias name as a path segment.

    Raises:
        UsageError: a pattern, a list of names, an API's own path, or characters that nobody sees.
    """
    if (
        not name.isprintable()
        or not name
        or name in (".", "..")
        or name[0] in "_-+"
        or any(c in '*?,#\\/"<>|: ' for c in name)
    ):
        raise UsageError(f"{name!r} is not the name of one index", "Give one index or alias, without wildcards.")
    return quote(name, safe="")
