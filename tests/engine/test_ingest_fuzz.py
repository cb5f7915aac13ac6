"""Fuzzed sources end in documents, skips and dead letters, and never in a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.fuzz.run import fuzz


@pytest.mark.parametrize("lines", [2000, pytest.param(8000, marks=pytest.mark.long)])
def test_every_fuzzed_line_is_counted(
    es9_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path, lines: int
) -> None:
    tally = fuzz(es9_url, tiny, fresh_index, tmp_path, lines, seed=1)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.read == tally.indexed + tally.skipped + tally.dead
    # The source is worth something only where every way out is taken.
    assert min(tally.indexed, tally.skipped, tally.dead, tally.refused) > lines // 200
