"""Vectors stored as bytes on each real engine: loaded, searched, read back and adopted, compared with brute force."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from es_sbert.analysis import duplicate_groups, read_index
from es_sbert.analysis.duplicate_search import DuplicateSearch
from es_sbert.analysis.duplicates import DuplicateSearchSettings, DuplicateSearchState
from es_sbert.diagnostics.index_calibration import IndexCalibrator
from es_sbert.diagnostics.index_size import estimate_size
from es_sbert.diagnostics.recall import SearchSetting, measure_recall, sample_queries
from es_sbert.diagnostics.temporary_index import force_merge
from es_sbert.encoder.encoder import Encoder
from es_sbert.engines.engine import Engine
from es_sbert.engines.engine_info import EngineType
from es_sbert.engines.retry import RetryPolicy
from es_sbert.errors import UsageError
from es_sbert.index.adopt import AdoptionSettings, adopt_vectors
from es_sbert.index.adopt_field import read_adoptable_field
from es_sbert.index.byte_vectors import quantize_vectors
from es_sbert.index.document_vectors import read_stored_vectors, read_vector
from es_sbert.index.mapping import ElementType, IndexType
from es_sbert.index.text_template import TextTemplate
from es_sbert.index.vector_field import FieldRequest, ensure_vector_field
from es_sbert.integrations.byte_embeddings import ByteEmbeddings
from es_sbert.search import SemanticIndex
from es_sbert.vectors import Vectors
from tests.conftest import also_opensearch2, delete_index
from tests.engine.ingest_support import contents, load, open_engine, write_jsonl
from tests.engine.sample_indices import text_of
from tests.engine.test_search import has_scripting
from tests.engine.vectors import cosines
from tests.engine.vectors import load as load_vectors

COUNT = 120
# Scores are float32.
CLOSE = 5e-6
QUERY = "the man plays a guitar"
KINDS: dict[str, dict[str, Any]] = {
    "hnsw": {},
    "flat": {"index_type": "flat"},
    "passages": {"passages": 6, "passage_overlap": 0},
}
TEXTS = [f"{text_of(number)} . {text_of(number + 500)}" for number in range(COUNT)]
DOCUMENTS = [{"id": f"d{number}", "text": text, "even": number % 2 == 0} for number, text in enumerate(TEXTS)]


def rounded(vectors: Vectors) -> Vectors:
    """What a field of bytes holds of vectors, or is searched with."""
    return quantize_vectors(vectors).astype(np.float32)


@dataclass(frozen=True)
class Filled:
    """The documents in an index of each kind."""

    url: str
    engine: Engine
    encoder: Encoder
    indices: dict[str, SemanticIndex]

    def name(self, kind: str) -> str:
        return self.indices[kind].field.index

    @property
    def methods(self) -> tuple[bool, ...]:
        """Values of `exact`: without scripts there is only the search of the graph."""
        return (False, True) if has_scripting(self.engine) else (False,)

    def truth(self, kind: str, query: str = QUERY) -> dict[str, float]:
        """Id → cosine of the nearest stored vector with the query's, both as bytes."""
        wanted = rounded(self.encoder.encode(query, "query"))
        found = {}
        for id, source in contents(self.url, self.name(kind)).items():
            stored = [vector for _, _, vector in read_stored_vectors(source["embedding"], 0, ElementType.BYTE)]
            found[id] = float(cosines(wanted, np.stack(stored)).max())
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@pytest.fixture(scope="module")
def filled(engine_url: str, tiny: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    stem, indices = f"test-{uuid.uuid4().hex[:12]}", {}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("dead"))
        engine = stack.enter_context(open_engine(engine_url))
        kinds = {kind: options for kind, options in KINDS.items() if kind != "flat" or not engine.info.needs_index_knn}
        for kind, options in kinds.items():
            name = f"{stem}-{kind}"
            stack.callback(delete_index, engine_url, name)
            made = SemanticIndex.create(
                name, engine, encoder=tiny, text_fields=["text"], element_type="byte", shards=1, replicas=0, **options
            )
            indices[kind] = stack.enter_context(made)
            report = indices[kind].add(DOCUMENTS, id_field="id")
            assert (report.indexed, report.dead) == (COUNT, 0)
            engine.refresh(name)
        yield Filled(engine_url, engine, tiny, indices)


