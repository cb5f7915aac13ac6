"""The examples of docs/search.md run as they stand, on each engine."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from tests.e2e.test_search_cli import TEXTS
from tests.engine.vectors import load

PAGE = Path(__file__).parents[2] / "docs/search.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def names(engine_url: str) -> Iterator[dict[str, str]]:
    """What the page calls `docs` and `news`, and the names on this server."""
    stem = f"test-{uuid.uuid4().hex[:12]}"
    names = {"docs": f"{stem}-docs", "news": f"{stem}-news", "articles": f"{stem}-articles"}
    with (
        Encoder(DEFAULT_MODEL, device="cpu", precision="fp32") as encoder,
        closing(connect(EngineSettings(url=engine_url))) as engine,
    ):
        vectors = encoder.encode([text for _, text in TEXTS], "document")
        for name in (names["docs"], names["news"]):
            info = encoder.info
            request = FieldRequest("embedding", info.fingerprint, info.model, info.dimensions, "hnsw", text="{title}")
            ensure_vector_field(engine, name, request)
            engine.put_mapping(name, {"properties": {"language": {"type": "keyword"}, "title": {"type": "text"}}})
            sources = [{"language": code, "title": text, "year": 2020 + n} for n, (code, text) in enumerate(TEXTS)]
            load(engine, name, "embedding", vectors, sources.__getitem__)
        yield names
        for name in names.values():
            engine.delete_index(name)


def test_every_example_of_the_page_runs(
    engine_url: str, names: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(connect(EngineSettings(url=engine_url))) as engine:
        other = "OpenSearch" if engine.info.engine_type is EngineType.ELASTICSEARCH else "Elasticsearch"
    blocks = [block for block in _BLOCK.findall(PAGE.read_text()) if not block.startswith(f"# {other}\n")]
    assert len(blocks) > 10
    space: dict[str, object] = {"__name__": "page"}
    try:
        for number, block in enumerate(blocks, start=1):
            code = block.replace("http://localhost:9200", engine_url)
            for name, own in names.items():
                code = code.replace(f'"{name}"', f'"{own}"')
            code = code.replace("my-hybrid", f"{names['docs']}-pipeline")
            exec(compile(code, f"{PAGE.name}, example {number}", "exec"), space)
    finally:
        if "index" in space:
            space["index"].close()  # type: ignore[attr-defined]
    shown = capsys.readouterr().out
    assert "Vaccines train the immune system" in shown
