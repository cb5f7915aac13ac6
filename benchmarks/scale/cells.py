"""The cells: each measures one part with one number of documents, in the process that calls it."""

from __future__ import annotations

import itertools
import pickle
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from benchmarks.common import peak_memory, read_jsonl, seconds
from benchmarks.encode_peers.processor import busy_seconds, others_share
from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.vectors import Vectors

SOURCE = "ingest/short-docs.jsonl.gz"
# Documents whose vectors the vectors of the other parts are sums of, and those that the costs are measured on.
SENTENCES, COST_DOCUMENTS = 10_000, 20_000
CLUSTERS, PAIRS, MIN_COSINE = 100, 100, 0.9
QUERIES, WARM_UP, K = 100, 20, 10
_MERGE_SECONDS = 300.0
_STATISTICS_SECONDS = 1.1
_FIRST = 256  # vectors of a first call, which loads modules
_SECOND = 1e6  # microseconds


@dataclass(frozen=True)
class Task:
    """What every cell is told.

    Attributes:
        data: Folder of the data.
        folder: Temporary folder of the run, with `sentences.npy`.
        model: Its name.
        url: Of the engine; empty for parts without one.
        index: Index that a cell may create.
    """

    data: Path
    folder: Path
    model: str = DEFAULT_MODEL
    url: str = ""
    index: str = ""


@dataclass
class Cell:
    """A part with a number of documents.

    Attributes:
        part: One of `laws.LAWS`.
        size: Number of documents.
        seconds: That it took; for a search, the median of its queries. None if it was not measured.
        megabytes: Most memory of the process; None for a search, which takes the engine's.
        whole_seconds: Of the cell with its preparation.
        reason: Why it was not measured; empty otherwise.
        others: Share of the processors that other programs than this one and the engine used.
        figures: More of it, by name.
    """

    part: str
    size: int
    seconds: float | None = None
    megabytes: float | None = None
    whole_seconds: float = 0.0
    reason: str = ""
    others: float | None = None
    figures: dict[str, float] = field(default_factory=dict)


def measure(part: str, size: int, task: Task) -> Cell:
    """Measure a cell."""
    engine_before, own_before = engine_seconds(task.url), time.process_time()
    busy_before, begun = busy_seconds(), time.perf_counter()
    cell = _PARTS[part](part, size, task)
    cell.whole_seconds = time.perf_counter() - begun
    busy, own = busy_seconds(), time.process_time() - own_before
    own += engine_seconds(task.url) - engine_before
    cell.others = others_share(busy_before, busy, own, cell.whole_seconds)
    return cell


def engine_seconds(url: str) -> float:
    """Processor seconds that all nodes of the engine have used; 0 without an engine.

    Waits, since a node reads them once a second.
    """
    if not url:
        return 0.0
    time.sleep(_STATISTICS_SECONDS)
    with closing(connect(EngineSettings(url=url))) as engine:
        answer = engine.request_api("/_nodes/stats/process", {"filter_path": "nodes.*.process.cpu"}) or {}
    return sum(float(node["process"]["cpu"]["total_in_millis"]) for node in answer.get("nodes", {}).values()) / 1000


def texts_of(data: Path, count: int) -> list[str]:
    """The first texts."""
    return [row["text"] for row in itertools.islice(read_jsonl(data / SOURCE), count)]


def write_documents(data: Path, count: int, target: Path) -> None:
    """The first documents as a JSONL file."""
    with target.open("wb") as out:
        for row in itertools.islice(read_jsonl(data / SOURCE), count):
            out.write(orjson.dumps(row) + b"\n")


def embed_sentences(count: int, task: Task) -> None:
    """Write `sentences.npy`, the vectors of the first documents."""
    from es_sbert.encoder.encoder import Encoder

    with Encoder(task.model, device="cpu") as encoder:
        np.save(task.folder / "sentences.npy", encoder.encode(texts_of(task.data, count), "document"))


def sums(task: Task, count: int, seed: int = 0) -> Vectors:
    """Sums of the vectors of two sentences at random, normalized. *Shape:* ``(count, dimensions)`` float32."""
    sentences, random = np.load(task.folder / "sentences.npy"), np.random.default_rng(seed)
    one, two = random.integers(len(sentences), size=(2, count))
    vectors: Vectors = sentences[one] + sentences[two]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _encode(part: str, size: int, task: Task) -> Cell:
    from es_sbert.encoder.encoder import Encoder

    texts = texts_of(task.data, size)
    with Encoder(task.model, device="cpu") as encoder:
        encoder.encode(texts[:_FIRST], "document")
        used = time.process_time()
        took, _ = seconds(lambda: encoder.encode(texts, "document"))
        used = time.process_time() - used
    return Cell(part, size, took, peak_memory(), figures={"cpu": _SECOND * used / size})


