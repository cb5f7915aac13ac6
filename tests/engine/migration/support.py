"""Two small models, an index with an alias, and the state that a migration left."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.index_scan import scan_index
from es_sbert.engines.index_state import IndexState
from es_sbert.engines.rest import Json
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.index_meta import update_mapping
from es_sbert.index.vector_field import ensure_vector_field
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.migration.migrate import MigrationResult, migrate_index
from es_sbert.migration.migration_state import MigrationState, read_migration_state, with_migration_state
from tests.engine.ingest_support import same_vectors
from tests.engine.vectors import request_for, state_of, vector_mapping
from tests.tiny import WORDS, write_tiny_bert

COUNT = 300
THEIRS = [0.5, -0.25, 1.0, 0.125]
Encoders = tuple[Encoder, Encoder]


def text_of(number: int) -> str:
    """A sentence of the tiny vocabulary, no two alike below a few thousand."""
    return " ".join(WORDS[number // 11**place % 11] for place in range(4))


def document(number: int, version: int = 0) -> Json:
    """With fields of several kinds: a vector of somebody else's, and a number that no machine word holds."""
    return {
        "text": text_of(number + 37 * version),
        "title": WORDS[number % 3],
        "number": number,
        "version": version,
        "raw": {"big": 2**70 + number},
        "tags": ["a", f"t{number % 3}"],
        "theirs": THEIRS,
    }


def everything() -> dict[str, Json]:
    """The documents of a place as `make_place` fills it, by id."""
    return {str(number): document(number) for number in range(COUNT)}


class Overheard:
    """An engine that passes every call on, and tells `before` its name right before."""

    def __init__(self, engine: Engine, before: Callable[[str], None] = lambda name: None) -> None:
        self._engine = engine
        self._before = before

    def __getattr__(self, name: str) -> Any:
        self._before(name)
        return getattr(self._engine, name)


class Killed(BaseException):
    """Nothing that a program handles."""


@contextmanager
def killed_after(place: Place, call: str, times: int = 1) -> Iterator[None]:
    """What runs in the block dies after it has used this method of the engine, and cleans nothing up, as by SIGKILL."""
    left = times

    def die(name: str) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= name == call

    engine, place.engine = place.engine, Overheard(place.engine, die)  # type: ignore[assignment]
    try:
        with pytest.raises(Killed):
            yield
    finally:
        place.engine = engine


@dataclass
class Place:
    """An index with an alias."""

    engine: Engine
    alias: str
    index: str
    dead: Path

    def write(self, documents: dict[str, Json], to: str | None = None) -> None:
        """Write documents by the alias, each with a routing where its id ends in 7."""
        lines = []
        for document_id, source in documents.items():
            head = {"_id": document_id} | ({"routing": "seven"} if document_id.endswith("7") else {})
            lines += [json.dumps({"index": head}), json.dumps(source)]
        results = self.engine.bulk(to or self.alias, ("\n".join(lines) + "\n").encode())
        assert [result for result in results if not result.ok] == []

    def delete(self, *ids: str) -> None:
        heads = [{"_id": i} | ({"routing": "seven"} if i.endswith("7") else {}) for i in ids]
        results = self.engine.bulk(self.alias, b"".join(orjson.dumps({"delete": head}) + b"\n" for head in heads))
        assert all(result.status in (200, 404) for result in results), results

    def migrate(
        self, encoder: Encoder, *, control: LoadControl | None = None, retry_seconds: float = 60, **wanted: Any
    ) -> MigrationResult:
        return migrate_index(
            self.alias,
            self.engine,
            encoder=encoder,
            control=control,
            dead_letters=self.dead,
            retry_seconds=retry_seconds,
            # Long enough for a machine that does other work at the same time.
            **{"max_write_block": 60.0} | wanted,
        )

    def embed(self, encoder: Encoder, index: str | None = None) -> None:
        """What `es-sbert ingest` with no FILE does."""
        settings = IngestSettings(index=index or self.index, text_fields=("text",), dead_letters=self.dead)
        summary = run_load(
            self.engine,
            encoder,
            plan_load(self.engine, settings, resolve_sources(settings)),
            LoadControl(),
            ProgressMeter(),
        )
        assert (summary.dead, summary.left, summary.stopped) == (0, 0, None)

    def alias_target(self) -> str:
        """The index that the alias points to."""
        return state_of(self.engine, self.alias).name

    def contents(self, index: str | None = None) -> dict[str, Json]:
        """id → document with vectors and its routing."""
        name = index or self.alias
        self.engine.refresh(name)
        pages = scan_index(self.engine, name, query={"match_all": {}}, source_includes=["*"], vectors=True)
        return {hit["_id"]: hit["_source"] | {"_routing": hit.get("_routing")} for page in pages for hit in page.hits}

    def assert_holds(self, expected: dict[str, Json], encoder: Encoder, index: str | None = None) -> None:
        """The index holds these documents, each with the encoder's vector, and nothing else."""
        found = self.contents(index)
        assert set(found) == set(expected), (sorted(set(found) ^ set(expected))[:5], len(found), len(expected))
        vectors = encoder.encode([source["text"] for source in expected.values()], "document")
        for (document_id, source), vector in zip(expected.items(), vectors, strict=True):
            there = found[document_id]
            assert there.pop("_routing") == ("seven" if document_id.endswith("7") else None)
            assert same_vectors(read_vector(there.pop("embedding")), vector), document_id
            meta = there.pop("embedding_meta")
            assert meta["fingerprint"] == encoder.info.fingerprint
            assert there == source


