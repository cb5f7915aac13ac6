"""The encoder gives the reference's vectors in the order of the texts, whatever ran beside them."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from elasticsearch.helpers.vectorstore import EmbeddingService
from hypothesis import given, settings
from hypothesis import strategies as st

from es_sbert.encoder import model_loading
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, DeviceError, ModelError
from es_sbert.runtime.batching import ModelInputs
from es_sbert.runtime.compiled_model import CompiledModel
from es_sbert.runtime.device import Device
from es_sbert.runtime.inference_pool import compile_model
from es_sbert.runtime.onnx_session import OnnxCpuSession
from es_sbert.vectors import Vectors
from tests.raised import raises_as_recorded
from tests.tiny import HIDDEN, WORDS

TEXTS = [" ".join(words) for words in itertools.product(WORDS[:6], WORDS[4:9], ["", "a a a", "cat " * 30])]


def test_equals_sentence_transformers(encoder: Encoder, tiny: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    reference = sentence_transformers.SentenceTransformer(str(tiny), device="cpu")
    ours = encoder.encode(TEXTS)
    theirs = reference.encode(TEXTS)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    for kind in ("query", "document"):
        theirs = getattr(reference, f"encode_{kind}")(TEXTS)
        np.testing.assert_allclose(encoder.encode(TEXTS, kind), theirs, atol=2e-6)


@given(st.lists(st.sampled_from(TEXTS), max_size=40))
@settings(deadline=None)
def test_vectors_are_independent_of_order_and_batch(encoder: Encoder, texts: list[str]) -> None:
    alone = {text: encoder.encode([text])[0] for text in set(texts)}
    together = encoder.encode(texts)
    assert together.shape == (len(texts), HIDDEN)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(vector, alone[text], atol=2e-6)


def test_encode_stream_yields_windows(encoder: Encoder) -> None:
    parts = list(encoder.encode_stream(iter(TEXTS), window=7))
    assert [len(part.vectors) for part in parts[:-1]] == [7] * (len(parts) - 1)
    np.testing.assert_allclose(np.concatenate([part.vectors for part in parts]), encoder.encode(TEXTS), atol=2e-6)


def test_truncation_is_counted(encoder: Encoder) -> None:
    encoded = encoder.pipeline.encode_details(["a", "cat " * 30, "cat " * 22])
    assert encoded.tokens.tolist() == [3, 32, 24]
    assert encoded.truncated.tolist() == [False, True, False]


def test_one_text_none_and_any_iterable_are_encoded(encoder: Encoder) -> None:
    vector = encoder.encode("a man", "query")
    assert (encoder.info.provider, encoder.info.variant, encoder.info.threads) == ("CPUExecutionProvider", "fp32", 2)
    assert (vector.shape, encoder.encode([]).shape) == ((HIDDEN,), (0, HIDDEN))
    np.testing.assert_array_equal(vector, encoder.encode(["a man"], "query")[0])
    np.testing.assert_array_equal(encoder.encode(text for text in TEXTS[:5]), encoder.encode(TEXTS[:5]))


def test_path_is_a_folder_and_not_the_name_of_a_model() -> None:
    with raises_as_recorded(BundleInvalid):
        Encoder(Path("all-MiniLM-L6-v2"))


def test_auto_falls_back_to_cpu_with_cause_and_remedy(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_or_fail(
        path: Path, runtime: str, precision: str, device: Device, *, threads: int | None = None
    ) -> CompiledModel:
        if device.kind == "cuda":
            raise DeviceError("no cuBLAS", "Install it.")
        return compile_model(path, runtime, precision, device, threads=threads)

    monkeypatch.setattr(model_loading, "choose_device", lambda requested, providers, gpus: Device("cuda"))
    monkeypatch.setattr(model_loading, "compile_model", compile_or_fail)
    with Encoder(tiny, precision="fp32") as encoder:
        assert encoder.info.device == "cpu"
        assert encoder.info.warnings == ("CUDA does not work here: no cuBLAS. Install it.",)
    with raises_as_recorded(DeviceError):
        Encoder(tiny, device="cuda", precision="fp32")


def test_stopped_embedding_ends_between_batches_and_is_reusable(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, begun = threading.Event(), []
    with Encoder(str(tiny), device="cpu", precision="fp32", threads=1, budget=64) as encoder:
        tokenized = encoder.pipeline.tokenize(TEXTS)
        expected = encoder.pipeline.embed(tokenized)

        run = OnnxCpuSession.run

        def stopping(session: OnnxCpuSession, feed: ModelInputs, into: Vectors) -> None:
            begun.append(len(into))
            if len(begun) == 3:
                stop.set()
            run(session, feed, into)

        monkeypatch.setattr(OnnxCpuSession, "run", stopping)
        vectors, made = encoder.pipeline.embed_until(tokenized, stop)
        assert len(begun) == 3
        assert 0 < made.sum() < len(TEXTS)
        np.testing.assert_array_equal(vectors[made], expected[made])
        assert not encoder.pipeline.embed_until(tokenized, stop)[1].any()
        assert len(begun) == 3
        parts: list[float] = []
        encoder.pipeline.embed_until(tokenized, threading.Event(), parts.append)
        assert len(parts) == len(begun) - 3 > 3
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(1)
        np.testing.assert_array_equal(encoder.pipeline.embed(tokenized), expected)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_non_finite_vector_raises_model_error(encoder: Encoder, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    run = OnnxCpuSession.run

    def overflowing(session: OnnxCpuSession, feed: ModelInputs, into: Vectors) -> None:
        run(session, feed, into)
        into[-1, 3] = value

    monkeypatch.setattr(OnnxCpuSession, "run", overflowing)
    with raises_as_recorded(ModelError):
        encoder.encode(TEXTS)


def test_error_in_text_iterator_reaches_the_caller(encoder: Encoder) -> None:
    def texts() -> Iterator[str]:
        yield from ["a"] * 5
        raise OSError("the disk is gone")

    stream = encoder.encode_stream(texts(), window=5)
    assert len(next(stream).vectors) == 5
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)


def test_documents_and_queries_get_their_prompts(encoder: Encoder) -> None:
    documents = encoder.embed_documents(TEXTS[:5])
    assert documents == encoder.encode(TEXTS[:5], "document").tolist()
    assert encoder.embed_query(TEXTS[0]) == encoder.encode([TEXTS[0]], "query")[0].tolist()
    assert encoder.embed_query(TEXTS[0]) != documents[0]
    assert encoder.embed_documents([]) == []
    # Plain floats, which json and the engines' clients take; numpy's they refuse.
    assert {type(number) for number in documents[0]} == {float}


def test_async_methods_do_not_block_the_loop(encoder: Encoder) -> None:
    async def together() -> tuple[list[list[float]], list[float]]:
        return await asyncio.gather(encoder.aembed_documents(TEXTS[:5]), encoder.aembed_query("a man"))

    documents, query = asyncio.run(together())
    assert documents == encoder.embed_documents(TEXTS[:5])
    assert query == encoder.embed_query("a man")


def test_implements_the_elasticsearch_embedding_interface() -> None:
    assert EmbeddingService.__abstractmethods__ <= set(dir(Encoder))
