"""The table of least privileges in docs/operations.md, row by row, with API keys that have exactly these."""

from __future__ import annotations

import re
import uuid
from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers  # noqa: F401 - first imported inside a test, it would log to that test's stream ever after
from pydantic import SecretStr

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.index.privileges import (
    ADOPT,
    ADVISE,
    CREATE,
    LOAD,
    MIGRATE_TO,
    PRUNE,
    SAVE_MIN_COSINE,
    SEARCH,
)
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from tests.e2e.cli_support import Cli, Done
from tests.engine.ingest_support import Interposed, sentences, write_jsonl
from tests.engine.secured import PASSWORD, Secured

# The cluster privilege that every command needs, because it reads the version first.
CLUSTER_PRIVILEGE = "monitor"
OPERATIONS = Path(__file__).parents[2] / "docs/operations.md"
_ROW = re.compile(r"^\| (?P<task>[^|]+) \| (?P<cluster>[a-z_, ]+) \| (?P<index>[a-z_, ]+) \|$", re.MULTILINE)


def table() -> dict[str, tuple[list[str], list[str]]]:
    """Task → cluster and index privileges, as the page has them."""
    text = OPERATIONS.read_text().partition("## Privileges")[2].partition("\n## ")[0]
    rows = {match["task"]: (match["cluster"].split(", "), match["index"].split(", ")) for match in _ROW.finditer(text)}
    rows.pop("task")
    return rows


