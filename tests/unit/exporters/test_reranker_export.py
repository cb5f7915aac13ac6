"""`export_reranker`: what it writes, what it refuses, and that it leaves nothing half done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from es_sbert.bundle.bundle import RerankerManifest, open_reranker_bundle
from es_sbert.bundle.cross_encoder_model import is_cross_encoder, read_cross_encoder
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Precision, Variant
from es_sbert.cli.main import main
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import BundleInvalid, DeviceError, ParityFailed, UnsupportedArchitecture, UsageError
from es_sbert.exporters import export_model, parity, quantization
from es_sbert.exporters.export_bundle import export_reranker
from es_sbert.exporters.parity import compare_scores
from es_sbert.exporters.tracing import TracedCrossEncoder
from es_sbert.exporters.transformer_weights import Floats
from tests.raised import raises, raises_as_recorded
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import ARCHITECTURES, UNFUSED_ARCHITECTURES, mostly_long, write_cross_encoder
from tests.unit.exporters.comparison import edit
from tests.unit.exporters.test_export import coarse, contents

pytestmark = pytest.mark.slow

BOTH = [Variant.FP32, Variant.INT8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_cross_encoder(tmp_path_factory.mktemp("models") / "bert", layers=1)
    (folder / "training_args.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture(scope="module")
def exported(folder: Path) -> tuple[Path, RerankerManifest]:
    output = folder.with_name("exported")
    return output, export_reranker(read_cross_encoder(folder), output, BOTH)


def test_exported_files_and_manifest(folder: Path, exported: tuple[Path, RerankerManifest]) -> None:
    output, manifest = exported
    assert {path.name for path in (output / "onnx").iterdir()} == {"model_fp32.onnx", "model_int8.onnx"}
    assert (output / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not list(output.rglob("*.bin"))
    assert open_reranker_bundle(output).manifest == manifest
    assert (manifest.labels, manifest.activation, manifest.max_tokens) == (("LABEL_0",), "sigmoid", 64)
    fp32, int8 = manifest.variants["fp32"].parity, manifest.variants["int8"].parity
    assert fp32.reference.startswith("sentence-transformers ")
    assert fp32.pairs == int8.pairs >= 1000
    assert fp32.max_difference < 0.001
    assert 0.001 < int8.mean_difference < 0.2
    assert not any(variant.forced for variant in manifest.variants.values())


def test_exported_graphs(exported: tuple[Path, RerankerManifest]) -> None:
    for name in BOTH:
        graph = onnx.load(str(exported[0] / f"onnx/model_{name}.onnx"))
        assert graph.ir_version <= 10  # onnxruntime 1.22 reads up to 10
        assert [value.name for value in graph.graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
        assert [value.name for value in graph.graph.output] == ["score"]
        operators = [node.op_type for node in graph.graph.node]
        # Query, key, value, output and the feed-forward block's two; pooler and classifier run once a pair.
        assert operators.count("MatMulIntegerToFloat") == (6 if name == "int8" else 0)
        assert operators.count("Gemm") == 2


@pytest.mark.parametrize("architecture", mostly_long([*ARCHITECTURES, *UNFUSED_ARCHITECTURES]))
def test_every_architecture_passes_parity_in_fp32_and_fp16(architecture: str, tmp_path: Path) -> None:
    model = read_cross_encoder(write_cross_encoder(tmp_path / "model", architecture))
    variants = export_reranker(model, tmp_path / "out", [Variant.FP32, Variant.FP16]).variants
    single, half = variants["fp32"].parity, variants["fp16"].parity
    assert single.passed
    assert single.max_difference < 1e-4
    assert half.passed
    assert half.mean_difference < 0.01
    # ModernBERT turns queries and keys by their positions; XLNet's scores are sums of three products.
    operators = [node.op_type for node in onnx.load(str(tmp_path / "out/onnx/model_fp16.onnx")).graph.node]
    assert operators.count("MultiHeadAttention") == (0 if architecture in UNFUSED_ARCHITECTURES else 2)


def test_variant_failing_parity_is_not_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "quantize_columns", coarse)
    with raises_as_recorded(ParityFailed):
        export_reranker(read_cross_encoder(folder), tmp_path / "out", BOTH)
    assert list(tmp_path.iterdir()) == []
    manifest = export_reranker(read_cross_encoder(folder), tmp_path / "out", BOTH, force=True)
    assert [manifest.variants[name].forced for name in BOTH] == [False, True]
    with Reranker(tmp_path / "out", device="cpu") as reranker:
        assert reranker.name.endswith("(fp32)")


def test_other_folders_are_not_overwritten(exported: tuple[Path, RerankerManifest], tmp_path: Path) -> None:
    other = read_cross_encoder(write_cross_encoder(tmp_path / "other", seed=7, layers=1))
    before = contents(exported[0])
    with raises(UsageError, "output"):
        export_reranker(other, exported[0], BOTH)
    with raises(UsageError, "ignore_settings"):
        export_model(other.folder, exported[0], ignore_settings=["config.json:new"])
    assert contents(exported[0]) == before


def test_variant_that_cannot_be_compared_here_is_written_as_such(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks_device(self: TracedCrossEncoder, path: Path, variant: Variant) -> None:
        raise DeviceError("this processor has no bf16 products", "Use another one.")

    monkeypatch.setattr(TracedCrossEncoder, "compare", lacks_device)
    export_reranker(read_cross_encoder(folder), tmp_path / "out", [Variant.FP32])
    assert open_reranker_bundle(tmp_path / "out").manifest.variants["fp32"].parity is None
    with Reranker(tmp_path / "out", device="cpu") as reranker:
        assert "was never compared" in "".join(reranker.warnings)


def test_fp16_is_emulated_without_cuda(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "cuda_devices", lambda: 0)
    lines: list[str] = []
    model = read_cross_encoder(folder)
    manifest = export_reranker(model, tmp_path / "out", [Variant.FP16, Variant.FP32], on_progress=lines.append)
    half, single = manifest.variants["fp16"], manifest.variants["fp32"]
    assert (half.device, half.parity.emulated) == ("cuda", True)
    assert (single.device, single.parity.emulated) == ("cpu", False)
    assert 1e-4 < half.parity.mean_difference < 0.02
    assert any(line.startswith("fp16: ") and "emulated on the CPU" in line for line in lines)
    [score] = onnx.load(str(tmp_path / "out/onnx/model_fp16.onnx")).graph.output
    assert score.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    sizes = {name: (tmp_path / "out" / variant.file).stat().st_size for name, variant in manifest.variants.items()}
    assert sizes["fp16"] < 0.7 * sizes["fp32"]


def test_manifests_from_before_fp16_are_read(exported: tuple[Path, RerankerManifest], tmp_path: Path) -> None:
    old = shutil.copytree(exported[0], tmp_path / "old")
    manifest = json.loads((old / RerankerManifest.FILE_NAME).read_text())
    for variant in manifest["variants"].values():
        del variant["parity"]["emulated"]
    (old / RerankerManifest.FILE_NAME).write_text(json.dumps(manifest))
    assert not open_reranker_bundle(old).manifest.variants["fp32"].parity.emulated


def test_is_cross_encoder(folder: Path, exported: tuple[Path, RerankerManifest], tmp_path: Path) -> None:
    assert is_cross_encoder(folder)
    assert is_cross_encoder(exported[0])
    for model in (folder, exported[0]):
        with raises_as_recorded(BundleInvalid):
            read_sentence_model(model)
    tiny = write_tiny_bert(tmp_path / "tiny")
    # A sentence encoder that was cut out of a classifier.
    edit(tiny / "config.json", architectures=["BertForSequenceClassification"])
    assert not is_cross_encoder(tiny)
    assert not is_cross_encoder(tmp_path)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A cross-encoder to be broken."""
    return write_cross_encoder(tmp_path / "broken", layers=1)


