"""Settings that say which tokens, which layer and how many values make a vector: sentence-transformers' vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling

from es_sbert.bundle.sentence_model import PromptKind, SentenceModel, read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.errors import BundleInvalid, ModelError
from es_sbert.exporters import export
from es_sbert.exporters.architectures import read_transformer_weights
from es_sbert.exporters.numpy_reference import NumpyReference
from es_sbert.exporters.parity import row_cosines
from es_sbert.exporters.transformer_weights import Floats
from es_sbert.runtime.batching import mark_unpooled, token_ids
from es_sbert.runtime.tokenizer import SentenceTokenizer, TokenizedTexts
from tests.unit.checkpoints import write_checkpoint
from tests.unit.exporters.test_modules import save

pytestmark = pytest.mark.slow

TEXTS = ["", "a", "The CAT sleeps", "  leading space", "naïve café", "[MASK] and <mask> spelled out", "yes " * 60]
KINDS: tuple[PromptKind | None, ...] = (None, "query", "document")
PROMPTS = {"query": "query: ", "document": "Represent the passage for retrieval: "}
ALL_POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


def edit(path: Path, **settings: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def their_vectors(folder: Path) -> dict[PromptKind | None, Floats]:
    network = SentenceTransformer(str(folder), device="cpu", local_files_only=True).float()
    functions = {None: network.encode, "query": network.encode_query, "document": network.encode_document}
    return {kind: np.asarray(functions[kind](TEXTS)) for kind in KINDS}


def our_vectors(folder: Path, precision: str = "fp32") -> dict[PromptKind | None, Floats]:
    with Encoder(folder, device="cpu", precision=precision) as encoder:
        return {kind: encoder.encode(TEXTS, kind) for kind in KINDS}


def numpy_vectors(model: SentenceModel) -> dict[PromptKind | None, Floats]:
    reference = NumpyReference(model, read_transformer_weights(model))
    return {kind: reference.encode(TEXTS, kind) for kind in KINDS}


def assert_same(vectors: dict[Any, Floats], expected: dict[Any, Floats], cosine: float = 0.99999) -> None:
    for kind in KINDS:
        assert vectors[kind].shape == expected[kind].shape
        assert row_cosines(vectors[kind], expected[kind]).min() > cosine, kind


def check(folder: Path, bundle: Path) -> None:
    """The numpy pass, graphs of both precisions, and the bundle, which both libraries open."""
    expected, model = their_vectors(folder), read_sentence_model(folder)
    assert_same(numpy_vectors(model), expected)
    assert export(folder, bundle, ["fp32", "int8"], force=True).fingerprint == model.fingerprint
    assert_same(our_vectors(bundle), expected)
    assert_same(our_vectors(bundle, "int8"), expected, 0.95)
    assert_same(their_vectors(bundle), expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_truncate_dim_keeps_the_first_values(tmp_path: Path, normalize: bool) -> None:
    """After Normalize, so that vectors are shorter than 1."""
    folder = write_checkpoint(tmp_path / "model", layers=1, normalize=normalize, prompts=PROMPTS)
    whole = our_vectors(folder)
    edit(folder / "config_sentence_transformers.json", truncate_dim=16)
    model = read_sentence_model(folder)
    assert (model.dimensions, model.truncate_dim) == (16, 16)
    check(folder, tmp_path / "bundle")
    np.testing.assert_allclose(our_vectors(tmp_path / "bundle")[None], whole[None][:, :16], atol=1e-5)


def test_truncate_dim_that_cuts_nothing_is_not_in_the_fingerprint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1)
    fingerprint = read_sentence_model(folder).fingerprint
    for kept, same in ((48, True), (100, True), (None, True), (47, False)):
        edit(folder / "config_sentence_transformers.json", truncate_dim=kept)
        model = read_sentence_model(folder)
        assert (model.fingerprint == fingerprint) is same
        assert model.dimensions == min(kept or 48, 48)
    assert_same(our_vectors(folder), their_vectors(folder))


@pytest.mark.parametrize("value", [0, -1, True, "16", 1.5])
def test_truncate_dim_of_another_type_is_refused(tmp_path: Path, value: Any) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1)
    edit(folder / "config_sentence_transformers.json", truncate_dim=value)
    with pytest.raises(BundleInvalid, match="truncate_dim"):
        read_sentence_model(folder)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet"])
def test_prompt_is_left_out_of_every_pooling(tmp_path: Path, architecture: str) -> None:
    folder = write_checkpoint(
        tmp_path / "model", architecture, layers=1, pooling=ALL_POOLINGS, prompts=PROMPTS, normalize=False
    )
    included = read_sentence_model(folder).fingerprint
    before = their_vectors(folder)
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    expected = their_vectors(folder)
    assert row_cosines(before["query"], expected["query"]).min() < 0.999
    assert read_sentence_model(folder).fingerprint != included
    # Mode by mode: one that is wrong must not hide among the others.
    ours = our_vectors(folder)
    for kind in KINDS:
        np.testing.assert_allclose(ours[kind], expected[kind], atol=2e-5)
    check(folder, tmp_path / "bundle")


def test_prompt_is_left_out_after_modules_of_tokens(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1)
    tokens = Dense(48, 24, module_input_name="token_embeddings")
    made = save(folder, tmp_path / "made", tokens, Pooling(24, ("cls", "mean"), include_prompt=False))
    edit(made / "config_sentence_transformers.json", prompts=PROMPTS, default_prompt_name="query")
    check(made, tmp_path / "bundle")


def test_prompt_of_which_the_last_token_is_not_special(tmp_path: Path) -> None:
    """Without a name for [SEP], sentence-transformers counts it as a token of the prompt."""
    folder = write_checkpoint(tmp_path / "model", layers=1, prompts=PROMPTS)
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for key in ("sep_token", "eos_token"):
        settings.pop(key, None)
    settings.pop("added_tokens_decoder", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    assert_same(our_vectors(folder), their_vectors(folder))


def test_pooling_modes_of_a_wrong_type_are_an_error(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1)
    for value in ([["mean"]], [{}], 5):
        edit(folder / "1_Pooling/config.json", pooling_mode=value)
        with pytest.raises(ModelError):
            read_sentence_model(folder)


def test_special_tokens_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each query: a tokenizer.json may be large."""
    folder = write_checkpoint(tmp_path / "model", layers=1, prompts=PROMPTS)
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    tokenizer = SentenceTokenizer(read_sentence_model(folder))
    monkeypatch.setattr(SentenceModel, "special_tokens", None)
    first, second = (tokenizer(["cat"], "query").ids[0].tolist() for _ in range(2))
    assert first == second
    assert min(first) < 0, "the prompt is marked"


