"""What OpenVINO has compiled is opened again from the cache, and compiled again where that cannot be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from es_sbert.bundle.bundle import EncoderBundle, open_encoder_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import device, openvino_session
from es_sbert.runtime.device import Device
from tests.tiny import WORDS, write_tiny_bert

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
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ONNX files that are compiled, in order."""
    compiled: list[str] = []
    core, version = openvino_session._load_core()

    class CountingCore:
        def __getattr__(self, name: str) -> object:
            return getattr(core, name)

        def read_model(self, path: str) -> object:
            compiled.append(path)
            return core.read_model(path)

    monkeypatch.setattr(openvino_session, "_load_core", lambda: (CountingCore(), version))
    return compiled


def encode(bundle: EncoderBundle) -> np.ndarray:
    with Encoder.from_bundle(bundle, "openvino-fp32", Device("cpu"), threads=1) as encoder:
        return encoder.encode(TEXTS)


def blobs(cache: Path) -> list[Path]:
    return sorted((cache / "compiled").iterdir())


def test_a_model_is_compiled_once_and_gives_the_same_vectors(bundle: EncoderBundle, compilations: list[str]) -> None:
    first = encode(bundle)
    np.testing.assert_array_equal(encode(bundle), first)
    assert len(compilations) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content + b"x",
    ],
    ids=["empty", "no digest", "half", "one byte less", "one bit", "one byte more"],
)
def test_a_damaged_file_is_compiled_again(
    bundle: EncoderBundle, compilations: list[str], cache: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = encode(bundle)
    [blob] = blobs(cache)
    blob.write_bytes(damage(blob.read_bytes()))
    np.testing.assert_array_equal(encode(bundle), first)
    encode(bundle)
    assert len(compilations) == 2
    assert openvino_session.read_compiled(blob) is not None


def test_a_form_that_openvino_refuses_is_compiled_again(
    bundle: EncoderBundle, compilations: list[str], cache: Path
) -> None:
    first = encode(bundle)
    [blob] = blobs(cache)
    openvino_session.keep_compiled(blob, memoryview(b"of another release" * 100))
    np.testing.assert_array_equal(encode(bundle), first)
    assert len(compilations) == 2


@pytest.mark.parametrize("changed", ["processor", "instructions", "cores", "openvino"])
def test_another_machine_or_release_compiles_its_own(
    bundle: EncoderBundle, compilations: list[str], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    encode(bundle)
    other = device.describe_machine() | {changed: "another"}
    monkeypatch.setattr(openvino_session, "describe_machine", lambda: other)
    encode(bundle)
    assert len(compilations) == 2


def test_another_model_or_setting_has_its_own_place(bundle: EncoderBundle, tmp_path: Path) -> None:
    model = bundle.variant_file("openvino-fp32")
    other = tmp_path / "other.onnx"
    other.write_bytes(model.read_bytes() + b"\0")
    places = [openvino_session.compiled_path(model, "a"), openvino_session.compiled_path(model, "b")]
    assert len({*places, openvino_session.compiled_path(other, "a")}) == 3


def test_without_a_cache_it_is_compiled_each_time(bundle: EncoderBundle, compilations: list[str], cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    np.testing.assert_array_equal(encode(bundle), encode(bundle))
    assert len(compilations) == 2


def test_without_a_home_it_is_compiled_each_time(
    bundle: EncoderBundle, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ES_SBERT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError()))
    np.testing.assert_array_equal(encode(bundle), encode(bundle))
    assert len(compilations) == 2


def test_the_oldest_make_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "_MAX_BYTES", 1000)
    folder = cache / "compiled"
    for number in range(4):
        place = folder / f"{number}.blob"
        openvino_session.keep_compiled(place, memoryview(bytes(300)))
        os.utime(place, (number, number))
    openvino_session.keep_compiled(folder / "4.blob", memoryview(bytes(300)))
    assert [blob.name for blob in blobs(cache)] == ["2.blob", "3.blob", "4.blob"]


def test_what_would_fill_the_cache_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino_session, "_MAX_BYTES", 1000)
    openvino_session.keep_compiled(cache / "compiled" / "large.blob", memoryview(bytes(501)))
    assert not (cache / "compiled").exists()


_ENCODE = """
import sys
from pathlib import Path
from es_sbert.bundle.bundle import open_encoder_bundle
from es_sbert.runtime.device import Device
from es_sbert.encoder.encoder import Encoder

bundle = open_encoder_bundle(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
with Encoder.from_bundle(bundle, "openvino-fp32", Device("cpu"), threads=1) as encoder:
    print(encoder.encode(sys.argv[2:]).tobytes().hex())
"""


def test_processes_that_compile_at_once_keep_one_whole_form(bundle: EncoderBundle, cache: Path) -> None:
    command = [sys.executable, "-c", _ENCODE, str(bundle.folder), *TEXTS]
    processes = [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = {process.communicate()[0] for process in processes}
    assert found == {encode(bundle).tobytes().hex() + "\n"}
    [blob] = blobs(cache)
    assert openvino_session.read_compiled(blob) is not None
