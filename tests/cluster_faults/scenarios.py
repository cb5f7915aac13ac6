"""The commands that are disturbed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import httpx
import orjson

import es_sbert.engines.connect
from es_sbert.batched import batched
from es_sbert.cli.main import cli
from es_sbert.config import EngineSettings
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.engines.retry import wait_for_engine
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from tests.cluster_faults.copies import Expected
from tests.cluster_faults.disturbances import FREEZE
from tests.cluster_faults.run import CountedEngine, Scenario, Stage
from tests.engine.ingest_support import Rounds, open_engine, write_jsonl
from tests.engine.migration.support import document, make_place, text_of
from tests.engine.vectors import vector_value
from tests.gateway.running import serve
from tests.random_writer import shared_documents

SHARDS, REPLICAS = 3, 1
DOCUMENTS = 1000
_RETRY_SECONDS = 300.0
# Small bulk requests leave many moments to be hit in.
_BULK_BYTES = 10_000


def create_index(stage: Stage, name: str = "embedding") -> None:
    """The stage's index, with a vector field for the first model."""
    info = stage.encoders[0].info
    request = FieldRequest(name, info.fingerprint, info.model, info.dimensions, text="{text}")
    ensure_vector_field(stage.engine, stage.index, request, shards=SHARDS, replicas=REPLICAS)