def _ingest(part: str, size: int, task: Task) -> Cell:
    from es_sbert.encoder.encoder import Encoder
    from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
    from es_sbert.ingest.load import run_load
    from es_sbert.ingest.load_plan import plan_load
    from es_sbert.ingest.load_threads import LoadControl
    from es_sbert.ingest.progress import SilentMeter

    with (
        tempfile.TemporaryDirectory(dir=task.folder) as name,
        closing(connect(EngineSettings(url=task.url))) as engine,
        Encoder(task.model, device="cpu") as encoder,
    ):
        folder = Path(name)
        write_documents(task.data, size, folder / "docs.jsonl")
        encoder.encode(texts_of(task.data, _FIRST), "document")
        settings = IngestSettings(
            index=task.index,
            files=(str(folder / "docs.jsonl"),),
            id_field="id",
            index_type="flat",
            dead_letters=folder / "dead",
        )
        plan = plan_load(engine, settings, resolve_sources(settings))
        control = LoadControl()
        took, summary = seconds(lambda: run_load(engine, encoder, plan, control, SilentMeter(), show_summary=False))
        if summary.indexed != size or engine.count(task.index) != size:
            raise RuntimeError(f"not all {size:,} documents are in the index")
    return Cell(part, size, took, peak_memory())


def _coordinator(part: str, size: int, task: Task) -> Cell:
    """What the coordinator's process does for a load of new documents, without Ray: arguments and results are pickled
    as Ray would."""
    from es_sbert.ingest.checkpoint import LoadIdentity, SeenRecord
    from es_sbert.ingest.ray_actors import LoadCoordinator
    from es_sbert.ingest.read_documents import _LOOKUP_DOCUMENTS as BATCH
    from es_sbert.ingest.records import Origin

    identity = LoadIdentity("uuid", "0" * 16, (("embedding", "{text}", None),), "id")
    used = took = 0.0
    with tempfile.TemporaryDirectory(dir=task.folder) as name:
        coordinator = LoadCoordinator()
        coordinator.open(Path(name) / "state", identity)
        for start in range(0, size, BATCH):
            rows = range(start, min(start + BATCH, size))
            ids = [f"d{row:09}" for row in rows]
            records = [
                SeenRecord(id, f"{row:032x}", Origin("docs.jsonl", row)) for id, row in zip(ids, rows, strict=True)
            ]
            calls = pickle.dumps(records), pickle.dumps(ids)
            cpu, wall = time.thread_time(), time.perf_counter()
            pickle.dumps(coordinator.record_seen(pickle.loads(calls[0])))
            pickle.dumps(coordinator.call("record_acknowledged", pickle.loads(calls[1])))
            used += time.thread_time() - cpu
            took += time.perf_counter() - wall
        coordinator.call("close")
    return Cell(part, size, took, peak_memory(), figures={"cpu": _SECOND * used / size})


def _pairs(part: str, size: int, task: Task) -> Cell:
    from es_sbert.analysis import most_similar_pairs

    vectors = sums(task, size)
    most_similar_pairs(vectors[:_FIRST], PAIRS)
    took, _ = seconds(lambda: most_similar_pairs(vectors, PAIRS))
    return Cell(part, size, took, peak_memory())


def _duplicates(part: str, size: int, task: Task) -> Cell:
    from es_sbert.analysis import duplicate_groups

    vectors = sums(task, size)
    duplicate_groups(vectors[:_FIRST], MIN_COSINE)
    took, groups = seconds(lambda: duplicate_groups(vectors, MIN_COSINE))
    found = sum(len(group.members) - 1 for group in groups)
    return Cell(part, size, took, peak_memory(), figures={"duplicates": found})


def _cluster(part: str, size: int, task: Task) -> Cell:
    from es_sbert.analysis import cluster_texts

    vectors = sums(task, size)
    cluster_texts(vectors[:_FIRST], "kmeans", k=2)
    took, _ = seconds(lambda: cluster_texts(vectors, "kmeans", k=CLUSTERS))
    return Cell(part, size, took, peak_memory())