@also_opensearch2
def test_stored_numbers_are_those_of_the_encoder_rounded(filled: Filled) -> None:
    for kind in filled.indices:
        state = filled.engine.get_index(filled.name(kind))
        assert state is not None
        mapped = state.mappings["properties"]["embedding"]
        mapped = mapped["properties"]["vector"] if kind == "passages" else mapped
        name = "data_type" if filled.engine.info.engine_type is EngineType.OPENSEARCH else "element_type"
        assert mapped[name].lower() == "byte"
        assert filled.indices[kind].field.meta.element_type is ElementType.BYTE
        for id, source in contents(filled.url, filled.name(kind)).items():
            text = source["text"]
            stored = read_stored_vectors(source["embedding"], len(text), ElementType.BYTE)
            assert len(stored) > 1 if kind == "passages" else len(stored) == 1
            made = filled.encoder.encode([text[start:end] for start, end, _ in stored], "document")
            # Vectors of other batches differ in their last digits, which may round to the next step.
            difference = np.abs(np.stack([vector for _, _, vector in stored]) - rounded(made))
            assert difference.max() <= 1, id


@also_opensearch2
@pytest.mark.parametrize("kind", list(KINDS))
def test_cosines_are_those_of_the_stored_numbers(filled: Filled, kind: str) -> None:
    if kind not in filled.indices:
        pytest.skip("this engine has no flat type")
    truth, index = filled.truth(kind), filled.indices[kind]
    for exact in filled.methods:
        hits = index.search(QUERY, 20, exact=exact, num_candidates=COUNT).hits
        assert [hit.cosine for hit in hits] == pytest.approx(list(truth.values())[:20], abs=CLOSE)
        assert [truth[hit.id] for hit in hits] == pytest.approx([hit.cosine for hit in hits], abs=CLOSE)
        if kind == "passages":
            assert all(hit.passage is not None and hit.passage.text for hit in hits)
    least = list(truth.values())[29] - 1e-5
    near = [id for id, cosine in truth.items() if cosine >= least and int(id[1:]) % 2 == 0]
    for exact in filled.methods:
        found = index.search(QUERY, COUNT, min_cosine=least, filter={"term": {"even": True}}, exact=exact)
        assert ({hit.id for hit in found}, found.total) == (set(near), len(near))


def test_hybrid_search_and_similar_documents(filled: Filled) -> None:
    truth = filled.truth("hnsw")
    for hit in filled.indices["hnsw"].hybrid(QUERY, 10):
        assert hit.cosine is None or hit.cosine == pytest.approx(truth[hit.id], abs=CLOSE)
    for kind in filled.indices:
        hits = filled.indices[kind].similar_to("d3", 5).hits
        assert "d3" not in {hit.id for hit in hits}
        assert hits[0].cosine > 0.5


def test_byte_field_cannot_be_oversampled(filled: Filled) -> None:
    with pytest.raises(UsageError, match="oversample requires a quantized index type"):
        filled.indices["hnsw"].search(QUERY, oversample=2.0)


def test_later_loads_embed_only_what_changed(filled: Filled, tmp_path: Path) -> None:
    for kind, index in filled.indices.items():
        before = contents(filled.url, filled.name(kind))
        again = index.add(DOCUMENTS, id_field="id")
        assert (again.unchanged, again.indexed, again.updated) == (COUNT, 0, 0)
        # The vector is kept and written again, as the same numbers.
        report = index.add([DOCUMENTS[7] | {"even": None}], id_field="id")
        assert (report.indexed, report.updated) == (0, 1)
        after = contents(filled.url, filled.name(kind))
        assert after["d7"]["embedding"] == before["d7"]["embedding"]
        index.add([DOCUMENTS[7]], id_field="id")
        in_place = load(filled.url, filled.encoder, filled.name(kind), dead=tmp_path / "dead")
        assert (in_place.unchanged, in_place.indexed) == (COUNT, 0)


