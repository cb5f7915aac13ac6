"""Which node gets the next request, with a clock of the test."""

from __future__ import annotations

import asyncio
import logging

import pytest

from es_sbert.config import EngineSettings
from es_sbert.engines.address import parse_addresses
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.settings import Limits
from es_sbert.gateway.upstream_nodes import UpstreamNode, UpstreamNodes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def some_nodes(count: int) -> tuple[UpstreamNodes, list[UpstreamNode], Clock]:
    settings = EngineSettings(url=[f"http://127.0.0.{number}:9" for number in range(1, count + 1)])  # type: ignore[arg-type]
    clock = Clock()
    nodes = UpstreamNodes(parse_addresses(settings), {}, Limits(), ThrottledLog(logging.getLogger()), clock)
    return nodes, nodes.all, clock


def numbers(nodes: UpstreamNodes, count: int) -> list[int]:
    return [node.number for _ in range(count) if (node := nodes.choose()) is not None]


def test_nodes_take_turns() -> None:
    nodes, _, _ = some_nodes(3)
    assert sorted(numbers(nodes, 3)) == [1, 2, 3]
    assert numbers(nodes, 3) == numbers(nodes, 3)


def test_a_dead_node_is_left_out_until_it_answers() -> None:
    async def scenario() -> None:
        nodes, each, clock = some_nodes(3)
        nodes.open(True)
        nodes.mark_dead(each[1])
        assert set(numbers(nodes, 6)) == {1, 3}
        assert each[1].retry_at == 1.0
        clock.now = 1.0
        # It gets a health request, but no request of a client yet.
        assert set(numbers(nodes, 2)) == {1, 3}
        while each[1].failures < 2:
            await asyncio.sleep(0.01)
        assert set(numbers(nodes, 6)) == {1, 3}
        nodes.mark_alive(each[1])
        assert sorted(numbers(nodes, 3)) == [1, 2, 3]
        await nodes.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_node_answers_a_health_request_by_the_head_of_its_response(is_cut: bool) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{")
        await writer.drain()
        if not is_cut:
            await reader.read()  # until the gateway closes the connection
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = EngineSettings(url=[f"http://127.0.0.1:{port}", "http://127.0.0.1:9"])  # type: ignore[arg-type]
        clock = Clock()
        nodes = UpstreamNodes(parse_addresses(settings), {}, Limits(), ThrottledLog(logging.getLogger()), clock)
        nodes.open(True)
        node = nodes.all[0]
        nodes.mark_dead(node)
        clock.now = 1.0
        while not node.is_alive:
            assert node.failures == 1, "the health request counts as unanswered"
            nodes.choose()
            await asyncio.sleep(0.01)
        await nodes.close()
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_back_off_doubles_up_to_half_a_minute_and_starts_again_after_an_answer() -> None:
    nodes, [node, _], _ = some_nodes(2)
    waits = []
    for _ in range(7):
        nodes.mark_dead(node)
        waits.append(node.retry_at)
    assert waits == [1, 2, 4, 8, 16, 30, 30]
    nodes.mark_alive(node)
    nodes.mark_dead(node)
    assert node.retry_at == 1


def test_a_request_tries_each_node_once_and_dead_ones_last() -> None:
    nodes, each, _ = some_nodes(3)
    nodes.mark_dead(each[2])
    tried: list[UpstreamNode] = []
    while (node := nodes.choose(tried)) is not None:
        tried.append(node)
    assert {node.number for node in tried[:2]} == {1, 2}
    assert tried[2:] == [each[2]]


def test_a_single_node_is_always_tried() -> None:
    nodes, [node], _ = some_nodes(1)
    nodes.mark_dead(node)
    assert nodes.choose() is node