@pytest.mark.parametrize(
    ("file", "settings", "error"),
    [
        ("config.json", {"architectures": ["BertForMaskedLM"]}, UnsupportedArchitecture),
        ("config.json", {"id2label": {"a": "b"}}, BundleInvalid),
        ("config.json", {"sbert_ce_default_activation_function": "mine.Own"}, UnsupportedArchitecture),
        ("tokenizer_config.json", {"model_max_length": 10**30}, None),
    ],
)
def test_invalid_settings_are_rejected(
    file: str, settings: dict[str, Any], error: type[Exception] | None, broken: Path
) -> None:
    edit(broken / file, **settings)
    if error is None:
        assert read_cross_encoder(broken).max_tokens == 64  # the network's positions
        return
    with raises_as_recorded(error):
        read_cross_encoder(broken)


def test_other_modules_and_pickles_are_refused(broken: Path) -> None:
    modules = [{"type": "a.Transformer", "path": ""}, {"type": "a.LogitScore", "path": "1"}]
    (broken / "modules.json").write_text(json.dumps(modules))
    with raises_as_recorded(UnsupportedArchitecture):
        read_cross_encoder(broken)
    (broken / "modules.json").unlink()
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with raises_as_recorded(BundleInvalid):
        read_cross_encoder(broken)


