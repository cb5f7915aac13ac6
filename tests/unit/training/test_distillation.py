"""Students that learn their teacher's vectors of texts without labels."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import ANY, Mock

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from es_sbert.bundle.bundle import open_encoder_bundle
from es_sbert.bundle.sentence_model import SentenceModel, read_sentence_model
from es_sbert.cli.distill import distill_summary
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import CheckpointInvalid, ModelNotFound, SourceError, UsageError, WrongArgument
from es_sbert.exporters.parity import parity_sentences
from es_sbert.settings import Student
from es_sbert.training import adapt_model, train_model
from es_sbert.training import distill_model as distill
from es_sbert.training.distillation import distillation_recipe, split_texts
from tests.e2e.cli_support import cli_in_process
from tests.raised import raises, raises_as_recorded
from tests.unit.training.support import cut_at, write_model

TEXTS = [text for text in parity_sentences(400) if text.strip()]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path_factory.getbasetemp() / "distillation-cache"))


def _vectors(folder: Path, texts: list[str]) -> np.ndarray:
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        return encoder.encode(texts)


def _cosine(folder: Path, teacher: Path, texts: list[str]) -> float:
    return 100 * float((_vectors(folder, texts) * _vectors(teacher, texts)).sum(axis=1).mean())


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, None])
def test_student_comes_near_its_teacher_and_opens_in_sentence_transformers(
    model: Path, tmp_path: Path, layers: int | None
) -> None:
    output = tmp_path / "student"
    made = distill(str(model), output, [*TEXTS, *TEXTS[:9], " "], layers=layers, epochs=2, batch=16)
    distinct = list(dict.fromkeys(TEXTS))
    held_out = split_texts(distinct, 42)[1]
    assert (made.texts, made.dev_texts) == (len(distinct) - len(held_out), len(held_out))
    assert made.start_cosine is not None
    assert made.cosine is not None
    assert made.cosine > made.start_cosine + 1
    # The teacher may run in int8.
    assert made.cosine == pytest.approx(_cosine(output, model, held_out), abs=1)
    assert f": {made.start_cosine:.2f} → {made.cosine:.2f}\n" in distill_summary("mine", made, 1)
    bundle = open_encoder_bundle(output)
    assert (bundle.manifest.fingerprint, bundle.model.dimensions) == (made.fingerprint, 32)
    assert bundle.model.architecture == ("static" if layers is None else "bert")
    theirs = SentenceTransformer(str(output), device="cpu").encode(TEXTS[:50])
    np.testing.assert_allclose(_vectors(output, TEXTS[:50]), theirs, atol=1e-5)
    assert not list(output.rglob("*.npy"))
    with raises(UsageError, "output"):
        distill(str(model), output, TEXTS, layers=layers)


def test_interrupted_run_resumes_with_the_same_texts_only(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr("es_sbert.training.training_run._export", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            distill(str(model), tmp_path / "student", TEXTS, epochs=1)
    with raises_as_recorded(CheckpointInvalid):
        distill(str(model), tmp_path / "student", TEXTS[:-1], epochs=1, resume=True)
    with raises_as_recorded(CheckpointInvalid):
        distill(str(model), tmp_path / "student", TEXTS, epochs=1, seed=1, resume=True)
    resumed = distill(str(model), tmp_path / "student", TEXTS, epochs=1, resume=True)
    whole = distill(str(model), tmp_path / "whole", TEXTS, epochs=1, name="student")
    assert resumed.fingerprint == whole.fingerprint


def _interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_distilled_is_refused_before_the_work(model: Path, tmp_path: Path) -> None:
    with raises(UsageError, "texts"):
        distill(str(model), tmp_path / "out", layers=1)
    with raises(UsageError, "layers", 2):
        distill(str(model), tmp_path / "out", TEXTS, layers=2)
    with raises_as_recorded(SourceError):
        distill(str(model), tmp_path / "out", [f"text {number}" for number in range(99)])
    for texts, value in (dict.fromkeys(TEXTS, 1), ANY), ("a text", "a text"), (set(TEXTS), ANY), ([*TEXTS, None], None):
        with raises(WrongArgument, "texts", value):
            distill(str(model), tmp_path / "out", texts)  # type: ignore[arg-type]
    with raises(UsageError, "name", "a name"):
        distill(str(model), tmp_path / "out", TEXTS, name="a name")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("layers", [None, 1])
def test_student_from_another_model_learns_the_space_of_its_teacher(
    model: Path, tmp_path: Path, layers: int | None
) -> None:
    """Its own prompts stay; those that it lacks are the teacher's."""
    teacher = write_model(tmp_path / "teacher", hidden=48, prompts={"query": "find ", "document": "text "})
    base = write_model(tmp_path / "base", prompts={"document": "passage "}, normalize=False)
    made = distill(str(teacher), tmp_path / "student", TEXTS, base=str(base), layers=layers, epochs=4, batch=16)
    student = read_sentence_model(tmp_path / "student")
    assert (student.dimensions, student.normalize) == (48, True)
    assert student.prompts == {"document": "passage ", "query": "find "}
    assert student.transformer_config["num_hidden_layers"] == (layers or 2)
    assert made.start_cosine is not None
    assert made.cosine is not None
    assert made.cosine > made.start_cosine + 10
    with Encoder(tmp_path / "student", device="cpu", precision="fp32") as ours, Encoder(teacher) as theirs:
        for kind in ("query", "document"):
            cosines = (ours.encode(TEXTS[:50], kind) * theirs.encode(TEXTS[:50], kind)).sum(axis=1)  # type: ignore[arg-type]
            assert 100 * cosines.mean() == pytest.approx(made.cosine, abs=10)
    expected = SentenceTransformer(str(tmp_path / "student"), device="cpu").encode(TEXTS[:5])
    np.testing.assert_allclose(_vectors(tmp_path / "student", TEXTS[:5]), expected, atol=1e-5)


