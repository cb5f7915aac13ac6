"""Settings that say which tokens, which layer and how many values make a vector: sentence-transformers' vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.modules import Dense, Pooling

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.exporters.parity import row_cosines
from es_sbert.runtime.batching import mark_unpooled, token_ids
from es_sbert.runtime.tokenizer import TokenizedTexts
from tests.unit.checkpoints import write_checkpoint
from tests.unit.exporters.comparison import KINDS, assert_same, check, edit, numpy_vectors, our_vectors, their_vectors
from tests.unit.exporters.test_modules import save

pytestmark = pytest.mark.slow

PROMPTS = {"query": "query: ", "document": "Represent the passage for retrieval: "}
ALL_POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ES_SBERT_CACHE", str(tmp_path / "cache"))


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
        parts = [encoder.pipeline.tokenize(["cat"], "query"), encoder.pipeline.tokenize(["query: cat"])]
        vectors = encoder.pipeline.embed(TokenizedTexts.joined(parts, encoder.info.max_tokens))
        apart = np.concatenate([encoder.pipeline.embed(part) for part in parts])
    np.testing.assert_allclose(vectors, apart, atol=1e-6)
    assert row_cosines(vectors[:1], vectors[1:]).item() < 0.999


def test_marks_round_trip() -> None:
    row = np.array([0, 1, 5, 7], dtype=np.int64)
    marked = mark_unpooled(row, 2)
    assert marked.tolist() == [-1, -2, 5, 7]
    assert token_ids(marked).tolist() == row.tolist()
    assert mark_unpooled(row, 9).tolist() == [-1, -2, -6, -8]
