"""Static models made of a model's vectors of single tokens."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from es_sbert.bundle.sentence_model import read_sentence_model
from es_sbert.encoder.encoder import Encoder
from es_sbert.encoder.static_model import sif_weights, static_model_folder, token_probabilities
from es_sbert.errors import UnsupportedArchitecture
from tests.raised import raises_as_recorded
from tests.tiny import WORDS, write_tiny_bert

pytestmark = pytest.mark.usefixtures("own_models")


def test_frequent_tokens_weigh_less() -> None:
    np.testing.assert_allclose(sif_weights(np.array([0.5, 0.4, 0.1]), 0.1), [0.1 / 0.6, 0.1 / 0.5, 0.1 / 0.2])
    # A token that stands for no word weighs as the most frequent one.
    np.testing.assert_allclose(sif_weights(np.array([0, 0.75, 0.25]), 0.1), [0.1 / 0.85, 0.1 / 0.85, 0.1 / 0.35])


def test_probabilities_fall_with_the_rank_among_the_words() -> None:
    """Ranks count neither special tokens nor placeholders: [unused0] to [unused992] stand before the words of BERT."""
    names = ["[PAD]", "[unused0]", "[unused992]", "[UNK]", "the", "of", "<unused7>", "unused8"]
    tokenizer = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    total = 1 / 2 + 1 / 3 + 1 / 4
    expected = [0, 0, 0, 0, 1 / 2 / total, 1 / 3 / total, 0, 1 / 4 / total]
    np.testing.assert_allclose(token_probabilities(tokenizer), expected)


@pytest.mark.parametrize("normalize", [True, False])
def test_table_holds_the_weighted_and_centred_vectors_of_single_tokens(tmp_path: Path, normalize: bool) -> None:
    source = write_tiny_bert(tmp_path / "model", normalize=normalize, max_tokens=10, prompts={"query": "query : "})
    folder = static_model_folder(source)
    assert static_model_folder(source) == folder
    table = load_file(folder / "0_StaticEmbedding/model.safetensors")["embedding.weight"]
    made, model = read_sentence_model(folder), read_sentence_model(source)
    assert (made.dimensions, made.normalize, made.prompts) == (model.dimensions, normalize, {})
    assert made.max_tokens == 8  # without [CLS] and [SEP]
    with Encoder(source, device="cpu", precision="fp32") as encoder:
        words = encoder.encode(WORDS)
    probabilities = token_probabilities(Tokenizer.from_file(str(source / "tokenizer.json")))
    centred = table / sif_weights(probabilities)[:, None]  # (vocabulary, dimensions)
    np.testing.assert_allclose(probabilities @ centred, 0, atol=1e-5)
    ids = [model.tokenizer_json()["model"]["vocab"][word] for word in WORDS]
    # The differences of centred vectors are those of the vectors.
    np.testing.assert_allclose(centred[ids] - centred[ids[0]], words - words[0], atol=1e-5)


def test_static_model_opens_in_sentence_transformers(tmp_path: Path) -> None:
    folder = static_model_folder(write_tiny_bert(tmp_path / "model"))
    texts = ["a man plays the guitar .", "the cat sleeps", "a " * 50, "nothing known", ""]
    with Encoder(folder, device="cpu") as encoder:
        assert encoder.info.variant == "fp32"
        assert encoder.info.warnings == ()
        ours = encoder.encode(texts)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_static_models_are_no_source(tmp_path: Path) -> None:
    folder = static_model_folder(write_tiny_bert(tmp_path / "model"))
    with raises_as_recorded(UnsupportedArchitecture):
        static_model_folder(folder)
