"""Open a baseline by `KIND:PATH`, such as `glove:FILE` or `tfidf`."""

from __future__ import annotations

from collections.abc import Callable

from es_sbert.bundle.model_lookup import resolve_model
from es_sbert.config import expand_home
from es_sbert.errors import UsageError, require_extra
from es_sbert.evaluation.evaluated_models import PairScorer, SentenceEmbedder

# What can be written, for help texts: form → what it is.
BASELINES = {
    "glove:FILE": "averaged word vectors in GloVe's text format",
    "fasttext:FILE": "the same in fastText's or word2vec's text format",
    "word2vec:FILE": "the same",
    "tfidf": "cosine of tf-idf, idf from the texts of the task's own pairs (tasks of pairs only)",
    "tfidf:CORPUS": "tf-idf with idf from a corpus: lines of .txt, or the column `text` of a table",
    "average:MODEL": "averaged outputs of a transformer, without sentence tuning",
    "cls:MODEL": "first output of a transformer, without sentence tuning",
    "infersent:FOLDER": "BiLSTM-max",
}


def open_baseline(spec: str, device: str = "cpu") -> SentenceEmbedder | PairScorer | None:
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
        from benchmarks.baselines.tfidf import TfidfOfPairs

        return TfidfOfPairs()
    opener = _OPENERS.get(kind)
    if opener is None or ":" not in spec:
        return None
    if not place:
        form = next(form for form in BASELINES if form.startswith(f"{kind}:"))
        raise UsageError(f"{spec} does not say which", f"Write {form}.")
    return opener(kind, place, device)


def _open_word_vectors(kind: str, place: str, device: str) -> SentenceEmbedder:
    from benchmarks.baselines.word_vectors import AveragedWordVectors, read_word_vectors

    path = expand_home(place)
    return AveragedWordVectors(read_word_vectors(path), f"{kind} averaged ({path.name})")


def _open_tfidf(kind: str, place: str, device: str) -> SentenceEmbedder:
    from benchmarks.baselines.tfidf import Tfidf, read_corpus

    path = expand_home(place)
    return Tfidf(read_corpus(path), f"tf-idf ({path.name})")


def _open_transformer(kind: str, place: str, device: str) -> SentenceEmbedder:
    require_extra("train", "torch", "transformers")
    from benchmarks.baselines.pooled_transformer import TokenPooling, TransformerBaseline

    folder = resolve_model(place)
    label = {"average": "averaged", "cls": "CLS"}[kind]
    return TransformerBaseline(folder, TokenPooling(kind), f"{folder.resolve().name} {label}", device)


def _open_infersent(kind: str, place: str, device: str) -> SentenceEmbedder:
    require_extra("train", "torch")
    from benchmarks.baselines.bilstm import open_infersent

    return open_infersent(expand_home(place), device=device)


_OPENERS: dict[str, Callable[[str, str, str], SentenceEmbedder]] = {
    "glove": _open_word_vectors,
    "fasttext": _open_word_vectors,
    "word2vec": _open_word_vectors,
    "tfidf": _open_tfidf,
    "average": _open_transformer,
    "cls": _open_transformer,
    "infersent": _open_infersent,
}