def test_prompt_that_fills_the_input(tmp_path: Path) -> None:
    """Nothing is left to pool; documents are cut at another length than prompts are counted with."""
    folder = write_checkpoint(tmp_path / "model", layers=1, max_tokens=32, pooling=("cls", "mean"), prompts=PROMPTS)
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    edit(folder / "sentence_bert_config.json", document_length=6)
    assert_same(our_vectors(folder), their_vectors(folder))
    assert_same(numpy_vectors(read_sentence_model(folder)), their_vectors(folder))


def test_equal_tokens_with_and_without_a_prompt_are_two_inputs(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", layers=1, prompts=PROMPTS)
    edit(folder / "1_Pooling/config.json", include_prompt=False)
    with Encoder(folder, device="cpu", precision="fp32") as encoder:
        parts = [encoder.tokenize(["cat"], "query"), encoder.tokenize(["query: cat"])]
        vectors = encoder.embed(TokenizedTexts.joined(parts, encoder.info.max_tokens))
        apart = np.concatenate([encoder.embed(part) for part in parts])
    np.testing.assert_allclose(vectors, apart, atol=1e-6)
    assert row_cosines(vectors[:1], vectors[1:]).item() < 0.999


def test_marks_round_trip() -> None:
    row = np.array([0, 1, 5, 7], dtype=np.int64)
    marked = mark_unpooled(row, 2)
    assert marked.tolist() == [-1, -2, 5, 7]
    assert token_ids(marked).tolist() == row.tolist()
    assert mark_unpooled(row, 9).tolist() == [-1, -2, -6, -8]
