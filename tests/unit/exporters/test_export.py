"""`export_bundle`: what it writes, what it refuses, and that it leaves nothing half done."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from es_sbert.bundle.bundle import EncoderManifest, open_encoder_bundle
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.config import DEFAULT_MODEL
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ModelError, OutputError, ParityFailed, UsageError
from es_sbert.exporters import graph_builder, quantization
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.parity import normalize_rows
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.filesystem import staged_folder
from es_sbert.runtime.batching import PackedBatch
from es_sbert.runtime.device import Device, cuda_devices
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow

TEXTS = ["Two children repaired the telescope.", "", "Why?", "The night train is late. " * 30]
BOTH = [Variant.FP32, Variant.INT8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceModel:
    folder = write_checkpoint(tmp_path_factory.mktemp("models") / "small", prompts={"query": "query: "})
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return read_sentence_model(folder)


@pytest.fixture(scope="module")
def bundle(model: SentenceModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EncoderManifest]:
    folder = tmp_path_factory.mktemp("bundles") / "small"
    return folder, export_bundle(model, folder, [*BOTH, Precision.FP16])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def encode(folder: Path, variant: str, texts: list[str]) -> Floats:
    with Encoder.from_bundle(open_encoder_bundle(folder), variant, Device("cpu"), threads=1) as encoder:
        return encoder.encode(texts)


def coarse(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """A quantization that loses nearly everything: signs only."""
    return np.sign(weight).astype(np.int8), np.abs(weight).mean(axis=0)


def test_bundle_contents(model: SentenceModel, bundle: tuple[Path, EncoderManifest]) -> None:
    folder, manifest = bundle
    names = {"fp32", "int8", "fp16"}
    assert set(manifest.variants) == names
    assert {path.name for path in (folder / "onnx").iterdir()} == {f"model_{name}.onnx" for name in names}
    assert (folder / "model.safetensors").read_bytes() == (model.folder / "model.safetensors").read_bytes()
    assert not list(folder.rglob("*.bin"))
    assert manifest.fingerprint == model.fingerprint
    assert EncoderManifest.model_validate_json((folder / EncoderManifest.FILE_NAME).read_bytes()) == manifest
    opened = open_encoder_bundle(folder)
    assert all(opened.variant_file(name).is_file() for name in names)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_parity_reports_pass(bundle: tuple[Path, EncoderManifest]) -> None:
    _, manifest = bundle
    fp32, int8 = manifest.variants["fp32"].parity, manifest.variants["int8"].parity
    assert fp32 is not None
    assert int8 is not None
    assert fp32.reference == f"numpy {np.__version__}"
    assert fp32.sentences >= 1000
    assert fp32.min_cosine >= 0.99999
    assert fp32.passed
    assert int8.passed
    assert int8.rank_agreement < fp32.rank_agreement
    # Without CUDA nobody has seen these run: the manifest must not claim anything.
    if not cuda_devices():
        assert manifest.variants["fp16"].parity is None
    assert not any(variant.forced for variant in manifest.variants.values())


def test_exported_bundle_equals_sentence_transformers(
    bundle: tuple[Path, EncoderManifest],
) -> None:
    folder, _ = bundle
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    ours = encode(folder, "fp32", TEXTS)
    np.testing.assert_allclose(ours, theirs, atol=5e-6)
    int8 = encode(folder, "int8", TEXTS)
    assert np.einsum("td,td->t", normalize_rows(int8), normalize_rows(theirs)).min() > 0.9


def test_graphs_load_in_the_oldest_supported_onnxruntime(bundle: tuple[Path, EncoderManifest]) -> None:
    folder, manifest = bundle
    for variant in manifest.variants.values():
        graph = onnx.load(str(folder / variant.file))
        assert graph.ir_version <= 10  # onnxruntime 1.22 reads up to 10
        assert {entry.domain: entry.version for entry in graph.opset_import}[""] <= 22
        packed = [field.name for field in fields(PackedBatch)]
        wanted = packed if variant.device == "cuda" else ["input_ids", "attention_mask"]
        assert [value.name for value in graph.graph.input] == wanted
        assert [value.name for value in graph.graph.output] == ["sentence_embedding"]


def test_int8_quantizes_products_with_weights_only(bundle: tuple[Path, EncoderManifest]) -> None:
    graph = onnx.load(str(bundle[0] / "onnx" / "model_int8.onnx")).graph
    operators = [node.op_type for node in graph.node]
    assert operators.count("MatMulIntegerToFloat") == 2 * 4  # QKV, attention output, two of the feed-forward block
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert types["embeddings.words"] == onnx.TensorProto.FLOAT
    assert all(
        kind == onnx.TensorProto.INT8
        for name, kind in types.items()
        if name.startswith("layer_") and name.endswith(".weight") and ".norm" not in name
    )


@pytest.mark.parametrize("variant", BOTH)
def test_vector_is_independent_of_the_batch(bundle: tuple[Path, EncoderManifest], variant: str) -> None:
    """Else a document embedded again, in another batch, would seem to have changed."""
    together = encode(bundle[0], variant, TEXTS)
    alone = np.concatenate([encode(bundle[0], variant, [text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=2e-5)


def test_precision_is_added_to_an_existing_bundle(model: SentenceModel, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    first = export_bundle(model, folder, [Variant.INT8])
    second = export_bundle(read_sentence_model(folder, model.name), folder, [Variant.FP32])
    assert set(second.variants) == {"fp32", "int8"}
    assert second.variants["int8"] == first.variants["int8"]
    assert open_encoder_bundle(folder).variant_file("int8").is_file()


def test_non_bundle_folders_are_not_overwritten(model: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, message in (("notes", "neither empty nor an es-sbert bundle"), ("file", "is a file")):
        with pytest.raises(UsageError, match=message):
            export_bundle(model, tmp_path / name, BOTH)
    assert contents(tmp_path) == {"notes/mine.txt": b"mine", "file": b"mine"}
    (tmp_path / "empty").mkdir()
    assert export_bundle(model, tmp_path / "empty", [Variant.FP32]).variants


def test_bundle_of_another_model_is_not_overwritten(bundle: tuple[Path, EncoderManifest], tmp_path: Path) -> None:
    other = read_sentence_model(write_checkpoint(tmp_path / "other", seed=7, layers=1))
    before = contents(bundle[0])
    with pytest.raises(UsageError, match="not of other"):
        export_bundle(other, bundle[0], BOTH)
    assert contents(bundle[0]) == before


def test_empty_list_of_variants_is_rejected(model: SentenceModel, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one variant"):
        export_bundle(model, tmp_path / "bundle", [])


def test_variant_failing_parity_is_not_written(
    model: SentenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "quantize_columns", coarse)
    with pytest.raises(ParityFailed, match="variant int8 fails the parity check .* rank agreement") as raised:
        export_bundle(model, tmp_path / "bundle", BOTH)
    assert '`variants=["fp32"]`' in raised.value.remedy
    assert "`force`" in raised.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_failed_export_leaves_the_bundle_unchanged(
    model: SentenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    export_bundle(model, folder, BOTH)
    before = contents(tmp_path)
    monkeypatch.setattr(quantization, "quantize_columns", coarse)
    with pytest.raises(ParityFailed):
        export_bundle(model, folder, [Variant.INT8])
    assert contents(tmp_path) == before


def test_forced_variants_are_marked(model: SentenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "quantize_columns", coarse)
    manifest = export_bundle(model, tmp_path / "bundle", BOTH, force=True)
    assert manifest.variants["int8"].forced
    assert manifest.variants["int8"].parity is not None
    assert not manifest.variants["int8"].parity.passed
    assert not manifest.variants["fp32"].forced


def test_a_missing_tensor_writes_nothing(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1)
    weights = load_file(folder / "model.safetensors")
    del weights["embeddings.LayerNorm.bias"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(BundleInvalid, match=r"embeddings\.LayerNorm\.bias"):
        export_bundle(read_sentence_model(folder), tmp_path / "bundle", BOTH)
    assert not (tmp_path / "bundle").exists()


def test_large_weights_use_an_external_data_file(
    model: SentenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_builder, "EXTERNAL_DATA_FROM", 1)
    folder = tmp_path / "bundle"
    manifest = export_bundle(model, folder, [Variant.FP32])
    assert manifest.variants["fp32"].data_sha256 is not None
    assert (folder / "onnx" / "model_fp32.onnx.data").stat().st_size > 100_000
    assert encode(folder, "fp32", TEXTS).shape == (len(TEXTS), model.dimensions)
    # It travels with its variant when another one is exported.
    export_bundle(model, folder, [Variant.INT8])
    assert encode(folder, "fp32", TEXTS).shape == (len(TEXTS), model.dimensions)


def test_concurrent_exports_keep_each_others_variants(tmp_path: Path) -> None:
    model, output = read_sentence_model(write_tiny_bert(tmp_path / "tiny")), tmp_path / "bundle"

    def meanwhile(line: str) -> None:
        if line.startswith("Comparing int8"):
            export_bundle(model, output, [Variant.FP32])

    export_bundle(model, output, [Variant.INT8], on_progress=meanwhile)
    bundle = open_encoder_bundle(output)
    assert [bundle.variant_file(name).name for name in ("fp32", "int8")] == ["model_fp32.onnx", "model_int8.onnx"]


def test_failed_swap_restores_the_old_folder(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    (output / "old").write_text("old")
    with pytest.raises(OutputError, match="cannot be written"), staged_folder(output) as staging:
        staging.rmdir()
    assert contents(tmp_path) == {"bundle/old": b"old"}


def test_symlink_output_is_kept(model: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    export_bundle(model, tmp_path / "link", [Variant.FP32])
    export_bundle(model, tmp_path / "link", [Variant.FP32])
    assert (tmp_path / "link").is_symlink()
    assert set(open_encoder_bundle(tmp_path / "elsewhere").manifest.variants) == {"fp32"}


def test_unwritable_output_raises_output_error(model: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        export_bundle(model, tmp_path / "file" / "bundle", BOTH)


def test_export_works_without_torch_and_does_not_import_it(model: SentenceModel, tmp_path: Path) -> None:
    """`auto` without torch: the numpy reference; and importing the exporter must not import torch where it is."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'sentence_transformers'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from es_sbert.bundle.sentence_model import read_sentence_model\n"
        "from es_sbert.bundle.variants import Variant\n"
        "from es_sbert.exporters.export_bundle import export_bundle\n"
        "model = read_sentence_model(Path(sys.argv[1]))\n"
        "manifest = export_bundle(model, Path(sys.argv[2]), [Variant.FP32], reference='auto')\n"
        "print(manifest.variants['fp32'].parity.reference)\n"
    )
    command = [sys.executable, "-c", code, str(model.folder), str(tmp_path / "bundle")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("numpy ")
    imported = "import sys, es_sbert.exporters.export_bundle; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", imported], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


