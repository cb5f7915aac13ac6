"""From `KIND:PLACE`, as a user writes it, to a baseline."""

from __future__ import annotations

from collections.abc import Callable

from es_sbert.bundle.resolve import resolve_model
from es_sbert.errors import UsageError
from es_sbert.evaluation.models import Embedder, PairScorer
from es_sbert.extras import require
from es_sbert.home import expanded

# What can be written, for help texts: form → what it is.
BASELINES = {
    "glove:FILE": "averaged word vectors in GloVe's text format (`es-sbert baseline word-vectors` trains some)",
    "fasttext:FILE": "the same in fastText's or word2vec's text format",
    "word2vec:FILE": "the same",
    "tfidf": "cosine of tf-idf, idf from the texts of the task's own pairs (tasks of pairs only)",
    "tfidf:CORPUS": "tf-idf with idf from a corpus: lines of .txt, or the column `text` of a table",
    "average:MODEL": "averaged outputs of a transformer, without sentence tuning",
    "cls:MODEL": "first output of a transformer, without sentence tuning",
    "infersent:FOLDER": "BiLSTM-max that `es-sbert baseline bilstm` trained",
}


def open_baseline(spec: str, device: str = "cpu") -> Embedder | PairScorer | None:
    """Open a baseline.

    Args:
        spec: One of the forms of `BASELINES`.
        device: As torch names it, for those that run on torch.

    Returns:
        The baseline, or None where the words name none.

    Raises:
        UsageError: a kind without its file or folder, or a library is not installed.
        SourceError: a file of vectors or texts is missing or broken.
        ModelError: a folder is missing or broken.
    """
    kind, _, place = spec.partition(":")
    if spec == "tfidf":
        from es_sbert.evaluation.baselines.tfidf import TfidfOfPairs

        return TfidfOfPairs()
    opener = _OPENERS.get(kind)
    if opener is None or ":" not in spec:
        return None
    if not place:
        form = next(form for form in BASELINES if form.startswith(f"{kind}:"))
        raise UsageError(f"{spec} does not say which", f"Write {form}.")
    return opener(kind, place, device)


def _words(kind: str, place: str, device: str) -> Embedder:
    from es_sbert.evaluation.baselines.vectors_file import read_word_vectors
    from es_sbert.evaluation.baselines.word_vectors import AveragedWordVectors

    path = expanded(place)
    return AveragedWordVectors(read_word_vectors(path), f"{kind} averaged ({path.name})")


def _tfidf(kind: str, place: str, device: str) -> Embedder:
    from es_sbert.evaluation.baselines.corpus import read_corpus
    from es_sbert.evaluation.baselines.tfidf import Tfidf

    path = expanded(place)
    return Tfidf(read_corpus(path), f"tf-idf ({path.name})")


def _transformer(kind: str, place: str, device: str) -> Embedder:
    require("train", "torch", "transformers")
    from es_sbert.evaluation.baselines.transformer import TokenPooling, TransformerBaseline

    folder = resolve_model(place)
    label = {"average": "averaged", "cls": "CLS"}[kind]
    return TransformerBaseline(folder, TokenPooling(kind), f"{folder.resolve().name} {label}", device)


def _infersent(kind: str, place: str, device: str) -> Embedder:
    require("train", "torch")
    from es_sbert.evaluation.baselines.bilstm import open_infersent

    return open_infersent(expanded(place), device=device)


_OPENERS: dict[str, Callable[[str, str, str], Embedder]] = {
    "glove": _words, "fasttext": _words, "word2vec": _words, "tfidf": _tfidf, "average": _transformer,
    "cls": _transformer, "infersent": _infersent,
}  # fmt: skip
