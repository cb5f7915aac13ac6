"""Haystack's pipelines with the components of `es_sbert.integrations.haystack`.

Its ElasticsearchDocumentStore asks for `GET /` first, which the es9 of these tests lacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.core.errors import DeserializationError
from haystack.document_stores.types import DuplicatePolicy
from haystack_integrations.components.retrievers.elasticsearch import ElasticsearchEmbeddingRetriever
from haystack_integrations.components.retrievers.opensearch import OpenSearchEmbeddingRetriever
from haystack_integrations.document_stores.elasticsearch import ElasticsearchDocumentStore
from haystack_integrations.document_stores.opensearch import OpenSearchDocumentStore

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import ModelNotFound, UsageError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.index.byte_vectors import quantize_vectors
from es_sbert.integrations.haystack import SbertDocumentEmbedder, SbertTextEmbedder
from tests.frameworks.articles import ARTICLES, QUESTION, TEXTS, Fill, RunExample, expected_lines, same_lines
from tests.model_kinds import KINDS, write_model_kinds
from tests.tiny import write_tiny_bert

MODULE = "es_sbert.integrations.haystack"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model with a prompt for each kind."""
    folder = tmp_path_factory.mktemp("model")
    model = read_sentence_model(write_tiny_bert(folder / "tiny", prompts={"query": "query: ", "document": "passage: "}))
    export_bundle(model, folder / "bundle", [Variant.FP32, Variant.INT8], force=True)
    return str(folder / "bundle")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_model_kinds(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("kind", KINDS)
def test_components_embed_by_each_kind_of_model(kinds: dict[str, str], kind: str) -> None:
    """Of a pair, each component loads the network of its texts."""
    how = {"precision": "fp32", "threads": 1}
    text, documents = SbertTextEmbedder(kinds[kind], **how), SbertDocumentEmbedder(kinds[kind], **how)
    query = text.run("the cat")
    document = documents.run([Document(content="the cat")])
    assert [text.encoder.is_open("document"), documents.encoder.is_open("query")] == [kind != "pair"] * 2
    with Encoder(kinds[kind], precision="fp32", threads=1) as encoder:
        assert query["embedding"] == encoder.embed_query("the cat")
        assert [one.embedding for one in document["documents"]] == encoder.embed_documents(["the cat"])
        assert query["meta"]["fingerprint"] == document["meta"]["fingerprint"] == encoder.info.fingerprint
    text.close()
    documents.close()


def test_embeddings_and_prompts_match_encoder(tiny: str) -> None:
    text, documents = SbertTextEmbedder(tiny, device="cpu"), SbertDocumentEmbedder(tiny, device="cpu")
    given = [Document(content="a man plays " * 20), Document(content=None)]
    with Encoder(tiny, device="cpu") as encoder:
        found = text.run("a man")
        assert found["embedding"] == encoder.embed_query("a man")
        assert found["meta"] == {"model": encoder.info.model, "fingerprint": encoder.info.fingerprint}
        done = documents.run(given)
        assert [document.embedding for document in done["documents"]] == encoder.embed_documents(
            ["a man plays " * 20, ""]
        )
        assert done["meta"] == found["meta"] | {"truncated": 1}
    assert [document.embedding for document in given] == [None, None]
    assert [document.id for document in done["documents"]] == [document.id for document in given]
    text.close()
    documents.close()


def test_meta_fields_are_prepended(tiny: str) -> None:
    embedder = SbertDocumentEmbedder(tiny, meta_fields_to_embed=["title", "year", "gone"], embedding_separator=" : ")
    given = Document(content="sleeps", meta={"title": "the cat", "year": 7, "gone": None, "other": "x"})
    [document] = embedder.run([given])["documents"]
    assert document.embedding == embedder.encoder.embed_documents(["the cat : 7 : sleeps"])[0]
    embedder.close()


def test_vectors_for_a_field_of_bytes_are_whole_numbers(tiny: str) -> None:
    text, documents = SbertTextEmbedder(tiny, element_type="byte"), SbertDocumentEmbedder(tiny, element_type="byte")
    with Encoder(tiny) as encoder:
        query = text.run("a man")["embedding"]
        [document] = documents.run([Document(content="a man plays")])["documents"]
        assert query == quantize_vectors(encoder.encode("a man", "query")).tolist()
        assert document.embedding == quantize_vectors(encoder.encode(["a man plays"], "document"))[0].tolist()
    assert {type(number) for number in query} == {float}
    text.close()
    documents.close()
    with pytest.raises(UsageError, match="unknown element type 'int8'"):
        SbertTextEmbedder(tiny, element_type="int8")


def test_async_run_equals_run(tiny: str) -> None:
    text, documents = SbertTextEmbedder(tiny), SbertDocumentEmbedder(tiny)
    assert asyncio.run(text.run_async("a man")) == text.run("a man")
    given = [Document(content="a man")]
    assert asyncio.run(documents.run_async(given)) == documents.run(given)
    text.close()
    documents.close()


def test_closed_component_reloads(tiny: str) -> None:
    embedder = SbertTextEmbedder(tiny)
    embedder.warm_up()
    first = embedder.encoder
    embedder.warm_up()
    assert embedder.encoder is first
    embedder.close()
    embedder.close()
    assert embedder.run("a man")["embedding"]
    assert embedder.encoder is not first
    embedder.close()


@pytest.mark.parametrize(
    "component",
    [
        SbertTextEmbedder("m", device="cpu", precision="fp32", threads=2, element_type="byte"),
        SbertDocumentEmbedder("m", "cpu", "fp32", 2, meta_fields_to_embed=["title"], embedding_separator=" "),
    ],
)
def test_pipeline_is_serializable(component: SbertTextEmbedder | SbertDocumentEmbedder) -> None:
    pipeline = Pipeline()
    pipeline.add_component("embedder", component)
    written = pipeline.dumps()
    read = Pipeline.loads(written, allowed_modules=[MODULE])
    assert read.get_component("embedder").to_dict() == component.to_dict()
    assert read.dumps() == written
    with pytest.raises(DeserializationError, match="trusted-module"):
        Pipeline.loads(written)


def test_invalid_input_raises(tiny: str) -> None:
    text, documents = SbertTextEmbedder(tiny), SbertDocumentEmbedder(tiny)
    with pytest.raises(UsageError, match="must be a string"):
        text.run([Document(content="a")])
    for wrong in ("a", ["a"], Document(content="a")):
        with pytest.raises(UsageError, match="takes a list of Documents"):
            documents.run(wrong)
    with pytest.raises(ModelNotFound):
        SbertTextEmbedder("./nowhere").warm_up()
    text.close()
    documents.close()


def search(pipeline: Pipeline, text: str) -> list[Document]:
    found: list[Document] = pipeline.run({"embedder": {"text": text}})["retriever"]["documents"]
    return found


@pytest.mark.parametrize("engine", ["es8", "opensearch"])
def test_pipelines_write_and_search(
    engine: str, encoder: Encoder, fill: Fill, fresh_index: Callable[[str], str], request: pytest.FixtureRequest
) -> None:
    """On OpenSearch into an index of es-sbert's: the store's own takes an engine that these tests' server lacks."""
    url = request.getfixturevalue(f"{engine}_url")
    if engine == "es8":
        store = ElasticsearchDocumentStore(hosts=url, index=fresh_index(url))
        retriever = ElasticsearchEmbeddingRetriever(document_store=store, top_k=2)
    else:
        store = OpenSearchDocumentStore(hosts=url, index=fill(url, text_field="content"), create_index=False)
        retriever = OpenSearchEmbeddingRetriever(document_store=store, top_k=2)
    documents = [
        Document(id=str(number), content=text, meta={"language": language})
        for number, (language, text) in enumerate(ARTICLES)
    ]
    writing = Pipeline()
    writing.add_component("embedder", SbertDocumentEmbedder(DEFAULT_MODEL))
    writing.add_component("writer", DocumentWriter(store, policy=DuplicatePolicy.OVERWRITE))
    writing.connect("embedder.documents", "writer.documents")
    assert writing.run({"embedder": {"documents": documents}})["writer"]["documents_written"] == len(TEXTS)
    searching = Pipeline()
    searching.add_component("embedder", SbertTextEmbedder(DEFAULT_MODEL))
    searching.add_component("retriever", retriever)
    searching.connect("embedder.embedding", "retriever.query_embedding")
    found = search(searching, QUESTION)
    assert [(document.id, document.content) for document in found] == [("0", TEXTS[0]), ("2", TEXTS[2])]
    assert found[1].meta == {"language": "xx"}
    for pipeline in (writing, searching):
        pipeline.close()
    store.close()


@pytest.mark.parametrize(
    ("example", "engine"), [("haystack_on_elasticsearch", "es8"), ("haystack_on_opensearch", "opensearch")]
)
def test_examples(
    example: str, engine: str, request: pytest.FixtureRequest, encoder: Encoder, fill: Fill, run_example: RunExample
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    index = fill(url, text_field="content")
    printed = run_example(example, QUESTION, "--index", index, "--url", url)
    assert same_lines(printed, expected_lines(url, index, encoder, text_field="content"))
