"""What happens to the engine during a load."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from es_sbert.engines.rest import Json
from tests.engine.ingest_support import open_engine
from tests.faults.bench import Bench, FaultNotFelt, Load, WrongEnd
from tests.faults.corpus import corpus
from tests.faults.servers import call

_WATERMARKS = ("low", "high", "flood_stage")
_WATERMARK = "cluster.routing.allocation.disk.watermark"


def stopped(bench: Bench) -> dict[str, Any]:
    """Stopped, and started again after some time."""
    return _outage(bench, bench.own.stop, bench.own.start, seconds=bench.outage)


def frozen(bench: Bench) -> dict[str, Any]:
    """It takes connections and answers nothing, for some time: requests end by time-out."""
    return _outage(bench, bench.own.freeze, bench.own.thaw, seconds=min(bench.outage, 20.0), more=("--timeout", "3"))


def _outage(
    bench: Bench, end: Callable[[], None], begin: Callable[[], None], *, seconds: float, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    load = bench.start(*more)
    bench.wait_for_part(load)
    end()
    try:
        felt = load.running
        time.sleep(seconds)
    finally:
        begin()
    if not felt:
        raise FaultNotFelt("the load had ended")
    return _felt(bench.ended(load))


def killed_before_sync(bench: Bench) -> dict[str, Any]:
    """SIGKILL to an engine that acknowledges writes before they are on the disk, while the loader lives."""
    load = bench.start()
    bench.wait_for_part(load)
    load.send(signal.SIGSTOP)
    try:
        before = _count(bench)
        bench.own.kill()
        bench.own.start()
        after = _count(bench)
    finally:
        load.send(signal.SIGCONT)
    if after >= before:
        raise FaultNotFelt(f"the engine has lost nothing: {before} documents, then {after}")
    load.end(1)
    # Not compared with the number lost: requests were on their way, some with an answer and some without.
    if not load.summary["missing"] or not bench.state.exists():
        raise WrongEnd(f"{before - after} documents were lost: {load.messages}")
    if "Run the same command again" not in load.messages:
        raise WrongEnd(f"it does not say how to repair the index: {load.messages}")
    return bench.finish()


def _count(bench: Bench) -> int:
    """Documents in the index, once its shards are there."""
    call(bench.url, "GET", f"/_cluster/health/{bench.index}?wait_for_status=yellow&timeout=300s", None)
    with open_engine(bench.url) as engine:
        engine.refresh(bench.index)
        return engine.count(bench.index)


def _felt(summary: dict[str, Any]) -> dict[str, Any]:
    if not summary["retries"]:
        raise FaultNotFelt(f"nothing was sent again: {summary}")
    return summary


def write_queue_of_one(bench: Bench) -> dict[str, Any]:
    """The engine writes one shard at a time and lets one more wait (`thread_pool.write`); others get 429."""
    bench.options = ()
    # Three loads press on the engine more than one can: what is refused is up to chance.
    others = [
        bench.start(
            "--state", str(bench.folder / f"{number}.state"), "--dead-letters", str(bench.folder / f"{number}.letters")
        )
        for number in range(2)
    ]
    summary = bench.finish()
    retries = summary["retries"]
    for load in others:
        load.end(1)
        retries += load.summary["retries"]
    if not retries:
        raise FaultNotFelt(f"the engine refused nothing: {summary}")
    return summary | {"retries": retries}


def small_requests_only(bench: Bench) -> dict[str, Any]:
    """`http.max_content_length` of 1 MB under a load whose bodies are larger; the documents fill more than that."""
    bench.options = ("--bulk-bytes", str(5 << 20))
    bench.corpus = corpus(bench.corpus.size, filler=2000)  # a window of documents is several megabytes
    bench.corpus.write(bench.source)
    return bench.finish()


def flood_stage(bench: Bench) -> dict[str, Any]:
    """The engine finds its disk full and makes the index read-only; after a while it finds room again."""
    load = bench.start()
    bench.wait_for_part(load)
    # The engine looks at its disk every ten seconds at most: the load waits for it.
    load.send(signal.SIGSTOP)
    try:
        _demand_room(bench, "1000000gb")
        _wait_for(lambda: _is_flooded(bench))
    finally:
        load.send(signal.SIGCONT)
    try:
        _wait_for_words(load, "waiting for the engine")
    finally:
        _demand_room(bench, None)
    summary = _felt(bench.ended(load))
    # OpenSearch also lets nobody create an index until it has looked again: the next load would meet that.
    _wait_for(lambda: not _creates_nothing(bench))
    return summary


def _demand_room(bench: Bench, room: str | None) -> None:
    """Set how much of the disk must be free; None puts the default back, which any disk of a test machine meets."""
    wanted: Json = {f"{_WATERMARK}.{name}": room or "1mb" for name in _WATERMARKS}
    wanted |= {"cluster.routing.allocation.disk.threshold_enabled": True, "cluster.info.update.interval": "10s"}
    call(bench.url, "PUT", "/_cluster/settings", {"persistent": wanted})


def _is_flooded(bench: Bench) -> bool:
    with open_engine(bench.url) as engine:
        index = engine.get_index(bench.index)
    return index is not None and index.settings.get("index.blocks.read_only_allow_delete") == "true"


def _creates_nothing(bench: Bench) -> bool:
    settings = call(bench.url, "GET", "/_cluster/settings?flat_settings=true", None)
    return any(part.get("cluster.blocks.create_index") == "true" for part in settings.values())


def _wait_for(condition: Callable[[], bool], limit: float = 600.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise WrongEnd("the engine does not look at its disk")
        threading.Event().wait(0.2)


def _wait_for_words(load: Load, words: str) -> None:
    load.wait_until(lambda: words in load.messages)
