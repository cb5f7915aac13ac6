"""Ids, field names and file names made to do harm, on their way through real engines and to a terminal."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from tests.e2e.cli_support import Cli
from tests.engine.ingest_support import contents, letters, write_jsonl

IDS = [
    "../../_all", "a/b", "a?routing=x", "a#b", "a%2Fb", "line\nfeed", 'quo"te', "it's", "back\\slash", "*", "_id",
    "🎸𝄞", "\x1b[31m", "{}", '{"delete":{"_id":"a/b"}}', "a\u2028b", " ",
]  # fmt: skip
RED = "\x1b[31m"


@pytest.fixture
def options(engine_url: str, index_name: str, model: Path) -> list[str]:
    return ["--index", index_name, "--url", engine_url, "--model", str(model), "--precision", "fp32"]


def test_hostile_ids_round_trip_and_are_pruned(cli: Cli, options: list[str], engine_url: str, index_name: str) -> None:
    documents = [{"id": key, "text": f"the cat number {number}"} for number, key in enumerate(IDS)]
    write_jsonl(Path("docs.jsonl"), documents)
    assert cli("ingest", *options, "docs.jsonl", "--id-field", "id").code == 0
    assert {key: source["id"] for key, source in contents(engine_url, index_name).items()} == {key: key for key in IDS}
    again = cli("ingest", *options, "docs.jsonl", "--id-field", "id", "--json").summary
    assert again["unchanged"] == len(IDS)
    found = cli("search", *options, "the cat", "-k", len(IDS), "--json").out
    assert {orjson.loads(line)["id"] for line in found.rstrip("\n").split("\n")} == set(IDS)
    assert "\x1b" not in cli("search", *options, "the cat", "-k", len(IDS)).out
    write_jsonl(Path("docs.jsonl"), documents[::2])
    done = cli("ingest", *options, "docs.jsonl", "--id-field", "id", "--prune", "--yes", "--json")
    assert done.summary["pruned"] == len(IDS[1::2])
    assert set(contents(engine_url, index_name)) == set(IDS[::2])


@pytest.mark.parametrize("name", [f"{RED}red\nError: all is lost.txt", "\udcff\udc9b31m.txt"])
def test_file_names_cannot_inject_terminal_escapes(
    cli: Cli, options: list[str], index_name: str, name: str, engine_url: str
) -> None:
    Path(os.fsdecode(os.fsencode(name))).write_bytes(b'{"text": "the cat sleeps"}\nbroken\n')
    done = cli("ingest", *options, "*.txt", "--format", "jsonl", "--dead-letters", "dead")
    assert done.code == 1
    assert not set(done.err) & set("\x1b\x9b\u202e")
    assert not any(line.startswith("Error: all is lost") for line in done.err.splitlines())
    [letter] = letters(Path("dead"))
    assert "\x1b" not in letter["source"]
    assert len(contents(engine_url, index_name)) == 1
    missing = cli("ingest", *options, f"no such {RED} file\nError: x.txt")
    assert "\x1b" not in missing.err
    assert not any(line.startswith("Error: x") for line in missing.err.splitlines())
