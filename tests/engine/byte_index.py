"""An index with byte vectors, as versions of es-sbert before 0.1.0 created it with `--element-type byte`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import orjson

from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.index.document_vectors import text_hash
from es_sbert.index.mapping import index_body
from tests.engine.vectors import field_of


def create_byte_index(engine: Engine, index: str, encoder: Encoder, texts: Sequence[str]) -> None:
    """Create the index with documents 0x, 1x, …, each with a text and its vector, scaled to 127 and rounded."""
    meta = field_of(encoder.info)
    body = index_body(engine.info.engine_type, "embedding", meta, shards=1, replicas=0)
    parameter = "element_type" if engine.info.engine_type is EngineType.ELASTICSEARCH else "data_type"
    property = body["mappings"]["properties"]["embedding"]
    property[parameter] = "byte"
    property.pop("compression_level", None)  # only of float32
    body["mappings"]["_meta"]["es_sbert"]["fields"]["embedding"]["element_type"] = "byte"
    engine.create_index(index, body)
    lines = []
    for number, (text, vector) in enumerate(zip(texts, encoder.encode(texts, "document"), strict=True)):
        rounded = np.rint(127 * vector / np.abs(vector).max()).astype(int).tolist()
        made = {"fingerprint": meta.fingerprint, "text_hash": text_hash(text)}
        lines += [{"index": {"_id": f"{number}x"}}, {"text": text, "embedding": rounded, "embedding_meta": made}]
    results = engine.bulk(index, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert [result.reason for result in results if not result.ok] == []
    engine.refresh(index)
