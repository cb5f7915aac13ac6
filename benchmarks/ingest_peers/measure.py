"""Contenders that take turns: in each round, each loads the same documents into a new index, which is then checked."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.encode_peers import worker as encode_worker
from benchmarks.encode_peers.contenders import REFERENCE
from benchmarks.encode_peers.environments import (
    SENTENCE_TRANSFORMERS,
    Environments,
    NotInstalled,
    shared_variables,
    without_addresses,
)
from benchmarks.encode_peers.measure import ContenderFailed, ContenderProcess, cosines
from benchmarks.encode_peers.results import ContenderResult
from benchmarks.encode_peers.texts import TextSet
from benchmarks.ingest_peers import worker
from benchmarks.ingest_peers.contenders import Contender
from benchmarks.ingest_peers.results import BULK, EMBEDDING, LOAD, WHOLE
from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.engine import Engine
from es_sbert.errors import EsSbertError
from es_sbert.index.document_vectors import read_vector
from es_sbert.index.mapping import VectorFieldMeta, index_body
from tests.engine.sources import read_sources

INDEX = "ingest-peers"
_ROOT = Path(__file__).parents[2]
_CHECKED = 64  # documents of the load before the first round
_WARM_UPS = 3  # loads
_SAMPLE = 3  # documents whose vectors are compared with those of the reference
_SAME_VECTOR = 0.97
_PAGE = 1_000  # documents of a lookup
_POLL_SECONDS = 0.05
_LIMIT = 1_800.0  # seconds for a load of es-sbert

Vectors = NDArray[np.float32]


@dataclass
class Documents:
    """What is loaded in a round.

    Attributes:
        ids, texts: Of the documents.
        file: JSON Lines of both.
        sample: Numbers of some of the documents.
        vectors: Of the sample, by the reference; *shape* ``(sample, dimensions)``.
    """

    ids: list[str]
    texts: list[str]
    file: Path
    sample: list[int]
    vectors: Vectors


@dataclass
class Load:
    """What a contender took for a round.

    Attributes:
        seconds: From the first document to the end of the refresh; the start and loading the model are left out.
        whole: From the start of the process to the end of the load.
        megabytes: Most memory that the process took.
        details: What it chose.
        versions: Its packages.
    """

    seconds: float
    whole: float
    megabytes: float
    details: str
    versions: dict[str, str]


@dataclass
class Comparison:
    """Runs the contenders against one engine.

    Attributes:
        engine: Where the documents go, without credentials.
        model: As es-sbert is asked for it.
        folder: The model's sentence-transformers folder.
        environments: Of the peers.
        threads: For each contender.
        texts: Of the documents.
        index_type: Of all indices.
        work: A temporary folder.
        report: Called with a line after each step.
        limits: Name → documents per second, one figure a round.
    """

    engine: Engine
    model: str
    folder: Path
    environments: Environments
    threads: int
    texts: TextSet
    index_type: str
    work: Path
    report: Callable[[str], None]
    limits: dict[str, list[float]] = field(default_factory=lambda: {EMBEDDING: [], BULK: []})
    _own_versions: dict[str, str] = field(default_factory=dict)

    def run(self, contenders: Sequence[Contender], rounds: int) -> list[ContenderResult]:
        """Check each contender with a few documents, warm the engine up, then let all take turns."""
        lists = [self.texts.for_round(number) for number in range(rounds + 2)]
        lists[0] = lists[0][:_CHECKED]
        checked, *measured, others = self._with_references(lists)
        results = {contender.label: self._check(contender, checked) for contender in contenders}
        self._warm_up(others)
        for number, documents in enumerate(measured, start=1):
            # Another order in each round: none is always the first after a pause, or after a heavy one.
            first = (number - 1) * len(contenders) // rounds
            for contender in [*contenders[first:], *contenders[:first]]:
                result = results[contender.label]
                if not result.reason:
                    self._take_turn(contender, documents, result, f"round {number}")
        return list(results.values())

    def _with_references(self, lists: Iterable[Sequence[str]]) -> list[Documents]:
        """The documents of the check and of each round, with some vectors of sentence-transformers in fp32."""
        python = self.environments.python(SENTENCE_TRANSFORMERS)
        variables = self.environments.variables(SENTENCE_TRANSFORMERS, self.threads)
        parts = []
        with ContenderProcess([python, "-P", Path(encode_worker.__file__)], variables, self._log(REFERENCE)) as process:
            options = {"backend": "torch", "dtype": "float32"}
            library, model = "sentence-transformers", str(self.folder)
            process.ask(do="load", library=library, model=model, threads=self.threads, options=options)
            for number, texts in enumerate(lists):
                sample = random.Random(number).sample(range(len(texts)), min(_SAMPLE, len(texts)))
                vectors = self._encode(process, [texts[position] for position in sample])[0]
                ids = [str(position) for position in range(len(texts))]
                file = self.work / f"documents-{number}.jsonl"
                rows = ({"id": id_, "text": text} for id_, text in zip(ids, texts, strict=True))
                file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
                parts.append(Documents(ids, list(texts), file, sample, vectors))
        return parts

    def _encode(self, process: ContenderProcess, texts: Sequence[str]) -> tuple[Vectors, float]:
        """Vectors and seconds."""
        file, vectors = self.work / "texts.json", self.work / "vectors.npy"
        file.write_text(json.dumps(texts))
        answer = process.ask(do="encode", texts=str(file), vectors=str(vectors))
        return np.load(vectors), answer["seconds"]

    def _check(self, contender: Contender, documents: Documents) -> ContenderResult:
        """Installs what a contender needs and lets it load a few documents; its result, with a reason if it fails."""
        result = ContenderResult(contender.label, contender.ours)
        try:
            if contender.environment is not None:
                result.environment = contender.environment.name
                self.environments.python(contender.environment)
        except NotInstalled as error:
            result.reason = str(error)
            self.report(f"{contender.label}: {error}")
            return result
        self._take_turn(contender, documents, result, "check", counts=False)
        return result

    def _warm_up(self, documents: Documents) -> None:
        """Load documents that no round has: an engine that was just started loads half as fast for a while."""
        for _ in range(_WARM_UPS):
            # A load that fails will fail in its turn too, which reports it.
            with suppress(ContenderFailed, EsSbertError):
                self._run_command(documents)
            self._delete_index()

    def _take_turn(
        self, contender: Contender, documents: Documents, result: ContenderResult, turn: str, *, counts: bool = True
    ) -> None:
        count = len(documents.ids)
        try:
            limits = self._measure_limits(documents) if contender.ours and counts else {}
            load = self._load(contender, documents)
        except (ContenderFailed, EsSbertError) as error:
            result.reason = f"{turn}: {without_addresses(str(error))}"
            self.report(f"{turn}, {contender.label}: {error}")
            return
        finally:
            self._delete_index()
        result.details, result.versions = load.details, load.versions
        speeds = {LOAD: count / load.seconds, WHOLE: count / load.whole}
        if counts:
            # Only a whole turn counts, so that the turns of all contenders belong to the same rounds.
            result.megabytes.append(load.megabytes)
            result.start_seconds.append(load.whole - load.seconds)
            for name, speed in speeds.items():
                result.speeds.setdefault(name, []).append(speed)
            for name, speed in limits.items():
                self.limits[name].append(speed)
        shown = ", ".join(f"{name} {speed:,.0f}/s" for name, speed in (limits | speeds).items())
        self.report(f"{turn}, {contender.label}: {shown}, {load.megabytes:,.0f} MB")

    def _load(self, contender: Contender, documents: Documents) -> Load:
        """Load into a new index and check it.

        Raises:
            ContenderFailed: it failed, or the index does not hold what it should.
        """
        # The mapping of the vector as the engine gives it: es-sbert's own index must have the same.
        expected = self._create_index()
        if contender.ours:
            self._delete_index()
            load = self._run_command(documents)
        else:
            load = self._run_library(contender, documents)
        if self._vector_mapping() != expected:
            raise ContenderFailed(f"the vector field is mapped as {json.dumps(self._vector_mapping())}")
        self._check_index(documents)
        return load

    def _run_library(self, contender: Contender, documents: Documents) -> Load:
        assert contender.environment is not None
        python = self.environments.python(contender.environment)
        variables = self.environments.variables(contender.environment, self.threads)
        info = self.engine.info
        options = {"url": info.url, "index": INDEX, "base64": info.supports_base64_vectors}
        # Without -P, modules of this folder would hide others of the same name.
        command: list[str | Path] = [python, "-P", Path(worker.__file__)]
        begin = time.perf_counter()
        with ContenderProcess(command, variables, self._log(contender.label)) as process:
            loaded = process.ask(
                do="load", library=contender.library, model=str(self.folder), threads=self.threads, options=options
            )
            seconds = process.ask(do="ingest", documents=str(documents.file))["seconds"]
            whole = time.perf_counter() - begin
            megabytes = process.ask(do="memory")["megabytes"]
        return Load(seconds, whole, megabytes, loaded["details"], loaded["versions"])

    def _run_command(self, documents: Documents) -> Load:
        arguments = ["--url", self.engine.info.url, "--index", INDEX, "--id-field", "id", "--model", self.model]
        arguments += ["--index-type", self.index_type, "--device", "cpu", "--json", "--quiet", str(documents.file)]
        summary, whole, megabytes = self._run_own("es_sbert", "ingest", *arguments)
        return Load(summary["seconds"], whole, megabytes, summary["variant"], self._own_versions)

    def _run_own(self, module: str, *arguments: str) -> tuple[dict[str, Any], float, float]:
        """Run a module of this environment that prints a summary; also its seconds and its memory.

        Raises:
            ContenderFailed: it ended with another code than 0, or took too long.
        """
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._own_variables(),
            cwd=self.work,
        )
        memory = PeakMemory(process.pid)
        with memory:
            try:
                output, errors = process.communicate(timeout=_LIMIT)
            except subprocess.TimeoutExpired as error:
                process.kill()
                process.communicate()
                raise ContenderFailed(f"{module}: did not end within {_LIMIT:.0f} s") from error
        whole = time.perf_counter() - begin
        if process.returncode:
            lines = [line for line in errors.splitlines() if line.strip()] or [output.strip()]
            raise ContenderFailed(f"{module}: ended with {process.returncode}: {without_addresses(lines[-1])}")
        return json.loads(output), whole, memory.megabytes

    def _measure_limits(self, documents: Documents) -> dict[str, float]:
        """Documents per second of embedding alone and of the load of vectors that are ready."""
        with ContenderProcess(
            [sys.executable, "-P", Path(encode_worker.__file__)], self._own_variables(), self._log(EMBEDDING)
        ) as process:
            loaded = process.ask(do="load", library="es-sbert", model=self.model, threads=self.threads, options={})
            self._own_versions = loaded["versions"]
            vectors, seconds = self._encode(process, documents.texts)
        count, file = len(documents.ids), self.work / "ready.npy"
        np.save(file, vectors)
        module = "benchmarks.ingest_peers.bulk_alone"
        try:
            place = (self.engine.info.url, INDEX, str(documents.file), str(file), self.index_type)
            summary = self._run_own(module, *place)[0]
            self._check_index(documents)
        finally:
            self._delete_index()
        return {EMBEDDING: count / seconds, BULK: count / summary["seconds"]}

    def _own_variables(self) -> Mapping[str, str]:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        return {**os.environ, **shared_variables(self.threads), "PYTHONPATH": path}

    def _log(self, name: str) -> Path:
        return self.work / f"{''.join(sign if sign.isalnum() else '-' for sign in name)}.log"

    def _create_index(self) -> Any:
        """Create the index of a peer, with the settings and the vector field of es-sbert's; that field as mapped."""
        self._delete_index()
        self.engine.create_index(INDEX, peer_index(self.engine, self.index_type, self._dimensions))
        return self._vector_mapping()

    @property
    def _dimensions(self) -> int:
        settings = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        return int(settings["hidden_size"])

    def _vector_mapping(self) -> Any:
        state = self.engine.get_index(INDEX)
        return None if state is None else state.mappings["properties"].get(DEFAULT_VECTOR_FIELD)

    def _delete_index(self) -> None:
        if self.engine.get_index(INDEX) is not None:
            self.engine.delete_index(INDEX)

    def _check_index(self, documents: Documents) -> None:
        """Whether searches see all documents, each with its vector.

        Raises:
            ContenderFailed: they do not.
        """
        seen, count = self.engine.count(INDEX), len(documents.ids)
        if seen != count:
            raise ContenderFailed(f"searches see {seen:,} of {count:,} documents")
        vectors: list[Vectors | None] = []
        for start in range(0, count, _PAGE):
            ids = documents.ids[start : start + _PAGE]
            sources = read_sources(self.engine, INDEX, ids, source_includes=[DEFAULT_VECTOR_FIELD])
            found = [sources.get(id_, {}).get(DEFAULT_VECTOR_FIELD) for id_ in ids]
            vectors += [None if vector is None else read_vector(vector) for vector in found]
        check_vectors(vectors, documents.sample, documents.vectors)


