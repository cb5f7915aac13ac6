"""The paper's baselines: from a corpus to models that embed, and what a spec opens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("gensim")

from benchmarks.baselines.__main__ import main
from benchmarks.baselines.open_baseline import open_baseline
from benchmarks.baselines.word_vectors import tokenize
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder
from tests.tiny import HIDDEN, write_tiny_bert

_PAIRS = [
    f"a {noun} sleeps\tthe {noun} {verb}\t{label}"
    for noun in ("cat", "dog", "man")
    for verb, label in (("sleeps", "yes"), ("runs", "no"))
] * 4


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_words_are_those_of_glove() -> None:
    words = tokenize("The man's dog didn't cost $1,200.50.")
    assert words == ["The", "man", "'s", "dog", "did", "n't", "cost", "$", "1,200.50", "."]


def test_train_word_vectors_then_bilstm(tmp_path: Path) -> None:
    corpus, pairs = tmp_path / "corpus.jsonl.gz", tmp_path / "pairs.tsv.gz"
    vectors, folder = tmp_path / "words.vec.gz", tmp_path / "infersent"
    texts = [text for row in _PAIRS for text in row.split("\t")[:2]]
    corpus.write_bytes(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode()))
    pairs.write_bytes(gzip.compress("\n".join(["sentence1\tsentence2\tlabel", *_PAIRS, ""]).encode()))
    run("train", "word-vectors", corpus, "-o", vectors, "--dimensions", 5, "--min-count", 2)
    run("train", "bilstm", pairs, "--dev", pairs, "--vectors", vectors, "-o", folder, "--hidden", 3, "--epochs", 2)
    for spec, width in ((f"word2vec:{vectors}", 5), (f"infersent:{folder}", 6)):
        model = open_baseline(spec)
        assert isinstance(model, SentenceEmbedder)
        found = model.embed(["the cat runs", "a dog", "?"])
        assert found.shape == (3, width)
        assert np.abs(found[:2]).min(axis=1).max() > 0
        np.testing.assert_array_equal(found[2], 0)


def test_evaluate_prints_a_json_report(tmp_path: Path) -> None:
    vectors, sts = tmp_path / "words.vec", tmp_path / "small-test.tsv"
    vectors.write_text("a 1 2\ncat 3 4\ndog 4 1\n")
    sts.write_text("sentence1\tsentence2\tscore\na cat\ta cat\t5\na dog\tcat\t1\na\tdog\t0\n")
    report = json.loads(run("evaluate", f"glove:{vectors}", "--task", "sts", "--file", sts, "--json"))
    assert report["model"] == "glove averaged (words.vec)"
    assert report["rows"][0]["figures"]["spearman_cosine"] == pytest.approx(100)


def test_senteval_and_argument_similarity(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    (tmp_path / "transfer").mkdir()
    (tmp_path / "argument").mkdir()
    texts = [f"the {noun} sleeps on the {other}" for noun in ("cat", "man") for other in ("mat", "guitar")] * 14
    labels = ["1" if "cat" in text else "0" for text in texts]
    rows = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "transfer/MR.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))
    (tmp_path / "transfer/TREC-train.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))
    (tmp_path / "transfer/TREC-test.tsv").write_text("\n".join(["text\tlabel", *rows[:9], ""]))
    report = json.loads(run("evaluate", f"average:{folder}", "--task", "transfer", "--data", tmp_path, "--json"))
    assert [(row["data"], row["part"], row["size"]) for row in report["rows"]] == [
        ("MR", "10 folds", 56),
        ("TREC", "test", 9),
    ]
    assert all(row["figures"]["accuracy"] == 100 for row in report["rows"])

    pairs = [f"topic {n % 8}\t{text}\t{texts[n * 3 % 56]}\t{('NS', 'SS', 'HS')[n % 3]}" for n, text in enumerate(texts)]
    header = "topic\tsentence_1\tsentence_2\tlabel"
    (tmp_path / "argument/ukp.tsv").write_text("\n".join([header, *pairs, ""]))
    report = json.loads(run("evaluate", "tfidf", "--task", "argument", "--data", tmp_path, "--json"))
    assert [row["part"] for row in report["rows"]] == ["no training"]
    report = json.loads(run("evaluate", f"cls:{folder}", "--task", "argument", "--data", tmp_path, "--json"))
    assert [row["size"] for row in report["rows"]] == [56] * 3


def test_averages_of_words_with_and_without_a_header(tmp_path: Path) -> None:
    for kind, header in (("glove", ""), ("fasttext", "2 3\n")):
        (tmp_path / "words.vec").write_text(f"{header}a 1 2 3\ncat 3 2 1\n")
        model = open_baseline(f"{kind}:{tmp_path / 'words.vec'}")
        assert isinstance(model, SentenceEmbedder)
        np.testing.assert_array_equal(model.embed(["A cat"]), [[2, 2, 2]])


def test_tfidf_scores_pairs() -> None:
    model = open_baseline("tfidf")
    assert isinstance(model, PairScorer)
    same, other = model.score(["the cat", "the dog"], ["the cat", "a man"])
    assert same == pytest.approx(1)
    assert other == 0


def test_transformers_are_pooled_without_padding(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "tiny")
    for kind, name in (("average", "tiny averaged"), ("cls", "tiny CLS")):
        model = open_baseline(f"{kind}:{folder}")
        assert isinstance(model, SentenceEmbedder)
        assert model.name == name
        alone, together = model.embed(["a cat"]), model.embed(["a cat", "a dog and a cat and a man"])
        assert alone.shape == (1, HIDDEN)
        np.testing.assert_allclose(alone[0], together[0], atol=1e-6)


@pytest.mark.parametrize("spec", ["all-MiniLM-L6-v2", "org/name", "./folder", "glove", "average:", "other:thing", ""])
def test_other_specs_are_no_baseline(spec: str) -> None:
    assert open_baseline(spec) is None
