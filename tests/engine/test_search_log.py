"""The search log in an index, shipped as docs/kibana.md says; and the privileges of reports of loads."""

from __future__ import annotations

import asyncio
import re
import subprocess
import uuid
from datetime import UTC, datetime
from pathlib import Path

import orjson

from es_sbert.engines.rest import Json
from es_sbert.gateway.search_log import SearchLog
from es_sbert.gateway.settings import SearchLogSettings
from tests.conftest import delete_index
from tests.engine.ingest_support import open_engine

ROOT = Path(__file__).parents[2]


def search_record(kind: str, at: datetime, **more: object) -> Json:
    """A record of a search, as a gateway makes it."""
    hits: Json = {"hits": more["hits"], "zero_hits": more["hits"] == 0} if "hits" in more else {}
    record: Json = {"@timestamp": at.isoformat(), "index": "docs", "api": "_search", "kind": kind, "status": 200}
    return record | {"returns_hits": True, "milliseconds": {"total": 1.0}, "texts": [], **more, **hits}


def ship_searches(url: str, name: str, records: list[Json], folder: Path) -> str:
    """Write searches as the gateway does, and ship the file by the commands of docs/kibana.md; the index of the month.

    Args:
        name: Name of the log in the engine.
        folder: For the file.
    """
    path = folder / "searches.jsonl"
    log = SearchLog(SearchLogSettings(path, True, "here", close_seconds=60))
    log.start()
    for record in records:
        log.record(record)
    asyncio.run(log.close())
    assert log.dropped == 0
    template = (ROOT / "examples/search-log/index-template.json").read_text()
    (folder / "index-template.json").write_text(template.replace("es-sbert-searches", name))
    page = (ROOT / "docs/kibana.md").read_text(encoding="utf-8")
    section = page[page.index("### Ship the search log") : page.index("## Privileges")]
    for command in re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
        command = command.replace("localhost:9200", url).replace("es-sbert-searches", name)
        command = command.replace("examples/search-log/", "").replace("curl", "curl -sS --fail")
        done = subprocess.run(["bash", "-ec", command], cwd=folder, capture_output=True, text=True, check=True)
        assert orjson.loads(done.stdout).get("errors") in (None, False), done.stdout
    return f"{name}-2026.01"


def test_shipped_lines_have_the_types_of_the_template(engine_url: str, tmp_path: Path) -> None:
    name, at = f"test-searches-{uuid.uuid4().hex[:12]}", datetime(2026, 1, 31, 12, tzinfo=UTC)
    records = [
        search_record("semantic", at, texts=["plants"], k=10, hits=0),
        search_record("lexical", at, status=400),
    ]
    month = ship_searches(engine_url, name, records, tmp_path)
    try:
        with open_engine(engine_url) as engine:
            engine.refresh(month)
            [state] = engine.resolve_indices(month)
            assert state.mappings["properties"]["query_hash"]["type"] == "keyword"
            assert state.mappings["dynamic"] == "false"
            hits = engine.search(month, {"query": {"term": {"zero_hits": True}}})["hits"]["hits"]
        assert [(hit["_source"]["kind"], hit["_source"]["query"]) for hit in hits] == [("semantic", ["plants"])]
    finally:
        delete_index(engine_url, month)
        subprocess.run(["curl", "-sS", "-X", "DELETE", f"{engine_url}/_index_template/{name}"], check=True)
