"""OpenVINO runs the same graphs as onnxruntime, and is done without where it is missing or broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from es_sbert.bundle.bundle import EncoderBundle, open_encoder_bundle
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder import model_loading
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.model_loading import find_encoder, select_encoder_variant
from es_sbert.errors import BundleInvalid, DeviceError, ModelError
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.runtime import openvino_session, variant_candidates
from es_sbert.runtime.device import Device, has_bf16_products
from es_sbert.runtime.onnx_session import open_session
from es_sbert.runtime.variant_candidates import variant_order
from tests.raised import raises_as_recorded
from tests.tiny import WORDS, write_tiny_bert
from tests.unit.checkpoints import open_variant

CPU = Device("cpu")
TEXTS = [" ".join(WORDS[start : start + size]) for start in range(6) for size in (1, 3, 6, 11)]
needs_openvino = pytest.mark.skipif(not openvino_session.has_openvino(), reason="openvino is not installed")
needs_bf16 = pytest.mark.skipif(not has_bf16_products(), reason="this processor has no bf16 products")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> EncoderBundle:
    folder = tmp_path_factory.mktemp("openvino")
    variants = [Variant.FP32, Variant.INT8]
    if openvino_session.has_openvino():
        variants += [Variant.OPENVINO_FP32, *([Variant.OPENVINO_BF16] if has_bf16_products() else [])]
    export_bundle(read_sentence_model(write_tiny_bert(folder / "tiny")), folder / "bundle", variants)
    return open_encoder_bundle(folder / "bundle")


def encode(bundle: EncoderBundle, variant: str, **options: int) -> np.ndarray:
    with open_variant(bundle.folder, variant, **options) as encoder:
        return encoder.encode(TEXTS)


@needs_openvino
def test_openvino_fp32_gives_the_vectors_of_onnxruntime(bundle: EncoderBundle) -> None:
    expected = encode(bundle, "fp32", threads=1)
    for options in ({"threads": 1}, {"threads": 2, "budget": 16}, {"threads": 2, "budget": 4096}):
        np.testing.assert_allclose(encode(bundle, "openvino-fp32", **options), expected, atol=1e-5)


@needs_openvino
@needs_bf16
def test_openvino_bf16_stays_near_and_is_not_fp32(bundle: EncoderBundle) -> None:
    expected, rounded = encode(bundle, "fp32", threads=1), encode(bundle, "openvino-bf16", threads=2)
    assert np.einsum("td,td->t", expected, rounded).min() > 0.999
    assert np.abs(expected - rounded).max() > 1e-5


@needs_openvino
def test_info_names_runtime_and_release(bundle: EncoderBundle) -> None:
    with Encoder(bundle.folder, device="cpu", runtime="openvino", precision="fp32", threads=1) as encoder:
        info = encoder.info
    assert (info.variant, info.runtime, info.precision) == ("openvino-fp32", "openvino", "fp32")
    assert info.provider.startswith("OpenVINO 20")
    variants = bundle.manifest.variants
    assert variants["openvino-fp32"].file == variants["fp32"].file == "onnx/model_fp32.onnx"


@needs_openvino
@pytest.mark.parametrize(("mask", "dimensions"), [("attention_mask", 1), ("another_mask", 16)])
def test_batch_that_fails_is_a_model_error(bundle: EncoderBundle, mask: str, dimensions: int) -> None:
    """An output of another shape, and an input that the graph does not have."""
    model = openvino_session.OpenVinoModel(bundle.variant_file("openvino-fp32"), Variant.OPENVINO_FP32.precision, 1)
    ids = np.ones((1, 3), np.int64)
    with raises_as_recorded(ModelError):
        model.open_session().run({"input_ids": ids, mask: ids}, np.empty((1, dimensions), np.float32))


@needs_openvino
def test_process_ends_cleanly_with_an_open_model(bundle: EncoderBundle) -> None:
    """OpenVINO aborts a process that ends while one of its queues is alive."""
    code = (
        "from pathlib import Path; from es_sbert import Encoder\n"
        f"encoder = Encoder(Path({str(bundle.folder)!r}), device='cpu', runtime='openvino', precision='fp32')\n"
        "print(encoder.encode(['the cat', 'a mat sleeps']).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()[:3]) == (0, "(2,"), done.stderr


@needs_openvino
def test_runtime_that_computes_other_results_is_refused_and_auto_does_without(
    bundle: EncoderBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))
    other = read_sentence_model(write_tiny_bert(tmp_path / "tiny", seed=7))
    path = tmp_path / "other" / export_bundle(other, tmp_path / "other", [Variant.FP32]).variants["fp32"].file
    monkeypatch.setattr(openvino_session, "open_onnx_session", lambda _, device: open_session(path, device))
    with raises_as_recorded(DeviceError):
        encode(bundle, "openvino-fp32", threads=1)
    assert not list((tmp_path / "cache").glob("compiled/*"))
    order = (Variant.OPENVINO_FP32, Variant.FP32)
    monkeypatch.setattr(model_loading, "variant_order", lambda device, runtime, precision: order)
    with Encoder(bundle.folder, device="cpu") as encoder:
        assert encoder.info.variant == "fp32"
        [warning] = [one for one in encoder.info.warnings if "different results" in one]
        assert warning.endswith("fp32 runs instead")


@needs_openvino
def test_first_batches_of_a_process_may_run_in_several_threads() -> None:
    """Without what is done when OpenVINO is loaded, most processes that do this wait forever."""
    code = """
