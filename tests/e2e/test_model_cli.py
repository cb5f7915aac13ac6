"""A model that was trained or exported here is found again by every command that needs it, and no other is taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.cli_support import Cli, Done
from tests.gateway.serving import gateway
from tests.tiny import write_tiny_bert

TEXTS = ["a man plays guitar", "the cat sleeps on the mat"]
QUERY = "a man plays"


@dataclass
class Workshop:
    """An index that was filled by a model of this user, and a working directory elsewhere."""

    cli: Cli
    url: str
    index: str
    bundle: Path
    fingerprint: str

    def on_index(self, command: str, *arguments: str | Path) -> Done:
        return self.cli(command, "--index", self.index, "--url", self.url, "--device", "cpu", *arguments)

    def search(self, *arguments: str | Path) -> Done:
        return self.on_index("search", QUERY, "-k", "1", "--json", *arguments)

    def needs(self) -> str:
        """How every message about the model begins."""
        return f"the index {self.index} needs the model 'base' ({self.fingerprint[:12]}), which was not found: "


@pytest.fixture
def workshop(
    cli: Cli,
    own_cache: None,
    es9_url: str,
    fresh_index: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Workshop:
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.chdir(made)
    write_tiny_bert(made / "base")
    exported = cli("export", "base", "-o", "tuned", "--precision", "fp32", "--json")
    assert (exported.code, "Registered as tuned." in exported.err) == (0, True), exported.err
    shutil.rmtree("base")
    (made / "docs.txt").write_text("\n".join(TEXTS))
    index = fresh_index(es9_url)
    loaded = cli("ingest", "--url", es9_url, "--index", index, "--model", "tuned", "docs.txt", "--quiet")
    assert loaded.code == 0, loaded.err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return Workshop(cli, es9_url, index, made / "tuned", exported.summary["fingerprint"])


def first_hit(done: Done) -> str:
    assert done.code == 0, done.err
    text: str = json.loads(done.out.splitlines()[0])["source"]["text"]
    return text


@pytest.mark.usefixtures("alone_on_engines")  # the doctor looks at the health of the whole engine
def test_commands_find_index_model_from_another_folder(workshop: Workshop) -> None:
    assert first_hit(workshop.search()) == TEXTS[0]
    doctor = workshop.on_index("doctor")
    assert f"ok    model: base ({workshop.fingerprint[:12]})" in doctor.out
    assert "FAIL" not in doctor.out
    Path("more.txt").write_text("the cat plays")
    assert workshop.on_index("ingest", "--dry-run", "more.txt").code == 0
    more = workshop.on_index("ingest", "more.txt", "--json")
    assert (more.code, more.summary["model"]) == (0, "base"), more.err
    backfill = workshop.on_index("ingest", "--json", "--text-field", "text")
    assert backfill.code == 0, backfill.err


def test_gateway_finds_model_by_fingerprint(workshop: Workshop, tmp_path: Path) -> None:
    query = {"query": {"match": {"semantic": QUERY}}}
    with gateway(workshop.url, write_tiny_bert(tmp_path / "served", seed=3)) as url:
        found = httpx.post(f"{url}/{workshop.index}/_search", json=query, timeout=60).json()
        assert found["hits"]["hits"][0]["_source"]["text"] == TEXTS[0]
        shown = httpx.post(f"{url}/ui/api/body", json={"index": workshop.index, "body": query}, timeout=60)
        assert (shown.status_code, "query_vector" in shown.text) == (200, True)
    workshop.cli("model", "remove", "tuned")
    with gateway(workshop.url, tmp_path / "served") as url:
        unknown = httpx.post(f"{url}/{workshop.index}/_search", json=query, timeout=60)
        assert (unknown.status_code, "base" in unknown.text) == (503, False)


@pytest.mark.usefixtures("alone_on_engines")
def test_moved_model_folder_is_reported_and_can_be_readded(workshop: Workshop, tmp_path: Path) -> None:
    moved = tmp_path / "models" / "kept"
    moved.parent.mkdir()
    workshop.bundle.rename(moved)
    for done in (workshop.search(), workshop.on_index("ingest"), workshop.on_index("ingest", "--dry-run")):
        assert (done.code, done.out) == (2, "")
        assert f"{workshop.needs()}its folder {workshop.bundle} was moved or deleted" in done.err
        assert "es-sbert model add FOLDER" in done.err
        assert "hub" not in done.err
    doctor = workshop.on_index("doctor")
    assert (doctor.code, f"FAIL  model: {workshop.needs()}" in doctor.out) == (1, True)
    assert "missing" in workshop.cli("model", "list").out
    added = workshop.cli("model", "add", moved)
    assert (added.code, added.out) == (0, f"tuned ({workshop.fingerprint[:12]}) → {moved}\n")
    assert first_hit(workshop.search()) == TEXTS[0]
    assert workshop.on_index("doctor").code == 0


def test_registered_name_selects_model(workshop: Workshop) -> None:
    assert first_hit(workshop.search("--model", "tuned")) == TEXTS[0]
    assert workshop.cli("model", "add", workshop.bundle, "--name", "support").code == 0
    assert first_hit(workshop.search("--model", "support")) == TEXTS[0]
    refused = workshop.cli("model", "add", workshop.bundle, "--name", "all-MiniLM-L6-v2")
    assert (refused.code, "is an installed model" in refused.err) == (2, True)


def test_models_can_be_listed_and_removed(workshop: Workshop) -> None:
    listed = workshop.cli("model", "list", "--json")
    [model] = [json.loads(line) for line in listed.out.splitlines()]
    entry = {"name": "tuned", "fingerprint": workshop.fingerprint, "folder": str(workshop.bundle), "state": "present"}
    assert model == entry
    removed = workshop.cli("model", "remove", "tuned")
    assert (removed.code, "is no longer registered" in removed.out) == (0, True)
    empty = workshop.cli("model", "list")
    assert (empty.code, empty.out, "No models are registered" in empty.err) == (0, "", True)
    assert workshop.cli("model", "remove", "tuned").code == 2
    assert workshop.bundle.is_dir()
