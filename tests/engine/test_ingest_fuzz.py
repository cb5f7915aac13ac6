"""Fuzzed sources end in documents, skips and dead letters, and never in a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.loading import load_encoder
from tests.fuzz.run import fuzz
from tests.tiny import write_tiny_bert

LINES = 8000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        model = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")
        with load_encoder(str(model), precision="fp32", threads=1) as encoder:
            yield encoder


def test_every_fuzzed_line_comes_to_an_end(
    es9_url: str, fresh_index: Callable[[str], str], tiny: Encoder, tmp_path: Path
) -> None:
    tally = fuzz(es9_url, tiny, fresh_index, tmp_path, LINES, seed=1)
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.read == tally.indexed + tally.skipped + tally.dead
    # The source is worth something only where every way out is taken.
    assert min(tally.indexed, tally.skipped, tally.dead, tally.refused) > LINES // 200
