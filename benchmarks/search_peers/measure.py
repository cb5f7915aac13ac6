"""Load each index type, and let every path to its hits take its turn in each round."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.common import seconds
from benchmarks.encode_peers.environments import Environments, NotInstalled, shared_variables, without_addresses
from benchmarks.encode_peers.measure import ContenderFailed, ContenderProcess
from benchmarks.encode_peers.processor import busy_seconds
from benchmarks.encode_peers.texts import TextSet
from benchmarks.search_peers import worker
from benchmarks.search_peers.contenders import ENGINE, GATEWAY, MAIN_TYPE, SearchPath
from benchmarks.search_peers.corpus import Corpus, recall
from benchmarks.search_peers.loading import load
from benchmarks.search_peers.results import COLD_SEARCH, EMBEDDING, Cell, LoadedIndex
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.errors import EsSbertError
from es_sbert.index.mapping import IndexType
from es_sbert.search.semantic_index import SemanticIndex
from tests.gateway.running import serve

INDEX = "search-peers"
_ROOT = Path(__file__).parents[2]
_LIMIT = 600.0  # seconds for an answer of a process
_RECALL_QUERIES, _WARM_UP_QUERIES, _READY_VECTORS, _PARTS = 200, 100, 1_000, 200
_WARM_UP_SECONDS, _WARM_UP_CLIENTS = 1.0, 8
_COLD_STARTS = 5
_GATEWAY_OPTIONS = ("-k", str(worker.HITS), "--num-candidates", str(worker.CANDIDATES))


@dataclass
class SearchComparison:
    """Searches one engine.

    Attributes:
        engine: Where the indices are made.
        encoder: The model.
        folder: The model's sentence-transformers folder.
        corpus: What is loaded.
        queries: What is searched for: the first ones for recall and warming up, all others timed.
        environments: Of the peers.
        threads: For each process.
        seconds: Of each cell.
        work: A temporary folder.
        report: Called with a line after each step.
    """

    engine: Engine
    encoder: Encoder
    folder: Path
    corpus: Corpus
    queries: TextSet
    environments: Environments
    threads: int
    seconds: float
    work: Path
    report: Callable[[str], None]
    cells: list[Cell] = field(default_factory=list)
    indices: list[LoadedIndex] = field(default_factory=list)
    goals: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reserved = _RECALL_QUERIES + _WARM_UP_QUERIES
        self._for_recall = list(self.queries.texts[:_RECALL_QUERIES])
        self._for_warm_up = list(self.queries.texts[_RECALL_QUERIES:reserved])
        self._timed = TextSet(self.queries.name, self.queries.texts[reserved:], 0.0)
        self._ready = self.encoder.encode(self.queries.texts[-_READY_VECTORS:], "query")
        self._recall_vectors = self.encoder.encode(self._for_recall, "query")

    def run(self, types: Sequence[IndexType], paths: Callable[[IndexType], Sequence[SearchPath]], rounds: int) -> None:
        """Measure every path of every type.

        Args:
            paths: Those of an index type.
        """
        for index_type in types:
            self._measure_type(index_type, paths(index_type), rounds)

    def _measure_type(self, index_type: IndexType, paths: Sequence[SearchPath], rounds: int) -> None:
        cells = {
            (path.label, clients): Cell(str(index_type), path.label, clients)
            for path in paths
            for clients in path.clients
        }
        self.cells += cells.values()
        try:
            loaded = self._load(index_type)
            for number in range(rounds):
                first = number * len(paths) // rounds
                for path in [*paths[first:], *paths[:first]]:
                    self._take_turn(path, [cells[path.label, clients] for clients in path.clients], loaded, number)
                if index_type is MAIN_TYPE:
                    self._measure_goals(number)
        except (EsSbertError, RuntimeError) as error:
            for cell in cells.values():
                cell.reason = cell.reason or _reason(error)
            self.report(f"{index_type}: {error}")
        finally:
            self._delete()

    def _load(self, index_type: IndexType) -> LoadedIndex:
        self._delete()
        took = load(self.engine, INDEX, index_type, self.corpus, self.encoder.info)
        loaded = LoadedIndex(str(index_type), took, _count_segments(self.engine))
        self.indices.append(loaded)
        self.report(f"{index_type}: loaded in {took:.0f} s, segments: {loaded.segments}")
        return loaded

    def _delete(self) -> None:
        if self.engine.get_index(INDEX) is not None:
            self.engine.delete_index(INDEX)

    def _take_turn(self, path: SearchPath, cells: Sequence[Cell], loaded: LoadedIndex, number: int) -> None:
        if any(cell.reason for cell in cells):
            return
        try:
            with self._gateway(path.label == GATEWAY) as gateway:
                url = gateway or self.engine.info.url
                with self._start(path, url) as process:
                    self._warm_up(path, process, loaded)
                    for position, cell in enumerate(cells):
                        queries = self._timed.for_round(number * len(cells) + position + 1)
                        self._measure(process, path, queries, cell, gateway)
                        self.report(f"round {number + 1}, {cell}")
        except (ContenderFailed, NotInstalled, AssertionError) as error:
            for cell in cells:
                cell.reason = f"round {number + 1}: {_reason(error)}"
            self.report(f"{loaded.index_type}, {path.label}: {error}")

    @contextmanager
    def _gateway(self, wanted: bool) -> Iterator[str]:
        """Address of a new gateway, whose cache knows no query; empty if none is wanted."""
        with ExitStack() as stack:
            yield stack.enter_context(serve(self.engine.info.url, self.work, *_GATEWAY_OPTIONS)) if wanted else ""

    def _start(self, path: SearchPath, url: str) -> ContenderProcess:
        if path.environment is None:
            python, variables = Path(sys.executable), {**os.environ, **shared_variables(self.threads)}
        else:
            python = self.environments.python(path.environment)
            variables = self.environments.variables(path.environment, self.threads)
        # No proxy of the environment: the servers are on this machine.
        variables = {name: value for name, value in variables.items() if not name.lower().endswith("_proxy")}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        log = self.work / f"{path.library}.log"
        # Without -P, modules of this folder would hide others of the same name.
        process = ContenderProcess([python, "-P", Path(worker.__file__)], variables, log, _LIMIT)
        try:
            options = {"url": url, "index": INDEX, "field": DEFAULT_VECTOR_FIELD}
            model, threads = str(self.folder), self.threads
            answer = process.ask(do="load", library=path.library, model=model, threads=threads, options=options)
        except ContenderFailed:
            process.close()
            raise
        if path.library != "http":
            name = "es-sbert" if path.environment is None else path.environment.name
            self.versions[name] = answer["versions"]
        return process

    def _warm_up(self, path: SearchPath, process: ContenderProcess, loaded: LoadedIndex) -> None:
        """Search for what is not timed; the first time, for the recall."""
        if path.label not in loaded.recall:
            hits = process.ask(do="hits", queries=self._write(self._wire(path, self._for_recall)))["ids"]
            exact = self.corpus.exact_neighbors(self._query_vectors(path, process), worker.HITS)
            loaded.recall[path.label] = recall(hits, exact, worker.HITS)
        warm_up = self._write(self._wire(path, self._for_warm_up))
        # One client first: some libraries load what they need with the first query.
        for clients in (1, _WARM_UP_CLIENTS):
            process.ask(do="run", queries=warm_up, clients=clients, seconds=_WARM_UP_SECONDS, repeat=True)

    def _query_vectors(self, path: SearchPath, process: ContenderProcess) -> Any:
        """Those that the path searches by: other libraries embed with other numbers."""
        if path.environment is None:
            return self._recall_vectors
        file = self.work / "vectors.npy"
        process.ask(do="encode", texts=self._write(self._for_recall), vectors=str(file))
        return np.load(file)

    def _wire(self, path: SearchPath, texts: Sequence[str]) -> list[str]:
        """The queries as the path's process takes them: texts, or bodies for the gateway or the engine."""
        if path.label == GATEWAY:
            return [json.dumps(gateway_body(text)) for text in texts]
        if path.label != ENGINE:
            return list(texts)
        vectors = self._recall_vectors if texts == self._for_recall else self._ready
        with SemanticIndex(INDEX, self.engine, encoder=self.encoder) as index:
            body = index.body(texts[0], worker.HITS)
        return [orjson.dumps(with_vector(body, vector.tolist())).decode() for vector in vectors]

    def _write(self, queries: Sequence[str]) -> str:
        file = self.work / "queries.json"
        file.write_text(json.dumps(queries), encoding="utf-8")
        return str(file)

    def _measure(
        self, process: ContenderProcess, path: SearchPath, queries: Sequence[str], cell: Cell, gateway: str
    ) -> None:
        file = self._write(self._wire(path, queries))
        # No cache knows vectors, so that those may come again.
        request = {"queries": file, "clients": cell.clients, "seconds": self.seconds, "repeat": path.label == ENGINE}
        before, begin = self._processor_seconds(gateway), time.perf_counter()
        answer = process.ask(do="run", **request)
        wall, after = time.perf_counter() - begin, self._processor_seconds(gateway)
        used = {name: after[name] - before[name] for name in before}
        client = answer["processor_seconds"]
        others = used["all"] - used["engine"] - used["gateway"] - client - answer["checking"]
        processors = os.cpu_count() or 1
        took = answer["seconds"]
        cell.answers.append(len(answer["milliseconds"]))
        cell.rates.append(len(answer["milliseconds"]) / took)
        for percent, values in ((50, cell.p50), (95, cell.p95), (99, cell.p99)):
            values.append(float(np.percentile(answer["milliseconds"], percent)))
        for name, spent, span in (
            ("client", client, took),
            ("gateway", used["gateway"], took),
            ("engine", used["engine"], took),
            ("others", others, wall),
        ):
            cell.shares.setdefault(name, []).append(max(0.0, spent) / (span * processors))

    def _processor_seconds(self, gateway: str) -> dict[str, float]:
        nodes = _get_json(f"{self.engine.info.url}/_nodes/stats/process")["nodes"]
        engine = sum(node["process"]["cpu"]["total_in_millis"] for node in nodes.values()) / 1000
        return {"all": busy_seconds() or 0.0, "engine": engine, "gateway": gateway_processor_seconds(gateway)}

    def _measure_goals(self, number: int) -> None:
        """Embedding alone, and a search by the command line."""
        # Endings that the rounds of the cells do not use.
        texts = self._timed.for_round(-number - 1)
        self.encoder.encode([texts[0]], "query")
        found = {EMBEDDING: statistics.median(1000 * _took(self.encoder, text) for text in texts[:_PARTS])}
        try:
            starts = [self._cold_search(text) for text in texts[-_COLD_STARTS - 1 :]][1:]
            found[COLD_SEARCH] = statistics.median(starts)
        except ContenderFailed as error:
            self.report(f"round {number + 1}, goals: {error}")
        for name, value in found.items():
            self.goals.setdefault(name, []).append(value)
        self.report(", ".join(f"{name}: {value:.2f}" for name, value in found.items()))

    def _cold_search(self, text: str) -> float:
        """Seconds of `es-sbert search`, from the start of the process to its end."""
        command = [sys.executable, "-m", "es_sbert", "search", "--url", self.engine.info.url, "--index", INDEX]
        took, done = seconds(lambda: subprocess.run([*command, "--json", text], capture_output=True, text=True))
        if done.returncode or len(done.stdout.splitlines()) != worker.HITS:
            raise ContenderFailed(f"es-sbert search ended with {done.returncode}: {done.stderr}")
        return float(took)


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return without_addresses(lines[0])


