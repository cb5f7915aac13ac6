"""What a user writes leads to the baseline meant, or to an error that says what to write."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.baselines.open_baseline import BASELINES, open_baseline
from es_sbert.errors import EsSbertError, ModelNotFound, SourceError, UsageError
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
from es_sbert.installation import install_extra_command
from tests.tiny import HIDDEN, write_tiny_bert


@pytest.mark.parametrize("spec", ["all-MiniLM-L6-v2", "org/name", "./folder", "glove", "Tfidf:x", "other:thing", ""])
def test_other_specs_are_no_baseline(spec: str) -> None:
    assert open_baseline(spec) is None


@pytest.mark.parametrize("kind", ["glove", "fasttext", "word2vec"])
def test_open_word_vectors(tmp_path: Path, kind: str) -> None:
    (tmp_path / "words.vec").write_text("2 3\na 1 2 3\ncat 3 2 1\n")
    model = open_baseline(f"{kind}:{tmp_path / 'words.vec'}")
    assert isinstance(model, SentenceEmbedder)
    assert model.name == f"{kind} averaged (words.vec)"
    np.testing.assert_array_equal(model.embed(["a cat"]), [[2, 2, 2]])


def test_open_tfidf(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("the cat\nthe dog\n")
    assert isinstance(open_baseline("tfidf"), PairScorer)
    model = open_baseline(f"tfidf:{tmp_path / 'corpus.txt'}")
    assert isinstance(model, SentenceEmbedder)
    assert model.embed(["a cat"]).shape == (1, 3)


@pytest.mark.parametrize(("kind", "name"), [("average", "tiny averaged"), ("cls", "tiny CLS")])
def test_open_transformer(tmp_path: Path, kind: str, name: str) -> None:
    model = open_baseline(f"{kind}:{write_tiny_bert(tmp_path / 'tiny')}")
    assert isinstance(model, SentenceEmbedder)
    assert model.name == name
    assert model.embed(["a cat"]).shape == (1, HIDDEN)


@pytest.mark.parametrize("kind", ["glove", "fasttext", "word2vec", "tfidf", "average", "cls", "infersent"])
def test_spec_without_a_path_is_rejected(kind: str) -> None:
    with pytest.raises(UsageError) as error:
        open_baseline(f"{kind}:")
    assert f"{kind}:" in error.value.remedy


@pytest.mark.parametrize(
    ("kind", "error"),
    [("glove", SourceError), ("tfidf", SourceError), ("average", ModelNotFound), ("infersent", EsSbertError)],
)
def test_missing_files_are_rejected(tmp_path: Path, kind: str, error: type[EsSbertError]) -> None:
    with pytest.raises(error, match="absent.txt"):
        open_baseline(f"{kind}:{tmp_path / 'absent.txt'}")


def test_missing_torch_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for spec in ("average:x", "infersent:x"):
        with pytest.raises(UsageError, match="torch") as error:
            open_baseline(spec)
        assert install_extra_command("train") in error.value.remedy


def test_every_baseline_form_is_listed() -> None:
    assert {form.partition(":")[0] for form in BASELINES} == {
        "glove",
        "fasttext",
        "word2vec",
        "tfidf",
        "average",
        "cls",
        "infersent",
    }
