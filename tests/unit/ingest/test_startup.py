"""An engine that is not there yet is waited for; what will not pass fails at once."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from es_sbert.engines.retry import wait_for_engine
from es_sbert.errors import (
    AccessDenied,
    EngineError,
    EngineUnreachable,
    HostUnknown,
    RequestFailed,
    TlsFailed,
    UnsupportedEngine,
)


class Starting:
    """Fails until it was called so many times."""

    def __init__(self, error: EngineError, failures: int) -> None:
        self.error, self.failures, self.calls = error, failures, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "ready"


@pytest.mark.parametrize(
    "error", [EngineUnreachable("nothing listens", "start it"), RequestFailed("not ready", "wait", 503)]
)
def test_waits_for_a_starting_engine_and_logs_it(error: EngineError, caplog: pytest.LogCaptureFixture) -> None:
    engine = Starting(error, 2)
    with caplog.at_level(logging.INFO, "es_sbert"):
        assert wait_for_engine(engine, 300) == "ready"
    assert engine.calls == 3
    first, last = [record.getMessage() for record in caplog.records]
    assert first == f"Waiting for the engine, up to 300 s: {error.message} (`retry_seconds=0` fails at once)"
    assert last.startswith("The engine answered after")


@pytest.mark.parametrize(
    "error",
    [
        AccessDenied("401", "key"), HostUnknown("who", "dns"), TlsFailed("certificate", "ca"),
        UnsupportedEngine("a shop", "port"), RequestFailed("bad", "mend", 400),
    ],
)  # fmt: skip
def test_permanent_error_is_raised_at_once(error: EngineError, caplog: pytest.LogCaptureFixture) -> None:
    engine = Starting(error, 1)
    with pytest.raises(type(error)):
        wait_for_engine(engine, 300)
    assert engine.calls == 1
    assert not caplog.records


def test_zero_budget_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    engine = Starting(EngineUnreachable("nothing listens", "start it"), 1)
    with pytest.raises(EngineUnreachable, match=r"^nothing listens\n"):
        wait_for_engine(engine, 0)
    assert (engine.calls, caplog.records) == (1, [])


def test_wait_ends_with_budget_or_stop_event() -> None:
    with pytest.raises(EngineUnreachable, match="nothing listens") as caught:
        wait_for_engine(Starting(EngineUnreachable("nothing listens", "start it"), 10**9), 0.05)
    assert re.fullmatch(r"waited for \d+ s", caught.value.__notes__[0])
    told = threading.Event()
    told.set()
    engine = Starting(EngineUnreachable("nothing listens", "start it"), 10**9)
    with pytest.raises(EngineUnreachable):
        wait_for_engine(engine, 3600, told)
    assert engine.calls == 1
