"""Every request of `Engine`, answered for a part of what was asked for: none may be taken for the whole.

The answers are those of real engines, from which parts are taken away as they are missing when a node is lost.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import EngineResponse, Json
from es_sbert.errors import EngineError
from tests.engine.ingest_support import put
from tests.engine.vectors import vector_mapping

# Of a node that has left the cluster.
NODE_LOST: Json = {
    "shard": 0,
    "index": "docs",
    "node": None,
    "reason": {"type": "node_not_connected_exception", "reason": None},
}

# Name of a method → how it is called. Those that only read the cluster state, which the elected master has as a whole,
# are in CLUSTER_STATE.
CALLS: dict[str, Callable[[Engine, str], Any]] = {
    "count": lambda engine, index: engine.count(index),
    "bulk": lambda engine, index: engine.bulk(
        index, b'{"index":{"_id":"1"}}\n{"n":1}\n{"delete":{"_id":"9"}}\n', actions=2
    ),
    "mget": lambda engine, index: engine.mget(index, [("1", None), ("2", None)], source_includes=["n"]),
    "search": lambda engine, index: engine.search(index, {"size": 1}),
    "searched_shards": lambda engine, index: engine.searched_shards(f"{index}-routed"),
    "search_shard": lambda engine, index: engine.search_shard(index, 0, {"size": 1}),
    "multi_search": lambda engine, index: engine.multi_search(index, [{"size": 1}, {"size": 0}]),
    "read_changes": lambda engine, index: engine.read_changes(
        index, 0, -1, 9, query={"match_all": {}}, source_includes=[]
    ),
    "open_point_in_time": lambda engine, index: engine.open_point_in_time(index, shard=0),
    "search_point_in_time": lambda engine, index: engine.search_point_in_time(
        engine.open_point_in_time(index, shard=0), {"size": 1}
    ),
    "request_api": lambda engine, index: engine.request_api(f"/{index}/_stats/docs"),
    "put_mapping": lambda engine, index: engine.put_mapping(index, {"properties": {"n": {"type": "integer"}}}),
    "put_settings": lambda engine, index: engine.put_settings(index, {"index.refresh_interval": "2s"}),
    "update_aliases": lambda engine, index: engine.update_aliases([{"add": {"index": index, "alias": f"{index}-a"}}]),
    "block_writes": lambda engine, index: engine.block_writes(index, 10.0),
    "flush": lambda engine, index: engine.flush(index),
    "refresh": lambda engine, index: engine.refresh(index),
    "refresh_if_allowed": lambda engine, index: engine.refresh_if_allowed(index),
    "shard_states": lambda engine, index: engine.shard_states(index),
    "store_size": lambda engine, index: engine.store_size(index),
    "vector_size": lambda engine, index: engine.vector_size(index, "vector"),
    "delete_index": lambda engine, index: engine.delete_index(index),
}
CLUSTER_STATE = {
    "alias_terms", "create_index", "get_aliases", "get_index", "get_indices", "index_uuids", "primary_terms",
    "resolve_indices", "result_window", "routing_shards", "visible_names",
}  # fmt: skip
# They send nothing, or return nothing that could be partial.
OTHERS = {"close", "send", "close_point_in_time", "hit_source", "index_missing", "start_force_merge", "is_task_done"}


def lose_shard(answer: Json, index: str, number: str) -> None:
    answer["indices"][index]["shards"].pop(number)


def start_primary(answer: Json, index: str, number: str) -> None:
    answer["indices"][index]["shards"][number][0]["routing"]["state"] = "INITIALIZING"


def changes(answer: Json) -> Iterator[tuple[str, Callable[[Json], object]]]:
    """Name → what takes one of the parts of an answer away that it has."""
    if "_shards" in answer:
        count = answer["_shards"]["successful"]
        failed = {"failed": 1, "successful": count - 1, "failures": [NODE_LOST]}
        yield "a shard failed", lambda whole: whole["_shards"].update(failed)
        yield "a shard failed without a reason", lambda whole: whole["_shards"].update(failed=1)
    if answer.get("_shards") and answer.keys() == {"_shards"}:
        # A primary that is not active is not counted as failed.
        yield "a shard is not counted", lambda whole: whole["_shards"].update(successful=0)
    indices = answer.get("indices", {})
    for index, state in indices.items() if isinstance(indices, dict) else ():
        for number in state.get("shards", {}):
            yield f"shard {number} is missing", partial(lose_shard, index=index, number=number)
            yield f"the primary of shard {number} is starting", partial(start_primary, index=index, number=number)
    if "timed_out" in answer:
        yield "timed out", lambda whole: whole.update(timed_out=True)
    if "fields" in answer and "indices" in answer:
        failures = [{"indices": ["docs"], "failure": {"error": NODE_LOST["reason"]}}]
        yield "an index is left out", lambda whole: whole.update(failed_indices=1, failures=failures)
    if "acknowledged" in answer:
        yield "not acknowledged", lambda whole: whole.update(acknowledged=False)
    if "hits" in answer:
        skipped = {"total": 2, "successful": 1, "skipped": 1, "running": 0, "partial": 0, "failed": 0}
        yield "a remote cluster was skipped", lambda whole: whole.update(_clusters=skipped)
    if "items" in answer:
        yield "one of the items is missing", lambda whole: whole["items"].pop()
    if "docs" in answer:
        error = {"type": "no_shard_available_action_exception", "reason": None}
        lost = {"_index": "docs", "_id": "1", "error": error}
        yield "one of the documents is missing", lambda whole: whole["docs"].pop()
        yield "a document could not be looked up", lambda whole: whole["docs"].__setitem__(0, lost)
    if "responses" in answer:
        yield "one of the responses is missing", lambda whole: whole["responses"].pop()
        for what, change in changes(answer["responses"][1]):
            yield f"{what} in a response", lambda whole, change=change: change(whole["responses"][1])  # type: ignore[misc]
    if isinstance(answer.get("shards"), list):
        yield "a shard has no active copy", lambda whole: whole["shards"].append([])


@pytest.fixture
def index(engine: Engine, index_name: str) -> str:
    settings: Json = {"number_of_shards": 2, "number_of_replicas": 0}
    if engine.info.engine_type is EngineType.OPENSEARCH:
        settings["knn"] = True
    properties = {"n": {"type": "integer"}, "vector": vector_mapping(engine, 2)}
    engine.create_index(index_name, {"settings": settings, "mappings": {"properties": properties}})
    engine.update_aliases([{"add": {"index": index_name, "alias": f"{index_name}-routed", "routing": "r"}}])
    put(engine, index_name, ({"id": str(number), "n": number, "vector": [1.0, number]} for number in range(8)))
    engine.refresh(index_name)
    return index_name


def test_every_method_of_engine_is_covered() -> None:
    methods = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction) if not name.startswith("_")}
    assert methods == CALLS.keys() | CLUSTER_STATE | OTHERS


@pytest.mark.parametrize("method", CALLS)
def test_partial_answer_is_an_error(engine: Engine, index: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    send = engine.send
    answers: dict[tuple[str, str], Json] = {}

    def record(*args: Any, **kwargs: Any) -> EngineResponse:
        response = send(*args, **kwargs)
        answers[args[0], args[1]] = response.body
        return response

    monkeypatch.setattr(engine, "send", record)
    CALLS[method](engine, index)  # complete answers are not an error
    errors: dict[tuple[Any, str], EngineError | None] = {}
    for request, answer in answers.items():
        for what, change in changes(answer):
            incomplete = copy.deepcopy(answer)
            change(incomplete)

            def replace(*args: Any, request: Any = request, body: Json = incomplete, **kwargs: Any) -> EngineResponse:
                if (args[0], args[1]) == request:
                    return EngineResponse(200, {}, copy.deepcopy(body))
                return send(*args, **kwargs)

            monkeypatch.setattr(engine, "send", replace)
            errors[request, what] = None  # the answer is taken for a complete one
            try:
                CALLS[method](engine, index)
            except EngineError as error:
                errors[request, what] = error
    assert errors
    for each in errors.values():
        assert each is not None, errors
        assert "None" not in each.message
        assert each.remedy