def test_field_of_bytes_is_added_to_an_index_in_place(
    engine_url: str, index_name: str, tiny: Encoder, tmp_path: Path
) -> None:
    """Beside a field of floats, in one load of both."""
    path = write_jsonl(tmp_path / "docs.jsonl", DOCUMENTS[:10])
    load(engine_url, tiny, index_name, path, dead=tmp_path / "dead", id_field="id", vector_field="v")
    options = {"element_type": "byte", "vector_field": "b", "text_fields": ("text",)}
    report = load(engine_url, tiny, index_name, dead=tmp_path / "dead", **options)
    assert report.indexed == 10
    changed = write_jsonl(tmp_path / "new.jsonl", [DOCUMENTS[0] | {"text": "a cat sleeps"}, *DOCUMENTS[1:10]])
    vectors = ("v={text}", "b={text}")
    both = load(engine_url, tiny, index_name, changed, dead=tmp_path / "dead", id_field="id", vectors=vectors)
    assert (both.indexed, both.updated + both.unchanged) == (1, 9)
    for source in contents(engine_url, index_name).values():
        exact = tiny.encode([source["text"]], "document")[0]
        np.testing.assert_allclose(read_vector(source["v"]), exact, atol=1e-6)
        assert np.abs(read_vector(source["b"], ElementType.BYTE) - rounded(exact)).max() <= 1


