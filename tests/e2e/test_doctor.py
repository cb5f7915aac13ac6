"""`es-sbert doctor` as users call it."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_state import IndexState
from tests.conftest import free_port
from tests.e2e.cli_support import Cli
from tests.engine.byte_index import create_byte_index
from tests.engine.ingest_support import open_engine

# The doctor looks at the health of the whole engine.
pytestmark = pytest.mark.usefixtures("alone_on_engines")


def test_healthy_setup_reports_no_failures(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    Path("docs.txt").write_text("a man plays guitar\nthe cat sleeps\n")
    options = ["--index", index_name, "--url", engine_url, "--model", model, "--precision", "fp32"]
    assert cli("ingest", *options, "docs.txt").code == 0
    done = cli("doctor", *options)
    assert (done.code, done.err) == (0, "")
    assert "FAIL" not in done.out
    for about in ("model", "device", "runtime", "engine", "health", "disk", "index", "field embedding"):
        assert f"  {about}: " in done.out
    assert "all 2 documents have a vector" in done.out
    rows = [orjson.loads(line) for line in cli("doctor", *options, "--json").out.splitlines()]
    assert {row["level"] for row in rows} <= {"ok", "warning"}


def test_problems_are_reported_with_remedy(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.blocks.write": True}})
    done = cli("doctor", "--index", index, "--url", es9_url, "--model", model, "--precision", "fp32")
    assert done.code == 1
    assert f"FAIL  index: {index} has index.blocks.write" in done.out
    assert f"{index} has no vector field" in done.out
    missing = cli("doctor", "--index", "no-such-index", "--url", es9_url, "--model", model, "--precision", "fp32")
    assert (missing.code, "look  index: there is no index no-such-index" in missing.out) == (0, True)


def test_error_of_the_mapping_is_reported_once(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine, Encoder(str(model), precision="fp32") as encoder:
        create_byte_index(engine, index, encoder, ["a man plays guitar"])
    done = cli("doctor", "--index", index, "--url", es9_url, "--model", model, "--precision", "fp32")
    assert done.code == 1
    assert done.out.count(f"{index}.embedding holds byte vectors") == 1


def test_mapping_is_read_once(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {})
    asked: list[str] = []
    read = Engine.resolve_indices

    def counted(engine: Engine, name: str) -> list[IndexState]:
        asked.append(name)
        return read(engine, name)

    monkeypatch.setattr(Engine, "resolve_indices", counted)
    assert cli("doctor", "--index", index, "--url", es9_url, "--model", model, "--precision", "fp32").code == 0
    assert asked == [index]


def test_model_of_the_index_is_opened(
    cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path, tmp_path: Path
) -> None:
    index, moved = fresh_index(es9_url), tmp_path / "model"
    shutil.copytree(model, moved)
    Path("docs.txt").write_text("a man plays guitar\n")
    options = ["--index", index, "--url", es9_url, "--precision", "fp32"]
    assert cli("ingest", *options, "--model", moved, "docs.txt").code == 0
    done = cli("doctor", *options)
    assert (done.code, f"ok    model: {moved} " in done.out, "look" in done.out) == (0, True, False)
    shutil.rmtree(moved)
    gone = cli("doctor", *options)
    assert (gone.code, "FAIL  model: " in gone.out, str(moved) in gone.out) == (1, True, True)


def test_unsearchable_field_is_reported_as_failure(
    cli: Cli, engine_url: str, fresh_index: Callable[[str], str], model: Path
) -> None:
    index, foreign = fresh_index(engine_url), fresh_index(engine_url)
    options = ["--url", engine_url, "--model", model, "--precision", "fp32"]
    assert cli("index", "create", index, "--url", engine_url, "--model", model).code == 0
    with open_engine(engine_url) as engine:
        state = engine.get_index(index)
        assert state is not None
        mappings = {"_meta": state.mappings["_meta"], "properties": {"embedding": {"type": "keyword"}}}
        engine.create_index(foreign, {"mappings": mappings, "aliases": {f"{index}-both": {}}})
        engine.update_aliases([{"add": {"index": index, "alias": f"{index}-both"}}])
    done = cli("doctor", "--index", foreign, *options)
    assert (done.code, "FAIL  field embedding: " in done.out, "ok    field" in done.out) == (1, True, False)
    assert "of type keyword" in done.out
    several = cli("doctor", "--index", f"{index}-both", *options)
    assert f"look  index: {index}-both names 2 indices, which are searched together, and none of them" in several.out
    assert (several.out.count("ok    field embedding"), several.out.count("FAIL  field embedding")) == (1, 1)


def test_index_without_the_field_of_its_alias_gets_commands(
    cli: Cli, engine_url: str, index_name: str, model: Path
) -> None:
    """As after a rollover without a template; the commands that doctor prints close the gap."""
    alias = f"{index_name}-logs"
    old, new = f"{alias}-000001", f"{alias}-000002"
    Path("docs.jsonl").write_text('{"id": "1", "body": "a man plays guitar"}\n')
    options = ["--url", engine_url, "--precision", "fp32"]
    with open_engine(engine_url) as engine:
        try:
            texts = ["--text-field", "body", "--id-field", "id", "--model", model]
            assert cli("ingest", "--index", old, *options, *texts, "docs.jsonl").code == 0
            engine.create_index(new, {})
            engine.update_aliases(
                [{"add": {"index": name, "alias": alias, "is_write_index": name == new}} for name in (old, new)]
            )
            engine.bulk(new, b'{"index":{"_id":"2"}}\n{"body":"the cat sleeps"}\n')
            for name in (alias, f"{old},{new}", f"{alias}-*"):
                done = cli("doctor", "--index", name, *options)
                assert done.code == 0, done.out
                assert (
                    f"look  field embedding: missing in {new}: searches of {name} miss the documents there" in done.out
                )
                assert f"{new} has no vector field" not in done.out
            assert f"documents are written to {new}" in cli("doctor", "--index", alias, *options).out
            [command] = set(re.findall(rf"`es-sbert (ingest --index {new} [^`]*)`", done.out))
            assert cli(*shlex.split(command), *options).code == 0
            found = cli("search", "--index", alias, *options, "the cat sleeps", "--json")
            assert (found.code, len(found.out.splitlines()), "lacks" in found.err) == (0, 2, False)
        finally:
            engine.delete_index(old)
            engine.delete_index(new)


def test_search_says_which_index_lacks_the_field(cli: Cli, engine_url: str, index_name: str, model: Path) -> None:
    old, new = f"{index_name}-1", f"{index_name}-2"
    Path("docs.txt").write_text("a man plays guitar\n")
    options = ["--url", engine_url, "--precision", "fp32"]
    with open_engine(engine_url) as engine:
        try:
            assert cli("ingest", "--index", old, *options, "--model", model, "docs.txt").code == 0
            engine.create_index(new, {})
            for name in (f"{old},{new}", f"{index_name}-*"):
                done = cli("search", "--index", name, *options, "guitar")
                assert (done.code, "a man plays guitar" in done.out) == (0, True)
                assert f"{new} lacks the vector field embedding" in done.err
        finally:
            engine.delete_index(old)
            engine.delete_index(new)


def test_read_block_is_named(cli: Cli, es9_url: str, fresh_index: Callable[[str], str], model: Path) -> None:
    index = fresh_index(es9_url)
    with open_engine(es9_url) as engine:
        engine.create_index(index, {"settings": {"index.blocks.read": True}})
    options = ["--url", es9_url, "--model", model, "--precision", "fp32"]
    assert f"FAIL  index: {index} has index.blocks.read" in cli("doctor", "--index", index, *options).out


def test_unreachable_engine_and_missing_model_are_reported(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--url", f"http://localhost:{free_port()}", "--model", tmp_path / "no-model")
    assert done.code == 1
    assert "FAIL  model: " in done.out
    assert "FAIL  engine: " in done.out
    assert "`es-sbert engine up`" in done.out
