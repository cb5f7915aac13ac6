"""A running load as machines see it: events on stderr, metrics by HTTP."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.ingest.load_metrics import serve_metrics
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.progress import SilentMeter
from tests.e2e.cli_support import Cli
from tests.e2e.scraping import Sample, scrape, value
from tests.engine.ingest_support import load, sentences, write_jsonl
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


def assert_equal_to_the_summary(samples: dict[Sample, float], summary: LoadReport) -> None:
    outcomes = {
        "indexed": summary.indexed, "updated": summary.updated, "unchanged": summary.unchanged, "dead": summary.dead,
        "left": summary.left, **summary.skipped.model_dump(),
    }  # fmt: skip
    for outcome, count in outcomes.items():
        assert value(samples, "es_sbert_documents_total", outcome=outcome) == count
    assert value(samples, "es_sbert_documents_read_total") == summary.read
    assert value(samples, "es_sbert_documents_truncated_total") == summary.truncated
    assert value(samples, "es_sbert_tokens_lost_total") == summary.lost_tokens
    assert value(samples, "es_sbert_retries_total") == summary.retries


def test_final_counters_equal_summary(
    engine_url: str, index_name: str, docs: Path, tiny: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "es_sbert")
    with serve_metrics(SilentMeter(), "0") as metrics, FaultyProxy(engine_url) as proxy:
        url = next(record.__dict__["fields"]["url"] for record in caplog.records)
        assert not any(name.startswith("es_sbert_documents") for name, _ in scrape(url))
        proxy.faults += [answer(429), answer(503)]
        summary = load(
            proxy.url,
            tiny,
            index_name,
            docs,
            dead=tmp_path / "dead",
            id_field="id",
            batch_window=32,
            bulk_bytes=20_000,
            retry_seconds=60,
            meter=metrics,
        )
        samples = scrape(url)
    assert (summary.dead, summary.skipped.empty, summary.truncated) == (1, 1, 1)
    assert summary.retries > 0
    assert_equal_to_the_summary(samples, summary)
    labels = {
        "index": index_name, "engine": summary.engine, "model": summary.model, "fingerprint": summary.fingerprint,
        "provider": summary.provider, "device": summary.device, "precision": summary.precision,
    }  # fmt: skip
    [info] = [dict(found) for name, found in samples if name == "es_sbert_load_info"]
    assert labels.items() <= info.items()
    requests = value(samples, "es_sbert_bulk_request_seconds_count")
    assert requests > summary.indexed * 60 / 20_000
    assert value(samples, "es_sbert_embed_window_seconds_count") == -(-300 // 32)
    assert value(samples, "es_sbert_bulk_bytes_total") > summary.indexed * 60
    assert 1024 <= value(samples, "es_sbert_bulk_body_limit_bytes") <= 20_000
    assert 1 <= value(samples, "es_sbert_bulk_requests_allowed") <= 4
    with pytest.raises(OSError, match="refused"):
        scrape(url)


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


def test_running_load_exposes_metrics_and_logs_events(
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
            "--metrics",
            "0",
            "--state",
            str(tmp_path / "state"),
            "--dead-letters",
            str(tmp_path / "dead"),
            str(docs),
        )
        url = running.wait_for("metrics_served")["url"]
        assert url.startswith("http://127.0.0.1:")
        running.wait_for("load_started")
        assert "429" in running.wait_for("waiting_began")["reason"]
        during = scrape(url)
        assert value(during, "es_sbert_documents_total", outcome="indexed") == 0
        assert value(during, "es_sbert_waiting") == 1
        assert value(during, "es_sbert_bulk_requests_allowed") == 1
        proxy.always = None
        code, out = running.end()
    assert code == 1
    events = running.events
    assert all({"time", "level", "event", "message"} <= set(event) for event in events)
    names = [event["event"] for event in events]
    order = [
        "metrics_served",
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


def test_error_is_logged_as_event(cli: Cli, tmp_path: Path) -> None:
    # An address of another machine.
    done = cli("ingest", "--index", "docs", "--metrics", "192.0.2.1:9464", "--log-format", "json", "no-such-file.txt")
    [event] = [orjson.loads(line) for line in done.err.splitlines()]
    assert (done.code, event["event"], event["level"], event["error"]) == (2, "failed", "error", "UsageError")
    assert "192.0.2.1:9464" in event["message"]
    assert "an address that this user may open" in event["remedy"]
    assert not os.listdir(tmp_path)


def test_load_goes_on_without_metrics_if_their_port_is_in_use(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        logged = cli("ingest", "--index", "docs", "--metrics", port, "--log-format", "json", "no-such-file.txt")
        shown = cli("ingest", "--index", "docs", "--metrics", port, "no-such-file.txt")
    warning, failure = [orjson.loads(line) for line in logged.err.splitlines()]
    assert (warning["event"], warning["level"], warning["port"]) == ("metrics_not_served", "warning", port)
    assert (failure["event"], failure["error"]) == ("failed", "SourceError")
    said = " ".join(shown.err.split())
    assert f"metrics cannot be served at 127.0.0.1:{port}: " in said
    assert "The load goes on without metrics. Set --metrics to another port" in said


@pytest.mark.parametrize("address", ["", "x", "70000", "1.2.3.4", "host:", ":1", "a b:1", "[::1]", "-1"])
def test_invalid_metrics_addresses_are_rejected(cli: Cli, address: str) -> None:
    done = cli("ingest", "--index", "docs", f"--metrics={address}", "no-such-file.txt")
    assert (done.code, "is not a valid metrics address" in done.err) == (2, True)


def test_metrics_without_extra_names_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = cli("ingest", "--index", "docs", "--metrics", "0", "no-such-file.txt")
    assert (done.code, "[metrics]" in done.err) == (2, True)