class Desk:
    """The command line with one API key after another, and indices made by somebody who may do all."""

    def __init__(self, server: Secured, cli: Cli, model: Path, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self._cli = cli
        self._patch = patch
        self.model = ["--model", str(model), "--precision", "fp32", "--threads", "1"]
        patch.setenv("ES_SBERT_URL", server.url)
        patch.setenv("ES_SBERT_CA_CERTS", str(server.ca_certs))
        write_jsonl(Path("docs.jsonl"), sentences(6))
        write_jsonl(Path("fewer.jsonl"), sentences(3))

    def use(self, cluster: Sequence[str], index: Sequence[str]) -> None:
        self._patch.setenv("ES_SBERT_API_KEY", self.server.api_key(cluster=cluster, index={"docs*": index}))

    def use_key(self, key: str) -> None:
        self._patch.setenv("ES_SBERT_API_KEY", key)

    def admin(self) -> closing[Engine]:
        return closing(connect(self.settings(username="elastic", password=SecretStr(PASSWORD), api_key=None)))

    def settings(self, **credentials: Any) -> EngineSettings:
        return EngineSettings(url=self.server.url, ca_certs=self.server.ca_certs, **credentials)

    def fresh(self) -> str:
        return f"docs-{uuid.uuid4().hex[:8]}"

    def plain(self) -> str:
        """An index of another writer's."""
        name = self.fresh()
        self.server.ask("PUT", f"/{name}/_doc/1?refresh=true", {"text": "the cat sleeps"})
        return name

    def loaded(self) -> str:
        """An index that es-sbert has loaded."""
        name = self.fresh()
        self.use([CLUSTER_PRIVILEGE], ["all"])
        assert self.ingest(name, "docs.jsonl", "--id-field", "id").code == 0
        return name

    def ingest(self, index: str, *more: str) -> Done:
        return self._cli("ingest", "--index", index, *self.model, *more)

    def search(self, index: str) -> Done:
        return self._cli("search", "--index", index, *self.model, "a storm")

    def pairs(self, index: str) -> Done:
        for method in ((), ("--num-candidates", "100")):
            self._cli("duplicates", "--index", index, *method)
        self._cli("cluster", "--index", index)
        return self._cli("pairs", "--index", index)

    def write_field(self, index: str) -> Done:
        self._cli("cluster", "--index", index, "--write-field", "cluster")
        return self._cli("duplicates", "--index", index, "--min-cosine", "0", "--write-field", "duplicate_group")

    def adapt(self, index: str) -> Done:
        """Read what `adapt` needs until it refuses the few documents."""
        done = self._cli("adapt", index, "-o", self.fresh(), *self.model[:2])
        return replace(done, code=0) if "pairs to train on, but at least 50 are needed" in done.err else done

    def doctor(self, index: str) -> Done:
        return self._cli("doctor", "--index", index, *self.model)

    def index(self, command: str, name: str, *more: str) -> Done:
        return self._cli("index", command, name, *more)

    def adopt(self, name: str, *more: str) -> Done:
        return self.index("adopt", name, *self.model, *more)

    def create(self, name: str) -> Done:
        return self.index("create", name, *self.model[:2])


@pytest.fixture
def desk(secured_es8: Secured, cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(secured_es8, cli, model, monkeypatch)


def created(desk: Desk) -> str:
    """An index with a vector field whose text nobody has said."""
    name = desk.fresh()
    desk.use([CLUSTER_PRIVILEGE], ["all"])
    assert desk.create(name).code == 0
    return name


DENSE_VECTOR = {"mappings": {"properties": {"embedding": {"type": "dense_vector", "dims": 16}}}}


def with_vectors(desk: Desk, body: dict[str, Any] = DENSE_VECTOR) -> str:
    """An index with the model's vectors, written by another program."""
    name = desk.fresh()
    desk.server.ask("PUT", f"/{name}", body)
    texts = [document["text"] for document in sentences(6)]
    with Encoder(desk.model[1], precision="fp32", threads=1) as encoder:
        vectors = encoder.encode(texts, "document").tolist()
    for number, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        desk.server.ask("PUT", f"/{name}/_doc/{number}?refresh=true", {"text": text, "embedding": vector})
    return name


def behind_an_alias(desk: Desk) -> str:
    """An index with an alias, which is its name and `-alias`."""
    name = desk.loaded()
    with desk.admin() as engine:
        engine.update_aliases([{"add": {"index": name, "alias": f"{name}-alias"}}])
    return name


# Task → an index that is made ready by somebody else, and the command.
Prepare, Command = Callable[[Desk], str], Callable[[Desk, str], Done]
TASKS: dict[str, tuple[Prepare, Command]] = {
    "`search`": (Desk.loaded, Desk.search),
    "`index show`": (Desk.loaded, lambda desk, name: desk.index("show", name)),
    "`pairs --index`, `duplicates --index`, `cluster --index`": (Desk.loaded, Desk.pairs),
    "`adapt`": (Desk.loaded, Desk.adapt),
    "`duplicates --write-field`, `cluster --write-field`": (Desk.loaded, Desk.write_field),
    "`doctor --index`": (Desk.loaded, Desk.doctor),
    "`ingest FILE…` into an index with the vector field": (
        Desk.loaded, lambda desk, name: desk.ingest(name, "docs.jsonl", "--id-field", "id")),
    "`ingest FILE…`, or without FILE, into an index without the vector field": (
        Desk.plain, lambda desk, name: desk.ingest(name)),
    "`ingest` without FILE": (Desk.loaded, lambda desk, name: desk.ingest(name)),
    "`ingest FILE…` into a new index": (Desk.fresh, lambda desk, name: desk.ingest(name, "docs.jsonl")),
    "`ingest --prune`": (
        Desk.loaded, lambda desk, name: desk.ingest(name, "fewer.jsonl", "--id-field", "id", "--prune", "--yes")),
    "`ingest --dry-run`": (Desk.plain, lambda desk, name: desk.ingest(name, "--dry-run")),
    "`index create`": (Desk.fresh, Desk.create),
    "`index create --text-field` of an index that has the field": (
        created, lambda desk, name: desk.index("create", name, "--text-field", "text", *desk.model[:2])),
    "`index adopt`": (with_vectors, lambda desk, name: desk.adopt(name)),
    "`index adopt --dry-run`": (with_vectors, lambda desk, name: desk.adopt(name, "--dry-run")),
    "`index calibrate`": (
        Desk.loaded, lambda desk, name: desk.index("calibrate", name, "--sample", "6", *desk.model)),
    "`index calibrate --save`": (
        Desk.loaded, lambda desk, name: desk.index(
            "calibrate", name, "--sample", "6", "--save", "--max-unrelated", "1", *desk.model)),
    "`index migrate`": (behind_an_alias, lambda desk, name: desk.index(
        "migrate", f"{name}-alias", "--index-type", "int8_hnsw", "--name", f"{name}-new", *desk.model)),
}  # fmt: skip


def test_privilege_table_lists_all_tested_tasks() -> None:
    assert set(table()) == set(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_listed_privileges_are_sufficient_and_necessary(desk: Desk, task: str) -> None:
    cluster, index = table()[task]
    prepare, command = TASKS[task]
    name = prepare(desk)
    for lacking in [*cluster, *index]:
        desk.use([x for x in cluster if x != lacking], [x for x in index if x != lacking])
        done = command(desk, name)
        said = done.out + done.err
        assert done.code != 0, (lacking, said)
        assert re.search(rf"Give the user or API key the (index|cluster) privileges?[^.]*\b{lacking}\b", said), lacking
    desk.use(cluster, index)
    done = command(desk, name)
    assert done.code == 0, done.err


def test_code_checks_privileges_of_the_table() -> None:
    rows = table()
    for task, wanted in {
        "`search`": SEARCH,
        "`ingest FILE…` into an index with the vector field": LOAD,
        "`ingest FILE…` into a new index": CREATE,
        "`ingest --prune`": PRUNE,
        "`index adopt`": ADOPT,
        "`index calibrate --save`": SAVE_MIN_COSINE,
        "`index migrate`": MIGRATE_TO,
    }.items():
        assert rows[task] == ([CLUSTER_PRIVILEGE], sorted(wanted.privileges, key=rows[task][1].index))


def test_read_only_key_can_search_and_show_but_not_load(desk: Desk) -> None:
    index = desk.loaded()
    with desk.admin() as engine:
        before: Any = (engine.get_index(index), engine.count(index))
    desk.use(["monitor"], ["read", "view_index_metadata"])
    assert "d0" in desk.search(index).out
    shown = desk.index("show", index)
    assert "documents     6" in shown.out
    assert "size          not visible to this user" in shown.out
    more = write_jsonl(Path("more.jsonl"), sentences(9))
    for arguments in ([str(more), "--id-field", "id"], []):
        done = desk.ingest(index, *arguments)
        assert (done.code, done.out) == (2, "")
        assert "may not load documents into" in done.err
        assert f"the index privileges index, maintenance on {index}" in done.err
    with desk.admin() as engine:
        assert (engine.get_index(index), engine.count(index)) == before
    assert sorted(path.name for path in Path().iterdir()) == ["docs.jsonl", "fewer.jsonl", "more.jsonl"]
    found = desk.doctor(index)
    assert found.code == 0
    assert f"this user or API key may search and show {index}" in found.out
    assert f"this user or API key may not load documents into {index}: it lacks index and maintenance" in found.out


def test_advise_reads_the_index_and_needs_its_temporary_indices(desk: Desk) -> None:
    desk.use([CLUSTER_PRIVILEGE], ["all"])
    index = desk.fresh()
    write_jsonl(Path("many.jsonl"), sentences(250))
    assert desk.ingest(index, "many.jsonl", "--id-field", "id").code == 0
    wanted = ["--dimensions", "8"]
    desk.use([CLUSTER_PRIVILEGE], ["read", "view_index_metadata"])
    done = desk.index("advise", index, *wanted)
    assert done.code == 2
    assert "may not create, fill and delete temporary indices named es-sbert-advise-*" in done.err
    needed = {"docs*": ["read", "view_index_metadata"], "es-sbert-advise-*": list(ADVISE.privileges)}
    desk.use_key(desk.server.api_key(cluster=[CLUSTER_PRIVILEGE], index=needed))
    done = desk.index("advise", index, *wanted, "--json")
    assert done.code == 0, done.err
    assert done.summary["sampled"] == 200


def key_id(encoded: str) -> str:
    return b64decode(encoded).decode().partition(":")[0]


@pytest.mark.parametrize("how", ["invalidated", "narrowed"])
def test_revoked_privileges_leave_documents_without_dead_letters(
    desk: Desk, model: Path, how: str, tmp_path: Path
) -> None:
    index = desk.fresh()
    documents = write_jsonl(tmp_path / "many.jsonl", sentences(400))
    wanted = IngestSettings(index=index, files=(str(documents),), id_field="id", batch_window=16, retry_seconds=5)
    key = desk.server.api_key(cluster=["monitor"], index={"docs*": ["all"]})

    def take_away() -> None:
        if how == "invalidated":
            desk.server.ask("DELETE", "/_security/api_key", {"ids": [key_id(key)]})
        else:
            # Bulk requests are let in, but not what is inside them.
            privileges = ["read", "view_index_metadata", "maintenance", "create_doc"]
            role = {"cluster": ["monitor"], "indices": [{"names": ["docs*"], "privileges": privileges}]}
            desk.server.ask("PUT", f"/_security/api_key/{key_id(key)}", {"role_descriptors": {"role": role}})

    def load(key: str, encoder: Any) -> LoadReport:
        with closing(connect(desk.settings(api_key=SecretStr(key)))) as engine:
            return run_load(
                engine,
                encoder,
                plan_load(engine, wanted, resolve_sources(wanted)),
                LoadControl(),
                ProgressMeter(),
            )

    with Encoder(str(model), precision="fp32", threads=1) as encoder:
        first = load(key, Interposed(encoder, lambda window: take_away() if window == 6 else None))
        assert first.stopped is not None
        reason = (
            "refused the credentials"
            if how == "invalidated"
            else f"index privilege create on {index} (or a wider one: index, write"
        )
        assert reason in first.stopped
        assert (first.dead, first.left > 0, first.exit_code) == (0, True, 1)
        second = load(desk.server.api_key(cluster=["monitor"], index={"docs*": ["all"]}), encoder)
    assert second.exit_code == 0
    assert second.resumed
    assert second.indexed == 400 - first.indexed
    with desk.admin() as engine:
        engine.refresh(index)
        assert engine.count(index) == 400
        state = engine.get_index(index)
        assert state is not None
        assert state.settings.get("index.refresh_interval") is None  # put back by the second
    assert not Path(f"{index}.dead-letters.jsonl").exists()


@pytest.mark.usefixtures("alone_on_engines")  # the doctor looks at the health of the whole engine
def test_doctor_reports_when_privileges_are_unknown(cli: Cli, opensearch_url: str, model: Path) -> None:
    done = cli("doctor", "--index", "docs-none", "--url", opensearch_url, "--model", model, "--precision", "fp32")
    assert (done.code, "the engine does not report privileges" in done.out) == (0, True)
