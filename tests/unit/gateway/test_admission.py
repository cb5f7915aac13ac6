"""Whom a connection counts for, what limits of memory make sense, and how often a kind of warning is logged."""

from __future__ import annotations

import logging

import pytest

from es_sbert.errors import Overloaded
from es_sbert.gateway.admission import AdmissionControl, ConnectionLimiter, client_network, default_connection_limit
from es_sbert.gateway.errors import ThrottledLog
from es_sbert.gateway.settings import MIB, Limits


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


def test_connection_counts_until_closed() -> None:
    connections = ConnectionLimiter(Limits(connections=3, client_connections=2))
    first, second, third = (Caller(f"2001:db8::{number}") for number in (1, 2, 3))
    assert connections.add(first) is connections.add(second) is None
    refused = connections.add(third)
    assert refused is not None
    assert "2 connections are open from your address" in refused.message
    connections.remove(third)
    other = Caller("2001:db8:0:1::1")
    assert connections.add(other) is None
    assert (connections.open, connections.full) == (3, "the gateway is at its limit of 3 connections")
    for caller in (first, second, other, other):
        connections.remove(caller)
    assert (connections.open, connections.full) == (0, None)
    assert connections.add(third) is None


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


def test_default_connection_limit_is_positive() -> None:
    assert 1 <= default_connection_limit() <= 10_000


def test_slot_exit_releases_all_resources() -> None:
    admission = AdmissionControl(Limits(concurrency=1, body_bytes=5, buffered_bytes=10))
    with admission.slot() as slot:
        slot.acquire()
        slot.acquire()
        assert admission.full == "the gateway is at its limit of 1 concurrent requests"
        slot.reserve(7)
        slot.reserve(3)
        assert admission.buffered_bytes == 10
        with pytest.raises(Overloaded):
            slot.reserve(1)
    assert (admission.buffered_bytes, admission.full) == (0, None)


def test_body_buffer_holds_at_least_one_request() -> None:
    sizes = {20: 200, 100: 1000, 300: 1024, 600: 1200}
    assert {size: Limits(body_bytes=size * MIB).max_buffered_bytes // MIB for size in sizes} == sizes
    assert Limits(body_bytes=20 * MIB, buffered_bytes=30 * MIB).max_buffered_bytes == 40 * MIB


def test_repeated_warnings_are_throttled(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = ThrottledLog(logging.getLogger("es_sbert.test"), lambda: now)
    for second in range(21):
        now = float(second)
        log.warning("%s fails", "it")
        log.warning("%s", f"at {second}", kind="other")
    assert [message for message in caplog.messages if "fails" in message] == [
        "it fails",
        "it fails (and 9 times more before)",
        "it fails (and 9 times more before)",
    ]
    assert [message for message in caplog.messages if message.startswith("at")] == [
        "at 0",
        "at 10 (and 9 times more before)",
        "at 20 (and 9 times more before)",
    ]


def test_unexpected_errors_are_throttled_per_location(caplog: pytest.LogCaptureFixture) -> None:
    log = ThrottledLog(logging.getLogger("es_sbert.test"), lambda: 0.0)

    def fail(kind: type[Exception]) -> None:
        try:
            raise kind("oops")
        except Exception as error:
            log.bug("a bug", error)

    for _ in range(3):
        fail(KeyError)
        fail(ValueError)
    assert len(caplog.records) == 2
    assert caplog.text.count("Traceback") == 2
