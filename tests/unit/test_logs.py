"""Records on their way to stderr: for people and for machines."""

from __future__ import annotations

import logging
import subprocess
import sys

import orjson
import pytest

from es_sbert.cli.logs import configure_logging, is_json_logging, log_error
from es_sbert.engines.error_mapping import response_error
from es_sbert.errors import UsageError
from es_sbert.ingest.progress import LineMeter, ProgressSnapshot, choose_meter, log_progress
from es_sbert.messages import log_event, log_message


def test_text_logging_shows_messages_and_warnings(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log_event("a", "not shown", number=1)
    log_event("b", "not shown either", logging.WARNING, text="")
    log_event("c", "a warning\x1b[31m", logging.WARNING)
    log_event("d", "message", text="two\nlines")
    log_message("hello %s")
    logging.getLogger("opensearch").warning("a request failed", exc_info=ValueError("x"))
    logging.getLogger("other").error("broken", exc_info=ValueError("x"))
    log_error(UsageError("wrong\x07", "Mend it."))
    out, err = capfd.readouterr()
    assert out == ""
    shown = ["a warning\\x1b[31m", "two", "lines", "hello %s", "broken", "Error: wrong\\x07", "  Mend it."]
    assert err.splitlines() == shown


def test_json_logging_writes_one_object_per_line(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("json")
    assert is_json_logging()
    log_event("a", "per cent: %s\n\x1b", number=1, nested={"x": ["\udcff", None, 0.5]})
    logging.getLogger("other").warning("it %s", "fails", exc_info=ValueError("x"))
    log_error(UsageError("wrong", "Mend it.", setting="k", value=0))
    log_error(response_error(404, {"error": {"type": "a", "reason": "b"}}, label="E", action="GET /x"))
    _, err = capfd.readouterr()
    first, second, third, fourth = (orjson.loads(line) for line in err.splitlines())
    assert first["time"].endswith("+00:00")
    del first["time"]
    record = {"level": "info", "event": "a", "message": "per cent: %s\n\x1b", "number": 1}
    assert first == record | {"nested": {"x": ["\\udcff", None, 0.5]}}
    assert (second["event"], second["logger"], second["message"]) == ("log", "other", "it fails")
    assert second["traceback"] == "ValueError: x"
    assert (third["event"], third["level"], third["remedy"]) == ("failed", "error", "Mend it.")
    assert (third["error"], third["code"], third["setting"], third["value"]) == ("UsageError", "usage_error", "k", 0)
    assert (fourth["code"], fourth["status"], fourth["type"]) == ("request_failed", 404, "a")
    assert "setting" not in fourth
    configure_logging()
    assert not is_json_logging()


def test_text_logging_escapes_records_and_shows_tracebacks(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    ours = logging.getLogger("es_sbert.gateway")
    ours.warning("index %s", "x\nError: forged\x1b[2J\u2028")
    try:
        raise KeyError("first\nsecond\x1b")
    except KeyError:
        ours.exception("a mistake")
    logging.getLogger("asyncio").error("never retrieved\n", exc_info=ValueError("two\nlines"))
    lines = capfd.readouterr().err.split("\n")[:-1]
    assert lines[0] == "index x\\nError: forged\\x1b[2J\\u2028"
    assert lines[1:3] == ["a mistake", "    Traceback (most recent call last):"]
    assert lines[-4:] == ["    KeyError: 'first\\nsecond\\x1b'", "never retrieved", "    ValueError: two", "    lines"]
    assert all(line.isprintable() for line in lines)


def test_library_logs_nothing_by_default() -> None:
    code = "from es_sbert.messages import log_event; log_event('a', 'message', 40)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, object]]]:
    return [(entry.event, entry.fields) for entry in caplog.records]  # type: ignore[attr-defined]


def test_progress_event_every_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="es_sbert")
    now = 0.0
    meter = LineMeter(log_progress, timer=lambda: now)
    for tick in range(60):
        now = tick / 4
        meter.show(ProgressSnapshot(tick, tick, 0.25 if tick else None, now, 15.04, "429", outcomes={"dead": 1}))
    (name, first), (_, second) = events(caplog)
    expected = {"read": 20, "fraction": 0.25, "seconds": 5.0, "documents_per_second": 4.0, "seconds_left": 15.0}
    assert name == "progress"
    assert expected.items() <= first.items()
    assert second["read"] == 40
    assert isinstance(choose_meter(sys.stderr, quiet=False, events=True), LineMeter)
