"""The functions of `es_sbert` that do what commands do, one after the other on one index of a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import es_sbert
from es_sbert import Encoder, ProgressSnapshot
from es_sbert.engines.engine import Engine
from es_sbert.errors import UsageError
from tests.engine.ingest_support import sentences, write_jsonl
from tests.raised import raises

pytestmark = pytest.mark.one_engine


def test_index_is_loaded_calibrated_and_migrated(
    engine: Engine, encoders: tuple[Encoder, Encoder], index_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, alias = engine.info.url, f"{index_name}-alias"
    file = write_jsonl(tmp_path / "docs.jsonl", sentences(60))
    places: dict[str, Any] = {"dead_letters": tmp_path / "dead"}
    preview = es_sbert.preview_files(index_name, file, url, encoder=encoders[0], count=2)
    assert (len(preview.documents), preview.creates_index) == (2, True)
    shown: list[ProgressSnapshot] = []
    report = es_sbert.load_files(
        index_name, str(file), url, encoder=encoders[0], progress=shown.append, state=tmp_path / "state", **places
    )
    assert (report.indexed, shown[-1].processed) == (60, 60)
    assert '`id_field="id"`' in " ".join(report.notes) + caplog.text
    assert es_sbert.load_files(index_name, engine=engine, encoder=encoders[0], text_fields="text").indexed == 0
    assert es_sbert.calibrate_index(index_name, engine, encoder=encoders[0], keep=0.5).documents == 60
    engine.update_aliases([{"add": {"index": index_name, "alias": alias, "is_write_index": True}}])
    messages: list[str] = []
    migrated = es_sbert.migrate_index(alias, url, encoder=encoders[1], report=messages.append, **places)
    assert (migrated.finished, migrated.documents) == (True, 60)
    assert any("Gateways need" in message for message in messages)
    assert es_sbert.SemanticIndex(alias, engine, encoder=encoders[1]).count() == 60
    engine.delete_index(migrated.target)


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [({"passages": 0}, "passages"), ({"format": "xls"}, "format"), ({"colour": 1}, "colour"), ({"model": 1}, "model")],
)
def test_wrong_keywords_of_functions_are_named(wrong: dict[str, Any], setting: str) -> None:
    with raises(UsageError, setting, wrong[setting]):
        es_sbert.load_files("docs", "docs.jsonl", **wrong)
