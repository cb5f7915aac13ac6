"""What the tests of ingest on real engines share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
from numpy.typing import NDArray

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.index.document_vectors import read_vector
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.ingest.reconcile import ConfirmPrune
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors
from tests.engine.sources import read_sources
from tests.tiny import write_tiny_bert

WORDS = [
    "river", "guitar", "storm", "bread", "engine", "winter", "doctor", "market", "violin", "forest", "planet",
    "kitchen", "soldier", "harbour", "ticket", "garden", "museum", "battery", "teacher", "mountain",
]  # fmt: skip


def ask(
    engine: Engine, method: str, path: str, params: dict[str, str] | None = None, body: dict[str, Any] | None = None
) -> Any:
    """What the engine answers to a request that es-sbert itself does not make."""
    answer = engine.send(method, path, params, None if body is None else orjson.dumps(body))
    assert 200 <= answer.status < 300, answer
    return answer.body


def bulk(engine: Engine, index: str, *lines: Any) -> None:
    """Send the lines of a bulk request, of which no item may fail."""
    results = engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert all(result.ok for result in results), results


def put(engine: Engine, index: str, documents: Iterable[dict[str, Any]]) -> None:
    """Write documents under the id in their field `id`, as another program does."""
    bulk(engine, index, *(line for each in documents for line in ({"index": {"_id": each["id"]}}, each)))


def update(engine: Engine, index: str, changes: dict[str, dict[str, Any]]) -> None:
    """Partial updates by another program: id → changed fields."""
    heads = [{"update": {"_id": key, "retry_on_conflict": 5}} for key in changes]
    bulk(engine, index, *(line for head in heads for line in (head, {"doc": changes[head["update"]["_id"]]})))


def sentences(count: int) -> list[dict[str, Any]]:
    """Documents with short texts, no two alike, and fields of several types."""
    return [
        {
            "id": f"d{number}",
            "text": f"The {WORDS[number % 20]} and the {WORDS[number // 20 % 20]} met number {number}.",
            "price": number / 8,
            "tags": ["a", WORDS[number % 7]],
            "nested": {"rank": number, "label": None},
        }
        for number in range(count)
    ]


def write_jsonl(path: Path, documents: Sequence[dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(document) + b"\n" for document in documents))
    return path


@contextmanager
def tiny_encoder(folder: Path) -> Iterator[Encoder]:
    """A model of random weights, loaded as a user does.

    Its export is cached next to the folder: modules of one process, whose folders lie beside each other, share it.
    """
    with (
        patch.dict(os.environ, {"ES_SBERT_CACHE": str(folder.parent / "tiny-cache")}),
        Encoder(str(write_tiny_bert(folder / "model")), precision="fp32", threads=1) as encoder,
    ):
        yield encoder


class Interposed:
    """An encoder that calls `before` with the number of each window, from 0, right before it embeds it."""

    def __init__(self, encoder: Encoder, before: Callable[[int], None]) -> None:
        self._encoder, self._before, self._windows = encoder, before, 0
        self.info, self.prompts, self.pipeline = encoder.info, encoder.prompts, self
        self.tokenize, self.make_chunker = encoder.pipeline.tokenize, encoder.pipeline.make_chunker
        self.window, self.input_limit = encoder.pipeline.window, encoder.pipeline.input_limit

    @property  # type: ignore[misc]
    def __class__(self) -> type[Encoder]:  # for `isinstance`
        return Encoder

    def embed_until(
        self, texts: TokenizedTexts, stop: threading.Event, progress: Callable[[float], None] = lambda part: None
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        self._before(self._windows)
        self._windows += 1
        return self._encoder.pipeline.embed_until(texts, stop, progress)


class Rounds(threading.Event):
    """What tells a watch to stop; it is waited for once before each round.

    Attributes:
        begun: Rounds that have begun; the first look at everything is none.
    """

    begun = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.begun += 1
        return super().wait(timeout)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process does; five minutes are a failure."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_first_window(engine: Engine, index: str) -> None:
    """Wait until d0 to d4 are in the index, seen or not yet seen by searches."""
    wanted = [f"d{number}" for number in range(5)]
    wait_until(lambda: len(read_sources(engine, index, wanted, source_includes=["id"])) == len(wanted))


def open_engine(url: str) -> closing[Engine]:
    return closing(connect(EngineSettings(url=url)))


def load(
    url: str,
    encoder: Any,
    index: str,
    *files: Path | str,
    dead: Path,
    control: LoadControl | None = None,
    meter: ProgressMeter | None = None,
    confirm: ConfirmPrune = lambda gone: True,
    **options: Any,
) -> LoadReport:
    """One load, as the command line makes it; its counts must add up."""
    settings = IngestSettings(index=index, files=tuple(map(str, files)), dead_letters=dead, **options)
    with open_engine(url) as engine:
        summary = run_load(
            engine,
            encoder,
            plan_load(engine, settings, resolve_sources(settings)),
            control or LoadControl(),
            meter or ProgressMeter(),
            confirm,
        )
    skipped = summary.skipped
    written = summary.indexed + summary.updated + summary.unchanged + summary.dead + summary.left
    assert summary.read == written + skipped.empty + skipped.duplicate + skipped.superseded + skipped.deleted
    return summary


@dataclass(frozen=True)
class Loads:
    """Loads into an index, one after another.

    Attributes:
        encoder: What embeds the documents.
        folder: For the sources and the dead letters.
    """

    url: str
    index: str
    encoder: Encoder
    folder: Path

    @property
    def dead(self) -> Path:
        """The dead-letter file."""
        return self.folder / "dead"

    def load(
        self, *files: Path | str, url: str = "", encoder: Any = None, index: str = "", **options: Any
    ) -> LoadReport:
        names = url or self.url, encoder or self.encoder, index or self.index
        return load(*names, *files, **{"dead": self.dead} | options)

    def write(self, documents: Sequence[dict[str, Any]]) -> Path:
        """The source of the documents."""
        return write_jsonl(self.folder / "docs.jsonl", documents)

    def contents(self) -> dict[str, dict[str, Any]]:
        return contents(self.url, self.index)

    def letters(self) -> list[dict[str, Any]]:
        return letters(self.dead)


def contents(url: str, index: str) -> dict[str, dict[str, Any]]:
    """id → `_source` with vectors, of all documents that a search sees, with `_version` in it."""
    with open_engine(url) as engine:
        engine.refresh(index)
        body = {"query": {"match_all": {}}, "size": 10_000, "version": True}
        hits = engine.search(index, body)["hits"]["hits"]
        assert len(hits) == engine.count(index)
        ids = [hit["_id"] for hit in hits]
        sources = read_sources(engine, index, ids, source_includes=["*"]) if ids else {}
    return {hit["_id"]: sources[hit["_id"]] | {"_version": hit["_version"]} for hit in hits}


def vector_of(source: dict[str, Any], field: str = "embedding") -> Vectors:
    return read_vector(source[field])


def same_vectors(one: Vectors, two: Vectors) -> bool:
    """Equal but for the last digit that an engine's normalization may touch."""
    return bool(np.allclose(one, two, rtol=0, atol=1e-6))


def letters(path: Path) -> list[dict[str, Any]]:
    # Not splitlines(): a document may hold carriage returns between its entries.
    return [orjson.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []
