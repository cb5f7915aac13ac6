"""OpenVINO takes built, traced and routed graphs and those of cross-encoders, and gives the reference's vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from es_sbert.bundle.bundle import open_encoder_bundle
from es_sbert.bundle.cross_encoder_model import read_cross_encoder
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.reranker import Reranker
from es_sbert.exporters.export_bundle import export_bundle, export_reranker
from es_sbert.runtime.openvino_session import has_openvino
from tests.tiny import write_tiny_bert
from tests.unit.checkpoints import write_checkpoint, write_cross_encoder

pytestmark = pytest.mark.skipif(not has_openvino(), reason="openvino is not installed")


@pytest.mark.parametrize("architecture", ["mpnet", "roberta", "modernbert", "qwen3", "electra"])
def test_graph_passes_the_parity_check_of_fp32(architecture: str, tmp_path: Path) -> None:
    """Relative positions, positions from ids, rotary positions with windows or shared keys, and a traced graph."""
    model = read_sentence_model(write_checkpoint(tmp_path / "model", architecture, layers=2))
    manifest = export_bundle(model, tmp_path / "bundle", [Variant.OPENVINO_FP32])
    report = manifest.variants["openvino-fp32"].parity
    assert report is not None
    assert report.passed


def test_reranker_runs_on_openvino(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", "bert")
    export_reranker(read_cross_encoder(folder), tmp_path / "reranker", [Variant.FP32, Variant.OPENVINO_FP32])
    first, second = ["a cat", "the mat sleeps"], ["the dog on a mat", "a man"]
    scores = []
    for runtime in ("onnxruntime", "openvino"):
        with Reranker(tmp_path / "reranker", device="cpu", precision="fp32", runtime=runtime) as reranker:
            scores.append(reranker.score(first, second))
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_variant_added_to_a_bundle_keeps_the_shared_file_and_the_others(tmp_path: Path) -> None:
    model = read_sentence_model(write_tiny_bert(tmp_path / "tiny"))
    export_bundle(model, tmp_path / "bundle", [Variant.FP32, Variant.INT8])
    before = open_encoder_bundle(tmp_path / "bundle").manifest.variants
    export_bundle(model, tmp_path / "bundle", [Variant.OPENVINO_FP32])
    bundle = open_encoder_bundle(tmp_path / "bundle")
    assert list(bundle.manifest.variants) == ["fp32", "int8", "openvino-fp32"]
    assert {name: bundle.manifest.variants[name] for name in before} == before
    for name in bundle.manifest.variants:
        assert bundle.variant_file(name).is_file()


def test_shared_file_of_an_earlier_release_is_written_and_checked_anew(tmp_path: Path) -> None:
    """A bundle whose fp32 graph has other bytes than this release writes."""
    import onnx

    from es_sbert.bundle.bundle import EncoderManifest, hash_file
    from es_sbert.bundle.model_files import write_json

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
