"""The text of vectors that exist is replaced in place, also when the command is killed half-way."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.encoder.encoder import Encoder
from tests.engine.ingest_support import Interposed, contents, load, same_vectors, vector_of, write_jsonl

COUNT = 60


class Killed(RuntimeError):
    """The process ends here."""


def test_replace_text_resumes_after_kill(engine_url: str, index_name: str, encoder: Encoder, tmp_path: Path) -> None:
    documents = [{"id": f"d{n}", "title": f"cat {n}", "body": f"guitar {n}"} for n in range(COUNT)]
    path = write_jsonl(tmp_path / "d.jsonl", documents)
    load(engine_url, encoder, index_name, path, dead=tmp_path / "dead", id_field="id", text_fields=("body",))

    def kill(window: int) -> None:
        if window == 2:
            raise Killed

    with pytest.raises(Killed):
        load(
            engine_url,
            Interposed(encoder, kill),
            index_name,
            dead=tmp_path / "dead",
            batch_window=16,
            text_template="{title}: {body}",
            replace_text_template=True,
        )
    # By whichever command: the mapping has the new text, the vectors say which text they were made from.
    summary = load(engine_url, encoder, index_name, dead=tmp_path / "dead")
    assert (summary.read, summary.indexed + summary.unchanged) == (COUNT, COUNT)
    assert summary.indexed >= COUNT - 2 * 16
    wanted = encoder.encode([f"{d['title']}: {d['body']}" for d in documents], "document")
    stored = contents(engine_url, index_name)
    assert all(
        same_vectors(vector_of(stored[document["id"]]), vector)
        for document, vector in zip(documents, wanted, strict=True)
    )
