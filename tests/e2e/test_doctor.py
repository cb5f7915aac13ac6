"""`es-sbert doctor` as users call it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.engines.protocol import IndexState
from es_sbert.engines.rest import RestEngine
from es_sbert.index.load_settings import begin_load
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import open_engine


def test_all_is_well(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    Path("docs.txt").write_text("a man plays guitar\nthe cat sleeps\n")
    options = ["--index", index_name, "--url", engine_url, "--model", model, "--precision", "fp32"]
    assert cli("ingest", *options, "docs.txt").code == 0
    done = cli("doctor", *options)
    assert (done.code, done.err) == (0, "")
    assert "FAIL" not in done.out
    for about in ("model", "device", "engine", "health", "licence", "disk", "index", "field embedding"):
        assert f"  {about}: " in done.out
    assert "all 2 documents have a vector" in done.out
    rows = [orjson.loads(line) for line in cli("doctor", *options, "--json").out.splitlines()]
    assert {row["level"] for row in rows} <= {"ok", "warning"}


def test_what_is_wrong_is_said_with_the_way_out(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.blocks.write": True}})
        state = engine.get_index(index)
        assert state is not None
        begin_load(engine, state)
    done = cli("doctor", "--index", index, "--url", es9_url, "--model", model, "--precision", "fp32")
    assert done.code == 1
    assert f"FAIL  index: {index} has index.blocks.write" in done.out
    assert f"`es-sbert index repair {index}`" in done.out
    assert f"{index} has no vector field" in done.out
    missing = cli("doctor", "--index", "no-such-index", "--url", es9_url, "--model", model, "--precision", "fp32")
    assert (missing.code, "look  index: there is no index no-such-index" in missing.out) == (0, True)


def test_the_mapping_is_read_once(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {})
    asked: list[str] = []
    read = RestEngine.get_index

    def counted(engine: RestEngine, name: str) -> IndexState | None:
        asked.append(name)
        return read(engine, name)

    monkeypatch.setattr(RestEngine, "get_index", counted)
    assert cli("doctor", "--index", index, "--url", es9_url, "--model", model, "--precision", "fp32").code == 0
    assert asked == [index]


def test_nothing_answers_and_no_model_opens(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--url", f"http://localhost:{free_port()}", "--model", tmp_path / "no-model")
    assert done.code == 1
    assert "FAIL  model: " in done.out
    assert "FAIL  engine: " in done.out
    assert "`es-sbert engine up`" in done.out
