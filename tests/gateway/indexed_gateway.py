"""An index behind a gateway, as tests of Kibana's requests need it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson

from es_sbert.config import EngineSettings
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.rest import Json
from es_sbert.gateway.app import Gateway
from es_sbert.gateway.settings import (
    GatewaySettings,
    SearchLogSettings,
    SemanticSettings,
)
from es_sbert.index.mapping import index_body
from tests.engine.ingest_support import open_engine
from tests.engine.vectors import field_of
from tests.gateway.async_search import async_search_before
from tests.gateway.serving import served

QUERY = "how do plants make energy"
K = 3
TITLES = {
    "nature": [
        "Photosynthesis turns sunlight into sugar inside green leaves.",
        "Chlorophyll absorbs light in leaves.",
        "Trees store the sun's power as carbohydrates.",
        "Wolves hunt deer in packs.",
        "Bees carry pollen to flowers.",
    ],
    "music": [
        "A concert pianist practises every day.",
        "The piano was tuned for the evening.",
        "Violins are made of maple.",
    ],
    "work": ["The bank raised its interest rates.", "She repaired the engine of a lorry.", "Trains leave every hour."],
}


@dataclass(frozen=True)
class IndexedGateway:
    """An index behind a gateway.

    Attributes:
        engine_type: Of the engine.
        engine, gateway: Addresses.
        index: Documents with vectors.
        objects: An index like the one in which Kibana keeps saved objects.
        log: The file of the gateway's search log.
        nearest: Ids in the order of their cosine to the query.
        tags: Id → tag.
    """

    engine_type: EngineType
    engine: str
    gateway: str
    index: str
    objects: str
    log: Path
    nearest: list[str]
    tags: dict[str, str]


@contextmanager
def indexed_gateway(engine_url: str, saved: Json) -> Iterator[IndexedGateway]:
    """Made, filled and served until the block ends.

    Args:
        saved: The one saved object that is there.
    """
    unique = uuid.uuid4().hex[:12]
    index, objects = f"test-{unique}", f"test-kibana-{unique}"
    with open_engine(engine_url) as engine, Encoder(threads=1) as encoder:
        documents = [(tag, title) for tag, titles in TITLES.items() for title in titles]
        vectors = encoder.encode([title for _, title in documents], "document")  # (documents, dimensions)
        cosines = vectors @ encoder.encode([QUERY], "query")[0]  # (documents,)
        meta = field_of(encoder.info, "{title}")
        body = index_body(engine.info.engine_type, "embedding", meta, shards=1, replicas=0)
        body["mappings"]["properties"] |= {
            "title": {"type": "text"},
            "tag": {"type": "keyword"},
            "at": {"type": "date"},
        }
        engine.create_index(index, body)
        lines = b"".join(
            orjson.dumps({"index": {"_id": str(number)}})
            + b"\n"
            + orjson.dumps({"title": title, "tag": tag, "at": f"2026-01-{number + 1:02}", "embedding": vector.tolist()})
            + b"\n"
            for number, ((tag, title), vector) in enumerate(zip(documents, vectors, strict=True))
        )
        assert all(result.ok for result in engine.bulk(index, lines))
        engine.create_index(
            objects,
            {
                "mappings": {
                    "properties": {
                        "type": {"type": "keyword"},
                        "dashboard": {"properties": {"title": {"type": "text"}}},
                    }
                }
            },
        )
        engine.bulk(objects, b'{"index":{"_id":"dashboard:semantic"}}\n' + orjson.dumps(saved) + b"\n")
        engine.refresh(index)
        engine.refresh(objects)
        with served(async_search_before(engine_url)) as front, TemporaryDirectory() as folder:
            file = Path(folder) / "searches.jsonl"
            log = SearchLogSettings(file, False, "here")
            # Below the k-th document, so that it is the same whether the nearest are kept or excluded.
            near = np.sort(cosines)[::-1]  # (documents,)
            meaning = SemanticSettings(k=K, min_cosine=float(near[K - 1] + near[K]) / 2)
            settings = GatewaySettings(upstream=EngineSettings(url=front), semantic=meaning, search_log=log)
            with served(Gateway(settings)) as gateway:
                yield IndexedGateway(
                    engine.info.engine_type,
                    front,
                    gateway,
                    index,
                    objects,
                    file,
                    [str(number) for number in np.argsort(-cosines)],
                    {str(number): tag for number, (tag, _) in enumerate(documents)},
                )
        engine.delete_index(index)
        engine.delete_index(objects)
