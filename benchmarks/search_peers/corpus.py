"""What is searched and what is searched for: documents with vectors that are kept in a file, queries, exact answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.common import read_jsonl, read_tsv
from benchmarks.encode_peers.texts import TextSet, distinct
from es_sbert.encoder.encoder import Encoder
from es_sbert.vectors import Vectors

# The queries: sentences of the test set first.
_SENTENCES = ("stsb-en-test", "stsb-en-dev", "stsb-en-train")
_TIES = 1e-6  # documents whose cosines differ by less may be in either order
_BLOCK = 4_096  # documents that are embedded at once


@dataclass(frozen=True)
class Corpus:
    """Documents and their vectors.

    Attributes:
        ids, texts: Of each document, in the order of the file.
        vectors: *Shape:* ``(documents, dimensions)`` float32, of length 1.
    """

    ids: list[str]
    texts: list[str]
    vectors: Vectors

    def exact_neighbors(self, queries: Vectors, k: int) -> list[set[str]]:
        """The ids of the k nearest documents of each query, and of those as near as the last of them.

        Args:
            queries: *Shape:* ``(queries, dimensions)``.
        """
        found = []
        for query in queries:
            cosines = self.vectors @ (query / np.linalg.norm(query))
            least = np.partition(cosines, -k)[-k] - _TIES
            found.append({self.ids[row] for row in np.flatnonzero(cosines >= least)})
        return found


def recall(found: Sequence[Sequence[str]], exact: Sequence[set[str]], k: int) -> float:
    """The mean share of the k nearest documents among the first k hits."""
    shares = [len(near & set(hits[:k])) / k for hits, near in zip(found, exact, strict=True)]
    return sum(shares) / len(shares)


def read_corpus(data: Path, documents: int, encoder: Encoder, cache: Path, report: Callable[[str], None]) -> Corpus:
    """The first documents, with vectors that are computed once for each model and variant.

    Args:
        cache: Folder of the vectors.
    """
    rows = list(islice(read_jsonl(data / "ingest/short-docs.jsonl.gz"), documents))
    ids, texts = [str(row["id"]) for row in rows], [str(row["text"]) for row in rows]
    file = cache / f"short-docs-{len(texts)}-{encoder.info.fingerprint[:16]}-{encoder.info.variant}.npy"
    if not file.exists():
        report(f"Embedding {len(texts):,} documents …")
        cache.mkdir(parents=True, exist_ok=True)
        blocks = [texts[start : start + _BLOCK] for start in range(0, len(texts), _BLOCK)]
        vectors = np.concatenate([encoder.encode(block, "document") for block in blocks])
        unfinished = file.with_suffix(".unfinished.npy")
        np.save(unfinished, vectors)
        unfinished.rename(file)
    return Corpus(ids, texts, np.load(file))


def query_set(data: Path, documents: Iterable[str]) -> TextSet:
    """Distinct sentences that are not documents."""
    rows = (row for name in _SENTENCES for row in read_tsv(data / "sts" / f"{name}.tsv.gz"))
    sentences = distinct(row[side] for row in rows for side in ("sentence1", "sentence2"))
    known = {_letters(text) for text in documents}
    return TextSet("queries", tuple(text for text in sentences if _letters(text) not in known), 0.0)


def _letters(text: str) -> str:
    return "".join(sign for sign in text.lower() if sign.isalnum())
