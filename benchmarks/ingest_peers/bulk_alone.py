"""The load of `es-sbert ingest` with vectors that are ready, in its own process.

    python -m benchmarks.ingest_peers.bulk_alone URL INDEX FILE.jsonl VECTORS.npy INDEX_TYPE

Prints the summary of the load as JSON. The encoder looks up the vector of each text, without tokenizing: what is left
is reading, bulk requests and the engine's own work on the same vectors.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from es_sbert.cli.main import collect_garbage_less_often
from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import EncoderInfo
from es_sbert.engines.connect import connect
from es_sbert.ingest.ingest_settings import IngestSettings, resolve_sources
from es_sbert.ingest.load import run_load
from es_sbert.ingest.load_plan import plan_load
from es_sbert.ingest.load_report import LoadReport
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import SilentMeter
from es_sbert.runtime.chunker import Chunker
from es_sbert.runtime.tokenizer import TokenizedTexts
from es_sbert.vectors import Vectors

_TOKENS, _MAX_TOKENS = 16, 256  # of a text, as it says of itself


class ReadyEncoder:
    """In place of `Encoder`: the vector of each text is ready.

    Args:
        texts: All different.
        vectors: *Shape:* ``(texts, dimensions)``.
    """

    window = 2048  # as `Encoder` on a CPU

    def __init__(self, texts: Sequence[str], vectors: Vectors) -> None:
        self._vectors = vectors
        self._rows = {text: np.array([number], np.int64) for number, text in enumerate(texts)}
        self.info = EncoderInfo("ready", "0" * 16, vectors.shape[1], _MAX_TOKENS, "none", "fp32", "none", "cpu", 1)

    def input_limit(self, kind: str) -> int:
        """Tokens that it reads."""
        return _MAX_TOKENS

    def make_chunker(self, tokens: int, overlap: int, kind: str) -> Chunker:
        """Not called: the index has no passages."""
        raise NotImplementedError

    def tokenize(self, texts: Sequence[str], kind: str) -> TokenizedTexts:
        """The number of each text, as its only token."""
        return TokenizedTexts([self._rows[text] for text in texts], np.full(len(texts), _TOKENS), _MAX_TOKENS)

    def embed_until(
        self, texts: TokenizedTexts, stop: threading.Event, progress: Callable[[float], None]
    ) -> tuple[Vectors, NDArray[np.bool_]]:
        """The vectors of these texts."""
        progress(1.0)
        numbers = np.array([row[0] for row in texts.ids], np.int64)  # (texts,)
        return self._vectors[numbers], np.ones(len(texts), dtype=np.bool_)


def load_ready_vectors(url: str, index: str, file: Path, vectors: Vectors, index_type: str) -> LoadReport:
    """Load the documents of a file, whose vectors are in the same order."""
    with file.open(encoding="utf-8") as lines:
        encoder = ReadyEncoder([json.loads(line)["text"] for line in lines], vectors)
    settings = IngestSettings(index=index, files=(str(file),), id_field="id", index_type=index_type)
    with closing(connect(EngineSettings(url=url))) as engine:
        plan = plan_load(engine, settings, resolve_sources(settings))
        return run_load(engine, encoder, plan, LoadControl(), SilentMeter(), show_summary=False)  # type: ignore[arg-type]


def main() -> int:
    """Load, and print the summary."""
    url, index, file, vectors, index_type = sys.argv[1:]
    collect_garbage_less_often()
    report = load_ready_vectors(url, index, Path(file), np.load(vectors), index_type)
    print(report.model_dump_json())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
