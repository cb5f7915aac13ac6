"""Settings of cross-encoders are applied as sentence-transformers' `CrossEncoder.predict` does, or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from es_sbert.bundle.cross_encoder_model import CrossEncoderModel, read_cross_encoder
from es_sbert.bundle.variants import Variant
from es_sbert.encoder.reranker import Reranker
from es_sbert.errors import BundleInvalid, EsSbertError, UnsupportedArchitecture, UnsupportedSetting, UsageError
from es_sbert.exporters.export_bundle import export_reranker
from tests.raised import raises_as_recorded
from tests.unit.checkpoints import keep_only_the_vocabulary, write_cross_encoder
from tests.unit.exporters.comparison import edit

pytestmark = pytest.mark.slow

FIRST = ["Two children repaired the telescope.", "", "WHY is it late?", "The night train is late. " * 30]
SECOND = ["Is it true that a nurse fixed the pump?", "a", "Two CHILDREN repaired it.", "Why?"]
LIBRARY, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
TOKENIZER = "tokenizer_config.json"
_ACTIVATION = "torch.nn.modules.activation."


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Cross-encoders as `CrossEncoder.save` writes them, by their number of labels."""
    folder, models = tmp_path_factory.mktemp("models"), {}
    for labels in (1, 2, 3):
        write_cross_encoder(folder / f"plain-{labels}", labels=labels, layers=1)
        models[labels] = folder / f"saved-{labels}"
        CrossEncoder(str(folder / f"plain-{labels}"), device="cpu").save(str(models[labels]))
    return models


def copied(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder, tmp_path / "model")


def assert_same_scores(folder: Path, tmp_path: Path) -> CrossEncoderModel:
    """The exported model gives what `predict` gives."""
    model = read_cross_encoder(folder)
    export_reranker(model, tmp_path / "out", [Variant.FP32])
    theirs = CrossEncoder(str(folder), device="cpu").predict(
        list(zip(FIRST, SECOND, strict=True)), show_progress_bar=False
    )
    with Reranker(tmp_path / "out", device="cpu", threads=1) as reranker:
        ours = reranker.outputs(FIRST, SECOND)
        if len(model.labels) == 1:
            np.testing.assert_array_equal(reranker.score(FIRST, SECOND), ours[:, 0])
    np.testing.assert_allclose(ours, np.reshape(theirs, ours.shape), atol=2e-5)
    return model


# torch asks for the axis of a Softmax, which a path in a file cannot give.
@pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax")
@pytest.mark.parametrize("file", [LIBRARY, "config.json", "older"])
@pytest.mark.parametrize(("labels", "activation"), [(3, "Softmax"), pytest.param(1, "Tanh", marks=pytest.mark.long)])
def test_activation_in_every_place(
    file: str, labels: int, activation: str, saved: dict[int, Path], tmp_path: Path
) -> None:
    folder = copied(saved[labels], tmp_path)
    path = f"{_ACTIVATION}{activation}"
    edit(folder / LIBRARY, activation_fn=path if file == LIBRARY else None)
    if file == "config.json":
        edit(folder / "config.json", sentence_transformers={"activation_fn": path})
    elif file == "older":
        edit(folder / "config.json", sbert_ce_default_activation_function=path)
    assert assert_same_scores(folder, tmp_path).activation == activation.lower()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"id2label": {"1": "yes", "0": "no"}}, ("no", "yes")),
        ({"id2label": None, "num_labels": 2}, ("LABEL_0", "LABEL_1")),
    ],
)
def test_names_of_two_labels(
    settings: dict[str, Any], expected: tuple[str, ...], saved: dict[int, Path], tmp_path: Path
) -> None:
    folder = copied(saved[2], tmp_path)
    edit(folder / "config.json", **settings)
    assert assert_same_scores(folder, tmp_path).labels == expected


def test_default_prompt_is_put_before_the_first_text(saved: dict[int, Path], tmp_path: Path) -> None:
    folder = copied(saved[1], tmp_path)
    before = read_cross_encoder(folder)
    edit(folder / LIBRARY, prompts={"query": "The night train: "}, default_prompt_name=None)
    assert read_cross_encoder(folder).fingerprint == before.fingerprint
    edit(folder / LIBRARY, default_prompt_name="query")
    model = assert_same_scores(folder, tmp_path)
    assert model.fingerprint != before.fingerprint
    edit(folder / LIBRARY, default_prompt_name="other")
    with raises_as_recorded(BundleInvalid):
        read_cross_encoder(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"processor_kwargs": {"model_max_length": 12}, "max_seq_length": 20},
        {"processing_kwargs": {"text": {"max_length": 12}}, "max_seq_length": 20},
        {"query_length": 8, "document_length": 8},
        {"do_lower_case": True},
        {"model_kwargs": {"dtype": "float32"}, "unpad_inputs": False},
    ],
)
def test_settings_of_the_transformer(settings: dict[str, Any], saved: dict[int, Path], tmp_path: Path) -> None:
    folder = copied(saved[1], tmp_path)
    edit(folder / TRANSFORMER, **settings)
    assert_same_scores(folder, tmp_path)


