"""Documents a second on a Ray cluster: this machine's cores with a real model, and more workers than it has cores.

    python -m benchmarks.ray_scaling --data DATA --url http://localhost:9200 [--count 20000] [--rate 1000]

DATA holds `ingest/short-docs.jsonl.gz`. First the default model, each worker with one core, and the same load in one
process. Then simulated workers: each waits as an accelerator of `--rate` texts a second would make it wait and gives
made-up vectors, so that what is left to measure is the pipeline itself: reading, hashing, tokenizing, the
coordinator, bulk requests, and the engine, all of them on this machine's cores. Index type flat; rates are of the
time after the first document was in, starting Ray and its workers left out.
"""

from __future__ import annotations

import itertools
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import ray
from numpy.typing import NDArray

from benchmarks.acceptance import delete
from benchmarks.common import machine, read_jsonl, table
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.config import DEFAULT_MODEL, EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressSnapshot
from es_sbert.ingest.ray_actors import PartitionLoader
from es_sbert.ingest.ray_cluster import RayWorkerPool
from es_sbert.ingest.ray_runner import RayRunner
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors

PARTS = 32  # of the source, so that the last one is short compared with the whole


class Accelerator:
    """An encoder that takes its time elsewhere.

    Args:
        encoder: The real one, for its tokenizer and what it says of itself.
        rate: Texts a second.
    """

    def __init__(self, encoder: Encoder, rate: float) -> None:
        self.info = encoder.info
        self.tokenize = encoder.tokenize
        self.make_chunker = encoder.make_chunker
        self.input_limit = encoder.input_limit
        self.window = encoder.window
        self._rate = rate

    def embed_until(
        self, texts: TokenizedTexts, stop: threading.Event, progress: Callable[[float], None]
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """*Shapes:* ``(texts, dimensions)`` float32, of length one, and ``(texts,)`` bool, all True."""
        time.sleep(len(texts) / self._rate)
        vectors = np.random.default_rng(len(texts)).normal(size=(len(texts), self.info.dimensions))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        progress(1.0)
        return vectors.astype(np.float32), np.ones(len(texts), np.bool_)


class SimulatedLoader(PartitionLoader):
    """A worker with such an encoder; the device name contains its rate."""

    rate = 1000.0

    def _open(self) -> tuple[Engine, Any]:
        engine, encoder = super()._open()
        return engine, Accelerator(encoder, self.rate)


@dataclass
class Pace:
    """Meter that notes when the first documents were in."""

    first: ProgressSnapshot | None = None
    last: ProgressSnapshot | None = field(default=None)

    def show(self, snapshot: ProgressSnapshot) -> None:
        if snapshot.processed and self.first is None:
            self.first = snapshot
        self.last = snapshot

    def close(self) -> None: ...


def measured(url: str, source: Path, count: int, run: Callable[..., LoadReport]) -> tuple[float, float]:
    """Documents a second after the first were in, and seconds of the whole load.

    Args:
        run: Runs a load on an engine: takes the engine, the plan, a control and a meter.
    """
    index = f"benchmark-ray-{uuid.uuid4().hex[:8]}"
    pace = Pace()
    with closing(connect(EngineSettings(url=url))) as engine, tempfile.TemporaryDirectory() as folder:
        settings = IngestSettings(
            index=index, files=(str(source),), id_field="id", index_type="flat", dead_letters=Path(folder) / "dead"
        )
        begin = time.monotonic()
        summary = run(engine, plan_load(engine, settings, resolve_sources(settings)), LoadControl(), pace)
        seconds = time.monotonic() - begin
        if summary.indexed != count or engine.count(index) != count:
            raise click.ClickException(f"not all {count:,} documents are in: {summary.lines()}")
    delete(url, index)
    first = pace.first or ProgressSnapshot(0, 0, None, 0.0)
    return (count - first.processed) / (summary.seconds - first.seconds), seconds


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--url", required=True)
@click.option("--count", default=20_000, show_default=True)
@click.option("--rate", default=1000.0, show_default=True, help="Texts a second of a simulated worker.")
def main(data: Path, url: str, count: int, rate: float) -> None:
    click.echo(json.dumps(machine()), err=True)
    SimulatedLoader.rate = rate
    model = read_sentence_model(resolve_model(DEFAULT_MODEL), DEFAULT_MODEL)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "docs.jsonl"
        with source.open("w") as out:
            for document in itertools.islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), count):
                out.write(json.dumps(document) + "\n")
        for threads in (1, 2):
            with Encoder(threads=threads) as encoder:
                rate_now, seconds = measured(
                    url, source, count, lambda engine, *rest, encoder=encoder: run_load(engine, encoder, *rest)
                )
            rows.append((f"one process, {threads} threads", f"{rate_now:,.0f}", f"{seconds:,.0f}"))
        for workers, loader, name in (
            (1, PartitionLoader, "1 worker"),
            (2, PartitionLoader, "2 workers"),
            *((n, SimulatedLoader, f"{n} simulated workers of {rate:,.0f}/s") for n in (1, 2, 4, 8, 16)),
        ):
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            ray.data.DataContext.get_current().enable_progress_bars = False
            runner = RayRunner(
                DEFAULT_MODEL,
                model,
                EngineSettings(url=url),
                device="cpu",
                precision="auto",
                runtime="auto",
                workers=RayWorkerPool(workers, 1, 1, 0),
                part_bytes=source.stat().st_size // PARTS,
                loader=loader,
            )
            rate_now, seconds = measured(url, source, count, runner.run_load)
            ray.shutdown()
            rows.append((f"Ray, {name}", f"{rate_now:,.0f}", f"{seconds:,.0f}"))
            click.echo(str(rows[-1]), err=True)
    click.echo(table(["", "documents/s", "whole load, s"], rows))


if __name__ == "__main__":
    main()