import sys, threading
from es_sbert.runtime.openvino_session import _load_core
_load_core()
import openvino
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(2)
def take_result():
    barrier.wait()
    openvino.Type.f32.to_dtype()  # as every batch does
threads = [threading.Thread(target=take_result, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    try:
        assert [process.wait(timeout=60) for process in started] == [0] * 4
    finally:
        for process in started:
            process.kill()


@pytest.fixture
def fresh_core() -> Iterator[None]:
    """OpenVINO is loaded anew, before and after the test."""
    openvino_session._load_core.cache_clear()
    yield
    openvino_session._load_core.cache_clear()


@needs_openvino
@pytest.mark.usefixtures("fresh_core")
def test_broken_openvino_is_left_out_with_one_line(
    bundle: EncoderBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openvino.py").write_text("raise ImportError('libtbb.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "openvino"]:
        monkeypatch.delitem(sys.modules, name)
    for module in (variant_candidates, openvino_session):  # elsewhere it is loaded only if it is asked for
        monkeypatch.setattr(module, "has_bf16_products", lambda: True)
    assert not any(variant.startswith("openvino") for variant in variant_order(CPU))
    selected = select_encoder_variant(find_encoder(bundle.folder), CPU, report=lambda message: None)
    assert not selected.variant.startswith("openvino")
    assert [warning for warning in selected.warnings if warning.startswith("OpenVINO does not load: libtbb")]
    with raises_as_recorded(DeviceError):
        variant_order(CPU, "openvino")


def test_variant_whose_file_is_gone_is_replaced_by_the_next_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = (Variant.INT8, Variant.FP32)
    export_bundle(read_sentence_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle", both)
    (tmp_path / "bundle/onnx/model_int8.onnx").unlink()
    monkeypatch.setattr(model_loading, "variant_order", lambda device, runtime, precision: both)
    with Encoder(tmp_path / "bundle", device="cpu") as encoder:
        assert encoder.info.variant == "fp32"
        assert any("is missing): fp32 runs instead" in warning for warning in encoder.info.warnings)
    monkeypatch.undo()
    with raises_as_recorded(BundleInvalid):
        Encoder(tmp_path / "bundle", device="cpu", precision="int8")


@pytest.mark.parametrize(
    ("longest", "texts", "most", "padded"),
    [
        *((1, 600, 256, 1), (33, 600, 256, 36), (129, 600, 256, 144), (250, 600, 254, 254), (300, 600, 256, 300)),
        *((1, 1, 254, 8), (9, 8, 254, 16), (9, 9, 254, 9), (33, 8, 254, 40), (249, 1, 254, 254)),
    ],
)
def test_texts_are_padded_to_few_lengths_and_not_beyond_what_the_model_reads(
    longest: int, texts: int, most: int, padded: int
) -> None:
    assert openvino_session.OpenVinoModel.padded_length(longest, texts, most) == padded
