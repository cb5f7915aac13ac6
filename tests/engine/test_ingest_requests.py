"""What a load sends to the engine for a thousand documents: requests and bytes, whatever the machine's speed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.rest import EngineResponse
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from tests.engine.ingest_support import sentences, write_jsonl

DOCUMENTS = 1000


class Requests:
    """The requests of an engine: how many of each kind, and the bytes of their bodies."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._send = engine.send
        monkeypatch.setattr(engine, "send", self.send)

    def send(self, method: str, path: str, params: Any = None, body: bytes | None = None, **how: Any) -> EngineResponse:
        kind = f"{method} {path.rpartition('/')[2]}"
        self.count[kind] += 1
        self.bytes[kind] += len(body or b"")
        return self._send(method, path, params, body, **how)


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True)
def test_requests_of_thousand_documents(
    engine: Engine, index_name: str, tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl", sentences(DOCUMENTS))
    settings = IngestSettings(
        index=index_name, files=(str(path),), id_field="id", index_type="flat", dead_letters=tmp_path / "dead"
    )

    def load() -> Requests:
        requests = Requests(engine, monkeypatch)
        plan = plan_load(engine, settings, resolve_sources(settings))
        assert run_load(engine, tiny, plan, LoadControl(), ProgressMeter()).exit_code == 0
        return requests

    new = load()
    # Of new documents, none is looked up; each is sent once, with its vector, in one body of the default size.
    assert new.count["POST _bulk"] == 1
    assert new.count["POST _search"] <= 4  # some of them count documents
    # Read back: a few documents of the first request, and the sample.
    assert new.count["POST _mget"] == 2
    # Some of them are to tell lost writes from changes by others: primary terms and sequence numbers, before and after.
    # Others foresee templates of data streams and the limit of shards.
    assert new.count.total() <= 39
    # The document itself, the action, its numbers as base64, and the metadata of the vector.
    source = path.stat().st_size
    assert new.bytes["POST _bulk"] < source + DOCUMENTS * (40 + 4 * tiny.info.dimensions * 4 // 3 + 260)
    unchanged = load()
    assert unchanged.count["POST _bulk"] == 0
    assert unchanged.count["POST _search"] <= 5
    assert unchanged.count.total() <= 24
    # The lookup names the ids.
    assert unchanged.bytes["POST _search"] < DOCUMENTS * 8 + 1000
