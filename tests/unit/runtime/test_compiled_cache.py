"""What OpenVINO has compiled is opened again from the cache, and compiled again where that cannot be trusted."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from es_sbert.bundle.bundle import EncoderBundle, open_encoder_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import device, openvino_session
from tests.tiny import WORDS, write_tiny_bert
from tests.unit.checkpoints import open_variant

pytestmark = pytest.mark.skipif(not openvino_session.has_openvino(), reason="openvino is not installed")

TEXTS = [" ".join(WORDS[start : start + 4]) for start in range(6)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> EncoderBundle:
    folder = tmp_path_factory.mktemp("compiled")
    export_bundle(read_sentence_model(write_tiny_bert(folder / "tiny")), folder / "bundle", [Variant.OPENVINO_FP32])
    return open_encoder_bundle(folder / "bundle")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def compilations(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Reads the ONNX files that are compiled."""
    core, version = openvino_session._load_core()
    counting = Mock(wraps=core)
    monkeypatch.setattr(openvino_session, "_load_core", lambda: (counting, version))
    reads: Mock = counting.read_model
    return reads


def encode(bundle: EncoderBundle, threads: int = 1) -> np.ndarray:
    with open_variant(bundle.folder, "openvino-fp32", threads=threads) as encoder:
        return encoder.encode(TEXTS)


def test_a_model_is_compiled_once_and_again_if_its_file_is_damaged(
    bundle: EncoderBundle, compilations: Mock, cache: Path
) -> None:
    first = encode(bundle)
    [blob] = (cache / "compiled").iterdir()
    content = blob.read_bytes()
    damaged = (b"", content[: len(content) // 2], bytes([content[0] ^ 1]) + content[1:], content + b"x")
    for number, wrong in enumerate(damaged):
        blob.write_bytes(wrong)
        np.testing.assert_array_equal(encode(bundle), first)
        np.testing.assert_array_equal(encode(bundle, threads=2), first)
        assert compilations.call_count == 2 + number
    openvino_session.keep_compiled(blob, memoryview(b"of another release" * 100))
    np.testing.assert_array_equal(encode(bundle), first)
    assert compilations.call_count == 2 + len(damaged)


@pytest.mark.parametrize("changed", ["processor", "instructions", "cores", "openvino"])
def test_another_machine_or_release_compiles_its_own(
    bundle: EncoderBundle, compilations: Mock, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    encode(bundle)
    other = device.describe_machine() | {changed: "another"}
    monkeypatch.setattr(openvino_session, "describe_machine", lambda: other)
    encode(bundle)
    assert compilations.call_count == 2
    model = bundle.variant_file("openvino-fp32")
    places = [openvino_session.compiled_path(model, "a"), openvino_session.compiled_path(model, "b")]
    assert len({*places, openvino_session.compiled_path(bundle.folder / "config.json", "a")}) == 3


def test_without_a_cache_it_is_compiled_each_time(bundle: EncoderBundle, compilations: Mock, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    np.testing.assert_array_equal(encode(bundle), encode(bundle))
    assert compilations.call_count == 2


def test_the_oldest_make_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "_MAX_BYTES", 1000)
    folder = cache / "compiled"
    for number in range(4):
        place = folder / f"{number}.blob"
        openvino_session.keep_compiled(place, memoryview(bytes(300)))
        os.utime(place, (number, number))
    openvino_session.keep_compiled(folder / "4.blob", memoryview(bytes(300)))
    openvino_session.keep_compiled(folder / "large.blob", memoryview(bytes(501)))  # it would fill the cache
    assert sorted(blob.name for blob in folder.iterdir()) == ["2.blob", "3.blob", "4.blob"]
