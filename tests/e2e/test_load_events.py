"""The events of a running load on stderr."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import sentences, write_jsonl
from tests.faulty_proxy import FaultyProxy, answer

COMMAND = [sys.executable, "-m", "es_sbert", "ingest"]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """Some that are refused, some without text, some too long for the model."""
    documents = sentences(300)
    documents[7]["text"] = ""
    documents[8]["text"] = "storm " * 60
    documents[290]["price"] = "not a number"
    return write_jsonl(tmp_path / "docs.jsonl", documents)


class Running:
    """A load of its own process that says what happens."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.events: list[dict[str, Any]] = []
        self._arrived = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._arrived:
                self.events.append(orjson.loads(line))
                self._arrived.notify_all()

    def wait_for(self, name: str) -> dict[str, Any]:
        """The first event of that name."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: any(event["event"] == name for event in self.events), 120)
            return next(event for event in self.events if event["event"] == name)

    def end(self) -> tuple[int, bytes]:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(120)
        self._reader.join()
        self.process.stdout.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code, out


def test_running_load_logs_events(
    es9_url: str, fresh_index: Callable[[str], str], docs: Path, model: Path, tmp_path: Path
) -> None:
    index = fresh_index(es9_url)
    with FaultyProxy(es9_url, always=answer(429)) as proxy:
        running = Running(
            "--index",
            index,
            "--url",
            proxy.url,
            "--model",
            str(model),
            "--precision",
            "fp32",
            "--threads",
            "1",
            "--id-field",
            "id",
            "--batch-window",
            "32",
            "--bulk-bytes",
            "20000",
            "--log-format",
            "json",
            "--json",
            "--state",
            str(tmp_path / "state"),
            "--dead-letters",
            str(tmp_path / "dead"),
            str(docs),
        )
        assert "429" in running.wait_for("waiting_began")["reason"]
        during = running.wait_for("progress")
        assert (during["outcomes"]["indexed"], "429" in during["waiting"]) == (0, True)
        proxy.always = None
        code, out = running.end()
    assert code == 1
    events = running.events
    assert all({"time", "level", "event", "message"} <= set(event) for event in events)
    names = [event["event"] for event in events]
    order = [
        "load_started",
        "waiting_began",
        "retry",
        "throttle_changed",
        "waiting_ended",
        "first_dead_letter",
        "dead_letters",
        "load_ended",
    ]
    assert set(order) <= set(names)
    assert names.index("load_started") < names.index("waiting_began") < names.index("waiting_ended")
    assert names[-1] == "load_ended"
    started, ended = running.wait_for("load_started"), running.wait_for("load_ended")
    assert (started["index"], started["provider"]) == (index, "CPUExecutionProvider")
    assert (started["sources"], started["texts"]) == ([str(docs)], {"embedding": "{text}"})
    summary = orjson.loads(out)
    assert {name: ended[name] for name in summary} == summary
    assert (ended["level"], ended["exit_code"]) == ("warning", 1)
    assert running.wait_for("first_dead_letter")["source"] == f"{docs}:291"


def test_error_is_logged_as_event(cli: Cli) -> None:
    done = cli("ingest", "--index", "docs", "--log-format", "json", "no-such-file.txt")
    [event] = [orjson.loads(line) for line in done.err.splitlines()]
    assert (done.code, event["event"], event["level"], event["error"]) == (2, "failed", "error", "SourceError")