def write(stage: Stage, found: dict[str, Json], vector_field: str | None = None) -> None:
    """Write documents, with vectors of the first model if a field for them is named."""
    vectors = stage.encoders[0].encode([fields["text"] for fields in found.values()], "document")
    lines: list[Json] = []
    for (name, fields), vector in zip(found.items(), vectors, strict=True):
        added = {} if vector_field is None else {vector_field: vector_value(stage.engine.info, vector)}
        lines += [{"index": {"_id": name}}, fields | added]
    results = stage.engine.bulk(stage.index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert all(result.ok for result in results), results[:3]
    stage.engine.refresh(stage.index)


def ingest(stage: Stage, engine: Any, control: LoadControl | None = None, **options: Any) -> LoadReport:
    """What `es-sbert ingest` does."""
    settings = IngestSettings(
        index=stage.index,
        dead_letters=stage.folder / f"{stage.index}.dead",
        batch_window=32,
        bulk_bytes=_BULK_BYTES,
        retry_seconds=_RETRY_SECONDS,
        **options,
    )
    plan = wait_for_engine(partial(plan_load, engine, settings, resolve_sources(settings)), _RETRY_SECONDS)
    return run_load(engine, stage.encoders[0], plan, control or LoadControl(), ProgressMeter())


def _check_counts(report: LoadReport, count: int) -> None:
    """Every document has been loaded."""
    assert report.indexed + report.updated + report.unchanged == count, report
    assert (report.dead, report.left, report.missing, report.stopped) == (0, 0, 0, None), report


def _wait_until(condition: Callable[[], bool], ended: list[Any]) -> None:
    """Wait for a watch, which must not have ended."""
    while not condition():
        assert not ended, ended
        time.sleep(0.02)


class _Documents(Scenario):
    """An index with a vector field of the first model, and documents of which no two have the same text."""

    def prepare(self) -> None:
        self.documents = {
            f"d{number:04}": {"text": text_of(number), "number": number, "tags": [f"t{number % 3}"]}
            for number in range(DOCUMENTS)
        }
        create_index(self.stage)

    def expected(self) -> Expected:
        return Expected(self.documents, self.stage.encoders[0])


class Load(_Documents):
    name = "load"
    usual_steps = 140

    def prepare(self) -> None:
        super().prepare()
        self.documents = {name: {"id": name, **fields} for name, fields in self.documents.items()}
        self.source = write_jsonl(self.stage.folder / f"{self.stage.index}.jsonl", list(self.documents.values()))

    def run(self) -> None:
        files = (str(self.source),)
        with self.stage.counted_engine() as engine:
            report = ingest(self.stage, engine, files=files, id_field="id")
        _check_counts(report, len(self.documents))


class InPlace(_Documents):
    name = "in place"
    usual_steps = 150

    def prepare(self) -> None:
        super().prepare()
        write(self.stage, self.documents)

    def run(self) -> None:
        with self.stage.counted_engine() as engine:
            _check_counts(ingest(self.stage, engine), len(self.documents))


class Watch(_Documents):
    """Programs insert, update, replace and delete documents; each write is a step."""

    name = "watch"
    usual_steps = 150
    _AFTERWARDS = 50

    def prepare(self) -> None:
        super().prepare()
        self.documents |= shared_documents()
        write(self.stage, self.documents)

    def run(self) -> None:
        control, rounds = LoadControl(), Rounds()
        control.stop_reading = rounds
        results: list[LoadReport | Exception] = []

        def watch() -> None:
            try:
                with open_engine(self.stage.cluster.url) as engine:
                    results.append(ingest(self.stage, engine, control, watch_seconds=0.1))
            except Exception as error:
                results.append(error)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            _wait_until(lambda: rounds.begun > 0, results)
            self.writers = self.stage.writers(self.stage.index)
            with self.writers.running():
                self.writers.wait_for(self.usual_steps)
                self.stage.undisturbed.wait()
                self.writers.wait_for(self._AFTERWARDS)
            # A round that begins now sees every write.
            begun = rounds.begun
            _wait_until(lambda: rounds.begun > begun + 2, results)
        finally:
            control.interrupt()
            watcher.join()
        [report] = results
        if isinstance(report, Exception):
            raise report
        assert (report.dead, report.left, report.lacking, report.stopped) == (0, 0, 0, None), report
        assert self.writers.counts().missing == 0

    def expected(self) -> Expected:
        return Expected(self.documents | self.writers.expected(), self.stage.encoders[0])


class Migrate(Scenario):
    """Between two models, while programs write by the alias."""

    name = "migrate"
    usual_steps = 250
    _BEFORE, _AFTERWARDS = 20, 20

    def prepare(self) -> None:
        stage = self.stage
        dead = stage.folder / f"{stage.index}.dead"
        self._places = make_place(stage.engine, stage.encoders[0], dead, DOCUMENTS, shards=SHARDS, replicas=REPLICAS)
        self.place = next(self._places)
        self.place.write(shared_documents())
        stage.index = self.place.index  # is disturbed

    def run(self) -> None:
        self.writers = self.stage.writers(self.place.alias, steps=False)
        with self.writers.running(), self.stage.counted_engine() as engine:
            self.writers.wait_for(self._BEFORE)
            migrated = replace(self.place, engine=engine)
            # A lost node lasts longer than writes are refused by default; the command would have to be run again.
            result = migrated.migrate(
                self.stage.encoders[1], retry_seconds=_RETRY_SECONDS, max_write_block=_RETRY_SECONDS
            )
            self.stage.undisturbed.wait()
            self.writers.wait_for(self._AFTERWARDS)
        assert result.finished, result
        assert (result.dead, result.stopped) == (0, None), result
        assert result.writes_refused_seconds > 0
        assert self.place.alias_target() != self.place.index
        assert self.writers.counts().missing == 0

    def expected(self) -> Expected:
        own = {str(number): document(number) for number in range(DOCUMENTS)}
        # What was written after the swap, the migration has not seen.
        swapped = self.stage.moment.last["update_aliases"]
        late = {name for name, acknowledged in self.writers.last_writes().items() if acknowledged > swapped}
        return Expected(own | self.writers.expected(), self.stage.encoders[1], late)

    @property
    def result_index(self) -> str:
        return self.place.alias_target()

    def remove(self) -> None:
        next(self._places, None)


class _Command(_Documents):
    """Commands that run as the command line runs them, in this process."""

    def command(self, *arguments: str) -> None:
        """Run a command; its requests are steps."""
        connect = es_sbert.engines.connect.connect
        given = [*arguments, "--url", self.stage.cluster.url, "--retry-seconds", f"{_RETRY_SECONDS:g}"]

        def counted(settings: EngineSettings) -> Any:
            return CountedEngine(connect(settings), self.stage.moment)

        with (
            patch.object(es_sbert.engines.connect, "connect", counted),
            patch("es_sbert.index.versioned_updates.BODY_BYTES", _BULK_BYTES),
        ):
            code = cli.main(given, prog_name="es-sbert", standalone_mode=False)
        assert not code, f"exit code {code}"


class Duplicates(_Command):
    """Three documents have the same text: the groups do not depend on the model."""

    name = "duplicates --write-field"
    usual_steps = 40
    _FIELD = "duplicate_group"

    def prepare(self) -> None:
        super().prepare()
        for number, fields in enumerate(self.documents.values()):
            fields["text"] = text_of(number // 3)
        write(self.stage, self.documents)
        _check_counts(ingest(self.stage, self.stage.engine), len(self.documents))

    def run(self) -> None:
        output = self.stage.folder / f"{self.stage.index}.jsonl"
        self.command(
            "duplicates", "--index", self.stage.index, "--min-cosine", "0.999999", "--write-field", self._FIELD,
            "--output", str(output),
        )  # fmt: skip

    def expected(self) -> Expected:
        found = {
            name: fields | {self._FIELD: f"d{number // 3 * 3:04}"}
            for number, (name, fields) in enumerate(self.documents.items())
        }
        return Expected(found, self.stage.encoders[0])


class Adopt(_Command):
    """Vectors that another program wrote."""

    name = "index adopt"
    usual_steps = 80

    def prepare(self) -> None:
        super().prepare()
        stage = self.stage
        stage.engine.delete_index(stage.index)
        settings: Json = {"number_of_shards": SHARDS, "number_of_replicas": REPLICAS}
        dimensions = stage.encoders[0].info.dimensions
        vector: Json = {"type": "dense_vector", "dims": dimensions, "similarity": "cosine"}
        if stage.engine.info.engine_type is EngineType.OPENSEARCH:
            settings["index.knn"] = True
            method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
            vector = {"type": "knn_vector", "dimension": dimensions, "method": method}
        properties = {"embedding": vector, "text": {"type": "text"}}
        stage.engine.create_index(stage.index, {"settings": settings, "mappings": {"properties": properties}})
        write(stage, self.documents, "embedding")

    def run(self) -> None:
        model = ["--model", str(self.stage.folder / "first"), "--threads", "1"]
        self.command("index", "adopt", self.stage.index, "--vector-field", "embedding", *model)


class Pairs(_Command):
    """The result is the same as without a fault."""

    name = "pairs"
    usual_steps = 20

    def prepare(self) -> None:
        super().prepare()
        write(self.stage, self.documents)
        _check_counts(ingest(self.stage, self.stage.engine), len(self.documents))
        self._undisturbed = self._pairs()
        assert len(self._undisturbed.splitlines()) == 200

    def run(self) -> None:
        assert self._pairs() == self._undisturbed

    def _pairs(self) -> bytes:
        output = self.stage.folder / f"{self.stage.index}.jsonl"
        self.command("pairs", "--index", self.stage.index, "-k", "200", "--output", str(output))
        return output.read_bytes()


_Action = tuple[Json, Json | None]  # of a bulk request


class Gateway(_Documents):
    """A program writes through the gateway, and sends again what failed; each request is a step."""

    name = "gateway"
    usual_steps = 70
    _AT_ONCE = 20

    def run(self) -> None:
        stage = self.stage
        folder = stage.folder / stage.index
        folder.mkdir()
        options = ["--model", str(stage.folder / "first"), "--precision", "fp32", "--threads", "1"]
        with (
            serve(stage.cluster.url, folder, *options) as url,
            httpx.Client(base_url=url, trust_env=False, timeout=120) as client,
        ):
            inserted: list[_Action] = [({"index": {"_id": name}}, fields) for name, fields in self.documents.items()]
            self._send(client, inserted)
            if stage.disturbance is FREEZE:
                # When it goes on, the node executes a request that was sent again, which would undo a later change.
                return
            changed = {
                name: {"text": text_of(number + 5000)} for number, name in enumerate(self.documents) if not number % 3
            }
            self._send(client, [({"update": {"_id": name}}, {"doc": fields}) for name, fields in changed.items()])
            for name, fields in changed.items():
                self.documents[name] |= fields
            deleted = [name for number, name in enumerate(self.documents) if number % 10 == 1]
            self._send(client, [({"delete": {"_id": name}}, None) for name in deleted])
            for name in deleted:
                del self.documents[name]

    def _send(self, client: httpx.Client, actions: list[_Action]) -> None:
        for some in batched(actions, self._AT_ONCE):
            waiting = list(some)
            while waiting:
                self.stage.moment.step()
                waiting = self._send_once(client, waiting)
                if waiting:
                    time.sleep(0.5)

    def _send_once(self, client: httpx.Client, actions: list[_Action]) -> list[_Action]:
        """The actions to send again."""
        body = b"".join(orjson.dumps(line) + b"\n" for action in actions for line in action if line is not None)
        try:
            answer = client.post(
                f"/{self.stage.index}/_bulk", content=body, headers={"content-type": "application/x-ndjson"}
            )
        except httpx.TransportError:
            return actions
        if answer.status_code == 429 or answer.status_code >= 500:
            return actions
        assert answer.status_code == 200, answer.text
        again = []
        for action, item in zip(actions, answer.json()["items"], strict=True):
            [result] = item.values()
            if result["status"] == 429 or result["status"] >= 500:
                again.append(action)
            else:
                # Deleted by a request whose answer was lost.
                assert result["status"] in (200, 201) or (result["status"] == 404 and "delete" in item), result
        return again


SCENARIOS: tuple[type[Scenario], ...] = (
    Load, InPlace, Watch, Migrate, Duplicates, Adopt, Pairs, Gateway,
)  # fmt: skip
