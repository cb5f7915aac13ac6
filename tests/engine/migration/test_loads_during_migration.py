"""A load by an alias that is moved to another index while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import Interposed, load, write_jsonl
from tests.engine.migration.support import COUNT, Place, text_of


def test_load_stops_when_its_alias_moves(place9: Place, encoders: tuple[Encoder, Encoder], tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "new.jsonl", [{"id": f"n{n}", "text": text_of(n)} for n in range(60)])

    def swap(window: int) -> None:
        if window == 1:
            assert place9.migrate(encoders[1]).finished

    encoder: Any = Interposed(encoders[0], swap)
    summary = load(
        place9.engine.info.url,
        encoder,
        place9.alias,
        source,
        dead=tmp_path / "dead.jsonl",
        id_field="id",
        batch_window=20,
        text_fields=("text",),
        retry_seconds=3600,
    )
    assert (summary.exit_code, summary.left > 0) == (1, True)
    assert f"{place9.alias} points to {place9.alias}-" in (summary.stopped or "")
    assert "takes no more writes" in (summary.stopped or "")
    # What was acknowledged before is in the new index.
    assert len(place9.contents()) == COUNT + summary.indexed
