"""The documents that are read back at the end of a load are a random sample of all that were written."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np

from es_sbert.engines.index_state import IndexState
from es_sbert.ingest.bulk_writer import SAMPLE_DOCUMENTS, DocumentAction, ReadBackCheck
from es_sbert.ingest.ledger import DocumentOutcome
from es_sbert.ingest.read_documents import Document
from es_sbert.ingest.sources.document_source import Origin

DOCUMENTS, REQUEST, LOADS = 400, 50, 500
TOO_LARGE = 7  # number of a document that is not read back


def action(number: int) -> DocumentAction:
    body = b"x" * (100_000 if number == TOO_LARGE else 100)
    document = Document(Origin("f", number), str(number), ("text",), b"{}", "0")
    return DocumentAction(document, body, DocumentOutcome.INDEXED)


def sampled(seed: int, actions: list[DocumentAction]) -> list[int]:
    index, plan = SimpleNamespace(state=IndexState("docs", {}, {})), SimpleNamespace(sources=())
    check = ReadBackCheck(SimpleNamespace(targets=(), index=index, plan=plan))  # type: ignore[arg-type]
    check._chance = np.random.default_rng(seed)
    for start in range(0, len(actions), REQUEST):
        check._add_to_sample([(one, (0, 1)) for one in actions[start : start + REQUEST]])
    return [int(sent.document.id) for sent in check._sample]


def test_every_document_has_the_same_chance() -> None:
    actions = [action(number) for number in range(DOCUMENTS)]
    samples = [sampled(seed, actions) for seed in range(LOADS)]
    assert all(len(set(sample)) == SAMPLE_DOCUMENTS for sample in samples)
    times = Counter(number for sample in samples for number in sample)
    assert times[TOO_LARGE] == 0
    expected = LOADS * SAMPLE_DOCUMENTS / (DOCUMENTS - 1)  # 40.1, standard deviation 6.1
    assert all(abs(times[number] - expected) < 27 for number in range(DOCUMENTS) if number != TOO_LARGE)
    # By place in the load: a quarter has 8 of 32 documents.
    for first in range(0, DOCUMENTS, DOCUMENTS // 4):
        quarter = sum(times[number] for number in range(first, first + DOCUMENTS // 4))
        assert abs(quarter / LOADS - SAMPLE_DOCUMENTS / 4) < 0.4


def test_short_load_is_sampled_whole() -> None:
    actions = [action(number) for number in range(20, 20 + SAMPLE_DOCUMENTS - 3)]
    assert sampled(0, actions) == [int(one.document.id) for one in actions]
