"""`es-sbert ingest --report-index`: one document a load, and never a load that fails for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.ingest.load_report import LoadReport, prepare_report_index, write_report
from tests.e2e.cli_support import cli_in_process
from tests.engine.ingest_support import open_engine, sentences, write_jsonl


@pytest.fixture
def reports(es8_url: str) -> Iterator[str]:
    name = f"test-loads-{uuid.uuid4().hex[:12]}"
    yield name
    with open_engine(es8_url) as engine:
        engine.delete_index(name)


def test_invalid_report_index_is_refused_before_load(
    es8_url: str, fresh_index: Callable[[str], str], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    index_name = fresh_index(es8_url)
    file = write_jsonl(tmp_path / "docs.jsonl", sentences(1))
    done = cli_in_process(capfd)("ingest", file, "--index", index_name, "--url", es8_url, "--report-index", "Loads*")
    assert done.code == 2
    with open_engine(es8_url) as engine:
        assert engine.get_index(index_name) is None


def test_rejected_report_is_logged_and_load_succeeds(
    es8_url: str, reports: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = dict.fromkeys(
        (
            "read",
            "indexed",
            "updated",
            "unchanged",
            "dead",
            "left",
            "truncated",
            "lost_tokens",
            "retries",
            "pruned",
            "threads",
        ),
        1,
    )
    words = dict.fromkeys(
        ("index", "engine", "source", "model", "fingerprint", "variant", "precision", "provider", "device"), "x"
    )
    summary = LoadReport(
        **numbers,
        **words,
        skipped={"empty": 0, "duplicate": 0, "superseded": 0, "deleted": 0},
        seconds=1.0,
        documents_per_second=1.0,
        dead_letters=None,
        warnings=(),
        interrupted=False,
        stopped=None,
        resumed=False,
        notes=(),
    )  # type: ignore[arg-type]
    with open_engine(es8_url) as engine:
        prepare_report_index(engine, reports)
        prepare_report_index(engine, reports)
        engine.put_settings(reports, {"index.blocks.write": "true"})
        write_report(engine, reports, summary)
        assert any(getattr(record, "event", "") == "report_failed" for record in caplog.records)
        assert reports in caplog.text
        caplog.clear()
        engine.put_settings(reports, {"index.blocks.write": None})
        write_report(engine, reports, summary)
        assert not caplog.records
        engine.refresh(reports)
        assert engine.count(reports) == 1
