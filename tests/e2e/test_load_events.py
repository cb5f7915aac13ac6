"""The events of a running load on stderr."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.ingest import load_threads
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy, answer


def test_running_load_logs_events(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_threads, "REPORTED_WAIT_SECONDS", 0.0)
    documents = sentences(300)
    documents[290]["price"] = "not a number"
    write_jsonl(Path("docs.jsonl"), documents)
    options = ("--model", model, "--precision", "fp32", "--threads", "1", "--id-field", "id", "--batch-window", "32")
    index, overloaded = fresh_index(es9_url), [answer(429)] * 3
    with FaultyProxy(es9_url, faults=overloaded) as proxy:
        done = cli(
            "ingest", "--index", index, "--url", proxy.url, *options, "--log-format", "json", "--json", "docs.jsonl"
        )
    assert done.code == 1
    events = [orjson.loads(line) for line in done.err.splitlines()]
    assert all({"time", "level", "event", "message"} <= set(event) for event in events)
    names = [event["event"] for event in events]
    order = [
        names.index(name) for name in ("load_started", "waiting_began", "waiting_ended", "dead_letters", "load_ended")
    ]
    assert order == sorted(order)
    assert {"retry", "throttle_changed", "first_dead_letter"} <= set(names)
    first = {name: events[names.index(name)] for name in names}
    assert "429" in first["waiting_began"]["reason"]
    assert (first["load_started"]["index"], first["load_started"]["sources"]) == (index, ["docs.jsonl"])
    assert first["first_dead_letter"]["source"] == "docs.jsonl:291"
    ended = first["load_ended"]
    assert (ended["level"], ended["exit_code"]) == ("warning", 1)
    assert {name: ended[name] for name in done.summary} == done.summary
