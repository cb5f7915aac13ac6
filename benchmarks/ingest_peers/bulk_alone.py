"""The load of `es-sbert ingest` with vectors that are ready, in its own process.

    python -m benchmarks.ingest_peers.bulk_alone URL INDEX FILE.jsonl VECTORS.npy INDEX_TYPE

Prints the summary of the load as JSON. The encoder looks up the vector of each text, without tokenizing: what is left
is reading, bulk requests and the engine's own work on the same vectors.
"""

from __future__ import annotations

import gc
import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.ready_vectors import ReadyEncoder
from es_sbert.config import EngineSettings
from es_sbert.engines.connect import connect
from es_sbert.ingest.ingest_settings import IngestSettings
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load, resolve_sources
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter
from es_sbert.vectors import Vectors


def load_ready_vectors(url: str, index: str, file: Path, vectors: Vectors, index_type: str) -> LoadReport:
    """Load the documents of a file, whose vectors are in the same order."""
    with file.open(encoding="utf-8") as lines:
        encoder = ReadyEncoder([json.loads(line)["text"] for line in lines], vectors)
    settings = IngestSettings(index=index, files=(str(file),), id_field="id", index_type=index_type)
    with closing(connect(EngineSettings(url=url))) as engine:
        plan = plan_load(engine, settings, resolve_sources(settings))
        return run_load(engine, encoder, plan, LoadControl(), ProgressMeter(), show_summary=False)  # type: ignore[arg-type]


def main() -> int:
    """Load, and print the summary."""
    url, index, file, vectors, index_type = sys.argv[1:]
    gc.set_threshold(50_000)  # as the command line does
    report = load_ready_vectors(url, index, Path(file), np.load(vectors), index_type)
    print(report.model_dump_json())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