def interrupted() -> LoadControl:
    """That of a command that the user has interrupted."""
    control = LoadControl()
    control.interrupt()
    return control


def migrate_as(place: Place, engine: Any, encoder: Encoder, **wanted: Any) -> Any:
    """A migration that sees this engine in place of the real one."""
    real, place.engine = place.engine, engine
    try:
        return place.migrate(encoder, **wanted)
    finally:
        place.engine = real


def make_place(
    engine: Engine, encoder: Encoder, dead: Path, count: int = COUNT, *, shards: int = 2, replicas: int = 0
) -> Iterator[Place]:
    """An index with documents of the first model, and everything of that alias removed afterwards."""
    alias = f"test-{uuid.uuid4().hex[:12]}"
    place = Place(engine, alias, f"{alias}-old", dead)
    ensure_vector_field(engine, place.index, request_for(encoder, text="{text}"), shards=shards, replicas=replicas)
    theirs = vector_mapping(engine, 4, similarity="l2_norm")  # not normalized, so that it is returned unchanged
    if engine.info.engine_type is EngineType.OPENSEARCH:
        theirs = vector_mapping(engine, 4)
    engine.put_mapping(
        place.index,
        {"properties": {"theirs": theirs, "number": {"type": "long"}, "raw": {"type": "object", "enabled": False}}},
    )
    engine.put_settings(place.index, {"index.refresh_interval": "7s"})
    engine.update_aliases([{"add": {"index": place.index, "alias": alias, "is_write_index": True}}])
    place.write({str(number): document(number) for number in range(count)})
    place.embed(encoder)
    yield place
    for name in indices_of(engine, alias):
        engine.delete_index(name)


def indices_of(engine: Engine, alias: str) -> list[str]:
    """Every index whose name, or an alias of which, begins with the alias's."""
    return [state.name for state in engine.resolve_indices(f"{alias}*")]


def models(tmp: Path) -> tuple[Path, Path]:
    """Two models of the same number of dimensions: an engine would not notice if they were mixed."""
    return write_tiny_bert(tmp / "first", seed=0), write_tiny_bert(tmp / "second", seed=1)


def expect_no_stragglers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let migrations end soon: other writers of the tests have written when they say so, and nothing is on its way."""
    monkeypatch.setattr("es_sbert.migration.alias_swap._POLL_SECONDS", 0.05)


@contextmanager
def two_encoders(folder: Path) -> Iterator[tuple[Encoder, Encoder]]:
    """Both `models` as a user loads them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(folder / "cache"))
        first, second = models(folder)
        with (
            Encoder(str(first), precision="fp32", threads=1) as one,
            Encoder(str(second), precision="fp32", threads=1) as two,
        ):
            yield one, two


def put_migration_state(engine: Engine, target: IndexState, state: MigrationState) -> None:
    """Store a state that no run of this version writes."""

    def plan(index: IndexState) -> Json | None:
        if read_migration_state(index) == state:
            return None
        return {"_meta": with_migration_state(index.mappings.get("_meta", {}), state)}

    update_mapping(engine, target, plan)
