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
from sentence_transformers.sentence_transformer.modules import Dense

from es_sbert.bundle.bundle import EncoderManifest, hash_file, open_encoder_bundle
from es_sbert.bundle.model_files import write_json
from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.config import DEFAULT_MODEL
from es_sbert.errors import ModelError, OutputError, ParityFailed, UsageError
from es_sbert.exporters import graph_builder, quantization
from es_sbert.exporters.export_bundle import export_bundle
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.filesystem import staged_folder
from es_sbert.runtime.batching import PackedBatch
from es_sbert.runtime.device import cuda_devices
from es_sbert.runtime.openvino_session import has_openvino
from tests.raised import raises, raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import open_variant, write_checkpoint

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
    with open_variant(folder, variant, threads=1) as encoder:
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
    fp32, int8 = manifest.variants["fp32"].parity, manifest.variants["int8"].parity
    assert fp32 is not None
    assert int8 is not None
    assert (fp32.reference, fp32.passed, int8.passed) == (f"numpy {np.__version__}", True, True)
    assert fp32.sentences >= 1000
    assert int8.rank_agreement < fp32.rank_agreement
    # Without CUDA nobody has seen these run: the manifest must not claim anything.
    assert cuda_devices() or manifest.variants["fp16"].parity is None


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


@pytest.mark.parametrize("variant", BOTH)
def test_vector_is_independent_of_the_batch(bundle: tuple[Path, EncoderManifest], variant: str) -> None:
    """Else a document embedded again, in another batch, would seem to have changed."""
    together = encode(bundle[0], variant, TEXTS)
    alone = np.concatenate([encode(bundle[0], variant, [text]) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=2e-5)


def test_non_bundle_folders_are_not_overwritten(model: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("notes", "file"):
        with raises(UsageError, "output", tmp_path / name):
            export_bundle(model, tmp_path / name, BOTH)
    assert contents(tmp_path) == {"notes/mine.txt": b"mine", "file": b"mine"}


def test_bundle_of_another_model_is_not_overwritten(bundle: tuple[Path, EncoderManifest], tmp_path: Path) -> None:
    other = read_sentence_model(write_checkpoint(tmp_path / "other", seed=7, layers=1))
    before = contents(bundle[0])
    with raises(UsageError, "output"):
        export_bundle(other, bundle[0], BOTH)
    assert contents(bundle[0]) == before


def test_variant_failing_parity_is_written_only_if_forced(
    model: SentenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_bundle(model, tmp_path / "bundle", BOTH)
    before = contents(tmp_path)
    monkeypatch.setattr(quantization, "quantize_columns", coarse)
    for name, variants in (("new", BOTH), ("bundle", [Variant.INT8])):
        with raises_as_recorded(ParityFailed):
            export_bundle(model, tmp_path / name, variants)
        assert contents(tmp_path) == before
    manifest = export_bundle(model, tmp_path / "bundle", BOTH, force=True)
    assert [manifest.variants[name].forced for name in BOTH] == [False, True]
    assert manifest.variants["int8"].parity is not None
    assert not manifest.variants["int8"].parity.passed


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


@pytest.mark.skipif(not has_openvino(), reason="openvino is not installed")
def test_shared_file_of_an_earlier_release_is_written_and_checked_anew(tmp_path: Path) -> None:
    """A bundle whose fp32 graph has other bytes than this release writes."""
    model = read_sentence_model(write_tiny_bert(tmp_path / "tiny"))
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.FP32])
    path = tmp_path / "bundle/onnx/model_fp32.onnx"
    graph = onnx.load(path)
    graph.doc_string = "of an earlier release"
    onnx.save(graph, path)
    earlier = manifest.variants["fp32"].model_copy(update={"sha256": hash_file(path)})
    changed = manifest.model_copy(update={"variants": {"fp32": earlier}})
    write_json(tmp_path / "bundle" / EncoderManifest.FILE_NAME, changed.model_dump(mode="json"))

    export_bundle(model, tmp_path / "bundle", [Variant.OPENVINO_FP32])
    bundle = open_encoder_bundle(tmp_path / "bundle")
    for name in ("fp32", "openvino-fp32"):
        assert bundle.variant_file(name) == path
        assert bundle.manifest.variants[name].parity is not None
    assert not onnx.load(path).doc_string


def test_failed_swap_restores_the_old_folder(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    (output / "old").write_text("old")
    with raises_as_recorded(OutputError), staged_folder(output) as staging:
        staging.rmdir()
    assert contents(tmp_path) == {"bundle/old": b"old"}


def test_symlink_output_is_kept(model: SentenceModel, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    export_bundle(model, tmp_path / "link", [Variant.FP32])
    export_bundle(model, tmp_path / "link", [Variant.FP32])
    assert (tmp_path / "link").is_symlink()
    assert set(open_encoder_bundle(tmp_path / "elsewhere").manifest.variants) == {"fp32"}


def test_export_compares_with_numpy_without_torch(model: SentenceModel, tmp_path: Path) -> None:
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
    with raises_as_recorded(ModelError):
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
