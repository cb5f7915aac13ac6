"""The search log in an index, shipped as docs/kibana.md says."""

from __future__ import annotations

import asyncio
import re
import subprocess
from datetime import datetime
from pathlib import Path

import orjson

from es_sbert.engines.rest import Json
from es_sbert.gateway.search.search_log import SearchLog
from es_sbert.gateway.settings import SearchLogSettings

ROOT = Path(__file__).parents[2]


def search_record(kind: str, at: datetime, **more: object) -> Json:
    """A record of a search, as a gateway makes it."""
    hits: Json = {"hits": more["hits"], "zero_hits": more["hits"] == 0} if "hits" in more else {}
    record: Json = {"@timestamp": at.isoformat(), "index": "docs", "api": "_search", "kind": kind, "status": 200}
    return record | {"returns_hits": True, "milliseconds": {"total": 1.0}, "texts": [], **more, **hits}


def ship_searches(url: str, name: str, records: list[Json], folder: Path) -> str:
    """Write searches as the gateway does, and ship the file as docs/kibana.md does; the index of the month."""
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