def _search(part: str, size: int, task: Task) -> Cell:
    """Load vectors alone, wait for merges, and search for others, one at a time."""
    from benchmarks.flat_then_graph import load
    from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
    from es_sbert.search.vector_query import SearchMethod, VectorQuery, search_body

    vectors, queries = sums(task, size), sums(task, WARM_UP + QUERIES, seed=1)
    with closing(connect(EngineSettings(url=task.url, timeout=3600))) as engine:
        request = FieldRequest(
            name="embedding",
            fingerprint="0" * 32,
            model_name="benchmark",
            dimensions=vectors.shape[1],
            index_type=part.removeprefix("search-"),
        )
        ensure_vector_field(engine, task.index, request, shards=1, replicas=0)
        engine.put_settings(task.index, {"index.refresh_interval": "-1"})
        used, begun = engine_seconds(task.url), time.perf_counter()
        load(engine, task.index, vectors)
        sent = time.perf_counter() - begun
        engine.refresh(task.index)
        _wait_for_merges(engine, task.index)
        settled = time.perf_counter() - begun
        used = engine_seconds(task.url) - used
        took = []
        for query in queries:
            body = search_body(engine.info.engine_type, SearchMethod.KNN, VectorQuery("embedding", query, K))
            begun = time.perf_counter()
            engine.search(task.index, body)
            took.append(time.perf_counter() - begun)
        took = sorted(took[WARM_UP:])
        figures = {
            "engine_cpu": _SECOND * used / size,
            "sent_seconds": sent,
            "settled_seconds": settled,
            "segments": sum(engine.count_segments(task.index).values()),
            "p95": took[int(0.95 * len(took))],
        }
    return Cell(part, size, statistics.median(took), None, figures=figures)


def _wait_for_merges(engine: Engine, index: str) -> None:
    """Wait until the engine has merged what it wants to merge."""
    end = time.monotonic() + _MERGE_SECONDS
    while time.monotonic() < end:
        answer = engine.send("GET", f"/{index}/_stats/merge").body
        if not answer["_all"]["total"]["merges"]["current"]:
            return
        time.sleep(0.5)


_PARTS = {
    "encode": _encode,
    "ingest": _ingest,
    "coordinator": _coordinator,
    "pairs": _pairs,
    "duplicates": _duplicates,
    "cluster": _cluster,
    "search-flat": _search,
    "search-hnsw": _search,
}
# Parts that need vectors, and those that need an engine.
OF_VECTORS = frozenset({"pairs", "duplicates", "cluster", "search-flat", "search-hnsw"})
OF_ENGINE = frozenset({"ingest", "search-flat", "search-hnsw"})


def measure_costs(count: int, task: Task) -> dict[str, float]:
    """Costs of a document, in microseconds of a processor, and what it is.

    The stages of a load are measured with an encoder whose vectors are ready (`benchmarks.ingest_overhead`).
    """
    from benchmarks.ingest_overhead import DIMENSIONS, INDEX, Times, load_times
    from es_sbert.diagnostics.index_size import estimate_size
    from es_sbert.index.mapping import IndexType

    def stage(times: Times, name: str) -> float:
        return _SECOND * sum(times[name]) / count

    texts = texts_of(task.data, count)
    costs = {"documents": float(count), "words": statistics.mean(len(text.split()) for text in texts)}
    with closing(connect(EngineSettings(url=task.url))) as engine, tempfile.TemporaryDirectory(dir=task.folder) as name:
        file, quarter = Path(name) / "docs.jsonl", Path(name) / "quarter.jsonl"
        write_documents(task.data, count, file)
        write_documents(task.data, count // 4, quarter)
        for source in (quarter, file):  # the first warms up modules, connections and the engine's compiler
            if engine.get_index(INDEX) is not None:
                engine.delete_index(INDEX)
            used = engine_seconds(task.url)
            times = load_times(engine, source)
        costs |= {stage_name: stage(times, stage_name) for stage_name in ("read", "tokenize", "pack", "write")}
        costs["detect"] = costs.pop("tokenize")  # of texts that have tokens already
        engine.refresh(INDEX)
        engine.flush(INDEX)
        _wait_for_merges(engine, INDEX)
        costs["engine"] = _SECOND * (engine_seconds(task.url) - used) / count
        vectors = estimate_size(engine.info, IndexType.FLAT, count, DIMENSIONS).disk
        costs["document_bytes"] = max(0.0, (engine.store_size(INDEX) - vectors) / count)
        engine.delete_index(INDEX)
    costs |= _encoder_costs(texts, task.model)
    return costs


def _encoder_costs(texts: Sequence[str], model: str) -> dict[str, float]:
    """Costs of tokenizing and embedding in windows, as a load does."""
    from es_sbert.encoder.encoder import Encoder

    tokenizing = embedding = 0.0
    tokens = 0
    with Encoder(model, device="cpu") as encoder:
        encoder.encode(texts[:_FIRST], "document")
        window = encoder.window // 2  # see `batch_window` in es_sbert/ingest/load_pipeline.py
        for start in range(0, len(texts), window):
            begun = time.process_time()
            tokenized = encoder.tokenize(texts[start : start + window], "document")
            made = time.process_time()
            encoder.embed_until(tokenized, threading.Event(), lambda part: None)
            tokenizing, embedding = tokenizing + made - begun, embedding + time.process_time() - made
            tokens += int(tokenized.tokens.sum())
    found = {"tokenize": _SECOND * tokenizing, "embed": _SECOND * embedding, "tokens": float(tokens)}
    return {name: value / len(texts) for name, value in found.items()}
