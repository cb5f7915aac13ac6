"""CPU time that a load takes around the encoder, by stage.

    python -m benchmarks.ingest_overhead --data DATA --url http://localhost:9200 [--documents 20000] [--rounds 3]

DATA as in `benchmarks.acceptance`: the first documents of `ingest/short-docs.jsonl.gz` are loaded twice into an index
of the type flat: into a new index, and again, when nothing has changed. The encoder is replaced by one that returns
the same random vectors of 384 dimensions at once, without tokenizing: what is left is the load's own work. CPU time is
that of each thread of the pipeline, so it hardly depends on what else the machine does. Reading is also measured in
parts: each adds a step to the one before. System time (of sockets and files) holds no lock of Python; the rest is the
most that can.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import orjson
from numpy.typing import NDArray

from benchmarks.acceptance import delete
from benchmarks.common import machine, read_jsonl, replaced, table
from es_sbert.cli.main import collect_garbage_less_often
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.index.document_vectors import EmbeddingTarget
from es_sbert.index.mapping import VectorFieldMeta
from es_sbert.index.text_template import TextTemplate
from es_sbert.ingest.checkpoint import LoadCheckpoint, LoadIdentity
from es_sbert.ingest.dead_letters import DeadLetters
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.ledger import OutcomeRecorder
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_threads import LoadControl, StageThreads
from es_sbert.ingest.progress import SilentMeter
from es_sbert.ingest.read_documents import DocumentRules, RecordStream, read_documents
from es_sbert.ingest.sources.document_source import ReadSettings
from es_sbert.ingest.sources.find_sources import find_sources
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors

INDEX = "ingest-overhead"
DIMENSIONS, TOKENS, MAX_TOKENS = 384, 16, 256
RESULT = Path(__file__).parent / "results/ingest_overhead.json"
# Thread → what it does; all writers together are one stage.
STAGES = {
    "read": "read: lines, JSON, documents, repeated ids",
    "tokenize": "detect changes",
    "pack": "pack: vectors, metadata, bulk lines",
    "write": "write: send, read answers, record outcomes",
    "embed": "hand vectors on",
}
PARTS = ("lines and JSON", "documents: id, text, hash", "repeated ids (checkpoint)")
# Stage → user and system time, in seconds.
Times = dict[str, tuple[float, float]]


class InstantEncoder:
    """In place of `Encoder`: any text has the same tokens, and vectors are ready."""

    window = 4096
    info = EncoderInfo("instant", "0" * 16, DIMENSIONS, MAX_TOKENS, "none", "fp32", "none", "cpu", 1)

    def __init__(self) -> None:
        vectors = np.random.default_rng(0).normal(size=(self.window, DIMENSIONS)).astype(np.float32)
        self._vectors: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self._row = np.arange(TOKENS, dtype=np.int64)

    def input_limit(self, kind: str) -> int:
        """Tokens that it reads."""
        return MAX_TOKENS

    def make_chunker(self, tokens: int, overlap: int, kind: str) -> Chunker:
        """Not called: the index has no passages."""
        raise NotImplementedError

    def tokenize(self, texts: Sequence[str], kind: str) -> TokenizedTexts:
        """The same tokens for each text."""
        return TokenizedTexts([self._row] * len(texts), np.full(len(texts), TOKENS), MAX_TOKENS)

    def embed_until(
        self, texts: TokenizedTexts, stop: threading.Event, progress: Callable[[float], None]
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """The vectors that are ready."""
        progress(1.0)
        return self._vectors[: len(texts)], np.ones(len(texts), dtype=np.bool_)


@contextmanager
def thread_times() -> Iterator[Times]:
    """The time of each stage of the loads within the block."""
    times: Times = defaultdict(lambda: (0.0, 0.0))
    run = StageThreads._run

    def timed(self: StageThreads, work: Callable[[], None]) -> None:
        before = resource.getrusage(resource.RUSAGE_THREAD)
        run(self, work)
        after = resource.getrusage(resource.RUSAGE_THREAD)
        stage = threading.current_thread().name.split("-")[1]
        user, system = times[stage]
        times[stage] = user + after.ru_utime - before.ru_utime, system + after.ru_stime - before.ru_stime

    with mock.patch.object(StageThreads, "_run", timed):
        yield times


def load_times(engine: Engine, file: Path) -> Times:
    """Load the file."""
    settings = IngestSettings(index=INDEX, files=(str(file),), id_field="id", index_type="flat")
    with thread_times() as times:
        encoder, plan = InstantEncoder(), plan_load(engine, settings, resolve_sources(settings))
        run_load(engine, encoder, plan, LoadControl(), SilentMeter(), show_summary=False)  # type: ignore[arg-type]
    return dict(times)


def reading_times(file: Path, folder: Path) -> dict[str, float]:
    """Part of reading → seconds in the calling thread."""
    meta = VectorFieldMeta.model_construct(fingerprint="0" * 16, text="{text}", passages=None)
    rules = DocumentRules((EmbeddingTarget("embedding", TextTemplate.parse("{text}"), meta),), "id")
    identity = LoadIdentity("uuid", "0" * 16, (("embedding", "{text}", None),), "id")

    def records() -> RecordStream:
        return RecordStream(find_sources([str(file)], None), ReadSettings(1 << 24, "text"), LoadControl())

    def documents(seen: Any) -> None:
        outcomes = OutcomeRecorder(DeadLetters(folder / "dead", "now"), None)
        for _ in read_documents(records(), rules, seen, outcomes):
            pass

    begun = time.thread_time()
    for _ in records():
        pass
    parsed = time.thread_time()
    documents(NothingSeen())
    made = time.thread_time()
    with closing(LoadCheckpoint(folder / "state", identity)) as checkpoint:
        opened = time.thread_time()
        documents(checkpoint)
        checked = time.thread_time()
    steps = (parsed - begun, made - parsed, checked - opened)
    return dict(zip(PARTS, (steps[0], steps[1] - steps[0], steps[2] - steps[1]), strict=True))


class NothingSeen:
    """In place of a checkpoint: every document is new."""

    def record_seen(self, records: Sequence[Any]) -> list[Any]:
        """New, without a look."""
        from es_sbert.ingest.checkpoint import SeenStatus

        return [(SeenStatus.NEW, record.origin) for record in records]


def measure(url: str, texts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One round: microseconds of a document."""

    def per_document(times: Times) -> dict[str, dict[str, float]]:
        return {
            stage: {"cpu": 1e6 * (user + system) / len(texts), "system": 1e6 * system / len(texts)}
            for stage, (user, system) in times.items()
        }

    with tempfile.TemporaryDirectory() as name, closing(connect(EngineSettings(url=url))) as engine:
        folder = Path(name)
        file = folder / "documents.jsonl"
        file.write_bytes(b"".join(orjson.dumps(text) + b"\n" for text in texts))
        if engine.get_index(INDEX) is not None:
            delete(url, INDEX)
        new, unchanged = load_times(engine, file), load_times(engine, file)
        delete(url, INDEX)
        parts = {part: 1e6 * took / len(texts) for part, took in reading_times(file, folder).items()}
    return {"new": per_document(new), "unchanged": per_document(unchanged), "reading": parts}


