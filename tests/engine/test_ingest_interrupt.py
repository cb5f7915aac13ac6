"""An interrupt: vectors that exist are sent, everything else is left, and the same command resumes exactly."""

from __future__ import annotations

import itertools
import threading
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
from tests.engine.ingest_support import Interposed, contents, load, same_vectors, sentences, vector_of, write_jsonl
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
    es9_url: str,
    fresh_index: Callable[[str], str],
    small: Encoder,
    tmp_path: Path,
    batches: Callable[[LoadControl, int], list[bool]],
) -> None:
    index, control = fresh_index(es9_url), LoadControl()
    docs = write_jsonl(tmp_path / "docs.jsonl", documents())
    options = {"dead": tmp_path / "dead", "id_field": "id", "vectors": FIELDS, "batch_window": 40}
    # All long texts of the first window, and some of the short ones: some documents have one vector of two.
    begun = batches(control, 7)
    summary = load(es9_url, small, index, docs, control=control, **options)
    assert begun == [False] * 7
    assert (summary.interrupted, summary.exit_code, summary.dead) == (True, 130, 0)
    assert "the same command resumes" in str(summary.stopped)
    assert 0 < summary.indexed < 40
    assert summary.left == summary.read - summary.indexed > 0
    stored = contents(es9_url, index)
    assert len(stored) == summary.indexed
    assert all("one" in source and "two" in source for source in stored.values())
    again = load(es9_url, small, index, docs, **options)
    assert again.resumed
    assert (again.unchanged, again.indexed, again.left) == (summary.indexed, COUNT - summary.indexed, 0)
    stored = contents(es9_url, index)
    for field, name in (("one", "text"), ("two", "long")):
        vectors = small.encode([document[name] for document in documents()], "document")
        for document, vector in zip(documents(), vectors, strict=True):
            assert same_vectors(vector_of(stored[document["id"]], field), vector)


def test_interrupt_while_embedding_in_place_leaves_the_rest(
    es9_url: str,
    fresh_index: Callable[[str], str],
    small: Encoder,
    tmp_path: Path,
    batches: Callable[[LoadControl, int], list[bool]],
) -> None:
    index, control, dead = fresh_index(es9_url), LoadControl(), tmp_path / "dead"
    docs = write_jsonl(tmp_path / "docs.jsonl", documents())
    load(es9_url, small, index, docs, dead=dead, id_field="id", vectors=("one={text}",))
    batches(control, 3)
    summary = load(es9_url, small, index, dead=dead, vectors=FIELDS, control=control)
    assert (summary.exit_code, summary.dead) == (130, 0)
    assert 0 < summary.indexed < COUNT
    assert summary.left == COUNT - summary.indexed
    again = load(es9_url, small, index, dead=dead, vectors=FIELDS)
    assert (again.unchanged, again.indexed, again.left) == (summary.indexed, COUNT - summary.indexed, 0)


def test_interrupt_skips_queued_windows(
    es9_url: str, fresh_index: Callable[[str], str], small: Encoder, tmp_path: Path
) -> None:
    index, control = fresh_index(es9_url), LoadControl()
    docs = write_jsonl(tmp_path / "docs.jsonl", documents())
    all_read, late = threading.Event(), []

    class Reading(ProgressMeter):
        """Whoever reads the counts sees when the rest of the source waits behind the first window."""

        def show(self, snapshot: ProgressSnapshot) -> None:
            if snapshot.read == COUNT:
                all_read.set()

    def interrupt(window: int) -> None:
        if not window:
            assert all_read.wait(180)
            control.interrupt()

    encoder = Interposed(small, interrupt)
    tokenize = small.tokenize
    encoder.tokenize = lambda *given: (late.append(control.interrupted), tokenize(*given))[1]  # type: ignore[assignment]
    # Each of them is looked up first: the index holds something.
    another = write_jsonl(tmp_path / "another.jsonl", [{"id": "another", "text": "a cat"}])
    load(es9_url, small, index, another, dead=tmp_path / "dead", id_field="id", vectors=("one={text}",))
    summary = load(
        es9_url,
        encoder,
        index,
        docs,
        dead=tmp_path / "dead",
        id_field="id",
        vectors=("one={text}",),
        batch_window=1,
        meter=Reading(),
        control=control,
    )
    assert (summary.read, summary.indexed, summary.left) == (COUNT, 0, COUNT)
    assert not any(late)


@pytest.mark.parametrize("paths", ["/_bulk", "/_mget"])
def test_interrupt_ends_retry_backoff(
    es9_url: str, fresh_index: Callable[[str], str], small: Encoder, tmp_path: Path, paths: str
) -> None:
    index, control = fresh_index(es9_url), LoadControl()
    options = {"dead": tmp_path / "dead", "id_field": "id", "batch_window": 8}
    load(es9_url, small, index, write_jsonl(tmp_path / "one.jsonl", sentences(1)), **options)
    docs = write_jsonl(tmp_path / "docs.jsonl", [document | {"new": True} for document in sentences(COUNT)])

    class Impatient(ProgressMeter):
        def show(self, snapshot: ProgressSnapshot) -> None:
            if snapshot.waiting is not None:
                control.interrupt()

    with FaultyProxy(es9_url, always=answer(503), paths=paths) as proxy:
        summary = load(proxy.url, small, index, docs, control=control, meter=Impatient(), retry_seconds=3600, **options)
    # It ends as interrupted: the budget of an hour was not waited for, nor is the engine called lost.
    assert str(summary.stopped).startswith("interrupted; the same command resumes")
    assert (summary.exit_code, summary.indexed, summary.dead) == (130, 0, 0)
    assert summary.left == summary.read > 0
    again = load(es9_url, small, index, docs, **options)
    assert (again.indexed, again.updated, again.left) == (COUNT - 1, 1, 0)
