"""Every request of `Engine`, answered for a part of what was asked for: none may be taken for the whole.

The answers are those of real engines, from which parts are taken away as they are missing when a node is lost.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import EngineResponse, Json
from es_sbert.errors import EngineError

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
OTHERS = {"close", "send", "close_point_in_time", "hit_source", "start_force_merge", "is_task_done"}


def without_parts(answer: Json) -> Iterator[tuple[str, Json]]:
    """The answer with one part or another missing, as far as it has such parts."""

    def changed(change: Callable[[Json], object]) -> Json:
        partial = copy.deepcopy(answer)
        change(partial)
        return partial

    if "_shards" in answer:

        def fail(partial: Json) -> None:
            shards = partial["_shards"]
            shards |= {"failed": 1, "successful": shards["successful"] - 1, "failures": [NODE_LOST]}

        yield "a shard failed", changed(fail)
        yield "a shard failed without a reason", changed(lambda partial: partial["_shards"].update(failed=1))
    if answer.get("_shards") and answer.keys() == {"_shards"}:
        # A primary that is not active is not counted as failed.
        yield "a shard is not counted", changed(lambda partial: partial["_shards"].update(successful=0))
    for number in ("0", "1"):
        indices = answer.get("indices", {})
        for index, state in indices.items() if isinstance(indices, dict) else ():
            if number in state.get("shards", {}):
                yield (
                    f"shard {number} is missing",
                    changed(lambda partial, i=index, n=number: partial["indices"][i]["shards"].pop(n)),  # type: ignore[misc]
                )
                yield (
                    f"the primary of shard {number} is starting",
                    changed(
                        lambda partial, i=index, n=number: [  # type: ignore[misc]
                            copy["routing"].update(state="INITIALIZING") for copy in partial["indices"][i]["shards"][n]
                        ]
                    ),
                )
    if "timed_out" in answer:
        yield "timed out", changed(lambda partial: partial.update(timed_out=True))
    if "fields" in answer and "indices" in answer:
        failures = [{"indices": ["docs"], "failure": {"error": NODE_LOST["reason"]}}]
        yield "an index is left out", changed(lambda partial: partial.update(failed_indices=1, failures=failures))
    if "acknowledged" in answer:
        yield "not acknowledged", changed(lambda partial: partial.update(acknowledged=False))
    if "hits" in answer:
        skipped = {"total": 2, "successful": 1, "skipped": 1, "running": 0, "partial": 0, "failed": 0}
        yield "a remote cluster was skipped", changed(lambda partial: partial.update(_clusters=skipped))
    for parts in ("items", "docs", "responses"):
        if parts in answer:
            yield f"one of the {parts} is missing", changed(lambda partial, p=parts: partial[p].pop())  # type: ignore[misc]
    if "docs" in answer:
        error = {"type": "no_shard_available_action_exception", "reason": None}
        yield (
            "a document could not be looked up",
            changed(lambda partial: partial["docs"].__setitem__(0, {"_index": "docs", "_id": "1", "error": error})),
        )
    if isinstance(answer.get("shards"), list):
        yield "a shard has no active copy", changed(lambda partial: partial["shards"].append([]))
    for number, response in enumerate(answer.get("responses", ())):
        for what, partial in without_parts(response):
            yield what, changed(lambda whole, n=number, p=partial: whole["responses"].__setitem__(n, p))  # type: ignore[misc]


@pytest.fixture
def index(engine: Engine, index_name: str) -> str:
    properties: Json = {"n": {"type": "integer"}}
    settings: Json = {"number_of_shards": 2, "number_of_replicas": 0}
    if engine.info.engine_type is EngineType.OPENSEARCH:
        properties["vector"] = {
            "type": "knn_vector",
            "dimension": 2,
            "method": {"name": "hnsw", "space_type": "l2", "engine": "lucene"},
        }
        settings["knn"] = True
    else:
        properties["vector"] = {"type": "dense_vector", "dims": 2, "index_options": {"type": "hnsw"}}
    engine.create_index(index_name, {"settings": settings, "mappings": {"properties": properties}})
    engine.update_aliases([{"add": {"index": index_name, "alias": f"{index_name}-routed", "routing": "r"}}])
    lines: list[Json] = []
    for number in range(8):
        lines += [{"index": {"_id": str(number)}}, {"n": number, "vector": [1.0, number]}]
    engine.bulk(index_name, b"".join(orjson.dumps(line) + b"\n" for line in lines))
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
    tried = 0
    for request, answer in answers.items():
        for what, partial in without_parts(answer):

            def replace(*args: Any, request: Any = request, partial: Json = partial, **kwargs: Any) -> EngineResponse:
                is_replaced = (args[0], args[1]) == request
                return EngineResponse(200, {}, copy.deepcopy(partial)) if is_replaced else send(*args, **kwargs)

            monkeypatch.setattr(engine, "send", replace)
            error = _error_of(CALLS[method], engine, index)
            assert error is not None, f"{method} takes an answer for complete although {what}"
            assert "None" not in error.message
            assert error.remedy
            tried += 1
    assert tried


def _error_of(call: Callable[[Engine, str], Any], engine: Engine, index: str) -> EngineError | None:
    try:
        call(engine, index)
    except EngineError as error:
        return error
    return None


@pytest.mark.parametrize("missing", ["0", "1"])
def test_shard_states_are_those_of_their_shards(
    engine: Engine, index: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of those that answered would give shard 0 the numbers of shard 1."""
    before = engine.shard_states(index)
    assert list(before) == [0, 1]
    assert sum(state.max_seq_no + 1 for state in before.values()) == 8
    assert all(state.history and state.node and state.copies == 1 for state in before.values())
    assert before[0].history != before[1].history
    send = engine.send

    def lose_shard(*args: Any, **kwargs: Any) -> EngineResponse:
        response = send(*args, **kwargs)
        if "_stats" in args[1]:
            response.body["indices"][index]["shards"].pop(missing)
        return response

    monkeypatch.setattr(engine, "send", lose_shard)
    with pytest.raises(EngineError, match=rf"only 1 of 2 shards of {index}; without an active primary: {missing}\n"):
        engine.shard_states(index)