def test_unknown_architecture_is_rejected_and_its_code_not_run(broken: Path, tmp_path: Path) -> None:
    edit(broken / "config.json", model_type="mine", auto_map={"AutoModelForSequenceClassification": "modeling.Mine"})
    (broken / "modeling.py").write_text("raise SystemExit('this ran')")
    with raises_as_recorded(UnsupportedArchitecture):
        export_reranker(read_cross_encoder(broken), tmp_path / "out", BOTH)


def test_missing_head_and_prefixed_weights_are_rejected(broken: Path, tmp_path: Path) -> None:
    """transformers would make one up from random numbers."""
    weights = load_file(broken / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if not name.startswith("classifier")},
        broken / "model.safetensors",
        metadata={"format": "pt"},
    )
    with raises_as_recorded(BundleInvalid):
        export_reranker(read_cross_encoder(broken), tmp_path / "out", BOTH)
    wrapped = {f"0.auto_model.{name}": value for name, value in weights.items()}
    save_file(wrapped, broken / "model.safetensors", metadata={"format": "pt"})
    with raises_as_recorded(BundleInvalid):
        export_reranker(read_cross_encoder(broken), tmp_path / "out", BOTH)
    assert not (tmp_path / "out").exists()


def test_fingerprint_changes_with_anything_that_affects_scores(broken: Path) -> None:
    before = read_cross_encoder(broken).fingerprint
    edit(broken / "config.json", transformers_version="9", hidden_dropout_prob=0.5)
    assert read_cross_encoder(broken).fingerprint == before
    edit(broken / "config.json", sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    assert read_cross_encoder(broken).fingerprint != before


def test_differences_are_in_standard_deviations() -> None:
    reference = np.array([[0.0], [10.0], [20.0], [30.0]], dtype=np.float32)  # standard deviation √125
    moved = reference + np.float32([[0], [0], [0], [4]])
    report = compare_scores(Precision.INT8, "r", reference, moved)
    assert report.max_difference == pytest.approx(4 / 125**0.5)
    assert report.mean_difference == pytest.approx(4 / 125**0.5 / 4)
    assert report.rank_agreement == pytest.approx(100)
    assert report.passed
    assert not compare_scores(Precision.FP32, "r", reference, moved).passed
    turned = compare_scores(Precision.INT8, "r", reference, reference[[1, 0, 2, 3]])
    assert turned.rank_agreement == pytest.approx(80)  # 1 − 6 · 2 / (4 · 15)
    assert not turned.passed
    lost = compare_scores(Precision.INT8, "r", reference, reference * np.float32("nan"))
    assert not lost.passed
    assert json.loads(lost.model_dump_json())["max_difference"] == 0
    labels = np.arange(20, dtype=np.float32).reshape(10, 2)
    moved = np.stack([labels[:, 0], labels[::-1, 1]], axis=1)
    assert compare_scores(Precision.FP32, "r", labels, moved).rank_agreement == pytest.approx(-100)  # the worst label's


def test_export_command_detects_a_cross_encoder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder), "-o", str(output), "--precision", "fp32"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == ["fp32", "cpu"]


@pytest.mark.parametrize(
    ("change", "passed"),
    [
        (lambda scores: scores + np.float32(0.05), True),
        (lambda scores: scores + np.float32(0.2), False),  # 0.2 standard deviations on average
        (lambda scores: np.where(scores == scores.max(), scores + np.float32(1.5), scores), False),  # one went astray
        (lambda scores: np.round(scores * 4) / 4, False),  # ties where there was an order: 0.06 on average
    ],
)
def test_each_threshold_of_the_parity_check(change: Callable[[Floats], Floats], passed: bool) -> None:
    # Two ends far apart, half of the pairs at each, the spread within an end a twentieth of the whole.
    ends = np.random.default_rng(0).normal(0, 0.05, (1000, 1)) + np.repeat([[-1.0], [1.0]], 500, axis=0)
    reference = ((ends - ends.mean()) / ends.std()).astype(np.float32)
    assert compare_scores(Precision.INT8, "r", reference, change(reference).astype(np.float32)).passed == passed
