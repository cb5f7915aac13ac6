"""The package for ml-commons holds the model's own vectors, for an older runtime."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer

from es_sbert.bundle.bundle import hash_file
from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.cli.main import main
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import UnsupportedArchitecture, UsageError
from es_sbert.exporters.opensearch_ml import export_opensearch_ml, lower_opset
from tests.tiny import write_tiny_bert

TEXTS = ["A man plays guitar.", "cat", "the cat sleeps on the mat . " * 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prompts = {"query": "query : ", "document": "passage : "}
    return write_tiny_bert(tmp_path_factory.mktemp("model") / "tiny (1)", prompts=prompts)


@pytest.fixture(scope="module")
def package(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("package") / "out"
    assert export_opensearch_ml(read_sentence_model(folder, "a model; of ours"), output) == output / "register.json"
    return output


def test_packaged_graph_and_tokenizer_equal_the_model(
    package: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path))
    with zipfile.ZipFile(package / "model.zip") as archive:
        assert sorted(archive.namelist()) == ["model.onnx", "tokenizer.json"]
        session = onnxruntime.InferenceSession(archive.read("model.onnx"), providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    assert [entry.name for entry in session.get_inputs()] == ["input_ids", "attention_mask"]
    with Encoder(str(folder), device="cpu", precision="fp32") as encoder:
        expected = encoder.encode(TEXTS)
    for text, vector in zip(TEXTS, expected, strict=True):
        encoding = tokenizer.encode(text)  # as ml-commons does it: one text, cut by the tokenizer
        ids, mask = (np.array([row], np.int64) for row in (encoding.ids, encoding.attention_mask))
        [given] = session.run(None, {"input_ids": ids, "attention_mask": mask})
        np.testing.assert_allclose(given, [vector], atol=1e-5)


def test_graph_uses_the_older_opset(package: Path) -> None:
    with zipfile.ZipFile(package / "model.zip") as archive:
        graph = onnx.load_from_string(archive.read("model.onnx"))
    assert {entry.domain: entry.version for entry in graph.opset_import}[""] == 19
    assert graph.ir_version <= 9
    assert "Gelu" not in {node.op_type for node in graph.graph.node}
    onnx.checker.check_model(graph)


def test_register_request_names_the_zip_and_the_graph_pools(package: Path, folder: Path) -> None:
    request = json.loads((package / "register.json").read_text())
    config = request["model_config"]
    assert request["name"] == "a model- of ours"
    assert request["url"] == (package / "model.zip").resolve().as_uri()
    assert request["model_content_hash_value"] == hash_file(package / "model.zip")
    assert (config["pooling_mode"], config["normalize_result"], config["embedding_dimension"]) == ("none", False, 16)
    assert config["model_type"] not in ("bert", "albert")
    assert (config["query_prefix"], config["passage_prefix"]) == ("query : ", "passage : ")
    assert json.loads(config["all_config"])["hidden_size"] == 16


def test_zip_is_reproducible(package: Path, folder: Path) -> None:
    before = hash_file(package / "model.zip")
    export_opensearch_ml(read_sentence_model(folder, "a model; of ours"), package)  # what it wrote before is replaced
    assert hash_file(package / "model.zip") == before


def test_lowercasing_model_is_rejected(folder: Path, tmp_path: Path) -> None:
    model = read_sentence_model(folder).model_copy(update={"lowercase": True})
    with pytest.raises(UsageError, match="lower-cased"):
        export_opensearch_ml(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_foreign_folder_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="neither empty"):
        export_opensearch_ml(read_sentence_model(folder), tmp_path)


@pytest.mark.parametrize("options", [["--precision", "int8"], ["--force"], ["--sts", "pairs.tsv"]])
def test_bundle_options_are_rejected(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", str(folder), "-o", str(tmp_path / "out"), "--target", "opensearch-ml", *options])
    assert ended.value.code == 2
    assert "supports only a sentence encoder" in capsys.readouterr().err


def one_node(operator: str, domain: str = "", opset: int = 20, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(operator, ["x"], ["y"], domain=domain, **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([node], "one", values[:1], values[1:])
    domains = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_lowered_gelu_equals_gelu(approximate: str) -> None:
    x = np.linspace(-6, 6, 101, dtype=np.float32)  # (101,)
    run: Callable[[onnx.ModelProto], np.ndarray] = lambda graph: onnxruntime.InferenceSession(  # noqa: E731
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, {"x": x})[0]
    expected = run(one_node("Gelu", approximate=approximate))
    lowered = lower_opset(one_node("Gelu", approximate=approximate), 19)
    onnx.checker.check_model(lowered)
    np.testing.assert_allclose(run(lowered), expected, atol=2e-6)


@pytest.mark.parametrize(("operator", "domain"), [("IsInf", ""), ("QuickGelu", "com.microsoft"), ("Relu", "mine")])
def test_operators_changed_since_the_older_opset_are_rejected(operator: str, domain: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=operator):
        lower_opset(one_node(operator, domain), 19)
