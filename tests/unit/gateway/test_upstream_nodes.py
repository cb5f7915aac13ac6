"""Which node gets the next request: pure, with a clock of its own."""

from __future__ import annotations

from es_sbert.config import EngineSettings
from es_sbert.engines.address import parse_addresses
from es_sbert.gateway.upstream_nodes import NodeRotation, UpstreamNode


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def rotation(count: int) -> tuple[NodeRotation, list[UpstreamNode], list[int], Clock]:
    settings = EngineSettings(url=[f"http://node{number}:9200" for number in range(1, count + 1)])  # type: ignore[arg-type]
    nodes = [UpstreamNode(address, number) for number, address in enumerate(parse_addresses(settings), 1)]
    revived: list[int] = []
    clock = Clock()
    return NodeRotation(nodes, lambda node: revived.append(node.number), clock), nodes, revived, clock


def numbers(chosen: NodeRotation, count: int) -> list[int]:
    return [node.number for _ in range(count) if (node := chosen.choose()) is not None]


def test_nodes_take_turns() -> None:
    chosen, _, _, _ = rotation(3)
    assert sorted(numbers(chosen, 3)) == [1, 2, 3]
    assert numbers(chosen, 3) == numbers(chosen, 3)


def test_a_dead_node_is_left_out_until_it_answers() -> None:
    chosen, nodes, revived, clock = rotation(3)
    assert chosen.mark_dead(nodes[1]) == 1.0
    assert set(numbers(chosen, 6)) == {1, 3}
    assert revived == []
    clock.now = 1.0
    # It gets a health request, but no request of a client yet.
    assert set(numbers(chosen, 2)) == {1, 3}
    assert set(revived) == {2}
    assert chosen.mark_alive(nodes[1])
    assert sorted(numbers(chosen, 3)) == [1, 2, 3]
    assert not chosen.mark_alive(nodes[1])


def test_the_back_off_doubles_up_to_half_a_minute_and_starts_again_after_an_answer() -> None:
    chosen, nodes, _, _ = rotation(2)
    assert [chosen.mark_dead(nodes[0]) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    chosen.mark_alive(nodes[0])
    assert chosen.mark_dead(nodes[0]) == 1


def test_a_request_tries_each_node_once_and_dead_ones_last() -> None:
    chosen, nodes, _, _ = rotation(3)
    chosen.mark_dead(nodes[2])
    tried: list[UpstreamNode] = []
    while (node := chosen.choose(tried)) is not None:
        tried.append(node)
    assert {node.number for node in tried[:2]} == {1, 2}
    assert tried[2:] == [nodes[2]]


def test_a_single_node_is_always_tried() -> None:
    chosen, nodes, _, _ = rotation(1)
    chosen.mark_dead(nodes[0])
    assert chosen.choose() is nodes[0]