def test_parity_uses_numpy_if_sentence_transformers_fails(tmp_path: Path) -> None:
    """`auto` compares with numpy then, and says why."""
    folder = write_checkpoint(tmp_path / "tiny", layers=1, dense=[Dense(48, 8)])
    # No activation, as some write it; sentence-transformers takes a name only.
    settings = json.loads((folder / "2_Dense/config.json").read_text())
    (folder / "2_Dense/config.json").write_text(json.dumps({**settings, "activation_function": None}))
    model = read_sentence_model(folder)
    parity = export_bundle(model, tmp_path / "auto", [Variant.FP32], reference="auto").variants["fp32"].parity
    assert parity is not None
    assert parity.passed
    assert parity.reference.startswith("numpy ")
    assert "sentence-transformers fails on it: AttributeError" in parity.reference
    with pytest.raises(ModelError, match="cannot be compared with its reference"):
        export_bundle(model, tmp_path / "asked", [Variant.FP32], reference="sentence-transformers")
    assert not (tmp_path / "asked").exists()


@pytest.mark.long
def test_default_model_parity(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 against sentence-transformers on more than 1,000 sentences."""
    model = read_sentence_model(resolve_model(DEFAULT_MODEL), DEFAULT_MODEL)
    manifest = export_bundle(model, tmp_path / "bundle", BOTH, reference="sentence-transformers")
    fp32, int8 = manifest.variants["fp32"].parity, manifest.variants["int8"].parity
    assert fp32 is not None
    assert int8 is not None
    assert fp32.reference.startswith("sentence-transformers ")
    assert fp32.min_cosine >= 0.99999
    assert fp32.max_abs_difference < 1e-5
    assert int8.mean_cosine > 0.99
    assert int8.rank_agreement > 99
    assert json.loads((tmp_path / "bundle" / EncoderManifest.FILE_NAME).read_text())["name"] == DEFAULT_MODEL