def peer_index(engine: Engine, index_type: str, dimensions: int) -> dict[str, Any]:
    """Body of the index of a peer: es-sbert's own, without its metadata."""
    meta = VectorFieldMeta.model_construct(index_type=index_type, dimensions=dimensions, passages=None)
    body = index_body(engine.info.engine_type, DEFAULT_VECTOR_FIELD, meta)
    properties = {DEFAULT_VECTOR_FIELD: body["mappings"]["properties"][DEFAULT_VECTOR_FIELD]}
    return {"settings": body["settings"], "mappings": {"properties": properties}}


def check_vectors(vectors: Sequence[Vectors | None], sample: Sequence[int], reference: Vectors) -> None:
    """Whether every document has a vector of the reference's length, and those of the sample the reference's direction.

    Raises:
        ContenderFailed: they do not.
    """
    right = sum(vector is not None and vector.shape == reference.shape[1:] for vector in vectors)
    if right != len(vectors):
        raise ContenderFailed(f"{right:,} of {len(vectors):,} documents have a vector of {reference.shape[1]} numbers")
    found = np.stack([vector for number in sample if (vector := vectors[number]) is not None])
    lowest = float(cosines(found, reference).min())
    if not lowest >= _SAME_VECTOR:
        raise ContenderFailed(f"a vector has a cosine of {lowest:.3f} with that of {REFERENCE}")


class PeakMemory:
    """The most memory that another process takes, read while the block runs.

    `wait4` would count what its parent had taken before.

    Args:
        pid: Of the process.
    """

    def __init__(self, pid: int) -> None:
        self.megabytes = 0.0
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            with suppress(OSError):
                lines = self._status.read_text().splitlines()
                peaks = [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")]
                self.megabytes = max([self.megabytes, *peaks])

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