def _took(encoder: Encoder, text: str) -> float:
    return seconds(lambda: encoder.encode([text], "query"))[0]


def _count_segments(engine: Engine) -> int:
    """Number of segments in the primary shards of the index."""
    segments = engine.send("GET", f"/_cat/segments/{INDEX}", {"format": "json"}).body
    return sum(segment["prirep"] == "p" for segment in segments)


def gateway_body(text: str) -> Mapping[str, Any]:
    """The search that an application sends to the gateway."""
    return {
        "query": {"match": {"semantic": text}},
        "size": worker.HITS,
        "_source": {"excludes": [DEFAULT_VECTOR_FIELD]},
    }


def with_vector(body: Any, vector: Sequence[float]) -> Any:
    """A search body whose vector, the only list of as many numbers, is replaced by another one."""
    if isinstance(body, dict):
        return {name: with_vector(value, vector) for name, value in body.items()}
    if isinstance(body, list):
        is_vector = len(body) == len(vector) and all(isinstance(one, float) for one in body)
        return list(vector) if is_vector else [with_vector(one, vector) for one in body]
    return body


def gateway_processor_seconds(gateway: str) -> float:
    """Processor time of a gateway by its own metrics; 0 without an address."""
    if not gateway:
        return 0.0
    for line in _get(f"{gateway}/metrics").decode().splitlines():
        name, _, value = line.partition(" ")
        if name.endswith("process_cpu_seconds_total"):
            return float(value)
    return 0.0


def _get_json(url: str) -> Any:
    return orjson.loads(_get(url))


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        data: bytes = answer.read()
    return data
