"""Several addresses of one cluster: nodes that are down, that freeze, and that die while they are used.

Two relays or proxies in front of one server are two nodes: each can be away or frozen without the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines import detection, node_watch
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.errors import EngineUnreachable
from tests.conftest import free_port
from tests.engine.ingest_support import Interposed, contents, load, sentences, write_jsonl
from tests.engine.relay import Relay
from tests.faulty_proxy import Exchange, Fault, FaultyProxy, cut_after, cut_before
from tests.raised import raises_as_recorded

# Far more than a test takes: a request that waits this long for a frozen node fails the test.
TIMEOUT = 600.0
# Requests to both engines go through one transport.
each_engine = pytest.mark.parametrize("engine_url", ["es9", "opensearch"], indirect=True)
one_engine = pytest.mark.parametrize("engine_url", ["es9"], indirect=True)


@pytest.fixture(autouse=True)
def check_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unanswered requests are looked at sooner than by default."""
    monkeypatch.setattr(node_watch, "UNANSWERED_SECONDS", 0.3)
    monkeypatch.setattr(node_watch, "HEALTH_ATTEMPTS", 1)
    monkeypatch.setattr(detection, "_OTHERS_SECONDS", 2.0)


@pytest.fixture
def nodes(engine_url: str) -> Iterator[tuple[Relay, Relay]]:
    with Relay(engine_url) as one, Relay(engine_url) as other:
        yield one, other


@contextmanager
def connected(*urls: str) -> Iterator[Engine]:
    with closing(connect(EngineSettings(url=",".join(urls), timeout=TIMEOUT))) as engine:
        yield engine


@contextmanager
def faulty(url: str, paths: str, *faults: Fault | None) -> Iterator[tuple[Engine, list[FaultyProxy]]]:
    """An engine of several addresses, each with a fault on some paths."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultyProxy(url, paths=paths, always=fault)) for fault in faults]
        yield stack.enter_context(connected(*(proxy.url for proxy in proxies))), proxies


def test_no_command_starts_while_all_nodes_are_down() -> None:
    down = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with raises_as_recorded(EngineUnreachable), connected(*down):
        pass


@one_engine
def test_a_node_that_is_down_or_frozen_at_the_start_is_left_out(
    nodes: tuple[Relay, Relay], engine_url: str, index_name: str
) -> None:
    nodes[0].freeze()
    for away in (nodes[0].url, f"http://127.0.0.1:{free_port()}"):
        with connected(away, engine_url) as engine:
            assert engine.info.url == f"{away},{engine_url}"
            for _ in range(4):
                assert engine.get_index(index_name) is None


@one_engine
def test_any_request_to_a_node_that_died_is_sent_to_another(nodes: tuple[Relay, Relay], index_name: str) -> None:
    with connected(nodes[0].url, nodes[1].url) as engine:
        for _ in range(4):
            assert engine.get_index(index_name) is None
        nodes[0].stop()
        for _ in range(3):
            assert engine.get_index(index_name) is None
        engine.create_index(index_name, {})
        [result] = engine.bulk(index_name, b'{"index":{"_id":"1"}}\n{"a":1}\n')
        assert result.ok


@each_engine
def test_a_frozen_node_is_left_out(nodes: tuple[Relay, Relay], index_name: str) -> None:
    with connected(nodes[0].url, nodes[1].url) as engine:
        for _ in range(4):
            assert engine.get_index(index_name) is None
        nodes[0].freeze()
        for _ in range(6):
            assert engine.get_index(index_name) is None
        nodes[0].thaw()
        nodes[1].stop()
        # The pool tries the node again, which has to answer a health request first.
        assert engine.get_index(index_name) is None


@one_engine
def test_a_write_to_a_frozen_node_is_broken_off_and_not_repeated(nodes: tuple[Relay, Relay], index_name: str) -> None:
    with connected(nodes[0].url, nodes[1].url) as engine:
        engine.create_index(index_name, {})
        nodes[0].freeze()
        failures = []
        for number in range(2):  # one of them is for the frozen node
            try:
                engine.update_aliases([{"add": {"index": index_name, "alias": f"{index_name}-{number}"}}])
            except EngineUnreachable as error:
                failures.append(error)
        assert [error.message for error in failures] == [
            f"{nodes[0].url} has stopped answering: not even a health request gets a response"
        ]
        assert len(engine.get_aliases(index_name)[index_name]) == 1


@one_engine
def test_a_slow_request_to_a_healthy_node_is_waited_for(engine_url: str, index_name: str) -> None:
    def slow(exchange: Exchange) -> tuple[int, bytes]:
        time.sleep(8 * node_watch.UNANSWERED_SECONDS)
        return exchange.forward()

    with faulty(engine_url, "/_search", slow, slow) as (engine, proxies):
        engine.create_index(index_name, {})
        assert engine.count(index_name) == 0
        assert sum(len(proxy.bulk_sizes) for proxy in proxies) == 1


@one_engine
def test_a_read_whose_connection_breaks_is_repeated_on_the_next_node(engine_url: str, index_name: str) -> None:
    with faulty(engine_url, "/_search", cut_after, None) as (engine, proxies):
        engine.create_index(index_name, {})
        for _ in range(4):
            assert engine.count(index_name) == 0
        assert proxies[0].bulk_sizes
        assert len(proxies[1].bulk_sizes) == 4


@one_engine
@pytest.mark.parametrize("fault", [cut_before, cut_after])
def test_a_write_whose_connection_breaks_is_not_repeated(engine_url: str, index_name: str, fault: Fault) -> None:
    with faulty(engine_url, "/_aliases", fault, fault) as (engine, proxies):
        engine.create_index(index_name, {})
        with pytest.raises(EngineUnreachable):
            engine.update_aliases([{"add": {"index": index_name, "alias": f"{index_name}-alias"}}])
        assert sum(len(proxy.bulk_sizes) for proxy in proxies) == 1


@one_engine
def test_a_bulk_request_whose_connection_breaks_is_left_to_the_caller(engine_url: str, index_name: str) -> None:
    with faulty(engine_url, "/_bulk", cut_after, cut_after) as (engine, proxies):
        with pytest.raises(EngineUnreachable):
            engine.bulk(index_name, b'{"index":{"_id":"1"}}\n{"a":1}\n')
        assert sum(len(proxy.bulk_sizes) for proxy in proxies) == 1


@one_engine
@pytest.mark.parametrize("end", [Relay.stop, Relay.freeze], ids=["killed", "frozen"])
def test_a_load_goes_on_when_its_entry_node_ends(
    nodes: tuple[Relay, Relay],
    engine_url: str,
    index_name: str,
    tiny: Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Relay], None],
) -> None:
    monkeypatch.setenv("ES_SBERT_TIMEOUT", str(TIMEOUT))
    documents = sentences(200)
    docs = write_jsonl(tmp_path / "docs.jsonl", documents)
    breaks = Interposed(tiny, lambda window: end(nodes[0]) if window == 3 else None)
    summary = load(
        f"{nodes[0].url},{nodes[1].url}", breaks, index_name, docs, dead=tmp_path / "dead", id_field="id",
        batch_window=8, bulk_bytes=20_000, retry_seconds=60,
    )  # fmt: skip
    assert (summary.indexed + summary.updated + summary.unchanged, summary.dead) == (200, 0)
    assert {key: source["price"] for key, source in contents(engine_url, index_name).items()} == {
        document["id"]: document["price"] for document in documents
    }
