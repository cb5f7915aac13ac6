from __future__ import annotations

import logging
from unittest.mock import Mock

import pytest

from es_sbert.analysis.field_writer import FieldUpdateCounts
from es_sbert.cli.analysis import write_field_values


def test_documents_deleted_during_the_analysis_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    writer = Mock(write=lambda updates: FieldUpdateCounts(written=1, deleted=2))
    with caplog.at_level(logging.INFO, "es_sbert"):
        assert write_field_values(writer, Mock(), {}, {"filter": None}) == 0
    assert "2 documents were deleted during the analysis" in caplog.text