@also_opensearch2
def test_indices_of_floats_and_of_bytes_are_searched_together(
    filled: Filled, fresh_index: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = fresh_index(filled.url)
    with SemanticIndex.create(name, filled.engine, encoder=filled.encoder, text_fields=["text"]) as other:
        other.add([{"id": f"f{number}", "text": text} for number, text in enumerate(TEXTS[:20])], id_field="id")
    filled.engine.refresh(name)
    truth = filled.truth("hnsw")
    query = filled.encoder.encode(QUERY, "query")
    for number, vector in enumerate(filled.encoder.encode(TEXTS[:20], "document")):
        truth[f"f{number}"] = float(cosines(rounded(query), vector[None])[0])
    with SemanticIndex([filled.name("hnsw"), name], filled.engine, encoder=filled.encoder) as both:
        for exact in filled.methods:
            hits = both.search(QUERY, 30, exact=exact, num_candidates=COUNT).hits
            assert [hit.cosine for hit in hits] == pytest.approx(sorted(truth.values())[:-31:-1], abs=2e-5)
            assert [truth[hit.id] for hit in hits] == pytest.approx([hit.cosine for hit in hits], abs=2e-5)


def test_analysis_and_diagnostics_read_bytes(filled: Filled, tmp_path: Path) -> None:
    """Duplicates by kNN are those of all pairs; recall and calibration measure the same vectors."""
    name, engine = filled.name("hnsw"), filled.engine
    texts = read_index(engine, name, "embedding")
    exact = [{texts.ids[one] for one in group.members} for group in duplicate_groups(texts.vectors, 0.98)]
    settings = DuplicateSearchSettings(min_cosine=0.98, num_candidates=COUNT, sample=COUNT)
    searching = DuplicateSearch(engine, name, "embedding", settings, policy=RetryPolicy(30, first=0.01))
    with DuplicateSearchState(tmp_path / "state", searching.identity) as state:
        found = searching.run(state)
    assert [{found.texts.ids[one] for one in group.members} for group in found.groups] == exact != []

    field = filled.indices["hnsw"].field
    queries = sample_queries(engine, field, 20, seed=0)
    recall = measure_recall(engine, field, queries, [SearchSetting(COUNT, None)], k=5, target=0.9)
    assert recall.rows[0].recall.mean == 1.0

    calibrator = IndexCalibrator(engine, name, "embedding")
    measured = calibrator.measure(filled.encoder, sample=COUNT, k=5)
    truths = [list(filled.truth("hnsw", query.text).values())[:5] for query in measured.queries.queries[:5]]
    nearest = [hits.cosines.tolist() for hits in measured.cosines.nearest[:5]]
    assert np.allclose(nearest, truths, atol=2e-5)


def test_estimate_of_bytes_is_within_10_percent_of_real_size(
    es9_url: str, fresh_index: Callable[[str], str], open_engine: Callable[[str], Engine]
) -> None:
    engine, name = open_engine(es9_url), fresh_index(es9_url)
    request = FieldRequest("embedding", "a" * 32, "model-a", 128, element_type="byte")
    ensure_vector_field(engine, name, request, shards=1, replicas=0)
    vectors = quantize_vectors(np.random.default_rng(0).normal(size=(2000, 128)).astype(np.float32))
    load_vectors(engine, name, "embedding", vectors, lambda row: {"row": row})  # type: ignore[arg-type]
    force_merge(engine, name)
    engine.refresh(name)
    estimate = estimate_size(engine.info, IndexType.HNSW, 2000, 128, ElementType.BYTE)
    assert estimate.index == pytest.approx(engine.vector_size(name, "embedding"), rel=0.1)


@pytest.mark.parametrize("form", ["numbers", "hexadecimal"])
def test_bytes_of_another_program_are_adopted(engine: Engine, index_name: str, tiny: Encoder, form: str) -> None:
    """Unit vectors times 127, which use few of the numbers, as numbers or as Elasticsearch's hexadecimal digits."""
    is_opensearch = engine.info.engine_type is EngineType.OPENSEARCH
    if form == "hexadecimal" and is_opensearch:
        pytest.skip("OpenSearch takes numbers only")
    dimensions = tiny.info.dimensions
    mapping: dict[str, Any] = {
        "type": "dense_vector",
        "element_type": "byte",
        "dims": dimensions,
        "similarity": "cosine",
    }
    if is_opensearch:
        method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}
        mapping = {"type": "knn_vector", "data_type": "byte", "dimension": dimensions, "method": method}
    settings = {"index.knn": True} if is_opensearch else {}
    engine.create_index(index_name, {"settings": settings, "mappings": {"properties": {"v": mapping}}})
    vectors = np.rint(127 * tiny.encode(TEXTS[:30], "document")).astype(np.int8)
    lines: list[Any] = []
    for number, vector in enumerate(vectors):
        value = vector.tobytes().hex() if form == "hexadecimal" else vector.tolist()
        lines += [{"index": {"_id": f"d{number}"}}, {"text": TEXTS[number], "v": value}]
    assert all(result.ok for result in engine.bulk(index_name, b"".join(orjson.dumps(line) + b"\n" for line in lines)))
    engine.refresh(index_name)

    adoptable = read_adoptable_field(engine, index_name, "v", TextTemplate.parse("{text}"))
    report = adopt_vectors(engine, adoptable, tiny, AdoptionSettings())
    assert (report.check.is_accepted, report.meta.element_type) == (True, ElementType.BYTE)
    assert report.check.lowest > 0.99
    engine.refresh(index_name)
    with SemanticIndex(index_name, engine, encoder=tiny, vector_field="v") as index:
        hits = index.search(TEXTS[4], 3).hits
        assert hits[0].id == "d4"
        assert index.similar_to("d4", 1).hits[0].cosine <= hits[0].cosine
        # Numbers of the next load use another scale, which a cosine does not see.
        assert index.add([DOCUMENTS[40]], id_field="id").indexed == 1
        engine.refresh(index_name)
        assert index.search(TEXTS[40], 1).hits[0].id == "d40"


def test_embeddings_for_other_libraries_search_a_field_of_bytes(filled: Filled) -> None:
    """The request that LangChain's and elasticsearch-py's stores send; fractions are refused."""
    embeddings = ByteEmbeddings(filled.encoder)
    vector, truth = embeddings.embed_query(QUERY), filled.truth("hnsw")
    assert (
        embeddings.embed_documents(TEXTS[:2])[1]
        == quantize_vectors(filled.encoder.encode(TEXTS[:2], "document")[1]).tolist()
    )
    body: dict[str, Any] = {"knn": {"field": "embedding", "query_vector": vector, "k": 3, "num_candidates": COUNT}}
    if filled.engine.info.engine_type is EngineType.OPENSEARCH:
        body = {"query": {"knn": {"embedding": {"vector": vector, "k": 3}}}, "size": 3}
    hits = filled.engine.search(filled.name("hnsw"), body)["hits"]["hits"]
    assert [2 * hit["_score"] - 1 for hit in hits] == pytest.approx(list(truth.values())[:3], abs=CLOSE)
