"""`es-sbert ingest --report-index`: one document a load, and never a load that fails for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.ingest.load_report import prepare_report_index, write_report
from tests.e2e.cli_support import cli_in_process
from tests.engine.ingest_support import open_engine, sentences, write_jsonl
from tests.unit.ingest.test_load_report import summary


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
    report = summary(indexed=1)
    with open_engine(es8_url) as engine:
        prepare_report_index(engine, reports)
        prepare_report_index(engine, reports)
        engine.put_settings(reports, {"index.blocks.write": "true"})
        write_report(engine, reports, report)
        assert any(getattr(record, "event", "") == "report_failed" for record in caplog.records)
        assert reports in caplog.text
        caplog.clear()
        engine.put_settings(reports, {"index.blocks.write": None})
        write_report(engine, reports, report)
        assert not caplog.records
        engine.refresh(reports)
        assert engine.count(reports) == 1
