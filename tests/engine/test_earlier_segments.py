"""Which share of an index is stored in the present index type: by our notes, and by the engine's count of bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from es_sbert.engines.engine import Engine
from es_sbert.index.earlier_segments import IndexTypeShare, read_index_type_share
from es_sbert.index.index_type_change import change_index_type, store_in_index_type
from es_sbert.index.mapping import EARLIER_SEGMENTS, read_meta_entry
from es_sbert.index.vector_field import read_vector_field, require_index, save_min_cosine
from tests.engine.test_change_type import DIMENSIONS, create
from tests.engine.vectors import load, random_vectors

BBQ_BYTES = DIMENSIONS // 8 + 14


@pytest.fixture(params=["es9", "es8"])
def elastic(request: pytest.FixtureRequest, open_engine: Callable[[str], Engine]) -> Engine:
    return open_engine(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def elastic_index(elastic: Engine, fresh_index: Callable[[str], str]) -> str:
    return fresh_index(elastic.info.url)


def stored(engine: Engine, index: str) -> IndexTypeShare:
    return read_index_type_share(engine, require_index(engine, index), "embedding")


def add(engine: Engine, index: str, count: int, prefix: str) -> None:
    """Documents with vectors, none of them of an id that was there before."""
    lines = []
    for number, vector in enumerate(random_vectors(count, DIMENSIONS, seed=len(prefix))):
        lines.append(b'{"index":{"_id":"%s-%d"}}' % (prefix.encode(), number))
        lines.append(b'{"embedding":[%s]}' % ",".join(map(str, vector.tolist())).encode())
    assert all(result.ok for result in engine.bulk(index, b"\n".join(lines) + b"\n"))
    engine.refresh(index)


def bbq_vectors(engine: Engine, index: str) -> int | None:
    """Vectors that the engine has stored as bits; None where it does not count their bytes."""
    answer = engine._request("GET", f"/{index}/_stats/dense_vector")["_all"]["primaries"]["dense_vector"]
    if "off_heap" not in answer:
        return None
    vectors, rest = divmod(int(answer["off_heap"]["total_veb_size_bytes"]), BBQ_BYTES)
    assert rest == 0
    return vectors


def force_merge_by_hand(engine: Engine, index: str) -> None:
    engine._request("POST", f"/{index}/_forcemerge", {"max_num_segments": "1"})
    engine.refresh(index)


def test_share_is_that_of_the_documents_in_new_segments(elastic: Engine, elastic_index: str) -> None:
    create(elastic, elastic_index, "hnsw", shards=2)
    assert stored(elastic, elastic_index).is_whole  # an empty index
    add(elastic, elastic_index, 300, "a")
    assert stored(elastic, elastic_index).is_whole
    change_index_type(elastic, elastic_index, "embedding", "bbq_hnsw")
    assert stored(elastic, elastic_index).share == 0
    add(elastic, elastic_index, 100, "bb")
    assert stored(elastic, elastic_index).share == 0.25
    assert bbq_vectors(elastic, elastic_index) in (100, None)
    # What else changes `_meta` keeps the note.
    save_min_cosine(elastic, read_vector_field(elastic, elastic_index, "embedding"), 0.25)
    assert stored(elastic, elastic_index).share == 0.25
    # A deletion leaves fewer documents to be merged.
    elastic.bulk(elastic_index, b"".join(b'{"delete":{"_id":"a-%d"}}\n' % number for number in range(200)))
    elastic.refresh(elastic_index)
    assert stored(elastic, elastic_index).share == 0.5
    force_merge_by_hand(elastic, elastic_index)
    assert stored(elastic, elastic_index).is_whole


@pytest.mark.parametrize("before", ["flat", "int8_hnsw"])
def test_every_change_is_noted(elastic: Engine, elastic_index: str, before: str) -> None:
    create(elastic, elastic_index, before)
    add(elastic, elastic_index, 50, "a")
    for after in ("int4_hnsw", "bbq_hnsw"):
        change_index_type(elastic, elastic_index, "embedding", after)
        assert (stored(elastic, elastic_index).index_type, stored(elastic, elastic_index).share) == (after, 0)
        add(elastic, elastic_index, 50, after)
    assert stored(elastic, elastic_index).share == pytest.approx(1 / 3)


def test_change_by_another_program_leaves_the_share_unknown_until_a_merge(elastic: Engine, elastic_index: str) -> None:
    create(elastic, elastic_index, "hnsw")
    add(elastic, elastic_index, 50, "a")
    property = require_index(elastic, elastic_index).mappings["properties"]["embedding"]
    elastic.put_mapping(
        elastic_index, {"properties": {"embedding": property | {"index_options": {"type": "int8_hnsw"}}}}
    )
    assert stored(elastic, elastic_index).share is None
    # es-sbert writes the new type into `_meta` with the next change of that, and knows no more than before.
    save_min_cosine(elastic, read_vector_field(elastic, elastic_index, "embedding"), 0.25)
    assert stored(elastic, elastic_index).share is None
    assert "not known" in stored(elastic, elastic_index).describe()
    assert f"es-sbert index change-type {elastic_index} --index-type int8_hnsw --force-merge" in (
        stored(elastic, elastic_index).remedy
    )
    change_index_type(elastic, elastic_index, "embedding", "int8_hnsw")
    assert stored(elastic, elastic_index).share is None
    store_in_index_type(elastic, elastic_index, "embedding")
    assert stored(elastic, elastic_index).is_whole
    assert read_meta_entry(require_index(elastic, elastic_index).mappings, EARLIER_SEGMENTS) is None


def test_copy_of_a_changed_index_is_unknown(
    elastic: Engine, elastic_index: str, fresh_index: Callable[[str], str]
) -> None:
    create(elastic, elastic_index, "hnsw")
    add(elastic, elastic_index, 50, "a")
    change_index_type(elastic, elastic_index, "embedding", "int8_hnsw")
    elastic._request("PUT", f"/{elastic_index}/_settings", body={"index.blocks.write": True})
    clone = fresh_index(elastic.info.url)
    elastic._request("POST", f"/{elastic_index}/_clone/{clone}", {"wait_for_active_shards": "1"})
    assert (stored(elastic, clone).share, stored(elastic, elastic_index).share) == (None, 0)


def test_share_is_never_overstated_under_concurrent_writes(elastic: Engine, elastic_index: str) -> None:
    create(elastic, elastic_index, "hnsw", shards=2)
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            add(elastic, elastic_index, 20, f"{len(written)}" * 2)
            written.append(20)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while len(written) < 25:
            stop.wait(0.01)
        change_index_type(elastic, elastic_index, "embedding", "bbq_hnsw")
        changed = len(written)
        while len(written) < changed + 5:
            stop.wait(0.01)
    finally:
        stop.set()
        writer.join()
    share, count = stored(elastic, elastic_index).share, elastic.count(elastic_index)
    assert count == sum(written)
    assert share is not None
    assert 0 < share <= 1  # the engine merges on its own, too
    bits = bbq_vectors(elastic, elastic_index)
    assert bits is None or share * count <= bits + 1e-6


def test_type_of_opensearch_is_that_of_all_documents(
    opensearch_url: str, open_engine: Callable[[str], Engine], fresh_index: Callable[[str], str]
) -> None:
    engine, index = open_engine(opensearch_url), fresh_index(opensearch_url)
    create(engine, index, "hnsw")
    load(engine, index, "embedding", random_vectors(5, DIMENSIONS), lambda row: {"title": f"t{row}"})
    assert stored(engine, index).is_whole
