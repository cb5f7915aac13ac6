"""What a search from the command line costs before it searches: the modules it imports, and its requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import sentences, write_jsonl

# Libraries of other commands, or that are installed without being used here.
UNUSED_LIBRARIES = {
    "aiohttp", "elasticsearch", "httpx", "onnx", "pyarrow", "requests", "sentence_transformers",
    "sklearn", "sqlite3", "starlette", "torch", "transformers",
}  # fmt: skip
UNUSED_MODULES = (
    "es_sbert.analysis", "es_sbert.encoder.reranker", "es_sbert.exporters", "es_sbert.gateway", "es_sbert.ingest",
    "es_sbert.search.async_semantic_index", "openvino.tools.ovc.",
)  # fmt: skip

# Runs a command line; prints the modules that it has imported and the requests that it has sent.
_PROGRAM = """
import json, sys
from urllib3.connectionpool import HTTPConnectionPool

requests, urlopen = [], HTTPConnectionPool.urlopen

def noted(self, method, url, *args, **kwargs):
    requests.append(f"{method} {url.partition('?')[0]}")
    return urlopen(self, method, url, *args, **kwargs)

HTTPConnectionPool.urlopen = noted
from es_sbert.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    json.dump({"code": ended.code, "modules": sorted(sys.modules), "requests": requests}, sys.stderr)
"""


@pytest.mark.parametrize("engine_url", ["es9"], indirect=True)
def test_modules_and_requests(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    write_jsonl(Path("docs.jsonl"), sentences(5))
    at = ("--url", engine_url, "--index", index_name, "--model", model)
    assert cli("ingest", *at, "--precision", "fp32", "docs.jsonl", "--id-field", "id").code == 0
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "search", *map(str, at), "--precision", "fp32", "the cat", "--json"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert len(done.stdout.splitlines()) == 5, done.stderr
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["code"] == 0
    # `make coverage` measures this process too, and keeps its data in SQLite.
    unused = UNUSED_LIBRARIES - ({"sqlite3"} if "coverage" in told["modules"] else set())
    assert {name for name in told["modules"] if name.partition(".")[0] in unused} == set()
    assert [name for name in told["modules"] if name.startswith(UNUSED_MODULES)] == []
    # The engine and its version (this build lacks `GET /`), the index, and the search itself.
    assert told["requests"] == ["GET /", "GET /_nodes/_local", f"GET /{index_name}", f"POST /{index_name}/_search"]