def section(rounds: Sequence[dict[str, Any]], documents: int) -> str:
    """The tables."""

    def median(*path: str) -> float:
        values = []
        for value in rounds:
            found: Any = value
            for key in path:
                found = found[key]
            values.append(found)
        return statistics.median(values)

    rows: list[list[str]] = []
    for stage, meaning in STAGES.items():
        loads = [(median(load, stage, "cpu"), median(load, stage, "system")) for load in ("new", "unchanged")]
        rows.append([meaning, *[f"{value:.1f}" for load in loads for value in load]])
        if stage == "read":
            rows += [[f"– {part}", f"{median('reading', part):.1f}", "", "", ""] for part in PARTS]
    sums = [
        statistics.median([sum(stage[kind] for stage in value[load].values()) for value in rounds])
        for load in ("new", "unchanged")
        for kind in ("cpu", "system")
    ]
    rows.append(["**all**", *[f"**{value:.1f}**" for value in sums]])
    header = ["µs of CPU a document", "new", "of it system", "unchanged", "of it system"]
    return (
        f"`python -m benchmarks.ingest_overhead --data DATA --url … --documents {documents} --rounds {len(rounds)}`: "
        f"{documents:,} short documents, vectors of {DIMENSIONS} dimensions ready, index type flat; "
        f"{machine()['cpu']}. Medians.\n\n{table(header, rows)}"
    )


@click.command()
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--url", required=True, help="An engine without credentials.")
@click.option("--documents", default=20_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to put the table into."
)
def main(data: Path, url: str, documents: int, rounds: int, page: Path | None) -> None:
    """Load the documents twice a round, and print the time by stage."""
    collect_garbage_less_often()
    texts = list(islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), documents))
    measure(url, texts[: documents // 4])  # modules, connections and the engine's compiler warm up
    found = [measure(url, texts) for _ in range(rounds)]
    RESULT.write_text(json.dumps({"machine": machine(), "documents": documents, "rounds": found}, indent=2) + "\n")
    text = section(found, documents)
    if page is not None:
        page.write_text(replaced(page.read_text(), "ingest overhead", text, maker="benchmarks.ingest_overhead"))
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
