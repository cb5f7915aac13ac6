"""Small indices of texts and their vectors by a tiny model, for the tests of search, with brute force beside them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import orjson

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.connect import connect
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import bulk_vector_value, chunk_values
from es_sbert.index.mapping import ChunkRules
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.vectors import Vectors
from tests.engine.vectors import cosines
from tests.tiny import WORDS

COUNT = 120  # documents of an index


def text_of(number: int) -> str:
    """A sentence of the tiny vocabulary, no two alike."""
    return " ".join(WORDS[number // 9**place % 9] for place in range(4))


@dataclass(frozen=True)
class SampleIndices:
    """Three indices with the same documents: text, group (number mod 10) and number.

    Attributes:
        one: Vectors of the texts in `v`; graphs.
        two: As `one`, quantized; ids begin with `two-`.
        split: Two passages a document in `v`, the halves of its text; the rest of a document has none.
        foreign: Vectors of another model.
        v: *Shape:* ``(COUNT, dimensions)``.
        halves: *Shape:* ``(COUNT, 2, dimensions)``.
    """

    engine: Engine
    encoder: Encoder
    one: str
    two: str
    split: str
    foreign: str
    v: Vectors
    halves: Vectors

    @property
    def opensearch(self) -> bool:
        return self.engine.info.engine_type is EngineType.OPENSEARCH

    def query(self, text: str) -> Vectors:
        """*Shape:* ``(dimensions,)``."""
        vector: Vectors = self.encoder.encode([text], "query")[0]
        return vector

    def of_split(self, query: Vectors) -> Vectors:
        """Cosine of the nearer half of each document. *Shape:* ``(COUNT,)``."""
        width = self.halves.shape[-1]
        nearest: Vectors = cosines(query, self.halves.reshape(-1, width)).reshape(COUNT, 2).max(axis=1)
        return nearest


def half(text: str, which: int) -> tuple[int, int]:
    """First character of a half of a text, and the one behind its last."""
    middle = text.index(" ", len(text) // 2)
    return (0, middle) if which == 0 else (middle + 1, len(text))


@contextmanager
def samples(url: str, encoder: Encoder) -> Iterator[SampleIndices]:
    """The indices, removed again at the end."""
    texts = [text_of(number) for number in range(COUNT)]
    v = encoder.encode(texts, "document")
    parts = [text[slice(*half(text, which))] for text in texts for which in (0, 1)]
    halves = encoder.encode(parts, "document").reshape(COUNT, 2, -1)
    stem = f"test-{uuid.uuid4().hex[:12]}"
    names = {name: f"{stem}-{name}" for name in ("one", "two", "split", "foreign")}
    with closing(connect(EngineSettings(url=url))) as engine:
        try:
            for name, index in names.items():
                request = FieldRequest(
                    name="v",
                    fingerprint="0" * 32 if name == "foreign" else encoder.info.fingerprint,
                    model_name="other" if name == "foreign" else encoder.info.model,
                    dimensions=encoder.info.dimensions,
                    index_type="int8_hnsw" if name == "two" else "hnsw",
                    text="{text}",
                    passages=ChunkRules(tokens=8, overlap=0) if name == "split" else None,
                )
                ensure_vector_field(engine, index, request, shards=2, replicas=0)
            for prefix, name in (("", "one"), ("two-", "two"), ("", "split")):
                lines = []
                for number, text in enumerate(texts):
                    document = {"text": text, "group": number % 10, "number": number}
                    if name == "split":
                        spans = [half(text, 0), half(text, 1)]
                        document["v"] = chunk_values(engine.info, spans, halves[number])
                    else:
                        document["v"] = bulk_vector_value(engine.info, v[number])
                    lines += [
                        orjson.dumps({"index": {"_id": f"{prefix}{number}"}}),
                        orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY),
                    ]
                bare = {"text": "nothing", "group": 1, "number": COUNT}
                lines += [orjson.dumps({"index": {"_id": f"{prefix}bare"}}), orjson.dumps(bare), b""]
                assert all(item.ok for item in engine.bulk(names[name], b"\n".join(lines)))
                engine.refresh(names[name])
            yield SampleIndices(engine, encoder, **names, v=v, halves=halves)
        finally:
            for name in names.values():
                engine.delete_index(name)


def best(values: Vectors, k: int, keep: Sequence[int] | None = None) -> list[float]:
    """The k largest values, of these places alone where given."""
    kept = values if keep is None else values[list(keep)]
    return sorted((float(value) for value in kept), reverse=True)[:k]
