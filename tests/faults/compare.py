"""The final index against the expected one, document by document."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from es_sbert.config import DEFAULT_VECTOR_FIELD
from es_sbert.engines.engine import Engine
from es_sbert.engines.index_scan import scan_index
from tests.engine.ingest_support import letters, open_engine, same_vectors, vector_of
from tests.engine.sources import read_sources
from tests.faults.bench import Bench

_PAGE = 500


@dataclass(frozen=True)
class End:
    """What became of a source.

    Attributes:
        documents: In the index.
        doubled: Documents in the index that should not be there, or twice, and letters that were written twice.
        lost: Documents that the index lacks or holds otherwise than the source has them, vector included, and
            letters that are missing.
        stale: Documents in the index whose vector is not the one of the text that they have now.
        settings: What the load has left in the index's settings.
    """

    documents: int
    doubled: int
    lost: int
    stale: int
    settings: str = ""

    @property
    def good(self) -> bool:
        return not (self.doubled or self.lost or self.stale or self.settings)


def compare(bench: Bench) -> End:
    """Compare index and dead letters with what the source must lead to."""
    with open_engine(bench.url) as engine:
        engine.refresh(bench.index)
        ids = [
            str(hit["_id"])
            for page in scan_index(engine, bench.index, query={"match_all": {}}, source_includes=[])
            for hit in page.hits
        ]
        seen = Counter(ids)
        wanted = bench.corpus.wanted
        # Whatever is not wanted, and every further copy of what is.
        doubled = sum(count - (document_id in wanted) for document_id, count in seen.items())
        ends = [_lost_and_stale(engine, bench, part) for part in _parts(sorted({*wanted, *seen}))]
        lost, stale = (sum(end[number] for end in ends) for number in range(2))
        index = engine.get_index(bench.index)
        assert index is not None
        changed = index.settings.get("index.refresh_interval") != "5s"
        missing, repeated = _letters(bench)
        return End(len(ids), doubled + repeated, lost + missing, stale, str(index.settings) if changed else "")


def _parts(ids: list[str]) -> list[list[str]]:
    return [ids[start : start + _PAGE] for start in range(0, len(ids), _PAGE)]


def _lost_and_stale(engine: Engine, bench: Bench, ids: list[str]) -> tuple[int, int]:
    stored = read_sources(engine, bench.index, ids, source_includes=["*"])
    wanted = {
        document_id: bench.corpus.wanted[document_id] for document_id in ids if document_id in bench.corpus.wanted
    }
    texts = sorted({document["text"] for document in (*stored.values(), *wanted.values())})
    vectors = dict(zip(texts, bench.encoder.encode(texts, "document"), strict=True))
    lost = sum(
        not _same(document, stored.get(document["id"], {}), vectors[document["text"]]) for document in wanted.values()
    )
    stale = sum(
        not same_vectors(vector_of(found), vectors[found["text"]])
        for found in stored.values()
        if found.get(DEFAULT_VECTOR_FIELD) is not None
    )
    return lost, stale


def _same(document: dict[str, Any], found: dict[str, Any], vector: Any) -> bool:
    if set(found) != {*document, DEFAULT_VECTOR_FIELD, f"{DEFAULT_VECTOR_FIELD}_meta"}:
        return False
    return all(found[name] == value for name, value in document.items()) and same_vectors(vector_of(found), vector)


def _letters(bench: Bench) -> tuple[int, int]:
    """Letters that are missing, and letters too many."""
    found = letters(bench.letters)
    documents = Counter(letter["id"] for letter in found if letter["id"] is not None)
    lines = Counter((letter["source"], letter["line"]) for letter in found if letter["id"] is None)
    missing = len(bench.corpus.dead - documents.keys()) + max(0, bench.corpus.broken - len(lines))
    wrong = len(documents.keys() - bench.corpus.dead) + max(0, len(lines) - bench.corpus.broken)
    repeated = sum(count - 1 for count in (*documents.values(), *lines.values()))
    return missing, wrong + repeated