def _teacher(prompts: dict[str, str], model: Path) -> SentenceModel:
    return read_sentence_model(model).model_copy(update={"prompts": prompts})


def test_prompts_take_turns_where_they_differ(model: Path) -> None:
    asymmetric = _teacher({"query": "query: ", "passage": "passage: "}, model)

    def prompts(teacher: SentenceModel, student: Student) -> list[tuple[str | None, str | None]]:
        (stage,) = distillation_recipe("student", teacher, student, 1000).stages
        return [(data.prompts.get("source"), stage.objective_of(data).teacher_prompt) for data in stage.data]  # type: ignore[union-attr]

    assert prompts(asymmetric, Student(layers=1)) == [("passage", "document"), ("query", "query")]
    # A static student has no prompts: its vectors of texts are drawn to those of the prompted texts.
    assert prompts(asymmetric, Student()) == [(None, "document")]
    assert prompts(_teacher({}, model), Student(layers=1)) == [(None, "document")]


def test_teacher_embeds_texts_with_the_prompt_of_their_turn(tmp_path: Path) -> None:
    teacher = write_model(tmp_path / "teacher", prompts={"query": "query: ", "document": "a document: "})
    with cut_at(1):
        distill(str(teacher), tmp_path / "student", TEXTS, layers=1, epochs=1)
    texts = split_texts(list(dict.fromkeys(TEXTS)), 42)[0]
    with Encoder(teacher, device="cpu", precision="fp32") as encoder:
        for number, kind in enumerate(("document", "query")):
            labels = np.load(tmp_path / f"student/training/distillation/teacher-{number}.npy")
            expected = encoder.encode(texts[number::2], kind)  # type: ignore[arg-type]
            np.testing.assert_allclose(labels, expected, atol=1e-5)


def test_command_distils_texts_of_files(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ES_SBERT_REGISTRY", str(tmp_path / "models.json"))
    cli = cli_in_process(capfd)
    (tmp_path / "texts.txt").write_text("\n".join(text.replace("\n", " ") for text in TEXTS), encoding="utf-8")
    begin = ("distill", model, "-o", tmp_path / "student")
    done = cli(*begin, "--static", "--texts", tmp_path / "texts.txt", "--epochs", "1", "--json")
    assert done.code == 0, done.err
    assert done.summary["texts"] > 300
    assert done.summary["cosine"] > done.summary["start_cosine"]
    assert "student" in cli("model", "list").out
    untrained = cli("distill", model, "-o", tmp_path / "untrained", "--static")
    assert "This student is untrained" in untrained.out
    for arguments in (("--layers", "1"), ("--base", model)):
        refused = cli("distill", model, "-o", tmp_path / "none", *arguments)
        assert (refused.code, "there are no texts" in refused.err) == (2, True)


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun starts them: each would write the same student."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for start in (
        lambda: distill("no-model", tmp_path / "out", ["a text"], layers=1),
        lambda: adapt_model("docs", tmp_path / "out", Mock()),
        lambda: train_model("no-recipe", tmp_path / "out"),
    ):
        with raises_as_recorded(UsageError):
            start()
        assert not (tmp_path / "out").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with raises_as_recorded(ModelNotFound):
        distill("no-model", tmp_path / "out", ["a text"], layers=1)
