"""An interrupt: vectors that exist are sent, everything else is left, and the same command resumes exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from es_sbert.encoder.encoder import Encoder
from es_sbert.ingest.load_threads import LoadControl
from es_sbert.ingest.progress import ProgressMeter, ProgressSnapshot
from es_sbert.runtime.batching import ModelInputs
from es_sbert.runtime.onnx_session import OnnxCpuSession
from es_sbert.vectors import Vectors
from tests.engine.ingest_support import Loads, same_vectors, sentences, vector_of, write_jsonl
from tests.faulty_proxy import FaultyProxy, answer
from tests.tiny import WORDS, write_tiny_bert

COUNT = 60
FIELDS = ("one={text}", "two={long}")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoder]:
    """An encoder that runs one small batch at a time."""
    folder = write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny")
    with Encoder(str(folder), device="cpu", precision="fp32", threads=1, budget=64) as encoder:
        yield encoder


@pytest.fixture
def loads(es9_url: str, fresh_index: Callable[[str], str], small: Encoder, tmp_path: Path) -> Loads:
    return Loads(es9_url, fresh_index(es9_url), small, tmp_path)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Callable[[LoadControl, int], list[bool]]:
    """Interrupts a load inside its batch of this number; whether it was interrupted already, of each batch begun."""

    def interrupting(control: LoadControl, number: int) -> list[bool]:
        begun: list[bool] = []
        run_session = OnnxCpuSession.run

        def run(session: OnnxCpuSession, feed: ModelInputs, into: Vectors) -> None:
            begun.append(control.interrupted)
            if len(begun) == number:
                control.interrupt()
            run_session(session, feed, into)

        monkeypatch.setattr(OnnxCpuSession, "run", run)
        return begun

    return interrupting


def documents() -> list[dict[str, Any]]:
    """With two texts, no two alike: those of one are longer, so that their batches come first."""
    words = itertools.product(WORDS[:8], repeat=2)
    texts = [" ".join(pair) for pair in itertools.islice(words, COUNT)]
    return [{"id": f"d{n}", "text": text, "long": f"{text} the cat sleeps on the mat"} for n, text in enumerate(texts)]


def test_interrupt_starts_no_batch_and_sends_no_partial_document(
    loads: Loads, batches: Callable[[LoadControl, int], list[bool]]
) -> None:
    control, docs = LoadControl(), loads.write(documents())
    options: dict[str, Any] = {"id_field": "id", "vectors": FIELDS, "batch_window": 40}
    # All long texts of the first window, and some of the short ones: some documents have one vector of two.
    begun = batches(control, 7)
    summary = loads.load(docs, control=control, **options)
    assert begun == [False] * 7
    assert (summary.interrupted, summary.exit_code, summary.dead) == (True, 130, 0)
    assert "the same command resumes" in str(summary.stopped)
    assert 0 < summary.indexed < 40
    assert summary.left == summary.read - summary.indexed > 0
    stored = loads.contents()
    assert len(stored) == summary.indexed
    assert all("one" in source and "two" in source for source in stored.values())
    again = loads.load(docs, **options)
    assert again.resumed
    assert (again.unchanged, again.indexed, again.left) == (summary.indexed, COUNT - summary.indexed, 0)
    stored = loads.contents()
    for field, name in (("one", "text"), ("two", "long")):
        vectors = loads.encoder.encode([document[name] for document in documents()], "document")
        for document, vector in zip(documents(), vectors, strict=True):
            assert same_vectors(vector_of(stored[document["id"]], field), vector)


@pytest.mark.parametrize("paths", ["/_bulk", "/_mget"])
def test_interrupt_ends_retry_backoff(loads: Loads, paths: str) -> None:
    control, options = LoadControl(), {"id_field": "id", "batch_window": 8}
    loads.load(write_jsonl(loads.folder / "one.jsonl", sentences(1)), **options)
    docs = loads.write([document | {"new": True} for document in sentences(COUNT)])

    class Impatient(ProgressMeter):
        def show(self, snapshot: ProgressSnapshot) -> None:
            if snapshot.waiting is not None:
                control.interrupt()

    with FaultyProxy(loads.url, always=answer(503), paths=paths) as proxy:
        how = {"control": control, "meter": Impatient(), "retry_seconds": 3600}
        summary = loads.load(docs, url=proxy.url, **how, **options)
    # It ends as interrupted: the budget of an hour was not waited for, nor is the engine called lost.
    assert str(summary.stopped).startswith("interrupted; the same command resumes")
    assert (summary.exit_code, summary.indexed, summary.dead) == (130, 0, 0)
    assert summary.left == summary.read > 0
    again = loads.load(docs, **options)
    assert (again.indexed, again.updated, again.left) == (COUNT - 1, 1, 0)
