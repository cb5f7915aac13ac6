"""Training of BiLSTM-max on a language small enough to be learnt in a second."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.baselines.bilstm import BiLstmMax, ClassifiedPairs, EpochResult, PairClassifier, _batches, train_bilstm
from benchmarks.baselines.word_vectors import WordVectors
from es_sbert.errors import SourceError, TrainingDiverged

NOUNS, VERBS = ["cat", "dog", "man", "bird"], ["sleeps", "runs", "sings", "eats"]
CLASSES = ("same", "other")


def language() -> ClassifiedPairs:
    """Sentences of a noun and a verb; a pair is of the first class where the verbs are the same."""
    sentences = list(itertools.product(NOUNS, VERBS))
    pairs = list(itertools.product(sentences, sentences))
    first = [" ".join(u) for u, _ in pairs]
    second = [" ".join(v) for _, v in pairs]
    return ClassifiedPairs(first, second, np.array([int(u[1] != v[1]) for u, v in pairs]), CLASSES)


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    words = [*NOUNS, *VERBS]
    table = np.random.default_rng(1).normal(size=(len(words), 12)).astype(np.float32)
    return WordVectors({word: number for number, word in enumerate(words)}, table)


def test_loss_decreases_and_accuracy_is_high(vectors: WordVectors) -> None:
    seen: list[EpochResult] = []
    train_bilstm(
        language(), vectors, dev=language(), hidden=16, epochs=12, batch=16, learning_rate=0.01, on_epoch=seen.append
    )
    assert [epoch.number for epoch in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].loss < 0.5 * seen[0].loss
    assert max(epoch.accuracy for epoch in seen) > 0.95  # 0.75 of the pairs are of one class
    assert all(epoch.pairs_per_second > 0 for epoch in seen)


def test_training_is_seeded_and_restores_the_rng_state(vectors: WordVectors) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    texts = ["cat runs", "dog sings"]
    first, again, other = (
        train_bilstm(language(), vectors, dev=language(), hidden=4, epochs=2, seed=seed).embed(texts)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    assert torch.equal(torch.random.get_rng_state(), state)


def test_best_epoch_is_kept_and_learning_rate_decays(vectors: WordVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    weights: list[torch.Tensor] = []
    accuracies = iter([0.5, 0.7, 0.6, 0.6])

    def accuracy(model: PairClassifier, *_: object) -> float:
        weights.append(model.encoder.lstm.weight_ih_l0.detach().clone())
        return next(accuracies)

    class Adam(torch.optim.Adam):
        def step(self, *arguments: object) -> None:  # type: ignore[override]
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr("benchmarks.baselines.bilstm._accuracy", accuracy)
    monkeypatch.setattr(torch.optim, "Adam", Adam)
    model = train_bilstm(language(), vectors, dev=language(), hidden=4, epochs=4, batch=256)
    assert torch.equal(model.network.lstm.weight_ih_l0, weights[1])
    np.testing.assert_allclose(rates, [1e-3, 1e-3 * 0.99, 1e-3 * 0.99**2, 1e-3 * 0.99**3 / 5])


def test_training_ends_below_the_minimum_learning_rate(vectors: WordVectors) -> None:
    seen: list[EpochResult] = []
    train_bilstm(language(), vectors, dev=language(), hidden=4, epochs=5, learning_rate=1.005e-5, on_epoch=seen.append)
    assert len(seen) == 1


def test_features_by_hand(vectors: WordVectors) -> None:
    classifier = PairClassifier(BiLstmMax(vectors.vectors, 3), 2)
    seen: list[torch.Tensor] = []
    classifier.head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    first, second = [np.array([0, 4]), np.array([1])], [np.array([2, 5, 6]), np.array([], dtype=np.int64)]
    classifier(first, second)
    u, v = classifier.encoder(first), classifier.encoder(second)
    torch.testing.assert_close(seen[0], torch.cat([u, v, abs(u - v), u * v], dim=1))


def test_batches_cover_every_pair_once_grouped_by_length() -> None:
    random = np.random.default_rng(0)
    groups = random.integers(250, size=1000)
    lengths = random.integers(1, 50, size=250)[groups]
    batches = list(_batches(lengths, groups, 16, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    assert max(map(len, batches)) == 16
    assert np.mean([np.ptp(lengths[members]) for members in batches]) < 5
    # About four pairs a text: at most seven or so texts in a batch, where random batches hold fifteen.
    assert np.mean([len(set(groups[members].tolist())) for members in batches]) < 7
    starts = [int(lengths[members[0]]) for members in batches]
    assert starts != sorted(starts)


def test_repeated_texts_are_encoded_once(vectors: WordVectors) -> None:
    classifier = PairClassifier(BiLstmMax(vectors.vectors, 3), 2)
    seen: list[int] = []
    classifier.encoder.register_forward_pre_hook(lambda _, arguments: seen.append(len(arguments[0])))
    u, v, w = np.array([0, 4]), np.array([1]), np.array([2, 5])
    together = classifier([u, u.copy(), w], [v, w, u])
    assert seen == [3]
    alone = torch.cat([classifier([u], [v]), classifier([u], [w]), classifier([w], [u])])
    torch.testing.assert_close(together, alone)


def test_non_finite_loss_raises_training_diverged(vectors: WordVectors) -> None:
    broken = WordVectors(vectors.index, np.full_like(vectors.vectors, np.nan))
    with pytest.raises(TrainingDiverged, match="nan at step 1 of epoch 1"):
        train_bilstm(language(), broken, dev=language(), hidden=4, epochs=1)


def test_vectors_without_any_training_word_are_rejected(vectors: WordVectors) -> None:
    pairs = ClassifiedPairs(["die Katze"], ["der Hund"], np.array([0]), CLASSES)
    with pytest.raises(SourceError, match="knows no word"):
        train_bilstm(pairs, vectors, dev=language(), hidden=4)