@pytest.mark.parametrize("settings", [{"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}])
def test_settings_of_the_tokenizer_override_its_file(
    settings: dict[str, Any], saved: dict[int, Path], tmp_path: Path
) -> None:
    folder = copied(saved[1], tmp_path)
    edit(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", **settings)
    assert assert_same_scores(folder, tmp_path).tokenizer_changes


@pytest.mark.parametrize(
    "settings", [{"truncation_side": "left"}, {"model_input_names": ["input_ids", "attention_mask"]}]
)
def test_no_bundle_holds_graphs_of_two_tokenizers(
    settings: dict[str, Any], saved: dict[int, Path], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    export_reranker(read_cross_encoder(saved[1]), bundle, [Variant.FP32])
    folder = copied(saved[1], tmp_path)
    edit(folder / TOKENIZER, **settings)
    assert_same_scores(folder, tmp_path)
    with raises_as_recorded(UsageError):
        export_reranker(read_cross_encoder(folder), bundle, [Variant.INT8])


def test_code_of_a_model_never_runs(saved: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(saved[1], tmp_path)
    edit(folder / "config.json", model_type="other", auto_map={"AutoConfig": "code.OtherConfig"})
    (folder / "code.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import BertConfig as OtherConfig"
    )
    monkeypatch.setattr("builtins.input", lambda prompt: "y")  # transformers would ask
    with raises_as_recorded(UnsupportedArchitecture):
        export_reranker(read_cross_encoder(folder), tmp_path / "bundle", [Variant.FP32])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "mpnet", "roberta"])
def test_vocabulary_without_tokenizer_file_makes_one(architecture: str, tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", architecture, layers=1)
    keep_only_the_vocabulary(folder)
    assert_same_scores(folder, tmp_path)


def test_padding_that_changes_scores_is_refused(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "model", "electra", layers=1)
    edit(folder / TOKENIZER, padding_side="left")
    with raises_as_recorded(UnsupportedArchitecture):
        export_reranker(read_cross_encoder(folder), tmp_path / "out", [Variant.FP32])


@pytest.mark.parametrize("processor", [None, {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]}])
def test_pairs_of_roberta_have_its_template(processor: dict[str, Any] | None, tmp_path: Path) -> None:
    """Two separators between the texts, even if tokenizer.json has another template."""
    folder = write_cross_encoder(tmp_path / "model", "roberta", layers=1)
    edit(folder / "tokenizer.json", post_processor=processor)
    edit(folder / "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    assert "post_processor" in assert_same_scores(folder, tmp_path).tokenizer_changes


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (LIBRARY, {"score_range": [0, 5]}),
        (TOKENIZER, {"new_setting": 1}),
        (TOKENIZER, {"split_special_tokens": True}),
        (TOKENIZER, {"auto_map": {"AutoTokenizer": ["x.X", None]}}),
        (TOKENIZER, {"model_input_names": ["input_ids"]}),
        (TOKENIZER, {"padding_side": "left"}),
        ("tokenizer.json", {"padding": {"direction": "Left"}}),
        (TRANSFORMER, {"config_kwargs": {"num_labels": 3}}),
        (TRANSFORMER, {"transformer_task": "text-generation"}),
        (TRANSFORMER, {"module_output_name": "token_embeddings"}),
        (TRANSFORMER, {"processing_kwargs": {"text": {"truncation": "only_second"}}}),
        (TRANSFORMER, {"modality_config": {"text": {"method": "forward", "method_output_name": "loss"}}}),
        (TRANSFORMER, {"modality_config": {"image": {"method": "forward"}}}),
        (TRANSFORMER, {"modality_config": 5}),
    ],
)
def test_settings_that_are_refused(file: str, settings: dict[str, Any], saved: dict[int, Path], tmp_path: Path) -> None:
    folder = copied(saved[1], tmp_path)
    edit(folder / file, **settings)
    with raises_as_recorded(EsSbertError):
        read_cross_encoder(folder)


def test_chat_template_is_refused(saved: dict[int, Path], tmp_path: Path) -> None:
    folder = copied(saved[1], tmp_path)
    edit(folder / TRANSFORMER, modality_config=None, module_output_name="scores")
    read_cross_encoder(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with raises_as_recorded(UnsupportedSetting):
        read_cross_encoder(folder)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of peft
def test_adapter_is_merged_as_the_error_says(saved: dict[int, Path], tmp_path: Path) -> None:
    """By sentence-transformers, which saves no head with an adapter, and by peft, which saves one."""
    peft = pytest.importorskip("peft")
    loras = [peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]) for _ in range(2)]
    adapted, trained = (CrossEncoder(str(saved[1]), device="cpu") for _ in loras)
    adapted.add_adapter(loras[0])
    with_head = peft.get_peft_model(trained[0].model, loras[1])
    for network in (adapted, with_head):
        for name, parameter in network.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.data.normal_(0, 0.3)
    adapted.save(str(tmp_path / "adapted"))
    with_head.save_pretrained(str(tmp_path / "head"))
    trained[0].model = with_head
    for folder, network in ((tmp_path / "adapted", adapted), (tmp_path / "head", trained)):
        with raises_as_recorded(UnsupportedArchitecture) as raised:
            read_cross_encoder(folder)
        statements = raised.value.remedy.partition("save the model: ")[2].removesuffix(".")
        names = {"PeftConfig": peft.PeftConfig, "PeftModel": peft.PeftModel, "CrossEncoder": CrossEncoder}
        exec(statements, {**names, "NEW_FOLDER": str(folder) + "-merged"})
        export_reranker(read_cross_encoder(Path(f"{folder}-merged")), Path(f"{folder}-bundle"), [Variant.FP32])
        with Reranker(Path(f"{folder}-bundle"), device="cpu", threads=1) as reranker:
            theirs = network.predict(list(zip(FIRST, SECOND, strict=True)), show_progress_bar=False)
            np.testing.assert_allclose(reranker.score(FIRST, SECOND), theirs, atol=2e-5)
