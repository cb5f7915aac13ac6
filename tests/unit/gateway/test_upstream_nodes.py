"""Which node gets the next request, and whom a connection counts for."""

from __future__ import annotations

import logging

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.address import parse_addresses
from es_sbert.errors import Overloaded
from es_sbert.gateway.admission import ConnectionLimiter, client_network
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.settings import MIB, Limits
from es_sbert.gateway.upstream_nodes import UpstreamNode, UpstreamNodes


def some_nodes(count: int) -> UpstreamNodes:
    settings = EngineSettings(url=[f"http://127.0.0.{number}:9" for number in range(1, count + 1)])  # type: ignore[arg-type]
    return UpstreamNodes(parse_addresses(settings), {}, Limits(), ThrottledLog(logging.getLogger()), lambda: 0.0)


def test_the_back_off_doubles_up_to_half_a_minute_and_starts_again_after_an_answer() -> None:
    nodes = some_nodes(2)
    node = nodes.all[0]
    waits = []
    for _ in range(7):
        nodes.mark_dead(node)
        waits.append(node.retry_at)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    nodes.mark_alive(node)
    nodes.mark_dead(node)
    assert node.retry_at == 1


def test_a_dead_node_gets_no_requests() -> None:
    nodes = some_nodes(3)
    nodes.mark_dead(nodes.all[1])
    chosen = [node for _ in range(6) if (node := nodes.choose()) is not None]
    assert sorted(node.number for node in chosen) == [1, 1, 1, 3, 3, 3]


def test_a_request_tries_each_node_once_and_dead_ones_last() -> None:
    nodes = some_nodes(3)
    nodes.mark_dead(nodes.all[2])
    tried: list[UpstreamNode] = []
    while (node := nodes.choose(tried)) is not None:
        tried.append(node)
    assert {node.number for node in tried[:2]} == {1, 2}
    assert tried[2:] == [nodes.all[2]]


class Caller:
    """A connection."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.refused: Overloaded | None = None

    def refuse(self, error: Overloaded) -> None:
        self.refused = error


@pytest.mark.parametrize(
    ("address", "client"),
    [("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
     ("2001:db8:1:2::1", "2001:db8:1:2::/64"), ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
     ("fe80::1%eth0", "fe80::/64"), ("", ""), ("a name", "a name")],
)  # fmt: skip
def test_ipv6_addresses_of_one_network_count_as_one_client(address: str, client: str) -> None:
    assert client_network(address) == client


def test_oldest_excess_connections_are_refused_first() -> None:
    connections = ConnectionLimiter(Limits(connections=1))
    refusals: list[None] = []
    connections.on_refused = lambda: refusals.append(None)
    callers = [Caller(f"192.0.2.{number}") for number in range(1, 101)]
    errors = [connections.add(caller) for caller in callers]
    assert [error is None for error in errors] == [True] + 99 * [False]
    refused = [caller.refused is not None for caller in callers]
    assert refused == [False] + 35 * [True] + 64 * [False]
    assert refusals == [None] * 99


def test_body_buffer_holds_at_least_one_request() -> None:
    sizes = {20: 200, 100: 1000, 300: 1024, 600: 1200}
    assert {size: Limits(body_bytes=size * MIB).max_buffered_bytes // MIB for size in sizes} == sizes
    assert Limits(body_bytes=20 * MIB, buffered_bytes=30 * MIB).max_buffered_bytes == 40 * MIB
