"""Servers that several processes of a test run share: one start, one stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared import shared


def test_first_user_starts_and_last_user_stops_the_server(tmp_path: Path) -> None:
    happened: list[str] = []
    place = tmp_path / "server.json"

    def start() -> dict[str, int]:
        happened.append("started")
        return {"port": 1}

    def stop(server: dict[str, int]) -> None:
        happened.append(f"stopped {server['port']}")

    with shared(place, start, stop) as one, shared(place, start, stop) as two:
        assert (one, two, happened) == ({"port": 1}, {"port": 1}, ["started"])
    with pytest.raises(ZeroDivisionError), shared(place, start, stop):
        _ = 1 // 0
    assert happened == ["started", "stopped 1"] * 2
    assert list(tmp_path.iterdir()) == []
